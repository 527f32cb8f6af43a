"""Shards in real worker processes of Ray, some of them killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.retrieval.build import build
from hardnet.retrieval.cluster.describers import check_nodes, connected, describers_on
from hardnet.retrieval.cluster.shards import OutdatedError, ShardActor, ShardedIndex, Slot, divide
from hardnet.retrieval.index import Index
from hardnet.retrieval.photos import IndexSettings, quantise_many
from hardnet.retrieval.query import Results
from hardnet.retrieval.search import MODES, LocalShard
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import Writer

from .conftest import NAMES, SETTINGS, RayHere, SmallIndex, pid_of


@pytest.fixture
def sharded(here: RayHere, local: Index) -> Iterator[ShardedIndex]:
    """Two shards of two segments each."""
    with ShardedIndex(local.folder, shards=2) as index:
        assert sorted(len(slot.positions) for slot in index._slots) == [2, 2]
        yield index


@pytest.fixture(scope="module")
def real(ray: Any, local: Index) -> Iterator[ShardedIndex]:
    """The same in processes of Ray."""
    with ShardedIndex(local.folder, shards=2) as index:
        yield index
    assert ray.is_initialized()  # it was not the index that started Ray


def assert_same(found: Results, expected: Results) -> None:
    """The same hits, to the last bit."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert (one.path, one.image, one.score, one.inliers, one.view) == (
            other.path,
            other.image,
            other.score,
            other.inliers,
            other.view,
        )
        for a, b in ((one.transform, other.transform), (one.region, other.region)):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_results_are_those_of_one_machine(
    mode: str, sharded: ShardedIndex, local: Index, small: SmallIndex
) -> None:
    for name in ("camera.png", "coffee.png"):
        query = small.features[name]
        found = sharded.search(query, len(NAMES), mode=mode)
        assert_same(found, local.search(query, len(NAMES), mode=mode))
        assert found.missing == []
        assert found[0].path.endswith(name)


def test_views_boxes_and_files(sharded: ShardedIndex, local: Index, small: SmallIndex) -> None:
    query = [small.photos["chelsea.png"], small.photos["coins.png"]]
    boxes = [(50.0, 50.0, 250.0, 200.0), None]
    found = sharded.search(query, 5, boxes, "hqe+sv")
    expected = local.search(query, 5, boxes, "hqe+sv")
    assert_same(found, expected)
    # Whoever describes a query first also loads the network.
    assert set(found.seconds) - {"load"} == set(expected.seconds) - {"load"}
    assert [view.path for view in found.query] == [str(path) for path in query]


def test_the_same_index_is_built_and_searched(
    ray: Any, local: Index, small: SmallIndex, tmp_path: Path
) -> None:
    """The one test of every run with real workers: of photos, and of a shard."""
    broken, gone = tmp_path / "broken.png", tmp_path / "gone.png"
    broken.write_bytes(b"words, not pixels" * 20)
    photos = small.photos | {"broken.png": broken, "gone.png": gone}
    settings = IndexSettings(**SETTINGS)
    # The words are trained on a sample of two photos; the others are described afterwards.
    how: dict[str, Any] = {"words": 16, "commit_images": 4}
    reports = [build(tmp_path / "here", photos, settings, **how)]
    with describers_on("local", settings) as describers:
        reports.append(build(tmp_path / "there", photos, settings, describing=describers, **how))
    assert vars(reports[0]) == vars(reports[1])
    assert sorted(reports[1].skipped) == ["broken.png", "gone.png"]
    here, there = (open_snapshot(tmp_path / name) for name in ("here", "there"))
    assert here.names() == there.names()
    assert here.vocabulary.digest == there.vocabulary.digest
    facts = [[(s.name, s.facts) for s in one.manifest.segments] for one in (here, there)]
    assert facts[0] == facts[1]  # sizes and checksums of all columns
    assert here.manifest.state == there.manifest.state
    query = small.features["coffee.png"]
    with ShardedIndex(local.folder) as sharded:
        assert_same(sharded.search(query), local.search(query))


