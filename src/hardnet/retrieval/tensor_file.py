"""Arrays as the bytes of a safetensors file: equal contents are equal bytes, nothing is copied."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """The bytes of a file in parts, to be written one after another.

    Args:
        arrays: by name; the widest numbers come first, so that all are aligned.
        facts: short texts to keep with them.
    """
    little = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
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
