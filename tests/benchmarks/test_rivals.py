"""The convolution that stands in for torchvision's in ALIKED, against loops."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs hardnet[train]")

import rivals


def test_it_looks_where_it_is_told() -> None:
    rng = np.random.default_rng(0)
    image, weight = rng.normal(size=(2, 6, 7)), rng.normal(size=(3, 2, 3, 3))
    offset, bias = rng.uniform(-3, 3, (18, 6, 7)), rng.normal(size=3)
    mask = rng.uniform(size=(9, 6, 7))

    def pixel(channel: int, y: int, x: int) -> float:
        return image[channel, y, x] if 0 <= y < 6 and 0 <= x < 7 else 0.0

    def sample(channel: int, y: float, x: float) -> float:
        top, left = int(np.floor(y)), int(np.floor(x))
        return sum(
            pixel(channel, top + i, left + j) * (1 - abs(y - top - i)) * (1 - abs(x - left - j))
            for i in (0, 1)
            for j in (0, 1)
        )

    expected = np.zeros((3, 6, 7))
    for y in range(6):
        for x in range(7):
            for k in range(9):
                at = (y + k // 3 - 1 + offset[2 * k, y, x], x + k % 3 - 1 + offset[2 * k + 1, y, x])
                for channel in range(2):
                    value = mask[k, y, x] * sample(channel, *at)
                    expected[:, y, x] += weight[:, channel, k // 3, k % 3] * value
    tensors = (torch.from_numpy(a) for a in (image[None], offset[None], weight, bias))
    found = rivals.deform_conv2d(*tensors, padding=1, mask=torch.from_numpy(mask[None]))
    np.testing.assert_allclose(found[0].numpy(), expected + bias[:, None, None], atol=1e-5)
