"""The steps of ``retrieval.assignment`` as machine code."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.retrieval.compiled.kernels import LINE, compiled, compiled_sums, prefetch

AHEAD = 8
"""The word of the pair this much later is asked for while another is compared."""


@compiled
def project(rows: Any, axes: Any) -> Any:
    """See ``assignment.project``: the same sums in the same order."""
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
    """See ``vocabulary.sign``."""
    out = np.empty((*words.shape, 2), np.uint64)
    for n in range(len(words)):
        row = along[n]
        for m in range(words.shape[1]):
            level = levels[words[n, m]]
            for half in range(2):
                bits = np.uint64(0)
                for b in range(64):
                    above = row[64 * half + b] > level[64 * half + b]
                    bits |= np.uint64(above) << np.uint64(b)
                out[n, m, half] = bits
    return out


@compiled
def find_promising(scores: Any, count: int, group: int) -> Any:
    """See ``assignment.find_promising``."""
    rows, columns = scores.shape
    groups = -(-columns // group)
    count = min(count, groups)
    tops, best = np.empty(groups, np.int32), np.empty(count, np.int32)
    owner, found = np.empty(2 * rows * count, np.intp), np.empty(2 * rows * count, np.intp)
    size = 0
    for n in range(rows):
        row = scores[n]
        best[:] = np.iinfo(np.int32).min
        for k in range(groups):
            part = row[k * group : (k + 1) * group]
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
        least = best[count - 1]
        for k in range(groups):
            if tops[k] < least:
                continue
            if size + group > len(found):
                owner, found = _longer(owner, group), _longer(found, group)
            start = k * group
            part = row[start : start + group]
            for j in range(len(part)):
                if part[j] >= least:
                    owner[size], found[size] = n, start + j
                    size += 1
    return owner[:size], found[:size]


@compiled
def _longer(numbers: Any, more: int) -> Any:
    """The same numbers with room for more."""
    longer = np.empty(2 * len(numbers) + more, np.intp)
    for k in range(len(numbers)):
        longer[k] = numbers[k]
    return longer


@compiled_sums
def nearest_of(rows: Any, words: Any, half: Any, owner: Any, found: Any, count: int) -> Any:
    """See ``assignment.nearest_of``."""
    dim, out = rows.shape[1], np.full((len(rows), count), -1, np.int32)
    nearest = np.full((len(rows), count), np.inf, np.float32)
    address, word_bytes = words.ctypes.data, 4 * dim
    for p in range(len(found)):
        if p + AHEAD < len(found):  # from all over the memory
            start = address + found[p + AHEAD] * word_bytes
            for line in range(start, start + word_bytes, LINE):
                prefetch(line)
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
