"""Training on joined windows: the map, what is written, and that all ways to compute it agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hardnet
from hardnet.descriptors import unit_rows
from hardnet.descriptors.windows import learn_projection
from hardnet.errors import HardnetError
from hardnet.learn.recipe import Recipe
from hardnet.learn.trainer import Trainer
from hardnet.learn.windows import JoinWindows
from hardnet.patchsets.patchset import PatchSet

WINDOWS = (12.0, 24.0)


@pytest.fixture(scope="module")
def joined_set() -> PatchSet:
    """Noisy copies of textures; each window of a point shows a texture of its own."""
    rng = np.random.default_rng(0)
    base = rng.normal(128, 40, (40, 2, 8, 8)).clip(0, 255).repeat(4, 2).repeat(4, 3)
    patches = base.repeat(4, 0) + rng.normal(0, 12, (160, 2, 32, 32))
    points = np.arange(160) // 4
    pairs = np.stack([np.arange(0, 160, 4), np.arange(1, 160, 4)], 1)
    pixels = patches.clip(0, 255).astype(np.uint8)
    # Every principal component of two vectors of 128 numbers needs more patches than 160.
    many = np.concatenate([pixels] * 4)
    return PatchSet("j", many, np.tile(points, 4), pairs, windows=WINDOWS)


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "data": ["x"], "batch": 16, "pairs": 96, "dropout": 0.0, "checkpoint_every": 2, "chunk": 0,
        "accelerator": "cpu", "seed": 4, "net": "hardnet-tiny", "average": 0.5, "lr": 1.0,
    }  # fmt: skip
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(joined_set: PatchSet, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = Trainer(recipe(), joined_set, tmp_path_factory.mktemp("whole"))
    trainer.run()
    return trainer


def test_it_begins_with_the_principal_components() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((600, 12)).astype(np.float32) * np.linspace(2, 0.1, 12)
    vectors = vectors.astype(np.float32)
    join = JoinWindows(vectors, 4, seed=3)
    join.norm.running_mean.copy_(torch.zeros(4))
    mapped = join.projection()(vectors)
    start = learn_projection(vectors, 4)(vectors)
    # A turn keeps every distance.
    expected = np.linalg.norm(start[:50, None] - start[None, :50], axis=2)
    found = np.linalg.norm(mapped[:50, None] - mapped[None, :50], axis=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_projection_is_what_the_module_computes() -> None:
    rng = np.random.default_rng(1)
    vectors = unit_rows(rng.standard_normal((600, 6)).astype(np.float32)).reshape(-1, 12)
    join = JoinWindows(vectors, 4, seed=0)
    join.train()(torch.from_numpy(vectors.reshape(-1, 6)) + 0.3)  # statistics that are not trivial
    with torch.no_grad():
        expected = join.eval()(torch.from_numpy(vectors.reshape(-1, 6))).numpy()
    np.testing.assert_allclose(unit_rows(join.projection()(vectors)), expected, atol=1e-5)


def test_it_learns_and_writes_what_descriptors_read(whole: Trainer, joined_set: PatchSet) -> None:
    patches = np.asarray(joined_set.patches[:40])
    described = hardnet.load(f"{whole.folder / 'hardnet-tiny.safetensors'}@12+24")(patches)
    np.testing.assert_allclose(described, whole.describe(patches), atol=1e-5)
    first = described.reshape(10, 4, -1)
    near = np.linalg.norm(first[:, 0] - first[:, 1], axis=1)
    far = np.linalg.norm(first[:, 0] - np.roll(first[:, 1], 1, axis=0), axis=1)
    assert near.max() < far.min()


def test_one_window_alone_is_trained_too(joined_set: PatchSet, tmp_path: Path) -> None:
    """Its loss is that of a set of first windows, beside that of all of them."""
    both = Trainer(recipe(first_window=0.5), joined_set, tmp_path / "both")
    only = Trainer(recipe(first_window=0.0), joined_set, tmp_path / "only")
    batch = both.batches(0)
    with_first, without = (float(one.backward(batch).loss.detach()) for one in (both, only))
    vectors = both._describe([batch.anchors, batch.positives], 0)
    anchors, positives = (each[::2].detach().double() for each in vectors)
    losses = []
    for i in range(16):
        away = [float((anchors[i] - positives[j]).norm()) for j in range(16) if j != i]
        back = [float((anchors[j] - positives[i]).norm()) for j in range(16) if j != i]
        losses.append(max(0.0, 1 + float((anchors[i] - positives[i]).norm()) - min(away + back)))
    assert with_first - without == pytest.approx(0.5 * np.mean(losses), abs=1e-3)
    for one in (both, only):
        one._lock.release()


def test_chunks_give_the_same_gradient(joined_set: PatchSet, tmp_path: Path) -> None:
    plain = Trainer(recipe(), joined_set, tmp_path / "plain")
    chunked = Trainer(recipe(chunk=24), joined_set, tmp_path / "chunked")
    batch = plain.batches(0)
    for one in (plain, chunked):
        one.backward(batch)
        one._lock.release()
    assert plain.join is not None
    assert chunked.join is not None
    for a, b in zip(
        (*plain.net.parameters(), *plain.join.parameters()),
        (*chunked.net.parameters(), *chunked.join.parameters()),
        strict=True,
    ):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-3, atol=2e-5)


def test_resumed_run_ends_with_the_same_bits(
    whole: Trainer, joined_set: PatchSet, tmp_path: Path
) -> None:
    def stop_at_three(progress: object) -> None:
        if progress.step == 3:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(recipe(), joined_set, tmp_path).run(stop_at_three)
    again = Trainer(recipe(), joined_set, tmp_path, resume=True)
    again.run()
    written = "hardnet-tiny.windows.npz"
    with np.load(again.folder / written) as a, np.load(whole.folder / written) as b:
        assert np.array_equal(a["12+24.matrix"], b["12+24.matrix"])
        assert np.array_equal(a["12+24.mean"], b["12+24.mean"])
    assert again.join is not None
    assert whole.join is not None
    assert torch.equal(again.join.map.weight, whole.join.map.weight)


@pytest.mark.parametrize(
    "changes", [{"teacher": "hardnet"}, {"sampling": "classical"}, {"regularizer": "lengths"}]
)
def test_what_needs_one_window_says_so(
    joined_set: PatchSet, tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(HardnetError, match="one window"):
        Trainer(recipe(**changes), joined_set, tmp_path)
