"""Real patches for the networks."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from hardnet.frames import cut_patches, from_opencv


@pytest.fixture(scope="session")
def patches(camera: np.ndarray) -> torch.Tensor:
    """(64, 1, 32, 32) float patches of a photograph, 0..255."""
    frames = from_opencv(cv2.SIFT.create(64).detect(camera, None))[:64]
    return torch.from_numpy(cut_patches(camera, frames)).float()[:, None]
