"""The stereo benchmark, after Table 3 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.style import Figures, canvas, grouped_bars, line_style
from hardnet.bench.report.table import MISSING, Column, Results, Table, Value, distinct, interval
from hardnet.bench.stereo.measure import (
    AUC_PIXELS,
    CORRECT_PIXELS,
    RULES,
    THRESHOLDS,
    Rule,
    rule_by_name,
    summarise,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER_PAIRS = {"EF": 33, "EVD": 15, "OxAff": 40, "SymB": 46, "GDB": 22, "WxBS": 37, "LTLL": 172}
_MATCHED = {
    "RootSIFT": ((33, 32), (15, 34), (40, 169), (45, 43), (21, 52), (11, 93), (123, 27)),
    "TFeat-M*": ((32, 30), (15, 37), (40, 265), (40, 45), (16, 72), (10, 62), (96, 29)),
    "L2Net+": ((33, 34), (15, 34), (40, 304), (43, 46), (19, 78), (9, 51), (127, 26)),
    "HardNet+": ((33, 35), (15, 41), (40, 316), (44, 47), (21, 75), (11, 54), (127, 31)),
}
PAPER = {name: dict(zip(PAPER_PAIRS, row, strict=True)) for name, row in _MATCHED.items()}
"""Table 3 of the paper: descriptor -> set -> (pairs matched, mean inliers)."""

_INTERVAL = "95%: interval of the bootstrap over scenes."
_PIXELS = (1, 3, 5, 10)

Entry = Mapping[str, Any]
Entries = Mapping[tuple[str, str, str], Entry]
"""(set, detector, descriptor) -> its entry of the summary."""
Part = tuple[str, Callable[[Entry], Value], str]
"""A column under each set: heading, value of an entry, style; texts have no best."""


def tables(results: Results) -> list[Table]:
    """Table 3 first; then the other rules, areas, accuracies, agreement, and every pair."""
    entries = _entries(results)
    shown = [_table_3(results, entries), _common(results, entries), _by_rule(results)]
    for field, table in (("auc", _areas), ("accuracy", _accuracy), ("agreement", _agreement)):
        if names := _sets_with(results, entries, field):
            shown.append(table(results, entries, names))
    pairs = [
        _per_pair(results, name, detector)
        for name in distinct(results["rows"], "set")
        for detector in distinct(results["rows"], "detector")
    ]
    return [*shown, *pairs]


def figures(results: Results) -> Figures:
    """Pairs and inliers per set; matching accuracy, which needs homographies."""
    found: Figures = {"pairs": partial(_draw_pairs, results)}
    if any(row["accuracy"] is not None for row in results["rows"]):
        found["accuracy"] = partial(_draw_accuracy, results)
    return found


def _rule(results: Results) -> Rule:
    return rule_by_name(results["rule"]["name"])


def _entries(results: Results, rule: Rule | None = None) -> Entries:
    found = summarise(results["rows"], rule or _rule(results))
    return {(entry["set"], entry["detector"], entry["descriptor"]): entry for entry in found}


def _sets_with(results: Results, entries: Entries, field: str) -> list[str]:
    """The sets whose ground truth gives ``field`` of the summary."""
    found = {key[0] for key, entry in entries.items() if entry[field] is not None}
    return [name for name in distinct(results["rows"], "set") if name in found]


def _set_title(results: Results, name: str) -> str:
    """The set and how much of it there is: ``EVD (8 of 15)``."""
    for about in results["sets"]:
        if about["name"] == name:
            total = f" of {about['complete']}" if about["complete"] else ""
            return f"{name} ({about['pairs']}{total})"
    return name


def _table(
    results: Results,
    title: str,
    sets: Sequence[str],
    parts: Sequence[tuple[Entries, Part]],
    note: str = "",
    paper: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
) -> Table:
    """One line per detector and descriptor, the best among a detector's lines bold.

    ``parts``: the columns under each set; ``paper``: lines to add, name -> set -> a number per
    part.
    """
    lines = [
        (detector, descriptor)
        for detector in distinct(results["rows"], "detector")
        for descriptor in distinct(results["rows"], "descriptor")
    ]
    added = paper or {}
    columns = [
        Column(
            "descriptor (detector)",
            [f"{who} ({detector})" for detector, who in lines] + [f"paper: {who}" for who in added],
        )
    ]
    for name in sets:
        for k, (entries, (heading, value, style)) in enumerate(parts):
            values: list[Value] = []
            for line in lines:
                entry = entries.get((name, *line))
                values.append(None if entry is None else value(entry))
            # Text: the paper's lines do not compete with ours.
            values += [str(row[name][k]) if name in row else None for row in added.values()]
            columns.append(Column(heading, values, style, "largest", _set_title(results, name)))
    blocks = [detector for detector, _ in lines] + ["paper"] * len(added)
    return Table(title, columns, note, blocks=blocks)


def _table_3(results: Results, entries: Entries) -> Table:
    names = distinct(results["rows"], "set")
    parts: list[tuple[Entries, Part]] = [
        (entries, ("matched", lambda e: e["matched"], "{:.0f}")),
        (entries, ("inl.", lambda e: e["mean_inliers"], "{:.0f}")),
    ]
    complete = ", ".join(f"{name} {count}" for name, count in PAPER_PAIRS.items())
    return _table(
        results,
        "Wide-baseline stereo: image pairs matched and mean inliers (Table 3)",
        names,
        parts,
        "Inl.: mean inliers per matched pair. Who matches one hard pair more lowers its own mean: "
        "compare descriptors by the next table. The paper's rows are of the complete sets "
        f"({complete}) and of MODS with view synthesis, which has more keypoints of more kinds: "
        f"compare the order, not the numbers. A pair is matched with {_rule(results).about}.",
        PAPER if set(names) & set(PAPER_PAIRS) else None,
    )


def _common(results: Results, entries: Entries) -> Table:
    parts: list[tuple[Entries, Part]] = [
        (entries, ("pairs", lambda e: f"{e['common']:.0f}", "")),
        (entries, ("inl.", lambda e: e["mean_common"], "{:.0f}")),
        (entries, ("95%", _common_interval, "")),
    ]
    title = "Mean inliers over the pairs that all descriptors matched with a detector"
    return _table(results, title, distinct(results["rows"], "set"), parts, _INTERVAL)


def _common_interval(entry: Entry) -> str:
    low, high = entry["common_interval"]
    return interval(low, high, "{:.0f}")


def _by_rule(results: Results) -> Table:
    parts: list[tuple[Entries, Part]] = [
        (_entries(results, rule), (name, lambda e: e["matched"], "{:.0f}"))
        for name, rule in RULES.items()
    ]
    note = " ".join(f"{name}: {rule.about}." for name, rule in RULES.items())
    title = "Image pairs matched by each rule"
    return _table(results, title, distinct(results["rows"], "set"), parts, note)


def _areas(results: Results, entries: Entries, names: Sequence[str]) -> Table:
    parts: list[tuple[Entries, Part]] = []
    for limit in map(str, AUC_PIXELS):
        parts.append((entries, (f"@{limit} px", _item("auc", limit), "{:.3f}")))
        parts.append((entries, ("95%", partial(_area_interval, limit), "")))
    return _table(
        results,
        "Homographies: area under the corner error",
        names,
        parts,
        "Mean over thresholds 0 to t of the share of pairs whose four corners are, on average, "
        "within the threshold of where the true homography puts them (exact: steps, no "
        f"interpolation). A pair without an estimate is never within. {_INTERVAL}",
    )


def _area_interval(limit: str, entry: Entry) -> str:
    return interval(*entry["auc_interval"][limit])


def _item(field: str, key: str | int) -> Callable[[Entry], Value]:
    """One number of a field that holds several, or None where the field has none."""
    return lambda entry: None if entry[field] is None else entry[field][key]


def _within(entries: Entries, field: str) -> list[tuple[Entries, Part]]:
    return [(entries, (f"{t} px", _item(field, THRESHOLDS.index(t)), "{:.3f}")) for t in _PIXELS]


def _accuracy(results: Results, entries: Entries, names: Sequence[str]) -> Table:
    correct: Part = ("correct", lambda e: e["mean_correct"], "{:.0f}")
    return _table(
        results,
        "Mean matching accuracy",
        names,
        [*_within(entries, "accuracy"), (entries, correct)],
        "Mean over the pairs of the share of tentative matches within t px of the true homography; "
        f"correct: mean number of those within {CORRECT_PIXELS:g} px. One ratio threshold is "
        "stricter for some descriptors than for others: a high share of few matches is not better "
        "than a lower one of many.",
    )


def _agreement(results: Results, entries: Entries, names: Sequence[str]) -> Table:
    title = "Share of the correspondences picked by hand within t px of the estimated geometry"
    return _table(results, title, names, _within(entries, "agreement"))


def _per_pair(results: Results, name: str, detector: str) -> Table:
    rule, labels = _rule(results), distinct(results["rows"], "descriptor")
    cells: dict[str, dict[str, str]] = {}
    for row in results["rows"]:
        if row["set"] == name and row["detector"] == detector:
            count = rule.counted(row)
            shown = f"{count}" if rule.matched(row) else f"({count})"
            cells.setdefault(row["pair"], {})[row["descriptor"]] = shown
    columns = [Column(label, [each.get(label) for each in cells.values()]) for label in labels]
    title = f"{name}, {detector}: inliers per pair"
    return Table(title, [Column("pair", list(cells)), *columns], "In brackets: not matched.")


_BARS = (("matched", "pairs matched"), ("mean_common", "inliers per pair that all match"))


def _draw_pairs(results: Results, path: Path) -> None:
    """Above: pairs matched; below: mean inliers where all match. One column per set."""
    names, detectors = distinct(results["rows"], "set"), distinct(results["rows"], "detector")
    labels, found = distinct(results["rows"], "descriptor"), _entries(results)
    panel = 0.9 + 0.34 * len(labels) * len(detectors)
    with canvas(path, panel * len(names), 5.4) as figure:
        grid = figure.subplots(len(_BARS), len(names), squeeze=False)
        for line, (field, title) in zip(grid, _BARS, strict=True):
            for axes, name in zip(line, names, strict=True):
                _bars(axes, {k[1:]: e for k, e in found.items() if k[0] == name}, field, labels)
                axes.set_xticks(range(len(detectors)), detectors)
            line[0].set_ylabel(title)
        for axes, name in zip(grid[0], names, strict=True):
            axes.set_title(_set_title(results, name), fontsize=10)
            pairs = max(e["pairs"] for k, e in found.items() if k[0] == name)
            axes.axhline(pairs, color="#999999", lw=0.8, ls=":")
            axes.set_ylim(0, pairs * 1.08)
        handles, texts = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, texts, frameon=False, ncols=len(labels), loc="outside upper left")


def _bars(axes: Axes, found: dict[tuple[str, str], Entry], field: str, labels: list[str]) -> None:
    detectors = list(dict.fromkeys(detector for detector, _ in found))
    values = {label: [found[d, label][field] for d in detectors] for label in labels}
    for bars, each in zip(grouped_bars(axes, values), values.values(), strict=True):
        texts = [MISSING if value is None else f"{value:.0f}" for value in each]
        axes.bar_label(bars, texts, fontsize=7)
    axes.locator_params(axis="y", integer=True)
    if not any(entry[field] for entry in found.values()):
        axes.set_ylim(0, 1)  # an axis around nothing would show meaningless small numbers
        axes.set_yticks([0])


def _draw_accuracy(results: Results, path: Path) -> None:
    """Mean matching accuracy over 1 to 10 px: a column per set, a line of panels per detector."""
    labels, found = distinct(results["rows"], "descriptor"), _entries(results)
    names, detectors = _sets_with(results, found, "accuracy"), distinct(results["rows"], "detector")
    with canvas(path, 3.2 * len(names), 0.4 + 2.6 * len(detectors)) as figure:
        grid = figure.subplots(len(detectors), len(names), squeeze=False, sharex=True, sharey="col")
        for line, detector in zip(grid, detectors, strict=True):
            for axes, name in zip(line, names, strict=True):
                for i, label in enumerate(labels):
                    curve = found[name, detector, label]["accuracy"]
                    axes.plot(THRESHOLDS, curve, label=label, ms=3, lw=1.3, **line_style(i))
                axes.set_title(f"{_set_title(results, name)}, {detector}", fontsize=9)
                axes.grid()
                axes.set_ylim(bottom=0)
            line[0].set_ylabel("share of matches correct")
        for axes in grid[-1]:
            axes.set_xlabel("within pixels")
            axes.set_xticks((1, 2, 4, 6, 8, 10))
        handles, texts = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, texts, frameon=False, ncols=len(labels), loc="outside upper left")
