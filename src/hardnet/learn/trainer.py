"""Train a network: our loop on Lightning Fabric.

Everything random (the batch, its augmentation, dropout, sampling) is a function of the recipe's
seed and the step number. A checkpoint therefore holds only the step, the weights, their average and
the optimizer, and a run that was killed and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardnet.errors import DivergedError, HardnetError
from hardnet.images import Pixels
from hardnet.learn.batches import (
    DROPOUT,
    MINING,
    SAMPLING,
    Batch,
    Batches,
    PairSampler,
    mine,
    prefetched,
    seed_of,
)
from hardnet.learn.chunked import ChunkedNet
from hardnet.learn.distributed import (
    any_rank,
    describe,
    from_rank_zero,
    gather_rows,
    naming_lost_processes,
    open_fabric,
    rows_of,
    sum_gradients,
    to_input,
    world_group,
)
from hardnet.learn.losses import Objective, Terms
from hardnet.learn.recipe import Recipe
from hardnet.learn.run import (
    CHECKPOINT,
    RunLog,
    first_net,
    open_run,
    stop_requests,
    weights_file,
    write_state,
    write_weights,
    write_whole,
)
from hardnet.learn.teacher import teacher_outputs
from hardnet.nets import Average, Net, fresh_statistics
from hardnet.nets.hardnet import apply, unit_length
from hardnet.patchsets.patchset import Ints, Patches, PatchSet
from hardnet.storage import FolderLock, OwnedFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Describe = Callable[[Patches], NDArray[np.float32]]

TRIAL = 20.0  # seconds of trial steps that a plan is based on, or four steps if they take longer
STATISTICS_BATCHES = 20
"""Batches on which the averaged network computes its batch statistics: about as many as the running
statistics of a network in training remember."""


@dataclass(frozen=True)
class Progress:
    """What a step reports."""

    step: int
    steps: int
    loss: float
    pairs_per_second: float
    fpr95: float | None


class Trainer:
    """One training run in one folder, which gets the checkpoint, the log and the final weights.

    With several devices each process makes a Trainer with the same arguments; only the first
    writes files, validates and reports. ``validate`` scores a descriptor. ``resume`` continues from
    the folder's checkpoint; otherwise a folder with one is refused.
    """

    def __init__(
        self,
        recipe: Recipe,
        train_set: PatchSet,
        folder: Path,
        validate: Callable[[Describe], float] | None = None,
        resume: bool = False,
    ) -> None:
        keep_freed_memory()
        self.recipe, self.folder, self._validate = recipe, folder, validate
        self._objective = Objective(**recipe.axes)
        sets, images = train_set.sets, train_set.images
        sampler = PairSampler(
            train_set.points, recipe.batch, recipe.seed, sets, recipe.weights, images, recipe.images
        )
        teacher = None
        if recipe.teacher:  # before the processes join: one of them may compute for a long time
            teacher = teacher_outputs(recipe.teacher, train_set, recipe.augment)
        self._fabric = open_fabric(recipe.accelerator, recipe.devices)
        self._group = world_group(self._fabric)
        rows = rows_of(self._fabric.global_rank, self._fabric.world_size, recipe.batch)
        self.batches = Batches(
            train_set, sampler, recipe.augment, recipe.seed, rows, teacher, recipe.shade
        )
        self.net = first_net(recipe, resume, self._fabric.device)
        if teacher is not None and recipe.teacher_cosine and teacher.dim != self.net.dim:
            raise HardnetError(
                f"teacher: {recipe.teacher} has {teacher.dim} numbers per patch and {recipe.net} "
                f"{self.net.dim}: use --set teacher_cosine=0, which compares distances alone"
            )
        self._layers = self.net.layers()
        if self._objective.any_length:
            if self._layers[-1] is not unit_length:
                raise HardnetError(
                    "regularizer lengths needs a network that ends in unit_length, and "
                    f"{type(self.net).__name__} does not: use another regularizer"
                )
            self._layers = self._layers[:-1]
        chunk = recipe.chunk or 3 * recipe.batch
        self._chunked = ChunkedNet(self.net, chunk, self._group, self._layers)
        self._epochs: MinedEpochs | None = None
        if self._objective.streams == 3:
            steps = -(-recipe.epoch // recipe.batch)
            self._epochs = MinedEpochs(
                self.net, train_set, folder, steps, recipe.seed, self._fabric
            )
        self.optimizer = torch.optim.SGD(
            self.net.parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            dampening=recipe.dampening,
            weight_decay=recipe.weight_decay,
        )
        self.step = 0
        self._average = Average() if recipe.average else None
        self._result: Net | None = None
        self._lock = FolderLock(folder, "training.lock")
        with naming_lost_processes(self._fabric, folder):
            state, self._facts = from_rank_zero(
                self._fabric, partial(open_run, folder, recipe, resume, self._lock)
            )
        if state is not None:
            try:
                self.net.load_state_dict(state["net"])
                self.optimizer.load_state_dict(state["optimizer"])
                if self._average is not None:
                    self._average.load_state_dict(state["average"])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                self._lock.release()
                problem = f"is not a checkpoint of this recipe: {str(error).splitlines()[0]}"
                raise HardnetError(f"{folder / CHECKPOINT} {problem}") from error
            self.step = int(state["step"])
        self._saved = self.step  # of the checkpoint before the next one

    def run(self, report: Callable[[Progress], None] | None = None) -> Path:
        """Train to the end of the recipe; return the file of the final weights.

        On ctrl-C or SIGTERM the step is finished and saved, and KeyboardInterrupt is raised.
        """
        recipe, log = self.recipe, None
        with ExitStack() as ending:
            ending.callback(self._lock.release)
            if self._fabric.is_global_zero:
                log = RunLog(self.folder, self.step)
                ending.callback(log.close)
            lost = naming_lost_processes(self._fabric, self.folder)
            with lost, stop_requests() as stop, closing(self._upcoming()) as batches:
                started = time.perf_counter()
                for batch in batches:
                    row = self._train_step(batch)
                    if self.step == recipe.steps:
                        self.result()
                    speed = recipe.batch / (time.perf_counter() - started)
                    if log is not None:
                        fpr95 = self._validate_if_due()
                        row |= {"step": self.step, "pairs": self.step * recipe.batch}
                        row |= {"pairs_per_second": round(speed, 1)}
                        log.add(row if fpr95 is None else row | {"fpr95": fpr95})
                        if report:
                            report(Progress(self.step, recipe.steps, row["loss"], speed, fpr95))
                    if self.step % recipe.checkpoint_every == 0:
                        self.save()
                    if any_rank(stop.is_set(), self._fabric):
                        self.save()
                        raise KeyboardInterrupt
                    started = time.perf_counter()
            self.save()
            net = self.result()
            if log is not None:
                write_weights(self.folder, net, recipe, self.step * recipe.batch, self._facts)
        return weights_file(self.folder, recipe)

    def _validate_if_due(self) -> float | None:
        every = self.recipe.validate_every
        due = self.step == self.recipe.steps or (every and self.step % every == 0)
        return self._validate(self.describe) if self._validate and due else None

    def _upcoming(self) -> Generator[Batch, None, None]:
        steps, workers = self.recipe.steps, self.recipe.workers
        while self.step < steps:
            last, mined = steps, None
            if self._epochs is not None:
                last, mined = min(steps, self._epochs.end(self.step)), self._epochs(self.step)
            yield from prefetched(partial(self.batches, mined=mined), self.step, last, workers)

    def _train_step(self, batch: Batch) -> dict[str, float]:
        lr = self.recipe.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        terms = self.backward(batch)
        self.optimizer.step()
        self.step += 1
        if self._average is not None and self.step > self.recipe.steps - self.recipe.averaged_steps:
            self._average.add(self.net)
        loss = float(terms.loss.detach())
        if not np.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} at step {self.step}; lower lr or look at the patches"
            )
        positive, negative = terms.positive.detach(), terms.negative.detach()
        row = {"positive": float(positive.mean()), "negative": float(negative.mean())}
        if terms.teacher is not None:
            row["teacher"] = float(terms.teacher.detach())
        return {"lr": lr, "loss": loss, **row}

    def backward(self, batch: Batch) -> Terms:
        """The loss of a batch over all processes; adds to the gradients of the parameters."""
        seed, step = self.recipe.seed, batch.step
        streams = [batch.anchors, batch.positives]
        if batch.negatives is not None:
            streams.append(batch.negatives)
        anchors, positives, *mined = self._embed(streams, seed_of(seed, step, DROPOUT))
        generator = torch.Generator().manual_seed(seed_of(seed, step, SAMPLING))
        teacher = None
        if batch.teacher is not None:
            said = [torch.from_numpy(x).to(anchors) for x in batch.teacher]
            teacher = said[0], said[1]
        negatives = mined[0] if mined else None
        terms = self._objective(anchors, positives, negatives, generator, teacher)
        terms.loss.backward()  # type: ignore[no-untyped-call]
        sum_gradients(self.net.parameters(), self._group)
        return terms

    def _embed(self, streams: Sequence[Pixels], seed: int) -> list[Tensor]:
        """Descriptors with gradient: (rows, S, S) patches of each stream -> (n, D) of all rows.

        Batch normalisation looks at all streams together, as in the published training.
        """
        inputs = to_input(np.concatenate(streams), self._fabric.device)
        self.net.train()
        if not self.recipe.chunk and self._group is None:  # by plain autograd
            torch.manual_seed(seed)
            out = apply(self._layers, inputs)
        else:
            total = len(streams) * self.recipe.batch
            rows = torch.arange(total).view(len(streams), -1)[:, self.batches.rows].flatten()
            out = self._chunked(inputs, seed, rows, total)
        return [gather_rows(part, self._group) for part in out.chunk(len(streams))]

    def result(self) -> Net:
        """The network that a finished run gives; all processes must call this together.

        With ``average`` it has the mean of the last weights. The mean of batch statistics fits no
        network, so they are computed again on the batches that would come next.
        """
        if self._average is None:
            return self.net
        if self._result is None:
            last = copy.deepcopy(self.net.state_dict())
            self._average.copy_to(self.net)
            with fresh_statistics(self.net), torch.no_grad():
                for step in range(self.recipe.steps, self.recipe.steps + STATISTICS_BATCHES):
                    batch, seed = self.batches(step), seed_of(self.recipe.seed, step, DROPOUT)
                    self._embed([batch.anchors, batch.positives], seed)
            self._result = copy.deepcopy(self.net)
            self.net.load_state_dict(last)
        return self._result

    def describe(self, patches: Patches) -> NDArray[np.float32]:
        """Descriptors of (n, S, S) patches by the network as it is now, or by the result."""
        return describe(self._result or self.net, patches)

    def save(self) -> None:
        """Write the checkpoint; weights that are not finite are an error."""
        if not all(bool(x.isfinite().all()) for x in self.net.state_dict().values()):
            problem = f"the weights are not finite after step {self.step}"
            raise DivergedError(f"{problem}; lower lr or look at the patches")
        if not self._fabric.is_global_zero:
            return
        state = {
            "step": self.step,
            "seed": self.recipe.seed,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if self._average is not None:
            state["average"] = self._average.state_dict()
        write_state(self.folder, state)
        if self._epochs is not None:
            self._epochs.saved(self._saved)
        self._saved = self.step


@dataclass(frozen=True)
class MinedEpochs:
    """The hard negatives of the whole set, mined at the first step of each epoch of some ``steps``.

    The folder keeps the tables that a run resumed in the middle of an epoch needs. The paper
    compares with this (table 2) and finds that it overfits: many of the nearest patches do show the
    same point, under another name.
    """

    net: Net
    train_set: PatchSet
    folder: Path
    steps: int
    seed: int
    fabric: Fabric

    def end(self, step: int) -> int:
        """One after the last step of the epoch that ``step`` is in."""
        return step - step % self.steps + self.steps

    def __call__(self, step: int) -> Ints:
        """(N,) the hard negative of each patch, valid from ``step`` to the end of its epoch."""
        epoch = step // self.steps
        path = self.folder / f"mined-{epoch}.npy"
        if step % self.steps:  # a resumed run starts in the middle of an epoch
            return from_rank_zero(self.fabric, partial(_read_mined, path))
        descriptors = self._describe_all()

        def mine_and_keep() -> Ints:
            mined = mine(descriptors, self.train_set.points, seed_of(self.seed, epoch, MINING))
            OwnedFolder.mark(self.folder)  # so that it can be dropped
            write_whole(path, lambda file: np.save(file, mined))
            return mined

        return from_rank_zero(self.fabric, mine_and_keep)

    def saved(self, step: int) -> None:
        """``step`` is that of the older checkpoint: tables of epochs before it are not needed."""
        owned = OwnedFolder.mark(self.folder)
        for name in owned.names(".npy"):
            epoch = name.removeprefix("mined-").removesuffix(".npy")
            if epoch.isdecimal() and int(epoch) < step // self.steps:
                owned.remove(name)

    def _describe_all(self) -> NDArray[np.float32]:
        patches = self.train_set.patches
        share = -(-len(patches) // self.fabric.world_size)
        first = self.fabric.global_rank * share
        part = describe(self.net, patches, range(first, min(first + share, len(patches))))
        rows = torch.zeros(share, self.net.dim, device=self.fabric.device)
        rows[: len(part)] = torch.from_numpy(part)
        joined = gather_rows(rows, world_group(self.fabric))[: len(patches)]
        return np.asarray(joined.cpu().numpy())


def _read_mined(path: Path) -> Ints:
    try:
        return np.asarray(np.load(path), np.int64)
    except (OSError, ValueError) as error:
        raise HardnetError(
            f"{path}, the mined negatives of the checkpoint's epoch, cannot be read ({error}): "
            "restore it, or begin again in another --output"
        ) from error


def plan_pairs(
    recipe: Recipe,
    train_set: PatchSet,
    minutes: float,
    validate: Callable[[Describe], float] | None = None,
) -> int:
    """How many pairs this machine trains on in ``minutes``, measured by a few steps of a trial.

    It is a number of pairs and not a deadline, so that the run is as reproducible as any other.
    """
    begun = time.perf_counter()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        # No folder has this name, so the sets are not read for their digest.
        trial = Trainer(replace(recipe, data=["trial"], average=0.0), train_set, Path(folder))
        while len(seconds) < 4 or (len(seconds) < 30 and time.perf_counter() - begun < TRIAL):
            started = time.perf_counter()
            trial._train_step(trial.batches(len(seconds)))
            seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        if validate is not None:
            validate(trial.describe)
        validation = time.perf_counter() - started
        trial._lock.release()
    step = float(np.median(seconds[1:]))  # the first one allocates
    if recipe.validate_every:
        step += validation / recipe.validate_every
    left = 60 * minutes - validation - (time.perf_counter() - begun)
    # The statistics of an averaged network need forward passes alone: a third of a step each.
    steps = int(left / step) - (STATISTICS_BATCHES // 3 if recipe.average else 0)
    if steps < 1:
        raise HardnetError(
            f"{minutes:g} minutes are too short: the trial took as long, at {step:.1f} s a step; "
            "give more time, or use a smaller batch"
        )
    return steps * recipe.batch


_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8  # from glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc not to return large buffers to the kernel after every training step.

    The kernel zeroes every page it hands out, which would take a large part of the time. All
    threads share one heap, because memory of other heaps is returned anyway. Returns whether it
    took effect (glibc only).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1))
    return all([mallopt(name, value) for name, value in settings])
