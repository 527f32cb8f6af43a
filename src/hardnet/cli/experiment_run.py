"""What the `hardnet experiment` commands share: the run, its progress bars, its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from hardnet.cli.training_bar import training_bar
from hardnet.errors import HardnetError, MissingExtraError

if TYPE_CHECKING:
    from hardnet.bench.experiments.grids import Grid
    from hardnet.bench.experiments.run import Event, Experiment, Tests
    from hardnet.learn.recipe import Recipe


@dataclass(frozen=True)
class Request:
    """The options of a command."""

    recipe: Path
    folder: Path
    budget: int
    cells: str
    seeds: int
    overrides: list[str] | None
    threads: int
    results: Path | None
    tests: Tests | None = None

    def tested(
        self, brown: list[Path] | None, hpatches: Path | None, pairs: int, strip: int
    ) -> Request:
        """The request with the sets to test on."""
        from hardnet.bench.experiments.run import Tests

        return replace(self, tests=Tests(tuple(brown or ()), hpatches, pairs, strip))


def run(request: Request, make: Callable[[Recipe], Grid]) -> None:
    """Run an experiment and show its results.

    Args:
        request: the options.
        make: the grid for the recipe that all cells share.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    from hardnet import provenance
    from hardnet.bench.experiments.run import Experiment
    from hardnet.bench.report import experiment as report
    from hardnet.learn.recipe import read_recipe

    assert request.tests is not None
    if request.threads:
        torch.set_num_threads(request.threads)
    base = read_recipe(request.recipe, [*(request.overrides or []), f"pairs={request.budget}"])
    grid = make(base)
    _refuse(request.overrides or [], grid)
    experiment = Experiment(grid, base, request.folder, request.tests, request.cells, request.seeds)
    console = Console(stderr=True)
    try:
        taken = _work(experiment, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command continues.")
        raise typer.Exit(130) from None
    origin = provenance.collect(provenance.command_line(), experiment.settings(), experiment.data)
    results = experiment.finish(origin, request.results)
    shown = Console()
    for table in report.tables(results)[:-2]:
        shown.print(table.rich())
    for line in report.claim_lines(results):
        shown.print(line, markup=False, highlight=False, soft_wrap=True)
    if taken:
        names = ", ".join(run.folder.name for run in taken)
        console.print(f"run by another process, which will add them: {escape(names)}")
    _draw(results, request.folder / f"{grid.name}.png", console)
    console.print(f"results: {escape(str(request.folder / 'results.json'))}", soft_wrap=True)


def _refuse(overrides: list[str], grid: Grid) -> None:
    """What the cells or the options set cannot be set for all."""
    theirs = {key for cell in grid.cells for key in cell.changes}
    for key in (text.split("=")[0] for text in overrides):
        if key == "pairs":
            raise HardnetError("--set pairs: the pairs of a cell are its --budget")
        if key == "epoch" and grid.name == "ablation":
            raise HardnetError("--set epoch: the ablation has --epochs instead")
        if key in theirs:
            raise HardnetError(f"--set {key}: this is what the cells of {grid.name} differ in")


def _work(experiment: Experiment, console: Console) -> list[Any]:
    """Run under two bars: the runs, and the steps of the present one."""
    total = len(experiment.runs)
    with training_bar(console, disable=not console.is_terminal) as bar:
        cells = bar.add_task(experiment.grid.name, total=total, info="cells")
        steps = bar.add_task("reading patches", total=None, info="")
        present = ""

        def show(event: Event) -> None:
            nonlocal present
            if event.name != present:
                present = event.name
                if not console.is_terminal:  # a log file gets one line per cell
                    console.print(f"{event.name}: {event.total} steps from {event.done}")
            bar.update(cells, completed=experiment.finished(), info="cells")
            bar.update(
                steps,
                description=escape(event.name),
                completed=event.done,
                total=event.total,
                info=escape(event.info),
            )

        taken = experiment.run(show, lambda k, n: bar.update(steps, completed=k, total=n))
        bar.update(cells, completed=experiment.finished())
    return taken


def _draw(results: dict[str, Any], path: Path, console: Console) -> None:
    """The figure, where matplotlib is installed: a long experiment must not end in an error."""
    from hardnet.bench.report import figure

    if find_spec("matplotlib") is None:
        console.print('no figure: pip install "hardnet[report]", then run again', markup=False)
        return
    figure(results, path)
    console.print(f"figure: {escape(str(path))}", soft_wrap=True)
