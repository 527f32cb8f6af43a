"""What commands say: plain lines, and progress bars on stderr.

Lines that hold names and numbers of users are never folded and never decorated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def say(line: str, *, error: bool = False) -> None:
    """Print one line as it is, on stdout or stderr."""
    console = Console(stderr=error)
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class Stage:
    """A progress bar on stderr: ``with Stage() as stage: stage("matching", done, total)``."""

    def __init__(self, console: Console | None = None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        console = console or Console(stderr=True)
        # In a log file a bar would be a line of rubbish before the error it ends with.
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Stage:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of ``what`` are finished."""
        self._bar.update(self._task, description=escape(what), completed=done, total=total)

    def part(self, what: str) -> Callable[[int, int], None]:
        """A function that shows (done, total) of ``what``."""
        return lambda done, total: self(what, done, total)

    def counter(self, what: str, total: int) -> Callable[[], None]:
        """A function that is called after each of ``total`` steps of ``what``."""
        steps = count(1)
        self(what, 0, total)
        return lambda: self(what, next(steps), total)

    def within(self, where: str) -> Callable[[str, int, int], None]:
        """A function that shows (what, done, total), with ``where`` in front."""
        return lambda what, done, total: self(f"{where}: {what}", done, total)


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
