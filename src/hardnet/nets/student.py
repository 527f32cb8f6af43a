"""The small network of DesDis, in the four widths whose weights were published.

A student that learned from a large teacher: three convolutions halve the patch before the network
grows wide, so it costs an eighth of HardNet and less. The names of the parameters are those of the
published files (``DesDis-32.pth`` and its sisters), so that they load as they are.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from hardnet.nets.layers import Layer, Net, flatten, orthogonal, unit_length


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
    """0.4 million multiply-adds per patch."""

    width = 8


class Student16(Student):
    """1.4 million."""

    width = 16


class Student24(Student):
    """2.9 million."""

    width = 24


class Student32(Student):
    """5 million."""

    width = 32


def _block(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs, affine=False),
        nn.ReLU(inplace=True),
    )
