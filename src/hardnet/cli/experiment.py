"""`hardnet experiment`: the paper's ablation, batch-size and recipe studies as one command each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardnet.cli.experiment_run import Request, run
from hardnet.cli.image_option import reads_images
from hardnet.errors import HardnetError, MissingExtraError

if TYPE_CHECKING:
    from hardnet.bench.experiments.grids import Grid
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
