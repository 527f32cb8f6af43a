"""A training step of HardNet in chunks against the plain PyTorch step: speed, memory, gradients.

It also measures a step of a small network with a teacher, whose descriptors are read from a file.

Both have the same weights, patches and loss, and every measurement runs in a new process, so that
peak memory and allocator settings are its own. Speeds are from alternating processes.

In float32, two correct steps differ where rounding decides whether an activation close to zero
passes ReLU. So gradients are compared in three ways: in float64, where rounding hardly matters; in
float32; and the plain float32 step with the plain float64 step, which shows the effect of rounding.

Example: python benchmarks/train_step.py --quick
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer
from measuring import Output, Threads, finish, in_fresh_process, memory_mb, run_script
from torch import Tensor

from hardnet.learn.batches import Flips
from hardnet.learn.chunked import ChunkedNet
from hardnet.learn.losses import Objective
from hardnet.learn.recipe import Recipe
from hardnet.learn.teacher import TeacherOutputs
from hardnet.learn.trainer import keep_freed_memory
from hardnet.nets import Net, build_net

SPEED_BATCH, MEMORY_BATCHES, LARGE_BATCHES = 1024, (1024, 2048), (4096, 8192)
QUICK_SPEED_BATCH, QUICK_MEMORY_BATCHES, QUICK_LARGE_BATCHES = 64, (64, 128), (256,)
FLOAT64_BATCH, QUICK_FLOAT64_BATCH = 256, 32
STUDENT = "hardnet-small"


def main(
    quick: Annotated[bool, typer.Option(help="Small batches only, as a check.")] = False,
    chunk: Annotated[int, typer.Option(help="Patches computed at a time.")] = Recipe().chunk,
    threads: Threads = 2,
    repetitions: Annotated[int, typer.Option(help="Processes per median.")] = 3,
    output: Output = Path("results/train_step.json"),
) -> None:
    """Measure both steps; writes a JSON file."""
    batch = QUICK_SPEED_BATCH if quick else SPEED_BATCH
    rates: dict[str, list[float]] = {"plain": [], "chunked": [], "taught": []}
    for _ in range(repetitions):
        for kind, found in rates.items():
            found.append(in_fresh_process(measure, kind, batch, chunk, threads)["pairs_per_second"])
    speed = {kind: float(np.median(found)) for kind, found in rates.items()}
    memory = []
    for size in QUICK_MEMORY_BATCHES if quick else MEMORY_BATCHES:
        row = {"batch": size} | {
            kind: in_fresh_process(measure, kind, size, chunk, threads, 1)["peak_mb"]
            for kind in ("plain", "chunked")
        }
        row["share"] = row["chunked"] / row["plain"]
        memory.append(row)
    for size in QUICK_LARGE_BATCHES if quick else LARGE_BATCHES:
        peak = in_fresh_process(measure, "chunked", size, chunk, threads, 1)["peak_mb"]
        memory.append({"batch": size, "chunked": peak})
    small = QUICK_FLOAT64_BATCH if quick else FLOAT64_BATCH
    equality = [
        in_fresh_process(compare, small, chunk, threads, "float64"),
        in_fresh_process(compare, small, chunk, threads, "float32"),
        in_fresh_process(compare, batch, chunk, threads, "float32"),
    ]
    measured = {
        "batch": batch,
        "pairs_per_second": speed | {"all": rates},
        "ratio": speed["chunked"] / speed["plain"],
        "student": STUDENT,
        "taught_ratio": speed["taught"] / speed["chunked"],
        "memory_mb": memory,
        "equality": equality,
    }
    finish("train_step", measured, [], output, net="hardnet", dropout=0.0)


def measure(kind: str, batch: int, chunk: int, threads: int, steps: int = 3) -> dict[str, float]:
    """Pairs per second of the fastest step, and peak memory of the process in MB."""
    torch.set_num_threads(threads)
    patches = generate(batch)
    step = taught_step(batch, chunk) if kind == "taught" else make_step(kind, make_net(), chunk)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step(patches)
        seconds.append(time.perf_counter() - start)
    return {"pairs_per_second": batch / min(seconds), "peak_mb": memory_mb("VmHWM")}


def compare(batch: int, chunk: int, threads: int, dtype: str) -> dict[str, Any]:
    """Largest differences of loss and gradients between the two steps."""
    torch.set_num_threads(threads)
    wanted = getattr(torch, dtype)
    patches = generate(batch).to(wanted)
    plain, chunked = make_net().to(wanted), make_net().to(wanted)
    loss = make_step("plain", plain, chunk)(patches)
    own_loss = make_step("chunked", chunked, chunk)(patches)
    rounding = None
    if dtype == "float32":
        exact = make_net().double()
        exact_loss = make_step("plain", exact, chunk)(patches.double())
        rounding = difference(plain, exact, loss, exact_loss)
    return {
        "batch": batch,
        "dtype": dtype,
        "loss": float(loss),
        "chunked_to_plain": difference(chunked, plain, own_loss, loss),
        "plain_to_float64": rounding,
    }


def difference(net: Net, expected: Net, loss: Tensor, expected_loss: Tensor) -> dict[str, float]:
    """Differences of the loss, and of the worst parameter's gradient by three measures."""
    absolute, largest, norm = 0.0, 0.0, 0.0
    for parameter, other in zip(net.parameters(), expected.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        wrong = parameter.grad.double() - other.grad.double()
        absolute = max(absolute, float(wrong.abs().max()))
        largest = max(largest, float(wrong.abs().max() / other.grad.abs().max()))
        norm = max(norm, float(wrong.norm() / other.grad.double().norm()))
    return {
        "loss": abs(float(loss) - float(expected_loss)),
        "absolute": absolute,
        "largest": largest,
        "norm": norm,
    }


def make_net(name: str = "hardnet") -> Net:
    """A network at the start of training, without dropout, which would differ between the two."""
    torch.manual_seed(0)
    return build_net(name, 0.0)


def make_step(kind: str, net: Net, chunk: int) -> Callable[[Tensor], Tensor]:
    """``patches -> loss``; the gradients are in the network."""
    if kind == "plain":
        return lambda patches: plain_step(net, patches)
    keep_freed_memory()
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    chunked = ChunkedNet(net, chunk)
    recipe = Recipe()
    objective = Objective(
        sampling="hardest", loss="triplet", margin=1.0, regularizer="none",
        anchor_swap=True, same_patch=recipe.same_patch,
    )  # fmt: skip

    def step(patches: Tensor) -> Tensor:
        net.zero_grad()
        anchors, positives = chunked(patches, seed=0).chunk(2)
        loss = objective(anchors, positives, None, torch.Generator()).loss
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return step


def taught_step(batch: int, chunk: int) -> Callable[[Tensor], Tensor]:
    """A step of the small network; the teacher's descriptors are looked up, as in training."""
    keep_freed_memory()
    net = make_net(STUDENT)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    chunked = ChunkedNet(net, chunk)
    objective = Objective(**Recipe(teacher="any").axes)
    rng = np.random.default_rng(0)
    outputs = TeacherOutputs([rng.integers(-127, 128, (8 * batch, 4, 128)).astype(np.int8)])

    def step(patches: Tensor) -> Tensor:
        net.zero_grad()
        anchors, positives = chunked(patches, seed=0).chunk(2)
        chosen, flips = rng.permutation(8 * batch), Flips.draw(batch, rng)
        said = [torch.from_numpy(outputs(chosen[k::8], flips)) for k in (0, 1)]
        loss = objective(anchors, positives, None, torch.Generator(), (said[0], said[1])).loss
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return step


def generate(batch: int) -> Tensor:
    """(2 batch, 1, 32, 32) patches in 0..1: smooth textures, then the same with noise."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((batch * 32, 32), np.float32)
    anchors = (cv2.GaussianBlur(noise, (0, 0), 2) * 2 + 0.5).reshape(batch, 1, 32, 32)
    positives = anchors + rng.standard_normal(anchors.shape, np.float32) * 0.1
    return torch.from_numpy(np.concatenate([anchors, positives]))


def plain_step(net: Net, patches: Tensor) -> Tensor:
    """Forward, triplet margin loss with the hardest negative in the batch, backward: the loss.

    The plain method: all patches at once, (2 n, 1, S, S), anchors and then positives; the whole
    distance matrix; autograd.
    """
    net.zero_grad()
    descriptors = net.train()(patches)
    anchors, positives = descriptors.chunk(2)
    distances = torch.sqrt((2 - 2 * anchors @ positives.T).clamp_min(0) + 1e-6)
    positive = distances.diagonal()
    others = distances + 10 * torch.eye(len(distances), dtype=distances.dtype)
    others = others + 10 * (others.detach() < 0.008)
    negative = torch.minimum(others.min(dim=1).values, others.min(dim=0).values)
    loss = (1 + positive - negative).clamp_min(0).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


if __name__ == "__main__":
    run_script(main)
