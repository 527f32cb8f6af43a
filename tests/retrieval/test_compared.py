"""The log of comparisons survives what happens to an index and to a process."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.comparing import Compared
from hardnet.retrieval.kinds import Evidence, Thresholds
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import Writer

ABOUT = {"vocabulary": "x"}


def evidence(snapshot_sizes: tuple[tuple[int, int], tuple[int, int]]) -> Evidence:
    points = np.array([[1, 2, 3, 4]], np.float32)
    return Evidence(np.eye(2, 3), snapshot_sizes, 20, 15, 40, 0.5, 0.6, points, bordered=True)


def log_of(folder: Path, about: dict[str, object] = ABOUT) -> Compared:
    return Compared(folder, about, open_snapshot(folder))


def fill(folder: Path) -> None:
    with log_of(folder) as log:
        log.add("a", False, {"c": evidence((log.size("a"), log.size("c")))})
        log.add("c", False, {})


def test_what_was_found_is_read_again(made_index: Path) -> None:
    fill(made_index)
    with log_of(made_index) as log:
        assert log.has("a", False)
        assert log.has("c", False)
        assert not log.has("a", True)
        assert not log.has("d", False)
        [(name, other, found)] = log.pairs()
    assert (name, other) == ("a", "c")
    assert found.inliers == 20
    assert found.bordered
    assert found.points.tolist() == [[1, 2, 3, 4]]


def test_a_line_that_a_kill_cut_short_is_none(made_index: Path) -> None:
    fill(made_index)
    path = made_index / "groups" / "compared.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'"photo": "c"') + 5])
    with log_of(made_index) as log:
        assert log.has("a", False)
        assert not log.has("c", False)
        log.add("c", False, {})
    with log_of(made_index) as log:
        assert log.has("c", False)


def test_changed_and_removed_photos_are_forgotten(made_index: Path, made: SimpleNamespace) -> None:
    fill(made_index)
    with Writer(made_index) as writer:  # which sweeps what it does not know
        writer.remove(["c"])
        writer.commit()
    with log_of(made_index) as log:
        assert log.has("a", False)
        assert not log.has("c", False)
        assert list(log.pairs()) == []
    with Writer(made_index) as writer:
        writer.compact(waste=0.0)
        writer.commit()
    with log_of(made_index) as log:
        assert log.has("a", False)


def test_other_thresholds_begin_again(made_index: Path) -> None:
    for thresholds, known in ((Thresholds(), False), (Thresholds(), True), (Thresholds(2), False)):
        with log_of(made_index, {**ABOUT, "thresholds": asdict(thresholds)}) as log:
            assert log.has("a", False) is known
            log.add("a", False, {})


def test_two_cannot_compare_at_once(made_index: Path) -> None:
    with log_of(made_index), pytest.raises(HardnetError, match="another process is comparing"):
        log_of(made_index)


def test_a_file_of_somebody_else_is_left_alone(made_index: Path) -> None:
    (made_index / "groups").mkdir()
    (made_index / "groups" / "compared.jsonl").write_text("mine")
    with pytest.raises(HardnetError, match="is in the way"):
        log_of(made_index)
    assert (made_index / "groups" / "compared.jsonl").read_text() == "mine"


def test_the_log_is_written_again_when_most_of_it_is_old(made_index: Path) -> None:
    fill(made_index)
    path = made_index / "groups" / "compared.jsonl"
    with path.open("a") as file:
        for _ in range(10):
            file.write(json.dumps({"photo": "gone", "mirrored": False, "state": [1, 2]}) + "\n")
    with log_of(made_index):
        pass
    assert len(path.read_text().splitlines()) == 3
    with log_of(made_index) as log:
        assert log.has("a", False)
