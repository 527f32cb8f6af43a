"""The networks: HardNet (section 3.3 of the paper), smaller ones, TFeat; AffNet and OriNet.

A network is a list of layers, so that training and export can work layer by layer. The small ones
learn from a large one. Ours (``hardnet-small`` and its variants) are HardNet without its
two layers at full resolution and with fewer channels, multiples of 16, which a CPU computes
fastest. DesDis (IJCV 2024) halves the patch three times.

TFeat (Balntas et al. 2016) is convolution 7, tanh, max-pool, convolution 6, tanh and one fully
connected layer with tanh. It was published in two forms, which differ in what surrounds these
layers. DesDis and TFeat name their parameters as the published files do, so those load unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

Layer: TypeAlias = Callable[[Tensor], Tensor]
"""A module or a plain function; each output row depends only on the same input row, except for
batch normalisation during training."""

STD_FLOOR = 1e-6  # a constant patch has no contrast to divide by; kornia's value


class Net(nn.Module, ABC):
    """A network from grey patches to unit vectors; its constructor takes the dropout rate."""

    dim: ClassVar[int] = 128
    patch_size: ClassVar[int] = 32
    unrelated: ClassVar[tuple[str, ...]] = ()
    """Prefixes of parameters in published files that this network does not use."""

    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """The layers that :meth:`forward` applies, in order."""

    def forward(self, patches: Tensor) -> Tensor:
        """(N, 1, S, S) grey patches -> (N, dim) unit vectors."""
        return apply(self.layers(), patches)


def apply(layers: tuple[Layer, ...], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def normalise_patches(patches: Tensor) -> Tensor:
    """(N, 1, S, S) patches, each minus its mean and divided by its standard deviation.

    A constant patch becomes zeros. No gradient flows through the statistics: they describe the
    input, not the network.
    """
    with torch.no_grad():
        mean = patches.mean(dim=(1, 2, 3), keepdim=True)
        std = patches.std(dim=(1, 2, 3), keepdim=True)
    return (patches - mean) / (std + STD_FLOOR)


def unit_length(vectors: Tensor) -> Tensor:
    """(N, D) -> (N, D) of length 1."""
    return vectors / lengths(vectors)[:, None]


def lengths(vectors: Tensor) -> Tensor:
    """(N, D) -> (N,); the small constant keeps the gradient of a zero vector finite."""
    return torch.sqrt((vectors * vectors).sum(dim=1) + 1e-10)


def flatten(x: Tensor) -> Tensor:
    return x.flatten(1)


def conv_block(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    """3 x 3 convolution, batch normalisation without learned scale, ReLU."""
    return (
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs, affine=False),
        nn.ReLU(inplace=True),
    )


def conv_blocks(channels: tuple[int, ...], halving: tuple[int, ...]) -> list[nn.Module]:
    """Blocks with these channels; ``halving`` are the numbers of those that halve the patch."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise((1, *channels))):
        layers += conv_block(inputs, outputs, 2 if i in halving else 1)
    return layers


def orthogonal(module: nn.Module, gain: float = 0.6) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, gain=gain)
        if module.bias is not None:
            nn.init.constant_(module.bias, 0.01)


class HardNet(Net):
    """Seven convolutions: a 32 x 32 grey patch becomes a 128-D unit vector.

    Every convolution is followed by batch normalisation without learned scale, *the last one too*
    (the paper's figure omits it, the published checkpoints have it); ReLU follows all but the last.
    The patch may have any brightness range. ``dropout``, the rate before the last convolution, is
    0.1 in the NIPS recipe and 0.3 after.
    """

    channels: ClassVar[tuple[int, ...]] = (32, 32, 64, 64, 128, 128)  # of all but the last
    halving: ClassVar[tuple[int, ...]] = (2, 4)

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_blocks(self.channels, self.halving),
            nn.Dropout(dropout),
            nn.Conv2d(self.channels[-1], self.dim, kernel_size=8, bias=False),
            nn.BatchNorm2d(self.dim, affine=False),
        )
        self.features.apply(orthogonal)

    def layers(self) -> tuple[Layer, ...]:
        return (normalise_patches, *self.features, flatten, unit_length)


