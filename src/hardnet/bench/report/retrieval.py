"""The retrieval benchmark, next to the paper's two tables of image retrieval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.style import Figures, canvas, legend_above, line_style
from hardnet.bench.report.table import Column, Results, Table, Value, distinct, interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

Row = Mapping[str, Any]
Measure = Callable[[Row], Value]


def tables(results: Results) -> list[Table]:
    """Scores by descriptor and mode, with intervals and times; distractors; the paper's tables."""
    rows = [row for row in results["rows"] if row["distractors"] == 0]
    collection, counts = results["collection"], _counts(results)
    protocols = collection["protocols"]
    named = {p: f", {p}" if len(protocols) > 1 else "" for p in protocols}
    has_ns = any(row["ns"] is not None for row in rows)
    title = "{name}, {images} photos, ".format(**collection) + f"{len(results['queries'])} queries"
    bootstrap = "Bootstrap percentiles over objects (landmarks), not over single queries."
    found = [
        _by_mode(
            f"{title}: mAP{named[p]} (%)",
            rows,
            partial(mean_ap, p),
            PERCENT,
            "" if i else _about(results),
        )
        for i, p in enumerate(protocols)
    ]
    if has_ns:
        found.append(_by_mode(f"{title}: N-S (of 4)", rows, itemgetter("ns"), "{:.3f}"))
    for p in protocols:
        between = f"95% intervals of mAP{named[p]} (%)"
        found.append(_by_mode(between, rows, partial(_ends, p), note=bootstrap))
    note = "Median. Assigning words to the query's features is included, extracting them is not."
    found.append(
        # As text: the fastest is not the best.
        _by_mode("Milliseconds per query", rows, lambda r: f"{r['milliseconds']:.1f}", note=note)
    )
    if len(counts) > 1:
        more = "against the number of distractors"
        for p in protocols:
            every = f"mAP{named[p]} (%) {more}"
            found.append(_by_distractors(every, results, partial(mean_ap, p), PERCENT))
        if has_ns:
            found.append(_by_distractors(f"N-S {more}", results, itemgetter("ns"), "{:.3f}"))
    bow = _beside_the_paper(
        results,
        "Bag of words on the paper's collections: mAP (%)",
        ("BoW", "BoW+SV", "BoW+QE"),
        ("bow", "bow+sv", "bow+qe"),
        BOW,
        note="The paper uses 1M words.",
    )
    ours = [str(results["provenance"]["settings"]["words"])] * len(distinct(rows, "descriptor"))
    hqe = _beside_the_paper(
        results,
        "Local features, verification and query expansion on the paper's collections: mAP (%)",
        ("SA", "MA"),
        ("hqe+sv:sa", "hqe+sv"),
        {who: row[1:] for who, row in HQE.items()},
        "-HQE",
        [*(row[0] for row in HQE.values()), *ours],
        "SA: single assignment of the query's features; MA: multiple assignment.",
    )
    return [*found, bow, hqe]


def figures(results: Results) -> Figures:
    """Scores against the number of distractors; a curve needs two points."""
    return {"distractors": _draw} if len(_counts(results)) > 1 else {}


def mean_ap(protocol: str, row: Row) -> float | None:
    """Mean average precision of a row, in percent."""
    found = row["map"][protocol]
    return None if found is None else 100 * found


def _ends(protocol: str, row: Row) -> Value:
    low, high = row["map_interval"][protocol]
    return interval(None if low is None else 100 * low, high and 100 * high, PERCENT)


def _counts(results: Results) -> list[int]:
    return sorted({row["distractors"] for row in results["rows"]})


def _find(rows: Sequence[Row], measure: Measure, **where: Any) -> Value:
    found = (row for row in rows if all(row[key] == value for key, value in where.items()))
    return next(map(measure, found), None)


