"""The `hardnet` command: one file per subcommand, gathered here."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from hardnet.cli import (
    bench,
    colmap,
    data,
    experiment,
    export,
    extract,
    index,
    match,
    search,
    train,
)
from hardnet.errors import HardnetError

app = typer.Typer(
    name="hardnet",
    help="Learned local image descriptors: match and find photos, feed COLMAP, train, benchmark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (match, extract, index, search, colmap, train, data, export, bench, experiment):
    command.register(app)


def main() -> None:
    """Run the command line; what the user can fix becomes one clear line and exit code 1."""
    try:
        _refuse_empty(sys.argv[1:])
        app()
    except HardnetError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _refuse_empty(arguments: list[str]) -> None:
    """An empty argument, as of an unset variable, is a mistake: as a path it is this folder."""
    for before, argument in zip(["hardnet", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            what = argument.rstrip("=") or f"the argument after {before}"
            raise HardnetError(f"{what} is empty: is a variable unset?")


def _fail(message: str) -> None:
    # Escaped: a file called "photo [1].jpg" is not markup.
    line = f"[bold red]error:[/] {escape(message)}"
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
