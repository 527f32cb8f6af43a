"""The patches of each training step: which pairs, how they are flipped and lit, made ahead of time.

A batch depends on the seed and the step number alone: any number of workers gives the same bits as
none. Workers are threads: preparing a batch means copying patches out of a memory map and flipping
them, and numpy lets other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import DivergedError, HardnetError, MissingExtraError
from hardnet.frames import patch_ticks
from hardnet.images import Pixels
from hardnet.patchsets.patchset import Ints, PatchSet
from hardnet.threads import in_order


@dataclass(frozen=True)
class Batch:
    """The patches of one step, (n, S, S) each; each anchor shows a different 3D point.

    ``teacher``: the teacher's (N, D) descriptors of anchors and positives of all processes.
    """

    step: int
    anchors: Pixels
    positives: Pixels
    negatives: Pixels | None = None
    teacher: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


Teacher = Callable[[Ints, "Flips | None"], NDArray[np.float32]]
"""(n,) numbers of patches and how they are flipped -> (n, D) the teacher's unit vectors."""


@dataclass(frozen=True)
class Batches:
    """Batch number t of a training run.

    ``augment`` flips and rotates, all patches of a pair alike. ``rows`` are the pairs of each batch
    that this process trains on. ``shade`` is the share of patches with an edge of light; the
    teacher sees them without.
    """

    train_set: PatchSet
    sampler: PairSampler
    augment: bool
    seed: int
    rows: slice = field(default_factory=lambda: slice(None))
    teacher: Teacher | None = None
    shade: float = 0.0

    def __call__(self, step: int, mined: Ints | None = None) -> Batch:
        """The patches of a step; ``mined`` (N,) has the hard negative of each patch of the set."""
        everyone = self.sampler(step)
        anchors, positives = (index[self.rows] for index in everyone)
        count, flips, teacher = self.sampler.batch, None, None
        if self.augment:
            flips = Flips.draw(count, np.random.default_rng([self.seed, step, AUGMENT]))
        lights = np.random.default_rng([self.seed, step, LIGHT])
        if self.teacher is not None:  # the loss is computed from the whole batch everywhere
            teacher = self.teacher(everyone[0], flips), self.teacher(everyone[1], flips)

        def take(index: Ints) -> Pixels:
            patches = self.train_set.patches[index]
            if flips is not None:
                patches = flips[self.rows](patches)
            if self.shade:
                patches = Shade.draw(count, self.shade, lights)[self.rows](patches)
            return patches

        negatives = None if mined is None else take(mined[anchors])
        return Batch(step, take(anchors), take(positives), negatives, teacher)


def prefetched(
    make: Callable[[int], Batch], first: int, last: int, workers: int
) -> Generator[Batch]:
    """Batches ``first`` ... ``last - 1`` in order, made ahead of time by ``workers`` threads.

    At most ``workers + 1`` wait to be taken.
    """
    with ThreadPoolExecutor(workers, "batches") as pool:
        yield from in_order(pool, make, range(first, last), workers + 1)


SYMMETRIES = 4


@dataclass(frozen=True)
class Flips:
    """Whether each of n pairs is transposed, and then mirrored.

    These four of the eight symmetries of the square are those of the published training.
    """

    transpose: NDArray[np.bool_]
    mirror: NDArray[np.bool_]

    @classmethod
    def draw(cls, pairs: int, rng: np.random.Generator) -> Flips:
        return cls(rng.random(pairs) < 0.5, rng.random(pairs) < 0.5)

    @classmethod
    def alike(cls, pairs: int, number: int) -> Flips:
        """The same symmetry for ``pairs`` pairs: one of 0 (identity) ... 3, see ``numbers``."""
        return cls(np.full(pairs, number % 2 == 1), np.full(pairs, number >= 2))

    @property
    def numbers(self) -> Ints:
        """(n,) the symmetry of each pair as a number, 0 ... SYMMETRIES - 1."""
        return self.transpose + 2 * self.mirror.astype(np.int64)

    def __getitem__(self, rows: slice) -> Flips:
        return Flips(self.transpose[rows], self.mirror[rows])

    def __call__(self, patches: Pixels) -> Pixels:
        """Flip patch i of (n, ..., S, S) as pair i is flipped; the anchors and positives alike."""
        out = np.array(patches)
        out[self.transpose] = patches[self.transpose].swapaxes(-1, -2)
        out[self.mirror] = out[self.mirror][..., ::-1]
        return out


AUGMENT, DROPOUT, SAMPLING, MINING, LIGHT = 1, 2, 3, 4, 5
"""Streams of random numbers of a step; pairs are drawn with (seed, step) alone."""


def seed_of(seed: int, number: int, stream: int) -> int:
    """A seed for one purpose in one step (or epoch) of a run."""
    return int(np.random.default_rng([seed, number, stream]).integers(2**63))


Column = NDArray[np.float32]

GAIN = 1.6  # the largest logarithm of the gain beyond an edge, up or down: five times the light


