"""The map that most pairs of two images agree with: every pair is a hypothesis.

A model is a map and its inverse, (12,): two (2, 3) matrices, row by row. Everything here is numpy;
``compiled/hypotheses`` does the same, step by step, as machine code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

STEPS = 4
"""Least squares of the local optimisation, while the threshold shrinks from sqrt(2) to 1 times
the squared one (Lebeda et al. 2012)."""

HYPOTHESIS_INLIERS = 3
"""A hypothesis with fewer inliers is not refined."""

NEARLY_ALL = 64
"""If all but one of this many query features agree, no other hypothesis is tried."""

AXES_WEIGHT = 0.1
"""What a frame's axes weigh in least squares, where its centre weighs 1. Axes are short and
imprecise; they decide where centres leave the map open: on a line, or on one spot."""

SLACK = 1.001
"""A quick count may be too high, never too low: its thresholds are wider by this."""

AT_ONCE = 64
"""Hypotheses that are counted at once; of a good image, the first few are enough."""


def verify(
    bounds: Integers,
    features: Integers,
    places: Integers,
    distances: Integers,
    query_views: Integers,
    query_frames: Floats,
    image_frames: Floats,
    limit: float,
    area_ratio: float,
    min_inliers: int,
    max_hypotheses: int,
) -> tuple[Integers, Integers, Floats, Flags]:
    """The best affine map of each image: (n,) inliers, (n,) views, (n, 6) models, (m,) which pairs.

    The pairs of image i begin at ``bounds[i]``. Of each pair (m,): the query feature, ascending
    within an image; a number of the image's feature; the Hamming distance; the frame (m, 6) in the
    image. Of each query feature (N,): its view, ascending, and its frame (N, 6). ``limit`` is of an
    inlier's squared transfer error there and back; fewer than ``min_inliers`` are none;
    ``max_hypotheses`` pairs of each view are hypotheses.
    """
    images = len(bounds) - 1
    counts, best_views = np.zeros(images, np.int64), np.zeros(images, np.int64)
    models, inliers = np.zeros((images, 6)), np.zeros(len(features), bool)
    views = query_views[features]
    for image in range(images):
        first, end = int(bounds[image]), int(bounds[image + 1])
        while first < end:
            last = first + int(np.searchsorted(views[first:end], views[first], "right"))
            mine = slice(first, last)
            ours, theirs = query_frames[features[mine]], image_frames[mine]
            pairs = Pairs(features[mine], places[mine], ours, theirs, float(np.log(area_ratio)))
            first = last
            if pairs.different < min_inliers:
                continue
            nearest_first = np.argsort(distances[mine], kind="stable")[:max_hypotheses]
            count, model, chosen = best_model(pairs, nearest_first, limit)
            if count >= min_inliers and count > counts[image]:
                counts[image], best_views[image] = count, views[mine.start]
                models[image] = model[:6]
                inliers[bounds[image] : end] = False
                inliers[mine] = chosen
    return counts, best_views, models, inliers


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of one view of the query with one image."""

    features: Integers  # (m,) ascending
    places: Integers  # (m,)
    query: Floats  # (m, 6) frames
    image: Floats  # (m, 6)
    log_ratio: float  # by how much the area of an inlier may differ from the model's

    @cached_property
    def starts(self) -> Integers:
        """(n,) the first pair of each query feature."""
        return np.flatnonzero(np.diff(self.features, prepend=-1))

    @property
    def different(self) -> int:
        """How many query features there are."""
        return len(self.starts)

    @cached_property
    def growth(self) -> Floats:
        """(m,) log of the ratio of areas; NaN, neither a hypothesis nor an inlier, if one is 0."""
        ours, theirs = area_of(self.query.T), area_of(self.image.T)
        good = np.minimum(ours, theirs) > 0
        growth = np.full(len(good), np.nan)
        growth[good] = np.log(theirs[good] / ours[good])
        return growth

    @cached_property
    def models(self) -> Floats:
        """(12, m) the models that carry the one frame of each pair onto the other."""
        source, target = self.query.T, self.image.T
        with np.errstate(all="ignore"):  # frames without area, which are no hypotheses
            area = area_of(source)
            a, b = source[4] / area, -source[1] / area
            d, e = -source[3] / area, source[0] / area
            p, q = target[0] * a + target[1] * d, target[0] * b + target[1] * e
            r, s = target[3] * a + target[4] * d, target[3] * b + target[4] * e
            shift_x = target[2] - p * source[2] - q * source[5]
            shift_y = target[5] - r * source[2] - s * source[5]
            return model_of(p, q, r, s, shift_x, shift_y)

    def errors(self, model: Floats) -> Floats:
        """(m,) squared transfer errors there and back; (h, m) of models (12, h, 1)."""
        x, y, u, v = self.query[:, 2], self.query[:, 5], self.image[:, 2], self.image[:, 5]
        there_x = model[0] * x + model[1] * y + model[2] - u
        there_y = model[3] * x + model[4] * y + model[5] - v
        back_x = model[6] * u + model[7] * v + model[8] - x
        back_y = model[9] * u + model[10] * v + model[11] - y
        errors: Floats = there_x**2 + there_y**2 + back_x**2 + back_y**2
        return errors

    def most(self, hypotheses: Integers, limit: float) -> list[int]:
        """Of each hypothesis, as many query features as may agree with it; 0 if it is none."""
        growth = self.growth[hypotheses, None]
        with np.errstate(all="ignore"):
            fits = self.errors(self.models[:, hypotheses, None]) < limit * SLACK
        fits &= np.abs(self.growth - growth) < self.log_ratio * SLACK
        counts: list[int] = np.logical_or.reduceat(fits, self.starts, axis=1).sum(axis=1).tolist()
        return counts

    def select(self, model: Floats, limit: float) -> tuple[int, Flags]:
        """Inliers of a model, one to one: each query feature takes the nearest free image feature.

        How many, and (m,) which.
        """
        errors = self.errors(model)
        chosen = errors < limit
        chosen &= np.abs(self.growth - np.log(area_of(model))) < self.log_ratio
        fitting = np.flatnonzero(chosen)
        features, places = self.features[fitting].tolist(), self.places[fitting].tolist()
        if len(set(features)) == len(set(places)) == len(fitting):
            return len(fitting), chosen
        chosen[:] = False
        taken: dict[int, int] = {}  # image feature -> pair
        turn, nearest, least, held = -1, -1, np.inf, -1  # of the query feature whose turn it is
        far = errors[fitting].tolist()
        for j, feature, place, error in zip(fitting.tolist(), features, places, far, strict=True):
            if feature != turn:
                if nearest >= 0:
                    taken[held] = nearest
                turn, nearest, least = feature, -1, np.inf
            if error < least and place not in taken:
                nearest, least, held = j, error, place
        if nearest >= 0:
            taken[held] = nearest
        chosen[list(taken.values())] = True
        return len(taken), chosen

    def fit(self, chosen: Flags) -> Floats | None:
        """Least squares over the centres of the chosen pairs and, weakly, over their axes."""
        if not chosen.any():
            return None
        ours, theirs = self.query[chosen], self.image[chosen]
        # Sums in the order of the pairs, so that they are those of any other loop over them.
        middle = np.cumsum(np.concatenate([ours, theirs], 1)[:, [2, 5, 8, 11]], axis=0)[-1]
        x, y, u, v = middle / len(ours)
        sides = np.concatenate([ours, theirs], 1).reshape(-1, 4, 3)
        sides[:, :, 2] -= (x, y, u, v)
        p, q, r, s = sides.transpose(1, 0, 2).reshape(4, -1)
        weight = np.tile([AXES_WEIGHT, AXES_WEIGHT, 1.0], len(ours))
        wp, wq = weight * p, weight * q
        products = np.stack([wp * p, wp * q, wq * q, wp * r, wq * r, wp * s, wq * s])
        xx, xy, yy, xu, yu, xv, yv = np.cumsum(products, axis=1)[:, -1]
        scale = xx * yy - xy * xy
        with np.errstate(all="ignore"):
            a, b = (xu * yy - yu * xy) / scale, (yu * xx - xu * xy) / scale
            c, d = (xv * yy - yv * xy) / scale, (yv * xx - xv * xy) / scale
        # Also None for NaN. A map that mirrors is none that a camera makes.
        if not a * d - b * c > 0:
            return None
        return model_of(a, b, c, d, u - a * x - b * y, v - c * x - d * y)


