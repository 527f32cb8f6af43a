"""The steps of ``vocabulary``, ``query`` and ``verification`` that machine code does faster.

Each kernel gives what the numpy function of its name gives; see there. They release Python's lock:
call them from several threads to use several cores. Importing this module imports numba, so only
``compiled`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hardnet.retrieval import query as querying
from hardnet.retrieval import verification, vocabulary
from hardnet.retrieval.verification import AXES_WEIGHT, HYPOTHESIS_INLIERS, NEARLY_ALL, WIDENINGS
from hardnet.retrieval.vocabulary import BITS, GROUP

Function = TypeVar("Function", bound=Callable[..., Any])

LINE = 64
"""Bytes that memory delivers together."""
AHEAD = 8
"""What is needed this many steps later is requested now: half the time is waiting for memory."""
AHEAD_LINES = 8
"""Lines of a list to request; the processor continues by itself with one that is longer."""


def compiled(function: Function, **options: Any) -> Function:
    kernel: Function = numba.njit(nogil=True, cache=True, **options)(function)
    return kernel


def compiled_sums(function: Function) -> Function:
    """For long sums, whose order the compiler may then choose."""
    return compiled(function, fastmath={"reassoc", "contract"})


def _popcount(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        declared = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        count = builder.module.declare_intrinsic("llvm.ctpop", [ir.IntType(64)], declared)
        return builder.call(count, arguments)

    return types.int64(types.uint64), generate


def _prefetch(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        declared = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], declared)
        # For reading, into the nearest cache, as data.
        flags = [ir.Constant(number, flag) for flag in (0, 3, 1)]
        builder.call(fetch, [builder.inttoptr(arguments[0], pointer), *flags])
        return context.get_dummy_value()

    return types.none(types.intp), generate


popcount: Any = intrinsic(_popcount)
"""The number of set bits of a uint64, as int64: one instruction."""
prefetch: Any = intrinsic(_prefetch)
"""Start to load the line of an address; any address is allowed."""


@compiled
def request(address: int, begin: int, end: int) -> None:
    """Start to load some bytes of an array, or the first of many."""
    start = address + begin
    for line in range(start, min(address + end, start + AHEAD_LINES * LINE), LINE):
        prefetch(line)


@compiled
def longer(array: Any, length: int) -> Any:
    """The same rows with room for more."""
    out = np.empty((length, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


@compiled
def sign(along: Any, levels: Any, words: Any) -> Any:
    out = np.empty((*words.shape, 2), np.uint64)
    for n in range(len(words)):
        for m in range(words.shape[1]):
            level = levels[words[n, m]]
            for half in range(2):
                bits = np.uint64(0)
                for b in range(64):
                    above = along[n, 64 * half + b] > level[64 * half + b]
                    bits |= np.uint64(above) << np.uint64(b)
                out[n, m, half] = bits
    return out


@compiled
def promising(scores: Any, count: int) -> Any:
    rows, columns = scores.shape
    group = max(min(GROUP, columns // (4 * count)), 1)
    groups = -(-columns // group)
    count = min(count, groups)
    tops, best = np.empty(groups, np.int32), np.empty(count, np.int32)
    owner, found = np.empty(2 * rows * count, np.intp), np.empty(2 * rows * count, np.intp)
    size = 0
    for n in range(rows):
        best[:] = np.iinfo(np.int32).min
        for k in range(groups):
            part = scores[n, k * group : (k + 1) * group]
            top = part[0]
            for j in range(1, len(part)):
                top = max(top, part[j])
            tops[k] = top
            if top > best[count - 1]:
                place = count - 1
                while place > 0 and best[place - 1] < top:
                    best[place] = best[place - 1]
                    place -= 1
                best[place] = top
        for k in range(groups):
            if tops[k] < best[count - 1]:
                continue
            if size + group > len(found):
                owner, found = longer(owner, 2 * size + group), longer(found, 2 * size + group)
            part = scores[n, k * group : (k + 1) * group]
            for j in range(len(part)):
                if part[j] >= best[count - 1]:
                    owner[size], found[size] = n, k * group + j
                    size += 1
    return owner[:size], found[:size]


@compiled_sums
def nearest_of(rows: Any, words: Any, half: Any, owner: Any, found: Any, count: int) -> Any:
    dim, out = rows.shape[1], np.full((len(rows), count), -1, np.int32)
    nearest = np.full((len(rows), count), np.inf, np.float32)
    address, width = words.ctypes.data, 4 * dim
    for p in range(len(found)):
        if p + AHEAD < len(found):
            request(address, found[p + AHEAD] * width, (found[p + AHEAD] + 1) * width)
        n, word, dot = owner[p], found[p], 0.0
        for d in range(dim):
            dot += np.float64(rows[n, d]) * np.float64(words[word, d])
        far = half[word] - np.float32(dot)
        if far >= nearest[n, count - 1]:  # of equal ones the first stays, which is the lower
            continue
        place = count - 1
        while place > 0 and nearest[n, place - 1] > far:
            nearest[n, place], out[n, place] = nearest[n, place - 1], out[n, place - 1]
            place -= 1
        nearest[n, place], out[n, place] = far, word
    return out


class Lists(NamedTuple):
    """The arrays of a segment that kernels read."""

    offsets: Any
    image_ids: Any
    signatures: Any
    forward_offsets: Any


def with_lists(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that takes the arrays of a segment, as a function that takes the segment."""

    def call(first: Any, segment: Any, *rest: Any) -> Any:
        return kernel(first, Lists(*(getattr(segment, name) for name in Lists._fields)), *rest)

    return call


