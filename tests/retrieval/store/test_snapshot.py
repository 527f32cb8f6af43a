from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.store import snapshot as snapshots
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import Manifest, Snapshot, open_snapshot, read_manifest
from hardnet.retrieval.store.writer import Writer


def test_numbers_of_images(made_index: Path, made: SimpleNamespace) -> None:
    snapshot = open_snapshot(made_index)
    assert snapshot.bases == (0, 2)
    assert [snapshot.locate(k) for k in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [snapshot.name(k) for k in range(4)] == ["a", "b", "c", "d"]
    assert [snapshot.find(name) for name in "abcd"] == [0, None, 2, 3]
    assert snapshot.find_many(["d", "nobody", "b", "a"]).tolist() == [3, -1, -1, 0]
    assert snapshot.find_many([]).tolist() == []
    assert snapshot.names() == ["a", "c", "d"]
    assert snapshot.size(3) == made.make_image("d").size
    assert snapshot.file(3) == (made.make_image("d").file_bytes, 0)
    features = sum(len(made.make_image(name)) for name in "acd")
    assert (snapshot.images, snapshot.features, snapshot.generation) == (3, features, 2)
    for image in (-1, 4):
        with pytest.raises(IndexError, match=f"no image {image}"):
            snapshot.locate(image)


def test_a_reader_changes_nothing(made_index: Path) -> None:
    def listing() -> dict[Path, tuple[int, int]]:
        found = [made_index, *made_index.rglob("*")]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in found}

    (made_index / "lock").unlink()
    before = listing()
    made_index.chmod(0o555)
    try:
        snapshot = open_snapshot(made_index)
        assert len(snapshot.vocabulary) == snapshot.words
        assert snapshot.statistics.images == 3
    finally:
        made_index.chmod(0o755)
    assert listing() == before


def test_a_reader_that_comes_too_late_reads_again(
    made_index: Path, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction wins between the reading of the manifest and the opening of the files."""
    real = read_manifest
    generations = []

    def slowly(folder: Path) -> Manifest:
        manifest = real(folder)
        generations.append(manifest.generation)
        if len(generations) <= 3:
            monkeypatch.setattr(snapshots, "read_manifest", real)
            with Writer(folder) as writer:
                writer.add([made.make_image("new", len(generations))])
                writer.compact(0)
                writer.commit()
            monkeypatch.setattr(snapshots, "read_manifest", slowly)
        return manifest

    monkeypatch.setattr(snapshots, "read_manifest", slowly)
    snapshot = open_snapshot(made_index)
    assert generations == [2, 3, 4, 5]
    assert made.state_of(snapshot) == {"a": 0, "c": 0, "d": 0, "new": 3}


def test_no_index(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(HardnetError, match=f"{folder} holds no index .*hardnet index build"):
            open_snapshot(folder)


def large_index(folder: Path, made: SimpleNamespace, segments: int, each: int) -> Path:
    """An index of many images with three features each."""
    rng = np.random.default_rng(0)
    blank = np.zeros((3, 2), np.uint64), np.zeros((3, 3), np.uint16)
    new = {"settings": {}, "vocabulary": made.make_vocabulary()}
    with Writer(folder, new, segment_features=3 * each) as writer:
        writer.add(
            IndexedImage(f"{k:06d}.jpg", (640, 640), rng.integers(0, 50, 3, np.int32), *blank)
            for k in range(segments * each)
        )
        writer.commit()
    assert len(open_snapshot(folder).segments) == segments
    return folder


def check_quick(folder: Path, opening: float, finding: float) -> Snapshot:
    begin = time.process_time()
    snapshot = open_snapshot(folder)
    assert snapshot.statistics.images == snapshot.images
    assert time.process_time() - begin < opening
    begin = time.process_time()
    wanted = np.random.default_rng(0).integers(0, snapshot.images, 100).tolist()
    for image in wanted:
        assert snapshot.find(snapshot.name(image)) == image
        assert snapshot.find(f"no {image}") is None
    assert (time.process_time() - begin) / 200 < finding
    return snapshot


def test_opening_and_finding_are_quick(tmp_path: Path, made: SimpleNamespace) -> None:
    check_quick(large_index(tmp_path / "i", made, 50, 40), opening=1.0, finding=0.02)


@pytest.mark.slow
def test_a_million_images(tmp_path: Path, made: SimpleNamespace) -> None:
    folder = large_index(tmp_path / "i", made, 250, 4000)
    assert check_quick(folder, opening=1.0, finding=0.05).images == 1_000_000
