"""What a user reads: errors, each a HardnetError; counts; progress."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Receives progress: (what, done, total)."""
Steps = Callable[[int, int], None]
"""The same for work without named parts: (done, total)."""


def silent(*_: object) -> None:
    """Report nothing."""


def within(progress: Progress, where: str, what: str, done: int, total: int) -> None:
    """Report ``what`` as a part of ``where``."""
    progress(f"{where}: {what}", done, total)


class HardnetError(Exception):
    """Something the user can fix: the message names the file or option and the fix.

    The command line prints it as one line and exits with code 1; Python callers may catch it.
    """


class InputError(HardnetError, ValueError):
    """An argument that makes no sense: a number out of range, an array of the wrong shape."""


class DivergedError(HardnetError):
    """A training run left the finite numbers: a result of its settings, not a mistake in them."""


class MissingExtraError(HardnetError, ImportError):
    """A part of the package needs an optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; it comes with hardnet[{extra}]: {install_command(extra)}"
        )


def printable(text: str) -> str:
    """``text`` in one line: a control character, as a file name may have, becomes an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, thing: str) -> str:
    """``1 photo``, ``2 photos``, ``3 matches``, ``4 copies``: a count as messages say it."""
    if number == 1:
        return f"1 {thing}"
    if thing.endswith("y"):
        return f"{number} {thing[:-1]}ies"
    return f"{number} {thing}{'es' if thing.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def install_command(extra: str) -> str:
    """The command that adds an extra to this copy of the package, however it was installed."""
    from importlib import metadata  # here, since it is rarely needed

    try:
        origin = metadata.distribution("hardnet").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # a folder on PYTHONPATH
        origin = None
    return install_from(extra, origin)


def install_from(extra: str, origin: str | None) -> str:
    """The same for a copy whose direct_url.json (PEP 610) is ``origin``; None: from an index."""
    from urllib.parse import unquote, urlparse

    facts = json.loads(origin) if origin else {}
    url = facts.get("url", "")
    if "dir_info" in facts:
        folder = unquote(urlparse(url).path)
        here = os.path.realpath(folder) == os.path.realpath(os.curdir)
        editable = "-e " if facts["dir_info"].get("editable") else ""
        return f'pip install {editable}"{"." if here else folder}[{extra}]"'
    if "vcs_info" in facts:
        return f'pip install "hardnet[{extra}] @ {facts["vcs_info"]["vcs"]}+{url}"'
    if url:
        return f'pip install "hardnet[{extra}] @ {url}"'
    return f'pip install "hardnet[{extra}]"'
