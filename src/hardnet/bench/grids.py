"""The paper's studies as grids of training runs, with its numbers, and which claims hold here.

Table and figure numbers are those of the arXiv version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hardnet.bench.metrics import mean_interval
from hardnet.errors import HardnetError
from hardnet.learn.recipe import Recipe


@dataclass(frozen=True)
class Claim:
    """The first cell of each pair is better; without ``gain``, it is not clearly better."""

    text: str
    pairs: tuple[tuple[str, str], ...]
    gain: bool = True


@dataclass(frozen=True)
class Cell:
    """One cell of the paper's table: what it changes, and the paper's number or word."""

    name: str
    row: str
    column: str
    changes: Mapping[str, Any]
    paper: float | str | None = None


@dataclass(frozen=True)
class Grid:
    """An experiment of the paper.

    ``measure`` is the paper's: "matching" (mAP, larger is better) or "fpr95" (smaller is better);
    ``corner`` says what the rows are.
    """

    name: str
    title: str
    corner: str
    measure: str
    source: str
    says: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()

    def choose(self, names: str) -> tuple[Cell, ...]:
        if not names.strip():
            return self.cells
        known = [cell.name for cell in self.cells]
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in known:
                raise HardnetError(
                    f"--cells {name}: {self.name} has no such cell; it has {', '.join(known)}"
                )
        return tuple(cell for cell in self.cells if cell.name in chosen)


def cell_recipe(base: Recipe, cell: Cell, seed: int) -> Recipe:
    """The recipe of one run of a cell; at least ten checkpoints, so that a kill costs little."""
    recipe = replace(base, **cell.changes, seed=base.seed + seed, validation="")
    tenth = max(1, recipe.steps // 10)
    return replace(recipe, checkpoint_every=min(recipe.checkpoint_every, tenth))


LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmin": ("softmin", {"loss": "softmin"}),
    "triplet": ("triplet m=1", {"loss": "triplet", "margin": 1.0}),
    "contrastive1": ("contrastive m=1", {"loss": "contrastive", "margin": 1.0}),
    "contrastive2": ("contrastive m=2", {"loss": "contrastive", "margin": 2.0}),
}
"""Loss -> its column of Table 2, and the keys of the recipe."""
RANDOM, CLASSICAL, HARDEST = "random-{}", "classical-{}", "hardest-{}"
RANDOM_CPR, CLASSICAL_CPR = "random-{}-cpr", "classical-{}-cpr"
"""Names of cells: the sampling, the loss, whether CPR is the regularizer."""
SAMPLINGS: dict[str, tuple[str, tuple[float | str, ...]]] = {
    "random": (RANDOM, ("overfit",) * 4),
    "classical": (CLASSICAL, ("overfit",) * 4),
    "random + CPR": (RANDOM_CPR, (0.349, 0.286, 0.007, 0.083)),
    "classical + CPR": (CLASSICAL_CPR, (0.391, 0.346, 0.055, 0.279)),
    "hardest": (HARDEST, (0.474, 0.482, 0.444, 0.482)),
}
"""Row of Table 2 -> names of its cells, and the paper's mAP with each loss."""


