"""Results files as tables (Markdown, LaTeX, terminal) and figures: no number is typed by hand.

Each kind of results has a module here with ``tables(results)``, the summary first, and
``figures(results)``, the main one first. A file may also bring tables of its own, under "tables":
the scripts of ``benchmarks/`` write such files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hardnet.bench.report import (
    brown,
    development,
    experiment,
    hpatches,
    pairs,
    retrieval,
    sfm,
    stereo,
    w1bs,
)
from hardnet.bench.report.style import Figures
from hardnet.bench.report.table import Results, Table
from hardnet.errors import HardnetError


class Kind(Protocol):
    """How results of one kind are shown."""

    def tables(self, results: Results) -> list[Table]:
        """The summary, then the details."""

    def figures(self, results: Results) -> Figures:
        """The figures that these results have, the main one first."""


KINDS: Mapping[str, Kind] = {
    "sfm": sfm,
    "pairs": pairs,
    "experiment": experiment,
    "brown": brown,
    "hpatches": hpatches,
    "stereo": stereo,
    "retrieval": retrieval,
    "w1bs": w1bs,
    "pose": development,
    "light": development,
    "ratio": development,
}


def read_results(path: Path) -> Results:
    """A results file that ``hardnet bench`` wrote."""
    try:
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
    return KINDS[results["kind"]].tables(results)


def figures(results: Results) -> list[str]:
    """The names of the figures that these results have."""
    return list(_figures(results))


def figure(results: Results, path: Path, which: str | None = None) -> None:
    """Draw a figure into ``path``, a .png or .svg file.

    Args:
        results: as ``read_results`` gives them.
        path: its folder is made if it is missing.
        which: one of ``figures(results)``; default: the first.
    """
    known = _figures(results)
    if not known:
        raise HardnetError(f"there is no figure of the {results['kind']} benchmark, only its table")
    if which is not None and which not in known:
        raise HardnetError(f"these results have the figures {', '.join(known)}, not {which!r}")
    known[which or next(iter(known))](path)


def _figures(results: Results) -> Figures:
    return KINDS[results["kind"]].figures(results) if results["kind"] in KINDS else {}
