"""The option --max-image-bytes of every command that reads pictures."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from hardnet.image_files import ENVIRONMENT, parse_size

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
