"""Tables of the stereo benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hardnet.bench.report.cells import MISSING, bold_best
from hardnet.bench.report.stereo_numbers import (
    PAPER,
    PAPER_PAIRS,
    Entry,
    Results,
    distinct,
    entries,
    rule_of,
    set_title,
    sets_with,
)
from hardnet.bench.report.table import Table
from hardnet.bench.stereo.curves import AUC_PIXELS, THRESHOLDS
from hardnet.bench.stereo.rules import RULES

_NOTE = (
    "Inl.: mean inliers per matched pair. Common: the same over the pairs that all descriptors "
    "matched with this detector; only this mean compares descriptors, since who matches one hard "
    "pair more lowers its own. The paper's rows are of the complete sets ({complete}) and of MODS "
    "with view synthesis, which has more keypoints of more kinds: compare the order, not the "
    "numbers. A pair is matched with {rule}."
)
_PIXELS = (1, 3, 5, 10)

Column = Callable[[Entry], float | None]


def tables(results: Results) -> list[Table]:
    """Table 3 first; then the other rules, areas, accuracies, agreement, and every pair."""
    shown = [_table_3(results), _by_rule(results)]
    if names := sets_with(results, "auc"):
        shown.append(_areas(results, names))
    for field, title in (
        ("accuracy", "Mean matching accuracy: share of tentative matches within t px"),
        ("agreement", "Share of the correspondences picked by hand within t px of the estimate"),
    ):
        if names := sets_with(results, field):
            shown.append(_curve(results, names, field, title))
    pairs = [
        _per_pair(results, name, detector)
        for name in distinct(results, "set")
        for detector in distinct(results, "detector")
    ]
    return [*shown, *pairs]


def _table_3(results: Results) -> Table:
    names = distinct(results, "set")
    columns: list[tuple[str, Column, str]] = [
        ("matched", lambda e: e["matched"], "{:.0f}"),
        ("inl.", lambda e: e["mean_inliers"], "{:.0f}"),
        ("common", lambda e: e["mean_common"], "{:.0f}"),
    ]
    rows = _rows(results, names, columns)
    for label, numbers in PAPER.items():
        cells = []
        for name in names:
            cells += [str(n) for n in numbers[name]] if name in numbers else [MISSING] * 2
            cells.append(MISSING)
        rows.append([f"paper: {label}", *cells])
    complete = ", ".join(f"{name} {count}" for name, count in PAPER_PAIRS.items())
    note = _NOTE.format(complete=complete, rule=rule_of(results).about)
    title = "Wide-baseline stereo: image pairs matched and mean inliers (Table 3)"
    return _table(results, title, names, [heading for heading, _, _ in columns], rows, note)


def _by_rule(results: Results) -> Table:
    names = distinct(results, "set")
    found = {rule: entries(results, RULES[rule]) for rule in RULES}
    rows = []
    for detector in distinct(results, "detector"):
        labels = distinct(results, "descriptor")
        columns = [
            bold_best([_matched(found[rule].get((n, detector, d))) for d in labels], "{:.0f}")
            for n in names
            for rule in RULES
        ]
        rows += [[f"{d} ({detector})", *(c[i] for c in columns)] for i, d in enumerate(labels)]
    note = " ".join(f"{name}: {rule.about}." for name, rule in RULES.items())
    return _table(results, "Image pairs matched by each rule", names, list(RULES), rows, note)


def _matched(entry: Entry | None) -> float | None:
    return None if entry is None else float(entry["matched"])


def _areas(results: Results, names: Sequence[str]) -> Table:
    columns = [(f"@{limit} px", _item("auc", str(limit)), "{:.3f}") for limit in AUC_PIXELS]
    note = (
        "Mean over thresholds 0 to t of the share of pairs whose four corners are, on average, "
        "within the threshold of where the true homography puts them (exact: steps, no "
        "interpolation). A pair without an estimate is never within."
    )
    rows = _rows(results, names, columns)
    heads = [heading for heading, _, _ in columns]
    return _table(results, "Homographies: area under the corner error", names, heads, rows, note)


def _curve(results: Results, names: Sequence[str], field: str, title: str) -> Table:
    columns = [(f"{t} px", _item(field, THRESHOLDS.index(t)), "{:.3f}") for t in _PIXELS]
    rows = _rows(results, names, columns)
    return _table(results, title, names, [heading for heading, _, _ in columns], rows, "")


def _item(field: str, key: str | int) -> Column:
    """One number of a field that holds several, or None where the field has none."""
    return lambda entry: None if entry[field] is None else entry[field][key]


def _per_pair(results: Results, name: str, detector: str) -> Table:
    rule, labels = rule_of(results), distinct(results, "descriptor")
    cells: dict[str, dict[str, str]] = {}
    for row in results["rows"]:
        if row["set"] == name and row["detector"] == detector:
            text = str(rule.counted(row))
            shown = text if rule.matched(row) else f"({text})"
            cells.setdefault(row["pair"], {})[row["descriptor"]] = shown
    rows = [[pair, *(each.get(label, MISSING) for label in labels)] for pair, each in cells.items()]
    note = "In brackets: not matched."
    return Table(f"{name}, {detector}: inliers per pair", ["pair", *labels], rows, note=note)


def _rows(
    results: Results, names: Sequence[str], columns: Sequence[tuple[str, Column, str]]
) -> list[list[str]]:
    """One row per detector and descriptor; the best of a column among a detector's rows is bold."""
    found = entries(results)
    rows = []
    labels = distinct(results, "descriptor")
    for detector in distinct(results, "detector"):
        texts = [
            bold_best(
                [None if (e := found.get((n, detector, d))) is None else value(e) for d in labels],
                style,
            )
            for n in names
            for _, value, style in columns
        ]
        rows += [[f"{d} ({detector})", *(text[i] for text in texts)] for i, d in enumerate(labels)]
    return rows


def _table(
    results: Results,
    title: str,
    names: Sequence[str],
    headings: Sequence[str],
    rows: list[list[str]],
    note: str,
) -> Table:
    groups = [("", 1), *((set_title(results, name), len(headings)) for name in names)]
    return Table(title, ["descriptor (detector)", *list(headings) * len(names)], rows, groups, note)
