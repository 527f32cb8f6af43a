"""Results files in, reports out: tables and figures of a file in one folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hardnet.bench.report.canvas import FORMATS
from hardnet.bench.report.kinds import KINDS, figure, figures, tables
from hardnet.errors import HardnetError, MissingExtraError

_LATEX_HEAD = r"% \usepackage{booktabs,longtable}"


def read_results(path: Path) -> dict[str, Any]:
    """A results file that ``hardnet bench`` wrote."""
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HardnetError(f"{path}: cannot read results: {reason}") from error
    if not isinstance(results, dict) or results.get("kind") not in KINDS:
        raise HardnetError(f"{path}: not a results file of {', '.join(KINDS)}")
    return results


def write_report(
    results: Mapping[str, Any],
    folder: Path,
    name: str | None = None,
    formats: Collection[str] = FORMATS,
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
        markdown.write_text(f"{text}\n{_origin(results)}", encoding="utf-8")
        bodies = (
            table.latex(f"tab:{name}-{number}" if number > 1 else f"tab:{name}")
            for number, table in enumerate(shown, 1)
        )
        latex.write_text("\n\n".join([_LATEX_HEAD, *bodies]) + "\n", encoding="utf-8")
        paths = [markdown, latex]
        for picture in pictures:
            for suffix in formats:
                paths.append(folder / f"{name}-{picture}{suffix}")
                figure(results, paths[-1], picture)
    except OSError as error:
        raise HardnetError(f"{folder}: cannot write the report: {error}") from error
    return paths


def _origin(results: Mapping[str, Any]) -> str:
    """How the numbers were made, where the file says it."""
    origin = results.get("provenance")
    if not origin:
        return ""
    revision = origin.get("revision")
    version = f"hardnet {origin['versions'].get('hardnet', '')}"
    version += f" at revision {revision}" if revision else ""
    return f"\n`{origin['command']}`, {version}, {origin['date']}.\n"
