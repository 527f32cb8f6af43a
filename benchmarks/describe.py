"""Describe the same real patches with HardNet in kornia and with ours, on the same threads.

Example: python benchmarks/describe.py --images photos
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from measuring import (
    SKIMAGE,
    Output,
    Repetitions,
    Threads,
    extra_memory_mb,
    finish,
    in_fresh_process,
    median_seconds,
    run_script,
)
from numpy.typing import NDArray

from hardnet.descriptors import WEIGHTS, load, names
from hardnet.interop.onnx import photo_patches

Describe = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

OURS = ("hardnet", "hardnet-int8", "hardnet-small", "hardnet-small-int8", "sift")
BATCHES = (256, 2048)


def main(
    images: Annotated[
        Path | None, typer.Option(help="Folder of photographs [scikit-image's].")
    ] = None,
    weights: Annotated[Path, typer.Option(help="Folder written by hardnet export.")] = WEIGHTS,
    threads: Threads = 2,
    patches: Annotated[int, typer.Option(help="Patches per measurement.")] = 2048,
    repetitions: Repetitions = 7,
    memory: Annotated[
        list[int] | None,
        typer.Option(help="Numbers of patches at which to measure memory [10000, 100000]."),
    ] = None,
    output: Output = Path("results/describe.json"),
) -> None:
    """Throughput, agreement and memory of describing patches; writes a JSON file."""
    found = photo_patches(images or SKIMAGE, patches)
    # Repeat patches if there are too few: the time does not depend on their content.
    real = np.tile(found, (-(-patches // len(found)), 1, 1))[:patches]
    contestants: dict[str, Describe] = {"kornia": _kornia(weights, threads)}
    cv2.setNumThreads(threads)
    for name in OURS:
        file = weights / f"{name}.onnx"
        if file.is_file() or name in names():
            contestants[name] = load(file if file.is_file() else name, threads)

    rates = _throughput(contestants, real, repetitions)
    expected = contestants["kornia"](real)
    difference = float(np.abs(contestants["hardnet"](real) - expected).max())
    cosine = (contestants["hardnet-int8"](real) * contestants["hardnet"](real)).sum(1)
    extra = {
        name: {
            n: in_fresh_process(extra_memory, weights / f"{name}.onnx", n, threads)
            for n in memory or [10_000, 100_000]
        }
        for name in ("hardnet", "hardnet-int8")
    }
    measured = {
        "patches_per_second": rates,
        "ratio_to_kornia": {
            batch: {name: rate / row["kornia"] for name, rate in row.items()}
            for batch, row in rates.items()
        },
        "max_difference_to_kornia": difference,
        "int8_cosine": {"mean": float(cosine.mean()), "least": float(cosine.min())},
        "extra_memory_mb": extra,
    }
    networks = [weights / f"{name}.onnx" for name in ("hardnet", "hardnet-int8")]
    finish("describe", measured, networks, output)


def _kornia(weights: Path, threads: int) -> Describe:
    import kornia
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(threads)
    net = kornia.feature.HardNet(False).eval()
    net.load_state_dict(load_file(weights / "hardnet.safetensors"))

    def describe(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(net(torch.from_numpy(patches).float()[:, None]).numpy())

    return describe


def _throughput(
    contestants: dict[str, Describe], patches: NDArray[np.uint8], repetitions: int
) -> dict[int, dict[str, float]]:
    """Median patches per second."""

    def in_batches(describe: Describe, batch: int) -> None:
        for i in range(0, len(patches), batch):
            describe(patches[i : i + batch])

    for describe in contestants.values():
        describe(patches[:256])
    rates: dict[int, dict[str, float]] = {}
    for batch in BATCHES:
        work = {name: partial(in_batches, each, batch) for name, each in contestants.items()}
        seconds = median_seconds(work, repetitions)
        rates[batch] = {name: len(patches) / taken for name, taken in seconds.items()}
    return rates


def extra_memory(weights: Path, count: int, threads: int) -> float:
    """Peak memory in MB of one call, without its input and output."""
    describe = load(weights, threads)
    patches = np.random.default_rng(0).integers(0, 256, (count, 32, 32), np.uint8)
    return extra_memory_mb(lambda: describe(patches)) - count * describe.dim * 4 / 2**20


if __name__ == "__main__":
    run_script(main)
