"""Small random sets with the shape of HPatches, and their tasks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hardnet.bench.hpatches.lists import Tasks, draw_pairs, draw_retrieval
from hardnet.patchsets.hpatches import TAGS

COUNTS = {"v_wall": 23, "i_night": 14, "i_dawn": 31, "v_graf": 9}


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class Strips(dict):
    """Descriptors by (sequence, strip), called as a lookup."""

    def __call__(self, sequence: str, strip: str) -> np.ndarray:
        return self[sequence, strip]


@pytest.fixture
def tasks() -> Tasks:
    counts = tuple(COUNTS.values())
    return Tasks(
        split="small",
        names=tuple(COUNTS),
        counts=counts,
        pairs=draw_pairs(counts, 400),
        retrieval=draw_retrieval(counts),
        origin={"pairs": "drawn", "retrieval": "drawn"},
    )


def _vectors(rng: np.random.Generator, count: int) -> Callable[[], np.ndarray]:
    base = rng.normal(size=(count, 16))
    return lambda: unit(base + rng.normal(size=base.shape))


def _grid(rng: np.random.Generator, count: int) -> Callable[[], np.ndarray]:
    """Few different vectors, not of unit length: many equal distances."""
    base = rng.integers(0, 2, (count, 3))
    return lambda: (base + (rng.random(base.shape) < 0.1)).astype(np.float32)


def _bits(rng: np.random.Generator, count: int) -> Callable[[], np.ndarray]:
    base = rng.random((count, 24)) < 0.5
    return lambda: np.packbits(base ^ (rng.random(base.shape) < 0.15), axis=1)


KINDS = {"vectors": _vectors, "ties": _grid, "bits": _bits}


@pytest.fixture(params=list(KINDS))
def lookup(request: pytest.FixtureRequest) -> Strips:
    """Noisy copies of one descriptor per point: unit vectors, few distinct ones, or packed bits."""
    rng = np.random.default_rng(7)
    out = Strips()
    for name, count in COUNTS.items():
        draw = KINDS[request.param](rng, count)
        for tag in TAGS:
            out[name, tag] = draw()
    return out


@pytest.fixture
def perfect() -> Strips:
    """The same vector for all 16 patches of a point."""
    rng = np.random.default_rng(8)
    points = {name: unit(rng.normal(size=(count, 16))) for name, count in COUNTS.items()}
    return Strips({(name, tag): points[name] for name in COUNTS for tag in TAGS})


@pytest.fixture
def blind() -> Strips:
    """One vector for everything."""
    row = unit(np.arange(1, 17)[None])
    return Strips(
        {(name, tag): row.repeat(count, 0) for name, count in COUNTS.items() for tag in TAGS}
    )
