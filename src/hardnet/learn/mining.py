"""Classical hard-negative mining: the closest negatives of the whole training set, once per epoch.

The paper compares with it (table 2) and finds that it overfits: many of the nearest patches do show
the same point, under another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardnet.errors import DivergedError, HardnetError, MissingExtraError
from hardnet.learn.batches import MINING, seed_of
from hardnet.learn.distributed import describe, from_rank_zero, gather_rows, world_group
from hardnet.learn.run import write_whole
from hardnet.nets import Net
from hardnet.patchsets.patchset import Ints, PatchSet
from hardnet.storage import OwnedFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class MinedEpochs:
    """The hard negatives of the whole set, mined at the first step of each epoch of some ``steps``.

    The folder keeps the tables that a run resumed in the middle of an epoch needs.
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

            def read() -> Ints:
                try:
                    return np.asarray(np.load(path), np.int64)
                except (OSError, ValueError) as error:
                    raise HardnetError(
                        f"{path}, the mined negatives of the checkpoint's epoch, cannot be read "
                        f"({error}): restore it, or begin again in another --output"
                    ) from error

            return from_rank_zero(self.fabric, read)
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
        own = torch.zeros(share, self.net.dim, device=self.fabric.device)
        own[: len(part)] = torch.from_numpy(part)
        joined = gather_rows(own, world_group(self.fabric))[: len(patches)]
        return np.asarray(joined.cpu().numpy())


NEIGHBOURS = 12  # as in the published code; the patch itself is one of them
QUERIES = 16_384  # at a time, so that ctrl-C takes effect


def mine(
    descriptors: NDArray[np.float32], points: Ints, seed: int, neighbours: int = NEIGHBOURS
) -> Ints:
    """(N,) a hard negative of each patch, from (N, D) descriptors and their (N,) 3D points.

    It is drawn from the nearest ``neighbours`` of the patch (itself among them) that show another
    point; if none does, any patch of another point is drawn.
    """
    if len(points) == 0 or (points == points[0]).all():
        raise HardnetError("classical mining needs patches of two 3D points at least")
    if not np.isfinite(descriptors).all():
        raise DivergedError("classical mining: a descriptor is not finite; lower lr")
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss-cpu", "train") from None
    data = np.ascontiguousarray(descriptors, dtype=np.float32)
    index: Any = faiss.IndexFlatL2(data.shape[1])
    index.add(data)
    nearest = np.empty((len(data), min(neighbours, len(data))), np.int64)
    for start in range(0, len(data), QUERIES):
        part = slice(start, start + QUERIES)
        nearest[part] = index.search(data[part], nearest.shape[1])[1]
    rng = np.random.default_rng(seed)
    other = points[nearest] != points[:, None]
    # The largest of independent uniform numbers is equally likely at each place.
    chosen = np.where(other, rng.random(nearest.shape, dtype=np.float32), -1).argmax(axis=1)
    negative = np.take_along_axis(nearest, chosen[:, None], axis=1)[:, 0]
    without = np.flatnonzero(~other.any(axis=1))
    negative[without] = _of_another_point(points, without, rng)
    return negative


def _of_another_point(points: Ints, patches: Ints, rng: np.random.Generator) -> Ints:
    """For each of ``patches`` any patch that does not show its point, all equally likely."""
    order = np.argsort(points, kind="stable")
    first = np.searchsorted(points, points[patches], side="left", sorter=order)
    same = np.searchsorted(points, points[patches], side="right", sorter=order) - first
    place = rng.integers(len(points) - same)
    return order[np.where(place < first, place, place + same)]
