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
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from hardnet.errors import HardnetError, printable

EVERY = 30.0
"""Seconds between two lines of progress where there is no bar."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Where commands print; ``:x:`` in a file name does not become an emoji."""
    return Console(stderr=stderr, quiet=quiet, emoji=False, highlight=False)


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


def in_words(seconds: float) -> str:
    """``42 s``, ``3 min 5 s``, ``25 min``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 10:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _times(elapsed: float, left: float | None) -> str:
    return f"{in_words(elapsed)} elapsed" + (f", about {in_words(left)} left" if left else "")


class Elapsed(ProgressColumn):
    """Elapsed and remaining time of a task: ``25 s elapsed, about 3 min 10 s left``."""

    def render(self, task: Task) -> Text:
        return Text(_times(task.elapsed or 0.0, task.fields["left"]))


class Stage:
    """Progress on stderr: ``with Stage() as stage: stage("matching", done, total)``.

    A bar in a terminal; elsewhere, as in a log file, an occasional line. If the command
    ``resumes``, Ctrl-C prints that running it again continues.
    """

    def __init__(
        self, output: Console | None = None, every: float = EVERY, resumes: bool = False
    ) -> None:
        self.console = output or console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[info]}", markup=False),
            Elapsed(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None, left=None, info="")
        self._every, self._resumes, self._what, self._first = every, resumes, "", 0
        self._start = self._since = self._said = perf_counter()

    def __enter__(self) -> Stage:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if self._resumes and kind is not None and issubclass(kind, KeyboardInterrupt):
            self.say("stopped: finished work is kept; run the same command to resume")

    def __call__(self, what: str, done: int, total: int, info: str = "") -> None:
        """Show that ``done`` of ``total`` steps of ``what`` are finished."""
        now, what = perf_counter(), printable(what)
        if what != self._what:  # a new kind of step takes a different time
            self._what, self._since, self._first = what, now, done
        steps = done - self._first
        left = (now - self._since) / steps * (total - done) if steps > 0 else None
        self._bar.update(
            self._task, description=what, completed=done, total=total, left=left, info=info
        )
        if not self.console.is_terminal and now - self._said >= self._every:
            self._said = now
            parts = (f"{what}: {done} of {total}", info, _times(now - self._start, left))
            self.say(", ".join(part for part in parts if part))

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        self.console.print(line, soft_wrap=True, markup=False)

    def warn(self, label: str, text: str) -> None:
        """Print one line above the bar, with a label that stands out."""
        self.console.print(f"[yellow]{label}[/] {escape(printable(text))}", soft_wrap=True)

    def finish(
        self,
        as_json: bool,
        facts: Mapping[str, Any],
        skipped: Mapping[str, str],
        done: str,
        **more: int,
    ) -> None:
        """End a command on photos: print what is ``done``, how long it took, what was ``skipped``.

        Of ``more``, the line for people has those counts that are not 0. The exit code is 1 if
        photos were skipped.
        """
        seconds = perf_counter() - self._start
        for reason in skipped.values():
            say(f"skipped: {reason}", error=True)
        counts = {**more, "skipped": len(skipped)}
        parts = [f"{count} {what.replace('_', ' ')}" for what, count in counts.items() if count]
        listed = [{"image": name, "reason": reason} for name, reason in skipped.items()]
        facts = {**facts, "skipped": listed, "seconds": round(seconds, 3)}
        answer(as_json, facts, ", ".join([f"{done} in {seconds:.1f} s", *parts]))
        if skipped:
            raise typer.Exit(1)

    def counter(self, what: str, total: int) -> Callable[[], None]:
        """A function to call after each of ``total`` steps of ``what``."""
        steps = count(1)
        self(what, 0, total)
        return lambda: self(what, next(steps), total)
