from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.store import writer as writing
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import compute_statistics, open_snapshot, verify
from hardnet.retrieval.store.writer import MANY, Writer
from hardnet.storage import MARKER, OwnedFolder

HOLD = """
import sys
from hardnet.retrieval.store.writer import Writer
with Writer(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def only_what_is_named(folder: Path) -> bool:
    named = set(open_snapshot(folder).manifest.files())
    return files(folder) == named | {"manifest.json", "lock", MARKER}


def test_nothing_is_visible_before_the_commit(
    tmp_path: Path, made: SimpleNamespace, new_index: dict[str, object]
) -> None:
    with Writer(tmp_path / "i", new_index, segment_features=50) as writer:
        writer.add(made.make_image(name) for name in "abcd")
        assert len(files(tmp_path / "i")) > 1
        with pytest.raises(HardnetError, match="holds no index"):
            open_snapshot(tmp_path / "i")
        assert writer.generation == 0
        assert writer.commit() == 1
        assert made.state_of(open_snapshot(tmp_path / "i")) == dict.fromkeys("abcd", 0)
        writer.remove("a")
        writer.add([made.make_image("e")])
        assert open_snapshot(tmp_path / "i").find("a") is not None
        assert writer.commit() == 2
        assert made.state_of(open_snapshot(tmp_path / "i")) == dict.fromkeys("bcde", 0)


def test_settings_and_vocabulary_come_back(made_index: Path, made: SimpleNamespace) -> None:
    snapshot = open_snapshot(made_index)
    assert snapshot.settings == {"detector": "dog"}
    assert snapshot.words == made.WORDS
    assert snapshot.vocabulary.digest == made.make_vocabulary().digest
    modes = {path.stat().st_mode for path in made_index.rglob("*") if path.is_file()}
    assert len(modes) == 1  # whoever may read one may read all


def test_an_index_without_images(tmp_path: Path, new_index: dict[str, object]) -> None:
    with Writer(tmp_path / "i", new_index) as writer:
        assert writer.commit() == 1
    snapshot = open_snapshot(tmp_path / "i")
    assert (snapshot.images, snapshot.features, snapshot.segments) == (0, 0, ())
    assert snapshot.find("a") is None
    assert snapshot.names() == []
    assert not snapshot.statistics.idf.any()
    with pytest.raises(IndexError):
        snapshot.name(0)


def test_what_was_not_committed_is_forgotten(made_index: Path, made: SimpleNamespace) -> None:
    before = made.state_of(open_snapshot(made_index))
    with Writer(made_index, segment_features=10) as writer:
        writer.add([made.make_image("x")])
        assert len(files(made_index)) > len(open_snapshot(made_index).manifest.files()) + 2
        writer.remove(["a"])
    assert made.state_of(open_snapshot(made_index)) == before
    assert only_what_is_named(made_index)


def test_the_later_image_of_a_name_counts(made_index: Path, made: SimpleNamespace) -> None:
    with Writer(made_index, segment_features=40) as writer:
        # "a" is in the index; "x" comes twice in one segment, "y" in two of them.
        versions = [("a", 1), ("x", 1), ("x", 2), ("y", 1), ("filler", 1), ("y", 2)]
        writer.add(made.make_image(name, version) for name, version in versions)
        writer.commit()
    expected = {"a": 1, "c": 0, "d": 0, "x": 2, "y": 2, "filler": 1}
    assert made.state_of(open_snapshot(made_index)) == expected


def test_removing(made_index: Path, made: SimpleNamespace) -> None:
    with Writer(made_index) as writer:
        writer.add([made.make_image("x"), made.make_image("y")])
        assert writer.remove(["x", "b", "c", "nobody", "c"]) == ["b", "nobody"]
        assert writer.remove(["c"]) == ["c"]
        writer.commit()
    snapshot = open_snapshot(made_index)
    assert made.state_of(snapshot) == dict.fromkeys("ady", 0)
    assert [snapshot.find(name) for name in "bc"] == [None, None]
    assert snapshot.manifest.removed == 2
    alive = [None if living is None else living.tolist() for living in snapshot.alive]
    assert alive == [[True, False], [False, True], None]


def test_a_segment_without_living_images_goes(made_index: Path, made: SimpleNamespace) -> None:
    with Writer(made_index) as writer:
        writer.remove(["a"])
        writer.commit()
        assert len(open_snapshot(made_index).segments) == 1
        assert made.state_of(open_snapshot(made_index)) == dict.fromkeys("cd", 0)
        writer.remove(["c", "d"])
        writer.commit()
    assert open_snapshot(made_index).segments == ()
    assert only_what_is_named(made_index)


def test_a_removed_image_can_come_back(made_index: Path, made: SimpleNamespace) -> None:
    with Writer(made_index) as writer:
        writer.remove(["a"])
        writer.add([made.make_image("a", 5)])
        writer.commit()
    assert made.state_of(open_snapshot(made_index)) == {"a": 5, "c": 0, "d": 0}


def test_a_removal_is_undone_with_the_newest_content(
    made_index: Path, made: SimpleNamespace
) -> None:
    with Writer(made_index) as writer:
        assert writer.restore(["b"]) == []
        writer.add([made.make_image("a", 6), made.make_image("f")])  # a second "a"
        writer.commit()
        assert open_snapshot(made_index).removed_names() == [], "its old content is replaced"
        writer.remove(["a", "c"])
        writer.commit()
        assert open_snapshot(made_index).removed_names() == ["a", "c"]
        assert writer.restore(["a", "d", "nobody"]) == ["nobody"]
        writer.commit()
    snapshot = open_snapshot(made_index)
    assert made.state_of(snapshot) == {"a": 6, **dict.fromkeys("bdf", 0)}
    assert snapshot.removed_names() == ["c"]
    with Writer(made_index) as writer:
        writer.compact(waste=0.0)
        writer.commit()
        assert writer.restore(["c"]) == ["c"]


def test_a_commit_of_nothing_is_none(made_index: Path) -> None:
    before = (made_index / "manifest.json").read_bytes()
    with Writer(made_index) as writer:
        writer.add([])
        assert writer.remove(["nobody"]) == ["nobody"]
        assert writer.commit() == writer.generation == 2
    assert (made_index / "manifest.json").read_bytes() == before


def test_compaction_leaves_the_living_only(made_index: Path, made: SimpleNamespace) -> None:
    old = open_snapshot(made_index)
    before = made.state_of(old)
    steps = []
    with Writer(made_index) as writer:
        writer.compact(progress=lambda *step: steps.append(step))
        assert open_snapshot(made_index).generation == 2
        assert writer.commit() == 3
        new = open_snapshot(made_index)
        assert made.state_of(new) == before
        assert (len(new.segments), new.manifest.removed, new.alive) == (1, 0, (None,))
        assert steps == [("compacting", 0, 1), ("compacting", 1, 1)]
        assert only_what_is_named(made_index)
        writer.compact()
        assert writer.commit() == 3  # nothing to win
    assert made.state_of(old) == before  # a reader of the old generation continues


def test_compaction_spares_full_segments(
    tmp_path: Path, made: SimpleNamespace, new_index: dict[str, object]
) -> None:
    with Writer(tmp_path / "i", new_index, segment_features=100) as writer:
        writer.add(made.make_image(str(k), features=10) for k in range(45))
        writer.remove(["3", *(str(k) for k in range(10, 14)), *(str(k) for k in range(30, 39))])
        writer.commit()
        names = [entry.name for entry in open_snapshot(tmp_path / "i").manifest.segments]
        assert len(names) == 5
        writer.compact(waste=0.2)
        writer.commit()
        after = open_snapshot(tmp_path / "i")
        # 10 % of the first are dead, 40 % of the second, 90 % of the fourth; the last is half full.
        kept = [entry.name for entry in after.manifest.segments]
        assert kept[:3] == [names[0], names[2], names[4]]
        assert [segment.features for segment in after.segments] == [100, 100, 50, 70]
        writer.compact(waste=0)
        writer.commit()
        last = open_snapshot(tmp_path / "i")
        assert last.manifest.removed == 0
        assert all(segment.features <= 100 for segment in last.segments)
        assert set(last.names()) == set(after.names())


def test_many_small_commits_do_not_make_many_segments(
    tmp_path: Path, made: SimpleNamespace, new_index: dict[str, object]
) -> None:
    counts = []
    with Writer(tmp_path / "i", new_index, segment_features=3000) as writer:
        for k in range(35):
            writer.add([made.make_image(str(k))])
            writer.commit()
            counts.append(len(open_snapshot(tmp_path / "i").segments))
    snapshot = open_snapshot(tmp_path / "i")
    assert counts[: MANY - 1] == list(range(1, MANY))
    assert max(counts) <= 2 * MANY
    assert max(segment.features for segment in snapshot.segments) <= 3000
    assert made.state_of(snapshot) == {str(k): 0 for k in range(35)}


def test_statistics_are_those_of_the_living(made_index: Path) -> None:
    snapshot = open_snapshot(made_index)
    found, expected = snapshot.statistics, compute_statistics(snapshot.segments, snapshot.alive, 50)
    assert found.images == expected.images == 3
    np.testing.assert_array_equal(found.document_counts, expected.document_counts)
    np.testing.assert_array_equal(found.idf, expected.idf)
    for name in ("bow_norms", "he_norms"):
        for a, b in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_more_images_than_a_segment_holds(tmp_path: Path, new_index: dict[str, object]) -> None:
    word, one, where = np.zeros(1, np.int32), np.ones((1, 2), np.uint64), np.ones((1, 3), np.uint16)
    with Writer(tmp_path / "i", new_index) as writer:
        writer.add(IndexedImage(str(k), (1, 1), word, one, where) for k in range(65_537))
        writer.commit()
    snapshot = open_snapshot(tmp_path / "i")
    assert [len(segment) for segment in snapshot.segments] == [65_536, 1]
    full = snapshot.segments[0]
    assert full.document_counts.tolist() == [65_536, *[0] * 49]
    assert full.image_ids[-1] == 65_535
    assert full.postings_of(65_535).tolist() == [65_535]
    assert snapshot.find("65535") == 65_535
    assert snapshot.bases == (0, 65_536)
    assert [snapshot.locate(k) for k in (65_535, 65_536)] == [(0, 65_535), (1, 0)]
    assert [snapshot.find(snapshot.name(k)) for k in (0, 65_535, 65_536)] == [0, 65_535, 65_536]
    assert snapshot.statistics.document_counts[0] == 65_537


def test_large_vocabularies_have_large_segments(
    tmp_path: Path,
    made: SimpleNamespace,
    new_index: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "SEGMENT_FEATURES", 100)
    monkeypatch.setattr(writing, "FEATURES_PER_WORD", 4)  # times 50 words
    with Writer(tmp_path / "i", new_index) as writer:
        writer.add(made.make_image(str(k), features=20) for k in range(25))
        writer.commit()
    features = [segment.features for segment in open_snapshot(tmp_path / "i").segments]
    assert features == [200, 200, 100]


def test_the_second_writer_is_told(made_index: Path) -> None:
    command = [sys.executable, "-c", HOLD, made_index]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(HardnetError, match=f"another process is writing to .*{made_index}"):
            Writer(made_index)
        assert open_snapshot(made_index).images == 3  # readers are not concerned
        other.kill()
    with Writer(made_index) as writer:
        assert writer.generation == 2
        with pytest.raises(HardnetError, match="another process"):
            Writer(made_index)


def test_an_index_is_not_created_twice(made_index: Path, new_index: dict[str, object]) -> None:
    with pytest.raises(HardnetError, match="holds an index already"):
        Writer(made_index, new_index)
    assert verify(made_index).ok


def test_no_index_to_write_to(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="holds no index"):
        Writer(tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_a_closed_writer(made_index: Path, made: SimpleNamespace) -> None:
    with Writer(made_index) as writer:
        pass
    writer.close()
    for use in (writer.commit, writer.compact, lambda: writer.add([]), lambda: writer.remove([])):
        with pytest.raises(HardnetError, match="closed"):
            use()


def test_files_of_others_are_not_swept(made_index: Path) -> None:
    mine = {
        "segments/holiday.jpg",
        "notes.txt",
        "generations/x.safetensors",
        "segments/00000009-0000.safetensors",
        "segments/00000003-0000.safetensors",
        "generations/00000009.safetensors",
        "vocabulary-0123456789abcdef.safetensors",
        "manifest.json.part",
    }
    for name in mine:
        (made_index / name).write_text("mine")
    garbage = {"segments/00000008-0000.safetensors", "generations/00000008.safetensors"}
    for name in garbage:
        killed = OwnedFolder.mark(made_index).claim(name)
        killed.write_text("of a killed writer")
    with Writer(made_index):
        pass
    assert mine <= files(made_index)
    assert not garbage & files(made_index)
    assert verify(made_index).ok


def test_a_name_that_cannot_be_stored(made_index: Path, made: SimpleNamespace) -> None:
    with Writer(made_index) as writer:
        with pytest.raises(HardnetError, match="half a character"):
            writer.add([made.make_image("x\ud800")])
        writer.add([made.make_image("fine")])
        writer.commit()
    assert open_snapshot(made_index).find("fine") is not None


def test_at_most_28_bytes_per_feature(tmp_path: Path, made: SimpleNamespace) -> None:
    """The size of the benchmark: 300 photos of 395 features, 8k words."""
    rng = np.random.default_rng(0)
    new = {"settings": {}, "vocabulary": made.make_vocabulary(8192)}
    with Writer(tmp_path / "i", new) as writer:
        for k in range(300):
            image = made.make_image(f"photos/ukbench{k:05d}.jpg", features=395)
            words = rng.integers(0, 8192, 395).astype(np.int32)
            writer.add([IndexedImage(**{**vars(image), "words": words})])
        writer.commit()
    facts = open_snapshot(tmp_path / "i").manifest
    size = sum(entry.facts.file.bytes for entry in facts.segments) + facts.state.bytes
    assert facts.features == 300 * 395
    assert 27 < size / facts.features < 28
