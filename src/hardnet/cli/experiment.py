"""`hardnet experiment`: the paper's ablation, batch-size and recipe studies as one command each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import typer

from hardnet import provenance
from hardnet.bench import grids
from hardnet.bench.experiments import Event, Experiment, Tests
from hardnet.bench.grids import Grid
from hardnet.bench.report import experiment as report
from hardnet.bench.report import figure
from hardnet.bench.report.experiment import draw_training
from hardnet.cli.options import argument, group, option, reads_images
from hardnet.cli.output import Stage, console, say
from hardnet.errors import HardnetError, MissingExtraError, counted, install_command
from hardnet.learn.recipe import Recipe, read_recipe

app = group("experiment", "Repeat the paper's studies of the loss, the batch and the recipe.")


@dataclass(frozen=True)
class Study:
    """The options of all studies."""

    recipe: Path = argument("A recipe of `train`, the basis of all cells.")
    output: Path = option(..., "Folder of the experiment.", "--output", "-o")
    budget: int = option(100_000, "Pairs per cell; the lr reaches zero there.", min=1)
    brown: list[Path] | None = option(None, "Test FPR95 on this set; may be repeated.")
    hpatches: Path | None = option(None, "Test matching mAP on this set.")
    cells: str = option("", "Only these cells, separated by commas.")
    seeds: int = option(1, "Runs per cell; their range is reported.", min=1)
    test_pairs: int = option(0, "Pairs of each --brown set; 0 for all.", min=0)
    strip_patches: int = option(0, "Patches per --hpatches strip; 0 for all.", min=0)
    set_: list[str] | None = option(None, "Override a key of the recipe: key=value.", "--set")
    threads: int = option(0, "CPU threads; 0 for all cores.", min=0)
    results: Path | None = option(None, "Also write the results file here.")


@app.command()
@reads_images
def ablation(
    study: Study,
    epochs: int = option(10, "Epochs in the budget: how often classical mining mines.", min=1),
) -> None:
    """Table 2: sampling {random, classical, hardest} against loss, with and without CPR.

    Example: hardnet experiment ablation recipes/post-nips.yaml --set data=[sets/mine]
    --brown sets/test --hpatches sets/sequences --budget 50000 -o runs/ablation

    The same command continues a stopped one, and a second process shares the work.
    """

    def grid(base: Recipe) -> Grid:
        base.epoch = -(-base.pairs // epochs)
        return grids.ablation()

    run(study, grid)


@app.command()
@reads_images
def batch_size(
    study: Study,
    equal: Literal["pairs", "steps"] = option(
        "pairs", "pairs: as in the paper; steps: those of batch 512 for all."
    ),
) -> None:
    """Figure 3: batches of 16, 32, ... 2048 pairs.

    Example: hardnet experiment batch-size recipes/post-nips.yaml --set data=[sets/mine]
    --brown sets/test --budget 100000 -o runs/batch-size
    """
    run(study, lambda base: grids.batch_size(base.pairs, equal))


@app.command()
@reads_images
def recipes(study: Study) -> None:
    """Rows of Table 1: the NIPS and post-NIPS recipes, each with and without flip / rotate.

    Example: hardnet experiment recipes recipes/post-nips.yaml --set data=[sets/mine]
    --brown sets/test --budget 200000 -o runs/recipes
    """
    run(study, lambda base: grids.recipes())


@app.command()
def gradients(output: Path = option(..., "The figure, .png or .svg.", "--output", "-o")) -> None:
    """The paper's figure of gradient magnitudes, from our losses: positive against negative.

    Example: hardnet experiment gradients -o gradients.png
    """
    try:
        from hardnet.bench.report.experiment import draw_gradients

        draw_gradients(output)
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    print(output)


@app.command()
def curves(
    runs: list[Path] = argument("Folders of training runs."),
    output: Path = option(..., "The figure, .png or .svg.", "--output", "-o"),
) -> None:
    """Draw the training curves of runs: loss and held-out FPR95 against the pairs seen.

    Example: hardnet experiment curves runs/a runs/b -o curves.png
    """
    draw_training(runs, output)
    print(output)


def run(study: Study, make: Callable[[Recipe], Grid]) -> None:
    """Run an experiment and show its results; ``make`` gives the grid for the common recipe."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    if study.threads:
        torch.set_num_threads(study.threads)
    overrides = study.set_ or []
    base = read_recipe(study.recipe, [*overrides, f"pairs={study.budget}"])
    grid = make(base)
    _refuse(overrides, grid)
    brown = tuple(study.brown or ())
    tests = Tests(brown, study.hpatches, study.test_pairs, study.strip_patches)
    experiment = Experiment(grid, base, study.output, tests, study.cells, study.seeds)
    present = ""

    def show(event: Event) -> None:
        nonlocal present
        if event.name != present and not stage.console.is_terminal:  # a log gets a line per cell
            say(f"{event.name}: {counted(event.total, 'step')} from {event.done}", error=True)
        present = event.name
        cells = f"{grid.name}, {experiment.finished()} of {len(experiment.runs)} cells"
        stage(f"{cells}: {event.name}", event.done, event.total, event.info)

    try:
        with Stage() as stage:
            taken = experiment.run(show, partial(stage, "reading patches"))
    except KeyboardInterrupt:
        say("stopped; the same command continues", error=True)
        raise typer.Exit(130) from None
    origin = provenance.collect(provenance.command_line(), experiment.settings(), experiment.data)
    results = experiment.finish(origin, study.results)
    for table in report.tables(results)[:-1]:
        console().print(table.rich())
    for line in report.claim_lines(results):
        say(line)
    if taken:
        names = ", ".join(run.folder.name for run in taken)
        say(f"run by another process, which will add them: {names}", error=True)
    if find_spec("matplotlib") is None:  # a long experiment must not end in an error
        say(f"no figure: {install_command('report')}, then run again", error=True)
    else:
        figure(results, study.output / f"{grid.name}.png")
        say(f"figure: {study.output / f'{grid.name}.png'}", error=True)
    say(f"results: {study.output / 'results.json'}", error=True)


def _refuse(overrides: list[str], grid: Grid) -> None:
    theirs = {key for cell in grid.cells for key in cell.changes}
    for key in (text.split("=")[0] for text in overrides):
        if key == "pairs":
            raise HardnetError("--set pairs: the pairs of a cell are its --budget")
        if key == "epoch" and grid.name == "ablation":
            raise HardnetError("--set epoch: the ablation has --epochs instead")
        if key in theirs:
            raise HardnetError(f"--set {key}: this is what the cells of {grid.name} differ in")
