"""What a file may name: never code, and never a place outside the folder it is read with.

Files travel: an index, a file of features or a COLMAP model may come from anybody. A checksum does
not help, since whoever changes a file can compute it again. So a name that was read from a file
passes through this module before anything is loaded or opened by it; a name that a person gave, on
the command line or as an argument, does not, and may be code, as ``module:name``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from pathlib import Path, PurePath
from typing import Any

from hardnet.errors import HardnetError


def check_registered(
    name: object, what: str, known: Collection[str], source: Path, again: str
) -> str:
    """The name, read from the file ``source``, if it is known; ``again`` is the advice if not."""
    if isinstance(name, str) and name in known:
        return name
    if isinstance(name, str) and ":" in name:
        raise HardnetError(
            f"{source} names the {what} {name!r}: a file may not name code to run; if you know "
            f"this code and trust it, {again}"
        )
    raise HardnetError(f"{source} names the {what} {name!r}, which is not known here; {again}")


def find_code(spec: str) -> Any:
    """What a person means by ``module:name``; the name may be ``object.attribute``.

    The module is looked up as ``python -m`` would: in the current folder first.
    """
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise HardnetError(f"{spec!r} is not of the form module:function")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise HardnetError(f"no module {module_name!r} here or among the installed") from error
        raise HardnetError(f"{module_name} needs {error.name!r}, which is not installed") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise HardnetError(f"{module_name} cannot be imported: {reason}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise HardnetError(f"{module_name} has no {path!r}")
        found = getattr(found, part)
    return found


def check_inside(name: str, source: Path | str) -> str:
    """A relative name, read from the file ``source``, that stays in the folder it is joined to."""
    path = PurePath(name)
    if not path.parts or path.anchor or os.path.isabs(name) or ".." in path.parts or "\0" in name:
        raise HardnetError(
            f"{source} names the image {name!r}, which does not lie inside a folder of images: "
            "rename it there, or do not use this file"
        )
    return name
