"""Train a network with the paper's loss: our own readable loop on Lightning Fabric.

Everything random (the batch, its augmentation, dropout) is a function of the recipe's seed and the
step number. A checkpoint therefore holds only the step, the weights and the optimizer, and a run
that was killed and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from hardnet.errors import HardnetError
from hardnet.learn.allocator import keep_freed_memory
from hardnet.learn.augment import flip_rotate
from hardnet.learn.distances import pair_distances
from hardnet.learn.losses import triplet_margin
from hardnet.learn.recipe import Recipe, write_recipe
from hardnet.learn.runlog import RunLog
from hardnet.learn.sampling import hardest_in_batch_blockwise
from hardnet.nets import build_net
from hardnet.nets.checkpoints import save_checkpoint
from hardnet.patchsets.pairs import PairSampler
from hardnet.patchsets.patchset import PatchSet

CHECKPOINT = "last.ckpt"
Describe = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True)
class Progress:
    """What a step reports."""

    step: int
    steps: int
    loss: float
    pairs_per_second: float
    fpr95: float | None


class Trainer:
    """One training run in one folder.

    Args:
        recipe: the settings.
        train_set: patches at the network's size, with their points.
        folder: where the checkpoint, the log and the final weights go.
        validate: scores a descriptor while training (FPR95 on held-out pairs); None for none.
        resume: continue from the folder's checkpoint; otherwise a folder with one is refused.
    """

    def __init__(
        self,
        recipe: Recipe,
        train_set: PatchSet,
        folder: Path,
        validate: Callable[[Describe], float] | None = None,
        resume: bool = False,
    ) -> None:
        keep_freed_memory()
        self.recipe, self.folder, self._validate = recipe, folder, validate
        self._patches = train_set.patches
        self._sampler = PairSampler(train_set.points, recipe.batch, recipe.seed)
        self._fabric = Fabric(accelerator=recipe.accelerator, devices=1)
        torch.manual_seed(recipe.seed)
        # Channels last is the layout oneDNN and cuDNN convolve in: no reordering at each layer.
        self.net: nn.Module = build_net(recipe.net, recipe.dropout)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.net.parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            dampening=recipe.dampening,
            weight_decay=recipe.weight_decay,
        )
        self.step = 0
        if (folder / CHECKPOINT).exists():
            if not resume:
                raise HardnetError(f"{folder} holds a run already; continue it with --resume")
            self._load()
        elif resume:
            raise HardnetError(f"{folder} has no {CHECKPOINT} to resume from")
        self._forward, self._stepper = self._fabric.setup(self.net, self.optimizer)
        folder.mkdir(parents=True, exist_ok=True)
        write_recipe(recipe, folder / "recipe.yaml")

    def run(self, report: Callable[[Progress], None] | None = None) -> Path:
        """Train to the end of the recipe; return the file of the final weights.

        An interrupt (ctrl-C) saves a checkpoint before it is passed on.
        """
        log = RunLog(self.folder, self.step)
        try:
            while self.step < self.recipe.steps:
                started = time.perf_counter()
                row = self._train_step()
                speed = self.recipe.batch / (time.perf_counter() - started)
                fpr95 = self._maybe_validate()
                row.update({"step": self.step, "pairs": self.step * self.recipe.batch})
                row["pairs_per_second"] = round(speed, 1)
                if fpr95 is not None:
                    row["fpr95"] = fpr95
                log.add(row)
                if self.step % self.recipe.checkpoint_every == 0:
                    self.save()
                if report:
                    report(Progress(self.step, self.recipe.steps, row["loss"], speed, fpr95))
        except KeyboardInterrupt:
            self.save()
            raise
        finally:
            log.close()
        self.save()
        weights = self.folder / f"{self.recipe.net}.safetensors"
        facts = {"recipe": asdict(self.recipe), "pairs": self.step * self.recipe.batch}
        save_checkpoint(weights, self.net, self.recipe.net, facts)
        return weights

    def _train_step(self) -> dict[str, float]:
        step, recipe = self.step, self.recipe
        lr = recipe.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        a, p = self._sampler(step)
        anchors, positives = self._patches[a], self._patches[p]
        if recipe.augment:
            rng = np.random.default_rng([recipe.seed, step, 1])
            anchors, positives = flip_rotate(anchors, positives, rng)
        torch.manual_seed(int(np.random.default_rng([recipe.seed, step, 2]).integers(2**63)))
        self._forward.train()
        descriptors = self._forward(self._to_input(np.concatenate([anchors, positives])))
        first, second = descriptors[: recipe.batch], descriptors[recipe.batch :]
        positive = pair_distances(first, second)
        negative = hardest_in_batch_blockwise(first, second)
        loss = triplet_margin(positive, negative, recipe.margin)
        self._stepper.zero_grad()
        self._fabric.backward(loss)
        self._stepper.step()
        self.step += 1
        value = float(loss.detach())
        if not np.isfinite(value):
            raise HardnetError(
                f"the loss became {value} at step {self.step}; lower lr or look at the patches"
            )
        return {
            "lr": lr,
            "loss": value,
            "positive": float(positive.detach().mean()),
            "negative": float(negative.detach().mean()),
        }

    def _to_input(self, patches: NDArray[np.uint8]) -> Tensor:
        """(n, S, S) uint8 -> (n, 1, S, S) float32 in 0..1 on the device."""
        tensor = torch.from_numpy(np.ascontiguousarray(patches)).to(self._fabric.device)
        return tensor[:, None].to(torch.float32) / 255

    def describe(self, patches: NDArray[np.uint8], batch: int = 512) -> NDArray[np.float32]:
        """Descriptors of (n, S, S) patches by the network as it is now."""
        self.net.eval()
        with torch.no_grad():
            parts = [
                self.net(self._to_input(patches[i : i + batch])).cpu().numpy()
                for i in range(0, len(patches), batch)
            ]
        return np.concatenate(parts)

    def _maybe_validate(self) -> float | None:
        every = self.recipe.validate_every
        due = self.step == self.recipe.steps or (every and self.step % every == 0)
        return self._validate(self.describe) if self._validate and due else None

    def save(self) -> None:
        """Write the checkpoint; a kill in the middle leaves the previous one in place."""
        state = {
            "step": self.step,
            "seed": self.recipe.seed,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        part = self.folder / f"{CHECKPOINT}.part"
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.folder / CHECKPOINT)

    def _load(self) -> None:
        path = self.folder / CHECKPOINT
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise HardnetError(f"{path} is not a checkpoint of this recipe: {reason}") from error
        if state["seed"] != self.recipe.seed:
            raise HardnetError(f"{path} was made with seed {state['seed']}; resume with that seed")
        self.step = int(state["step"])
