"""Tables of the retrieval benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hardnet.bench.report import retrieval_paper
from hardnet.bench.report.cells import MISSING, bold_best, interval, number
from hardnet.bench.report.table import Table

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]

PERCENT = "{:.2f}"


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Scores by descriptor and mode, with intervals and times; distractors; the paper's tables."""
    rows = [row for row in results["rows"] if row["distractors"] == 0]
    found = []
    protocols = results["collection"]["protocols"]
    for protocol in protocols:
        named = f", {protocol}" if len(protocols) > 1 else ""
        found.append(_by_mode(f"{_title(results)}: mAP{named} (%)", rows, mean_ap(protocol)))
    has_ns = any(row["ns"] is not None for row in rows)
    if has_ns:
        found.append(_by_mode(f"{_title(results)}: N-S (of 4)", rows, ns, "{:.3f}"))
    found[0] = _with_note(found[0], _about(results))
    for protocol in protocols:
        named = f", {protocol}" if len(protocols) > 1 else ""
        found.append(_intervals(f"95% intervals of mAP{named} (%)", rows, protocol))
    found.append(_times(rows))
    counts = sorted({row["distractors"] for row in results["rows"]})
    if len(counts) > 1:
        for protocol in protocols:
            named = f", {protocol}" if len(protocols) > 1 else ""
            title = f"mAP{named} (%) against the number of distractors"
            found.append(_curve(title, results["rows"], counts, mean_ap(protocol), PERCENT))
        if has_ns:
            title = "N-S against the number of distractors"
            found.append(_curve(title, results["rows"], counts, ns, "{:.3f}"))
    return found + retrieval_paper.tables(results)


def mean_ap(protocol: str) -> Value:
    """Mean average precision of a row, in percent."""

    def value(row: Row) -> float | None:
        found = row["map"][protocol]
        return None if found is None else 100 * found

    return value


def ns(row: Row) -> float | None:
    """N-S of a row."""
    found: float | None = row["ns"]
    return found


def descriptors_of(rows: Sequence[Row]) -> list[str]:
    """Labels in the order of the file."""
    return list(dict.fromkeys(row["descriptor"] for row in rows))


def modes_of(rows: Sequence[Row]) -> list[str]:
    """Modes in the order of the file."""
    return list(dict.fromkeys(row["mode"] for row in rows))


def find(rows: Sequence[Row], descriptor: str, mode: str) -> Row | None:
    """The row of a descriptor and a mode."""
    return next((r for r in rows if r["descriptor"] == descriptor and r["mode"] == mode), None)


def _title(results: Mapping[str, Any]) -> str:
    collection = results["collection"]
    return f"{collection['name']}, {collection['images']} photos, {len(results['queries'])} queries"


def _about(results: Mapping[str, Any]) -> str:
    settings = results["provenance"]["settings"]
    rows = results["rows"]
    per_query = max(row["features"] for row in rows)
    sized = settings["longer_side"]
    return (
        f"{settings['extraction']['detector']}, {per_query:.0f} features per query"
        + (f", photos brought to {sized} pixels" if sized else "")
        + f", {settings['words']} words trained on {settings['vocabulary_photos']} other photos; "
        "best of each column in bold."
    )


def _with_note(table: Table, note: str) -> Table:
    return Table(table.title, table.columns, table.rows, table.groups, note)


def _by_mode(title: str, rows: Sequence[Row], value: Value, style: str = PERCENT) -> Table:
    """Descriptors down, modes across."""
    names, modes = descriptors_of(rows), modes_of(rows)
    columns = []
    for mode in modes:
        cells = [find(rows, name, mode) for name in names]
        columns.append(bold_best([None if c is None else value(c) for c in cells], style))
    shown = [[name, *(column[i] for column in columns)] for i, name in enumerate(names)]
    return Table(title, ["descriptor", *modes], shown)


def _intervals(title: str, rows: Sequence[Row], protocol: str) -> Table:
    names, modes = descriptors_of(rows), modes_of(rows)

    def cell(row: Row | None) -> str:
        if row is None:
            return MISSING
        low, high = row["map_interval"][protocol]
        return interval(None if low is None else 100 * low, high and 100 * high, PERCENT)

    shown = [[name, *(cell(find(rows, name, mode)) for mode in modes)] for name in names]
    note = "Percentiles of the bootstrap over objects (landmarks), not over single queries."
    return Table(title, ["descriptor", *modes], shown, note=note)


def _times(rows: Sequence[Row]) -> Table:
    names, modes = descriptors_of(rows), modes_of(rows)
    shown = []
    for name in names:
        cells = [find(rows, name, mode) for mode in modes]
        texts = [number(None if c is None else c["milliseconds"], "{:.1f}") for c in cells]
        shown.append([name, *texts])
    note = "Median; words of the query's features included, extraction not."
    return Table("Milliseconds per query", ["descriptor", *modes], shown, note=note)


def _curve(
    title: str, rows: Sequence[Row], counts: Sequence[int], value: Value, style: str
) -> Table:
    shown = []
    for mode in modes_of(rows):
        of_mode = [row for row in rows if row["mode"] == mode]
        names = descriptors_of(of_mode)
        columns = []
        for count in counts:
            at = [row for row in of_mode if row["distractors"] == count]
            cells = [find(at, name, mode) for name in names]
            columns.append(bold_best([None if c is None else value(c) for c in cells], style))
        shown += [
            [f"{mode}: {name}", *(column[i] for column in columns)] for i, name in enumerate(names)
        ]
    note = "Best of each mode and number in bold."
    return Table(title, ["mode: descriptor", *map(str, counts)], shown, note=note)
