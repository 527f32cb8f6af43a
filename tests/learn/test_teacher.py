"""A student learns from a teacher whose descriptors are computed once."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hardnet import descriptors
from hardnet.errors import HardnetError
from hardnet.learn import teacher as module
from hardnet.learn.batches import SYMMETRIES, Batches, Flips, PairSampler
from hardnet.learn.recipe import Recipe
from hardnet.learn.teacher import (
    from_bytes,
    load_teacher,
    teacher_outputs,
    to_bytes,
)
from hardnet.learn.trainer import Trainer
from hardnet.nets import build_net, load_net, save_checkpoint
from hardnet.patchsets.patchset import PatchSet, join
from hardnet.provenance import Cache

TEACHER = "hardtfeat"  # shipped, and the fastest of the shipped networks


@pytest.fixture(scope="module")
def train_set() -> PatchSet:
    """Two sets of noisy textures, of 12 and 18 points with three patches each."""
    rng = np.random.default_rng(0)
    parts = []
    for count in (12, 18):
        base = rng.normal(128, 40, (count, 8, 8)).repeat(4, 1).repeat(4, 2).repeat(3, 0)
        grey = (base + rng.normal(0, 12, base.shape)).clip(0, 255).astype(np.uint8)
        points, pairs = np.arange(3 * count) // 3, np.zeros((0, 2), np.int64)
        parts.append(PatchSet(f"part{count}", grey, points, pairs))
    return join(parts)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "cache"))


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "data": ["x", "y"], "batch": 16, "pairs": 96, "dropout": 0.0, "accelerator": "cpu",
        "seed": 4, "net": "hardnet-tiny", "teacher": TEACHER, "checkpoint_every": 2, "lr": 1.0,
    }  # fmt: skip
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


def test_bytes_keep_the_direction() -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 128)).astype(np.float32)
    vectors[0, 0] = 40  # one entry far above the others
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    again = from_bytes(to_bytes(vectors))
    assert np.abs(to_bytes(vectors)).max(axis=1).tolist() == [127] * 200
    np.testing.assert_allclose(np.linalg.norm(again, axis=1), 1, atol=1e-6)
    cosines = (vectors * again).sum(1)
    assert cosines[0] > 0.9995
    assert cosines[1:].min() > 0.9999


@pytest.mark.parametrize("augment", [True, False])
def test_the_teacher_describes_what_the_student_sees(train_set: PatchSet, augment: bool) -> None:
    outputs = teacher_outputs(TEACHER, train_set, augment)
    sampler = PairSampler(train_set.points, 16, 0, train_set.sets)
    batch = Batches(train_set, sampler, augment, 3, slice(4, 8), outputs)(step=2)
    assert batch.teacher is not None
    describe = descriptors.load(TEACHER)
    for patches, said in zip((batch.anchors, batch.positives), batch.teacher, strict=True):
        assert len(said) == 16  # of all processes, and the patches of one
        assert ((describe(patches) * said[4:8]).sum(1) > 0.9995).all()


def test_the_four_symmetries_are_four(train_set: PatchSet) -> None:
    outputs = teacher_outputs(TEACHER, train_set, augment=True)
    patch = np.zeros(1, np.int64)
    said = [outputs(patch, Flips.alike(1, number))[0] for number in range(SYMMETRIES)]
    for number, expected in enumerate(said):
        flipped = Flips.alike(1, number)(train_set.patches[patch])
        similar = [float(descriptors.load(TEACHER)(flipped)[0] @ x) for x in said]
        assert int(np.argmax(similar)) == number
        assert similar[number] > 0.9995
        assert Flips.alike(1, number).numbers.tolist() == [number]
        assert expected.dtype == np.float32


def test_described_once_and_set_by_set(
    train_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = descriptors.load(TEACHER)

    class Counting:
        name, dim, weights = real.name, real.dim, "counted"

        def __call__(self, patches: np.ndarray) -> np.ndarray:
            calls.append(len(patches))
            return real(patches)

    monkeypatch.setattr(module, "load_teacher", lambda _: Counting())
    monkeypatch.setattr(module, "BLOCK", 10)
    first = teacher_outputs(TEACHER, train_set, augment=False)
    assert sum(calls) == len(train_set)
    calls.clear()
    again = teacher_outputs(TEACHER, train_set, augment=False)
    everything = np.arange(len(train_set))
    assert not calls
    np.testing.assert_array_equal(again(everything), first(everything))
    part = PatchSet("b", train_set.patches[36:], train_set.points[36:], np.zeros((0, 2), np.int64))
    np.testing.assert_array_equal(
        teacher_outputs(TEACHER, part, augment=False)(np.arange(54)), first(everything[36:])
    )
    assert not calls  # the second set alone is known
    teacher_outputs(TEACHER, part, augment=True)
    assert sum(calls) == 54 * SYMMETRIES


def test_a_stopped_computation_continues(
    train_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)
    expected = teacher_outputs(TEACHER, train_set, augment=True)(np.arange(90))
    for file in Cache("teachers").folder.iterdir():
        file.unlink()
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        assert total == 90
        seen.append(done)
        if done >= 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teacher_outputs(TEACHER, train_set, augment=True, progress=stop)
    assert seen == [0, 8, 16, 24]
    growing = next(Cache("teachers").folder.glob("*.growing"))
    with growing.open("ab") as file:
        file.write(b"cut short")
    seen.clear()
    with pytest.raises(KeyboardInterrupt):  # from the second set on
        teacher_outputs(TEACHER, train_set, augment=True, progress=stop)
    assert seen[0] == 16  # one block is done again
    outputs = teacher_outputs(TEACHER, train_set, augment=True)
    np.testing.assert_array_equal(outputs(np.arange(90)), expected)
    assert not list(Cache("teachers").folder.glob("*.growing"))
    assert not list(Cache("teachers").folder.glob("*.lock"))


def test_a_student_comes_closer_to_its_teacher(train_set: PatchSet, tmp_path: Path) -> None:
    settings = recipe(pairs=16 * 25, teacher_cosine=3.0)
    trainer = Trainer(settings, train_set, tmp_path / "run")
    patches = train_set.patches[:30]
    said = descriptors.load(TEACHER)(patches)
    before = (trainer.describe(patches) * said).sum(1).mean()
    file = trainer.run()
    assert file.name == "hardnet-tiny.safetensors"
    with (tmp_path / "run" / "log.csv").open() as log:
        taught = [float(row["teacher"]) for row in csv.DictReader(log)]
    assert np.mean(taught[-5:]) < 0.8 * taught[0]
    assert (trainer.describe(patches) * said).sum(1).mean() > before + 0.05


@pytest.mark.parametrize("chunk", [5, pytest.param(0, marks=pytest.mark.slow)])
def test_resumed_to_the_same_bits(train_set: PatchSet, tmp_path: Path, chunk: int) -> None:
    whole = Trainer(recipe(chunk=chunk), train_set, tmp_path / "whole").run()
    settings = recipe(chunk=chunk)
    first = Trainer(settings, train_set, tmp_path / "parts")
    for step in range(2):
        first._train_step(first.batches(step))
    first.save()
    first._lock.release()
    parts = Trainer(settings, train_set, tmp_path / "parts", resume=True).run()
    expected, found = load_net(whole).state_dict(), load_net(parts).state_dict()
    assert all(torch.equal(value, found[key]) for key, value in expected.items())


def test_another_teacher_is_refused(train_set: PatchSet, tmp_path: Path) -> None:
    file = tmp_path / "teacher.safetensors"
    save_checkpoint(file, build_net("hardtfeat", 0.0), "hardtfeat")
    settings = recipe(teacher=str(file))
    run = Trainer(settings, train_set, tmp_path / "run")
    run._train_step(run.batches(0))
    run.save()
    run._lock.release()
    torch.manual_seed(1)
    save_checkpoint(file, build_net("hardtfeat", 0.0), "hardtfeat")
    with pytest.raises(HardnetError, match=r"weights of the teacher .* have changed"):
        Trainer(settings, train_set, tmp_path / "run", resume=True)


def test_what_cannot_teach_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="teacher: rootsift is neither a weights file"):
        load_teacher("rootsift")
    with pytest.raises(HardnetError, match="teacher: os:getcwd is neither a weights file"):
        load_teacher("os:getcwd")
    with pytest.raises(HardnetError, match=r"no weights file .*absent\.onnx"):
        load_teacher(str(tmp_path / "absent.onnx"))
