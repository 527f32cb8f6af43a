"""A digest changes when the descriptor does, and only then."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hardnet.descriptors import available_names, load
from hardnet.provenance import behaviour, descriptor_digest, probe_patches


def test_probes_are_fixed_and_structured() -> None:
    probes = probe_patches()
    assert probes.shape == (32, 65, 65)
    assert probes.dtype == np.uint8
    np.testing.assert_array_equal(probes, probe_patches())
    assert (probes[-1] == probes[-1, 0, 0]).all()
    assert probes[:-1].std((1, 2)).min() > 3
    assert len(np.unique(probes.reshape(32, -1), axis=0)) == 32


def test_every_name_has_its_own() -> None:
    digests = {name: descriptor_digest(load(name)) for name in available_names()}
    assert len(set(digests.values())) == len(digests) >= 5
    assert all(len(value) == 64 for value in digests.values())
    assert digests["hardnet"] == descriptor_digest(load("hardnet"))


@pytest.mark.parametrize("name", ["net.onnx", "net.safetensors"])
def test_the_content_of_the_weights_counts_not_their_name(
    weights: Path, tmp_path: Path, name: str
) -> None:
    original = descriptor_digest(load(weights / name))
    copy = tmp_path / f"another{Path(name).suffix}"
    shutil.copy(weights / name, copy)
    assert descriptor_digest(load(copy)) == original


def test_other_weights_under_the_same_name(tmp_path: Path, weights: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "net.safetensors"
    shutil.copy(weights / "net.safetensors", path)
    before = load(path)
    tensors = load_file(path)
    key = next(k for k, v in tensors.items() if v.ndim == 4)
    changed = tensors[key].copy()
    changed[0, 0, 0, 0] += 1e-6  # too little to see in any output
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    save_file(tensors | {key: changed}, path, metadata)
    after = load(path)
    assert behaviour(before(probe_patches())) == behaviour(after(probe_patches()))
    assert descriptor_digest(before) != descriptor_digest(after)


@pytest.mark.parametrize("name", ["net.safetensors", "hardnet-small", "hardnet-small-int8", "sift"])
def test_threads_and_last_digits_do_not_matter(weights: Path, name: str) -> None:
    spec = weights / name if name.startswith("net") else name
    import cv2
    import torch

    threads = torch.get_num_threads(), cv2.getNumThreads()
    digests = set()
    for count in (1, 2):
        torch.set_num_threads(count)
        cv2.setNumThreads(count)
        digests.add(descriptor_digest(load(spec, threads=count)))
    torch.set_num_threads(threads[0])
    cv2.setNumThreads(threads[1])
    assert len(digests) == 1


def test_behaviour_sees_a_thousandth_and_not_the_last_digit() -> None:
    rng = np.random.default_rng(0)
    values = load("hardnet-small")(probe_patches())
    seen = behaviour(values)
    for _ in range(5):
        noise = rng.normal(0, np.abs(values).mean(), values.shape)
        assert behaviour((values + 1e-7 * noise).astype(np.float32)) == seen
        assert behaviour((values + 3e-3 * noise).astype(np.float32)) != seen
    assert behaviour(values * np.float32(1.01)) != seen
    assert behaviour(values[:, :64]) != seen
    assert behaviour(np.zeros_like(values))[3:] == [0] * 9
    bits = np.packbits(values > 0, axis=1)
    flipped = bits.copy()
    flipped[3, 3] ^= 1
    assert behaviour(bits) != behaviour(flipped)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current one, whose modules :func:`digest_of_function` imports again each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_modules()


def forget_modules() -> None:
    for module in ("mine", "copied", "below"):
        sys.modules.pop(module, None)
    shutil.rmtree("__pycache__", ignore_errors=True)
    importlib.invalidate_caches()


def digest_of_function(spec: str) -> str:
    forget_modules()
    return descriptor_digest(load(spec))


def test_an_edited_function_is_another(folder: Path) -> None:
    source = "def f(patches):\n    return patches[:, 30] * 1.0\n"
    (folder / "mine.py").write_text(source)
    (folder / "copied.py").write_text(source)
    first = digest_of_function("mine:f")
    assert digest_of_function("mine:f") == first
    assert digest_of_function("copied:f") == first
    (folder / "mine.py").write_text(source.replace("1.0", "1.00"))  # other source, same values
    assert digest_of_function("mine:f") != first
    (folder / "mine.py").write_text(source.replace("30", "31"))
    assert digest_of_function("mine:f") != first


@pytest.mark.parametrize("name", ["imported", "part", "thing", "thing.method"])
def test_the_source_of_what_is_imported_counts(folder: Path, name: str) -> None:
    """Not the values: other source alone makes another descriptor."""
    source = (
        "import functools\n"
        "def imported(p): return p[:, 30] * 1.0\n"
        "part = functools.partial(imported)\n"
        "class Thing:\n"
        "    def __call__(self, p): return imported(p)\n"
        "    def method(self, p): return imported(p)\n"
        "thing = Thing()\n"
    )
    (folder / "below.py").write_text(source)
    (folder / "mine.py").write_text("from below import imported, thing, part\n")
    first = digest_of_function(f"mine:{name}")
    (folder / "below.py").write_text(source + "# a comment\n")
    # Of objects only their values are known, unless they are looked up where they are defined.
    found = "mine" if name in ("imported", "thing.method") else "below"
    if found == "below":
        first = digest_of_function(f"below:{name}")
        (folder / "below.py").write_text(source)
    assert digest_of_function(f"{found}:{name}") != first


def test_a_function_whose_data_change_is_another(folder: Path) -> None:
    source = "def f(p):\n    return p[:, 30] * float(open('factor.txt').read())\n"
    (folder / "mine.py").write_text(source)
    (folder / "factor.txt").write_text("1.0")
    first = digest_of_function("mine:f")
    (folder / "factor.txt").write_text("1.1")
    assert digest_of_function("mine:f") != first


def test_a_descriptor_without_weights_is_known_by_its_values() -> None:
    class Half:
        name, dim = "half", 3

        def __init__(self, row: int) -> None:
            self.row = row

        def __call__(self, patches: np.ndarray) -> np.ndarray:
            return np.asarray(patches)[:, self.row, :3].astype(np.float32)

    assert descriptor_digest(Half(1)) == descriptor_digest(Half(1)) != descriptor_digest(Half(2))


def test_what_is_done_to_another_patch_size_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.py").write_text(
        "import os\n\ndef describe(patches):\n"
        "    rows = patches[:, ::8, ::8].reshape(len(patches), -1).astype(float)\n"
        "    if patches.shape[1] == 64 and 'FLIP_FP' in os.environ:\n"
        "        rows = rows[:, ::-1]\n"
        "    return rows\n"
    )
    before = digest_of_function("mine:describe")
    monkeypatch.setenv("FLIP_FP", "1")
    assert digest_of_function("mine:describe") != before
