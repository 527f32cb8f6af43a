"""Arrays in one file, mapped into memory: the safetensors format, checked with a crc32.

Equal contents are equal bytes. One file for all columns of a segment keeps the number of open files
as small as the number of segments, and its writing down to one sync.
"""

from __future__ import annotations

import errno
import json
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.storage import FileFacts, write_file

KINDS = {
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
}
_CODES = {np.dtype(kind): code for code, kind in KINDS.items()}

METADATA = "__metadata__"
"""Where the header of a file has its facts, among the names of the arrays."""


def tensor_file(
    arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """The bytes of a file of arrays by name, and of facts about them, in parts, in order."""
    little = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        # The widest numbers come first, so that all are aligned.
        for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    }
    header: dict[str, Any] = {METADATA: dict(facts)} if facts else {}
    end = 0
    for name, array in little.items():
        start, end = end, end + array.nbytes
        kind = _CODES[array.dtype]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    views = [array.reshape(-1).view(np.uint8).data for array in little.values() if array.size]
    return [struct.pack("<Q", len(text)), text, *views]


Column = NDArray[Any]

REPAIR = "bring the index folder back from a copy, or build the index again"
"""The fix for any damage."""


def write_columns(path: Path, columns: Mapping[str, Column]) -> FileFacts:
    """Write arrays under their names."""
    return write_file(path, tensor_file(columns))


def map_columns(path: Path, expected: int | None = None) -> dict[str, Column]:
    """The arrays of a file, read-only and mapped: nothing but the header is read.

    They stay readable while anybody holds one of them, even if the file is deleted. ``expected`` is
    its size in bytes, if known.

    Raises:
        FileNotFoundError: it is not there.
        HardnetError: it is not what was written.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        fix = "raise the number of files you may open (ulimit -n)"
        fix = fix if error.errno == errno.EMFILE else "check the disk and your rights to the file"
        raise HardnetError(f"{path} cannot be read: {error.strerror}; {fix}") from error
    except ValueError as error:
        raise HardnetError(f"{path} is empty; {REPAIR}") from error
    if expected is not None and len(content) != expected:
        raise HardnetError(f"{path} has {len(content)} bytes instead of {expected}; {REPAIR}")
    try:
        return _arrays(content)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise HardnetError(f"{path} is damaged: {error}; {REPAIR}") from error


def _arrays(content: mmap.mmap) -> dict[str, Column]:
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, dict[str, Any]] = json.loads(content[8 : 8 + length])
    arrays: dict[str, Column] = {}
    for name, facts in header.items():
        kind, shape = np.dtype(KINDS[facts["dtype"]]), tuple(facts["shape"])
        start, _ = facts["data_offsets"]
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            arrays[name] = np.zeros(shape, kind)
            arrays[name].flags.writeable = False
            continue
        arrays[name] = np.frombuffer(content, kind, count, 8 + length + start).reshape(shape)
    return arrays
