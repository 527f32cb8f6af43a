"""The `hardnet` command: one file per subcommand, gathered here."""

from __future__ import annotations

import sys
from functools import cache

import typer
from rich.markup import escape

from hardnet.cli import (
    bench,
    colmap,
    data,
    experiment,
    export,
    extract,
    groups,
    index,
    match,
    search,
    serve,
    train,
)
from hardnet.cli.options import option
from hardnet.cli.output import console
from hardnet.errors import HardnetError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from hardnet import __version__

        print(f"hardnet {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="hardnet",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback()
def hardnet(
    version: bool = option(
        False, "Show the version and exit.", "--version", callback=_show_version, is_eager=True
    ),
) -> None:
    """Learned local image descriptors: match and find photos, feed COLMAP, train, benchmark."""


for command in (
    match.match,
    extract.extract,
    search.search,
    groups.groups,
    serve.serve,
    colmap.colmap,
    train.train,
    export.export,
):
    app.command()(command)
for group in (index.app, data.app, bench.app, experiment.app):
    app.add_typer(group)


def _literal_help(app: typer.Typer) -> None:
    """Let brackets in the help of commands be brackets: ``data=[sets/mine]`` has no markup."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.help = escape(command.callback.__doc__ or "")
    for group in app.registered_groups:
        assert group.typer_instance is not None
        _literal_help(group.typer_instance)


_literal_help(app)


@cache
def command_line() -> typer.core.TyperGroup:
    """All commands, made once: a program or a test that runs several need not wait again."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def main() -> None:
    """Run the command line; what the user can fix becomes one clear line and exit code 1."""
    try:
        _refuse_empty(sys.argv[1:])
        command_line()()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
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
    console(stderr=True).print(line, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
