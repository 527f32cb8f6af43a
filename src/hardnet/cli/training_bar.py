"""The progress bar of long training: what, how far, how long, what is left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def training_bar(console: Console, disable: bool = False) -> Progress:
    """A bar whose tasks have the field ``info``, a word on the present state."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[info]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=disable,
    )
