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
        """The cells ``names``, separated by commas; all of them for an empty text."""
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
SAMPLINGS: dict[str, tuple[str, str, tuple[float | str, ...]]] = {
    "random": ("random", "none", ("overfit",) * 4),
    "classical": ("classical", "none", ("overfit",) * 4),
    "random + CPR": ("random", "cpr", (0.349, 0.286, 0.007, 0.083)),
    "classical + CPR": ("classical", "cpr", (0.391, 0.346, 0.055, 0.279)),
    "hardest": ("hardest", "none", (0.474, 0.482, 0.444, 0.482)),
}
"""Row of Table 2 -> sampling, regularizer, and the paper's mAP with each loss."""


def ablation() -> Grid:
    """Table 2: sampling against loss, and the L2-Net objective as the rival."""
    cells = []
    for row, (sampling, regularizer, numbers) in SAMPLINGS.items():
        axes = {"sampling": sampling, "regularizer": regularizer}
        for (loss, (column, changes)), paper in zip(LOSSES.items(), numbers, strict=True):
            cells.append(Cell(_ablation_name(row, loss), row, column, axes | changes, paper))
    l2net = {"sampling": "all", "loss": "l2net", "regularizer": "cpr"}
    cells.append(Cell("l2net", "L2-Net", "its own loss", l2net))

    def over(better: str, *worse: str) -> tuple[tuple[str, str], ...]:
        return tuple(
            (_ablation_name(better, x), _ablation_name(row, x)) for x in LOSSES for row in worse
        )

    def losses(row: str, better: str, *worse: str) -> tuple[tuple[str, str], ...]:
        return tuple((_ablation_name(row, better), _ablation_name(row, x)) for x in worse)

    random, classical = "random + CPR", "classical + CPR"
    others = ("triplet", "contrastive1", "contrastive2")
    claims = (
        Claim("hardest in batch beats random for every loss", over("hardest", "random", random)),
        Claim(
            "hardest in batch beats classical mining for every loss",
            over("hardest", "classical", classical),
        ),
        Claim(
            "random and classical sampling need CPR",
            over(random, "random") + over(classical, "classical"),
        ),
        Claim("with CPR, classical mining beats random", over(classical, random)),
        Claim(
            "softmin is the best loss for random and classical sampling with CPR",
            losses(random, "softmin", *others) + losses(classical, "softmin", *others),
        ),
        Claim(
            "with hardest in batch, triplet and contrastive m=2 beat softmin",
            losses("hardest", "triplet", "softmin") + losses("hardest", "contrastive2", "softmin"),
        ),
        Claim(
            "with hardest in batch, contrastive m=1 is the worst loss",
            tuple(
                pair
                for better in ("softmin", "triplet", "contrastive2")
                for pair in losses("hardest", better, "contrastive1")
            ),
        ),
        Claim("HardNet (hardest, triplet) beats L2-Net", (("hardest-triplet", "l2net"),)),
    )
    return Grid(
        "ablation",
        "Sampling and loss",
        "sampling",
        "matching",
        "Table 2: mean matching mAP on HPatches, trained on Liberty",
        "hardest in batch beats the other samplings for every loss",
        tuple(cells),
        claims,
        (
            "Classical mining takes the negatives of the whole set, mined again each epoch.",
            "L2-Net is the row and column softmax with CPR, without its losses inside the network.",
        ),
    )


def _ablation_name(row: str, loss: str) -> str:
    sampling, regularizer, _ = SAMPLINGS[row]
    return f"{sampling}-{loss}" + ("-cpr" if regularizer == "cpr" else "")


SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
ENOUGH = 512
"""More than this brought the paper no significant benefit. With ``equal`` "steps" every cell makes
the steps of this batch."""