def _about(results: Results) -> str:
    settings = results["provenance"]["settings"]
    per_query = max(row["features"] for row in results["rows"] if row["distractors"] == 0)
    sized = settings["longer_side"]
    return (
        f"{settings['extraction']['detector']}, {per_query:.0f} features per query"
        + (f", photos resized to {sized} pixels" if sized else "")
        + f", {settings['words']} words trained on {settings['vocabulary_photos']} other photos; "
        "best of each column in bold."
    )


def _by_mode(
    title: str, rows: Sequence[Row], measure: Measure, style: str = "", note: str = ""
) -> Table:
    names = distinct(rows, "descriptor")
    columns = [
        Column(
            mode,
            [_find(rows, measure, descriptor=name, mode=mode) for name in names],
            style,
            "largest",
        )
        for mode in distinct(rows, "mode")
    ]
    return Table(title, [Column("descriptor", names), *columns], note)


def _by_distractors(title: str, results: Results, measure: Measure, style: str) -> Table:
    rows = results["rows"]
    pairs = dict.fromkeys((row["mode"], row["descriptor"]) for row in rows)
    order = distinct(rows, "mode")
    lines = sorted(pairs, key=lambda line: order.index(line[0]))
    columns = [
        Column(
            str(count),
            [_find(rows, measure, mode=m, descriptor=d, distractors=count) for m, d in lines],
            style,
            "largest",
        )
        for count in _counts(results)
    ]
    return Table(
        title,
        [Column("mode: descriptor", [f"{m}: {d}" for m, d in lines]), *columns],
        "Best of each mode and number in bold.",
        blocks=[mode for mode, _ in lines],
    )


def _beside_the_paper(
    results: Results,
    title: str,
    headings: Sequence[str],
    modes: Sequence[str],
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
    for (k, collection), (i, heading) in product(enumerate(COLLECTIONS), enumerate(headings)):
        values: list[Value] = [row[k * len(headings) + i] for row in paper.values()]
        where = {"mode": modes[i], "distractors": 0}
        for label in labels:
            measure = partial(mean_ap, "classic")
            rows = results["rows"] if name == collection else []
            values.append(_find(rows, measure, descriptor=label, **where))
        columns.append(Column(heading, values, "{:.1f}", group=collection))
    where_not = " and ".join(other for other in COLLECTIONS if other != name)
    more = (
        f"{note} These results are for {name}, so our columns for {where_not} are empty; with "
        "their photos, hardnet bench retrieval --layout oxford fills them."
    )
    return Table(title, columns, more)


def _draw(results: Results, path: Path) -> None:
    rows = results["rows"]
    modes, names = distinct(rows, "mode"), distinct(rows, "descriptor")
    down, across = math.ceil(len(modes) / ACROSS), min(len(modes), ACROSS)
    with canvas(path, 2.3 * across, 2.2 * down + 0.4) as figure:
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, mode in zip(grid, modes, strict=False):
            _panel(axes, results, mode, names)
        for axes in grid[len(modes) :]:
            axes.set_visible(False)
        for axes in grid[::across]:
            axes.set_ylabel("mAP (%)")
        legend_above(figure, grid[0], "outside upper center")
        figure.supxlabel("number of distractors", fontsize=9)


def _panel(axes: Axes, results: Results, mode: str, names: list[str]) -> None:
    counts, rows = _counts(results), results["rows"]
    measure = partial(mean_ap, results["collection"]["protocols"][0])
    for index, name in enumerate(names):
        scores = [_find(rows, measure, descriptor=name, mode=mode, distractors=k) for k in counts]
        points = [(x, y) for x, y in enumerate(scores) if y is not None]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, label=name, ms=3.5, lw=1.4, **line_style(index))
    # 0, then steps of about a factor of three: evenly spaced, as on a logarithmic axis.
    axes.set_xticks(range(len(counts)), [f"{k / 1000:g}k" if k >= 1000 else str(k) for k in counts])
    axes.grid()
    axes.set_title(mode, fontsize=9, loc="left")
