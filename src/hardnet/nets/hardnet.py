"""The HardNet network (the L2-Net architecture, section 3.3 of the paper) and smaller ones.

The small ones are made to learn from a large one. Ours (``hardnet-small`` and its sisters) is
HardNet without its two layers at full resolution and with fewer channels: the same view of 23
pixels, and the same last layer over a grid of 8 x 8 places. DesDis (IJCV 2024) halves the patch
three times; the names of its parameters are those of the published files (``DesDis-32.pth`` and its
sisters), so that they load as they are. Channels are multiples of 16 and convolutions are plain
ones: that is what a CPU computes fastest.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from torch import nn

from hardnet.nets.layers import (
    Layer,
    Net,
    conv_block,
    flatten,
    normalise_patches,
    orthogonal,
    unit_length,
)


class HardNet(Net):
    """Seven convolutions: a 32 x 32 grey patch becomes a 128-D unit vector.

    Every convolution is followed by batch normalisation without learned scale, *the last one too*
    (the paper's figure omits it, the published checkpoints have it); ReLU follows all but the last.
    The patch may have any brightness range. ``dropout``, the rate before the last convolution, is
    0.1 in the NIPS recipe and 0.3 after.
    """

    channels: ClassVar[tuple[int, ...]] = (32, 32, 64, 64, 128, 128)
    """Of all convolutions but the last."""
    halving: ClassVar[tuple[int, ...]] = (2, 4)
    """Which convolutions halve the patch, counted from 0."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise((1, *self.channels))):
            layers += conv_block(inputs, outputs, 2 if i in self.halving else 1)
        self.features = nn.Sequential(
            *layers,
            nn.Dropout(dropout),
            nn.Conv2d(self.channels[-1], self.dim, kernel_size=8, bias=False),
            nn.BatchNorm2d(self.dim, affine=False),
        )
        self.features.apply(orthogonal)

    def layers(self) -> tuple[Layer, ...]:
        """What :meth:`forward` applies, in order."""
        return (normalise_patches, *self.features, flatten, unit_length)


class Small(HardNet):
    """Two convolutions that halve the patch, two at 8 x 8, and one over all of it."""

    channels = (32, 48, 48, 64)
    halving = (0, 1)


class Tiny(Small):
    """A third of the cost of :class:`Small`."""

    channels = (16, 32, 32, 32)


class Medium(Small):
    """Nearly twice the cost of :class:`Small`."""

    channels = (32, 64, 64, 96)


class Student(Net):
    """Five convolutions with ``width``, twice and four times as many channels, then 128 numbers."""

    width: ClassVar[int]

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        d = self.width
        self.layer1 = nn.Sequential(nn.InstanceNorm2d(1, affine=False), *conv_block(1, d, 2))
        self.layer2 = nn.Sequential(*conv_block(d, 2 * d, 2))
        self.layer3 = nn.Sequential(*conv_block(2 * d, 4 * d, 2), *conv_block(4 * d, 4 * d))
        self.desc = nn.Sequential(
            nn.Dropout(dropout),
            nn.Conv2d(4 * d, self.dim, kernel_size=4),
            nn.BatchNorm2d(self.dim, affine=False),
        )
        self.apply(orthogonal)

    def layers(self) -> tuple[Layer, ...]:
        """What :meth:`forward` applies, in order."""
        return (*self.layer1, *self.layer2, *self.layer3, *self.desc, flatten, unit_length)


class Student8(Student):
    """DesDis-8."""

    width = 8


class Student16(Student):
    """DesDis-16."""

    width = 16


class Student24(Student):
    """DesDis-24."""

    width = 24


class Student32(Student):
    """DesDis-32."""

    width = 32
