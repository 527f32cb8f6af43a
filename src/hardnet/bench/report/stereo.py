"""Tables of the stereo benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hardnet.bench.report.cells import MISSING, bold_best, interval, number
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
from hardnet.bench.stereo.measure import CORRECT_PIXELS
from hardnet.bench.stereo.rules import RULES

_NOTE = (
    "Inl.: mean inliers per matched pair. Who matches one hard pair more lowers its own mean: "
    "compare descriptors by the next table. The paper's rows are of the complete sets "
    "({complete}) and of MODS with view synthesis, which has more keypoints of more kinds: "
    "compare the order, not the numbers. A pair is matched with {rule}."
)
_PIXELS = (1, 3, 5, 10)

_INTERVAL = "95%: interval of the bootstrap over scenes."

Value = Callable[[Entry], float | None]
Texts = Callable[[Sequence[Entry | None]], list[str]]
Column = tuple[str, Texts]
"""The heading, and the cells of the entries of one set and detector."""


def tables(results: Results) -> list[Table]:
    """Table 3 first; then the other rules, areas, accuracies, agreement, and every pair."""
    shown = [_table_3(results), _common(results), _by_rule(results)]
    if names := sets_with(results, "auc"):
        shown.append(_areas(results, names))
    if names := sets_with(results, "accuracy"):
        shown.append(_accuracy(results, names))
    if names := sets_with(results, "agreement"):
        shown.append(_agreement(results, names))
    pairs = [
        _per_pair(results, name, detector)
        for name in distinct(results, "set")
        for detector in distinct(results, "detector")
    ]
    return [*shown, *pairs]


def _table_3(results: Results) -> Table:
    names = distinct(results, "set")
    columns = [
        ("matched", _best(lambda e: e["matched"], "{:.0f}")),
        ("inl.", _best(lambda e: e["mean_inliers"], "{:.0f}")),
    ]
    rows = _rows(results, names, columns)
    for label, numbers in PAPER.items() if set(names) & set(PAPER_PAIRS) else ():
        cells = []
        for name in names:
            cells += [str(n) for n in numbers[name]] if name in numbers else [MISSING] * 2
        rows.append([f"paper: {label}", *cells])
    complete = ", ".join(f"{name} {count}" for name, count in PAPER_PAIRS.items())
    note = _NOTE.format(complete=complete, rule=rule_of(results).about)
    title = "Wide-baseline stereo: image pairs matched and mean inliers (Table 3)"
    return _table(results, title, names, columns, rows, note)


def _common(results: Results) -> Table:
    columns = [
        ("pairs", _each(lambda e: number(e["common"], "{:.0f}"))),
        ("inl.", _best(lambda e: e["mean_common"], "{:.0f}")),
        ("95%", _each(_common_interval)),
    ]
    names = distinct(results, "set")
    rows = _rows(results, names, columns)
    title = "Mean inliers over the pairs that all descriptors matched with a detector"
    return _table(results, title, names, columns, rows, _INTERVAL)


def _common_interval(entry: Entry) -> str:
    low, high = entry["common_interval"]
    return interval(low, high, "{:.0f}")


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
    title = "Image pairs matched by each rule"
    return _table(results, title, names, [(rule, _each(str)) for rule in RULES], rows, note)


def _matched(entry: Entry | None) -> float | None:
    return None if entry is None else float(entry["matched"])


def _areas(results: Results, names: Sequence[str]) -> Table:
    columns: list[Column] = []
    for limit in map(str, AUC_PIXELS):
        columns.append((f"@{limit} px", _best(_item("auc", limit))))
        columns.append(("95%", _each(_area_interval(limit))))
    note = (
        "Mean over thresholds 0 to t of the share of pairs whose four corners are, on average, "
        "within the threshold of where the true homography puts them (exact: steps, no "
        f"interpolation). A pair without an estimate is never within. {_INTERVAL}"
    )
    rows = _rows(results, names, columns)
    return _table(results, "Homographies: area under the corner error", names, columns, rows, note)


def _area_interval(limit: str) -> Callable[[Entry], str]:
    return lambda entry: interval(*entry["auc_interval"][limit])


def _accuracy(results: Results, names: Sequence[str]) -> Table:
    columns = [(f"{t} px", _best(_item("accuracy", THRESHOLDS.index(t)))) for t in _PIXELS]
    columns.append(("correct", _best(lambda e: e["mean_correct"], "{:.0f}")))
    note = (
        "Mean over the pairs of the share of tentative matches within t px of the true homography; "
        f"correct: mean number of those within {CORRECT_PIXELS:g} px. One ratio threshold is "
        "stricter for some descriptors than for others: a high share of few matches is not better "
        "than a lower one of many."
    )
    rows = _rows(results, names, columns)
    return _table(results, "Mean matching accuracy", names, columns, rows, note)


def _agreement(results: Results, names: Sequence[str]) -> Table:
    columns = [(f"{t} px", _best(_item("agreement", THRESHOLDS.index(t)))) for t in _PIXELS]
    rows = _rows(results, names, columns)
    title = "Share of the correspondences picked by hand within t px of the estimated geometry"
    return _table(results, title, names, columns, rows, "")


def _best(value: Value, style: str = "{:.3f}") -> Texts:
    """Numbers, the best in bold."""
    return lambda found: bold_best([None if e is None else value(e) for e in found], style)


def _each(text: Callable[[Entry], str]) -> Texts:
    """A text per entry, whatever the others are."""
    return lambda found: [MISSING if e is None else text(e) for e in found]


def _item(field: str, key: str | int) -> Value:
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


def _rows(results: Results, names: Sequence[str], columns: Sequence[Column]) -> list[list[str]]:
    """One row per detector and descriptor; the best among a detector's rows is bold."""
    found = entries(results)
    rows = []
    labels = distinct(results, "descriptor")
    for detector in distinct(results, "detector"):
        texts = [
            cells([found.get((n, detector, d)) for d in labels])
            for n in names
            for _, cells in columns
        ]
        rows += [[f"{d} ({detector})", *(text[i] for text in texts)] for i, d in enumerate(labels)]
    return rows


def _table(
    results: Results,
    title: str,
    names: Sequence[str],
    columns: Sequence[Column],
    rows: list[list[str]],
    note: str,
) -> Table:
    headings = [heading for heading, _ in columns]
    groups = [("", 1), *((set_title(results, name), len(headings)) for name in names)]
    return Table(title, ["descriptor (detector)", *headings * len(names)], rows, groups, note)