def small(name: str, *channels: int) -> type[HardNet]:
    """Two convolutions that halve the patch, two at 8 x 8, and one over all of it."""
    return type(name, (HardNet,), {"channels": channels, "halving": (0, 1)})


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
        return (*self.layer1, *self.layer2, *self.layer3, *self.desc, flatten, unit_length)


def student(width: int) -> type[Student]:
    """DesDis-8, -16, -24 or -32."""
    return type(f"Student{width}", (Student,), {"width": width})


class TFeat(Net):
    """TFeat as its authors published it (``tfeat-liberty.params`` and similar files).

    The patch is normalised by its biased variance with 1e-5 added, so it should be in 0..255. The
    published descriptor is the tanh output compared by L2; ours is that output scaled to unit
    length, as every descriptor here is, and :meth:`raw` gives the published values. TFeat was
    published without dropout.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.InstanceNorm2d(1, affine=False), *_convolutions())
        self.descr = nn.Sequential(nn.Linear(64 * 8 * 8, self.dim), nn.Tanh())
        self.dropout = nn.Dropout(dropout)

    def raw(self, patches: Tensor) -> Tensor:
        """(N, 1, 32, 32) -> (N, 128) in [-1, 1], not of unit length."""
        return apply(self.layers()[:-1], patches)

    def layers(self) -> tuple[Layer, ...]:
        return (*self.features, flatten, self.dropout, *self.descr, unit_length)


class HardTFeat(Net):
    """TFeat trained with the HardNet loss (the published ``HardTFeat.pth``, our ``hardtfeat``).

    Input normalisation, unit length and initialisation are those of HardNet. The published file
    does not say whether a tanh follows the last layer; patches of the Oxford sequences match better
    with it, so it does here.
    """

    unrelated = ("SIFT.",)  # the file was saved with a SIFT module attached for comparison

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = nn.Sequential(*_convolutions())
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Conv2d(64, self.dim, kernel_size=8), nn.Tanh()
        )
        self.apply(orthogonal)

    def layers(self) -> tuple[Layer, ...]:
        return (normalise_patches, *self.features, *self.classifier, flatten, unit_length)


def _convolutions() -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(1, 32, kernel_size=7),
        nn.Tanh(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Conv2d(32, 64, kernel_size=6),
        nn.Tanh(),
    )


class FrameNet(nn.Module):
    """(N, 1, 32, 32) patches -> (N, outputs) numbers between -1 and 1.

    AffNet and OriNet (Mishkin et al. 2018) are HardNet's trunk with a quarter to a half of its
    channels. With ``padding`` in the last layer, the outputs are means over several places.
    """

    outputs: ClassVar[int]
    padding: ClassVar[int]
    unrelated: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        trunk = conv_blocks((16, 16, 32, 32, 64, 64), halving=(2, 4))
        last = nn.Conv2d(64, self.outputs, 8, padding=self.padding)
        self.features = nn.Sequential(*trunk, nn.Dropout(0.25), last, nn.Tanh())

    def forward(self, patches: Tensor) -> Tensor:
        spread, mean = torch.std_mean(patches, (1, 2, 3), keepdim=True)
        out: Tensor = self.features((patches - mean) / (spread + 1e-6))
        return out.mean((2, 3))


class AffNet(FrameNet):
    """The shape in which a patch is best described."""

    outputs, padding = 3, 0

    def shapes(self, patches: Tensor) -> Tensor:
        """(N, 1, 32, 32) -> (N, 2, 2) lower triangular shapes with determinant 1."""
        out: Tensor = self(patches)
        x, y, z = out.unbind(1)
        shape: Tensor = torch.stack([1 + x, torch.zeros_like(x), y, 1 + z], 1).view(-1, 2, 2)
        return shape / torch.sqrt((1 + x) * (1 + z))[:, None, None]


class OriNet(FrameNet):
    """The direction of a patch."""

    outputs, padding = 2, 1

    def angles(self, patches: Tensor) -> Tensor:
        """(N, 1, 32, 32) -> (N,) radians, clockwise on screen as in frames."""
        out: Tensor = self(patches)
        sine, cosine = out.unbind(1)
        return -torch.atan2(sine, cosine)  # the published net measures counter-clockwise
