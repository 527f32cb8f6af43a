"""What the `hardnet data build` commands say: progress, warnings, counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from hardnet.patchsets.build.from_colmap import ColmapReport


def warn(console: Console, name: str, reason: str) -> None:
    """Say that something was left out, and why."""
    console.print(f"[yellow]skipped[/] {escape(name)}: {escape(reason)}", soft_wrap=True)


def say(console: Console, as_json: bool, counts: Mapping[str, Any], line: str) -> None:
    """The result: counts for machines on standard output, or a line for people."""
    if as_json:
        print(json.dumps(counts))
    else:
        console.print(escape(line), soft_wrap=True)


def say_points(
    console: Console, as_json: bool, output: Path, report: ColmapReport, failed: Mapping[str, str]
) -> None:
    """The result of a build from COLMAP models."""
    counts = {
        "set": str(output),
        "points": report.points,
        "patches": report.patches,
        "models": report.models,
        "skipped": dict(failed),
    }
    line = f"{report.patches} patches of {report.points} points from {len(report.models)} models"
    say(console, as_json, counts, f"{output}: {line}; {len(failed)} scenes skipped")
