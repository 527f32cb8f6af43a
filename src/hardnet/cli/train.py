"""`hardnet train RECIPE`."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from hardnet.bench.brown import distances_of_pairs
from hardnet.bench.experiments import Tests
from hardnet.bench.metrics import fpr_at_recall
from hardnet.cli.options import argument, option, reads_images
from hardnet.cli.output import Stage, console
from hardnet.errors import HardnetError, MissingExtraError, counted
from hardnet.learn.recipe import Recipe, read_recipe
from hardnet.patchsets.patchset import PatchSet, open_sets

if TYPE_CHECKING:
    from hardnet.learn.trainer import Describe

OUR_PROCESSES = "HARDNET_PROCESSES"
"""Environment variable of the processes that this command starts."""


@reads_images
def train(
    recipe: Path = argument("YAML file, or the name of a recipe: post-nips."),
    output: Path | None = option(None, "Folder of the run [runs/RECIPE].", "--output", "-o"),
    set_: list[str] | None = option(None, "Override a key of the recipe: key=value.", "--set"),
    resume: bool = option(False, "Continue from the last checkpoint, to the same bits as one run."),
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
    try:
        import lightning_fabric  # noqa: F401 - needed below, and not there without the extra
        import torch

        from hardnet.learn import distributed
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    if threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # Fabric would divide the cores otherwise
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # each process says hello
    folder = output or Path("runs") / recipe.stem
    rank = distributed.rank()
    try:
        settings = read_recipe(recipe, set_ or [])
        started = distributed.processes_exist()
        if minutes is not None:
            _check_minutes(minutes, settings, set_ or [], settings.devices > 1 or started)
        if settings.devices > 1 and not started:
            _train_by_processes(settings, folder, resume)
        if "LOCAL_RANK" in os.environ:
            distributed.end_with_parent()
        with Stage(console(stderr=True, quiet=rank > 0)) as stage:
            _train(settings, folder, resume, minutes, stage)
    except distributed.LostProcessError as error:
        if OUR_PROCESSES not in os.environ:
            raise
        time.sleep(distributed.LOST_WAIT)
        raise typer.Exit(distributed.LOST) from error  # the parent says it
    except HardnetError:
        if int(os.environ.get("LOCAL_RANK", rank)) > 0:  # the first of each machine says it
            raise typer.Exit(1) from None
        raise


def _train_by_processes(settings: Recipe, folder: Path, resume: bool) -> NoReturn:
    from hardnet.learn.distributed import LOST, describe_end, rows_of, run_processes
    from hardnet.learn.run import last_step

    rows_of(0, settings.devices, settings.batch)
    with Stage() as stage:
        open_data(settings, stage)  # mistakes are said once, and patches are decoded once
    _refuse_another_run(folder, resume)
    os.environ[OUR_PROCESSES] = str(settings.devices)
    command = [sys.executable, "-m", "hardnet.cli.app", *sys.argv[1:]]
    code = run_processes(command, settings.devices)
    if code in (0, 1, 2, 130):  # 1, 2: the first process has said why; 130: stopped by the user
        raise typer.Exit(code)
    what = "on another machine ended" if code == LOST else describe_end(code)
    then = "there is no checkpoint yet: start again"
    if (step := last_step(folder)) is not None:
        then = f"continue from step {step} with --resume"
    raise HardnetError(f"a process of this run {what}, so the others were stopped; {then}")


def _refuse_another_run(folder: Path, resume: bool) -> None:
    from hardnet.learn.run import CHECKPOINT

    if not resume and (folder / CHECKPOINT).exists():
        raise HardnetError(f"{folder} holds a run already; continue it with --resume")


def _check_minutes(minutes: float, settings: Recipe, set_: list[str], several: bool) -> None:
    if not 0 < minutes < math.inf:
        raise HardnetError(f"--minutes must be positive, got {minutes:g}")
    if any(override.startswith("pairs=") for override in set_):
        raise HardnetError("--minutes sets the pairs of the run: leave out --set pairs")
    if settings.sampling == "classical" or several:
        what = "several devices" if several else "sampling=classical, which mines in between"
        raise HardnetError(f"--minutes cannot plan for {what}: use --set pairs=NUMBER")


def _train(
    settings: Recipe, folder: Path, resume: bool, minutes: float | None, stage: Stage
) -> None:
    from hardnet.learn.run import RECIPE
    from hardnet.learn.trainer import Trainer, plan_pairs

    train_set, validate = open_data(settings, stage), validation(settings)
    if minutes is not None:
        if resume and (folder / RECIPE).exists():  # it keeps its number of pairs
            pairs = read_recipe(folder / RECIPE, [], stored=True).pairs
        else:
            _refuse_another_run(folder, resume=False)
            pairs = plan_pairs(settings, train_set, minutes, validate)
            steps = counted(pairs // settings.batch, "step")
            stage.say(f"{minutes:g} minutes: {counted(pairs, 'pair')}, {steps}")
        settings = replace(settings, pairs=pairs)
    trainer = Trainer(settings, train_set, folder, validate, resume)
    stage("training", trainer.step, settings.steps, "first step")
    last = ""

    def report(progress: Any) -> None:
        nonlocal last
        if progress.fpr95 is not None:
            last = f" FPR95 {100 * progress.fpr95:.2f}%"
            stage.say(f"step {progress.step}: loss {progress.loss:.4f}{last}")
        info = f"loss {progress.loss:.3f} {progress.pairs_per_second:.0f} pairs/s{last}"
        stage("training", progress.step, settings.steps, info)

    try:
        weights = trainer.run(report)
    except KeyboardInterrupt:
        stage.say(f"stopped at step {trainer.step}; saved. Continue with --resume.")
        raise typer.Exit(130) from None
    stage.say(f"weights: {weights}")


def open_data(settings: Recipe, stage: Stage) -> PatchSet:
    """The patches of a recipe, and its teacher's descriptors of them, decoded and cached."""
    from hardnet.nets import find_net

    show = partial(stage, "reading patches")
    patches = open_sets(settings.data, find_net(settings.net).patch_size, show)
    if settings.teacher:
        from hardnet.learn.teacher import teacher_outputs

        show = partial(stage, "teacher's descriptors")
        teacher_outputs(settings.teacher, patches, settings.augment, show)
    return patches


def validation(settings: Recipe) -> Callable[[Describe], float] | None:
    """A function that scores a descriptor by its FPR95 on the validation set, if there is one."""
    from hardnet.nets import find_net

    if not settings.validation:
        return None
    size, folder = find_net(settings.net).patch_size, Path(settings.validation)
    (held_out,) = Tests((folder,), pairs=settings.validation_pairs).open(size).brown

    def score(describe: Describe) -> float:
        distances = distances_of_pairs(lambda _, patches: describe(patches()), held_out)
        return fpr_at_recall(distances, held_out.pair_labels)

    return score