def ablation() -> Grid:
    """Table 2: sampling against loss, and the L2-Net objective as the rival."""
    cells = []
    for row, (name, numbers) in SAMPLINGS.items():
        regularizer = "cpr" if name.endswith("cpr") else "none"
        axes = {"sampling": name.partition("-")[0], "regularizer": regularizer}
        for (loss, (column, changes)), paper in zip(LOSSES.items(), numbers, strict=True):
            cells.append(Cell(name.format(loss), row, column, axes | changes, paper))
    l2net = {"sampling": "all", "loss": "l2net", "regularizer": "cpr"}
    cells.append(Cell("l2net", "L2-Net", "its own loss", l2net))

    def over(better: str, *worse: str) -> tuple[tuple[str, str], ...]:
        return tuple((better.format(loss), row.format(loss)) for loss in LOSSES for row in worse)

    def losses(row: str, better: str, *worse: str) -> tuple[tuple[str, str], ...]:
        return tuple((row.format(better), row.format(other)) for other in worse)

    others, worst = ("triplet", "contrastive1", "contrastive2"), "contrastive1"
    claims = {
        "hardest in batch beats random for every loss": over(HARDEST, RANDOM, RANDOM_CPR),
        "hardest in batch beats classical mining for every loss": over(
            HARDEST, CLASSICAL, CLASSICAL_CPR
        ),
        "random and classical sampling need CPR": over(RANDOM_CPR, RANDOM)
        + over(CLASSICAL_CPR, CLASSICAL),
        "with CPR, classical mining beats random": over(CLASSICAL_CPR, RANDOM_CPR),
        "softmin is the best loss for random and classical sampling with CPR": losses(
            RANDOM_CPR, "softmin", *others
        )
        + losses(CLASSICAL_CPR, "softmin", *others),
        "with hardest in batch, triplet and contrastive m=2 beat softmin": losses(
            HARDEST, "triplet", "softmin"
        )
        + losses(HARDEST, "contrastive2", "softmin"),
        "with hardest in batch, contrastive m=1 is the worst loss": tuple(
            pair for loss in LOSSES if loss != worst for pair in losses(HARDEST, loss, worst)
        ),
        "HardNet (hardest, triplet) beats L2-Net": (("hardest-triplet", "l2net"),),
    }
    return Grid(
        "ablation",
        "Sampling and loss",
        "sampling",
        "matching",
        "Table 2: mean matching mAP on HPatches, trained on Liberty",
        "hardest in batch beats the other samplings for every loss",
        tuple(cells),
        tuple(Claim(text, pairs) for text, pairs in claims.items()),
        (
            "Classical mining takes the negatives of the whole set, mined again each epoch.",
            "L2-Net is the row and column softmax with CPR, without its losses inside the network.",
        ),
    )


SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
ENOUGH = 512
"""More than this brought the paper no significant benefit. With ``equal`` "steps" every cell makes
the steps of this batch."""


