"""Networks as ONNX graphs, written layer by layer: small, reproducible, without an exporter.

The graph reads (N, 1, S, S) float patches and gives (N, D) unit vectors: the whole network in
evaluation mode, with batch normalisation folded into the layer before it. A convolution that covers
its whole input becomes a matrix product, which onnxruntime runs faster.

HardNet and networks like it also have a form in 8-bit integers, calibrated on real patches. Weights
get one scale per output channel, activations one scale per layer, and since they follow a ReLU they
are unsigned with zero at 0: rounding to the range of the integers *is* the ReLU. The first
convolution, which sees the raw patch, and both normalisations stay in float. Unlike graphs of
``onnxruntime.quantization``, ours has no conversions in between, and its scales minimise the
squared error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.frames import cut_for, from_opencv
from hardnet.image_files import as_path
from hardnet.images import list_images, read_image, to_grey

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hardnet.nets import Net
    from hardnet.nets.hardnet import Layer


OPSET = 17  # of March 2022; read by every onnxruntime the package allows
_IR_VERSION = 8  # the file format that came with that opset
ACTIVATION_LEVELS = 255
WEIGHT_LEVELS = 63
"""7 bits: x86 CPUs without VNNI add pairs of products in 16 bits, where 2 x 255 x 63 is the most
that fits. With 8 bits, descriptors would be wrong there without a warning."""
MIN_CALIBRATION = 64
_MAX_CALIBRATION = 512  # more patches do not change the scales
_CLIP_SEARCH = np.linspace(0.3, 1.0, 36)


@dataclass(frozen=True)
class Convolution:
    """A convolution, weight (O, I, k, k), or a dense layer, (O, I), and its batch norm."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: int = 1
    padding: int = 0

    @property
    def attributes(self) -> dict[str, list[int]]:
        kernel, pads = list(self.weight.shape[2:]), [self.padding] * 4
        return {"kernel_shape": kernel, "pads": pads, "strides": [self.stride] * 2}


class Graph:
    """Nodes and constants of an ONNX graph from "patches" to "descriptors".

    Methods add to it and return the name of what they added.
    """

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError as error:
            raise MissingExtraError("onnx", "train") from error
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        make = self._onnx.helper.make_node
        self._nodes.append(make(kind, list(inputs), [output], name=output, **attributes))
        return output

    def normalise(self, pixels: int) -> str:
        """``hardnet.nets.hardnet.normalise_patches`` as nodes."""
        from hardnet.nets.hardnet import STD_FLOOR

        axes = self.constant("patch_axes", np.array([1, 2, 3], np.int64))
        mean = self.node("ReduceMean", ["patches"], "mean", axes=[1, 2, 3], keepdims=1)
        centred = self.node("Sub", ["patches", mean], "centred")
        square = self.node("Mul", [centred, centred], "square")
        total = self.node("ReduceSum", [square, axes], "total", keepdims=1)
        freedom = self.constant("n1", np.float32(pixels - 1))
        std = self.node("Sqrt", [self.node("Div", [total, freedom], "variance")], "std")
        floor = self.constant("std_floor", np.float32(STD_FLOOR))
        return self.node("Div", [centred, self.node("Add", [std, floor], "std_safe")], "normalised")

    def unit_length(self, vectors: str) -> str:
        """``hardnet.nets.hardnet.unit_length`` as nodes."""
        axes = self.constant("vector_axes", np.array([1], np.int64))
        square = self.node("Mul", [vectors, vectors], "vector_square")
        total = self.node("ReduceSum", [square, axes], "vector_total", keepdims=1)
        tiny = self.constant("tiny", np.float32(1e-10))
        length = self.node("Sqrt", [self.node("Add", [total, tiny], "vector_safe")], "length")
        return self.node("Div", [vectors, length], "descriptors")

    def serialise(self, patch_size: int, dim: int) -> bytes:
        """The checked model as the bytes of an ``.onnx`` file."""
        make, real = self._onnx.helper, self._onnx.TensorProto.FLOAT
        graph = make.make_graph(
            self._nodes,
            "hardnet",
            [make.make_tensor_value_info("patches", real, ["N", 1, patch_size, patch_size])],
            [make.make_tensor_value_info("descriptors", real, ["N", dim])],
            self._constants,
        )
        opset = [make.make_opsetid("", OPSET)]
        model = make.make_model(
            graph, opset_imports=opset, ir_version=_IR_VERSION, producer_name="hardnet"
        )
        self._onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString(deterministic=True))


