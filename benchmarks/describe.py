"""Describe the same real patches with HardNet in kornia and with ours, on the same threads.

Example: python benchmarks/describe.py --images photos
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from numpy.typing import NDArray
from report.tables import write

from hardnet import provenance
from hardnet.descriptors import WEIGHTS, load, names
from hardnet.interop.onnx import photo_patches

Describe = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

OURS = ("hardnet", "hardnet-int8", "hardnet-small", "hardnet-small-int8", "sift")
BATCHES = (256, 2048)


def main(
    images: Annotated[
        Path | None, typer.Option(help="Folder of photographs [those of scikit-image].")
    ] = None,
    weights: Annotated[Path, typer.Option(help="Folder that hardnet export wrote.")] = WEIGHTS,
    threads: Annotated[int, typer.Option(help="Threads of everybody.")] = 2,
    patches: Annotated[int, typer.Option(help="Patches per measurement.")] = 2048,
    repetitions: Annotated[int, typer.Option(help="Measurements per median.")] = 7,
    memory: Annotated[
        list[int] | None,
        typer.Option(help="Measure memory at these numbers of patches [10000, 100000]."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("results/describe.json"),
) -> None:
    """Throughput, agreement and memory of describing patches; writes a JSON file."""
    folder = images or Path(str(files("skimage") / "data"))
    real = _fill(photo_patches(folder, patches), patches)
    contestants: dict[str, Describe] = {"kornia": _kornia(weights, threads)}
    cv2.setNumThreads(threads)
    for name in OURS:
        file = weights / f"{name}.onnx"
        if file.is_file() or name in names():
            contestants[name] = load(file if file.is_file() else name, threads)

    rates = _throughput(contestants, real, repetitions)
    for batch, row in rates.items():
        for name, rate in row.items():
            ratio = rate / row["kornia"]
            print(f"batch {batch:5d}  {name:13s} {rate:8.0f} patches/s  {ratio:5.2f}x kornia")
    expected = contestants["kornia"](real)
    difference = float(np.abs(contestants["hardnet"](real) - expected).max())
    cosine = (contestants["hardnet-int8"](real) * contestants["hardnet"](real)).sum(1)
    print(f"largest difference of hardnet to kornia: {difference:.1e}")
    print(f"cosine of hardnet-int8 to hardnet: mean {cosine.mean():.5f}, least {cosine.min():.5f}")
    extra = {
        name: {n: _extra_memory(weights, name, n, threads) for n in memory or [10_000, 100_000]}
        for name in ("hardnet", "hardnet-int8")
    }
    for name, megabytes in extra.items():
        text = ", ".join(f"{mb:.0f} MB at {n} patches" for n, mb in megabytes.items())
        print(f"{name}: memory besides patches and descriptors: {text}")

    settings = {"threads": threads, "patches": patches, "repetitions": repetitions}
    results = {
        "kind": "describe",
        "patches_per_second": rates,
        "ratio_to_kornia": {
            batch: {name: rate / row["kornia"] for name, rate in row.items()}
            for batch, row in rates.items()
        },
        "max_difference_to_kornia": difference,
        "int8_cosine": {"mean": float(cosine.mean()), "least": float(cosine.min())},
        "extra_memory_mb": extra,
        "provenance": provenance.collect(
            f"python {shlex.join(['benchmarks/describe.py', *sys.argv[1:]])}",
            settings,
            [weights / f"{name}.onnx" for name in ("hardnet", "hardnet-int8")],
        ),
    }
    write(results, output)


def _fill(patches: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Exactly ``count`` patches: repeated if there are fewer, which no network can notice."""
    return np.tile(patches, (-(-count // len(patches)), 1, 1))[:count]


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
    """Median patches per second; the contestants take turns, so that load hits all alike."""
    for describe in contestants.values():
        describe(patches[:256])
    seconds: dict[tuple[int, str], list[float]] = {}
    for _ in range(repetitions):
        for batch in BATCHES:
            for name, describe in contestants.items():
                start = time.perf_counter()
                for i in range(0, len(patches), batch):
                    describe(patches[i : i + batch])
                seconds.setdefault((batch, name), []).append(time.perf_counter() - start)
    return {
        batch: {name: len(patches) / float(np.median(seconds[batch, name])) for name in contestants}
        for batch in BATCHES
    }


_MEMORY = """
import sys, numpy as np
from pathlib import Path
from hardnet.descriptors import load
def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024
describe, n = load(sys.argv[1], int(sys.argv[3])), int(sys.argv[2])
patches = np.random.default_rng(0).integers(0, 256, (n, 32, 32), np.uint8)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
out = describe(patches)
print(status("VmHWM") - before - out.nbytes / 2**20)
"""


def _extra_memory(weights: Path, name: str, patches: int, threads: int) -> float:
    """Peak memory in MB of one call in a fresh process, without its input and output."""
    command = [sys.executable, "-c", _MEMORY, str(weights / f"{name}.onnx")]
    done = subprocess.run(
        [*command, str(patches), str(threads)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    typer.run(main)