def batch_size(
    budget: int, lr: float, batch: int, equal: str = "pairs", scale_lr: bool = False
) -> Grid:
    """Figure 3: more pairs in a batch offer harder negatives. One cell per batch size.

    With ``equal`` "pairs" every cell sees ``budget`` pairs, as in the published code, where small
    batches make many steps; with "steps" it makes the steps of a batch of 512. ``scale_lr`` makes
    the learning rate, meant for ``batch``, proportional to the batch; the paper keeps it.
    """
    cells = []
    for size in SIZES:
        changes: dict[str, Any] = {"batch": size}
        if equal == "steps":
            changes["pairs"] = max(1, budget // ENOUGH) * size
        if scale_lr:
            changes["lr"] = lr * size / batch
        cells.append(Cell(f"batch-{size}", str(size), "", changes))
    enough, up_to = f"batch-{ENOUGH}", [size for size in SIZES if size <= ENOUGH]
    claims = (
        Claim(
            f"every doubling of the batch helps up to {ENOUGH}",
            tuple((f"batch-{b}", f"batch-{a}") for a, b in pairwise(up_to)),
        ),
        Claim(
            f"a batch of {ENOUGH} beats every smaller one",
            tuple((enough, f"batch-{size}") for size in up_to[:-1]),
        ),
        Claim(
            f"more than {ENOUGH} brings no significant benefit",
            tuple((f"batch-{size}", enough) for size in SIZES if size > ENOUGH),
            gain=False,
        ),
    )
    rate = "in proportion to the batch" if scale_lr else "the same for all, as in the paper"
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
        (f"Every batch size sees the same number of {equal}; the learning rate is {rate}.",),
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
    rows = {
        "nips": ("NIPS (lr 0.1, dropout 0.1)", {"lr": 0.1, "dropout": 0.1}),
        "post-nips": ("post-NIPS (lr 10, dropout 0.3)", {"lr": 10.0, "dropout": 0.3}),
    }
    in_paper = {"nips": "HardNet{}NIPS", "post-nips": "HardNet{}"}
    cells = []
    for name, (row, changes) in rows.items():
        for flip, column in ((False, "plain"), (True, "flip / rotate")):
            paper = TABLE_1[in_paper[name].format("+" if flip else "")][-1]
            full = name + ("-flip" if flip else "")
            cells.append(Cell(full, row, column, changes | {"augment": flip}, paper))
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
    cells = []
    for cell in grid.cells:
        scores = [score for score in runs[cell.name].values() if score is not None]
        place = {"cell": cell.name, "row": cell.row, "column": cell.column, "paper": cell.paper}
        cells.append(place | {"changes": dict(cell.changes)} | summarise(scores))
    known = {cell["cell"]: cell for cell in cells}
    ordered = sorted(MEASURES, key=lambda measure: measure != grid.measure)  # the paper's first
    taken = [m for m in ordered if any(m in cell for cell in cells)]
    about = {key: getattr(grid, key) for key in ("title", "corner", "measure", "source", "says")}
    return {
        "kind": "experiment",
        "experiment": grid.name,
        **about,
        "notes": list(grid.notes),
        "cells": cells,
        "claims": [judge(claim, known, m) for claim in grid.claims for m in taken],
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
    matched = [score["matching"] for score in good if score["matching"]]
    if matched:
        names = matched[0]["sequences"]
        means = {n: float(np.mean([m["sequences"][n] for m in matched])) for n in names}
        low, high = mean_interval(list(means.values()))
        seeds = [m["value"] for m in matched]
        summary["matching"] = _measure(seeds, low, high) | {"sequences": means}
    if good and good[0]["brown"]:
        ends = [[(s["fpr95"], s["low"], s["high"]) for s in score["brown"]] for score in good]
        values = np.mean(ends, axis=1)  # (seeds, 3)
        low, high = (float(end) for end in values.mean(0)[1:])
        summary["fpr95"] = _measure(values[:, 0].tolist(), low, high)
    return summary


def _measure(seeds: list[float], low: float | None, high: float | None) -> dict[str, Any]:
    return {"value": float(np.mean(seeds)), "low": low, "high": high, "seeds": seeds}


def judge(claim: Claim, scores: Mapping[str, Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """Whether the numbers support a claim.

    Only differences that are clear (see :func:`compare`) decide. "yes": all pairs were run, none
    contradicts clearly, and one at least holds clearly; "no": some pair contradicts clearly;
    "open": otherwise. A claim of no gain is contradicted by a clear gain alone.
    """
    verdict: dict[str, Any] = {"claim": claim.text, "measure": measure}
    holds, clear, against, missing = [], [], [], []
    contradicted = False
    for better, worse in claim.pairs:
        pair = f"{better} > {worse}" if claim.gain else f"{better} ~ {worse}"
        if not all(scores.get(name, {}).get(measure) for name in (better, worse)):
            missing.append(pair)
            continue
        found = compare(scores[better], scores[worse], measure)
        says = f"{pair}: {_signed(found, measure)}"
        sure = found["clear"]
        if found["gain"] > 0 if claim.gain else not (sure and found["gain"] > 0):
            holds.append(says)
            if sure and claim.gain:
                clear.append(says)
        else:
            against.append(says + (", clear" if sure else ", not clear"))
            contradicted |= sure
    confirmed = not missing and bool(clear if claim.gain else holds)
    verdict["answer"] = "no" if contradicted else "yes" if confirmed else "open"
    counts = {"pairs": len(claim.pairs), "hold": len(holds), "clear": len(clear)}
    return verdict | counts | {"holds": holds, "against": against, "not_run": missing}


def compare(better: Mapping[str, Any], worse: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """How much better one cell is than another, positive if it is.

    Matching: both matched the same sequences, so the interval is a bootstrap over sequences of the
    mean difference. FPR95: the difference is clear if the intervals of
    the two do not overlap, which is cautious. With several seeds it is clear only if, in addition,
    every seed of the one is better than every seed of the other.
    """
    a, b = better[measure], worse[measure]
    sign = 1 if measure == "matching" else -1
    low = high = None
    if measure == "matching":
        names = a["sequences"]
        low, high = mean_interval([names[name] - b["sequences"][name] for name in names])
        clear = low is not None and high is not None and (low > 0 or high < 0)
    else:
        clear = _apart([a["low"], a["high"]], [b["low"], b["high"]])
    if max(len(a["seeds"]), len(b["seeds"])) > 1:
        clear &= _apart(a["seeds"], b["seeds"])
    gain = sign * (a["value"] - b["value"])
    return {"gain": float(gain), "low": low, "high": high, "clear": bool(clear)}


def _apart(some: Sequence[float | None], others: Sequence[float | None]) -> bool:
    a, b = ([value for value in values if value is not None] for values in (some, others))
    if len(a) < len(some) or len(b) < len(others):
        return False
    return max(a) < min(b) or max(b) < min(a)


def _signed(found: Mapping[str, Any], measure: str) -> str:
    """The gain as text: mAP, or points of FPR95 (fewer are a gain)."""
    if measure != "matching":
        return f"{100 * found['gain']:+.2f} points"
    ends = "" if found["low"] is None else f" [{found['low']:+.3f}, {found['high']:+.3f}]"
    return f"{found['gain']:+.3f}{ends}"