def batch_size(budget: int, equal: str = "pairs") -> Grid:
    """Figure 3: more pairs in a batch offer harder negatives. One cell per batch size.

    With ``equal`` "pairs" every cell sees ``budget`` pairs, as in the published code, where small
    batches make many steps; with "steps" it makes the steps of a batch of 512.
    """
    cells = []
    for size in SIZES:
        changes: dict[str, Any] = {"batch": size}
        if equal == "steps":
            changes["pairs"] = max(1, budget // ENOUGH) * size
        cells.append(Cell(f"batch-{size}", str(size), "", changes))
    names = [cell.name for cell in cells]
    at = SIZES.index(ENOUGH)
    enough, smaller, larger = names[at], names[:at], names[at + 1 :]
    claims = (
        Claim(
            f"every doubling of the batch helps up to {ENOUGH}",
            tuple((b, a) for a, b in pairwise([*smaller, enough])),
        ),
        Claim(
            f"a batch of {ENOUGH} beats every smaller one",
            tuple((enough, name) for name in smaller),
        ),
        Claim(
            f"more than {ENOUGH} brings no significant benefit",
            tuple((name, enough) for name in larger),
            gain=False,
        ),
    )
    return Grid(
        "batch-size",
        "Batch size",
        "batch",
        "fpr95",
        "Figure 3, FPR95 on Notredame and Yosemite, trained on Liberty: a curve without printed "
        "numbers, so none are repeated here",
        "larger batches are better, more than 512 brings no significant benefit",
        tuple(cells),
        claims,
        (
            f"Every batch size sees the same number of {equal}; the learning rate is the same for "
            "all, as in the paper.",
        ),
    )


TABLE_1: dict[str, tuple[float, ...]] = {
    "HardNetNIPS": (3.06, 4.27, 0.96, 1.40, 3.04, 2.53, 2.54),
    "HardNet": (1.47, 2.67, 0.62, 0.88, 2.14, 1.65, 1.57),
    "HardNet+NIPS": (2.28, 3.25, 0.57, 0.96, 2.13, 2.22, 1.90),
    "HardNet+": (1.49, 2.51, 0.53, 0.78, 1.96, 1.84, 1.51),
}
"""Name in the paper ("+" is flip / rotate) -> FPR95 [%] tested on Liberty (trained on Notredame,
Yosemite), Notredame (Liberty, Yosemite), Yosemite (Liberty, Notredame), and the printed mean."""


def recipes() -> Grid:
    """Rows of Table 1: the NIPS and post-NIPS recipes, with and without flip / rotate."""
    rows = (
        ("nips", "NIPS (lr 0.1, dropout 0.1)", "NIPS", {"lr": 0.1, "dropout": 0.1}),
        ("post-nips", "post-NIPS (lr 10, dropout 0.3)", "", {"lr": 10.0, "dropout": 0.3}),
    )
    cells = []
    for name, row, suffix, changes in rows:
        for flip, plus, column in (("", "", "plain"), ("-flip", "+", "flip / rotate")):
            paper = TABLE_1[f"HardNet{plus}{suffix}"][-1]
            cells.append(Cell(name + flip, row, column, changes | {"augment": bool(flip)}, paper))
    return Grid(
        "recipes",
        "Recipes",
        "recipe",
        "fpr95",
        "Table 1: mean FPR95 [%] of six pairs of training and test sets of Brown",
        "learning rate 10 and dropout 0.3 lead to better results",
        tuple(cells),
        (
            Claim(
                "the post-NIPS recipe beats the NIPS recipe",
                (("post-nips", "nips"), ("post-nips-flip", "nips-flip")),
            ),
            Claim(
                "flip / rotate helps each recipe",
                (("nips-flip", "nips"), ("post-nips-flip", "post-nips")),
            ),
        ),
    )


MEASURES = ("matching", "fpr95")

Score = Mapping[str, Any]
"""The outcome of one training run: steps, seconds, loss, and its scores or why it failed."""


def collect(grid: Grid, runs: Mapping[str, Mapping[str, Score | None]]) -> dict[str, Any]:
    """The results file without provenance; ``runs``: cell -> run -> score, None if unfinished."""
    cells: dict[str, dict[str, Any]] = {}
    for cell in grid.cells:
        scores = [score for score in runs[cell.name].values() if score is not None]
        place = {"cell": cell.name, "row": cell.row, "column": cell.column, "paper": cell.paper}
        cells[cell.name] = place | {"changes": dict(cell.changes)} | summarise(scores)
    ordered = sorted(MEASURES, key=lambda measure: measure != grid.measure)  # the paper's first
    taken = [m for m in ordered if any(m in cell for cell in cells.values())]
    about = {key: getattr(grid, key) for key in ("title", "corner", "measure", "source", "says")}
    return {
        "kind": "experiment",
        "experiment": grid.name,
        **about,
        "notes": list(grid.notes),
        "cells": list(cells.values()),
        "claims": [judge(claim, cells, m) for claim in grid.claims for m in taken],
        "missing": [n for cell in grid.cells for n, s in runs[cell.name].items() if s is None],
    }


def summarise(scores: Sequence[Score]) -> dict[str, Any]:
    """One cell: the mean over its seeds of each measure that was taken, and all runs.

    The interval is a bootstrap over sequences for matching, over test pairs for FPR95 (with several
    sets the mean of their ends, as if their errors were fully correlated). It does not cover the
    variation between seeds, which the range of ``seeds`` shows.
    """
    good = [score for score in scores if "failed" not in score]
    summary: dict[str, Any] = {"runs": [dict(score) for score in scores]}
    if len(good) < len(scores):
        summary["failed"] = len(scores) - len(good)
    if matched := [score["matching"] for score in good if score["matching"]]:
        means = {
            name: float(np.mean([m["sequences"][name] for m in matched]))
            for name in matched[0]["sequences"]
        }
        seeds, ends = [m["value"] for m in matched], mean_interval(list(means.values()))
        summary["matching"] = _measure(seeds, *ends) | {"sequences": means}
    if good and good[0]["brown"]:
        each = [[(s["fpr95"], s["low"], s["high"]) for s in score["brown"]] for score in good]
        values = np.mean(each, axis=1)  # (seeds, 3)
        summary["fpr95"] = _measure(values[:, 0].tolist(), *values.mean(0)[1:].tolist())
    return summary


def _measure(seeds: list[float], low: float | None, high: float | None) -> dict[str, Any]:
    return {"value": float(np.mean(seeds)), "low": low, "high": high, "seeds": seeds}


def judge(claim: Claim, scores: Mapping[str, Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """Whether the numbers support a claim.

    Only differences that are clear (see :func:`compare`) decide. "yes": all pairs were run, none
    contradicts clearly, and one at least holds clearly; "no": some pair contradicts clearly;
    "open": otherwise. A claim of no gain is contradicted by a clear gain alone.
    """
    holds, against, missing = [], [], []
    clear, contradicted = 0, False
    for better, worse in claim.pairs:
        pair = f"{better} > {worse}" if claim.gain else f"{better} ~ {worse}"
        if not all(scores.get(name, {}).get(measure) for name in (better, worse)):
            missing.append(pair)
            continue
        found = compare(scores[better], scores[worse], measure)
        says, sure = f"{pair}: {_signed(found, measure)}", found["clear"]
        if found["gain"] > 0 if claim.gain else not (sure and found["gain"] > 0):
            holds.append(says)
            clear += sure and claim.gain
        else:
            against.append(says + (", clear" if sure else ", not clear"))
            contradicted |= sure
    confirmed = not missing and bool(clear if claim.gain else holds)
    return {
        "claim": claim.text,
        "measure": measure,
        "answer": "no" if contradicted else "yes" if confirmed else "open",
        "pairs": len(claim.pairs),
        "hold": len(holds),
        "clear": clear,
        "holds": holds,
        "against": against,
        "not_run": missing,
    }


def compare(better: Mapping[str, Any], worse: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """How much better one cell is than another, positive if it is.

    Matching: both matched the same sequences, so the interval is a bootstrap over sequences of the
    mean difference. FPR95: the difference is clear if the intervals of
    the two do not overlap, which is cautious. With several seeds it is clear only if, in addition,
    every seed of the one is better than every seed of the other.
    """
    a, b = better[measure], worse[measure]
    gain = float(a["value"] - b["value"])
    low = high = None
    if measure == "matching":
        differences = [a["sequences"][name] - b["sequences"][name] for name in a["sequences"]]
        low, high = mean_interval(differences)
        clear = low is not None and high is not None and (low > 0 or high < 0)
    else:
        gain, ends = -gain, ([a["low"], a["high"]], [b["low"], b["high"]])
        clear = None not in ends[0] + ends[1] and _apart(*ends)
    if max(len(a["seeds"]), len(b["seeds"])) > 1:
        clear &= _apart(a["seeds"], b["seeds"])
    return {"gain": gain, "low": low, "high": high, "clear": clear}


def _apart(some: Sequence[float], others: Sequence[float]) -> bool:
    return max(some) < min(others) or max(others) < min(some)


def _signed(found: Mapping[str, Any], measure: str) -> str:
    """The gain as text: mAP, or points of FPR95 (fewer are a gain)."""
    if measure != "matching":
        return f"{100 * found['gain']:+.2f} points"
    ends = "" if found["low"] is None else f" [{found['low']:+.3f}, {found['high']:+.3f}]"
    return f"{found['gain']:+.3f}{ends}"