def to_onnx(net: Net) -> bytes:
    """The ONNX file of a network in evaluation mode, in float32."""
    from torch import nn

    from hardnet.nets.hardnet import flatten, normalise_patches, unit_length

    graph, x = Graph(), "patches"
    side = net.patch_size  # of the maps; 0 once there are vectors
    layers = fold(net.layers())
    last = next((layer for layer in reversed(layers) if isinstance(layer, Convolution)), None)
    numbers, written = count(), Counter[str]()

    def add(kind: str, name: str, *constants: str, **attributes: Any) -> str:
        return graph.node(kind, [x, *constants], name, **attributes)

    def numbered(kind: str) -> str:
        written[kind] += 1
        return f"{kind}{written[kind] - 1}"

    for layer in layers:
        if isinstance(layer, Convolution):
            number = next(numbers)
            which = "_last" if layer is last else f"{number}"
            kernel = layer.weight.shape[-1] if layer.weight.ndim == 4 else side
            slides = kernel != side or layer.padding
            values = layer.weight if slides else layer.weight.reshape(len(layer.weight), -1)
            weight = graph.constant(f"w{which}", values)
            bias = graph.constant(f"b{which}", layer.bias)
            if slides:
                x = add("Conv", f"conv{number}", weight, bias, **layer.attributes)
                side = (side + 2 * layer.padding - kernel) // layer.stride + 1
            else:
                x = add("Flatten", "flat") if side else x
                x = add("Gemm", "y" if layer is last else f"y{number}", weight, bias, transB=1)
                side = 0
        elif layer is normalise_patches and x == "patches":
            x = graph.normalise(side**2)
        elif layer is unit_length:
            x = graph.unit_length(x)
        elif layer is flatten:
            x = add("Flatten", "flat") if side else x
            side = 0
        elif isinstance(layer, nn.ReLU | nn.Tanh):
            kind = type(layer).__name__.capitalize()
            x = add(kind, numbered(kind.lower()))
        elif isinstance(layer, nn.MaxPool2d) and (size := _pool_size(layer)):
            kernel, stride = size
            x = add("MaxPool", numbered("pool"), kernel_shape=[kernel] * 2, strides=[stride] * 2)
            side = (side - kernel) // stride + 1
        elif isinstance(layer, nn.InstanceNorm2d) and not layer.track_running_stats:
            name, ones = numbered("instance"), np.ones(layer.num_features)
            scale = ones if layer.weight is None else double(layer.weight)
            shift = 0 * ones if layer.bias is None else double(layer.bias)
            scale_name = graph.constant(f"{name}_scale", scale.astype(np.float32))
            shift_name = graph.constant(f"{name}_shift", shift.astype(np.float32))
            x = add("InstanceNormalization", name, scale_name, shift_name, epsilon=layer.eps)
        else:
            raise HardnetError(
                f"ONNX export does not know the layer {layer}: add it to hardnet.interop.onnx"
            )
    if x != "descriptors":
        raise HardnetError(f"{type(net).__name__} cannot be exported: it must end in unit_length")
    return graph.serialise(net.patch_size, net.dim)


def _pool_size(layer: nn.MaxPool2d) -> tuple[int, int] | None:
    kernel, stride = layer.kernel_size, layer.stride
    plain = not layer.padding and layer.dilation == 1 and not layer.ceil_mode
    if plain and isinstance(kernel, int) and isinstance(stride, int):
        return kernel, stride
    return None


def fold(layers: Iterable[Layer]) -> list[Convolution | Layer]:
    """The layers as they act in evaluation mode, without dropout, convolutions folded.

    BN(Wx + b) = gamma (Wx + b - mean) / sqrt(var + eps) + beta is a convolution with different
    weights and bias, computed in double precision.
    """
    from torch import nn

    norms, products = (nn.BatchNorm1d, nn.BatchNorm2d), (nn.Conv2d, nn.Linear)
    acting = [layer for layer in layers if not isinstance(layer, nn.Dropout)]
    folded: list[Convolution | Layer] = []
    for before, layer, after in zip([None, *acting], acting, [*acting[1:], None], strict=False):
        if isinstance(layer, products):
            folded.append(_fold(layer, after if isinstance(after, norms) else None))
        elif not isinstance(layer, norms):
            folded.append(layer)
        elif not isinstance(before, products):
            raise HardnetError(f"{layer} does not follow a convolution: it cannot be exported")
    return folded


