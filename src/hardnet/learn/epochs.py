"""Classical hard-negative mining while training: a table per epoch, which survives a kill."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from hardnet.learn.checkpoint import drop_mined, read_mined, write_mined
from hardnet.learn.describe import describe
from hardnet.learn.distributed import from_rank_zero, gather_rows, world_group
from hardnet.learn.seeds import MINING, seed_of
from hardnet.nets import Net
from hardnet.patchsets.patchset import PatchSet


class MinedEpochs:
    """The hard negatives of the whole set, found anew at the first step of each epoch.

    Args:
        net: the network that is trained.
        train_set: its patches.
        folder: of the run; keeps the tables of the current and the next epoch.
        steps: of an epoch.
        seed: of the run.
        fabric: the processes; each describes its part of the set.
    """

    def __init__(
        self, net: Net, train_set: PatchSet, folder: Path, steps: int, seed: int, fabric: Fabric
    ) -> None:
        self._net, self._train_set, self._folder = net, train_set, folder
        self._steps, self._seed, self._fabric = steps, seed, fabric

    def end(self, step: int) -> int:
        """One after the last step of the epoch that ``step`` is in."""
        return step - step % self._steps + self._steps

    def __call__(self, step: int) -> NDArray[np.int64]:
        """(N,) the hard negative of each patch, valid from ``step`` to the end of its epoch.

        At the first step of an epoch they are mined with the network as it is now; in its middle,
        where a resumed run begins, they are read from the folder.
        """
        epoch = step // self._steps
        if step % self._steps:
            return from_rank_zero(self._fabric, partial(read_mined, self._folder, epoch))
        from hardnet.learn.mining import mine  # needs faiss, which other samplings do not

        descriptors = self._describe_all()

        def mine_and_keep() -> NDArray[np.int64]:
            mined = mine(descriptors, self._train_set.points, seed_of(self._seed, epoch, MINING))
            write_mined(self._folder, epoch, mined)
            return mined

        return from_rank_zero(self._fabric, mine_and_keep)

    def saved(self, step: int) -> None:
        """A checkpoint of ``step`` is written: tables of earlier epochs are needed no more."""
        drop_mined(self._folder, before=step // self._steps)

    def _describe_all(self) -> NDArray[np.float32]:
        """(N, D) descriptors of the training set; each process computes a part."""
        patches = self._train_set.patches
        share = -(-len(patches) // self._fabric.world_size)
        first = self._fabric.global_rank * share
        part = describe(self._net, patches, range(first, min(first + share, len(patches))))
        own = torch.zeros(share, self._net.dim, device=self._fabric.device)
        own[: len(part)] = torch.from_numpy(part)
        joined = gather_rows(own, world_group(self._fabric))[: len(patches)]
        return np.asarray(joined.cpu().numpy())
