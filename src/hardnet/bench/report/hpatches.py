"""Tables of the HPatches benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report import hpatches_numbers as numbers
from hardnet.bench.report.cells import BASELINE, by_descriptor, by_name, ratio, with_interval
from hardnet.bench.report.hpatches_numbers import CONVENTIONS, NOISE, PAPER
from hardnet.bench.report.table import Table

_SOURCE = {"hits": "mean precision at hits", "trapezoid": "trapezoid from (0, 1)"}
_NEGATIVES = {"inter": "different sequence", "intra": "same sequence"}


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The summary, then each task in detail."""
    found = [_summary(results)]
    if results.get("verification"):
        found += [_verification(results, f"ap_{c}") for c in CONVENTIONS]
        found.append(_verification(results, "auc"))
    if results.get("matching"):
        found += [_matching(results, c) for c in CONVENTIONS]
        found.append(_per_sequence(results))
    if results.get("retrieval"):
        found.append(_retrieval(results))
        if len({row["distractors"] for row in results["retrieval"]}) > 1:
            found += [_distractors(results, c) for c in CONVENTIONS]
    return found


def _summary(results: Mapping[str, Any]) -> Table:
    """One line per descriptor: the means of the paper's figure."""
    names = numbers.descriptors(results)
    means = {task: numbers.headline(results, task) for task in numbers.TASKS}
    spreads = {task: numbers.spread(results, task) for task in numbers.TASKS}
    lines = by_descriptor(list(means.values()), names)
    baseline = means["matching"].get(BASELINE)
    rows = []
    for name, *cells in lines:
        row = [name]
        for cell, task in zip(cells, numbers.TASKS, strict=True):
            row.append(with_interval(cell, *spreads[task].get(name, (None, None))))
        rows.append([*row, ratio(means["matching"].get(name), baseline)])
    return Table(
        _title(results.get("set", {})),
        ["descriptor", *numbers.TASKS, f"matching / {BASELINE}"],
        rows,
        note=f"Mean average precision as in the paper: {_SOURCE[PAPER['matching']]}, in retrieval "
        f"{_SOURCE[PAPER['retrieval']]}. Verification is imbalanced (1 true pair to 5 false ones), "
        "the mean of both kinds of negatives; all are means over easy, hard and tough. "
        "The 95 % intervals resample sequences.",
    )


def _named(task: str, convention: str) -> str:
    """A convention in words, and whether the paper shows this one."""
    return _SOURCE[convention] + (", as in the paper" if PAPER[task] == convention else "")


def _title(about: Mapping[str, Any]) -> str:
    """What was measured: the set, its split and its size."""
    parts = [about["name"]] if "name" in about else []
    if "split" in about:
        parts.append(f"split {about['split']}")
    kinds = {"sequences": "sequences", "patches": "reference patches"}
    parts += [f"{about[field]} {words}" for field, words in kinds.items() if field in about]
    return "HPatches" + (": " if parts else "") + ", ".join(parts)


def _verification(results: Mapping[str, Any], field: str) -> Table:
    """Source of the negatives and noise across."""
    kinds = [k for k in _NEGATIVES if any(r["negatives"] == k for r in results["verification"])]
    columns = [
        *(
            numbers.mean(results, "verification", field, negatives=kind, noise=noise)
            for kind in kinds
            for noise in NOISE
        ),
        numbers.mean(results, "verification", field),
    ]
    convention = field.removeprefix("ap_")
    what = "ROC AUC, balanced"
    if field != "auc":
        what = f"AP, imbalanced ({_named('verification', convention)})"
    return Table(
        f"HPatches verification: {what}",
        ["descriptor", *(n for _ in kinds for n in NOISE), "mean"],
        by_descriptor(columns, numbers.descriptors(results)),
        [("", 1), *((_NEGATIVES[kind], len(NOISE)) for kind in kinds), ("", 1)],
        "Negative pairs are of a different or of the same sequence.",
    )


def _matching(results: Mapping[str, Any], convention: str) -> Table:
    """Kind of sequence and noise across."""
    field, kinds = f"ap_{convention}", numbers.groups(results)
    columns = [
        *(
            numbers.mean(results, "matching", field, group=kind, noise=noise)
            for kind in kinds
            for noise in NOISE
        ),
        numbers.mean(results, "matching", field),
        numbers.mean(results, "matching", "success"),
    ]
    return Table(
        f"HPatches matching: mAP ({_named('matching', convention)})",
        ["descriptor", *(noise for _ in kinds for noise in NOISE), "mean", "right"],
        by_descriptor(columns, numbers.descriptors(results)),
        [("", 1), *((kind, len(NOISE)) for kind in kinds), ("", 1), ("", 1)],
        "The mean is over sequences, not over kinds. Right: share of the patches whose nearest "
        "is the right one.",
    )


def _per_sequence(results: Mapping[str, Any]) -> Table:
    """Sequences down, each with its mean and its levels of noise; descriptors across."""
    values: dict[str, dict[str, float]] = {name: {} for name in numbers.descriptors(results)}
    field = f"ap_{PAPER['matching']}"
    for sequence in dict.fromkeys(row["sequence"] for row in results["matching"]):
        for noise in (None, *NOISE):
            only = {"sequence": sequence} | ({"noise": noise} if noise else {})
            for name, value in numbers.mean(results, "matching", field, **only).items():
                values[name][f"{sequence}, {noise}" if noise else sequence] = value
    named = _named("matching", PAPER["matching"])
    return by_name(f"HPatches matching per sequence: mAP ({named})", "sequence", values)


def _retrieval(results: Mapping[str, Any]) -> Table:
    """Convention and noise across, with all distractors."""
    most = numbers.most_distractors(results)
    columns = []
    for convention in CONVENTIONS:
        field = f"ap_{convention}"
        columns += [
            numbers.mean(results, "retrieval", field, distractors=most, noise=noise)
            for noise in NOISE
        ]
        columns.append(numbers.mean(results, "retrieval", field, distractors=most))
    return Table(
        f"HPatches retrieval: mAP among {most} distractors",
        ["descriptor", *((*NOISE, "mean") * len(CONVENTIONS))],
        by_descriptor(columns, numbers.descriptors(results)),
        [("", 1), *((convention, len(NOISE) + 1) for convention in CONVENTIONS)],
        "; ".join(f"{c}: {_named('retrieval', c)}" for c in CONVENTIONS) + ".",
    )


def _distractors(results: Mapping[str, Any], convention: str) -> Table:
    """Number of distractors across."""
    counts = sorted({row["distractors"] for row in results["retrieval"]})
    columns = [
        numbers.mean(results, "retrieval", f"ap_{convention}", distractors=k) for k in counts
    ]
    return Table(
        "HPatches retrieval: mAP against the number of distractors "
        f"({_named('retrieval', convention)})",
        ["descriptor", *(str(k) for k in counts)],
        by_descriptor(columns, numbers.descriptors(results)),
        note="As published, a number is the size of the pool, with the 5 right answers in it; the "
        "last is the whole list of distractors.",
    )