def _fold(
    layer: nn.Conv2d | nn.Linear, norm: nn.BatchNorm1d | nn.BatchNorm2d | None
) -> Convolution:
    from torch import nn

    weight = double(layer.weight)
    bias = np.zeros(len(weight)) if layer.bias is None else double(layer.bias)
    if norm is not None:
        scale = 1 / np.sqrt(double(norm.running_var) + norm.eps)
        if norm.weight is not None:
            scale *= double(norm.weight)
        weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
        bias = (bias - double(norm.running_mean)) * scale
        if norm.bias is not None:
            bias += double(norm.bias)
    weights = weight.astype(np.float32), bias.astype(np.float32)
    if not isinstance(layer, nn.Conv2d):
        return Convolution(*weights)
    plain = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    if not plain or not square or isinstance(layer.padding, str):
        raise HardnetError(f"{layer} cannot be exported: only square convolutions of one group")
    return Convolution(*weights, layer.stride[0], layer.padding[0])


def double(tensor: Tensor | None) -> NDArray[np.float64]:
    if tensor is None:
        raise HardnetError("the network has no batch norm statistics")
    return np.asarray(tensor.detach().cpu().double().numpy())


def to_onnx_int8(net: Net, patches: NDArray[np.uint8]) -> bytes:
    """The ONNX file, with input and output of ``to_onnx``, of a HardNet in evaluation mode.

    ``patches`` (N, 32, 32) are from real photos, N at least 64; the first 512 are used.
    """
    if len(patches) < MIN_CALIBRATION:
        raise HardnetError(
            f"calibration needs at least {MIN_CALIBRATION} patches, got {len(patches)}"
        )
    layers = relu_chain(net)
    scales = calibrate(layers, patches[:_MAX_CALIBRATION])
    graph = Graph()
    zero = graph.constant("zero", np.uint8(0))
    names = [graph.constant(f"scale{i}", np.float32(s)) for i, s in enumerate(scales)]

    x = graph.normalise(net.patch_size**2)
    first = layers[0]
    weight, bias = graph.constant("w0", first.weight), graph.constant("b0", first.bias)
    x = graph.node("Conv", [x, weight, bias], "conv0", **first.attributes)
    x = graph.node("QuantizeLinear", [x, names[0], zero], "q0")

    for i, layer in enumerate(layers[1:-1], start=1):
        integers, scale = quantise_weights(layer.weight)
        # The bias is added to the integer sum of products, so it has their scale.
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
            **layer.attributes,
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
    graph.unit_length(y)
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


def quantise_weights(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(O, ...) weights -> int8 of the same shape and (O,) scales; integer x scale ~ weight."""
    rows = weight.reshape(len(weight), -1)
    scale = np.maximum(np.abs(rows).max(1), 1e-12) / WEIGHT_LEVELS
    integers = np.round(rows / scale[:, None]).astype(np.int8)
    return integers.reshape(weight.shape), scale.astype(np.float32)


def calibrate(layers: list[Convolution], patches: NDArray[np.uint8]) -> list[float]:
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

    For a ``descriptor`` of K windows they are (N, K, 32, 32). N is at most ``count``. Images that
    cannot be read are skipped.
    """
    folder = as_path(folder)
    if not folder.is_dir():
        raise HardnetError(f"no folder {folder}")
    random = np.random.default_rng(seed)
    files = list_images(folder)
    # A few patches from many photos are more informative than many from a few.
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
    except HardnetError:  # one damaged or tiny image among many should not stop the export
        return cut_for(descriptor, np.zeros((1, 1), np.uint8), np.zeros((0, 2, 3), np.float32))
    # Detect more than needed: the strongest alone would all be high-contrast corners.
    frames = from_opencv(cv2.SIFT.create(4 * count).detect(grey, None))
    return cut_for(descriptor, grey, frames[random.permutation(len(frames))[:count]])
