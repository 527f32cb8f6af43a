"""Batch statistics over two processes: the same network as in one."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("chunk_rank.py")


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    shares = runpy.run_path(str(PROGRAM))["SHARES"]
    outputs = {rank: tmp_path / f"{rank}.pt" for rank in (-1, 0, 1)}
    running = [
        subprocess.Popen([sys.executable, PROGRAM, str(rank), tmp_path / "meeting", output])
        for rank, output in outputs.items()
    ]
    assert [process.wait(900) for process in running] == [0, 0, 0]
    one, *two = [torch.load(output, weights_only=True) for output in outputs.values()]
    for name, expected in one.items():
        ranks = [found[name] for found in two]
        for rank, share in zip(ranks, shares, strict=True):
            torch.testing.assert_close(
                rank["descriptors"], expected["descriptors"][share], atol=1e-10, rtol=0
            )
            torch.testing.assert_close(rank["state"], expected["state"], atol=1e-10, rtol=1e-8)
        for whole, first, second in zip(
            expected["gradients"], ranks[0]["gradients"], ranks[1]["gradients"], strict=True
        ):
            torch.testing.assert_close(first + second, whole, atol=1e-10, rtol=1e-8)
            assert (first - whole).abs().max() > 1e-6  # each has a share, not the whole
