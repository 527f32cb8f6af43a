"""Shards in real worker processes of Ray, some of them killed."""

from __future__ import annotations

import os
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

from .conftest import NAMES, SETTINGS, SmallIndex, pid_of


@pytest.fixture(scope="module")
def sharded(ray: Any, local: Index) -> Iterator[ShardedIndex]:
    """Two shards of two segments each."""
    with ShardedIndex(local.folder, shards=2) as index:
        assert sorted(len(slot.positions) for slot in index._slots) == [2, 2]
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


def test_the_same_index_is_built(ray: Any, small: SmallIndex, tmp_path: Path) -> None:
    """Among the tests of searching, so that one Ray is started for both."""
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


@pytest.mark.slow
def test_a_killed_shard_is_missing_then_comes_back(
    ray: Any, sharded: ShardedIndex, local: Index, small: SmallIndex
) -> None:
    query = small.features["camera.png"]
    mode = "hqe+sv"
    victim, survivor = sharded._slots
    old = pid_of(ray, victim.actor)
    os.kill(old, signal.SIGKILL)
    partial = sharded.search(query, len(NAMES), mode=mode)
    # What is alive ranks as if the rest had never been asked, with the idf of the whole.
    part = LocalShard(local.snapshot, survivor.positions)
    assert_same(partial, local.search(query, len(NAMES), mode=mode, shards=part))
    [missing] = partial.missing
    names = [local.snapshot.manifest.segments[at].name for at in victim.positions]
    assert missing.startswith("shard 1 of 2 (")
    assert all(name in missing for name in names)
    assert "its worker died and is being restarted" in missing
    assert sharded.wait(60)
    assert pid_of(ray, victim.actor) != old
    complete = sharded.search(query, len(NAMES), mode=mode)
    assert complete.missing == []
    assert_same(complete, local.search(query, len(NAMES), mode=mode))


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
    sharded: ShardedIndex,
    local: Index,
    small: SmallIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharded, "timeout", 1.0)
    actor = sharded._slots[1].actor
    hanging = pid_of(ray, actor)
    halt(ray, actor)
    query = small.features["camera.png"]
    found = sharded.search(query, mode="he")
    [missing] = found.missing
    assert "shard 2 of 2" in missing
    assert "no answer within 1 s" in missing
    assert found.seconds["score"] < 1  # of the search that was answered, without that shard
    assert sharded.wait(60)
    assert pid_of(ray, actor) != hanging
    assert not Path(f"/proc/{hanging}").exists()
    monkeypatch.undo()
    complete = sharded.search(query)
    assert complete.missing == []
    assert_same(complete, local.search(query))


def test_a_shard_that_never_opens_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    did: list[str] = []
    actor = SimpleNamespace(open=SimpleNamespace(remote=lambda *order: did.append("open") or did))
    fake = SimpleNamespace(
        remote=lambda **options: lambda kind: SimpleNamespace(remote=lambda: actor),
        wait=lambda refs, timeout: ([], refs),
        kill=lambda one, no_restart: did.append(f"kill, no restart: {no_restart}"),
    )
    slot = Slot(fake, "00" * 28)
    manifest: Any = None
    slot.open("folder", manifest, [0])
    slot.look()
    assert did == ["open"]
    monkeypatch.setattr(
        "hardnet.retrieval.cluster.shards.monotonic", lambda: time.monotonic() + 121
    )
    slot.look()
    assert did == ["open", "kill, no restart: False", "open"]
    assert "did not open its segments within 120 s" in slot.why_not
    slot.look()  # the next one has its own time
    assert not slot.is_open
    assert len(did) == 3


@pytest.mark.slow
def test_all_shards_change_to_a_new_generation(
    ray: Any, small: SmallIndex, local: Index, tmp_path: Path
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
        assert sharded.wait(60)
        assert len(sharded) == 3
        assert_same(sharded.search(query), Index(folder).search(query))


def test_nodes_must_see_the_folder_and_have_the_same_version(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(check_nodes(ray, [tmp_path])) == 1
    with pytest.raises(HardnetError, match=r"node \S+ does not see the folder .*nowhere"):
        check_nodes(ray, [tmp_path, tmp_path / "nowhere"])
    monkeypatch.setattr("hardnet.retrieval.cluster.describers.metadata.version", lambda name: "9.9")
    with pytest.raises(HardnetError, match=r"node \S+ has hardnet [\d.]+, this machine 9\.9"):
        check_nodes(ray)


def test_an_actor_says_what_it_does_not_see(local: Index, tmp_path: Path) -> None:
    manifest = local.snapshot.manifest
    with pytest.raises(HardnetError, match=r"node \S+ does not see the folder .*nowhere"):
        ShardActor().open(str(tmp_path / "nowhere"), manifest, (0,))
    with pytest.raises(OutdatedError, match=r"does not see .*segments"):
        ShardActor().open(str(tmp_path), manifest, (0,))
    with pytest.raises(OutdatedError, match="generation 7"):
        ShardActor().answer(7, "features_of", np.array([0]))


def test_addresses(ray: Any) -> None:
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
