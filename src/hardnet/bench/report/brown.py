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


def full_name(row: Row) -> str:
    """The descriptor with its training set: several may share one name, as in the paper."""
    return f"{row['descriptor']}[{row['trained']}]" if row["trained"] else str(row["descriptor"])


def _by_descriptor(rows: Sequence[Row]) -> Table:
    """Descriptors down, test sets across."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    names = {full_name(row): (row["descriptor"], row["trained"] or MISSING) for row in rows}
    valid = [row for row in rows if not seen_in_training(row)]
    rates = {(full_name(row), row["set"]): 100 * row["fpr95"] for row in valid}
    columns = [
        *(bold_best([rates.get((n, s)) for n in names], PERCENT, smaller=True) for s in sets),
        *_mean_columns([[row for row in valid if full_name(row) == n] for n in names]),
    ]
    return Table(
        "FPR95 on Brown sets, %",
        ["descriptor", "trained on", *sets, "mean FDR95", "mean FPR95"],
        [[*both, *(column[i] for column in columns)] for i, both in enumerate(names.values())],
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
    # A family and whether it was trained: "net" without a training set is a line of its own.
    lines = list(dict.fromkeys((family(row), bool(row["trained"])) for row in rows))
    rates = {(family(row), row["set"], row["trained"]): 100 * row["fpr95"] for row in valid}
    columns = [
        bold_best(
            [rates.get((name, test, source if trained else None)) for name, trained in lines],
            PERCENT,
            smaller=True,
        )
        for test, source in places
    ]
    for k in range(len(places) - 1, 0, -1):
        if places[k][0] == places[k - 1][0]:
            for i, (_, trained) in enumerate(lines):
                columns[k][i] = columns[k][i] if trained else SAME
    own = [[r for r in valid if (family(r), bool(r["trained"])) == line] for line in lines]
    columns += _mean_columns(own)
    widths = [(test, sum(test == place[0] for place in places)) for test in sets]
    return Table(
        "FPR95 on Brown sets by training set, %",
        ["test: trained on", *(source for _, source in places), "FDR95", "FPR95"],
        [[name, *(column[i] for column in columns)] for i, (name, _) in enumerate(lines)],
        [("", 1), *((test, width) for test, width in widths if width), ("mean", 2)],
        f"{SAME} not trained: one number per test set.",
    )


def _details(rows: Sequence[Row]) -> Table:
    """Every descriptor on every set with all measures."""
    lines = [
        [
            full_name(row),
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


def _mean_columns(own: Sequence[Sequence[Row]]) -> list[list[str]]:
    """Mean FDR95 and mean FPR95 of the rows of each line, in percent."""
    return [
        bold_best(
            [100 * float(np.mean([row[field] for row in each])) if each else None for each in own],
            PERCENT,
            smaller=True,
        )
        for field in ("fdr95", "fpr95")
    ]
