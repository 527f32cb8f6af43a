"""The batch-size figure of the paper: more pairs in a batch offer harder negatives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hardnet.experiments import paper
from hardnet.experiments.claims import Claim
from hardnet.experiments.grid import Cell, Grid

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
ENOUGH = 512
"""More than this brought the paper no significant benefit; also the batch that ``equal steps``
takes as its measure."""


def grid(budget: int, lr: float, batch: int, equal: str = "pairs", scale_lr: bool = False) -> Grid:
    """One cell per batch size.

    Args:
        budget: pairs per cell.
        lr: of the recipe.
        batch: of the recipe: the one that ``lr`` is meant for if it is scaled.
        equal: "pairs": every cell sees ``budget`` pairs, as in the published code, where small
            batches make many steps. "steps": every cell makes the steps that a batch of 512 makes
            in the budget, so that small batches see few pairs.
        scale_lr: a learning rate in proportion to the batch; the paper keeps it.
    """
    cells = []
    for size in SIZES:
        changes: dict[str, Any] = {"batch": size}
        if equal == "steps":
            changes["pairs"] = max(1, budget // ENOUGH) * size
        if scale_lr:
            changes["lr"] = lr * size / batch
        cells.append(Cell(f"batch-{size}", str(size), "", changes))
    up_to = [size for size in SIZES if size <= ENOUGH]
    growing = tuple((f"batch-{b}", f"batch-{a}") for a, b in pairwise(up_to))
    beyond = tuple((f"batch-{size}", f"batch-{ENOUGH}") for size in SIZES if size > ENOUGH)
    same = "the same number of pairs" if equal == "pairs" else "the same number of steps"
    rate = "in proportion to the batch" if scale_lr else "the same for all, as in the paper"
    return Grid(
        "batch-size",
        "Batch size",
        "batch",
        "fpr95",
        paper.BATCH_SIZE_SOURCE,
        paper.BATCH_SIZE_SAYS,
        tuple(cells),
        (
            Claim(f"every doubling of the batch helps up to {ENOUGH}", growing),
            Claim(
                f"a batch of {ENOUGH} beats every smaller one",
                tuple((f"batch-{ENOUGH}", f"batch-{size}") for size in up_to[:-1]),
            ),
            Claim(f"more than {ENOUGH} brings no significant benefit", beyond, gain=False),
        ),
        (f"Every batch size sees {same}; the learning rate is {rate}.",),
    )
