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
from hardnet.retrieval.verification import Correspondences
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
def project(rows: Any, axes: Any) -> Any:
    dim, count = axes.shape
    out = np.zeros((len(rows), count), np.float32)
    whole = dim - dim % 4
    for n in range(len(rows)):
        row, sums = rows[n], out[n]
        for d in range(0, whole, 4):  # four axes at once: the sums are read and written less often
            for k in range(count):
                total = sums[k] + row[d] * axes[d, k] + row[d + 1] * axes[d + 1, k]
                sums[k] = total + row[d + 2] * axes[d + 2, k] + row[d + 3] * axes[d + 3, k]
        for d in range(whole, dim):
            for k in range(count):
                sums[k] += row[d] * axes[d, k]
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
    forward_words: Any


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
def find_correspondences(table: Any, lists: Any, images: Any, h_t: int, limit: int) -> Any:
    totals, bounds = np.zeros(len(images), np.int64), np.zeros(len(images) + 1, np.int64)
    most = 0
    for image in images:
        most = max(most, np.int64(lists.forward_offsets[image + 1]) - lists.forward_offsets[image])
    runs, address = np.empty((most, 4), np.int64), lists.signatures.ctypes.data
    last_feature = -1
    for feature in table.features:
        last_feature = max(last_feature, feature)
    starts = np.empty(last_feature + 2, np.int64)
    # Of each pair: query feature, posting, its place in its image, distance.
    found, out = np.empty((1024, 4), np.int64), np.empty((1024, 4), np.int64)
    for at in range(len(images)):
        count, most = _find_runs(images[at], lists, table.numbers, runs), 0
        for run in runs[:count]:
            prefetch(address + run[1] * (BITS // 8))
            most += run[2] * (table.starts[run[0] + 1] - table.starts[run[0]])
        if most > len(found):
            found = np.empty((2 * most, 4), np.int64)
        totals[at] = _find_pairs(runs[:count], table, lists.signatures, h_t, found)
        kept = min(totals[at], limit)
        if totals[at] > limit:
            _keep_nearest(found[: totals[at]], limit)
        bounds[at + 1] = bounds[at] + kept
        if bounds[at + 1] > len(out):
            out = longer(out, 2 * bounds[at + 1])
        _sort_by_feature(found[:kept], starts, out[bounds[at] : bounds[at + 1]])
    columns = out[: bounds[-1]].T.copy()
    return Correspondences(totals, bounds, columns[0], columns[1], columns[2], columns[3])


@compiled
def _find_runs(image: int, lists: Any, word_numbers: Any, runs: Any) -> int:
    """The words that an image shares with the query, and how many there are.

    Writes a row of ``runs`` for each: the number of the word among those of the query, its first
    posting in this image, how many there are, and the place of the first in the image's list.
    """
    count = 0
    begin, end = np.int64(lists.forward_offsets[image]), np.int64(lists.forward_offsets[image + 1])
    place = begin
    while place < end:
        row = lists.forward_words[place]
        word = np.int64(row[0]) | np.int64(row[1]) << 8 | np.int64(row[2]) << 16
        # No number: the query does not have the word, or the segment is damaged.
        number = word_numbers[word] if word < len(word_numbers) else np.int32(-1)
        if number < 0:
            place += 1
            continue
        stop, length = np.int64(lists.offsets[word + 1]), 0
        low = lower_bound(lists.image_ids, np.int64(lists.offsets[word]), stop, np.int64(image))
        while low + length < stop and lists.image_ids[low + length] == image:
            length += 1
        runs[count, 0], runs[count, 1] = number, low
        runs[count, 2], runs[count, 3] = length, place - begin
        count += 1
        # A word of the list that has no posting, in a damaged segment, must not stop the scan.
        place += max(length, 1)
    return count


@compiled
def _find_pairs(runs: Any, table: Any, signatures: Any, h_t: int, found: Any) -> int:
    count = 0
    for run in range(len(runs)):
        for term in range(table.starts[runs[run, 0]], table.starts[runs[run, 0] + 1]):
            low, high = table.signatures[term, 0], table.signatures[term, 1]
            for k in range(runs[run, 2]):
                posting = runs[run, 1] + k
                h = popcount(low ^ signatures[posting, 0]) + popcount(high ^ signatures[posting, 1])
                if h <= h_t:
                    found[count, 0], found[count, 1] = table.features[term], posting
                    found[count, 2], found[count, 3] = runs[run, 3] + k, h
                    count += 1
    return count


@compiled
def _keep_nearest(found: Any, limit: int) -> None:
    """Move the ``limit`` rows of the smallest distance to the front, in their order."""
    histogram = np.zeros(BITS + 1, np.int64)
    for row in range(len(found)):
        histogram[found[row, 3]] += 1
    # All below the distance ``cut`` are kept, and as many at ``cut`` as there is room for.
    cut, room = 0, limit
    while histogram[cut] <= room:
        room -= histogram[cut]
        cut += 1
    count = 0
    for row in range(len(found)):
        h = found[row, 3]
        if h < cut or (h == cut and room > 0):
            room -= h == cut
            copy(found[row], found[count])
            count += 1


@compiled
def _sort_by_feature(found: Any, starts: Any, out: Any) -> None:
    """A stable counting sort; within a feature the postings ascend already."""
    starts[:] = 0
    for row in range(len(found)):
        starts[found[row, 0] + 1] += 1
    for feature in range(1, len(starts)):
        starts[feature] += starts[feature - 1]
    for row in range(len(found)):
        copy(found[row], out[starts[found[row, 0]]])
        starts[found[row, 0]] += 1


@compiled
def copy(source: Any, target: Any) -> None:
    """Quicker to compile than an assignment of whole arrays."""
    for k in range(len(source)):
        target[k] = source[k]


TWINS: dict[Callable[..., Any], Callable[..., Any]] = {
    vocabulary.project: project,
    vocabulary.sign: sign,
    vocabulary.promising: promising,
    vocabulary.nearest_of: nearest_of,
    querying.add_bow: with_lists(add_bow),
    querying.add_he: with_lists(add_he),
    verification.find_correspondences: with_lists(find_correspondences),
}
