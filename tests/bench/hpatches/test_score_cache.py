"""Scores are used again only for the same descriptors, lists and settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.bench.hpatches.drawing import draw_pairs, draw_retrieval
from hardnet.bench.hpatches.run import Settings
from hardnet.bench.hpatches.score_cache import FOLDER, stored_scores
from hardnet.bench.hpatches.tasks import Tasks
from hardnet.errors import HardnetError


@pytest.fixture
def tasks() -> Tasks:
    counts = (12, 9)
    lists = draw_pairs(counts, 20), draw_retrieval(counts)
    return Tasks("full", ("v_a", "v_b"), counts, *lists, {"pairs": "drawn", "retrieval": "drawn"})


class Counter:
    """Gives other scores at every call, so that a stored answer is recognised."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return {"score": self.calls / 3}


def test_the_same_question_is_answered_once(tmp_path: Path, tasks: Tasks) -> None:
    compute = Counter()
    for _ in range(3):
        assert stored_scores(tmp_path, "net", tasks, Settings(), compute) == {"score": 1 / 3}
    assert compute.calls == 1


def test_other_descriptors_lists_or_settings_are_another_question(
    tmp_path: Path, tasks: Tasks
) -> None:
    compute = Counter()
    other = tasks.pairs.inter.copy()
    other[3, 5] += np.int32(1 if other[3, 5] == 0 else -1)
    for identity, lists, settings in [
        ("net", tasks, Settings()),
        ("other net", tasks, Settings()),
        ("net", tasks, Settings(tasks=["matching"])),
        ("net", replace(tasks, pairs=replace(tasks.pairs, inter=other)), Settings()),
        ("net", replace(tasks, names=("v_b", "v_a")), Settings()),
    ]:
        stored_scores(tmp_path, identity, lists, settings, compute)
    assert compute.calls == 5


def test_a_broken_file_is_computed_again(tmp_path: Path, tasks: Tasks) -> None:
    compute = Counter()
    stored_scores(tmp_path, "net", tasks, Settings(), compute)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text('{"score": 0.')
    assert stored_scores(tmp_path, "net", tasks, Settings(), compute) == {"score": 2 / 3}
    assert stored_scores(tmp_path, "net", tasks, Settings(), compute) == {"score": 2 / 3}


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, tasks: Tasks) -> None:
    (tmp_path / FOLDER).write_text("a file in the way")
    with pytest.raises(HardnetError, match="--store"):
        stored_scores(tmp_path, "net", tasks, Settings(), Counter())
