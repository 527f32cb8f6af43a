"""Lines for the terminal that hold names and numbers of users: never folded, never decorated."""

from __future__ import annotations

from rich.console import Console


def say(line: str, *, error: bool = False) -> None:
    """Print one line as it is, on stdout or stderr."""
    console = Console(stderr=error)
    console.print(line, soft_wrap=True, highlight=False, markup=False)