@compiled
def lower_bound(image_ids: Any, begin: Any, end: Any, image: Any) -> Any:
    while begin < end:
        middle = (begin + end) // 2
        if image_ids[middle] < image:
            begin = middle + 1
        else:
            end = middle
    return begin


@compiled
def find_lists(words: Any, lists: Any, first: int, last: int) -> Any:
    offsets, image_ids = lists.offsets, lists.image_ids
    begins, ends = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    for term in range(len(words)):
        begins[term], ends[term] = offsets[words[term]], offsets[words[term] + 1]
    if first > 0:
        for term in range(len(words)):
            begins[term] = lower_bound(image_ids, begins[term], ends[term], first)
    if last < len(lists.forward_offsets) - 1:
        for term in range(len(words)):
            ends[term] = lower_bound(image_ids, begins[term], ends[term], last)
    return begins, ends


@compiled
def add_bow(lookup: Any, lists: Any, first: int, sums: Any) -> None:
    begins, ends = find_lists(lookup.words, lists, first, first + len(sums))
    weights, image_ids = lookup.weights, lists.image_ids
    address, count = image_ids.ctypes.data, np.uint64(len(sums))
    for term in range(len(begins)):
        ahead = term + AHEAD
        if ahead < len(begins):
            request(address, 2 * begins[ahead], 2 * ends[ahead])
        weight = weights[term]
        for number in image_ids[begins[term] : ends[term]]:
            # Below 0 becomes huge: one comparison, and nothing beside the sums is written to,
            # whatever a damaged segment says.
            image = np.uint64(np.int64(number) - first)
            if image < count:
                sums[image] += weight


@compiled
def add_he(lookup: Any, lists: Any, first: int, sums: Any) -> None:
    begins, ends = find_lists(lookup.words, lists, first, first + len(sums))
    signatures, starts, decay, h_t, burstiness = lookup.matching
    weights, image_ids, posting_signatures = lookup.weights, lists.image_ids, lists.signatures
    address, owner_address = posting_signatures.ctypes.data, image_ids.ctypes.data
    burst, sizes = np.zeros(len(sums)), np.zeros(len(sums), np.int32)
    touched = np.empty(len(sums), np.int32)
    longest = 0
    for term in range(len(begins)):
        longest = max(longest, ends[term] - begins[term])
    close, distances = np.empty(longest + 1, np.int32), np.empty(longest + 1, np.int32)
    for feature in range(len(starts) - 1):
        count = 0
        for term in range(starts[feature], starts[feature + 1]):
            ahead = term + AHEAD
            if ahead < len(begins):
                request(address, 16 * begins[ahead], 16 * ends[ahead])
                request(owner_address, 2 * begins[ahead], 2 * ends[ahead])
            low, high, weight = signatures[term, 0], signatures[term, 1], weights[term]
            # Slices: with indices known to be at least 0, this loop is a third faster.
            theirs = posting_signatures[begins[term] : ends[term]]
            owners = image_ids[begins[term] : ends[term]]
            # First the close ones, without a branch that the processor would often guess wrong.
            found = 0
            for posting in range(len(theirs)):
                h = popcount(low ^ theirs[posting, 0]) + popcount(high ^ theirs[posting, 1])
                close[found], distances[found] = posting, h
                found += h <= h_t
            for place in range(found):
                image = np.int64(owners[close[place]]) - first
                if image < 0 or image >= len(sums):  # the segment is damaged
                    continue
                if sizes[image] == 0:
                    touched[count] = image
                    count += 1
                sizes[image] += 1
                burst[image] += weight * decay[distances[place]]
        for image in touched[:count]:
            sums[image] += burst[image] / np.sqrt(sizes[image]) if burstiness else burst[image]
            burst[image] = 0.0
            sizes[image] = 0


