"""Real patches, and a network with the statistics of real patches, for the descriptors."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.frames import cut_patches, from_opencv


@pytest.fixture(scope="session")
def patches(camera: np.ndarray) -> np.ndarray:
    """(70, 32, 32) uint8: more than four batches of the network, and not a multiple."""
    return cut_patches(camera, from_opencv(cv2.SIFT.create(70).detect(camera, None))[:70])


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory, patches: np.ndarray) -> Path:
    """A folder with net.safetensors and net.onnx of one random HardNet."""
    import torch

    from hardnet.interop.onnx import to_onnx
    from hardnet.nets import HardNet, save_checkpoint

    torch.manual_seed(0)
    net = HardNet()
    net(torch.from_numpy(patches).float()[:, None])
    folder = tmp_path_factory.mktemp("weights")
    save_checkpoint(folder / "net.safetensors", net.eval(), "hardnet")
    (folder / "net.onnx").write_bytes(to_onnx(net))
    return folder
