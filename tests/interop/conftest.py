"""Real patches, and a HardNet with their statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from hardnet.frames import cut_patches, from_opencv

if TYPE_CHECKING:  # OpenCV's drop-in is tested where there is no torch
    from hardnet.nets import Net


@pytest.fixture(scope="session")
def patches(camera: np.ndarray) -> np.ndarray:
    """(200, 32, 32) uint8."""
    return cut_patches(camera, from_opencv(cv2.SIFT.create(200).detect(camera, None))[:200])


def with_statistics(name: str, patches: np.ndarray) -> Net:
    """Random weights, batch norm statistics of real patches, evaluation mode."""
    import torch

    from hardnet.nets import build_net

    torch.manual_seed(0)
    net = build_net(name)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # average instead of decay: the statistics of these patches
    with torch.no_grad():
        net(torch.from_numpy(patches).float()[:, None])
    return net.eval()


@pytest.fixture(scope="session")
def net(patches: np.ndarray) -> Net:
    return with_statistics("hardnet", patches)


@pytest.fixture(scope="session")
def small_net(patches: np.ndarray) -> Net:
    return with_statistics("hardnet-tiny", patches)
