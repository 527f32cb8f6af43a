"""The stereo benchmark, after Table 3 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from hardnet.bench.report.style import Figures, canvas, grouped_bars, legend_above, line_style
from hardnet.bench.report.table import (
    MISSING,
    Column,
    Results,
    Row,
    Table,
    Value,
    column,
    distinct,
    interval,
)
from hardnet.bench.stereo import AUC_PIXELS, CORRECT_PIXELS, RULES, THRESHOLDS, Rule, summarise

PAPER_PAIRS = {"EF": 33, "EVD": 15, "OxAff": 40, "SymB": 46, "GDB": 22, "WxBS": 37, "LTLL": 172}
_MATCHED = {
    "RootSIFT": ((33, 32), (15, 34), (40, 169), (45, 43), (21, 52), (11, 93), (123, 27)),
    "TFeat-M*": ((32, 30), (15, 37), (40, 265), (40, 45), (16, 72), (10, 62), (96, 29)),
    "L2Net+": ((33, 34), (15, 34), (40, 304), (43, 46), (19, 78), (9, 51), (127, 26)),
    "HardNet+": ((33, 35), (15, 41), (40, 316), (44, 47), (21, 75), (11, 54), (127, 31)),
}
PAPER = {name: dict(zip(PAPER_PAIRS, row, strict=True)) for name, row in _MATCHED.items()}
"""Table 3 of the paper: descriptor -> set -> (pairs matched, mean inliers)."""

_INTERVAL = "95%: bootstrap interval over scenes."

Entries = Mapping[tuple[str, str, str], Row]
"""(set, detector, descriptor) -> its entry of the summary."""
Part = tuple[str, Entries, str | Callable[[Any], Value], str]
"""A column under each set: heading, entries, value of an entry, style; no text is the best."""


def tables(results: Results) -> list[Table]:
    entries, rule = _entries(results), RULES[results["rule"]["name"]]
    sets, detectors = distinct(results["rows"], "set"), distinct(results["rows"], "detector")
    complete = ", ".join(f"{name} {count}" for name, count in PAPER_PAIRS.items())
    table = partial(_table, results)

    def within(field: str) -> list[Part]:
        pixels = (1, 3, 5, 10)
        return [
            (f"{t} px", entries, partial(_of, field, THRESHOLDS.index(t)), "{:.3f}") for t in pixels
        ]

    areas: list[Part] = []
    for limit in map(str, AUC_PIXELS):
        areas.append((f"@{limit} px", entries, partial(_of, "auc", limit), "{:.3f}"))
        areas.append(("95%", entries, partial(_area_ends, limit), ""))
    shown = [
        table(
            "Wide-baseline stereo: image pairs matched and mean inliers (Table 3)",
            [
                ("matched", entries, "matched", "{:.0f}"),
                ("inl.", entries, "mean_inliers", "{:.0f}"),
            ],
            sets,
            "Inl.: mean inliers per matched pair. Matching one more hard pair lowers the mean of "
            "a descriptor, so compare descriptors by the next table. The paper used the "
            f"complete sets ({complete}) and MODS, whose view synthesis adds keypoints and "
            "kinds of keypoints: compare the order, not the numbers. A pair counts as matched with "
            f"{rule.about}.",
            PAPER if set(sets) & set(PAPER_PAIRS) else {},
        ),
        table(
            "Mean inliers over the pairs that every descriptor matched, per detector",
            [
                ("pairs", entries, "{common}".format_map, ""),
                ("inl.", entries, "mean_common", "{:.0f}"),
                ("95%", entries, lambda e: interval(*e["common_interval"], style="{:.0f}"), ""),
            ],
            sets,
            _INTERVAL,
        ),
        table(
            "Image pairs matched by each rule",
            [(name, _entries(results, name), "matched", "{:.0f}") for name in RULES],
            sets,
            " ".join(f"{name}: {each.about}." for name, each in RULES.items()),
        ),
    ]
    for title, field, parts, note in (
        (
            "Homographies: area under the corner error",
            "auc",
            areas,
            "Mean over thresholds 0 to t of the share of pairs whose four corners are, on average, "
            "within the threshold of where the true homography puts them (computed exactly, not "
            f"interpolated). A pair without an estimate counts as a failure. {_INTERVAL}",
        ),
        (
            "Mean matching accuracy",
            "accuracy",
            [*within("accuracy"), ("correct", entries, "mean_correct", "{:.0f}")],
            "Mean over the pairs of the share of tentative matches within t px of the true "
            f"homography; correct: mean number of those within {CORRECT_PIXELS:g} px. One ratio "
            "threshold is stricter for some descriptors than for others: a high share of few "
            "matches is not better than a lower share of many.",
        ),
        (
            "Share of hand-picked correspondences within t px of the estimated geometry",
            "agreement",
            within("agreement"),
            "",
        ),
    ):
        if names := _sets_with(results, entries, field):
            shown.append(table(title, parts, names, note))
    return [*shown, *(_per_pair(results, rule, *each) for each in product(sets, detectors))]


def figures(results: Results) -> Figures:
    known = any(row["accuracy"] is not None for row in results["rows"])
    return {"pairs": _draw_pairs, **({"accuracy": _draw_accuracy} if known else {})}


def _of(field: str, key: Any, entry: Row) -> Any:
    return entry[field] and entry[field][key]


def _area_ends(limit: str, entry: Row) -> str:
    return interval(*entry["auc_interval"][limit])


def _entries(results: Results, rule: str = "") -> Entries:
    found = summarise(results["rows"], RULES[rule or results["rule"]["name"]])
    return {(entry["set"], entry["detector"], entry["descriptor"]): entry for entry in found}


def _sets_with(results: Results, entries: Entries, field: str) -> list[str]:
    found = {key[0] for key, entry in entries.items() if entry[field] is not None}
    return [name for name in distinct(results["rows"], "set") if name in found]


def _set_title(results: Results, name: str) -> str:
    """The set and how many of its pairs were run: ``EVD (8 of 15)``."""
    about = next(each for each in results["sets"] if each["name"] == name)
    total = f" of {about['complete']}" if about["complete"] else ""
    return f"{name} ({about['pairs']}{total})"


def _table(
    results: Results,
    title: str,
    parts: Sequence[Part],
    sets: Sequence[str],
    note: str,
    paper: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
) -> Table:
    """One line per detector and descriptor; the best of each detector's lines is bold.

    ``paper``: lines to add, name -> set -> a number per part.
    """
    paper = paper or {}
    detectors, labels = (distinct(results["rows"], key) for key in ("detector", "descriptor"))
    lines = list(product(detectors, labels))
    names = [f"{who} ({detector})" for detector, who in lines] + [f"paper: {who}" for who in paper]
    columns = [Column("descriptor (detector)", names)]
    for name in sets:
        for k, (heading, entries, value, style) in enumerate(parts):
            ours = column(heading, [entries.get((name, *line)) for line in lines], value).values
            # Text: the paper's lines do not compete with ours.
            theirs = [str(row[name][k]) if name in row else None for row in paper.values()]
            group = _set_title(results, name)
            columns.append(Column(heading, [*ours, *theirs], style, "largest", group))
    blocks = [detector for detector, _ in lines] + ["paper"] * len(paper)
    return Table(title, columns, note, blocks=blocks)


def _per_pair(results: Results, rule: Rule, name: str, detector: str) -> Table:
    cells: dict[str, dict[str, str]] = {}
    for row in results["rows"]:
        if row["set"] == name and row["detector"] == detector:
            count = rule.counted(row)
            shown = f"{count}" if rule.matched(row) else f"({count})"
            cells.setdefault(row["pair"], {})[row["descriptor"]] = shown
    labels = distinct(results["rows"], "descriptor")
    columns = [column(label, cells.values(), label) for label in labels]
    title = f"{name}, {detector}: inliers per pair"
    return Table(title, [Column("pair", list(cells)), *columns], "In brackets: not matched.")


def _draw_pairs(results: Results, path: Path) -> None:
    """Above: pairs matched; below: mean inliers where all match. One column per set."""
    names, detectors = distinct(results["rows"], "set"), distinct(results["rows"], "detector")
    labels, found = distinct(results["rows"], "descriptor"), _entries(results)
    width = (0.9 + 0.34 * len(labels) * len(detectors)) * len(names)
    shown = {"matched": "pairs matched", "mean_common": "inliers per pair that all match"}
    with canvas(path, width, 5.4, len(shown), len(names)) as (figure, grid):
        for line, (field, title) in zip(grid, shown.items(), strict=True):
            for axes, name in zip(line, names, strict=True):
                values = {
                    label: [found[name, d, label][field] for d in detectors] for label in labels
                }
                for bars, each in zip(grouped_bars(axes, values), values.values(), strict=True):
                    texts = [MISSING if value is None else f"{value:.0f}" for value in each]
                    axes.bar_label(bars, texts, fontsize=7)
                axes.locator_params(axis="y", integer=True)
                if not any(any(each) for each in values.values()):
                    axes.set_ylim(0, 1)  # an automatic axis would show meaningless small numbers
                    axes.set_yticks([0])
                axes.set_xticks(range(len(detectors)), detectors)
            line[0].set_ylabel(title)
        for axes, name in zip(grid[0], names, strict=True):
            axes.set_title(_set_title(results, name), fontsize=10)
            pairs = max(e["pairs"] for k, e in found.items() if k[0] == name)
            axes.axhline(pairs, color="#999999", lw=0.8, ls=":")
            axes.set_ylim(0, pairs * 1.08)
        legend_above(figure, grid[0][0])


def _draw_accuracy(results: Results, path: Path) -> None:
    """Mean matching accuracy over 1 to 10 px: a column per set, a row of panels per detector."""
    labels, found = distinct(results["rows"], "descriptor"), _entries(results)
    names, detectors = _sets_with(results, found, "accuracy"), distinct(results["rows"], "detector")
    size = 3.2 * len(names), 0.4 + 2.6 * len(detectors)
    how: dict[str, Any] = {"sharex": True, "sharey": "col"}
    with canvas(path, *size, len(detectors), len(names), **how) as (figure, grid):
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
        legend_above(figure, grid[0][0])