@dataclass(frozen=True)
class Shade:
    """A straight edge of light across each of n patches, like the edge of a shadow; (n,) arrays.

    ``data build`` changes the light of whole photographs, once; here each patch gets a new edge
    every time it is seen. ``gain`` is the logarithm of the gain beyond the edge, 0 for no edge;
    ``angle`` is the direction of its normal; ``offset`` from the centre and ``softness`` are in
    half sides.
    """

    gain: Column
    angle: Column
    offset: Column
    softness: Column

    @classmethod
    def draw(cls, patches: int, share: float, rng: np.random.Generator) -> Shade:
        """Edges for a ``share`` of ``patches`` patches, from hard to as soft as half a patch."""
        lit = rng.random(patches) < share
        return cls(
            np.where(lit, rng.uniform(-GAIN, GAIN, patches), 0).astype(np.float32),
            rng.uniform(0, 2 * np.pi, patches).astype(np.float32),
            rng.uniform(-0.9, 0.9, patches).astype(np.float32),
            (10 ** rng.uniform(-1.5, 0, patches)).astype(np.float32),
        )

    def __getitem__(self, rows: slice) -> Shade:
        return Shade(*(column[rows] for column in vars(self).values()))

    def __call__(self, patches: Pixels) -> Pixels:
        """Light patch i of (n, S, S) by edge i; its brightest pixel stays as bright."""
        lit = np.flatnonzero(self.gain)
        out = np.array(patches)
        ticks = patch_ticks(patches.shape[-1])
        gain, angle, offset, softness = (column[lit, None, None] for column in vars(self).values())
        line = np.cos(angle) * ticks[None, None] + np.sin(angle) * ticks[None, :, None]
        chosen = out[lit].astype(np.float32)
        behind = 0.5 + 0.5 * np.tanh((line - offset) / softness)
        light = chosen * np.exp(gain * behind)
        before, after = (values.max((1, 2), keepdims=True) for values in (chosen, light))
        brightest = before / np.maximum(after, np.float32(1e-6))
        out[lit] = light * brightest + np.float32(0.5)
        return out


_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 fill [0, 1) evenly, however many are taken


