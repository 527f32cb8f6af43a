"""The campaign against files and processes: a short one and a longer one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.mark.parametrize("minutes", ["0.03", pytest.param("3", marks=pytest.mark.slow)])
def test_nothing_falls(minutes: str) -> None:
    """A process of its own: it forks, which processes with threads should not."""
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--minutes", minutes, "--seed", minutes[-1]],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
