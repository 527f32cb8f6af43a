"""What all `hardnet bench` commands share: the progress bar, the results file, the tables."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hardnet.descriptors import names
from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from hardnet.descriptors import Spec

Descriptors = Annotated[
    str,
    typer.Option(
        help=f"Separated by commas: a name ({', '.join(names())}), a weights file, "
        "MODULE:FUNCTION, or LABEL=any of these; LABEL[SET]=... says which Brown set it was "
        "trained on. Ratios refer to rootsift."
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the numbers and their origin as JSON.")
]
StoreFolder = Annotated[
    Path | None,
    typer.Option(help="Where descriptors are kept for the next run [the user's cache]."),
]
RIVALS = "hardnet,rootsift,sift"
"""Whom to compare by default."""
Json = Annotated[bool, typer.Option("--json", help="Print the JSON instead of tables.")]


def check_output(output: Path | None) -> None:
    """Fail now, not after the work, if the results file could not be written."""
    if output is None:
        return
    if output.is_dir():
        raise HardnetError(f"{output} is a folder: name a file for the results")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise HardnetError(f"{output} cannot be written: {error.strerror}") from error


def labels(specs: Sequence[Spec]) -> list[str]:
    """The descriptors as the results file names them."""
    return [f"{s.label}[{s.trained}]" if s.trained else s.label for s in specs]


def detector_names(text: str) -> list[str]:
    """Names, and ``affnet:A.pth,O.pth`` whose comma belongs to it, checked before any work."""
    from hardnet import detectors

    names: list[str] = []
    for word in text.split(","):
        if names and names[-1].startswith("affnet:") and word.endswith(".pth"):
            names[-1] += f",{word}"
        else:
            names.append(word.strip())
    for name in names:
        detectors.load(name)
    return list(dict.fromkeys(names))


def finish(
    body: Mapping[str, Any],
    settings: Mapping[str, Any],
    data: Sequence[Path],
    output: Path | None,
    json_: bool,
) -> None:
    """Write the results file and show the results."""
    from hardnet import provenance
    from hardnet.bench import report

    results = {**body, "provenance": provenance.collect(provenance.command_line(), settings, data)}
    text = json.dumps(results, indent=1)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n")
    if json_:
        print(text)
        return
    console = Console()
    summary, *details = report.tables(results)
    console.print(summary.rich())
    if output is not None and details:
        advice = f"more tables and figures: hardnet bench report {output} -o FOLDER"
        console.print(advice, markup=False, highlight=False)
