"""The command; real processes where one is interrupted or killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file

from hardnet.cli.output import Stage
from hardnet.cli.train import open_data, validation
from hardnet.errors import HardnetError
from hardnet.learn.recipe import read_recipe
from hardnet.patchsets.brown import BrownWriter
from hardnet.patchsets.patchset import Patches

from .conftest import Run, ctrl_c_when

STEPS = 24
RECIPE = """
data: [set]
net: hardnet-tiny
validation: set
batch: 8
pairs: 192
checkpoint_every: 3
validate_every: 0
accelerator: cpu
workers: 3
"""
COMMAND = [sys.executable, "-m", "hardnet.cli.app", "train", "r.yaml"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


Words = Callable[..., Run]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a patch set and a recipe."""
    rng = np.random.default_rng(0)
    base = rng.normal(128, 40, (16, 8, 8)).repeat(8, 1).repeat(8, 2).repeat(3, 0)
    patches = (base + rng.normal(0, 12, (48, 64, 64))).clip(0, 255).astype(np.uint8)
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(patches, np.arange(48) // 3, 0)
        writer.finish(20, 0, {})
    (tmp_path / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train(command: Words) -> Iterator[Words]:
    """The command in this process, with as many threads as :func:`start` gives another one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield partial(command, "train", "r.yaml")
    torch.set_num_threads(before)


def start(place: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *words], cwd=place, stderr=subprocess.PIPE, env=ENVIRONMENT)


def logged(folder: Path) -> int:
    """Steps in the log of a run."""
    log = folder / "log.csv"
    return max(0, len(log.read_text().splitlines()) - 1) if log.exists() else 0


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "training did not come that far"
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.01)


def kill_at(place: Path, step: int, pid: int) -> None:
    deadline = time.monotonic() + 300
    while logged(place / "killed") < step:
        assert time.monotonic() < deadline
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "training did not come that far"
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("sampling", "kills"),
    [
        ("classical", [(4, 10)]),
        pytest.param("hardest", [(4, 9), (10, 16)], marks=pytest.mark.slow),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not survive a fork")
def test_killed_and_resumed_to_the_same_bits(
    place: Path,
    train: Words,
    fork: Callable[..., int],
    sampling: str,
    kills: list[tuple[int, int]],
) -> None:
    if sampling == "classical":
        pytest.importorskip("faiss")
    changes = ["--set", f"sampling={sampling}", "--set", "epoch=56"]
    whole = train("-o", "whole", *changes)
    assert whole.returncode == 0, whole.stderr
    steps = [random.randint(*between) for between in kills]
    for number, step in enumerate(steps):
        words = ["-o", "killed", *changes, *(["--resume"] if number else [])]
        kill_at(place, step, fork(partial(train, *words)))
    done = train("-o", "killed", "--resume", *changes)
    assert done.returncode == 0, done.stderr
    expected = load_file(place / "whole" / "hardnet-tiny.safetensors")
    found = load_file(place / "killed" / "hardnet-tiny.safetensors")
    for key, value in expected.items():
        assert torch.equal(value, found[key]), f"{key} differs, killed at {steps}"
    assert logged(place / "killed") == STEPS
    resumed = json.loads((place / "killed" / "provenance.json").read_text())["resumed"]
    begun = [one["step"] for one in resumed]
    assert [step % 3 for step in begun] == [0] * len(kills)  # from checkpoints, not from the start
    assert 3 <= begun[0] <= begun[-1] < STEPS
    assert len(set(begun)) == len(kills)


def test_ctrl_c_saves_and_resume_finishes(place: Path, train: Words) -> None:
    with ctrl_c_when(lambda: logged(place / "run") > 4):
        stopped = train("-o", "run", "--set", "checkpoint_every=1000")
    assert stopped.returncode == 130, stopped.stderr
    assert "Continue with --resume" in stopped.stderr
    saved = torch.load(place / "run" / "last.ckpt", weights_only=True)["step"]
    assert 4 <= saved < STEPS
    refused = train("-o", "run", "--resume", "--set", "lr=1")
    assert refused.returncode == 1
    assert "made with lr=10.0, not 1.0" in refused.stderr
    done = train("-o", "run", "--resume", "--set", "workers=1")
    assert done.returncode == 0, done.stderr
    assert (place / "run" / "hardnet-tiny.safetensors").exists()
    assert logged(place / "run") == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, True], ids=["devices=2", "torchrun"])
def test_a_killed_process_ends_the_run_with_a_usable_checkpoint(
    place: Path, torchrun: bool
) -> None:
    long = ["-o", "run", "--set", "pairs=8000"]
    if torchrun:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command = [*launcher, *COMMAND[1:], *long]
    else:
        command = [*COMMAND, *long, "--set", "devices=2"]
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, env=ENVIRONMENT)
    wait_for(process, lambda: logged(place / "run") >= 4)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    message = " ".join(errors.decode().split())
    assert process.returncode == 1, message
    assert "--resume" in message
    assert "process of this run" in message
    if not torchrun:
        assert "was killed (SIGKILL" in message
        assert "continue from step" in message
        assert message.count("error:") == 1
    step = torch.load(place / "run" / "last.ckpt", weights_only=True)["step"]
    assert step >= 3
    resumed = start(place, *long, "--resume")  # by one process: it is the same run
    wait_for(resumed, lambda: logged(place / "run") >= step + 2)
    resumed.kill()
    resumed.communicate()


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started, oldest first."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(int(child) for child in listed)


def test_mistakes_of_several_processes_are_said_once(place: Path, train: Words) -> None:
    done = train("-o", "run", "--set", "devices=2", "--set", "batch=7")
    assert done.returncode == 1
    assert done.stderr.count("batch 7 cannot be shared equally by 2 processes") == 1
    assert not (place / "run").exists()


def test_a_validation_set_without_both_kinds_of_pairs_is_refused_before_training(
    place: Path,
) -> None:
    pairs = next((place / "set").glob("m50_*.txt"))
    same = [line for line in pairs.read_text().splitlines() if _is_match(line)]
    pairs.write_text("\n".join(same) + "\n")
    recipe = read_recipe(place / "r.yaml", [f"validation={place / 'set'}"])
    with pytest.raises(HardnetError, match="set: FPR95 needs both matching and non-matching"):
        validation(recipe)
    assert validation(replace(recipe, validation="")) is None


def _is_match(line: str) -> bool:
    words = line.split()
    return words[1] == words[4]


def test_a_missing_extra_is_named(
    place: Path, train: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    done = train()
    assert done.returncode == 1
    assert "hardnet[train]" in done.stderr


@pytest.mark.slow
def test_minutes_plan_the_pairs_and_nothing_else(place: Path, train: Words) -> None:
    for minutes in (0.05, 0.2, 0.8):  # a busy machine needs longer for the trial
        started = time.perf_counter()
        done = train("--minutes", minutes, "-o", "timed")
        seconds = time.perf_counter() - started
        if "too short" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    pairs = read_recipe(place / "timed" / "recipe.yaml", []).pairs
    assert pairs % 8 == 0
    assert pairs > 8 * 10
    assert f"{pairs} pairs, {pairs // 8} steps" in done.stderr
    assert 15 * minutes < seconds < 600 * minutes  # the machine may have other work
    again = train("--set", f"pairs={pairs}", "-o", "counted")
    assert again.returncode == 0, again.stderr
    one, other = (load_file(place / x / "hardnet-tiny.safetensors") for x in ("timed", "counted"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    # A resumed run keeps its plan.
    assert train("--minutes", "5", "--resume", "-o", "timed").returncode == 0
    assert read_recipe(place / "timed" / "recipe.yaml", []).pairs == pairs
    refused = train("--minutes", minutes, "-o", "timed")
    assert refused.returncode == 1
    assert "continue it with --resume" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes must be positive, got 0"),
        (["--minutes", "0.001"], "0.001 minutes are too short"),
        (["--minutes", "5", "--set", "pairs=100"], "leave out --set pairs"),
        (["--minutes", "5", "--set", "sampling=classical"], "cannot plan for sampling=classical"),
        (["--minutes", "5", "--set", "devices=2"], "cannot plan for several devices"),
    ],
)
def test_minutes_that_cannot_be(place: Path, train: Words, words: list[str], message: str) -> None:
    done = train(*words)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert not (place / "runs").exists()


def test_patches_have_the_side_of_the_network(place: Path) -> None:
    (place / "wide_net.py").write_text(
        "from hardnet.nets import NETS\nclass Wide(NETS['hardtfeat']):\n    patch_size = 64\n"
    )
    changes = ["net=wide_net:Wide", f"data=[{place / 'set'}]", f"validation={place / 'set'}"]
    recipe = read_recipe(place / "r.yaml", changes)
    assert open_data(recipe, Stage()).patches.shape == (48, 64, 64)
    seen: list[tuple[int, ...]] = []
    score = validation(recipe)
    assert score is not None

    def describe(patches: Patches) -> np.ndarray:
        seen.append(patches.shape[1:])
        return np.zeros((len(patches), 4), np.float32)

    score(describe)
    assert seen == [(64, 64)]
