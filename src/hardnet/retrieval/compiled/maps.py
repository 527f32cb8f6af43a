"""``verification.best_maps`` as machine code: the map that most pairs agree with.

Pairs are first counted in single precision, and no further than needed; all else is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.retrieval import verification
from hardnet.retrieval.compiled.kernels import compiled, compiled_sums, copy
from hardnet.retrieval.verification import (
    AXES_WEIGHT,
    HYPOTHESIS_INLIERS,
    NEARLY_ALL,
    SLACK,
    WIDENINGS,
)
from hardnet.retrieval.vocabulary import BITS

BLOCK = 32
"""Pairs that are counted at once: whole vectors of the processor."""

area_of = compiled(verification.area_of)


@compiled
def best_maps(bounds: Any, pairs: Any, query: Any, image: Any, rules: Any) -> Any:
    counts, maps = np.zeros(len(bounds) - 1, np.int64), np.zeros((len(bounds) - 1, 6))
    inliers = np.zeros(len(query), np.bool_)
    # Locals: taking an array out of a tuple counts its references, which takes time in a loop.
    features, places, distances = pairs.features, pairs.places, pairs.distances
    for number in range(len(counts)):
        first, last = bounds[number], bounds[number + 1]
        if last - first >= rules.min_inliers:
            counts[number] = _best_map(
                _numbered(features[first:last]),
                places[first:last],
                query[first:last],
                image[first:last],
                _nearest_first(distances[first:last], rules.max_hypotheses),
                rules.limit,
                rules.log_ratio,
                maps[number],
                inliers[first:last],
            )
    return counts, maps, inliers


@compiled
def _numbered(features: Any) -> Any:
    numbers = np.zeros(len(features), np.int64)
    for j in range(1, len(features)):
        numbers[j] = numbers[j - 1] + (features[j] != features[j - 1])
    return numbers


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


@compiled
def _best_map(
    features: Any,
    places: Any,
    query: Any,
    image: Any,
    hypotheses: Any,
    limit: float,
    log_ratio: float,
    best_map: Any,
    best_chosen: Any,
) -> int:
    """How many inliers the best hypothesis has; writes its map and which pairs they are."""
    size, different = len(features), features[-1] + 1
    # Of each pair both centres and the log of the ratio of areas, in single precision.
    blocks = np.full((-(-size // BLOCK), 5, BLOCK), np.nan, np.float32)
    growth = np.empty(size)
    for j in range(size):
        areas = area_of(query[j]), area_of(image[j])
        # NaN is neither a hypothesis nor an inlier.
        growth[j] = np.log(areas[1] / areas[0]) if min(areas) > 0 else np.nan
        values = query[j, 2], query[j, 5], image[j, 2], image[j, 5], growth[j]
        for k in range(5):
            blocks[j // BLOCK, k, j % BLOCK] = values[k]
    pairs, taken = (features, places, query, image, growth), np.empty(places.max() + 1, np.bool_)
    best, best_model, model = 0, np.zeros(12), np.empty(12)
    chosen, fits = np.empty(size, np.bool_), np.empty(len(blocks) * BLOCK, np.bool_)
    for i in hypotheses:
        if best >= different - different // NEARLY_ALL:  # there cannot be many more
            break
        if np.isnan(growth[i]):
            continue
        frame_to_frame(query[i], image[i], model)
        enough = max(best, HYPOTHESIS_INLIERS - 1)
        # Without one-to-one the count is quick, and no smaller: few hypotheses need the rest.
        if not _may_exceed(enough, features, blocks, growth[i], model, limit, log_ratio, fits):
            continue
        if _distinct(features, fits) <= enough:
            continue
        spare = different - enough
        count = _select(*pairs, model, limit, log_ratio, spare, fits, taken, chosen)
        if count <= enough:
            continue
        best = count
        copy(model, best_model)
        copy(chosen, best_chosen)
        for widening in WIDENINGS:
            if not fit(query, image, chosen, model):
                break
            near, grown = limit * widening, np.log(area_of(model))
            _may_exceed(-1, features, blocks, grown, model, near, log_ratio, fits)
            count = _select(*pairs, model, near, log_ratio, size, fits, taken, chosen)
            if count < HYPOTHESIS_INLIERS:
                break
        else:
            if count >= best:
                best = count
                copy(model, best_model)
                copy(chosen, best_chosen)
    if best:
        _polish(query, image, best_chosen, best, limit, best_model)
    copy(best_model[:6], best_map)
    return best


@compiled_sums
def _may_exceed(
    enough: int,
    features: Any,
    blocks: Any,
    growth: float,
    model: Any,
    limit: float,
    log_ratio: float,
    fits: Any,
) -> bool:
    """Whether more than ``enough`` query features may agree with a model; and which pairs may.

    In single precision, and a block of pairs at a time, until too few features are left. Of the
    features of a block as many agree at most, whatever the number of their pairs.
    """
    grown = np.float32(growth)
    most, ratio = np.float32(limit * SLACK), np.float32(log_ratio * SLACK)
    a, b, c = np.float32(model[0]), np.float32(model[1]), np.float32(model[2])
    d, e, f = np.float32(model[3]), np.float32(model[4]), np.float32(model[5])
    g, h, i = np.float32(model[6]), np.float32(model[7]), np.float32(model[8])
    k, m, n = np.float32(model[9]), np.float32(model[10]), np.float32(model[11])
    agree = 0
    for number in range(len(blocks)):
        block, count = blocks[number], np.int32(0)
        first, last = number * BLOCK, min((number + 1) * BLOCK, len(features))
        fit_here = fits[first : first + BLOCK]
        for j in range(BLOCK):
            x, y, u, v = block[0, j], block[1, j], block[2, j], block[3, j]
            there_x, there_y = a * x + b * y + (c - u), d * x + e * y + (f - v)
            back_x, back_y = g * u + h * v + (i - x), k * u + m * v + (n - y)
            error = there_x * there_x + there_y * there_y + back_x * back_x + back_y * back_y
            fit_here[j] = (error < most) & (abs(block[4, j] - grown) < ratio)
            count += np.int32(fit_here[j])
        agree += min(count, features[last - 1] - features[first] + 1)
        left = features[-1] + 1 - features[last] if last < len(features) else 0
        if agree + left <= enough:
            return False
    return True


@compiled
def _distinct(features: Any, fits: Any) -> int:
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
    query: Any,
    image: Any,
    growth: Any,
    model: Any,
    limit: float,
    log_ratio: float,
    spare: int,
    fits: Any,
    taken: Any,
    chosen: Any,
) -> int:
    """Inliers of a model, one to one: each query feature takes the nearest free image feature.

    Only pairs that may agree, ``fits``, are looked at. 0 as soon as ``spare`` query features are no
    inliers.
    """
    grown = np.log(area_of(model))
    taken[:] = False
    count, missed, j = 0, 0, 0
    while j < len(features):
        feature, nearest, least = features[j], -1, limit
        while j < len(features) and features[j] == feature:
            chosen[j] = False
            if fits[j] and not taken[places[j]] and abs(growth[j] - grown) < log_ratio:
                error = transfer_error(query, image, j, model)
                if error < least:
                    nearest, least = j, error
            j += 1
        if nearest >= 0:
            chosen[nearest] = taken[places[nearest]] = True
            count += 1
        else:
            missed += 1
            if missed == spare:
                return 0
    return count


@compiled
def _polish(query: Any, image: Any, chosen: Any, count: int, limit: float, model: Any) -> None:
    near, refined = np.empty(len(chosen), np.bool_), np.empty(len(model))
    copy(model, refined)
    while limit > 1.0:
        limit /= 2
        left = 0
        for j in range(len(chosen)):
            near[j] = chosen[j] and transfer_error(query, image, j, refined) < limit
            left += near[j]
        if left < max(HYPOTHESIS_INLIERS, (count + 1) // 2) or not fit(query, image, near, refined):
            return
        copy(refined, model)


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
    model[0], model[1], model[2], model[3], model[4], model[5] = a, b, e, c, d, f
    area = a * d - b * c
    model[6], model[7], model[9], model[10] = d / area, -b / area, -c / area, a / area
    model[8] = -(model[6] * e + model[7] * f)
    model[11] = -(model[9] * e + model[10] * f)


@compiled
def transfer_error(query: Any, image: Any, j: int, model: Any) -> float:
    x, y, u, v = query[j, 2], query[j, 5], image[j, 2], image[j, 5]
    there_x = model[0] * x + model[1] * y + model[2] - u
    there_y = model[3] * x + model[4] * y + model[5] - v
    back_x = model[6] * u + model[7] * v + model[8] - x
    back_y = model[9] * u + model[10] * v + model[11] - y
    error: float = there_x**2 + there_y**2 + back_x**2 + back_y**2
    return error


@compiled
def fit(query: Any, image: Any, chosen: Any, model: Any) -> bool:
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
            p, q = query[j, column], query[j, column + 3]
            r, s = image[j, column], image[j, column + 3]
            weight = AXES_WEIGHT
            if column == 2:
                p, q, r, s, weight = p - x, q - y, r - u, s - v, 1.0
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
