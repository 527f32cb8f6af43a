"""Tables of the Brown benchmark, after Table 1 of the paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardnet.bench.report.cells import MISSING, bold_best, interval, number
from hardnet.bench.report.latex import SAME
from hardnet.bench.report.table import Table

PERCENT = "{:.2f}"
_WEIGHTS = re.compile(r"\.(params|pth|pt|onnx|safetensors)$")
_OWN = "A descriptor is not tested on the set it was trained on (-), and its mean is of the others."

Row = Mapping[str, Any]


def tables(results: Mapping[str, Any]) -> list[Table]:
    """By descriptor, the layout of the paper where descriptors of one family differ, details."""
    rows: list[Row] = results["rows"]
    found = [_by_descriptor(rows)]
    families = {(family(row), row["trained"]) for row in rows if row["trained"]}
    if len({name for name, _ in families}) < len(families):
        found.append(_as_in_the_paper(rows))
    return [*found, _details(rows)]


def seen_in_training(row: Row) -> bool:
    """Whether the set is (one of) the descriptor's own training sets, joined by "+"."""
    return row["trained"] is not None and row["set"].lower() in row["trained"].lower().split("+")


def family(row: Row) -> str:
    """The descriptor without its training set: "tfeat-liberty.params" on liberty is "tfeat"."""
    name = _WEIGHTS.sub("", row["descriptor"])
    if row["trained"]:
        name = re.sub(rf"[-_.]?{re.escape(row['trained'])}$", "", name, flags=re.IGNORECASE)
    return name or row["descriptor"]


def _by_descriptor(rows: Sequence[Row]) -> Table:
    """Descriptors down, test sets across."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    trained = {row["descriptor"]: row["trained"] for row in rows}
    valid = [row for row in rows if not seen_in_training(row)]
    rates = {(row["descriptor"], row["set"]): 100 * row["fpr95"] for row in valid}
    means = {
        field: [_mean([row for row in valid if row["descriptor"] == d], field) for d in trained]
        for field in ("fdr95", "fpr95")
    }
    columns = [
        *(bold_best([rates.get((d, s)) for d in trained], PERCENT, smaller=True) for s in sets),
        *(bold_best(values, PERCENT, smaller=True) for values in means.values()),
    ]
    return Table(
        "FPR95 on Brown sets, %",
        ["descriptor", "trained on", *sets, "mean FDR95", "mean FPR95"],
        [
            [d, trained[d] or MISSING, *(column[i] for column in columns)]
            for i, d in enumerate(trained)
        ],
        note=_OWN if len(valid) < len(rows) else "",
    )


def _as_in_the_paper(rows: Sequence[Row]) -> Table:
    """Test sets across, under each the training sets; one number where nothing was trained."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    training = list(dict.fromkeys(row["trained"] for row in rows if row["trained"]))
    valid = [row for row in rows if not seen_in_training(row)]
    places = [
        (test, source)
        for test in sets
        for source in training
        if any(row["set"] == test and row["trained"] == source for row in valid)
    ]
    names = list(dict.fromkeys(family(row) for row in rows))
    cells: dict[tuple[str, str, str | None], float] = {
        (family(row), row["set"], row["trained"]): 100 * row["fpr95"] for row in valid
    }
    grid = {
        name: [cells.get((name, *place), cells.get((name, place[0], None))) for place in places]
        for name in names
    }
    columns = [bold_best(list(c), PERCENT, smaller=True) for c in zip(*grid.values(), strict=True)]
    means = [
        bold_best(
            [_mean([r for r in valid if family(r) == n], field) for n in names], PERCENT, True
        )
        for field in ("fdr95", "fpr95")
    ]
    lines = []
    for i, name in enumerate(names):
        line = [column[i] for column in columns]
        for k, (test, _) in enumerate(places):
            if (name, test, None) in cells and k and places[k - 1][0] == test:
                line[k] = SAME
        lines.append([name, *line, *(mean[i] for mean in means)])
    widths = [sum(test == place[0] for place in places) for test in sets]
    spans = [(test, width) for test, width in zip(sets, widths, strict=True) if width]
    return Table(
        "FPR95 on Brown sets by training set, %",
        ["test: trained on", *(source for _, source in places), "FDR95", "FPR95"],
        lines,
        [("", 1), *spans, ("mean", 2)],
        f"{SAME} not trained: one number per test set.",
    )


def _details(rows: Sequence[Row]) -> Table:
    """Every descriptor on every set with all measures."""
    lines = [
        [
            row["descriptor"],
            row["set"],
            str(row["pairs"]),
            number(100 * row["fpr95"], PERCENT),
            interval(100 * row["low"], 100 * row["high"], PERCENT),
            number(100 * row.get("fpr95_before", row["fpr95"]), PERCENT),
            number(100 * row["fdr95"], PERCENT),
            number(row["auc"], "{:.4f}"),
        ]
        for row in rows
    ]
    columns = ["descriptor", "set", "pairs", "FPR95", "95 % interval", "ties rejected", "FDR95"]
    return Table(
        "Brown sets: all measures",
        [*columns, "ROC AUC"],
        lines,
        note="The interval resamples pairs. Ties rejected: FPR95 when false pairs exactly on the "
        "threshold do not count. FDR95 is what some papers print as FPR95.",
    )


def _mean(rows: Sequence[Row], field: str) -> float | None:
    return 100 * float(np.mean([row[field] for row in rows])) if rows else None
