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

from hardnet.learn.augment import Flips
from hardnet.patchsets.pairs import PairSampler
from hardnet.patchsets.patchset import PatchSet


@dataclass(frozen=True)
class Batch:
    """The patches of one step.

    Attributes:
        step: number of the step.
        anchors: (n, S, S) uint8, each of another 3D point.
        positives: (n, S, S) uint8, other patches of the same points in the same order.
        negatives: (n, S, S) uint8, a mined patch of another point for each anchor; or None.
    """

    step: int
    anchors: NDArray[np.uint8]
    positives: NDArray[np.uint8]
    negatives: NDArray[np.uint8] | None = None


class Batches:
    """Batch number t of a training run.

    Args:
        train_set: the patches.
        sampler: which of them make batch t.
        augment: flip / rotate; all patches of a pair alike.
        seed: of the augmentation.
        rows: the pairs of each batch that this process trains on. A pair and its augmentation are
            the same whoever has it.
    """

    def __init__(
        self,
        train_set: PatchSet,
        sampler: PairSampler,
        augment: bool,
        seed: int,
        rows: slice = slice(None),
    ) -> None:
        self._patches, self._sampler = train_set.patches, sampler
        self._augment, self._seed, self._rows = augment, seed, rows

    def __call__(self, step: int, mined: NDArray[np.int64] | None = None) -> Batch:
        """The patches of step ``step``.

        Args:
            step: number of the step, from 0.
            mined: (N,) for each patch of the set the patch that is its hard negative.
        """
        anchors, positives = (index[self._rows] for index in self._sampler(step))
        flips = None
        if self._augment:
            rng = np.random.default_rng([self._seed, step, 1])
            flips = Flips.draw(self._sampler.batch, rng)[self._rows]

        def take(index: NDArray[np.int64]) -> NDArray[np.uint8]:
            patches = self._patches[index]
            return patches if flips is None else flips(patches)

        negatives = None if mined is None else take(mined[anchors])
        return Batch(step, take(anchors), take(positives), negatives)


def prefetched(
    make: Callable[[int], Batch], first: int, last: int, workers: int
) -> Generator[Batch]:
    """Batches ``first`` ... ``last - 1`` in order, made ahead of time by ``workers`` threads.

    At most ``workers + 1`` batches are made and not yet taken. An error in a thread is raised here
    in place of its batch. When the caller stops early, nothing more is begun.

    Args:
        make: the batch of a step.
        first: first step.
        last: one after the last step.
        workers: threads; 0 makes each batch when it is asked for.
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
