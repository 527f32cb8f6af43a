"""A training recipe: a YAML file, a dataclass, and ``--set key=value`` are the same thing."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.image_files import as_path
from hardnet.storage import check_registered, refuse_other_settings

CODE = ("loss", "net")  # the keys that may name code of the user, as ``module:name``

ORIGIN = "provenance.json"  # the file of a run that says where it came from

TEACHER = ("teacher_cosine", "teacher_distances")
"""The keys of the objective that count when there is a teacher."""

FREE = (
    *("validation", "validate_every", "validation_pairs", "checkpoint_every"),
    *("accelerator", "chunk", "workers", "devices"),
)
"""The keys that may change when a run is resumed: they say how and where a run is computed, not
what it learns. Another accelerator, chunk or number of devices changes the last digits only (and
chunk 0 draws its dropout in another order)."""

RECIPES = Path(__file__).parents[1] / "recipes"  # the recipes that come with the package


@dataclass
class Recipe:
    """Every setting of a training run; the defaults are the paper's HardNet.

    The keys of the objective (sampling to teacher_distances) are explained in docs/training.md.
    """

    data: list[str] = field(default_factory=list)  # Brown or HPatches folders, or FOLDER:SPLIT
    weights: list[float] = field(default_factory=list)  # shares of the sets; else by their points
    validation: str = ""  # a set whose test pairs give FPR95 while training
    net: str = "hardnet"  # or one of the user, as module:Class
    init: str = ""  # weights file to start from
    dropout: float = 0.3  # before the last layer
    sampling: str = "hardest"
    negatives: str = "cross"
    loss: str = "triplet"
    margin: float = 1.0
    regularizer: str = "none"
    regularizer_weight: float = 1.0
    anchor_swap: bool = True
    same_patch: float = 0.008
    teacher: str = ""
    teacher_cosine: float = 1.0
    teacher_distances: float = 1.0
    batch: int = 1024  # pairs per step over all devices, each of a different 3D point
    images: int = 0  # images that a batch is filled from; 0 for pairs from anywhere
    pairs: int = 50_000_000  # of the whole run; the learning rate reaches zero there
    epoch: int = 5_000_000  # pairs between two minings of sampling "classical"
    lr: float = 10.0
    momentum: float = 0.9
    # 0.9 makes a step a mean of past gradients instead of a sum: lr 10 moves as far as 1 without.
    dampening: float = 0.9
    weight_decay: float = 1e-4
    average: float = 0.0  # the last share of the run, whose mean weights are the result
    augment: bool = True  # flip and rotate both patches of a pair alike
    shade: float = 0.0  # share of patches with an edge of light
    seed: int = 0  # all random numbers follow from it and the step number
    chunk: int = 256  # patches held by the network at a time; 0 for the whole batch at once
    workers: int = 1  # threads that prepare batches; any number gives the same
    validate_every: int = 500  # steps; 0 validates only at the end
    validation_pairs: int = 20_000  # from the start of the list
    checkpoint_every: int = 200  # steps
    accelerator: str = "auto"  # "cpu", "cuda" ...; see Lightning Fabric
    devices: int = 1  # processes per machine, each with its share of the batch

    @property
    def steps(self) -> int:
        return -(-self.pairs // self.batch)

    @property
    def averaged_steps(self) -> int:
        """How many steps at the end of the run the weights are averaged over."""
        return -int(-self.average * self.steps // 1)

    @property
    def axes(self) -> dict[str, Any]:
        """The keys that make the objective: the fields of ``Objective``."""
        from hardnet.learn.losses import Objective

        keys = [each.name for each in fields(Objective)]
        return {key: getattr(self, key) for key in keys if self.teacher or key not in TEACHER}

    def learning_rate(self, step: int) -> float:
        """Linear decay per step.

        The first two steps both use ``lr``: the published code sets the rate after a step.
        """
        return self.lr * max(0.0, 1 - max(step - 1, 0) * self.batch / self.pairs)


_DEFAULTS: dict[str, Any] = asdict(Recipe())


def find_recipe(path: Path) -> Path:
    """The file of a recipe: itself, or one that comes with the package, by its name."""
    if path.is_file():
        return path
    ours = RECIPES / f"{path.name}.yaml"
    if path.name == str(path) and ours.is_file():
        return ours
    known = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
    raise HardnetError(f"{path}: no such recipe; give a YAML file, or one of {known}")


def read_recipe(path: str | Path, overrides: list[str], stored: bool = False) -> Recipe:
    """Read ``path`` and apply ``key=value`` overrides; unknown keys are an error.

    A key whose default is empty may be given without a value (``validation=``). The recipe in the
    folder of a run may come from someone else: code that it names is run only if an override names
    it too, and never if it is ``stored``, that is, only compared with another one.
    """
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        raise MissingExtraError("omegaconf", "train") from None
    path = find_recipe(as_path(path))
    given = _parse(path)
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise HardnetError(f"--set {override}: write it as key=value")
        check_name(f"--set {override}", "key", key, _DEFAULTS)
        given |= _parse(override)
    for key, value in given.items():
        check_name(path, "key", key, _DEFAULTS)
        default = _DEFAULTS[key]
        if value is None or value == "???":  # the second is what OmegaConf calls a missing value
            if default not in ("", []):
                raise HardnetError(f"{path}: {key} has no value: give one, or leave the key out")
            given[key] = default
        elif isinstance(default, list) and not isinstance(value, list):
            raise HardnetError(f"{path}: {key} is a list: write [{value}] in place of {value}")
    try:
        recipe = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Recipe), given))
    except OmegaConfBaseException as error:
        where = f"{path}: {error.full_key}" if error.full_key else str(path)
        raise HardnetError(f"{where}: {str(error).splitlines()[0]}") from None
    assert isinstance(recipe, Recipe)
    if not stored and (path.parent / ORIGIN).exists():
        typed = {override.partition("=")[0] for override in overrides}
        for key in CODE:
            name = getattr(recipe, key)
            if ":" in name and key not in typed:
                check_registered(name, key, (), path, f"add --set {key}={name}")
    check_values(recipe, path, stored)
    return recipe


def _parse(source: Path | str) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf
    from yaml import YAMLError  # omegaconf reads with it

    is_file = isinstance(source, Path)
    where = source if is_file else f"--set {source}"
    try:
        content = OmegaConf.load(source) if is_file else OmegaConf.from_dotlist([str(source)])
    except YAMLError as error:
        raise HardnetError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None
    except (OSError, UnicodeDecodeError) as error:  # OSError: also of a file with a number alone
        raise HardnetError(f"{where} is not a recipe: {error}") from None
    if not isinstance(content, DictConfig):
        raise HardnetError(f"{where} is not a recipe: write a line `key: value` for each setting")
    plain: Any = OmegaConf.to_container(content)
    return {str(key): value for key, value in plain.items()}


def refuse_changes(stored: Path, recipe: Recipe) -> None:
    """Refuse to resume a run with another recipe than ``stored``, but for the :data:`FREE` keys.

    Keys that an older version did not know have their defaults, which do what that version did.
    """
    begun = asdict(read_recipe(stored, [], stored=True))
    now = {key: value for key, value in asdict(recipe).items() if key not in FREE}
    free = f"these keys may change: {', '.join(FREE)}"
    advice = f"use that value to resume it, or another --output ({free})"
    refuse_other_settings(begun, now, stored.parent, advice)


def check_name(where: object, what: str, name: str, known: Iterable[str]) -> None:
    """HardnetError with the nearest valid name unless ``name`` is one of ``known``."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
        raise HardnetError(f"{where}: unknown {what} {name!r}{hint}")


