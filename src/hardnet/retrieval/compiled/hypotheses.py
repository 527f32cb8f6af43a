"""``retrieval.hypotheses`` as machine code: the map that most pairs agree with.

Pairs are counted in single precision, and no further than needed; all else is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.retrieval.compiled.kernels import compiled, compiled_sums
from hardnet.retrieval.hypotheses import (
    AXES_WEIGHT,
    HYPOTHESIS_INLIERS,
    NEARLY_ALL,
    SLACK,
    STEPS,
)
from hardnet.retrieval.vocabulary import BITS

BLOCK = 32
"""Pairs that are counted at once: whole vectors of the processor."""


@compiled
def verify(
    bounds: Any,
    features: Any,
    places: Any,
    distances: Any,
    query_views: Any,
    query_frames: Any,
    image_frames: Any,
    limit: float,
    area_ratio: float,
    min_inliers: int,
    max_hypotheses: int,
) -> Any:
    """See ``hypotheses.verify``."""
    images = len(bounds) - 1
    paired_frames = np.empty((len(features), 6))
    for j in range(len(features)):
        for k in range(6):
            paired_frames[j, k] = query_frames[features[j], k]
    counts, best_views = np.zeros(images, np.int64), np.zeros(images, np.int64)
    models, inliers = np.zeros((images, 6)), np.zeros(len(features), np.bool_)
    longest = 0
    for place in places:
        longest = max(longest, place + 1)
    # A feature of the image is taken if its number here is that of the attempt.
    taken, attempt = np.zeros(longest, np.int64), np.zeros(1, np.int64)
    for image in range(images):
        first = bounds[image]
        while first < bounds[image + 1]:
            last = first
            view = query_views[features[first]]
            while last < bounds[image + 1] and query_views[features[last]] == view:
                last += 1
            pairs = slice(first, last)
            count, model, chosen = _best_model(
                features[pairs],
                places[pairs],
                distances[pairs],
                paired_frames[pairs],
                image_frames[pairs],
                limit,
                np.log(area_ratio),
                max_hypotheses,
                taken,
                attempt,
            )
            if count >= min_inliers and count > counts[image]:
                counts[image], best_views[image] = count, view
                for k in range(6):
                    models[image, k] = model[k]
                for j in range(bounds[image], last):
                    inliers[j] = j >= first and chosen[j - first]
            first = last
    return counts, best_views, models, inliers


@compiled
def _best_model(
    features: Any,
    places: Any,
    distances: Any,
    query: Any,
    image: Any,
    limit: float,
    log_ratio: float,
    max_hypotheses: int,
    taken: Any,
    attempt: Any,
) -> Any:
    """Try the hypotheses of one view, nearest signatures first, and refine those that win."""
    size, different = len(features), 0
    blocks = np.full((-(-size // BLOCK), 5, BLOCK), np.nan, np.float32)
    points, later = np.empty((5, size)), np.zeros(len(blocks), np.int64)
    own = np.zeros(len(blocks), np.int64)
    for j in range(size):
        new = j == 0 or features[j] != features[j - 1]
        different += new
        own[j // BLOCK] += new or j % BLOCK == 0
        if j % BLOCK == 0 and j > 0:
            later[j // BLOCK - 1] = different - 1
        points[0, j], points[1, j] = query[j, 2], query[j, 5]
        points[2, j], points[3, j] = image[j, 2], image[j, 5]
        areas = area_of(query[j]), area_of(image[j])
        # NaN is neither a hypothesis nor an inlier.
        points[4, j] = np.log(areas[1] / areas[0]) if min(areas) > 0 else np.nan
        for k in range(5):
            blocks[j // BLOCK, k, j % BLOCK] = points[k, j]
    for block in range(len(blocks) - 1):
        later[block] = different - later[block]
    best, best_model, best_chosen = 0, np.zeros(12), np.zeros(size, np.bool_)
    model, rough, chosen = np.empty(12), np.empty(12, np.float32), np.empty(size, np.bool_)
    fits = np.empty(len(blocks) * BLOCK, np.bool_)
    for i in _nearest_first(distances, max_hypotheses):
        if best >= different - different // NEARLY_ALL:  # there cannot be many more
            break
        if np.isnan(points[4, i]):
            continue
        frame_to_frame(query[i], image[i], model)
        _copy(model, rough)
        enough = max(best, HYPOTHESIS_INLIERS - 1)
        # Without one-to-one the count is quick, and no smaller: few hypotheses need the rest.
        if not _may_exceed(enough, blocks, own, later, points[4, i], rough, limit, log_ratio, fits):
            continue
        if _distinct(features, fits) <= enough:
            continue
        spare = different - enough
        count = _select(
            features, places, points, model, limit, log_ratio, taken, attempt, spare, fits, chosen
        )
        if count <= enough:
            continue
        best = count
        _copy(model, best_model)
        _copy(chosen, best_chosen)
        for step in range(STEPS):
            if not fit(query, image, chosen, model):
                break
            _copy(model, rough)
            last = step == STEPS - 1
            near = limit if last else limit * (2**0.5 - (2**0.5 - 1) * step / (STEPS - 1))
            growth = np.log(area_of(model))
            _may_exceed(-1, blocks, own, later, growth, rough, near, log_ratio, fits)
            count = _select(
                features, places, points, model, near, log_ratio, taken, attempt, size, fits, chosen
            )
            if count < HYPOTHESIS_INLIERS:
                break
            if last and count >= best:
                best = count
                _copy(model, best_model)
                _copy(chosen, best_chosen)
    if best:
        _polish(query, image, points, best_chosen, best, limit, best_model)
    return best, best_model, best_chosen


@compiled
def _nearest_first(distances: Any, most: int) -> Any:
    """Positions of the smallest distances, ascending, equal ones in their order."""
    starts = np.zeros(BITS + 2, np.int64)
    for distance in distances:
        starts[distance + 1] += 1
    for distance in range(BITS):
        starts[distance + 1] += starts[distance]
    order = np.empty(len(distances), np.int64)
    for j in range(len(distances)):
        order[starts[distances[j]]] = j
        starts[distances[j]] += 1
    return order[:most]


@compiled_sums
def _may_exceed(
    enough: int,
    blocks: Any,
    own: Any,
    later: Any,
    growth: float,
    model: Any,
    limit: float,
    log_ratio: float,
    fits: Any,
) -> bool:
    """Whether more than ``enough`` query features may agree with a model; and which pairs may.

    In single precision, and a block of pairs at a time, until too few features come ``later``. A
    block has ``own`` features, and as many agree at most, whatever the number of their pairs.
    """
    grown = np.float32(growth)
    most, ratio = np.float32(limit * SLACK), np.float32(log_ratio * SLACK)
    a, b, c, d, e, f = model[0], model[1], model[2], model[3], model[4], model[5]
    g, h, i, k, m, n = model[6], model[7], model[8], model[9], model[10], model[11]
    agree = 0
    for number in range(len(later)):
        block, count = blocks[number], np.int32(0)
        fit_here = fits[number * BLOCK : number * BLOCK + BLOCK]
        for j in range(BLOCK):
            x, y, u, v = block[0, j], block[1, j], block[2, j], block[3, j]
            there_x, there_y = a * x + b * y + (c - u), d * x + e * y + (f - v)
            back_x, back_y = g * u + h * v + (i - x), k * u + m * v + (n - y)
            error = there_x * there_x + there_y * there_y + back_x * back_x + back_y * back_y
            fit_here[j] = (error < most) & (abs(block[4, j] - grown) < ratio)
            count += np.int32(fit_here[j])
        agree += min(count, own[number])
        if agree + later[number] <= enough:
            return False
    return True


@compiled
def _distinct(features: Any, fits: Any) -> int:
    """Query features with a pair that may agree."""
    count, last = 0, -1
    for j in range(len(features)):
        if fits[j] and features[j] != last:
            last = features[j]
            count += 1
    return count


@compiled
def _select(
    features: Any,
    places: Any,
    points: Any,
    model: Any,
    limit: float,
    log_ratio: float,
    taken: Any,
    attempt: Any,
    spare: int,
    fits: Any,
    chosen: Any,
) -> int:
    """Inliers of a model, one to one: each query feature takes the nearest free image feature.

    Only pairs that may agree, ``fits``, are looked at. 0 as soon as ``spare`` query features are no
    inliers.
    """
    growth = np.log(area_of(model))
    attempt[0] += 1
    stamp = attempt[0]
    count, missed, j = 0, 0, 0
    while j < len(features):
        feature, nearest, least = features[j], -1, limit
        while j < len(features) and features[j] == feature:
            chosen[j] = False
            if fits[j] and taken[places[j]] != stamp and abs(points[4, j] - growth) < log_ratio:
                error = transfer_error(points, j, model)
                if error < least:
                    nearest, least = j, error
            j += 1
        if nearest >= 0:
            chosen[nearest] = True
            taken[places[nearest]] = stamp
            count += 1
        else:
            missed += 1
            if missed == spare:
                return 0
    return count


@compiled
def _polish(
    query: Any, image: Any, points: Any, chosen: Any, count: int, limit: float, model: Any
) -> None:
    """Fit the model to those inliers that fit best, as long as they are half of them.

    The published threshold is wide; a pair at its edge is right about the object and wrong about
    where exactly it is.
    """
    near, refined = np.empty(len(chosen), np.bool_), np.empty(len(model))
    _copy(model, refined)
    while limit > 1.0:
        limit /= 2
        left = 0
        for j in range(len(chosen)):
            near[j] = chosen[j] and transfer_error(points, j, refined) < limit
            left += near[j]
        if left < max(HYPOTHESIS_INLIERS, (count + 1) // 2) or not fit(query, image, near, refined):
            return
        _copy(refined, model)


@compiled
def _copy(source: Any, target: Any) -> None:
    """An assignment of whole arrays, which takes much longer to compile."""
    for k in range(len(source)):
        target[k] = source[k]


@compiled
def area_of(frame: Any) -> float:
    """The determinant of a frame: a quarter of the area of its patch; negative if it mirrors."""
    area: float = frame[0] * frame[4] - frame[1] * frame[3]
    return area


@compiled
def frame_to_frame(source: Any, target: Any, model: Any) -> None:
    """The model that carries one frame onto another."""
    area = area_of(source)
    a, b, d, e = source[4] / area, -source[1] / area, -source[3] / area, source[0] / area
    p, q = target[0] * a + target[1] * d, target[0] * b + target[1] * e
    r, s = target[3] * a + target[4] * d, target[3] * b + target[4] * e
    shift_x = target[2] - p * source[2] - q * source[5]
    shift_y = target[5] - r * source[2] - s * source[5]
    _set(model, p, q, r, s, shift_x, shift_y)


@compiled
def _set(model: Any, a: float, b: float, c: float, d: float, e: float, f: float) -> None:
    """Write a map and its inverse; rows as in a (2, 3) matrix."""
    model[0], model[1], model[2], model[3], model[4], model[5] = a, b, e, c, d, f
    area = a * d - b * c
    model[6], model[7], model[9], model[10] = d / area, -b / area, -c / area, a / area
    model[8] = -(model[6] * e + model[7] * f)
    model[11] = -(model[9] * e + model[10] * f)


@compiled
def transfer_error(points: Any, j: int, model: Any) -> float:
    """Squared transfer error of a pair, there and back."""
    x, y, u, v = points[0, j], points[1, j], points[2, j], points[3, j]
    there_x = model[0] * x + model[1] * y + model[2] - u
    there_y = model[3] * x + model[4] * y + model[5] - v
    back_x = model[6] * u + model[7] * v + model[8] - x
    back_y = model[9] * u + model[10] * v + model[11] - y
    error: float = there_x**2 + there_y**2 + back_x**2 + back_y**2
    return error


@compiled
def fit(query: Any, image: Any, chosen: Any, model: Any) -> bool:
    """Least squares over the centres of the chosen pairs and, weakly, over their axes."""
    count, x, y, u, v = 0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(chosen)):
        if chosen[j]:
            count += 1
            x, y, u, v = x + query[j, 2], y + query[j, 5], u + image[j, 2], v + image[j, 5]
    if count == 0:
        return False
    x, y, u, v = x / count, y / count, u / count, v / count
    xx, xy, yy, xu, yu, xv, yv = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(chosen)):
        if not chosen[j]:
            continue
        for column in range(3):
            if column == 2:
                weight = 1.0
                p, q = query[j, 2] - x, query[j, 5] - y
                r, s = image[j, 2] - u, image[j, 5] - v
            else:
                weight = AXES_WEIGHT
                p, q = query[j, column], query[j, column + 3]
                r, s = image[j, column], image[j, column + 3]
            xx, xy, yy = xx + weight * p * p, xy + weight * p * q, yy + weight * q * q
            xu, yu = xu + weight * p * r, yu + weight * q * r
            xv, yv = xv + weight * p * s, yv + weight * q * s
    scale = xx * yy - xy * xy
    a, b = (xu * yy - yu * xy) / scale, (yu * xx - xu * xy) / scale
    c, d = (xv * yy - yv * xy) / scale, (yv * xx - xv * xy) / scale
    # Also False for NaN. A map that mirrors is none that a camera makes.
    if not a * d - b * c > 0:
        return False
    _set(model, a, b, c, d, u - a * x - b * y, v - c * x - d * y)
    return True