def test_a_dead_shard_is_missing_then_comes_back(
    sharded: ShardedIndex, local: Index, small: SmallIndex
) -> None:
    query, mode = small.features["camera.png"], "hqe+sv"
    victim, survivor = sharded._slots
    victim.actor.state = "dying"
    partial = sharded.search(query, len(NAMES), mode=mode)
    # What is alive ranks as if the rest had never been asked, with the idf of the whole.
    part = LocalShard(local.snapshot, survivor.positions)
    assert_same(partial, local.search(query, len(NAMES), mode=mode, shards=part))
    [missing] = partial.missing
    names = [local.snapshot.manifest.segments[at].name for at in victim.positions]
    assert missing.startswith("shard 1 of 2 (")
    assert all(name in missing for name in names)
    assert "its worker died and is being restarted" in missing
    victim.actor.state = "alive"
    assert sharded.wait(0)
    complete = sharded.search(query, len(NAMES), mode=mode)
    assert complete.missing == []
    assert_same(complete, local.search(query, len(NAMES), mode=mode))


def test_a_hanging_shard_is_restarted(
    sharded: ShardedIndex, local: Index, small: SmallIndex
) -> None:
    actor, query = sharded._slots[1].actor, small.features["camera.png"]
    actor.state = "hanging"
    [missing] = sharded.search(query).missing
    assert "shard 2 of 2" in missing
    assert "no answer within 30 s" in missing
    assert actor.starts == 2
    for slot in sharded._slots:
        slot.actor.state = "starting"
        slot.lose("for the test")
    sharded.timeout = 0.01
    with pytest.raises(HardnetError, match=r"no shard of .* answers: for the test"):
        sharded.search(query)
    for slot in sharded._slots:
        slot.actor.state = "alive"
    assert_same(sharded.search(query), local.search(query))


@pytest.mark.slow
def test_a_killed_shard_is_missing_then_comes_back(
    ray: Any, real: ShardedIndex, local: Index, small: SmallIndex
) -> None:
    query = small.features["camera.png"]
    old = pid_of(ray, real._slots[0].actor)
    os.kill(old, signal.SIGKILL)
    [missing] = real.search(query).missing
    assert "its worker died and is being restarted" in missing
    assert real.wait(60)
    assert pid_of(ray, real._slots[0].actor) != old
    assert_same(real.search(query), local.search(query))


def hang(ray: Any, actor: Any) -> None:
    """Keep it busy; it would still hear an order to end."""
    actor.__ray_call__.remote(lambda self: time.sleep(600))


