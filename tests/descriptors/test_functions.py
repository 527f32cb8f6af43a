"""A user's function as a descriptor."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hardnet.descriptors import Descriptor, load
from hardnet.errors import HardnetError

SOURCE = """
import numpy as np

def rows(patches):
    assert patches.dtype == np.uint8
    return patches[:, 0, :12] * 2.0

def small(patches):
    assert patches.shape[1:] == (8, 8)
    return patches.reshape(len(patches), -1).astype("float64")
small.patch_size = 8

def bits(patches):
    return np.packbits(patches[:, 0, :16] > patches[:, 1, :16], axis=1)

class Thing:
    def __call__(self, patches):
        return patches[:, :, 0].astype(float)
    def method(self, patches):
        return patches[:, :, 1].astype(float)
thing = Thing()

seen = []
def portions(patches):
    seen.append(len(patches))
    return patches[:, 0].astype(float)

number = 3
bad_size = lambda p: p
bad_size.patch_size = "big"
def fewer(p): return p[1:, 0].astype(float)
def flat(p): return p.mean((1, 2))
def nothing(p): return None
def ints(p): return p[:, 0].astype(int)
def nan(p): return np.full((len(p), 3), np.nan)
def ragged(p): return [[1.0], [1.0, 2.0]]
def crash(p): return 1 / 0
def changing(p): return np.zeros((len(p), 1 + len(p) % 2))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, which is not in the path of Python."""
    name = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    return name


def test_vectors_stay_as_they_are(module: str, patches: np.ndarray) -> None:
    describe = load(f"{module}:rows")
    assert isinstance(describe, Descriptor)
    assert describe.name == f"{module}:rows"
    assert describe.dim == 12
    values = describe(patches)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, patches[:, 0, :12] * 2.0)
    assert describe([]).shape == (0, 12)
    np.testing.assert_array_equal(describe(patches[:, None].astype(np.float64)), values)


def test_patch_size_resizes_first(module: str, patches: np.ndarray) -> None:
    describe = load(f"{module}:small")
    assert describe.dim == 64
    assert describe(patches).shape == (len(patches), 64)


def test_uint8_is_packed_bits(module: str, patches: np.ndarray) -> None:
    describe = load(f"{module}:bits")
    assert describe.dim == 16
    assert describe(patches).dtype == np.uint8
    assert describe(patches).shape == (len(patches), 2)
    assert describe([]).dtype == np.uint8


def test_objects_and_methods(module: str, patches: np.ndarray) -> None:
    np.testing.assert_array_equal(load(f"{module}:thing")(patches), patches[:, :, 0])
    np.testing.assert_array_equal(load(f"{module}:thing.method")(patches), patches[:, :, 1])


def test_many_patches_come_in_portions(module: str) -> None:
    many = np.random.default_rng(0).integers(0, 256, (2500, 6, 6)).astype(np.uint8)
    np.testing.assert_array_equal(load(f"{module}:portions")(many), many[:, 0])
    assert sys.modules[module].seen == [1024, 1024, 452]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("missing", "has no 'missing'"),
        ("number", "is a int; give a function"),
        ("Thing", "is a class; give a function"),
        ("bad_size", "patch_size 'big'"),
        ("", "not of the form module:function"),
    ],
)
def test_what_cannot_be_a_descriptor(module: str, function: str, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        load(f"{module}:{function}")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fewer", r"must return \(70, D\) for 70 patches, got shape \(69, 32\)"),
        ("flat", r"got shape \(70,\)"),
        ("nothing", "got a NoneType"),
        ("ints", "returned int64; it must return floating point"),
        ("nan", "NaN or infinity for 70 of 70 patches"),
        ("ragged", "returned no array"),
        ("crash", r"failed on patches of shape \(70, 32, 32\).*ZeroDivisionError"),
    ],
)
def test_what_must_not_be_returned(
    module: str, patches: np.ndarray, function: str, message: str
) -> None:
    with pytest.raises(HardnetError, match=message):
        load(f"{module}:{function}")(patches)


def test_rows_of_different_length(module: str) -> None:
    with pytest.raises(HardnetError, match="rows of different kinds"):
        load(f"{module}:changing")(np.zeros((1025, 4, 4), np.uint8))


def test_modules_that_cannot_be_imported(module: str, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="no module 'not_there'"):
        load("not_there:f")
    with pytest.raises(HardnetError, match=r"no module 'not_there\.deeper'"):
        load("not_there.deeper:f")
    (tmp_path / f"{module}_needs.py").write_text("import something_else_entirely")
    with pytest.raises(HardnetError, match="needs 'something_else_entirely'"):
        load(f"{module}_needs:f")
    (tmp_path / f"{module}_broken.py").write_text("def f(:")
    with pytest.raises(HardnetError, match="cannot be imported: SyntaxError"):
        load(f"{module}_broken:f")
