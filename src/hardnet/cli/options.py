"""The options that several commands share: one spelling, one help text, one default meaning."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markup import escape

from hardnet.descriptors import DEFAULT, names
from hardnet.image_files import ENVIRONMENT, parse_size


def option(default: Any, text: str, *flags: str, **settings: Any) -> Any:
    """An option: its default (``...`` for none), its help, then what ``typer.Option`` takes.

    Brackets in the help are brackets: ``--set data=[sets/mine]`` has no markup.
    """
    return typer.Option(default, *flags, help=escape(text), **settings)


def argument(text: str, default: Any = ..., **settings: Any) -> Any:
    """An argument: its help, its default, then what ``typer.Argument`` takes."""
    return typer.Argument(default, help=escape(text), **settings)


Photos = Annotated[
    list[Path], argument("Photos, and folders; searched recursively.", metavar="IMAGES...")
]
DetectorName = Annotated[
    str, option(..., "dog, hessian, hessian-affine, mser, or affnet:AffNet.pth[,OriNet.pth].")
]
DescriptorName = Annotated[
    str,
    option(
        ...,
        f"{', '.join(names())}, a weights file, or MODULE:FUNCTION; with @12+24 at its end, in "
        "windows of 12 and 24 sigma.",
    ),
]
KnownDescriptor = Annotated[
    str | None,
    option(
        ..., "MODULE:FUNCTION, if the index was made with one: an index cannot name code to run."
    ),
]
Keypoints = Annotated[int, option(..., "Keep the strongest per photo.", min=1)]
MaxSize = Annotated[int, option(..., "Shrink longer sides to this many pixels; 0: never.", min=0)]
Upright = Annotated[
    bool, option(..., "The photos are the right way up: turn no frame.", "--upright")
]
Spread = Annotated[
    bool,
    option(
        ..., "Keep keypoints all over the photo, not only the strongest.", "--spread/--no-spread"
    ),
]
Workers = Annotated[int | None, option(..., "Threads that read and detect; one per core.", min=1)]
Cluster = Annotated[
    str | None,
    option(
        ...,
        "Work on a Ray cluster: HOST:PORT of its head, auto for the one that this machine belongs "
        "to, ray://HOST:PORT from outside, or local to start one here.",
        metavar="ADDRESS",
    ),
]
AsJson = Annotated[bool, option(..., "Print one JSON object.", "--json")]


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
        """As the functions that describe photos take them, with ``others``."""
        return vars(self) | {"max_size": self.max_size or None} | others


def _set_limit(size: str | None) -> str | None:
    """Into the environment, where every reader looks and which worker processes inherit."""
    if size is not None:
        try:
            os.environ[ENVIRONMENT] = str(parse_size(size))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return size


MaxImageBytes = Annotated[
    str | None,
    option(
        ...,
        "Refuse pictures that take more memory decoded, and larger files.",
        metavar="SIZE",
        envvar=ENVIRONMENT,
        show_default="1GB",
        callback=_set_limit,
    ),
]


def reads_images(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the option --max-image-bytes, which acts before the command runs."""

    def run(max_image_bytes: Any, **given: Any) -> None:
        command(**given)

    # Evaluated: the names of types mean nothing outside the module.
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    limit = _keyword("max_image_bytes", MaxImageBytes, None)
    return _with_parameters(command, run, [*parameters, limit])


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """``command``, whose parameters that are dataclasses become an option for each field."""
    plain = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: p.annotation for name, p in plain.items() if is_dataclass(p.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in plain.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(_keyword(field.name, hints[field.name], default))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    return _with_parameters(command, run, parameters)


def given(settings: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of a command, its ``locals()``, those that are fields of some settings.

    None is not given: it leaves the default of the settings.
    """
    names = [field.name for field in fields(settings)]
    return {name: options[name] for name in names if options.get(name) is not None}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _with_parameters(
    command: Callable[..., None], run: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
