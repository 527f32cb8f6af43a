"""`hardnet train RECIPE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hardnet.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardnet.learn.recipe import Recipe
    from hardnet.learn.trainer import Describe


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="YAML file; the repository has recipes/*.yaml.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run [runs/RECIPE].")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of the recipe: key=value.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 for all cores.")] = 0,
) -> None:
    """Train a descriptor; interrupt with ctrl-C and continue with --resume.

    Example: hardnet train recipes/post-nips.yaml --set data=[sets/mine] --set pairs=2000000
    """
    from hardnet.learn.recipe import read_recipe
    from hardnet.patchsets.union import open_sets

    try:
        import torch

        from hardnet.learn.trainer import Trainer
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    if threads:
        torch.set_num_threads(threads)
    settings = read_recipe(recipe, set_ or [])
    folder = output or Path("runs") / recipe.stem
    console = Console(stderr=True)
    with _bar(console) as bar:
        opening = bar.add_task("reading patches", total=None, info="")
        train_set = open_sets(
            settings.data, size=32, progress=lambda k, n: bar.update(opening, completed=k, total=n)
        )
        validate = _validation(settings)
        bar.remove_task(opening)
        trainer = Trainer(settings, train_set, folder, validate, resume)
        task = bar.add_task(
            "training", total=settings.steps, completed=trainer.step, info="first step"
        )
        last = ""

        def report(progress: Any) -> None:
            nonlocal last
            if progress.fpr95 is not None:
                last = f" FPR95 {100 * progress.fpr95:.2f}%"
                bar.console.print(f"step {progress.step}: loss {progress.loss:.4f}{last}")
            info = f"loss {progress.loss:.3f} {progress.pairs_per_second:.0f} pairs/s{last}"
            bar.update(task, completed=progress.step, info=info)

        try:
            weights = trainer.run(report)
        except KeyboardInterrupt:
            console.print(f"stopped at step {trainer.step}; saved. Continue with --resume.")
            raise typer.Exit(130) from None
    console.print(f"weights: {weights}")


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[info]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def _validation(settings: Recipe) -> Callable[[Describe], float] | None:
    """FPR95 on the validation set's pairs, as a function of a descriptor."""
    import numpy as np

    from hardnet.bench.metrics import fpr95
    from hardnet.patchsets.brown import read_brown

    if not settings.validation:
        return None
    held_out = read_brown(settings.validation, size=32)
    pairs = held_out.pairs[: settings.validation_pairs]
    labels = held_out.pair_labels[: settings.validation_pairs]
    used, index = np.unique(pairs, return_inverse=True)
    index = index.reshape(pairs.shape)

    def score(describe: Describe) -> float:
        descriptors = describe(held_out.patches[used])
        a, b = descriptors[index[:, 0]], descriptors[index[:, 1]]
        return fpr95(np.linalg.norm(a - b, axis=1), labels)

    return score
