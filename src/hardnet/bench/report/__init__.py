"""Results files as tables (Markdown, LaTeX, terminal) and figures, so that nobody copies numbers.

``KINDS`` names the functions that show each kind of results. A file may also contain its own
tables, under "tables", as those written by the scripts in ``benchmarks/`` do.

A Markdown file marks where tables go:

    <!-- summary results/match_real_pairs.json -->
    <!-- end -->

``summary`` asks for the first table of the results file, ``tables`` for all of them, ``table 3`` or
``tables 1,3`` for those numbers. A small table may be made of single columns of several files:

    <!-- overview measured | HardNet = hardnet | rootsift
    correct matches | results/match_real_pairs.json | 1 | correct
    precision | results/light.json | 1 | mean AP | dog / hardnet, dog / rootsift
    -->
    <!-- end -->

The first line has the headings and, after "=", the rows that they stand for. Each further line is a
row of the overview: a label, the file, the number of the table, the heading of the column as
Markdown shows it, and the rows to take it from if they have other names here ("-": none). If one
cell does not tell a row from the others, name several, separated by " / ". ``comparison`` instead
of ``overview`` turns the table: each line becomes a column.

The text between the comments is replaced; paths are relative to the root of the repository.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from hardnet.bench.report import experiment, hpatches, patches, photos, retrieval, stereo
from hardnet.bench.report.style import FORMATS, Figures
from hardnet.bench.report.table import MISSING, Results, Table
from hardnet.errors import HardnetError, MissingExtraError
from hardnet.image_files import require_regular_file
from hardnet.storage import replace_file

KINDS: Mapping[str, tuple[Callable[[Results], list[Table]], Callable[[Results], Figures]]] = {
    "sfm": (photos.tables_of_sfm, lambda _: {"bars": photos.draw_sfm}),
    "pairs": (photos.tables_of_pairs, lambda _: {"bars": photos.draw_pairs}),
    "experiment": (experiment.tables, experiment.figures),
    "brown": (patches.tables_of_brown, lambda _: {"rates": patches.draw_brown}),
    "hpatches": (hpatches.tables, hpatches.figures),
    "stereo": (stereo.tables, stereo.figures),
    "retrieval": (retrieval.tables, retrieval.figures),
    "w1bs": (patches.tables_of_w1bs, lambda _: {"curves": patches.draw_w1bs}),
    **dict.fromkeys(
        ("pose", "light", "ratio"), (photos.tables_of_scenes, photos.figures_of_scenes)
    ),
}
"""The tables of each kind, the summary first, and its figures, the main one first."""


def read_results(path: Path) -> Results:
    try:
        require_regular_file(path)
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HardnetError(f"{path}: cannot read results: {reason}") from error
    if not isinstance(results, dict) or not (results.get("kind") in KINDS or "tables" in results):
        raise HardnetError(f"{path}: not a results file of {', '.join(KINDS)}, or with tables")
    return results


def tables(results: Results) -> list[Table]:
    """The tables of a results file: the summary, then the details."""
    if "tables" in results:
        return [Table.of_texts(**table) for table in results["tables"]]
    return KINDS[results["kind"]][0](results)


def figures(results: Results) -> list[str]:
    return list(_figures(results))


def figure(results: Results, path: Path, which: str | None = None) -> None:
    """Draw a figure into ``path``, a .png or .svg file; by default the first of ``figures``."""
    known = _figures(results)
    if not known:
        raise HardnetError(f"there is no figure of the {results['kind']} benchmark, only its table")
    if which is not None and which not in known:
        raise HardnetError(f"these results have the figures {', '.join(known)}, not {which!r}")
    known[which or next(iter(known))](results, path)


def _figures(results: Results) -> Figures:
    return KINDS[results["kind"]][1](results) if results["kind"] in KINDS else {}


_SLOT = re.compile(
    r"(<!-- (summary|tables?)(?: ([\d,]+))? (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL
)
_CHOICE = re.compile(
    r"(<!-- (overview|comparison) (.+?)\n(.*?)-->\n)(.*?)(<!-- end -->)", re.DOTALL
)


def refresh(text: str, root: Path) -> str:
    """``text`` with its marked tables as the results files below ``root`` have them."""
    read = cache(lambda path: tables(read_results(root / path)))

    def fill(slot: re.Match[str]) -> str:
        opening, what, numbers, path, _, closing = slot.groups()
        found = read(path)
        if what == "summary":
            found = found[:1]
        elif numbers:
            found = [_pick(found, int(number), path) for number in numbers.split(",")]
        return opening + "".join(table.markdown() + "\n\n" for table in found) + closing

    def choose(slot: re.Match[str]) -> str:
        opening, what, head, lines, _, closing = slot.groups()
        corner, *columns = _split(head, "|")
        rows = [[corner, *(column.partition(" = ")[0] for column in columns)]]
        names = [column.rpartition(" = ")[2] for column in columns]
        for line in lines.splitlines():
            label, path, number, heading, *of = _split(line, "|")
            table = _pick(read(path), int(number), path)
            chosen = _split(of[0], ",") if of else names
            rows.append([label, *_cells(table, heading, chosen, path)])
        if what == "comparison":
            rows = [list(column) for column in zip(*rows, strict=True)]
        body = Table.of_texts("", rows[0], rows[1:]).markdown().splitlines()[2:]
        return opening + "\n".join(["", *body, "", closing])

    return _CHOICE.sub(choose, _SLOT.sub(fill, text))


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator)]


def _pick(found: list[Table], number: int, path: str) -> Table:
    if not 1 <= number <= len(found):
        raise HardnetError(f"{path} has tables 1 to {len(found)}, not {number}")
    return found[number - 1]


def _cells(table: Table, heading: str, names: list[str], path: str) -> list[str]:
    """The cells of one column, in the rows that have these names."""
    headings = table.full_headings(": ")
    if heading not in headings:
        raise HardnetError(f"{path}: {table.title!r} has no column {heading!r}: {headings}")
    wanted = table.columns[headings.index(heading)].texts
    rows = [set(row) for row in zip(*(column.texts for column in table.columns), strict=True)]
    cells = []
    for name in names:
        places = [i for i, row in enumerate(rows) if row.issuperset(name.split(" / "))]
        if name != MISSING and len(places) != 1:
            raise HardnetError(f"{path}: {table.title!r} has {len(places)} rows named {name!r}")
        cells.append(MISSING if name == MISSING else wanted[places[0]])
    return cells


def write_report(
    results: Results, folder: Path, name: str | None = None, formats: Collection[str] = FORMATS
) -> list[Path]:
    """Write the tables as Markdown and LaTeX and all figures into ``folder``; returns the files.

    They are called NAME.md, NAME.tex, NAME-FIGURE.png; the default name is the kind of the results.
    """
    if find_spec("matplotlib") is None:  # before anything is written
        raise MissingExtraError("matplotlib", "report")
    name = name or str(results["kind"])
    shown, pictures = tables(results), figures(results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown, latex = folder / f"{name}.md", folder / f"{name}.tex"
        links = [f"![{picture}]({name}-{picture}{FORMATS[0]})" for picture in pictures]
        text = "\n\n".join([f"# {name}", *links, *(table.markdown() for table in shown)]) + "\n"
        if made := results.get("provenance"):
            version = f"hardnet {made['versions'].get('hardnet', '')}"
            version += f" at revision {made['revision']}" if made.get("revision") else ""
            text += f"\n`{made['command']}`, {version}, {made['date']}.\n"
        replace_file(markdown, text.encode())
        bodies = (
            table.latex(f"tab:{name}-{number}" if number > 1 else f"tab:{name}")
            for number, table in enumerate(shown, 1)
        )
        head = r"% \usepackage{booktabs,longtable}"
        replace_file(latex, "\n\n".join([head, *bodies]).encode() + b"\n")
        paths = [markdown, latex]
        for picture in pictures:
            for suffix in formats:
                paths.append(folder / f"{name}-{picture}{suffix}")
                figure(results, paths[-1], picture)
    except OSError as error:
        raise HardnetError(f"{folder}: cannot write the report: {error}") from error
    return paths
