"""A training recipe: a YAML file, a dataclass, and ``--set key=value`` are the same thing."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError


@dataclass
class Recipe:
    """Every setting of a training run.

    Attributes:
        data: patch sets to train on: folders in the Brown or HPatches layout; ``FOLDER:SPLIT``
            takes the training sequences of an HPatches split.
        validation: patch set whose test pairs give FPR95 while training; empty for none.
        net: name of the network.
        dropout: rate before the last layer.
        margin: of the triplet loss.
        batch: pairs per step, each of another 3D point.
        pairs: pairs seen in the whole run; the learning rate reaches zero there.
        lr: initial learning rate.
        momentum: of SGD.
        dampening: of the momentum. 0.9 makes a step a *mean* of past gradients instead of a sum:
            lr 10 with it moves as far as lr 1 without.
        weight_decay: of SGD.
        augment: flip / rotate both patches of a pair alike.
        seed: everything random follows from it and from the step number.
        validate_every: steps between two validations; 0 for only at the end.
        validation_pairs: test pairs used, from the start of the list.
        checkpoint_every: steps between two checkpoints.
        accelerator: "cpu", "cuda", "auto" ...; see Lightning Fabric.
    """

    data: list[str] = field(default_factory=list)
    validation: str = ""
    net: str = "hardnet"
    dropout: float = 0.3
    margin: float = 1.0
    batch: int = 1024
    pairs: int = 50_000_000
    lr: float = 10.0
    momentum: float = 0.9
    dampening: float = 0.9
    weight_decay: float = 1e-4
    augment: bool = True
    seed: int = 0
    validate_every: int = 500
    validation_pairs: int = 20_000
    checkpoint_every: int = 200
    accelerator: str = "auto"

    @property
    def steps(self) -> int:
        """Batches in the whole run."""
        return -(-self.pairs // self.batch)

    def learning_rate(self, step: int) -> float:
        """Linear decay per step.

        The first two steps both use ``lr``, as in the published code, which sets the rate after a
        step from the number of that step.
        """
        return self.lr * max(0.0, 1 - max(step - 1, 0) * self.batch / self.pairs)


def read_recipe(path: str | Path, overrides: list[str]) -> Recipe:
    """Read ``path`` and apply ``key=value`` overrides; unknown keys are an error.

    Paths of data sets are taken relative to the working directory, as typed by the user.
    """
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError  # omegaconf reads with it
    except ImportError:
        raise MissingExtraError("omegaconf", "train") from None
    path = Path(path)
    if not path.is_file():
        raise HardnetError(f"{path}: no such recipe; see the recipes folder for examples")
    for override in overrides:
        if "=" not in override:
            raise HardnetError(f"--set {override}: write it as key=value")
    try:
        given: Any = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(overrides))
        for key in given:
            _check_key(str(key), path)
        recipe = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Recipe), given))
    except OmegaConfBaseException as error:
        where = f"{path}: {error.full_key}" if error.full_key else str(path)
        raise HardnetError(f"{where}: {str(error).splitlines()[0]}") from None
    except YAMLError as error:
        raise HardnetError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    assert isinstance(recipe, Recipe)
    _check_values(recipe, path)
    return recipe


def _check_key(key: str, path: Path) -> None:
    known = [f.name for f in fields(Recipe)]
    if key not in known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
        raise HardnetError(f"{path}: unknown key {key}{hint}")


def _check_values(recipe: Recipe, path: Path) -> None:
    if not recipe.data:
        raise HardnetError(f"{path}: data names no patch set; add one or use --set data=[SET]")
    for key in ("batch", "pairs", "checkpoint_every", "lr"):
        if getattr(recipe, key) <= 0:
            raise HardnetError(f"{path}: {key} must be positive, got {getattr(recipe, key)}")
    if not 0 <= recipe.dropout < 1:
        raise HardnetError(f"{path}: dropout must be in [0, 1), got {recipe.dropout}")


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as YAML."""
    from omegaconf import OmegaConf

    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(recipe)))
