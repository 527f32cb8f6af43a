"""HardNet and networks like it in 8-bit integers, calibrated on real patches.

Weights get one scale per output channel, activations one scale per layer, and since they follow
a ReLU they are unsigned with zero at 0: rounding to the range of the integers *is* the ReLU. The
first convolution (1 % of the work, but it sees the raw patch), the input normalisation, the sum
of the last layer and the scaling to unit length stay in float. Unlike the graphs of
``onnxruntime.quantization`` ours has no conversions in between, and scales of least squared error.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import from_opencv
from hardnet.images import list_images, read_image, to_grey
from hardnet.interop.onnx import (
    Convolution,
    Graph,
    conv_attributes,
    fold,
    normalise_nodes,
    unit_length_nodes,
)
from hardnet.patches import cut_for
from hardnet.storage import as_path

if TYPE_CHECKING:
    from torch import Tensor

    from hardnet.nets import Net


ACTIVATION_LEVELS = 255
WEIGHT_LEVELS = 63
"""7-bit weights: older x86 CPUs (without VNNI) add pairs of products in 16 bits, and 2 x 255 x 63
is the most that fits. Full 8-bit weights would give wrong descriptors there without a warning."""
MIN_CALIBRATION = 64
_MAX_CALIBRATION = 512  # more patches do not move the scales
_CLIP_SEARCH = np.linspace(0.3, 1.0, 36)


def to_onnx_int8(net: Net, patches: NDArray[np.uint8]) -> bytes:
    """The ONNX file, with input and output of ``to_onnx``, of a HardNet in evaluation mode.

    ``patches`` (N, 32, 32) are real ones, N at least 64; the first 512 are used.
    """
    if len(patches) < MIN_CALIBRATION:
        raise HardnetError(
            f"calibration needs at least {MIN_CALIBRATION} patches, got {len(patches)}"
        )
    layers = relu_chain(net)
    scales = calibrate(net, layers, patches[:_MAX_CALIBRATION])
    graph = Graph()
    zero = graph.constant("zero", np.uint8(0))
    names = [graph.constant(f"scale{i}", np.float32(s)) for i, s in enumerate(scales)]

    x = normalise_nodes(graph, pixels=net.patch_size**2)
    first = layers[0]
    weight, bias = graph.constant("w0", first.weight), graph.constant("b0", first.bias)
    x = graph.node("Conv", [x, weight, bias], "conv0", **conv_attributes(first))
    x = graph.node("QuantizeLinear", [x, names[0], zero], "q0")

    for i, layer in enumerate(layers[1:-1], start=1):
        integers, scale = quantise_weights(layer.weight)
        # The bias is added to the integer sum of products, so it has the scale of those.
        bias32 = np.round(layer.bias / (scale * scales[i - 1])).astype(np.int32)
        x = graph.node(
            "QLinearConv",
            [
                *(x, names[i - 1], zero),
                graph.constant(f"w{i}", integers),
                graph.constant(f"w_scale{i}", scale),
                graph.constant(f"w_zero{i}", np.zeros(len(scale), np.int8)),
                *(names[i], zero),
                graph.constant(f"b{i}", bias32),
            ],
            f"q{i}",
            **conv_attributes(layer),
        )

    last = layers[-1]
    integers, scale = quantise_weights(last.weight)
    columns = np.ascontiguousarray(integers.reshape(len(integers), -1).T)
    flat = graph.node("Flatten", [x], "flat")
    total = graph.node("MatMulInteger", [flat, graph.constant("w_last", columns)], "sum")
    real = graph.node("Cast", [total], "sum_float", to=1)  # 1 is TensorProto.FLOAT
    rescale = graph.constant("w_scale_last", (scale * scales[-1]).astype(np.float32))
    product = graph.node("Mul", [real, rescale], "product")
    y = graph.node("Add", [product, graph.constant("b_last", last.bias)], "y")
    unit_length_nodes(graph, y)
    return graph.serialise(net.patch_size, net.dim)


def relu_chain(net: Net) -> list[Convolution]:
    """The convolutions of HardNet or a network like it: ReLU follows all but the last."""
    from torch import nn

    from hardnet.nets.hardnet import flatten, normalise_patches, unit_length

    first, *chain, last, flat, unit = fold(net.layers())
    convolutions = [layer for layer in (*chain, last) if isinstance(layer, Convolution)]
    if (
        (first, flat, unit) != (normalise_patches, flatten, unit_length)
        or len(chain) != 2 * len(convolutions) - 2
        or not all(isinstance(layer, nn.ReLU) for layer in chain[1::2])
    ):
        raise HardnetError(
            f"{type(net).__name__} has no 8-bit form: it is not a chain of convolutions with ReLU"
        )
    return convolutions


def quantise_weights(
    weight: NDArray[np.float32], levels: int = WEIGHT_LEVELS
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(O, ...) weights -> int8 of the same shape and (O,) scales; integer x scale ~ weight."""
    rows = weight.reshape(len(weight), -1)
    scale = np.maximum(np.abs(rows).max(1), 1e-12) / levels
    integers = np.round(rows / scale[:, None]).astype(np.int8)
    return integers.reshape(weight.shape), scale.astype(np.float32)


