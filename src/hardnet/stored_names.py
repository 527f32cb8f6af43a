"""What a file may name: never code, and never a place outside the folder it is read with.

Files travel: an index, a file of features or a COLMAP model may come from anybody. A checksum does
not help, since whoever changes a file can compute it again. So a name that was read from a file
passes through this module before anything is loaded or opened by it; a name that a person gave,
on the command line or as an argument, does not.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path, PurePath

from hardnet.errors import HardnetError


def check_registered(
    name: object, what: str, known: Collection[str], source: Path, again: str
) -> str:
    """The name if it is one of ours.

    Args:
        name: as read from the file.
        what: it is the name of, for the error.
        known: the registered names.
        source: the file.
        again: how a person says the same, for the error.

    Raises:
        HardnetError: it would have to be imported, or nobody knows it.
    """
    if isinstance(name, str) and name in known:
        return name
    if isinstance(name, str) and ":" in name:
        raise HardnetError(
            f"{source} names the {what} {name!r}: a file may not name code to run; if you know "
            f"this code and trust it, {again}"
        )
    raise HardnetError(f"{source} names the {what} {name!r}, which is not known here; {again}")


def check_inside(name: str, source: Path | str) -> str:
    """A relative name that stays in the folder it is joined to.

    Args:
        name: as read from the file.
        source: the file.

    Raises:
        HardnetError: the name is empty, absolute, or climbs out of the folder.
    """
    path = PurePath(name)
    if not path.parts or path.anchor or os.path.isabs(name) or ".." in path.parts or "\0" in name:
        raise HardnetError(
            f"{source} names the image {name!r}, which does not lie inside a folder of images: "
            "rename it there, or do not use this file"
        )
    return name
