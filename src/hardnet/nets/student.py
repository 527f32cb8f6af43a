"""Small networks, made to learn from a large one: ours, and those of DesDis.

Ours (``hardnet-small`` and its sisters) is HardNet without its two layers at full resolution and
with fewer channels: the same view of 23 pixels, and the same last layer over a grid of 8 x 8
places. DesDis (IJCV 2024) halves the patch three times; the names of its parameters are those of
the published files (``DesDis-32.pth`` and its sisters), so that they load as they are.

Channels are multiples of 16 and convolutions are plain ones: that is what a CPU computes fastest.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from hardnet.nets.layers import Layer, Net, flatten, normalise_patches, orthogonal, unit_length


class Small(Net):
    """Two convolutions that halve the patch, two at 8 x 8, and one over all of it.

    Batch normalisation without learned scale follows each; ReLU follows all but the last.

    Args:
        dropout: rate before the last convolution.
    """

    channels: ClassVar[tuple[int, int, int, int]] = (32, 48, 48, 64)
    """Of the first four convolutions."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        first, second, third, fourth = self.channels
        self.features = nn.Sequential(
            *_block(1, first, 2),
            *_block(first, second, 2),
            *_block(second, third, 1),
            *_block(third, fourth, 1),
            nn.Dropout(dropout),
            nn.Conv2d(fourth, self.dim, kernel_size=8, bias=False),
            nn.BatchNorm2d(self.dim, affine=False),
        )
        self.features.apply(orthogonal)

    def layers(self) -> tuple[Layer, ...]:
        """What :meth:`forward` applies, in order."""
        return (normalise_patches, *self.features, flatten, unit_length)


class Tiny(Small):
    """A third of the cost of :class:`Small`."""

    channels = (16, 32, 32, 32)


class Medium(Small):
    """Nearly twice the cost of :class:`Small`."""

    channels = (32, 64, 64, 96)


class Student(Net):
    """Five convolutions with ``width``, twice and four times as many channels, then 128 numbers.

    Args:
        dropout: rate before the last convolution.
    """

    width: ClassVar[int]

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        d = self.width
        self.layer1 = nn.Sequential(nn.InstanceNorm2d(1, affine=False), *_block(1, d, 2))
        self.layer2 = nn.Sequential(*_block(d, 2 * d, 2))
        self.layer3 = nn.Sequential(*_block(2 * d, 4 * d, 2), *_block(4 * d, 4 * d, 1))
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


def _block(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs, affine=False),
        nn.ReLU(inplace=True),
    )