def best_model(pairs: Pairs, hypotheses: Integers, limit: float) -> tuple[int, Floats, Flags]:
    """Try the hypotheses in their order and refine those that win: inliers, model, (m,) which."""
    best, best_chosen = 0, np.zeros(len(pairs.features), bool)
    best_found = np.zeros(12)
    for first in range(0, len(hypotheses), AT_ONCE):
        some = hypotheses[first : first + AT_ONCE]
        for i, most in zip(some.tolist(), pairs.most(some, limit), strict=True):
            if best >= pairs.different - pairs.different // NEARLY_ALL:  # there are hardly more
                return best, polished(pairs, best_chosen, best, limit, best_found), best_chosen
            enough = max(best, HYPOTHESIS_INLIERS - 1)
            if most <= enough:
                continue
            model: Floats | None = pairs.models[:, i]
            assert model is not None
            count, chosen = pairs.select(model, limit)
            if count <= enough:
                continue
            best, best_found, best_chosen = count, model, chosen
            for step in range(STEPS):
                model = pairs.fit(chosen)
                if model is None:
                    break
                last = step == STEPS - 1
                near = limit if last else limit * (2**0.5 - (2**0.5 - 1) * step / (STEPS - 1))
                count, chosen = pairs.select(model, near)
                if count < HYPOTHESIS_INLIERS:
                    break
                if last and count >= best:
                    best, best_found, best_chosen = count, model, chosen
    if best:
        best_found = polished(pairs, best_chosen, best, limit, best_found)
    return best, best_found, best_chosen


def polished(pairs: Pairs, chosen: Flags, count: int, limit: float, model: Floats) -> Floats:
    """The model fitted to those inliers that fit best, as long as they are half of them.

    The published threshold is wide; a pair at its edge is right about the object and wrong about
    where exactly it is.
    """
    while limit > 1.0:
        limit /= 2
        near = chosen & (pairs.errors(model) < limit)
        if near.sum() < max(HYPOTHESIS_INLIERS, (count + 1) // 2):
            break
        refined = pairs.fit(near)
        if refined is None:
            break
        model = refined
    return model


def area_of(frame: Any) -> Any:
    """The determinant of a frame: a quarter of the area of its patch; negative if it mirrors."""
    return frame[0] * frame[4] - frame[1] * frame[3]


def model_of(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Floats:
    """(12, ...) a map, rows as in a (2, 3) matrix, and its inverse."""
    area = a * d - b * c
    g, h, k, m = d / area, -b / area, -c / area, a / area
    return np.array([a, b, e, c, d, f, g, h, -(g * e + h * f), k, m, -(k * e + m * f)])