def calibrate(net: Net, layers: list[Convolution], patches: NDArray[np.uint8]) -> list[float]:
    """The scale of every activation but the last layer's, from real patches."""
    import torch
    from torch.nn import functional as F

    from hardnet.nets.hardnet import normalise_patches

    scales = []
    with torch.inference_mode():
        x = normalise_patches(torch.from_numpy(patches).float()[:, None])
        for layer, _ in pairwise(layers):
            weight, bias = torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)
            x = F.conv2d(x, weight, bias, layer.stride, layer.padding).relu_()
            scales.append(best_scale(x))
    return scales


def best_scale(activations: Tensor, levels: int = ACTIVATION_LEVELS) -> float:
    """The scale of least mean squared error for 0..levels; values above it are clipped."""
    # An odd step, so that it does not keep hitting the same column of every map.
    sample = activations.flatten()[:: activations.numel() // 200_000 | 1]
    largest = float(sample.max())
    if largest <= 0:
        raise HardnetError("a layer of the network gives only zeros on the calibration patches")

    def error(scale: float) -> float:
        restored = (sample / scale).round_().clamp_(0, levels).mul_(scale)
        return float((restored - sample).square_().mean())

    return float(min((largest * clip / levels for clip in _CLIP_SEARCH), key=error))


def photo_patches(
    folder: Path | str, count: int, seed: int = 0, descriptor: object = None
) -> NDArray[np.uint8]:
    """(N, 32, 32) patches of a folder of photographs, to calibrate and check a network with.

    For a ``descriptor`` of K windows they are (N, K, 32, 32).
    Fewer than ``count`` are returned if there are no more. Images that cannot be read are passed
    over.
    """
    folder = as_path(folder)
    if not folder.is_dir():
        raise HardnetError(f"no folder {folder}")
    random = np.random.default_rng(seed)
    files = list_images(folder)
    # A few patches of many photographs say more than many patches of a few.
    files = [files[i] for i in random.permutation(len(files))[: max(16, count // 50)]]
    each = -(-count // len(files))
    cut = np.concatenate([_patches_of(path, each, random, descriptor) for path in files])
    if not len(cut):
        raise HardnetError(f"no patches in the photographs of {folder}")
    return cut[random.permutation(len(cut))[:count]]


def _patches_of(
    path: Path, count: int, random: np.random.Generator, descriptor: object
) -> NDArray[np.uint8]:
    try:
        grey = to_grey(read_image(path))
    except HardnetError:  # a damaged or tiny image among many is no reason to stop
        return cut_for(descriptor, np.zeros((1, 1), np.uint8), np.zeros((0, 2, 3), np.float32))
    # More than wanted: the strongest alone would all be corners of high contrast.
    frames = from_opencv(cv2.SIFT.create(4 * count).detect(grey, None))
    return cut_for(descriptor, grey, frames[random.permutation(len(frames))[:count]])
