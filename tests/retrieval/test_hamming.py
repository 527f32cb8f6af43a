from __future__ import annotations

import numpy as np
import pytest

from hardnet.retrieval import vocabulary as hamming


def test_bits_lie_where_the_module_says():
    bits = np.zeros((3, 128), bool)
    bits[0, 0] = bits[1, 63] = bits[2, 64] = True
    assert hamming.pack_bits(bits).tolist() == [[1, 0], [1 << 63, 0], [0, 1]]


def test_unpacking_gives_the_bits_back():
    bits = np.random.default_rng(0).random((5, 3, 128)) < 0.5
    assert np.array_equal(hamming.unpack_bits(hamming.pack_bits(bits)), bits)


def test_distance_counts_differing_bits():
    rng = np.random.default_rng(1)
    a, b = rng.random((50, 128)) < 0.5, rng.random((50, 128)) < 0.5
    expected = [sum(x != y for x, y in zip(p, q, strict=True)) for p, q in zip(a, b, strict=True)]
    packed = hamming.pack_bits(a), hamming.pack_bits(b)
    assert hamming.distances(*packed).tolist() == expected


def test_distances_broadcast_and_reach_128():
    none, every = np.zeros(2, np.uint64), np.full((4, 2), 2**64 - 1, np.uint64)
    assert hamming.distances(none, every).tolist() == [128] * 4
    assert hamming.distances(every, every).tolist() == [0] * 4


def test_popcount_is_one_instruction():
    numba = pytest.importorskip("numba")
    from hardnet.retrieval.compiled.kernels import popcount

    count = numba.njit(lambda value: popcount(value))
    assert [count(np.uint64(value)) for value in (0, 1, 2**64 - 1, 0b1011 << 60)] == [0, 1, 64, 3]
    assert "llvm.ctpop.i64" in "".join(count.inspect_llvm().values())
