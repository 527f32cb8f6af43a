"""The HardNet network: the L2-Net architecture, section 3.3 of the paper."""

from __future__ import annotations

from torch import nn

from hardnet.nets.layers import Layer, Net, flatten, normalise_patches, orthogonal, unit_length


class HardNet(Net):
    """Seven convolutions: a 32 x 32 grey patch becomes a 128-D unit vector.

    Every convolution is followed by batch normalisation without learned scale, *the last one too*
    (the paper's figure omits it, the published checkpoints have it); ReLU follows all but the last.
    The patch may have any brightness range.

    Args:
        dropout: rate before the last convolution; 0.1 in the NIPS recipe, 0.3 after.
    """

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(1, 32),
            *_block(32, 32),
            *_block(32, 64, stride=2),
            *_block(64, 64),
            *_block(64, 128, stride=2),
            *_block(128, 128),
            nn.Dropout(dropout),
            nn.Conv2d(128, self.dim, kernel_size=8, bias=False),
            nn.BatchNorm2d(self.dim, affine=False),
        )
        self.features.apply(orthogonal)

    def layers(self) -> tuple[Layer, ...]:
        """What :meth:`forward` applies, in order."""
        return (normalise_patches, *self.features, flatten, unit_length)


def _block(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs, affine=False),
        nn.ReLU(inplace=True),
    )
