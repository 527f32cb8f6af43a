"""The retrieval benchmark, next to the paper's two tables of image retrieval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from hardnet.bench.report.style import Figures, canvas, legend_above, line_style
from hardnet.bench.report.table import (
    Column,
    Results,
    Row,
    Table,
    Value,
    column,
    distinct,
    interval,
)

COLLECTIONS = ("Oxford5k", "Paris6k")
BOW: Mapping[str, tuple[float, ...]] = {
    "TFeat-M*": (46.7, 55.6, 72.2, 43.8, 51.8, 65.3),
    "RootSIFT": (55.1, 63.0, 78.4, 59.3, 63.7, 76.4),
    "L2Net+": (59.8, 67.7, 80.4, 63.0, 66.6, 77.2),
    "HardNet": (59.0, 67.6, 83.2, 61.4, 67.4, 77.5),
    "HardNet+": (59.8, 68.8, 83.0, 61.0, 67.0, 77.5),
    "HardNet++": (60.8, 69.6, 84.5, 65.0, 70.3, 79.1),
}
"""mAP by bag of words, with verification, with query expansion: Oxford5k, then Paris6k."""
HQE: Mapping[str, tuple[str, float, float, float | None, float | None]] = {
    "SIFT-BoW": ("1M", 78.4, 82.2, None, None),
    "SIFT-BoW-fVocab": ("16M", 74.0, 84.9, 73.6, 82.4),
    "RootSIFT-HQE": ("65k", 85.3, 88.0, 81.3, 82.8),
    "HardNet++-HQE": ("65k", 86.8, 88.3, 82.8, 84.9),
}
"""Words; mAP with single and multiple assignment: Oxford5k, then Paris6k."""

PERCENT = "{:.2f}"
ACROSS = 4
"""Panels per row of the figure."""

Measure = Callable[[Row], Value]


def tables(results: Results) -> list[Table]:
    found, collection = _by_key(results), results["collection"]
    names, modes = distinct(results["rows"], "descriptor"), distinct(results["rows"], "mode")
    counts, settings = _counts(results), results["provenance"]["settings"]

    def by_mode(title: str, measure: Measure, style: str = "", note: str = "") -> Table:
        columns = [
            column(mode, [found.get((n, mode, 0)) for n in names], measure, style, "largest")
            for mode in modes
        ]
        return Table(title, [Column("descriptor", names), *columns], note)

    def by_distractors(title: str, measure: Measure, style: str) -> Table:
        lines = [(n, m) for m in modes for n in names if (n, m, 0) in found]
        columns = [
            column(f"{k}", [found.get((*line, k)) for line in lines], measure, style, "largest")
            for k in counts
        ]
        return Table(
            f"{title} against the number of distractors",
            [Column("mode: descriptor", [f"{mode}: {name}" for name, mode in lines]), *columns],
            "Best of each mode and number in bold.",
            blocks=[mode for _, mode in lines],
        )

    title = "{name}, {images} photos, ".format(**collection) + f"{len(results['queries'])} queries"
    several = len(collection["protocols"]) > 1
    scores: list[tuple[str, Measure]] = [
        (f"mAP{f', {p}' if several else ''} (%)", partial(mean_ap, p))
        for p in collection["protocols"]
    ]
    has_ns = any(row["ns"] is not None for row in results["rows"])
    ns: list[tuple[str, Measure, str]] = [("N-S", itemgetter("ns"), "{:.3f}")] if has_ns else []
    every = [*((what, measure, PERCENT) for what, measure in scores), *ns]
    sized = settings["longer_side"]
    about = (
        f"{settings['extraction']['detector']}, "
        f"{max(row['features'] for row in found.values()):.0f} features per query"
        + (f", photos resized to {sized} pixels" if sized else "")
        + f", {settings['words']} words trained on {settings['vocabulary_photos']} other photos; "
        "best of each column in bold."
    )
    shown = [
        by_mode(f"{title}: {what}", measure, PERCENT, "" if i else about)
        for i, (what, measure) in enumerate(scores)
    ]
    shown += [by_mode(f"{title}: {what} (of 4)", measure, style) for what, measure, style in ns]
    note = "Bootstrap percentiles over objects (landmarks), not over single queries."
    for protocol, (what, _) in zip(collection["protocols"], scores, strict=True):
        shown.append(by_mode(f"95% intervals of {what}", partial(_ends, protocol), note=note))
    note = "Median. Assigning words to the query's features is included, extracting them is not."
    # As text: the fastest is not the best.
    shown.append(by_mode("Milliseconds per query", "{milliseconds:.1f}".format_map, note=note))
    if len(counts) > 1:
        shown += [by_distractors(*each) for each in every]
    bow = _beside_the_paper(
        results,
        "Bag of words on the paper's collections: mAP (%)",
        {"BoW": "bow", "BoW+SV": "bow+sv", "BoW+QE": "bow+qe"},
        BOW,
        note="The paper uses 1M words.",
    )
    hqe = _beside_the_paper(
        results,
        "Local features, verification and query expansion on the paper's collections: mAP (%)",
        {"SA": "hqe+sv:sa", "MA": "hqe+sv"},
        {who: row[1:] for who, row in HQE.items()},
        "-HQE",
        [*(row[0] for row in HQE.values()), *[str(settings["words"])] * len(names)],
        "SA: single assignment of the query's features; MA: multiple assignment.",
    )
    return [*shown, bow, hqe]


def figures(results: Results) -> Figures:
    """Scores against the number of distractors; a curve needs two points."""
    return {"distractors": _draw} if len(_counts(results)) > 1 else {}


def mean_ap(protocol: str, row: Row) -> float | None:
    """Mean average precision of a row, in percent."""
    found = row["map"][protocol]
    return None if found is None else 100 * found


def _ends(protocol: str, row: Row) -> str:
    return interval(*row["map_interval"][protocol], style=PERCENT, factor=100)


def _by_key(results: Results) -> dict[tuple[str, str, int], Row]:
    return {(row["descriptor"], row["mode"], row["distractors"]): row for row in results["rows"]}


def _counts(results: Results) -> list[int]:
    return sorted({row["distractors"] for row in results["rows"]})


def _beside_the_paper(
    results: Results,
    title: str,
    modes: Mapping[str, str],
    paper: Mapping[str, Sequence[float | None]],
    suffix: str = "",
    words: Sequence[str] = (),
    note: str = "",
) -> Table:
    """The paper's lines, then ours; ours stay empty for collections other than this file's."""
    labels, name = distinct(results["rows"], "descriptor"), results["collection"]["name"]
    lines = [*(f"{who} (paper)" for who in paper), *(f"{w}{suffix} (ours)" for w in labels)]
    columns = [Column("method" if words else "descriptor", lines)]
    if words:
        columns.append(Column("words", words))
    for k, (collection, (heading, mode)) in enumerate(product(COLLECTIONS, modes.items())):
        found = _by_key(results) if name == collection else {}
        rows = [found.get((label, mode, 0)) for label in labels]
        ours = column(heading, rows, partial(mean_ap, "classic")).values
        theirs = [row[k] for row in paper.values()]
        columns.append(Column(heading, [*theirs, *ours], "{:.1f}", group=collection))
    where_not = " and ".join(other for other in COLLECTIONS if other != name)
    more = (
        f"{note} These results are for {name}, so our columns for {where_not} are empty; with "
        "their photos, hardnet bench retrieval --layout oxford fills them."
    )
    return Table(title, columns, more)


def _draw(results: Results, path: Path) -> None:
    modes, names = distinct(results["rows"], "mode"), distinct(results["rows"], "descriptor")
    found, counts = _by_key(results), _counts(results)
    protocol = results["collection"]["protocols"][0]
    down, across = math.ceil(len(modes) / ACROSS), min(len(modes), ACROSS)
    size, how = (2.3 * across, 2.2 * down + 0.4), {"sharex": True, "sharey": True}
    with canvas(path, *size, down, across, **how) as (figure, grid):
        panels = grid.ravel()
        for axes, mode in zip(panels, modes, strict=False):
            for index, name in enumerate(names):
                rows: list[tuple[int, Any]] = [
                    (x, found[name, mode, k])
                    for x, k in enumerate(counts)
                    if (name, mode, k) in found
                ]
                points = [(x, mean_ap(protocol, row)) for x, row in rows]
                xs, ys = [x for x, _ in points], [y for _, y in points]
                axes.plot(xs, ys, label=name, ms=3.5, lw=1.4, **line_style(index))
            # 0, then steps of about a factor of three: evenly spaced, as on a logarithmic axis.
            texts = [f"{k / 1000:g}k" if k >= 1000 else str(k) for k in counts]
            axes.set_xticks(range(len(counts)), texts)
            axes.grid()
            axes.set_title(mode, fontsize=9, loc="left")
        for axes in panels[len(modes) :]:
            axes.set_visible(False)
        for axes in panels[::across]:
            axes.set_ylabel("mAP (%)")
        legend_above(figure, panels[0], "outside upper center")
        figure.supxlabel("number of distractors", fontsize=9)
