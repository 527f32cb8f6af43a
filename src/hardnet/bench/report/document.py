"""Documents with tables and figures of results: a report in a folder, slots in a Markdown file.

A Markdown file says where a table goes:

    <!-- summary results/match_real_pairs.json -->
    <!-- end -->

``summary`` asks for the first table of the results file, ``tables`` for all of them, ``table 3``
for the third, ``details`` for all but the first, folded. What stands between the two lines is
replaced; the path is relative to the root of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from hardnet.bench.report import figure, figures, read_results, tables
from hardnet.bench.report.style import FORMATS
from hardnet.bench.report.table import Results, Table
from hardnet.errors import HardnetError, MissingExtraError

_SLOT = re.compile(
    r"(<!-- (summary|tables|details|table (\d+)) (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL
)


def refresh(text: str, root: Path) -> str:
    """``text`` with every table as its results file has it now."""

    def fill(slot: re.Match[str]) -> str:
        opening, what, number, path, _, closing = slot.groups()
        found = tables(read_results(root / path))
        if what == "details":
            shown = _folded(found[1:])
        else:
            chosen = (
                found
                if what == "tables"
                else [_pick(found, 1 if what == "summary" else int(number), path)]
            )
            shown = _joined(chosen)
        return opening + shown + closing

    return _SLOT.sub(fill, text)


def _joined(found: list[Table]) -> str:
    return "".join(table.markdown() + "\n\n" for table in found)


def _folded(found: list[Table]) -> str:
    """Each table under its title, to be opened by a click."""
    parts = []
    for table in found:
        parts.append(f"<details><summary>{table.title}</summary>\n\n")
        parts.append(table.markdown() + "\n\n</details>\n\n")
    return "".join(parts)


def _pick(found: list[Table], number: int, path: str) -> Table:
    if not 1 <= number <= len(found):
        raise HardnetError(f"{path} has tables 1 to {len(found)}, not {number}")
    return found[number - 1]


def write_report(
    results: Results, folder: Path, name: str | None = None, formats: Collection[str] = FORMATS
) -> list[Path]:
    """Write the tables as Markdown and LaTeX and all figures into ``folder``.

    Args:
        results: as ``read_results`` gives them.
        folder: made if it is missing.
        name: of the files, NAME.md, NAME.tex, NAME-FIGURE.png; default: the kind of the results.
        formats: of the figures.

    Returns:
        The files, tables first.
    """
    if find_spec("matplotlib") is None:  # before anything is written
        raise MissingExtraError("matplotlib", "report")
    name = name or str(results["kind"])
    shown, pictures = tables(results), figures(results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown, latex = folder / f"{name}.md", folder / f"{name}.tex"
        links = [f"![{picture}]({name}-{picture}{FORMATS[0]})" for picture in pictures]
        text = "\n\n".join([f"# {name}", *links, *(table.markdown() for table in shown)])
        markdown.write_text(f"{text}\n{_provenance(results)}", encoding="utf-8")
        bodies = (
            table.latex(f"tab:{name}-{number}" if number > 1 else f"tab:{name}")
            for number, table in enumerate(shown, 1)
        )
        head = r"% \usepackage{booktabs,longtable}"
        latex.write_text("\n\n".join([head, *bodies]) + "\n", encoding="utf-8")
        paths = [markdown, latex]
        for picture in pictures:
            for suffix in formats:
                paths.append(folder / f"{name}-{picture}{suffix}")
                figure(results, paths[-1], picture)
    except OSError as error:
        raise HardnetError(f"{folder}: cannot write the report: {error}") from error
    return paths


def _provenance(results: Results) -> str:
    """How the numbers were made, where the file says it."""
    made = results.get("provenance")
    if not made:
        return ""
    revision = made.get("revision")
    version = f"hardnet {made['versions'].get('hardnet', '')}"
    version += f" at revision {revision}" if revision else ""
    return f"\n`{made['command']}`, {version}, {made['date']}.\n"
