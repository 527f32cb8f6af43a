"""`hardnet bench`: compare descriptors on image sequences with known homographies."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor
    from hardnet.patchsets.sequences import Sequence

Data = Annotated[
    list[Path],
    typer.Argument(help="Folders of sequences (N.png, H_1_k) or of pairs (1/, 2/, h/)."),
]
Descriptors = Annotated[
    str, typer.Option(help="Names or weight files, separated by commas; rootsift gives ratios.")
]
Sequences = Annotated[str | None, typer.Option(help="Only these, by name, separated by commas.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the numbers and their origin as JSON.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    bench = typer.Typer(help="Compare descriptors on real images.", no_args_is_help=True)
    bench.command("patches")(patches)
    bench.command("pairs")(pairs)
    bench.command("table")(table)
    bench.command("refresh")(refresh)
    app.add_typer(bench, name="bench")


def patches(
    data: Data,
    output: Output = None,
    descriptors: Descriptors = "hardnet,rootsift",
    sequences: Sequences = None,
    frames: Annotated[int, typer.Option(min=2, help="Most patches per sequence.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the geometric noise.")] = 0,
    json_: Json = False,
) -> None:
    """Matching mAP on patches of the same spot, with HPatches' easy, hard and tough noise.

    Example: hardnet bench patches data/oxford-affine -o results/sequence_patches.json
    """
    from hardnet.bench import sequence_patches

    chosen, contestants = _choose(data, sequences, descriptors)
    with _progress(len(chosen) * len(contestants)) as advance:
        rows = sequence_patches.compare(chosen, contestants, frames, seed, advance)
    settings = {
        "descriptors": list(contestants),
        "sequences": [s.name for s in chosen],
        "frames": frames,
        "seed": seed,
        "noise": {
            "shift": sequence_patches.SHIFT,
            "log2_scale": sequence_patches.ZOOM,
            "degrees": sequence_patches.TURN,
            "log2_anisotropy": sequence_patches.STRETCH,
            "levels": dict(sequence_patches.NOISE_LEVELS),
        },
    }
    body = {
        "kind": "patches",
        "mean": sequence_patches.summarise(rows, "noise"),
        "mean_per_sequence": sequence_patches.summarise(rows, "sequence"),
        "rows": rows,
    }
    _finish(body, settings, data, output, json_)


def pairs(
    data: Data,
    output: Output = None,
    descriptors: Descriptors = "hardnet,rootsift",
    sequences: Sequences = None,
    keypoints: Annotated[int, typer.Option(min=1, help="Budget per image.")] = 2048,
    json_: Json = False,
) -> None:
    """Correct matches and verified image pairs, in the pipeline of `hardnet match`.

    Example: hardnet bench pairs data/oxford-affine data/evd -o results/match_real_pairs.json
    """
    from hardnet.bench import real_pairs

    chosen, contestants = _choose(data, sequences, descriptors)
    with _progress(sum(len(s.targets) for s in chosen) * len(contestants)) as advance:
        rows = real_pairs.compare(chosen, contestants, keypoints, advance)
    settings = {
        "descriptors": list(contestants),
        "sequences": [s.name for s in chosen],
        "keypoints": keypoints,
        "model": "homography",
    }
    body = {
        "kind": "pairs",
        "rules": real_pairs.RULES,
        "total": real_pairs.summarise(rows, "sequence"),
        "rows": rows,
    }
    _finish(body, settings, data, output, json_)


def table(
    results: Annotated[Path, typer.Argument(help="A file that `hardnet bench` wrote.")],
    figure: Annotated[Path | None, typer.Option(help="Also draw bars per sequence here.")] = None,
) -> None:
    """Print a results file as Markdown tables.

    Example: hardnet bench table results/match_real_pairs.json --figure docs/real_pairs.png
    """
    from hardnet.bench import report

    content = report.read_results(results)
    print("\n\n".join(t.markdown() for t in report.tables(content)))
    if figure is not None:
        report.figure(content, figure)


def refresh(
    documents: Annotated[list[Path], typer.Argument(help="Markdown files.")],
) -> None:
    """Renew the tables of Markdown files from the results files they name.

    Example: hardnet bench refresh README.md docs/results.md
    """
    from hardnet.bench import document

    for path in documents:
        try:
            text = path.read_text()
        except OSError as error:
            raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
        path.write_text(document.refresh(text, Path.cwd()))


def _choose(
    data: list[Path], sequences: str | None, descriptors: str
) -> tuple[list[Sequence], dict[str, Descriptor]]:
    """The sequences and descriptors a command line asks for."""
    from hardnet.descriptors import load
    from hardnet.patchsets.sequences import find_sequences

    chosen = find_sequences(data, None if sequences is None else sequences.split(","))
    contestants: dict[str, Descriptor] = {}
    for spec in descriptors.split(","):
        # A file is called by its name: results travel, the folders of this machine do not.
        label = Path(spec).name
        if label in contestants:
            raise HardnetError(f"two descriptors are called {label!r}: rename one of the files")
        contestants[label] = load(spec)
    return chosen, contestants


def _finish(
    body: Mapping[str, Any],
    settings: Mapping[str, Any],
    data: list[Path],
    output: Path | None,
    json_: bool,
) -> None:
    """Write the results file and show the results."""
    from hardnet.bench import provenance, report

    results = {**body, "provenance": provenance.collect(_command(), settings, data)}
    text = json.dumps(results, indent=1)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n")
    if json_:
        print(text)
        return
    console = Console()
    for each in report.tables(results):
        shown = RichTable(title=each.title, title_justify="left")
        for i, column in enumerate(each.columns):
            shown.add_column(column, justify="right" if i else "left", no_wrap=i == 0)
        for row in each.rows:
            shown.add_row(*(cell.replace("**", "") for cell in row))
        console.print(shown)


def _command() -> str:
    """The command line, without the folders of this machine."""
    words = ["hardnet", *sys.argv[1:]]
    return shlex.join(
        ",".join(Path(p).name if p.startswith("/") else p for p in word.split(","))
        for word in words
    )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, and the function that advances it."""
    columns = (TextColumn("bench"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("bench", total=total)
        yield lambda: bar.advance(task)