@compiled
def copy(source: Any, target: Any) -> None:
    """Quicker to compile than an assignment of whole arrays."""
    for k in range(len(source)):
        target[k] = source[k]


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
    # Of each pair both centres and the log of the ratio of areas.
    columns = np.empty((5, size))
    for j in range(size):
        areas = area_of(query[j]), area_of(image[j])
        # NaN is neither a hypothesis nor an inlier.
        growth = np.log(areas[1] / areas[0]) if min(areas) > 0 else np.nan
        values = query[j, 2], query[j, 5], image[j, 2], image[j, 5], growth
        for k in range(5):
            columns[k, j] = values[k]
    best, best_model, model = 0, np.zeros(12), np.empty(12)
    errors, taken = np.empty(size), np.empty(places.max() + 1, np.bool_)
    chosen, near = np.empty(size, np.bool_), np.empty(size, np.bool_)
    for i in hypotheses:
        if best >= different - different // NEARLY_ALL:  # there cannot be many more
            break
        if np.isnan(columns[4, i]):
            continue
        frame_to_frame(query[i], image[i], model)
        enough = max(best, HYPOTHESIS_INLIERS - 1)
        _measure(columns, model, log_ratio, errors)
        # Without one-to-one the count is quick, and no smaller: few hypotheses need the rest.
        if _distinct(features, errors, limit) <= enough:
            continue
        count = _select(features, places, errors, limit, taken, chosen)
        if count <= enough:
            continue
        best = count
        copy(model, best_model)
        copy(chosen, best_chosen)
        for widening in WIDENINGS:
            if not fit(query, image, chosen, model):
                break
            _measure(columns, model, log_ratio, errors)
            count = _select(features, places, errors, limit * widening, taken, chosen)
            if count < HYPOTHESIS_INLIERS:
                break
        else:
            if count >= best:
                best = count
                copy(model, best_model)
                copy(chosen, best_chosen)
    copy(best_model, model)
    while best and limit > 1.0:
        limit /= 2
        _measure(columns, best_model, np.inf, errors)
        left = 0
        for j in range(size):
            near[j] = best_chosen[j] and errors[j] < limit
            left += near[j]
        if left < max(HYPOTHESIS_INLIERS, (best + 1) // 2) or not fit(query, image, near, model):
            break
        copy(model, best_model)
    copy(best_model[:6], best_map)
    return best


@compiled
def _measure(columns: Any, model: Any, log_ratio: float, errors: Any) -> None:
    """Squared transfer errors, there and back; infinite where the area does not fit."""
    x, y, u, v, growth = columns[0], columns[1], columns[2], columns[3], columns[4]
    a, b, c, d, e, f = model[0], model[1], model[2], model[3], model[4], model[5]
    g, h, i, k, m, n = model[6], model[7], model[8], model[9], model[10], model[11]
    grown = np.log(area_of(model))
    for j in range(len(errors)):
        there_x, there_y = a * x[j] + b * y[j] + c - u[j], d * x[j] + e * y[j] + f - v[j]
        back_x, back_y = g * u[j] + h * v[j] + i - x[j], k * u[j] + m * v[j] + n - y[j]
        error = there_x**2 + there_y**2 + back_x**2 + back_y**2
        errors[j] = error if abs(growth[j] - grown) < log_ratio else np.inf


@compiled
def _distinct(features: Any, errors: Any, limit: float) -> int:
    """How many query features have a pair that fits."""
    count, last = 0, -1
    for j in range(len(features)):
        if errors[j] < limit and features[j] != last:
            last = features[j]
            count += 1
    return count


@compiled
def _select(features: Any, places: Any, errors: Any, limit: float, taken: Any, chosen: Any) -> int:
    """Inliers of a model, one to one: each query feature takes the nearest free image feature."""
    taken[:] = False
    count, j = 0, 0
    while j < len(features):
        feature, nearest, least = features[j], -1, limit
        while j < len(features) and features[j] == feature:
            chosen[j] = False
            if errors[j] < least and not taken[places[j]]:
                nearest, least = j, errors[j]
            j += 1
        if nearest >= 0:
            chosen[nearest] = taken[places[nearest]] = True
            count += 1
    return count


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


TWINS: dict[Callable[..., Any], Callable[..., Any]] = {
    vocabulary.sign: sign,
    vocabulary.promising: promising,
    vocabulary.nearest_of: nearest_of,
    querying.add_bow: with_lists(add_bow),
    querying.add_he: with_lists(add_he),
    verification.best_maps: best_maps,
}
