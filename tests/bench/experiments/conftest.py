"""Tiny sets of noisy textures, to train and to test on, and the recipe of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.learn.recipe import Recipe
from hardnet.patchsets.brown import BrownWriter
from hardnet.patchsets.hpatches import write_sequence


def textures(rng: np.random.Generator, count: int, side: int) -> np.ndarray:
    """Faint random patches."""
    coarse = rng.normal(128, 7, (count, 8, 8)).repeat(9, 1).repeat(9, 2)
    return coarse[:, :side, :side]


def noisy(rng: np.random.Generator, patches: np.ndarray, sigma: float) -> np.ndarray:
    return (patches + rng.normal(0, sigma, patches.shape)).clip(0, 255).astype(np.uint8)


def write_brown(folder: Path, seed: int, points: int = 40, views: int = 4) -> Path:
    rng = np.random.default_rng(seed)
    patches = noisy(rng, textures(rng, points, 64).repeat(views, 0), 60)
    with BrownWriter(folder) as writer:
        writer.add(patches, np.arange(points * views) // views, 0)
        writer.finish(200, seed, {})
    return folder


def write_hpatches(folder: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    for name, count in {"v_wall": 12, "i_dawn": 10, "v_graf": 9}.items():
        base = textures(rng, count, 65)
        targets = {
            level: [noisy(rng, base, sigma) for _ in range(5)]
            for level, sigma in {"easy": 20, "hard": 40, "tough": 60}.items()
        }
        write_sequence(folder / name, noisy(rng, base, 10), targets)
    return folder


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train``, ``test`` (Brown) and ``sequences`` (HPatches)."""
    root = tmp_path_factory.mktemp("experiment-sets")
    write_brown(root / "train", 1)
    write_brown(root / "test", 2)
    write_hpatches(root / "sequences", 3)
    return root


@pytest.fixture(scope="session")
def base(sets: Path) -> Recipe:
    """Six steps of the small network."""
    settings: dict[str, Any] = {
        "data": [str(sets / "train")], "net": "tfeat", "batch": 16, "pairs": 96, "lr": 0.1,
        "dropout": 0.0, "accelerator": "cpu", "checkpoint_every": 2, "epoch": 48,
    }  # fmt: skip
    return Recipe(**settings)


@pytest.fixture
def recipe_file(sets: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"data: [{sets / 'train'}]\nnet: tfeat\nbatch: 16\nlr: 0.1\ndropout: 0.0\n"
        "accelerator: cpu\naugment: false\n"
    )
    return path
