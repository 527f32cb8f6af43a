"""The options that several commands share, each with one spelling and one help text."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markup import escape

from hardnet.descriptors import DEFAULT, names
from hardnet.image_files import ENVIRONMENT, parse_size


def option(default: Any, text: str, *flags: str, **settings: Any) -> Any:
    """An option: its default (``...`` for none), its help, then arguments of ``typer.Option``.

    Brackets in the help are shown literally, as in ``--set data=[sets/mine]``. ``readable=False``:
    code that reads a file reports one that may not be read, with exit code 1; typer's own check
    would call it a mistake in usage and exit with 2.
    """
    return typer.Option(default, *flags, help=escape(text), readable=False, **settings)


def argument(text: str, default: Any = ..., **settings: Any) -> Any:
    """An argument: its help, its default, then arguments of ``typer.Argument``."""
    return typer.Argument(default, help=escape(text), readable=False, **settings)


def group(name: str, text: str) -> typer.Typer:
    """A command that has commands, such as `hardnet index`."""
    return typer.Typer(name=name, help=text, no_args_is_help=True, add_completion=False)


def _set_limit(size: str | None) -> str | None:
    """Store the limit in the environment, which every reader checks and workers inherit."""
    if size is not None:
        try:
            os.environ[ENVIRONMENT] = str(parse_size(size))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return size


Photos = Annotated[
    list[Path], argument("Photos, or folders to search recursively.", metavar="IMAGES...")
]
DetectorName = Annotated[
    str, option(..., "dog, hessian, hessian-affine, mser, or affnet:AffNet.pth[,OriNet.pth].")
]
DescriptorName = Annotated[
    str,
    option(
        ...,
        f"{', '.join(names())}, a weights file, or MODULE:FUNCTION; append @12+24 for "
        "windows of 12 and 24 sigma.",
    ),
]
KnownDescriptor = Annotated[
    str | None,
    option(
        ..., "MODULE:FUNCTION, if the index was built with one; an index never names code to run."
    ),
]
Keypoints = Annotated[int, option(..., "Number of keypoints to keep per photo.", min=1)]
MaxSize = Annotated[
    int, option(..., "Shrink photos to this longer side in pixels; 0: never.", min=0)
]
Upright = Annotated[bool, option(..., "Photos are upright: do not rotate frames.", "--upright")]
Spread = Annotated[
    bool,
    option(
        ...,
        "Spread keypoints over the photo instead of keeping only the strongest.",
        "--spread/--no-spread",
    ),
]
Seed = Annotated[
    int, option(..., "Seed of the random choices; the same seed, the same result.", min=0)
]
Workers = Annotated[
    int | None, option(..., "Photos to work on at the same time [one per core].", min=1)
]
Cluster = Annotated[
    str | None,
    option(
        ...,
        "Run on a Ray cluster: HOST:PORT of its head, auto for the cluster of this machine, "
        "ray://HOST:PORT from outside, or local to start one here.",
        metavar="ADDRESS",
    ),
]
AsJson = Annotated[bool, option(..., "Print one JSON object.", "--json")]
MaxImageBytes = Annotated[
    str | None,
    option(
        ...,
        "Refuse files above this size and images that need more memory when decoded.",
        metavar="SIZE",
        envvar=ENVIRONMENT,
        show_default="1GB",
        callback=_set_limit,
    ),
]


@dataclass(frozen=True)
class Describing:
    """The options of commands that describe photos."""

    detector: DetectorName = "dog"
    descriptor: DescriptorName = DEFAULT
    keypoints: Keypoints = 2048
    max_size: MaxSize = 1600
    upright: Upright = False
    spread: Spread = False

    def asked(self, **others: Any) -> dict[str, Any]:
        """The options as arguments of the functions that describe photos, plus ``others``."""
        return vars(self) | {"max_size": self.max_size or None} | others


def reads_images(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with --max-image-bytes, which takes effect before the command runs.

    Each parameter that is a dataclass becomes one option per field. A switch that is off by default
    has no form --no-SWITCH.
    """
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    # Evaluated, because the type names are unknown outside the module.
    for name, parameter in signature(command, eval_str=True).parameters.items():
        if not is_dataclass(group := parameter.annotation):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[name], hints = group, get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = Parameter.empty if field.default is MISSING else field.default
            parameters.append(_keyword(field.name, hints[field.name], default))
    parameters.append(_keyword("max_image_bytes", MaxImageBytes, None))
    for one in parameters:
        if getattr(one.default, "default", None) is False and not one.default.param_decls:
            one.default.param_decls = (f"--{one.name.replace('_', '-')}",)

    @functools.wraps(command)
    def run(max_image_bytes: Any, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def given(settings: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of a command (its ``locals()``) that are fields of ``settings``.

    None means not given: the default of the settings applies.
    """
    names = [field.name for field in fields(settings)]
    return {name: options[name] for name in names if options.get(name) is not None}
