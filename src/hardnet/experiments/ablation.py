"""Table 2 of the paper: sampling against loss, and the L2-Net objective as the rival."""

from __future__ import annotations

from typing import Any

from hardnet.experiments import paper
from hardnet.experiments.claims import Claim
from hardnet.experiments.grid import Cell, Grid

LOSSES: dict[str, dict[str, Any]] = {
    "softmin": {"loss": "softmin"},
    "triplet": {"loss": "triplet", "margin": 1.0},
    "contrastive1": {"loss": "contrastive", "margin": 1.0},
    "contrastive2": {"loss": "contrastive", "margin": 2.0},
}
COLUMNS = ("softmin", "triplet m=1", "contrastive m=1", "contrastive m=2")
ROWS: dict[str, tuple[str, str]] = {
    "random": ("random", "none"),
    "classical": ("classical", "none"),
    "random + CPR": ("random", "cpr"),
    "classical + CPR": ("classical", "cpr"),
    "hardest": ("hardest", "none"),
}
"""Row -> sampling and regularizer; these are the rows of the paper."""
L2NET = {"sampling": "all", "loss": "l2net", "regularizer": "cpr"}


def grid() -> Grid:
    """The 20 cells of the table and L2-Net."""
    cells = [
        Cell(
            _name(row, loss),
            row,
            column,
            {"sampling": sampling, "regularizer": regularizer, **changes},
            paper.ABLATION[row][i],
        )
        for row, (sampling, regularizer) in ROWS.items()
        for i, (column, (loss, changes)) in enumerate(zip(COLUMNS, LOSSES.items(), strict=True))
    ]
    cells.append(Cell("l2net", "L2-Net", "its own loss", L2NET))
    return Grid(
        "ablation",
        "Sampling and loss",
        "sampling",
        "matching",
        paper.ABLATION_SOURCE,
        paper.ABLATION_SAYS,
        tuple(cells),
        _claims(),
        (
            "Classical mining takes the negatives of the whole set, mined anew each epoch.",
            "L2-Net is the row and column softmax with CPR, without its losses inside the network.",
        ),
    )


def _claims() -> tuple[Claim, ...]:
    def over(better: str, *worse: str) -> tuple[tuple[str, str], ...]:
        return tuple((_name(better, x), _name(row, x)) for x in LOSSES for row in worse)

    mined = ("random + CPR", "classical + CPR")
    return (
        Claim("hardest in batch beats random for every loss", over("hardest", "random", mined[0])),
        Claim(
            "hardest in batch beats classical mining for every loss",
            over("hardest", "classical", mined[1]),
        ),
        Claim(
            "random and classical sampling need CPR",
            over(mined[0], "random") + over(mined[1], "classical"),
        ),
        Claim("with CPR, classical mining beats random", over(mined[1], mined[0])),
        Claim(
            "softmin is the best loss for random and classical sampling with CPR",
            tuple((_name(row, "softmin"), _name(row, x)) for row in mined for x in [*LOSSES][1:]),
        ),
        Claim(
            "with hardest in batch, triplet and contrastive m=2 beat softmin",
            tuple((_name("hardest", x), "hardest-softmin") for x in ("triplet", "contrastive2")),
        ),
        Claim(
            "with hardest in batch, contrastive m=1 is the worst loss",
            tuple(
                (_name("hardest", x), "hardest-contrastive1") for x in LOSSES if x != "contrastive1"
            ),
        ),
        Claim("HardNet (hardest, triplet) beats L2-Net", (("hardest-triplet", "l2net"),)),
    )


def _name(row: str, loss: str) -> str:
    sampling, regularizer = ROWS[row]
    return f"{sampling}-{loss}" + ("-cpr" if regularizer == "cpr" else "")