_POSITIVE = ("pairs", "epoch", "validation_pairs", "checkpoint_every", "lr", "workers", "devices")
_NOT_NEGATIVE = ("chunk", "images", "validate_every", "weight_decay")
_SHARES = ("dropout", "momentum", "dampening", "average", "shade")


def check_values(recipe: Recipe, where: object, stored: bool = False) -> None:
    """HardnetError for a value that cannot be trained with; ``where`` names the file."""
    if not all(recipe.data) or not recipe.data:
        raise HardnetError(f"{where}: data names no patch set; add one or use --set data=[SET]")
    for key, value in vars(recipe).items():
        if key in _POSITIVE and not 0 < value < math.inf:
            raise HardnetError(f"{where}: {key} must be positive, got {value}")
        if key in _NOT_NEGATIVE and not 0 <= value < math.inf:
            raise HardnetError(f"{where}: {key} must not be negative, got {value}")
        if key in _SHARES and not 0 <= value < 1:
            raise HardnetError(f"{where}: {key} must be in [0, 1), got {value}")
    if recipe.batch < 2:
        raise HardnetError(
            f"{where}: batch must be 2 or more, got {recipe.batch}: the negatives of a pair are "
            "the other pairs of its batch"
        )
    if not 0 <= recipe.seed < 2**63:
        raise HardnetError(f"{where}: seed must be from 0 to 2^63 - 1, got {recipe.seed}")
    if recipe.teacher and not any(getattr(recipe, key) for key in TEACHER):
        raise HardnetError(f"{where}: with a teacher one of {', '.join(TEACHER)} must be positive")
    if stored:  # with our names in their place
        ours = {key: _DEFAULTS[key] for key in CODE if ":" in getattr(recipe, key)}
        recipe = replace(recipe, **ours)
    try:
        from hardnet.learn.batches import shares_of_sets
        from hardnet.learn.losses import Objective
        from hardnet.nets import NETS, find_net
    except ImportError:
        raise MissingExtraError("torch", "train") from None
    if ":" not in recipe.net:
        check_name(where, "net", recipe.net, NETS)
    try:
        shares_of_sets(recipe.weights, len(recipe.data))
        find_net(recipe.net)
        Objective(**recipe.axes)
    except HardnetError as error:
        raise HardnetError(f"{where}: {error}") from None
