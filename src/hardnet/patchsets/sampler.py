"""Training batches: one pair of patches per 3D point, no point twice in a batch.

Points are drawn uniformly, whatever their number of patches, so a point seen in a hundred photos
counts as much as one seen in two. Of the chosen point any two different patches are drawn, each
ordered pair of them as often as any other. A point with a single patch is never drawn.

In a union of sets, weights say which share of the pairs each set gives. Without weights the points
of all sets are alike, so a set counts by its number of points.

A batch may also be filled image by image from a few images. The anchors of an image then meet the
other points of the same image as their negatives, as they do in matching. The positive is always of
another image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError

_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 fill [0, 1) evenly, however many are taken


class PairSampler:
    """Batch number t of a training run, as a function of (seed, t) alone.

    Nothing is remembered between batches, so a resumed run continues with exactly the batches the
    uninterrupted run would have seen, and batches can be made in any order.

    Args:
        points: (N,) the 3D point of each patch.
        batch: pairs per batch, each of another point.
        seed: of the run.
        sets: (N,) the set of each patch, 0 ... K - 1; None for a single set.
        weights: K positive numbers in any unit, the share of each set in the pairs; empty: every
            point of every set is drawn equally often.
        images: (N,) the image each patch was cut from; only needed if ``few`` is positive.
        few: images that a batch is filled from, each with its share of the pairs; more where they
            have fewer points than that. 0 draws points wherever they are.
    """

    def __init__(
        self,
        points: NDArray[np.int64],
        batch: int,
        seed: int,
        sets: NDArray[np.int64] | None = None,
        weights: Sequence[float] = (),
        images: NDArray[np.int64] | None = None,
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
        _, first, counts = np.unique(points[self._order], return_index=True, return_counts=True)
        usable = counts > 1
        if few:
            seen = images[self._order]
            usable = np.minimum.reduceat(seen, first) < np.maximum.reduceat(seen, first)
        self._first, self._counts = first[usable], counts[usable]
        self.batch, self.seed = batch, seed
        self._what = f"points {'in two images' if few else 'with two patches'} or more"
        if len(self._first) < batch:
            raise HardnetError(
                f"a batch of {batch} needs as many {self._what}, "
                f"and the set has {len(self._first)}: use a smaller batch or a larger set"
            )
        count = 1 if sets is None else int(sets.max()) + 1
        self._shares = _checked_shares(weights, count)
        self._members: list[NDArray[np.int64]] = []
        if count > 1 and len(weights) and sets is not None:
            set_of_point = sets[self._order[self._first]]
            self._members = [np.flatnonzero(set_of_point == k) for k in range(count)]
            self._check_members(weights)
        self._sightings: list[Sightings] = []
        if few:
            rows = self._members or [np.arange(len(self._first))]
            seen, share = images[self._order], -(-batch // few)
            self._sightings = [
                Sightings(seen, self._first[own], self._counts[own], share) for own in rows
            ]

    def __call__(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Patch indices of batch ``step``: (batch,) anchors and (batch,) positives."""
        rng = np.random.default_rng([self.seed, step])
        if self._sightings:
            anchors, positives = self._order[self._draw_from_images(step, rng)]
            return anchors, positives
        chosen = self._choose(step, rng)
        first, counts = self._first[chosen], self._counts[chosen]
        a = rng.integers(0, counts)
        b = (a + rng.integers(1, counts)) % counts
        return self._order[first + a], self._order[first + b]

    def _choose(self, step: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(batch,) different points, as numbers into ``_first``."""
        if not self._members:
            return rng.choice(len(self._first), self.batch, replace=False)
        counts = split_batch(self.batch, self._shares, step)
        drawn = [
            members[rng.choice(len(members), count, replace=False)]
            for members, count in zip(self._members, counts, strict=True)
        ]
        # Mixed, so that any part of a batch (the rows of one process) has all sets in it.
        return rng.permutation(np.concatenate(drawn))

    def _draw_from_images(self, step: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(2, batch) places of anchors and positives, mixed as in :meth:`_choose`."""
        counts = split_batch(self.batch, self._shares, step) if self._members else [self.batch]
        drawn = [s.draw(count, rng) for s, count in zip(self._sightings, counts, strict=True)]
        return np.concatenate(drawn, axis=1)[:, rng.permutation(self.batch)]

    def _check_members(self, weights: Sequence[float]) -> None:
        for k, (share, members) in enumerate(zip(self._shares, self._members, strict=True)):
            needed = int(np.ceil(round(self.batch * share, 9)))
            if len(members) < needed:
                raise HardnetError(
                    f"weight {weights[k]:g} of set {k + 1} asks for {needed} of the {self.batch} "
                    f"pairs of a batch, and the set has {len(members)} {self._what}: "
                    "use a smaller weight, a smaller batch or a larger set"
                )


class Sightings:
    """Points and the images they are seen in, to draw a part of a batch from.

    A place is a number into the patches sorted by point, and by image within a point. A sighting is
    one point in one image: one patch, or several in a row.

    Args:
        images: (N,) the image of the patch at each place.
        first: (P,) first place of each point.
        counts: (P,) patches of each point; they are of two images or more.
        share: points taken from an image, or all it has if they are fewer.
    """

    def __init__(
        self,
        images: NDArray[np.int64],
        first: NDArray[np.int64],
        counts: NDArray[np.int64],
        share: int,
    ) -> None:
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
        # more often, as it gives fewer at a time: so all points are about equally frequent.
        mass = np.add.reduceat(1 / self._times, self._begins)
        self._weight = mass * np.maximum(1, share / (self._ends - self._begins))

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(2, count) places of anchors and positives, each pair of another point."""
        chosen = self._choose(count, rng)
        point, start, size = self._point[chosen], self._start[chosen], self._size[chosen]
        first, counts = self._first[point], self._counts[point]
        anchors = start + rng.integers(0, size)
        # The patches of the same image lie in a row: one of the others, counted from its end.
        after = start - first + size + rng.integers(0, counts - size)
        return np.stack([anchors, first + after % counts])

    def _choose(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(count,) sightings of different points, of as few images as have enough."""
        order = np.argsort(rng.exponential(size=len(self._weight)) / self._weight)
        taken = np.zeros(len(self._first), bool)
        drawn: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        while count:  # a second time round if there are few images
            for image in order:
                free = np.arange(self._begins[image], self._ends[image])
                free = free[~taken[self._point[free]]]
                keys = rng.exponential(size=len(free)) * self._times[free]
                some = free[np.argsort(keys)[: min(self._share, count)]]
                taken[self._point[some]] = True
                drawn.append(some)
                count -= len(some)
                if not count:
                    break
        return np.concatenate(drawn)


def split_batch(batch: int, shares: NDArray[np.float64], step: int) -> list[int]:
    """How many pairs of batch ``step`` each set gives; they sum to ``batch``.

    Systematic rounding: the shares (K,), of sum 1, are laid end to end on a line of length
    ``batch``, and the whole numbers plus an offset are the pairs. Each set gets its share rounded
    down or up. The offset moves by the golden ratio from step to step, so the mean over the steps
    is the exact share, and after any number of steps the total is off by a few pairs at most.
    """
    ends = np.round(batch * np.cumsum(shares), 9)  # so that whole shares stay whole
    ends[-1] = batch
    offset = (step * _GOLDEN) % 1.0
    return [int(n) for n in np.diff(np.floor(ends + offset), prepend=0)]


def _checked_shares(weights: Sequence[float], count: int) -> NDArray[np.float64]:
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
