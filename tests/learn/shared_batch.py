"""A program for one or several processes: what a run computes, into a file.

Usage: python shared_batch.py DEVICES OUTPUT CASE ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardnet.errors import HardnetError
from hardnet.learn.batches import Batch
from hardnet.learn.distributed import from_rank_zero, to_input
from hardnet.learn.losses import Terms
from hardnet.learn.recipe import Recipe
from hardnet.learn.trainer import Trainer
from hardnet.patchsets.patchset import PatchSet

CASES: dict[str, dict[str, Any]] = {
    "hardest": {"chunk": 5},
    "whole": {"chunk": 0, "dropout": 0.0, "augment": False},
    "random": {"sampling": "random", "loss": "softmin", "anchor_swap": False, "workers": 2},
    "cpr": {"loss": "contrastive", "regularizer": "cpr"},
    "l2net": {"sampling": "all", "loss": "l2net"},
    "sosnet": {"loss": "quadratic", "regularizer": "sos", "negatives": "all", "chunk": 5},
    "hynet": {"loss": "hybrid", "margin": 1.2, "regularizer": "lengths", "chunk": 5},
    "images": {"images": 2},
    "average": {"net": "hardnet-tiny", "average": 0.5, "chunk": 5},
    "hardtfeat": {"net": "hardtfeat"},
    "classical": {"sampling": "classical", "epoch": 16},
    "taught": {"net": "hardnet-tiny", "teacher": "hardtfeat", "chunk": 5, "images": 2},
}
QUICK = ("taught", "average")
"""Of the default suite."""


def textures() -> PatchSet:
    """Noisy copies of smooth random textures: 40 points with 4 patches each."""
    rng = np.random.default_rng(0)
    base = rng.normal(128, 40, (40, 8, 8)).repeat(4, 1).repeat(4, 2).repeat(4, 0)
    patches = base + rng.normal(0, 12, (160, 32, 32))
    points = np.arange(160) // 4
    grey, no_pairs = patches.clip(0, 255).astype(np.uint8), np.zeros((0, 2), np.int64)
    return PatchSet("textures", grey, points, no_pairs, images=np.arange(160) % 7)


def results(devices: int, folder: Path, cases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each case: loss and gradients of the first step, weights after three steps.

    In float64: in float32 a unit whose input is almost zero may be on in one run and off in the
    other, which changes the gradients of so small a batch by percents.
    """
    found = {}
    for name in cases:
        changes = CASES[name]
        settings: dict[str, Any] = {
            "data": ["x"], "batch": 8, "pairs": 24, "dropout": 0.3, "lr": 0.05, "seed": 4,
            "accelerator": "cpu", "devices": devices, "checkpoint_every": 2,
        }  # fmt: skip
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the last digits of the first weights depend on it
        trainer = Trainer(Recipe(**(settings | changes)), textures(), folder / name)
        torch.set_num_threads(threads)
        trainer.net.double()
        found[name] = record_first_step(trainer)
        places = [f"hardnet.learn.{module}.to_input" for module in ("trainer", "distributed")]
        with patch(places[0], in_double), patch(places[1], in_double):  # the second is for mining
            trainer.run()
        found[name]["state"] = trainer.result().state_dict()
        if devices > 1:
            check_shared_errors(trainer)
    return found


def in_double(patches: NDArray[np.uint8], device: torch.device) -> Tensor:
    return to_input(patches, device).double()


def record_first_step(trainer: Trainer) -> dict[str, Any]:
    """Filled with the loss and the gradients when the trainer has computed them."""
    record: dict[str, Any] = {}
    backward = trainer.backward

    def recording(batch: Batch) -> Terms:
        terms = backward(batch)
        if not record:
            gradients = [p.grad.clone() for p in trainer.net.parameters() if p.grad is not None]
            record.update({"loss": terms.loss.detach(), "gradients": gradients})
        return terms

    trainer.backward = recording  # type: ignore[method-assign]
    return record


def check_shared_errors(trainer: Trainer) -> None:
    """An error of rank 0 is raised on all ranks."""

    def fail() -> None:
        raise HardnetError("only rank 0 saw it")

    with pytest.raises(HardnetError, match="only rank 0 saw it"):
        from_rank_zero(trainer._fabric, fail)


def save(devices: int, output: Path, cases: Sequence[str]) -> None:
    torch.save(results(devices, output, cases), output / f"rank{os.environ['LOCAL_RANK']}.pt")


if __name__ == "__main__":
    save(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
