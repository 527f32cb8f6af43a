"""The options that several commands share: one spelling, one help text, one default meaning."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from hardnet.descriptors import names
from hardnet.image_files import ENVIRONMENT, parse_size

DetectorName = Annotated[
    str,
    typer.Option(help="dog, hessian, hessian-affine, mser, or affnet:AffNet.pth[,OriNet.pth]."),
]
DescriptorName = Annotated[
    str, typer.Option(help=f"{', '.join(names())}, a weights file, or MODULE:FUNCTION.")
]
KnownDescriptor = Annotated[
    str | None,
    typer.Option(
        help="MODULE:FUNCTION, if the index was made with one: an index cannot name code to run.",
    ),
]
Keypoints = Annotated[int, typer.Option(min=1, help="Keep the strongest per photo.")]
MaxSize = Annotated[
    int, typer.Option(min=0, help="Shrink longer sides to this many pixels; 0: never.")
]
Upright = Annotated[
    bool, typer.Option("--upright", help="The photos are the right way up: turn no frame.")
]


_NAME = "max_image_bytes"


def _set_limit(size: str | None) -> str | None:
    """Into the environment, where every reader looks and which worker processes inherit."""
    if size is not None:
        try:
            os.environ[ENVIRONMENT] = str(parse_size(size))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return size


_OPTION = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        envvar=ENVIRONMENT,
        show_default="1GB",
        callback=_set_limit,
        help="Refuse pictures that take more memory decoded, and larger files.",
    ),
]


def reads_images(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the option, which acts before the command runs."""

    @functools.wraps(command)
    def with_option(**given: Any) -> None:
        del given[_NAME]
        command(**given)

    plain = inspect.signature(command, eval_str=True)  # names of types mean nothing outside
    option = inspect.Parameter(
        _NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_OPTION
    )
    parameters = [*plain.parameters.values(), option]
    with_option.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_option.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_option