def stop(ray: Any, actor: Any) -> None:
    """Stop the process, which then hears nothing at all."""
    os.kill(pid_of(ray, actor), signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.parametrize("halt", [hang, stop])
def test_a_hanging_shard_does_not_hang_the_query_and_comes_back(
    halt: Callable[[Any, Any], None],
    ray: Any,
    real: ShardedIndex,
    local: Index,
    small: SmallIndex,
) -> None:
    actor = real._slots[1].actor
    hanging = pid_of(ray, actor)
    halt(ray, actor)
    query = small.features["camera.png"]
    real.timeout = 1.0
    found = real.search(query, mode="he")
    real.timeout = 30.0
    [missing] = found.missing
    assert "shard 2 of 2" in missing
    assert "no answer within 1 s" in missing
    assert found.seconds["score"] < 1  # of the search that was answered, without that shard
    assert real.wait(60)
    assert pid_of(ray, actor) != hanging
    assert not Path(f"/proc/{hanging}").exists()
    complete = real.search(query)
    assert complete.missing == []
    assert_same(complete, local.search(query))


def test_a_shard_that_never_opens_is_restarted(here: RayHere, local: Index) -> None:
    slot = Slot(here, "00" * 28)
    slot.actor.state = "starting"
    slot.open(str(local.folder), local.snapshot.manifest, [0])
    slot.look()
    assert slot.actor.starts == 1
    slot.patience = 0
    slot.look()
    assert slot.actor.starts == 2
    assert "did not open its segments within 0 s" in slot.why_not
    slot.actor.state = "alive"
    slot.look()
    assert slot.is_open


def test_all_shards_change_to_a_new_generation(
    here: RayHere, small: SmallIndex, local: Index, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    settings = local.settings.to_json()
    vocabulary = small.vocabulary

    def add(*names: str) -> None:
        with Writer(folder) as writer:
            writer.add(quantise_many([(n, small.features[n]) for n in names], vocabulary))
            writer.commit()

    with Writer(folder, {"settings": settings, "vocabulary": vocabulary}) as writer:
        writer.commit()
    add("camera.png", "brick.png")
    query = small.features["coins.png"]
    with ShardedIndex(folder, shards=1) as sharded:
        assert len(sharded) == 2
        assert not sharded.refresh()
        before = sharded.search(query, mode="he")
        add("coins.png", "page.png")
        assert_same(sharded.search(query, mode="he"), before)
        assert sharded.refresh()
        assert_same(sharded.search(query), Index(folder).search(query))
        assert len(sharded) == 4
        # The files of this generation go away; a process that was restarted would need them.
        with Writer(folder) as writer:
            writer.remove(["page.png"])
            writer.compact(waste=0.0)
            writer.commit()
        sharded._slots[0].lose("for the test")
        assert sharded.wait(0)
        assert len(sharded) == 3
        assert_same(sharded.search(query), Index(folder).search(query))
        shutil.rmtree(folder / "segments")
        sharded._slots[0].lose("for the test")
        with pytest.raises(HardnetError, match=r"is missing; bring the index"):
            sharded.search(query)


def test_nodes_must_see_the_folder_and_have_the_same_version(here: RayHere, tmp_path: Path) -> None:
    [node] = check_nodes(here, [tmp_path])
    assert node["Resources"] == {"CPU": 2}
    with pytest.raises(HardnetError, match=r"node here does not see the folder .*nowhere"):
        check_nodes(here, [tmp_path, tmp_path / "nowhere"])
    node = SimpleNamespace()
    here.remote = lambda **_: lambda probe: SimpleNamespace(options=lambda **_: node)
    for version, words in (("9.9", "hardnet 9.9"), ("", "no hardnet")):
        node.remote = lambda paths, answer=(version, []): here.put(answer)
        with pytest.raises(HardnetError, match=rf"node here has {words}, this machine \d"):
            check_nodes(here)
    here.nodes = list
    with pytest.raises(HardnetError, match="has no node with cores"):
        check_nodes(here)


def test_an_actor_says_what_it_does_not_see(local: Index, tmp_path: Path) -> None:
    manifest = local.snapshot.manifest
    with pytest.raises(HardnetError, match=r"node \S+ does not see the folder .*nowhere"):
        ShardActor().open(str(tmp_path / "nowhere"), manifest, (0,))
    with pytest.raises(OutdatedError, match=r"does not see .*segments"):
        ShardActor().open(str(tmp_path), manifest, (0,))
    with pytest.raises(OutdatedError, match="generation 7"):
        ShardActor().answer(7, "features_of", np.array([0]))


def test_addresses(here: RayHere) -> None:
    with pytest.raises(HardnetError, match="connected to a cluster other than 127"):
        join("127.0.0.1:1")


def join(address: str) -> None:
    with connected(address):
        pass


class Refusing:
    """A Ray that is not connected, and cannot be."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        if self.error is not None:
            raise self.error


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Refusing())
    with pytest.raises(HardnetError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "):
        join("127.0.0.1:1")
    for wrong in ("nonsense", "ray://host", "host:port", "ray://:10001"):
        with pytest.raises(HardnetError, match=f"{wrong} is not the address of a Ray cluster"):
            join(wrong)


@pytest.mark.parametrize("error", [ConnectionError(), ImportError("no grpc\nat all")])
def test_a_cluster_that_refuses(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Refusing(error))
    with pytest.raises(
        HardnetError, match=r"cannot join the Ray cluster auto: (ConnectionError|no grpc) \("
    ):
        join("auto")


def test_wrong_numbers(small: SmallIndex) -> None:
    with pytest.raises(HardnetError, match="shards is 0"):
        ShardedIndex(small.folder, shards=0)
    with pytest.raises(HardnetError, match="timeout is 0"):
        ShardedIndex(small.folder, timeout=0)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray .*hardnet\[cluster\]"):
        join("local")


def test_the_local_index_needs_no_ray() -> None:
    code = (
        "import sys, hardnet.retrieval.index, hardnet.retrieval.cluster, hardnet.cli.index, "
        "hardnet.cli.search; assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_segments_are_divided_by_their_weight() -> None:
    assert divide([5, 1, 4, 2], 2) == [[0, 1], [2, 3]]
    assert divide([3], 3) == [[0], [], []]
    assert divide([0, 0, 0, 0], 2) == [[0, 2], [1, 3]]
    assert divide([], 1) == [[]]
