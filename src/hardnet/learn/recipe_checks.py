"""What a recipe must fulfil before anything is read or trained."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hardnet.errors import HardnetError, MissingExtraError

if TYPE_CHECKING:
    from hardnet.learn.recipe import Recipe

_POSITIVE = (
    "pairs",
    "epoch",
    "validation_pairs",
    "checkpoint_every",
    "lr",
    "workers",
    "devices",
    "nodes",
)
_NOT_NEGATIVE = ("chunk", "images", "validate_every", "weight_decay")
_LARGEST_SEED = 2**63 - 1


def check_name(where: object, what: str, name: str, known: Iterable[str]) -> None:
    """HardnetError with the nearest valid name unless ``name`` is one of ``known``."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
        raise HardnetError(f"{where}: unknown {what} {name}{hint}")


def check_values(recipe: Recipe, where: object) -> None:
    """HardnetError for a value that cannot be trained with; ``where`` names the file."""
    if not all(recipe.data) or not recipe.data:
        raise HardnetError(f"{where}: data names no patch set; add one or use --set data=[SET]")
    for key in _POSITIVE:
        if not 0 < getattr(recipe, key) < math.inf:
            raise HardnetError(f"{where}: {key} must be positive, got {getattr(recipe, key)}")
    for key in _NOT_NEGATIVE:
        if not 0 <= getattr(recipe, key) < math.inf:
            raise HardnetError(f"{where}: {key} must not be negative, got {getattr(recipe, key)}")
    for key in ("dropout", "momentum", "dampening", "average"):
        if not 0 <= getattr(recipe, key) < 1:
            raise HardnetError(f"{where}: {key} must be in [0, 1), got {getattr(recipe, key)}")
    if recipe.batch < 2:
        raise HardnetError(
            f"{where}: batch must be 2 or more, got {recipe.batch}: the negatives of a pair are "
            "the other pairs of its batch"
        )
    if not 0 <= recipe.seed <= _LARGEST_SEED:
        raise HardnetError(f"{where}: seed must be from 0 to 2^63 - 1, got {recipe.seed}")
    if recipe.weights:
        _check_weights(recipe, where)
    _check_choices(recipe, where)


def _check_weights(recipe: Recipe, where: object) -> None:
    if len(recipe.weights) != len(recipe.data):
        raise HardnetError(
            f"{where}: weights has {len(recipe.weights)} values for {len(recipe.data)} sets "
            "of data; give one per set, or none"
        )
    for weight in recipe.weights:
        if not 0 < weight < math.inf:
            raise HardnetError(f"{where}: weights must be positive, got {weight}")


def _check_choices(recipe: Recipe, where: object) -> None:
    try:
        from hardnet.learn.objective import build_objective
        from hardnet.nets import NETS
    except ImportError:
        raise MissingExtraError("torch", "train") from None
    check_name(where, "net", recipe.net, NETS)
    try:
        build_objective(**recipe.axes)
    except HardnetError as error:
        raise HardnetError(f"{where}: {error}") from None
