"""Training: it learns, it resumes to the same bits, it survives interruption."""

from __future__ import annotations

import csv
import errno
import json
import platform
import signal
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hardnet.errors import DivergedError, HardnetError
from hardnet.learn import run
from hardnet.learn.distributed import open_fabric, to_input
from hardnet.learn.recipe import Recipe, read_recipe
from hardnet.learn.run import CHECKPOINT
from hardnet.learn.trainer import MinedEpochs, Progress, Trainer, keep_freed_memory
from hardnet.nets import find_net, load_net
from hardnet.patchsets.brown import BrownWriter
from hardnet.patchsets.patchset import PatchSet
from hardnet.provenance import data_digest
from hardnet.storage import MARKER, FolderLock

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def patch_set() -> PatchSet:
    """Noisy copies of smooth random textures: easy to learn, impossible by luck."""
    rng = np.random.default_rng(0)
    texture = rng.normal(128, 40, (40, 8, 8)).clip(0, 255)
    base = texture.repeat(4, 1).repeat(4, 2)
    patches = base.repeat(4, 0) + rng.normal(0, 12, (160, 32, 32))
    points = np.arange(160) // 4
    pairs = np.stack([np.arange(0, 160, 4), np.arange(1, 160, 4)], 1)
    return PatchSet("textures", patches.clip(0, 255).astype(np.uint8), points, pairs)


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "data": ["x"], "batch": 16, "pairs": 96, "dropout": 0.1, "checkpoint_every": 2,
        "accelerator": "cpu", "seed": 4, "net": "hardnet-tiny",
    }  # fmt: skip
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(patch_set: PatchSet, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that nobody disturbed, in the folder ``whole.folder``."""
    trainer = Trainer(recipe(), patch_set, tmp_path_factory.mktemp("whole"))
    trainer.run()
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trainer.net.state_dict().items()}


def test_learns_to_separate(patch_set: PatchSet, tmp_path: Path) -> None:
    trainer = Trainer(recipe(pairs=16 * 30), patch_set, tmp_path)
    losses: list[float] = []
    trainer.run(lambda progress: losses.append(progress.loss))
    assert len(losses) == 30
    assert np.mean(losses[-3:]) < 0.85 * np.mean(losses[:3])


def run_in_two_parts(
    patch_set: PatchSet, folder: Path, stop: int, settings: dict[str, object], **again: object
) -> Trainer:
    """Stop with an error after step ``stop``; resume, with the changes ``again``, to the end."""

    def stop_here(progress: Progress) -> None:
        if progress.step == stop:
            raise InterruptedError

    first = Trainer(recipe(**settings), patch_set, folder)
    with pytest.raises(InterruptedError):
        first.run(stop_here)
    torch.rand(7)  # the global generator has moved on: resuming must not depend on it
    second = Trainer(recipe(**(settings | again)), patch_set, folder, resume=True)
    every = int(settings.get("checkpoint_every", 2))  # type: ignore[call-overload]
    assert second.step == (stop - 1) // every * every  # the last checkpoint, not the last step
    second.run()
    return second


def assert_same_weights(one: Trainer | Path, other: Trainer | Path) -> None:
    a, b = (x.net if isinstance(x, Trainer) else load_net(x) for x in (one, other))
    for key, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[key]), key


def test_resumed_run_ends_with_the_same_bits(
    whole: Trainer, patch_set: PatchSet, tmp_path: Path
) -> None:
    assert_same_weights(whole, run_in_two_parts(patch_set, tmp_path, 3, {}))
    rows = [list(csv.DictReader((at / "log.csv").open())) for at in (whole.folder, tmp_path)]
    for a, b in zip(*rows, strict=True):
        a.pop("pairs_per_second"), b.pop("pairs_per_second")
        assert a == b


AVERAGED = {"average": 0.4, "lr": 0.1, "checkpoint_every": 1, "validate_every": 0}  # 3 of 6 steps


@dataclass
class Averaged:
    """A run whose last weights were averaged: those after each step, what validation saw."""

    trainer: Trainer
    file: Path
    after: list[dict[str, torch.Tensor]]
    seen: list[np.ndarray]


@pytest.fixture(scope="module", params=["hardnet-tiny", pytest.param("hardtfeat", marks=SLOW)])
def averaged(
    patch_set: PatchSet, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Averaged:
    after, seen = [], []

    def validate(describe) -> float:
        seen.append(describe(patch_set.patches[:10]))
        return 0.25

    settings = recipe(**AVERAGED, net=request.param)
    trainer = Trainer(settings, patch_set, tmp_path_factory.mktemp("averaged"), validate)
    file = trainer.run(lambda _: after.append(weights(trainer)))
    return Averaged(trainer, file, after, seen)


def test_the_mean_of_the_last_weights_is_the_result(averaged: Averaged) -> None:
    trainer, after = averaged.trainer, averaged.after
    assert len(after) == 6
    found = load_net(averaged.file).state_dict()
    for name, _ in trainer.net.named_parameters():
        mean = sum(step[name].double() for step in after[3:]) / 3
        assert torch.allclose(found[name].double(), mean, atol=1e-7)
        assert not torch.equal(found[name], after[-1][name])
        assert torch.equal(trainer.net.state_dict()[name], after[-1][name])
    # The statistics, by hand: the mean over the next 20 batches, with these weights.
    net = load_net(averaged.file).train()
    seen: dict[str, list[torch.Tensor]] = {}
    for name, module in net.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(
                lambda _, x, name=name: seen.setdefault(name, []).append(x[0].detach())
            )
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for step in range(6, 26):
        batch = trainer.batches(step)
        net(to_input(np.concatenate([batch.anchors, batch.positives]), torch.device("cpu")))
    assert len(seen) == (5 if trainer.recipe.net == "hardnet-tiny" else 0)
    for name in list(seen)[:-1]:  # dropout comes before the last one
        mean = torch.stack([x.mean((0, 2, 3)) for x in seen[name]]).mean(0)
        var = torch.stack([x.var((0, 2, 3)) for x in seen[name]]).mean(0)
        assert torch.allclose(found[f"{name}.running_mean"], mean, atol=1e-5)
        assert torch.allclose(found[f"{name}.running_var"], var, rtol=1e-4)


def test_the_result_of_an_averaged_run_describes_and_is_validated(
    averaged: Averaged, patch_set: PatchSet
) -> None:
    patches = patch_set.patches[:10]
    with torch.no_grad():
        result = load_net(averaged.file).eval()(to_input(patches, torch.device("cpu")))
    assert np.allclose(averaged.trainer.describe(patches), result, atol=1e-6)
    assert len(averaged.seen) == 1
    assert np.allclose(averaged.seen[0], result, atol=1e-6)


@pytest.mark.parametrize("stop", [4, *(pytest.param(k, marks=SLOW) for k in (2, 5, 6))])
def test_an_averaged_run_resumes_to_the_same_bits(
    averaged: Averaged, patch_set: PatchSet, tmp_path: Path, stop: int
) -> None:
    settings = AVERAGED | {"net": averaged.trainer.recipe.net}
    run_in_two_parts(patch_set, tmp_path, stop, settings)
    file = tmp_path / averaged.file.name
    assert_same_weights(averaged.file, file)
    file.unlink()  # as if killed after the last checkpoint: no step is left
    assert_same_weights(
        averaged.file, Trainer(recipe(**settings), patch_set, tmp_path, resume=True).run()
    )


@pytest.mark.parametrize("net", ["hardnet-tiny", "hardtfeat"])
@pytest.mark.parametrize(
    "axes",
    [
        {"loss": "quadratic", "regularizer": "sos", "negatives": "all"},
        {"loss": "hybrid", "margin": 1.2, "regularizer": "lengths", "regularizer_weight": 0.1},
    ],
)
def test_successors_train_in_chunks_as_at_once(
    patch_set: PatchSet, tmp_path: Path, axes: dict[str, object], net: str
) -> None:
    gradients, terms = [], []
    for chunk in (0, 5):
        settings = recipe(dropout=0.0, chunk=chunk, net=net, **axes)
        trainer = Trainer(settings, patch_set, tmp_path / f"{chunk}")
        trainer.net.double()
        with patch("hardnet.learn.trainer.to_input", in_double):
            terms.append(trainer.backward(trainer.batches(0)))
        gradients.append([p.grad for p in trainer.net.parameters()])
    assert terms[0].loss.item() == pytest.approx(terms[1].loss.item(), rel=1e-12)
    for a, b in zip(*gradients, strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * float(a.abs().max()))


def in_double(patches: np.ndarray, device: torch.device) -> torch.Tensor:
    return to_input(patches, device).double()


def test_validation_is_called_and_logged(patch_set: PatchSet, tmp_path: Path) -> None:
    seen = []

    def validate(describe) -> float:
        descriptors = describe(patch_set.patches[:10])
        assert descriptors.shape == (10, 128)
        assert np.allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)
        seen.append(descriptors)
        return 0.25

    Trainer(recipe(validate_every=2), patch_set, tmp_path, validate).run()
    assert len(seen) == 3
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [r["fpr95"] for r in rows] == ["", "0.25", "", "0.25", "", "0.25"]
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_final_weights_load_again(whole: Trainer, patch_set: PatchSet) -> None:
    from hardnet.nets import read_checkpoint

    weights = whole.folder / "hardnet-tiny.safetensors"
    facts = read_checkpoint(weights).metadata
    assert facts["recipe"]["seed"] == 4
    assert facts["pairs"] == 96
    net = load_net(weights)
    ours = whole.describe(patch_set.patches[:5])
    with torch.no_grad():
        theirs = net.eval()(torch.from_numpy(patch_set.patches[:5])[:, None].float() / 255)
    assert np.allclose(ours, theirs.numpy(), atol=1e-6)


def test_a_folder_is_not_overwritten(patch_set: PatchSet, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="to resume from"):
        Trainer(recipe(), patch_set, tmp_path, resume=True)
    Trainer(recipe(), patch_set, tmp_path).run()
    with pytest.raises(HardnetError, match="--resume"):
        Trainer(recipe(), patch_set, tmp_path)
    with pytest.raises(HardnetError, match="seed 4"):
        Trainer(recipe(seed=5), patch_set, tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"no checkpoint")
    (tmp_path / "previous.ckpt").unlink()
    with pytest.raises(HardnetError, match="not a checkpoint of a training run"):
        Trainer(recipe(), patch_set, tmp_path, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run(patch_set: PatchSet, tmp_path: Path) -> None:
    trainer = Trainer(recipe(), patch_set, tmp_path)
    with torch.no_grad():
        trainer.net.features[0].weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="loss became nan"):
        trainer.run()


def test_weights_that_are_not_finite_are_never_saved(patch_set: PatchSet, tmp_path: Path) -> None:
    """The last update may break them, and no loss is computed after that."""
    trainer = Trainer(recipe(net="hardtfeat"), patch_set, tmp_path)

    def break_at_the_end(progress: Progress) -> None:
        if progress.step == progress.steps:
            with torch.no_grad():
                next(trainer.net.parameters()).fill_(float("inf"))

    with pytest.raises(DivergedError, match="weights are not finite after step 6"):
        trainer.run(break_at_the_end)
    assert torch.load(tmp_path / CHECKPOINT, weights_only=True)["step"] == 4
    assert not (tmp_path / "hardtfeat.safetensors").exists()


def test_one_process_at_a_time_in_a_folder(
    patch_set: PatchSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    first = Trainer(recipe(net="hardtfeat"), patch_set, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(HardnetError, match=f"another process is training in {tmp_path}: wait"):
        Trainer(recipe(net="hardtfeat", lr=1.0), patch_set, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*")} == before
    first.run()
    lock = FolderLock(tmp_path, "training.lock")
    assert lock.take()
    with pytest.raises(HardnetError, match="another process"):
        Trainer(recipe(net="hardtfeat"), patch_set, tmp_path, resume=True)
    lock.release()
    # One that could not be opened lets the folder go.
    with pytest.raises(HardnetError, match="seed 4"):
        Trainer(recipe(net="hardtfeat", seed=5), patch_set, tmp_path, resume=True)
    Trainer(recipe(net="hardtfeat"), patch_set, tmp_path, resume=True)


def test_a_process_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.take()
    assert not second.take()
    threading.Timer(0.3, first.release).start()
    assert second.take(seconds=60)


def test_a_folder_that_is_a_file_or_is_not_there(patch_set: PatchSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HardnetError, match=r"file is a file: .*--output"):
        Trainer(recipe(net="hardtfeat"), patch_set, tmp_path / "file")
    with pytest.raises(HardnetError, match="to resume from"):
        Trainer(recipe(net="hardtfeat"), patch_set, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_only_tables_of_mined_negatives_are_dropped(patch_set: PatchSet, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    (tmp_path / "mined-by-hand.npy").write_bytes(b"")
    (tmp_path / "mined-7.npy").write_bytes(b"of somebody else")
    net, fabric = find_net("hardtfeat")(0.0), open_fabric("cpu", 1)
    epochs = MinedEpochs(net, patch_set, tmp_path, steps=1, seed=0, fabric=fabric)
    for step in (8, 9, 10):
        epochs(step)
    epochs.saved(10)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {MARKER, "mined-by-hand.npy", "mined-7.npy", "mined-10.npy"}


@pytest.mark.parametrize(
    ("stop", "every"),
    [(5, 3), *(pytest.param(*k, marks=SLOW) for k in ((2, 1), (3, 2), (5, 4)))],
)
def test_mined_negatives_survive(
    patch_set: PatchSet, tmp_path: Path, stop: int, every: int
) -> None:
    """Of six steps, 0 and 4 mine: a run continues before, at, and across the second mining."""
    pytest.importorskip("faiss")
    settings: dict[str, object] = {"sampling": "classical", "epoch": 64, "checkpoint_every": every}
    whole = Trainer(recipe(**settings), patch_set, tmp_path / "whole")
    whole.run()
    parts = run_in_two_parts(patch_set, tmp_path / "parts", stop, settings, workers=2)
    assert_same_weights(whole, parts)
    assert [f.name for f in (tmp_path / "parts").glob("mined*")] == ["mined-1.npy"]


def test_a_lost_table_of_mined_negatives_is_named(patch_set: PatchSet, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    changes = {"sampling": "classical", "epoch": 64, "net": "hardtfeat", "lr": 0.1}

    def lose_it(progress: Progress) -> None:
        if progress.step == 3:
            (tmp_path / "mined-0.npy").unlink()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        Trainer(recipe(**changes), patch_set, tmp_path).run(lose_it)
    with pytest.raises(HardnetError, match=r"mined-0\.npy, the mined negatives"):
        Trainer(recipe(**changes), patch_set, tmp_path, resume=True).run()


def test_a_checkpoint_of_the_first_version_resumes(
    whole: Trainer, patch_set: PatchSet, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    state = torch.load(whole.folder / CHECKPOINT, weights_only=True)
    state["step"] = 4
    torch.save({k: state[k] for k in ("step", "seed", "net", "optimizer")}, old / CHECKPOINT)
    (old / "recipe.yaml").write_text(
        "data: [x]\nvalidation: ''\nnet: hardnet-tiny\ndropout: 0.1\nmargin: 1.0\nbatch: 16\n"
        "pairs: 96\nlr: 10.0\nmomentum: 0.9\ndampening: 0.9\nweight_decay: 0.0001\n"
        "augment: true\nseed: 4\nvalidate_every: 500\nvalidation_pairs: 20000\n"
        "checkpoint_every: 200\naccelerator: auto\n"
    )
    resumed = Trainer(recipe(), patch_set, old, resume=True)
    assert resumed.step == 4
    resumed.run()
    assert resumed.step == 6


def damage(path: Path) -> None:
    """64 bytes of noise in the middle of a file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = np.random.default_rng(0).bytes(64)
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "how",
    ["noise", *(pytest.param(k, marks=SLOW) for k in ("empty", "cut", "foreign"))],
)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(
    whole: Trainer, patch_set: PatchSet, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "run"
    first = Trainer(recipe(), patch_set, folder)
    for step in range(4):
        first._train_step(first.batches(step))
        first.save()
    first._lock.release()
    last = folder / CHECKPOINT
    if how == "noise":
        damage(last)
    elif how == "foreign":
        last.write_bytes(np.random.default_rng(0).bytes(1000))
    else:
        last.write_bytes(last.read_bytes()[: 0 if how == "empty" else 5000])
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged.*previous\.ckpt of step 3"):
        resumed = Trainer(recipe(), patch_set, folder, resume=True)
    assert resumed.step == 3
    resumed.run()
    assert_same_weights(whole, resumed)
    damage(last)
    damage(folder / "previous.ckpt")
    with pytest.raises(HardnetError, match=r"previous\.ckpt is damaged: its checksums") as error:
        Trainer(recipe(), patch_set, folder, resume=True)
    assert "weights_only" not in str(error.value)


@pytest.mark.parametrize(
    ("filled", "advice"),
    [(3, r"previous one is intact: free space and continue with --resume"), (1, "start again")],
)
def test_a_full_disk_leaves_the_previous_checkpoint(
    patch_set: PatchSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    filled: int,
    advice: str,
) -> None:
    trainer = Trainer(recipe(), patch_set, tmp_path)

    def full(state: object, file: BinaryIO) -> None:
        file.write(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill_disk(progress: Progress) -> None:
        if progress.step == filled:
            monkeypatch.setattr(torch, "save", full)

    with pytest.raises(HardnetError, match=rf"last\.ckpt .*No space left.*{advice}"):
        trainer.run(fill_disk)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.part"))
    if filled == 1:  # before the first checkpoint
        assert not list(tmp_path.glob("*.ckpt"))
    else:
        assert Trainer(recipe(), patch_set, tmp_path, resume=True).step == 2


def test_origin_is_beside_and_inside_the_weights(tmp_path: Path) -> None:
    from hardnet.nets import read_checkpoint
    from hardnet.patchsets.patchset import open_sets

    with BrownWriter(tmp_path / "set") as writer:
        patches = np.random.default_rng(0).integers(0, 256, (64, 64, 64), dtype=np.uint8)
        writer.add(patches, np.arange(64) // 4, 0)
        writer.finish(8, 0, {})
    name, folder = str(tmp_path / "set"), tmp_path / "run"
    settings = recipe(data=[name], pairs=32)
    file = Trainer(settings, open_sets([name], 32), folder).run()
    assert read_recipe(folder / "recipe.yaml", []) == settings
    facts = json.loads((folder / "provenance.json").read_text())
    assert facts["data"] == [{"name": "set"} | asdict(data_digest(name))]
    assert {"revision", "versions", "machine", "command", "settings"} <= set(facts)
    stored = read_checkpoint(file).metadata
    assert stored["recipe"]["data"] == ["set"]
    for key in ("revision", "versions", "machine", "command", "data"):
        assert stored[key] == facts[key]
    (tmp_path / "set" / "more.txt").write_text("a file that was not there")
    with pytest.raises(HardnetError, match="set set has changed since"):
        Trainer(settings, open_sets([name], 32), folder, resume=True)


def test_starts_from_given_weights(patch_set: PatchSet, tmp_path: Path) -> None:
    file = Trainer(recipe(pairs=32), patch_set, tmp_path / "a").run()
    stored = load_net(file)
    torch.save({"state_dict": stored.state_dict()}, tmp_path / "published.pth")
    for k, init in enumerate((file, tmp_path / "published.pth")):
        started = Trainer(recipe(init=str(init), seed=9), patch_set, tmp_path / str(k))
        for key, value in stored.state_dict().items():
            assert torch.equal(value, started.net.state_dict()[key]), key
    with pytest.raises(HardnetError, match="holds weights of hardnet-tiny, and the recipe trains"):
        Trainer(recipe(init=str(file), net="tfeat"), patch_set, tmp_path / "c")


def test_the_first_interrupt_waits_for_the_step(patch_set: PatchSet, tmp_path: Path) -> None:
    trainer = Trainer(recipe(checkpoint_every=100), patch_set, tmp_path)

    def interrupt(progress: Progress) -> None:
        if progress.step == 3:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(interrupt)
    assert signal.getsignal(signal.SIGTERM) is before
    assert Trainer(recipe(), patch_set, tmp_path, resume=True).step == 3


def test_a_log_cut_short_by_a_kill(patch_set: PatchSet, tmp_path: Path) -> None:
    parts = run_in_two_parts(patch_set, tmp_path, 5, {})
    log = tmp_path / "log.csv"
    assert [r["step"] for r in csv.DictReader(log.open())] == list("123456")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]) + "1")
    Trainer(recipe(), patch_set, tmp_path, resume=True).run()
    assert parts.step == 6
    assert [r["step"] for r in csv.DictReader(log.open())] == list("12345")


def test_freed_memory_is_kept_on_glibc_and_nothing_happens_elsewhere() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