class PairSampler:
    """The pairs of batch t, one per 3D point, as a function of (seed, t) alone.

    Points are drawn uniformly, whatever their number of patches, and then two different patches of
    each. A point with a single patch is never drawn. In a union of ``sets``, (N,) numbers from 0,
    ``weights`` are the share of the pairs that each set gives; without them a set counts by its
    number of points. A batch may also be filled image by image from ``few`` of the (N,) ``images``,
    or from more if these have too few points: the anchors of an image then have its other points as
    negatives, as in matching, and the positive is always of another image.
    """

    def __init__(
        self,
        points: Ints,
        batch: int,
        seed: int,
        sets: Ints | None = None,
        weights: Sequence[float] = (),
        images: Ints | None = None,
        few: int = 0,
    ) -> None:
        if few and images is None:
            raise HardnetError(
                f"images={few} fills batches from {few} images, and a patch set does not say which "
                "image its patches are of (second column of info.txt): build it again, leave it "
                "out, or use images=0"
            )
        if not few or images is None:
            images = np.zeros_like(points)
        self._order = np.lexsort((images, points))
        seen = images[self._order]
        _, first, counts = np.unique(points[self._order], return_index=True, return_counts=True)
        usable, what = counts > 1, "points with two patches or more"
        if few:
            usable = np.minimum.reduceat(seen, first) < np.maximum.reduceat(seen, first)
            what = "points in two images or more"
        self._first, self._counts = first[usable], counts[usable]
        self.batch, self.seed = batch, seed
        if len(self._first) < batch:
            raise HardnetError(
                f"a batch of {batch} needs as many {what}, "
                f"and the set has {len(self._first)}: use a smaller batch or a larger set"
            )
        count = 1 if sets is None else int(sets.max()) + 1
        self._shares = shares_of_sets(weights, count)
        self._members = [np.arange(len(self._first))]  # the points of each set
        if count > 1 and len(weights) and sets is not None:
            set_of_point = sets[self._order[self._first]]
            self._members = [np.flatnonzero(set_of_point == k) for k in range(count)]
            needed = np.ceil(np.round(batch * self._shares, 9)).astype(int)
            for k, members in enumerate(self._members):
                if len(members) < needed[k]:
                    raise HardnetError(
                        f"weight {weights[k]:g} of set {k + 1} asks for {needed[k]} of the {batch} "
                        f"pairs of a batch, and the set has {len(members)} {what}: "
                        "use a smaller weight, a smaller batch or a larger set"
                    )
        self._sightings: list[Sightings] = []
        if few:
            self._sightings = [
                Sightings(seen, self._first[points], self._counts[points], -(-batch // few))
                for points in self._members
            ]

    def __call__(self, step: int) -> tuple[Ints, Ints]:
        """Patch indices of batch ``step``: (batch,) anchors and (batch,) positives."""
        rng = np.random.default_rng([self.seed, step])
        union = len(self._members) > 1
        sizes = split_batch(self.batch, self._shares, step) if union else [self.batch]
        if self._sightings:
            drawn = [s.draw(size, rng) for s, size in zip(self._sightings, sizes, strict=True)]
            places = np.concatenate(drawn, axis=1)[:, rng.permutation(self.batch)]
            return self._order[places[0]], self._order[places[1]]
        chosen = np.concatenate(
            [
                members[rng.choice(len(members), size, replace=False)]
                for members, size in zip(self._members, sizes, strict=True)
            ]
        )
        if union:  # mixed, so that every part of a batch (the rows of one process) has all sets
            chosen = rng.permutation(chosen)
        first, counts = self._first[chosen], self._counts[chosen]
        a = rng.integers(0, counts)
        b = (a + rng.integers(1, counts)) % counts
        return self._order[first + a], self._order[first + b]


class Sightings:
    """Points and the images they are seen in, to draw a part of a batch from.

    A place is an index into the patches sorted by point, and by image within a point; ``images``
    (N,) is the image at each place. A sighting is one point in one image. Points have (P,)
    ``first`` places and ``counts`` of patches; ``share`` is the number of points an image gives, if
    it has as many.
    """

    def __init__(self, images: Ints, first: Ints, counts: Ints, share: int) -> None:
        point = np.repeat(np.arange(len(first)), counts)
        place = np.arange(len(point)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        changes = (np.diff(point) != 0) | (np.diff(images[place]) != 0)
        start = np.flatnonzero(np.append(True, changes))
        size = np.diff(start, append=len(place))
        order = np.argsort(images[place[start]], kind="stable")
        self._start, self._size = place[start[order]], size[order]
        self._point = point[start[order]]
        self._first, self._counts, self._share = first, counts, share
        image = images[self._start]
        self._ends = np.append(np.flatnonzero(np.diff(image)) + 1, len(image))
        self._begins = np.append(0, self._ends[:-1])
        self._times = np.bincount(self._point)[self._point]
        # A point seen in two images counts half in each, and an image with few points is drawn
        # more often because it gives fewer at a time: all points are about equally frequent.
        mass = np.add.reduceat(1 / self._times, self._begins)
        self._weight = mass * np.maximum(1, share / (self._ends - self._begins))

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """(2, count) places of anchors and positives, each pair of a different point."""
        order = np.argsort(rng.exponential(size=len(self._weight)) / self._weight)
        taken = np.zeros(len(self._first), bool)
        drawn: list[Ints] = [np.zeros(0, np.int64)]
        for image in cycle(order if count else ()):  # a second time round if there are few images
            free = np.arange(self._begins[image], self._ends[image])
            free = free[~taken[self._point[free]]]
            keys = rng.exponential(size=len(free)) * self._times[free]
            drawn.append(free[np.argsort(keys)[: min(self._share, count)]])
            taken[self._point[drawn[-1]]] = True
            count -= len(drawn[-1])
            if not count:
                break
        chosen = np.concatenate(drawn)
        point, start, size = self._point[chosen], self._start[chosen], self._size[chosen]
        first, counts = self._first[point], self._counts[point]
        anchors = start + rng.integers(0, size)
        # The patches of the same image lie in a row: one of the others, counted from its end.
        after = start - first + size + rng.integers(0, counts - size)
        return np.stack([anchors, first + after % counts])


def split_batch(batch: int, shares: NDArray[np.float64], step: int) -> list[int]:
    """How many pairs of batch ``step`` each set gives; they sum to ``batch``.

    Systematic rounding: the shares (K,) are laid end to end on a line of length ``batch``, and the
    whole numbers plus an offset are the pairs. The offset moves by the golden ratio from step to
    step, so after any number of steps the total is off by a few pairs at most.
    """
    ends = np.round(batch * np.cumsum(shares), 9)  # so that whole shares stay whole
    ends[-1] = batch
    offset = (step * _GOLDEN) % 1.0
    return [int(n) for n in np.diff(np.floor(ends + offset), prepend=0)]


def shares_of_sets(weights: Sequence[float], count: int) -> NDArray[np.float64]:
    """(count,) the share of each set in the pairs, from ``weights``: one for each set, or none."""
    if not len(weights):
        return np.full(count, 1 / count)
    given = np.asarray(weights, np.float64)
    if len(given) != count:
        raise HardnetError(
            f"weights has {len(given)} numbers for {count} patch sets: give one for each set, "
            "or none to count every point alike"
        )
    if not (np.isfinite(given) & (given > 0)).all():
        raise HardnetError(
            f"weights must be positive numbers, got {', '.join(f'{w:g}' for w in given)}: "
            "leave out a set that is not to be used"
        )
    return np.asarray(given / given.sum())


NEIGHBOURS = 12  # as in the published code; the patch itself is one of them
QUERIES = 16_384  # at a time, so that ctrl-C takes effect


def mine(
    descriptors: NDArray[np.float32], points: Ints, seed: int, neighbours: int = NEIGHBOURS
) -> Ints:
    """Classical mining: (N,) a hard negative of each patch, from (N, D) vectors and (N,) points.

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
