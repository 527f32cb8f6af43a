"""TFeat, the shallow network of Balntas et al. 2016, in the two forms that were published.

Both are convolution 7, tanh, max-pool, convolution 6, tanh and one fully connected layer with tanh:
a 32 x 32 patch becomes 128 numbers. They differ in what surrounds these layers, and in the names
of the parameters; the names here are those of the published files, so that they load as they are.

The descriptor ``hardtfeat``, and what ``net: hardtfeat`` trains, is :class:`HardTFeat`.
"""

from __future__ import annotations

from torch import Tensor, nn

from hardnet.nets.hardnet import (
    Layer,
    Net,
    apply,
    flatten,
    normalise_patches,
    orthogonal,
    unit_length,
)


class TFeat(Net):
    """TFeat as its authors published it (``tfeat-liberty.params`` and its sisters).

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
        """What :meth:`forward` applies, in order."""
        return (*self.features, flatten, self.dropout, *self.descr, unit_length)


class HardTFeat(Net):
    """TFeat trained with the HardNet loss (``HardTFeat.pth``, and our own ``hardtfeat``).

    Input normalisation, unit length and the start of a training are those of HardNet. The published
    file does not say whether a tanh follows the last layer; with it, patches of the Oxford
    sequences match better than without, so it does.
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
        """What :meth:`forward` applies, in order."""
        return (normalise_patches, *self.features, *self.classifier, flatten, unit_length)


def _convolutions() -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(1, 32, kernel_size=7),
        nn.Tanh(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Conv2d(32, 64, kernel_size=6),
        nn.Tanh(),
    )
