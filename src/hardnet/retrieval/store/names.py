"""Names of images: any text, stored as UTF-8 and found by a hash."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError


class HashedNames:
    """Names as they are stored, with their hashes.

    Attributes:
        encoded: the names as bytes.
        hashes: (N,) uint64, the same on every machine.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.encoded = [encode_name(name) for name in names]
        digests = b"".join(blake2b(name, digest_size=8).digest() for name in self.encoded)
        self.hashes: NDArray[np.uint64] = np.frombuffer(digests, "<u8").astype(np.uint64)

    def __len__(self) -> int:
        return len(self.encoded)


def encode_name(name: str) -> bytes:
    """A name as UTF-8; the odd bytes of a file name, which Python escapes, stay what they are."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise HardnetError(
            f"the name {name!r} has half a character at position {error.start}: rename the image"
        ) from error


def decode_name(stored: bytes) -> str:
    """The inverse of :func:`encode_name`."""
    return stored.decode("utf-8", "surrogateescape")
