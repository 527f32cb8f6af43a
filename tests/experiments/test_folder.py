"""The folder of an experiment: locks that a killed process lets go, settings that are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.experiments.folder import SCORE, SETTINGS, begin, locked, read_score, write_json

HOLD = """
import sys, time
from pathlib import Path
from hardnet.experiments.folder import locked
with locked(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def test_a_killed_process_lets_its_lock_go(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "cell")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "True"
        with locked(tmp_path / "cell") as mine:
            assert not mine
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    with locked(tmp_path / "cell") as mine:
        assert mine
        with locked(tmp_path / "cell") as again:  # also within one process
            assert not again


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    settings = {"experiment": "recipes", "budget": 100, "lr": 0.1, "cells": {"a": {"lr": 1.0}}}
    begin(tmp_path, settings)
    begin(tmp_path, settings)
    with pytest.raises(HardnetError, match="begun with budget=100, not 200: use that value"):
        begin(tmp_path, settings | {"budget": 200})
    with pytest.raises(HardnetError, match=r"cells a lr=1\.0, not 2\.0"):
        begin(tmp_path, settings | {"cells": {"a": {"lr": 2.0}}})
    with pytest.raises(HardnetError, match="experiment=recipes, not ablation"):
        begin(tmp_path, settings | {"experiment": "ablation"})


def test_a_key_that_is_new_had_its_default(tmp_path: Path) -> None:
    begin(tmp_path, {"budget": 100})
    begin(tmp_path, {"budget": 100, "same_patch": 0.008})
    with pytest.raises(HardnetError, match=r"same_patch=0\.008, not 0\.0"):
        begin(tmp_path, {"budget": 100, "same_patch": 0.0})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text("{")
    with pytest.raises(HardnetError, match=SETTINGS):
        begin(tmp_path, {"budget": 100})
    (tmp_path / SCORE).write_text("{")
    with pytest.raises(HardnetError, match=SCORE):
        read_score(tmp_path)


def test_scores_are_whole_or_absent(tmp_path: Path) -> None:
    assert read_score(tmp_path) is None
    write_json(tmp_path / SCORE, {"fpr95": 0.1})
    assert read_score(tmp_path) == {"fpr95": 0.1}
    assert [path.name for path in tmp_path.iterdir()] == [SCORE]
