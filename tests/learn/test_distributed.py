"""Two processes with half of the batch each compute what one process computes with all of it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hardnet.errors import HardnetError
from hardnet.learn.distributed import (
    from_rank_zero,
    gather_rows,
    open_fabric,
    rows_of,
    run_processes,
)

PROGRAM = Path(__file__).with_name("shared_batch.py")
SHARED = runpy.run_path(str(PROGRAM))
QUICK = SHARED["QUICK"]
OTHERS = tuple(case for case in SHARED["CASES"] if case not in QUICK)


def test_two_processes_equal_one(tmp_path: Path) -> None:
    compare(QUICK, tmp_path)


@pytest.mark.slow
def test_two_processes_equal_one_in_every_case(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    compare(OTHERS, tmp_path)


def compare(cases: Sequence[str], folder: Path) -> None:
    """What one process finds with what each of two finds."""
    (folder / "two").mkdir()
    command = [sys.executable, str(PROGRAM), "2", str(folder / "two"), *cases]
    assert run_processes(command, devices=2, nodes=1) == 0
    two = [torch.load(folder / "two" / f"rank{r}.pt", weights_only=True) for r in (0, 1)]
    runs = [SHARED["results"](1, folder / "one", cases), *two]
    for case in cases:
        compare_case([found[case] for found in runs])


def compare_case(runs: list[dict[str, Any]]) -> None:
    one, first, second = runs
    assert first["loss"] == second["loss"]
    assert torch.allclose(one["loss"], first["loss"], rtol=1e-9, atol=0)
    for a, b, c in zip(one["gradients"], first["gradients"], second["gradients"], strict=True):
        assert torch.equal(b, c)  # the sum over both ranks, on both
        assert a.abs().max() > 1e-4
        assert torch.allclose(a, b, rtol=0, atol=1e-7 * float(a.abs().max()))
    for key, value in one["state"].items():
        assert torch.equal(first["state"][key], second["state"][key])
        assert torch.allclose(value, first["state"][key], rtol=1e-7, atol=1e-7), key


def test_shares_of_a_batch() -> None:
    assert [rows_of(r, 4, 16) for r in range(4)] == [slice(k, k + 4) for k in (0, 4, 8, 12)]
    with pytest.raises(
        HardnetError, match=r"batch 15 .* 2 processes: use a multiple of 2, e\.g\. 14"
    ):
        rows_of(0, 2, 15)


def test_one_process_needs_no_group() -> None:
    rows = torch.rand(3, 2, requires_grad=True)
    assert gather_rows(rows, None) is rows


def test_an_accelerator_that_is_not_there_is_named() -> None:
    with pytest.raises(HardnetError, match="accelerator=abacus with devices=1 cannot be used"):
        open_fabric("abacus", 1, 1)


def test_every_process_hears_of_a_folder_that_cannot_be_written() -> None:
    """Otherwise the others would wait for the first."""
    heard: list[object] = []

    def broadcast(result: object) -> object:
        heard.append(result)
        return result

    def fail() -> None:
        raise PermissionError(13, "Permission denied", "runs")

    fabric: Any = SimpleNamespace(world_size=2, is_global_zero=True, broadcast=broadcast)
    with pytest.raises(HardnetError, match="Permission denied: 'runs'"):
        from_rank_zero(fabric, fail)
    assert len(heard) == 1
