"""`hardnet train RECIPE`."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from hardnet.cli.options import argument, option, reads_images
from hardnet.cli.output import now_and_then, training_bar
from hardnet.errors import HardnetError, MissingExtraError, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardnet.learn.recipe import Recipe
    from hardnet.learn.trainer import Describe
    from hardnet.patchsets.patchset import PatchSet


@reads_images
def train(
    recipe: Path = argument("YAML file, or the name of a recipe: post-nips."),
    output: Path | None = option(None, "Folder of the run [runs/RECIPE].", "--output", "-o"),
    set_: list[str] | None = option(
        None, "Override a key of the recipe: key=value. Repeatable.", "--set"
    ),
    resume: bool = option(
        False, "Continue from the last checkpoint, to the same bits as one run.", "--resume"
    ),
    minutes: float | None = option(
        None,
        "Train for about this long: measures the speed and sets the recipe's pairs so "
        "that the learning rate reaches zero in time.",
    ),
    threads: int = option(0, "CPU threads of each process; 0 shares all cores.", min=0),
) -> None:
    r"""Train a descriptor; interrupt with ctrl-C and continue with --resume.

    One GPU or CPU:

        hardnet train post-nips --set data=[sets/mine] --set pairs=2000000

    As many pairs as an hour allows:

        hardnet train recipes/post-nips.yaml --set data=[sets/mine] --minutes 60

    Several GPUs of one machine, negatives from the batch of all of them:

        hardnet train recipes/post-nips.yaml --set data=[sets/mine] --set devices=4

    The same by torchrun, also over several machines:

        torchrun --nproc-per-node 4 --no-python hardnet train recipes/post-nips.yaml ...

    The folder of the run gets the weights (NET.safetensors), recipe.yaml with every setting,
    provenance.json, log.csv, TensorBoard curves and the checkpoint.
    """
    from hardnet.learn.recipe import read_recipe

    try:
        import lightning_fabric  # noqa: F401 - needed below, and not there without the extra
        import torch

        from hardnet.learn.distributed import (
            LOST,
            LOST_WAIT,
            LostProcessError,
            end_with_parent,
            processes_exist,
            rank,
        )
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    if threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # Fabric would divide the cores otherwise
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # each process says hello
    folder = output or Path("runs") / recipe.stem
    console = Console(stderr=True, quiet=rank() > 0, emoji=False)
    try:
        settings = read_recipe(recipe, set_ or [])
        if minutes is not None:
            several = settings.devices > 1 or processes_exist()
            _check_minutes(minutes, settings, set_ or [], several)
        if settings.devices > 1 and not processes_exist():
            _train_by_processes(settings, folder, resume, console)
            return
        if "LOCAL_RANK" in os.environ:
            end_with_parent()
        _train(settings, folder, resume, console, minutes)
    except LostProcessError as error:
        if _OUR_PROCESSES not in os.environ:
            raise
        time.sleep(LOST_WAIT)
        raise typer.Exit(LOST) from error  # the parent says it
    except HardnetError:
        if int(os.environ.get("LOCAL_RANK", rank())) > 0:  # the first of each machine says it
            raise typer.Exit(1) from None
        raise


_OUR_PROCESSES = "HARDNET_PROCESSES"
"""Environment variable of the processes that this command starts."""


def _train_by_processes(settings: Recipe, folder: Path, resume: bool, console: Console) -> None:
    from hardnet.learn.distributed import LOST, describe_end, rows_of, run_processes
    from hardnet.learn.run import CHECKPOINT, last_step

    rows_of(0, settings.devices, settings.batch)
    _open(settings, console)  # mistakes are said once, and patches are decoded once
    if not resume and (folder / CHECKPOINT).exists():
        raise HardnetError(f"{folder} holds a run already; continue it with --resume")
    os.environ[_OUR_PROCESSES] = str(settings.devices)
    command = [sys.executable, "-m", "hardnet.cli.app", *sys.argv[1:]]
    code = run_processes(command, settings.devices)
    if code in (0, 1, 2, 130):  # 1, 2: the first process has said why; 130: stopped by the user
        raise typer.Exit(code)
    step = last_step(folder)
    what = "on another machine ended" if code == LOST else describe_end(code)
    then = "there is no checkpoint yet: start again"
    if step is not None:
        then = f"continue from step {step} with --resume"
    raise HardnetError(f"a process of this run {what}, so the others were stopped; {then}")


def _check_minutes(minutes: float, settings: Recipe, set_: list[str], several: bool) -> None:
    if not 0 < minutes < math.inf:
        raise HardnetError(f"--minutes must be positive, got {minutes:g}")
    if any(override.startswith("pairs=") for override in set_):
        raise HardnetError("--minutes sets the pairs of the run: leave out --set pairs")
    if settings.sampling == "classical" or several:
        what = "several devices" if several else "sampling=classical, which mines in between"
        raise HardnetError(f"--minutes cannot plan for {what}: use --set pairs=NUMBER")


def _planned(
    settings: Recipe,
    train_set: PatchSet,
    folder: Path,
    resume: bool,
    minutes: float,
    console: Console,
) -> Recipe:
    """The recipe with the pairs for that time; a resumed run keeps its number of pairs."""
    from hardnet.learn.recipe import read_recipe
    from hardnet.learn.run import CHECKPOINT, RECIPE
    from hardnet.learn.trainer import plan_pairs

    if resume and (folder / RECIPE).exists():
        return replace(settings, pairs=read_recipe(folder / RECIPE, [], stored=True).pairs)
    if (folder / CHECKPOINT).exists():
        raise HardnetError(f"{folder} holds a run already; continue it with --resume")
    pairs = plan_pairs(settings, train_set, minutes, _validation(settings))
    console.print(
        f"{minutes:g} minutes: {counted(pairs, 'pair')}, {counted(pairs // settings.batch, 'step')}"
    )
    return replace(settings, pairs=pairs)


def _train(
    settings: Recipe, folder: Path, resume: bool, console: Console, minutes: float | None
) -> None:
    from hardnet.learn.trainer import Trainer

    train_set = _open(settings, console)
    if minutes is not None:
        settings = _planned(settings, train_set, folder, resume, minutes, console)
    trainer = Trainer(settings, train_set, folder, _validation(settings), resume)
    with training_bar(console) as bar:
        task = bar.add_task(
            "training", total=settings.steps, completed=trainer.step, info="first step"
        )
        last, log = "", now_and_then(console)

        def report(progress: Any) -> None:
            nonlocal last
            if progress.fpr95 is not None:
                last = f" FPR95 {100 * progress.fpr95:.2f}%"
                bar.console.print(f"step {progress.step}: loss {progress.loss:.4f}{last}")
            info = f"loss {progress.loss:.3f} {progress.pairs_per_second:.0f} pairs/s{last}"
            bar.update(task, completed=progress.step, info=info)
            log(f"step {progress.step} of {settings.steps}: {info}")

        try:
            weights = trainer.run(report)
        except KeyboardInterrupt:
            console.print(f"stopped at step {trainer.step}; saved. Continue with --resume.")
            raise typer.Exit(130) from None
    console.print(f"weights: {weights}", markup=False, soft_wrap=True)


def _open(settings: Recipe, console: Console) -> PatchSet:
    from hardnet.nets import find_net
    from hardnet.patchsets.patchset import open_sets

    with training_bar(console) as bar:
        task = bar.add_task("reading patches", total=None, info="")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        patches = open_sets(settings.data, find_net(settings.net).patch_size, show)
        bar.remove_task(task)
        if settings.teacher:
            from hardnet.learn.teacher import teacher_outputs

            task = bar.add_task("teacher's descriptors", total=None, info="")
            teacher_outputs(settings.teacher, patches, settings.augment, show)
            bar.remove_task(task)
    return patches


def _validation(settings: Recipe) -> Callable[[Describe], float] | None:
    from hardnet.bench.brown import distances_of_pairs
    from hardnet.bench.experiments import Tests
    from hardnet.bench.metrics import fpr_at_recall
    from hardnet.nets import find_net

    if not settings.validation:
        return None
    size, folder = find_net(settings.net).patch_size, Path(settings.validation)
    (held_out,) = Tests((folder,), pairs=settings.validation_pairs).open(size).brown

    def score(describe: Describe) -> float:
        distances = distances_of_pairs(lambda _, patches: describe(patches()), held_out)
        return fpr_at_recall(distances, held_out.pair_labels)

    return score
