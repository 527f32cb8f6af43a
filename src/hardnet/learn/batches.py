"""The patches of each training step, prepared in the background.

A batch is a function of the seed and the step number alone. So it does not matter who prepares it,
when, or in which order: any number of workers gives the same bits as none.

Workers are threads. Preparing a batch is copying patches out of a memory map and flipping them,
during which numpy lets other threads run; processes would have to send each batch through a pipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardnet.learn.shade import Shade
from hardnet.patchsets.patchset import PatchSet
from hardnet.patchsets.sampler import PairSampler


@dataclass(frozen=True)
class Batch:
    """The patches of one step.

    Attributes:
        step: number of the step.
        anchors: (n, S, S) uint8, each of another 3D point.
        positives: (n, S, S) uint8, other patches of the same points in the same order.
        negatives: (n, S, S) uint8, a mined patch of another point for each anchor; or None.
        teacher: (N, D) and (N, D) float32, the teacher's descriptors of the anchors and positives
            of all processes; or None.
    """

    step: int
    anchors: NDArray[np.uint8]
    positives: NDArray[np.uint8]
    negatives: NDArray[np.uint8] | None = None
    teacher: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


Teacher = Callable[[NDArray[np.int64], "Flips | None"], NDArray[np.float32]]
"""(n,) numbers of patches and how they are flipped -> (n, D) the teacher's unit vectors."""


class Batches:
    """Batch number t of a training run.

    Args:
        train_set: the patches.
        sampler: which of them make batch t.
        augment: flip / rotate; all patches of a pair alike.
        seed: of the augmentation.
        rows: the pairs of each batch that this process trains on. A pair and its augmentation are
            the same whoever has it.
        teacher: gives the teacher's descriptors of patches; None without a teacher.
        shade: share of the patches with an edge of light; the teacher sees them without.
    """

    def __init__(
        self,
        train_set: PatchSet,
        sampler: PairSampler,
        augment: bool,
        seed: int,
        rows: slice = slice(None),
        teacher: Teacher | None = None,
        shade: float = 0.0,
    ) -> None:
        self._patches, self._sampler = train_set.patches, sampler
        self._augment, self._seed, self._rows = augment, seed, rows
        self._teacher, self._shade = teacher, shade

    def __call__(self, step: int, mined: NDArray[np.int64] | None = None) -> Batch:
        """The patches of a step; ``mined`` (N,) has the hard negative of each patch of the set."""
        everyone = self._sampler(step)
        anchors, positives = (index[self._rows] for index in everyone)
        all_flips = flips = teacher = None
        if self._augment:
            rng = np.random.default_rng([self._seed, step, 1])
            all_flips = Flips.draw(self._sampler.batch, rng)
            flips = all_flips[self._rows]
        lights = np.random.default_rng([self._seed, step, LIGHT])
        if self._teacher is not None:  # the loss is computed from the whole batch everywhere
            teacher = self._teacher(everyone[0], all_flips), self._teacher(everyone[1], all_flips)

        def take(index: NDArray[np.int64]) -> NDArray[np.uint8]:
            patches = self._patches[index]
            if flips is not None:
                patches = flips(patches)
            if not self._shade:
                return patches
            return Shade.draw(self._sampler.batch, self._shade, lights)[self._rows](patches)

        negatives = None if mined is None else take(mined[anchors])
        return Batch(step, take(anchors), take(positives), negatives, teacher)


def prefetched(
    make: Callable[[int], Batch], first: int, last: int, workers: int
) -> Generator[Batch]:
    """Batches ``first`` ... ``last - 1`` in order, made ahead of time by ``workers`` threads.

    At most ``workers + 1`` batches are made and not yet taken; without workers each is made when it
    is asked for. An error in a thread is raised here in place of its batch. When the caller stops
    early, nothing more is begun.
    """
    if workers <= 0:
        yield from map(make, range(first, last))
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="batches")
    waiting: deque[Future[Batch]] = deque()
    try:
        for step in range(first, last):
            waiting.append(pool.submit(make, step))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


SYMMETRIES = 4


@dataclass(frozen=True)
class Flips:
    """What happens to each of n pairs: a transpose or not, then a mirror image or not.

    These are four of the eight symmetries of the square, as in the published training: identity,
    transpose, mirror, and a quarter turn.
    """

    transpose: NDArray[np.bool_]
    mirror: NDArray[np.bool_]

    @classmethod
    def draw(cls, pairs: int, rng: np.random.Generator) -> Flips:
        """Each of the four symmetries with probability 1/4, independently for ``pairs`` pairs."""
        return cls(rng.random(pairs) < 0.5, rng.random(pairs) < 0.5)

    @classmethod
    def alike(cls, pairs: int, number: int) -> Flips:
        """The same symmetry for ``pairs`` pairs: one of 0 (identity) ... 3, see ``numbers``."""
        return cls(np.full(pairs, number % 2 == 1), np.full(pairs, number >= 2))

    @property
    def numbers(self) -> NDArray[np.int64]:
        """(n,) the symmetry of each pair as a number, 0 ... SYMMETRIES - 1."""
        return self.transpose + 2 * self.mirror.astype(np.int64)

    def __getitem__(self, rows: slice) -> Flips:
        """Those of some of the pairs."""
        return Flips(self.transpose[rows], self.mirror[rows])

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Flip patch i of (n, S, S) as pair i is flipped; the anchors and positives alike."""
        out = np.array(patches)
        out[self.transpose] = patches[self.transpose].swapaxes(1, 2)
        out[self.mirror] = out[self.mirror][:, :, ::-1]
        return out


DROPOUT, SAMPLING, MINING, LIGHT = 2, 3, 4, 5
"""Streams of random numbers of a step. Pairs are drawn with (seed, step), and 1 is augmentation."""


def seed_of(seed: int, number: int, stream: int) -> int:
    """A seed for one purpose in one step (or epoch) of a run."""
    return int(np.random.default_rng([seed, number, stream]).integers(2**63))
