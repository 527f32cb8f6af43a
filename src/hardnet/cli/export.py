"""`hardnet export CHECKPOINT`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors
from hardnet.cli.options import AsJson, argument, option, reads_images
from hardnet.cli.output import say
from hardnet.descriptors import load, split_windows
from hardnet.errors import HardnetError, MissingExtraError, counted
from hardnet.frames import PATCH_SIZE, resize_patches
from hardnet.image_files import file_digest
from hardnet.interop.onnx import photo_patches
from hardnet.patchsets.brown import read_brown
from hardnet.storage import OwnedFolder, publish

if TYPE_CHECKING:
    from hardnet.nets import Net

TOLERANCE = 1e-4
"""An exported float network that differs more than this from PyTorch is not written."""

_CHECKED = 1024
_STATISTICS = 20 * 1024


@reads_images
def export(
    checkpoint: Path = argument("Weights: .safetensors, .pth, .params."),
    output: Path = option(..., "Folder to write to.", "--output", "-o"),
    int8: bool = option(False, "Also in 8-bit integers (hardnet*); needs --calibration."),
    calibration: Path | None = option(None, "Patch set or folder of photos to calibrate with."),
    average: list[Path] = option(
        [], "Export the mean of CHECKPOINT and these weights; needs --calibration."
    ),
    windows: str = option(
        "", "Also learn how to join these windows, e.g. 12+24+48; needs --calibration PHOTOS."
    ),
    net_: str | None = option(None, "Your network, module:Class, of these weights.", "--net"),
    as_json: AsJson = False,
) -> None:
    """Write a trained network as ONNX (for use) and safetensors (for training).

    The files are called by the name of the network: hardnet.onnx, hardtfeat.onnx, ...

    Example: hardnet export runs/mine/hardnet.safetensors -o out --int8 --calibration photos
    """
    for asked, name in ((int8, "--int8"), (average, "--average"), (windows, "--windows")):
        if asked and calibration is None:
            raise HardnetError(f"{name} needs --calibration FOLDER: a patch set or photographs")
    sigmas = split_windows(f"net@{windows}")[1] if windows else ()
    if windows and (len(sigmas) < 2 or (calibration and (calibration / "info.txt").is_file())):
        raise HardnetError(
            f"--windows {windows}: give two windows or more, in sigmas (12+24+48), and "
            "photographs to --calibration"
        )
    if average and net_ is not None:
        raise HardnetError("--average is for registered networks: leave out --net")
    try:
        from hardnet.interop.onnx import relu_chain, to_onnx, to_onnx_int8
        from hardnet.nets import average_files, find_net, load_net, read_checkpoint, save_checkpoint
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from None
    given = None if net_ is None else (net_, find_net(net_))
    stored = read_checkpoint(checkpoint, given)
    net, metadata = load_net(checkpoint, given), stored.metadata
    if average and calibration is not None:
        together = [checkpoint, *average]
        net = average_files(together, _real_patches(calibration, _STATISTICS))
        parts = [{"name": path.name, "sha256": file_digest(path)} for path in together]
        metadata = metadata | {"average": parts}
    name = stored.net.rpartition(":")[2]
    if int8:
        relu_chain(net)  # fails before anything is written if the network has no 8-bit form
    real = None if calibration is None else _real_patches(calibration, 2 * _CHECKED)
    # Calibrated on one half, checked on the other.
    checked = _smooth_noise(_CHECKED) if real is None else real[len(real) // 2 :]
    output.mkdir(parents=True, exist_ok=True)
    owned = OwnedFolder.mark(output)
    files = [owned.claim(f"{name}{suffix}") for suffix in (".onnx", ".safetensors")]
    if int8:
        owned.claim(f"{name}-int8.onnx")
    with tempfile.TemporaryDirectory(dir=output, prefix="export-") as scratch:
        new = [Path(scratch) / file.name for file in files]
        new[0].write_bytes(to_onnx(net))
        save_checkpoint(new[1], net, stored.net, metadata)
        expected = _described_by_torch(load_net(new[1], given), checked)
        difference = float(abs(load(new[0])(checked) - expected).max())
        if difference > TOLERANCE:
            raise HardnetError(f"{files[0]} differs from PyTorch by {difference:.1e}: not written")
        for made, file in zip(new, files, strict=True):
            publish(made, file)
    facts: dict[str, Any] = {"patches": "noise" if real is None else "real"}
    facts["max_difference_to_torch"] = difference
    on = counted(len(checked), f"{facts['patches']} patch")
    lines = [f"largest difference to PyTorch on {on}: {difference:.1e}"]
    if int8 and real is not None:
        files.append(output / f"{name}-int8.onnx")
        files[-1].write_bytes(to_onnx_int8(net, real[: len(real) // 2]))
        cosine = (load(files[-1])(checked) * expected).sum(1)
        mean, least = float(cosine.mean()), float(cosine.min())
        facts |= {"int8_mean_cosine": mean, "int8_min_cosine": least}
        lines.append(f"cosine of int8 to float on {on}: mean {mean:.5f}, least {least:.5f}")
    if sigmas and calibration is not None:
        files.append(_learn_windows(files, sigmas, calibration))
    facts["bytes"] = {path.name: path.stat().st_size for path in files}
    if as_json:
        print(json.dumps(facts))
        return
    for name, size in facts["bytes"].items():
        say(f"{output / name}  {size / 1e6:.2f} MB")
    for line in lines:
        say(line)


def _learn_windows(files: list[Path], sigmas: tuple[float, ...], photos: Path) -> Path:
    descriptor = descriptors.WindowsDescriptor(descriptors.load(files[0]), sigmas)
    vectors = descriptor.side_by_side(photo_patches(photos, _STATISTICS, descriptor=descriptor))
    projection = descriptors.learn_projection(vectors, descriptor.dim)
    output = descriptors.windows_file(files[0])
    OwnedFolder.mark(output.parent).claim(output.name)
    digests = [file_digest(file) for file in files]
    descriptors.save_projections(output, {descriptors.windows_text(sigmas): projection}, digests)
    return output


def _described_by_torch(net: Net, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    import torch

    resized = resize_patches(patches, net.patch_size)[:, None].astype(np.float32)
    with torch.inference_mode():
        parts = [net(part) for part in torch.split(torch.from_numpy(resized), 128)]
    return np.asarray(torch.cat(parts).numpy())


def _real_patches(folder: Path, count: int) -> NDArray[np.uint8]:
    if not (folder / "info.txt").is_file():
        return photo_patches(folder, count)
    patches = read_brown(folder, PATCH_SIZE).patches
    chosen = np.random.default_rng(0).permutation(len(patches))[:count]
    return np.array(patches[np.sort(chosen)])


def _smooth_noise(count: int) -> NDArray[np.uint8]:
    """(count, 32, 32) patches of blurred noise, to check with when there are no real ones."""
    noise = np.random.default_rng(0).integers(0, 256, (count, 32, 32)).astype(np.uint8)
    return np.stack([cv2.GaussianBlur(patch, (0, 0), 1.5) for patch in noise])
