"""Output of commands: plain lines, and progress on stderr.

Lines with file names or numbers are never wrapped or styled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from hardnet.errors import HardnetError, Steps, printable
from hardnet.errors import Progress as Told

EVERY = 30.0
"""Seconds between two lines of progress where there is no bar."""


def console(*, stderr: bool = False) -> Console:
    """Where commands print; ``:x:`` in a file name does not become an emoji."""
    return Console(stderr=stderr, emoji=False, highlight=False)


def refuse_inputs(output: Path | None, inputs: Iterable[Path]) -> None:
    """Raise, before any work, if the file to write is one of the files to read, or a link to it."""
    if output is None or not output.exists():
        return
    for path in inputs:
        with suppress(OSError):
            if output.samefile(path):
                raise HardnetError(
                    f"{output} is an input of this command: choose another name for the output"
                )


def say(line: str, *, error: bool = False) -> None:
    """Print one line on stdout or stderr, without markup; control characters are escaped."""
    console(stderr=error).print(printable(line), soft_wrap=True, markup=False)


def answer(as_json: bool, facts: Mapping[str, Any], line: str) -> None:
    """Print the result of a command: a JSON object, or a line for people."""
    if as_json:
        print(json.dumps(facts))
    else:
        say(line)


def show(rows: Iterable[tuple[str, object]], bold: Collection[str] = ()) -> None:
    """Print facts, one name and value per line, with the values of ``bold`` in bold."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, value in rows:
        text = printable(str(value))
        table.add_row(Text(printable(name)), Text(text, style="bold" if name in bold else ""))
    console().print(table)


def finish(
    as_json: bool,
    facts: Mapping[str, Any],
    skipped: Mapping[str, str],
    start: float,
    done: str,
    more: Mapping[str, Any],
) -> None:
    """End a command on photos that began at ``start``: print its answer and what was ``skipped``.

    The line for people says what is ``done``, how long it took, and those texts of ``more`` whose
    value is not 0 or empty. The exit code is 1 if photos were skipped.
    """
    seconds = perf_counter() - start
    for reason in skipped.values():
        say(f"skipped: {reason}", error=True)
    parts = [text for text, count in more.items() if count]
    parts += [f"{len(skipped)} skipped"] if skipped else []
    line = ", ".join([f"{done} in {seconds:.1f} s", *parts])
    answer(as_json, {**facts, "seconds": round(seconds, 3)}, line)
    if skipped:
        raise typer.Exit(1)


def in_words(seconds: float) -> str:
    """``42 s``, ``3 min 5 s``, ``25 min``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 10:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class Elapsed(ProgressColumn):
    """Elapsed and remaining time of a task, in words."""

    def render(self, task: Task) -> Text:
        """``25 s elapsed, about 3 min 10 s left``."""
        left = task.fields.get("left", task.time_remaining)
        return Text(_times(task.elapsed or 0.0, left))


def _times(elapsed: float, left: float | None) -> str:
    return f"{in_words(elapsed)} elapsed" + (f", about {in_words(left)} left" if left else "")


class Stage:
    """Progress on stderr: ``with Stage() as stage: stage("matching", done, total)``.

    A bar in a terminal; elsewhere, as in a log file, an occasional line. If the command
    ``resumes``, Ctrl-C prints that running it again continues.
    """

    def __init__(
        self, output: Console | None = None, every: float = EVERY, resumes: bool = False
    ) -> None:
        self._resumes = resumes
        self.console = output or console(stderr=True)
        plain = not self.console.is_terminal
        self._bar = _bar(MofNCompleteColumn(), self.console, transient=True, disable=plain)
        self._task = self._bar.add_task("starting", total=None, left=None)
        self._line, self._what, self._first = now_and_then(self.console, every), "", 0
        self._start = self._since = perf_counter()

    def __enter__(self) -> Stage:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if self._resumes and kind is not None and issubclass(kind, KeyboardInterrupt):
            line = "stopped: finished work is kept; run the same command to resume"
            self.console.print(line, soft_wrap=True, markup=False)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of ``what`` are finished."""
        now, what = perf_counter(), printable(what)
        if what != self._what:  # a new kind of step takes a different time
            self._what, self._since, self._first = what, now, done
        steps = done - self._first
        left = (now - self._since) / steps * (total - done) if steps > 0 else None
        self._bar.update(self._task, description=what, completed=done, total=total, left=left)
        self._line(f"{what}: {done} of {total}, {_times(now - self._start, left)}")

    def part(self, what: str) -> Steps:
        """A function that shows (done, total) of ``what``."""
        return lambda done, total: self(what, done, total)

    def counter(self, what: str, total: int) -> Callable[[], None]:
        """A function to call after each of ``total`` steps of ``what``."""
        steps = count(1)
        self(what, 0, total)
        return lambda: self(what, next(steps), total)

    def within(self, where: str) -> Told:
        """A function that shows (what, done, total), with ``where`` in front."""
        return lambda what, done, total: self(f"{where}: {what}", done, total)


def now_and_then(output: Console, every: float = EVERY) -> Callable[[str], None]:
    """A function that prints a line at most ``every`` seconds; none in a terminal with a bar."""
    said = perf_counter()

    def line(text: str) -> None:
        nonlocal said
        if not output.is_terminal and perf_counter() - said >= every:
            said = perf_counter()
            output.print(text, soft_wrap=True, markup=False)

    return line


def training_bar(output: Console, disable: bool = False) -> Progress:
    """A bar whose tasks have the field ``info``, a short text on the current state."""
    info = TextColumn("{task.completed}/{task.total} {task.fields[info]}", markup=False)
    return _bar(info, output, disable=disable)


def _bar(numbers: ProgressColumn, output: Console, **options: Any) -> Progress:
    what = TextColumn("{task.description}", markup=False)
    return Progress(what, BarColumn(), numbers, Elapsed(), console=output, **options)
