"""The `hardnet` command: one file per subcommand, imported when it is called."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import Any

import typer
from rich.markup import escape

from hardnet.errors import HardnetError, printable

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

COMMANDS = {
    "match": "Match two photos and verify the matches geometrically.",
    "extract": "Describe photos: an HDF5 file in the layout of hloc, or a folder of npz files.",
    "search": "Find the photos of an index that show the same object or place as the query.",
    "groups": "Find copies, crops, rotated and mirrored photos, bursts, panoramas and scenes.",
    "serve": "Serve a page in the browser: match two photos, search an index, see its groups.",
    "colmap": "Reconstruct a folder of photos with COLMAP: features, matches, database, 3D model.",
    "train": "Train a descriptor; interrupt with ctrl-C and continue with --resume.",
    "export": "Write a trained network as ONNX (for use) and safetensors (for training).",
    "index": "Build, change and inspect an index of photos.",
    "data": "Build patch sets and look at them.",
    "bench": "Compare descriptors on real patches and images.",
    "experiment": "Repeat the paper's studies of the loss, the batch and the recipe.",
}
"""The first line of each help text; the command `match` is in ``hardnet.cli.match``, and so on."""


class LazyGroup(typer.core.TyperGroup):
    """All commands by name; a command's module is imported when the command is needed.

    The list of commands does not wait for the imports of each.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, line in COMMANDS.items():
            self.add_command(typer.core.TyperCommand(name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> None:
        """Replace the first line of a command by the command itself, if it exists."""
        if name not in COMMANDS:
            return
        module = import_module(f"hardnet.cli.{name}")
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False)
            app.command(name)(getattr(module, name))
        _literal_help(app)
        self.add_command(typer.main.get_command(app), name)


def _literal_help(app: typer.Typer) -> None:
    """Show brackets in the help of commands as they are: ``data=[sets/mine]`` has no markup."""
    for command in app.registered_commands:
        command.help = escape((command.callback and command.callback.__doc__) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _literal_help(group.typer_instance)


app = typer.Typer(
    name="hardnet",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from hardnet import __version__

        print(f"hardnet {__version__}")
        raise typer.Exit


@app.callback()
def hardnet(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Learned local image descriptors: match and find photos, feed COLMAP, train, benchmark."""


@cache
def command_line() -> LazyGroup:
    """All commands, built once for a program or a test that runs several."""
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    return group


def main() -> None:
    """Run the command line; what the user can fix becomes one clear line and exit code 1."""
    try:
        _refuse_empty(sys.argv[1:])
        if sys.argv[1:2] == ["match"]:
            _one_thread_per_photo()
        command_line()()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except HardnetError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _one_thread_per_photo() -> None:
    """Before numpy and OpenCV are imported: each of two photos has a core to itself.

    On two cores the threads that both libraries start would only compete with each other, and the
    products of one pair of photos are too small for several.
    """
    from hardnet.threads import usable_cores

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if usable_cores() <= 2:
        os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")


def _refuse_empty(arguments: list[str]) -> None:
    """Refuse an empty argument, as of an unset variable: as a path it would be this folder."""
    for before, argument in zip(["hardnet", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            what = argument.rstrip("=") or f"the argument after {before}"
            raise HardnetError(f"{what} is empty: is a variable unset?")


def _fail(message: str) -> None:
    from hardnet.cli.output import console

    # Escaped: a file called "photo [1].jpg" is not markup, and no name may control the terminal.
    line = f"[bold red]error:[/] {escape(printable(message))}"
    console(stderr=True).print(line, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
