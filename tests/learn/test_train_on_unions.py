"""Every network trains on a weighted union, with the same result for any number of workers."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from hardnet.learn.recipe import Recipe
from hardnet.learn.trainer import Trainer
from hardnet.nets import NETS, load_net
from hardnet.patchsets.patchset import PatchSet, join


@pytest.fixture(scope="module")
def union() -> PatchSet:
    """Two sets of blurred noise, 12 and 20 points with two or three views."""
    rng = np.random.default_rng(0)
    parts = []
    for k, count in enumerate((12, 20)):
        points = np.repeat(np.arange(count), rng.integers(2, 4, count))
        texture = rng.normal(0, 1, (count, 32, 32)).astype(np.float32)
        texture = np.stack([cv2.GaussianBlur(t, (0, 0), 2) for t in texture])
        noise = rng.normal(0, 0.02, (len(points), 32, 32))
        patches = (128 + 400 * (texture[points] + noise)).clip(0, 255).astype(np.uint8)
        parts.append(PatchSet(f"part{k}", patches, points, np.zeros((0, 2), np.int64)))
    return join(parts)


def recipe(net: str, **settings: object) -> Recipe:
    values = {"lr": 0.1, "batch": 8, "pairs": 24, "chunk": 6, "weights": [1.0, 2.0]}
    return Recipe(data=["one", "two"], net=net, accelerator="cpu", **(values | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "net",
    [
        pytest.param(net, marks=() if net in ("hardnet-small", "tfeat") else pytest.mark.slow)
        for net in NETS
    ],
)
def test_every_network_trains(union: PatchSet, net: str, tmp_path: Path) -> None:
    trainer = Trainer(recipe(net), union, tmp_path / "run")
    before = {key: value.clone() for key, value in trainer.net.state_dict().items()}
    weights = trainer.run()
    assert weights.name == f"{net}.safetensors"
    after = load_net(weights)
    assert type(after) is NETS[net]
    changed = [
        key for key, value in after.state_dict().items() if not torch.equal(value, before[key])
    ]
    assert {key for key, _ in after.named_parameters()} <= set(changed)


def test_any_number_of_workers_gives_the_same_weights(union: PatchSet, tmp_path: Path) -> None:
    states = []
    for workers in (1, 4):
        folder = tmp_path / str(workers)
        weights = Trainer(recipe("hardtfeat", workers=workers), union, folder).run()
        states.append(load_net(weights).state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_weights_change_the_run(union: PatchSet, tmp_path: Path) -> None:
    states = []
    for k, weights in enumerate(([], [2.0, 1.0])):
        run = Trainer(recipe("hardtfeat", weights=weights), union, tmp_path / str(k)).run()
        states.append(load_net(run).state_dict()["features.0.weight"])
    assert not torch.equal(*states)
