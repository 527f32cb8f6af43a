"""Tables of an experiment: our cells beside the paper's, what they show, and every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardnet.bench.report.cells import MISSING, bold_best, interval
from hardnet.bench.report.table import Table

MEASURES = {"matching": "matching mAP", "fpr95": "FPR95 [%]"}
Cell = Mapping[str, Any]


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The paper's table with our numbers, the other measure, the claims, all runs."""
    measures = taken(results)
    if any(cell["column"] for cell in results["cells"]):
        shown = [_matrix(results, measure) for measure in measures]
    else:
        shown = [_list(results, measures)]
    return [*shown, _claims(results), _runs(results)]


def claim_lines(results: Mapping[str, Any]) -> list[str]:
    """The claims for a terminal, which is too narrow for their table."""
    lines = []
    for claim in results["claims"]:
        counted = f"{claim['hold']} of {claim['pairs']} pairs, {claim['clear']} clearly"
        by = MEASURES[claim["measure"]]
        lines.append(f"{claim['answer']:4} {claim['claim']} ({by}: {counted})")
        lines += [f"     against: {pair}" for pair in claim["against"]]
    return lines


def taken(results: Mapping[str, Any]) -> list[str]:
    """The measures that were taken, the paper's first."""
    present = [m for m in MEASURES if any(m in cell for cell in results["cells"])]
    return sorted(present, key=lambda measure: measure != results["measure"])


def shown_value(cell: Cell | None, measure: str) -> float | None:
    """Matching mAP, or FPR95 in percent; None where there is none."""
    if cell is None or not cell.get(measure):
        return None
    return float(cell[measure]["value"]) * (1 if measure == "matching" else 100)


def style(measure: str) -> str:
    """How a number of this measure is written."""
    return "{:.3f}" if measure == "matching" else "{:.2f}"


def _matrix(results: Mapping[str, Any], measure: str) -> Table:
    """Rows and columns as in the paper; its numbers to the right if they are of this measure."""
    cells = {(cell["row"], cell["column"]): cell for cell in results["cells"]}
    rows, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    places = [(row, column) for row in rows for column in columns]
    numbers = [shown_value(cells.get(place), measure) for place in places]
    texts = bold_best(numbers, style(measure), smaller=measure == "fpr95")
    ours = {
        place: "diverged" if cells.get(place, {}).get("failed") and text == MISSING else text
        for place, text in zip(places, texts, strict=True)
    }
    in_paper = [
        column
        for column in columns
        if measure == results["measure"]
        and any(cells.get((row, column), {}).get("paper") is not None for row in rows)
    ]
    lines = [
        [
            row,
            *(ours[row, column] for column in columns),
            *(_paper(cells.get((row, column)), measure) for column in in_paper),
        ]
        for row in rows
    ]
    what = MEASURES[measure]
    groups = [("", 1), (f"here, {what}", len(columns)), (f"paper, {what}", len(in_paper))]
    return Table(
        f"{results['title']}: {what}",
        [results["corner"], *columns, *in_paper],
        lines,
        [group for group in groups if group[1]],
        _note(results) if measure == taken(results)[0] else "",
    )


def _paper(cell: Cell | None, measure: str) -> str:
    value = None if cell is None else cell["paper"]
    if value is None or isinstance(value, str):
        return value or MISSING
    return style(measure).format(value)


def _list(results: Mapping[str, Any], measures: Sequence[str]) -> Table:
    """One line per cell, all measures with their intervals."""
    cells: Sequence[Cell] = results["cells"]
    columns = [[_steps(cell) for cell in cells]]
    for measure in measures:
        numbers = [shown_value(cell, measure) for cell in cells]
        columns.append(bold_best(numbers, style(measure), smaller=measure == "fpr95"))
        columns.append([_interval(cell, measure) for cell in cells])
    headings = [text for m in measures for text in (MEASURES[m], "95 % interval")]
    return Table(
        results["title"],
        [results["corner"], "steps", *headings],
        [[cell["row"], *(column[i] for column in columns)] for i, cell in enumerate(cells)],
        note=_note(results),
    )


def _claims(results: Mapping[str, Any]) -> Table:
    rows = [
        [
            claim["claim"],
            MEASURES[claim["measure"]],
            claim["answer"],
            f"{claim['hold']} of {claim['pairs']}",
            str(claim["clear"]),
            "; ".join(claim["against"]) or MISSING,
        ]
        for claim in results["claims"]
    ]
    once = all(len(cell["runs"]) <= 1 for cell in results["cells"])
    return Table(
        f"{results['title']}: does the paper's ordering hold here?",
        ["claim", "by", "holds", "pairs that hold", "clearly", "pairs that contradict"],
        rows,
        note="Clearly: the interval of the difference leaves out zero (matching: sequences drawn "
        "again; FPR95: intervals of the two that do not overlap) and all seeds agree. Open: no "
        "pair contradicts, but some were not run."
        + (" Each cell was trained once: the luck of a single run is not counted." if once else ""),
    )


def _runs(results: Mapping[str, Any]) -> Table:
    measures = taken(results)
    rows = []
    for cell in results["cells"]:
        for run in cell["runs"]:
            values = [_of_run(run, measure) for measure in measures]
            whole = [str(run[key]) for key in ("seed", "batch", "steps", "pairs")]
            speed = [f"{run['seconds']:.0f}", f"{run['pairs_per_second']:.0f}"]
            rows.append([cell["cell"], *whole, *speed, f"{run['loss']:.3f}", *values])
    columns = ["cell", "seed", "batch", "steps", "pairs", "seconds", "pairs/s", "final loss"]
    return Table(
        f"{results['title']}: all runs",
        [*columns, *(MEASURES[measure] for measure in measures)],
        rows,
    )


def _of_run(run: Mapping[str, Any], measure: str) -> str:
    if "failed" in run:
        return "diverged"
    if measure == "matching":
        found = run["matching"]
        return f"{found['value']:.3f} {interval(found['low'], found['high'])}"
    ends = "{:.2f}"
    return "; ".join(
        f"{100 * s['fpr95']:.2f} {interval(100 * s['low'], 100 * s['high'], ends)}"
        for s in run["brown"]
    )


def _interval(cell: Cell, measure: str) -> str:
    found = cell.get(measure)
    if not found or found["low"] is None:
        return MISSING
    factor = 1 if measure == "matching" else 100
    return interval(factor * found["low"], factor * found["high"], style(measure))


def _steps(cell: Cell) -> str:
    return str(cell["runs"][0]["steps"]) if cell["runs"] else MISSING


def _note(results: Mapping[str, Any]) -> str:
    """Where the paper has it, how much was trained here, and what is missing."""
    said = [f"Paper: {results['says']} ({results['source']})."]
    trained = results.get("training")
    if trained:
        said.append(f"Here: {trained}.")
    said += results["notes"]
    if results["missing"]:
        said.append(f"Not run: {', '.join(results['missing'])}.")
    return " ".join(said)
