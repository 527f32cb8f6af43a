"""`hardnet experiment`: the paper's ablation, batch-size and recipe studies as one command each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hardnet.cli.options import reads_images
from hardnet.cli.output import training_bar
from hardnet.errors import HardnetError, MissingExtraError

if TYPE_CHECKING:
    from hardnet.bench.experiments.grids import Grid
    from hardnet.bench.experiments.run import Event, Experiment, Tests
    from hardnet.learn.recipe import Recipe


RecipeFile = Annotated[Path, typer.Argument(help="What all cells share: a recipe of `train`.")]
Folder = Annotated[Path, typer.Option("--output", "-o", help="Folder of the experiment.")]
Budget = Annotated[int, typer.Option(min=1, help="Pairs per cell; the lr reaches zero there.")]
Browns = Annotated[
    list[Path] | None, typer.Option("--brown", help="Test FPR95 on this set; may be repeated.")
]
HPatches = Annotated[Path | None, typer.Option("--hpatches", help="Test matching mAP on this set.")]
TestPairs = Annotated[int, typer.Option(min=0, help="Pairs of each --brown set; 0 for all.")]
Strip = Annotated[
    int, typer.Option("--strip-patches", min=0, help="Patches per --hpatches strip; 0 for all.")
]
Cells = Annotated[str, typer.Option(help="Only these cells, separated by commas.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs per cell; their range is reported.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the recipe: key=value.")
]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0 for all cores.")]
Results = Annotated[
    Path | None, typer.Option("--results", help="Also write the results file here.")
]


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    group = typer.Typer(help="Repeat the paper's studies of the loss, the batch and the recipe.")
    group.command("ablation")(reads_images(ablation))
    group.command("batch-size")(reads_images(batch_size))
    group.command("recipes")(reads_images(recipes))
    group.command("gradients")(reads_images(gradients))
    group.command("curves")(curves)
    app.add_typer(group, name="experiment", no_args_is_help=True)


def ablation(
    recipe: RecipeFile,
    output: Folder,
    budget: Budget = 100_000,
    brown: Browns = None,
    hpatches: HPatches = None,
    cells: Cells = "",
    seeds: Seeds = 1,
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs in the budget: how often classical mining mines.")
    ] = 10,
    test_pairs: TestPairs = 0,
    strip_patches: Strip = 0,
    set_: Set = None,
    threads: Threads = 0,
    results: Results = None,
) -> None:
    """Table 2: sampling {random, classical, hardest} against loss, with and without CPR.

    Example: hardnet experiment ablation recipes/post-nips.yaml --set data=[sets/mine]
    --brown sets/test --hpatches sets/sequences --budget 50000 -o runs/ablation

    The same command continues a stopped one, and a second process shares the work.
    """
    from hardnet.bench.experiments import grids

    def grid(base: Recipe) -> Grid:
        base.epoch = -(-base.pairs // epochs)
        return grids.ablation()

    request = Request(recipe, output, budget, cells, seeds, set_, threads, results)
    run(request.tested(brown, hpatches, test_pairs, strip_patches), grid)


def batch_size(
    recipe: RecipeFile,
    output: Folder,
    budget: Budget = 100_000,
    brown: Browns = None,
    hpatches: HPatches = None,
    cells: Cells = "",
    seeds: Seeds = 1,
    equal: Annotated[
        str,
        typer.Option(help="pairs: as in the paper. steps: as many as batch 512 makes."),
    ] = "pairs",
    scale_lr: Annotated[
        bool, typer.Option("--scale-lr", help="lr in proportion to the batch; the paper keeps it.")
    ] = False,
    test_pairs: TestPairs = 0,
    strip_patches: Strip = 0,
    set_: Set = None,
    threads: Threads = 0,
    results: Results = None,
) -> None:
    """Figure 3: batches of 16, 32, ... 2048 pairs.

    Example: hardnet experiment batch-size recipes/post-nips.yaml --set data=[sets/mine]
    --brown sets/test --budget 100000 -o runs/batch-size
    """
    from hardnet.bench.experiments import grids

    if equal not in ("pairs", "steps"):
        raise HardnetError(f"--equal {equal}: choose pairs or steps")

    def grid(base: Recipe) -> Grid:
        return grids.batch_size(base.pairs, base.lr, base.batch, equal, scale_lr)

    request = Request(recipe, output, budget, cells, seeds, set_, threads, results)
    run(request.tested(brown, hpatches, test_pairs, strip_patches), grid)


def recipes(
    recipe: RecipeFile,
    output: Folder,
    budget: Budget = 100_000,
    brown: Browns = None,
    hpatches: HPatches = None,
    cells: Cells = "",
    seeds: Seeds = 1,
    test_pairs: TestPairs = 0,
    strip_patches: Strip = 0,
    set_: Set = None,
    threads: Threads = 0,
    results: Results = None,
) -> None:
    """Rows of Table 1: the NIPS and post-NIPS recipes, each with and without flip / rotate.

    Example: hardnet experiment recipes recipes/post-nips.yaml --set data=[sets/mine]
    --brown sets/test --budget 200000 -o runs/recipes
    """
    from hardnet.bench.experiments import grids

    request = Request(recipe, output, budget, cells, seeds, set_, threads, results)
    run(request.tested(brown, hpatches, test_pairs, strip_patches), lambda base: grids.recipes())


def gradients(
    output: Annotated[Path, typer.Option("--output", "-o", help="The figure, .png or .svg.")],
) -> None:
    """The paper's figure of gradient magnitudes, from our losses: positive against negative.

    Example: hardnet experiment gradients -o gradients.png
    """
    try:
        from hardnet.bench.report.experiment import draw_gradients

        draw_gradients(output)
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    print(output)


def curves(
    runs: Annotated[list[Path], typer.Argument(help="Folders of training runs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The figure, .png or .svg.")],
) -> None:
    """Draw the training curves of runs: loss and held-out FPR95 against the pairs seen.

    Example: hardnet experiment curves runs/a runs/b -o curves.png
    """
    from hardnet.bench.report.experiment import draw_training

    draw_training(runs, output)
    print(output)


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
