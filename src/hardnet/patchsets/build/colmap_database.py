"""Keypoints in a COLMAP database.

Read with sqlite3, not pycolmap: pycolmap opens for writing and brings old files up to date, and a
user's database is not ours to change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write; what goes wrong with it names the file."""
    # COLMAP leaves its file in write-ahead mode. SQLite wants to write beside such a file even
    # to read it, unless told that it does not change; with a -wal file, somebody is writing.
    busy = path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.resolve().as_uri()}?{'mode=ro' if busy else 'immutable=1'}"
    try:
        connection = sqlite3.connect(uri, uri=True)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise HardnetError(f"{path} cannot be read as a COLMAP database: {error}") from None


def read_keypoints(database: sqlite3.Connection, image: str) -> NDArray[np.float32] | None:
    """(K, 2), (K, 4) or (K, 6) keypoints of an image by name; None if it is not there."""
    query = (
        "SELECT k.rows, k.cols, k.data FROM keypoints k JOIN images i ON k.image_id = i.image_id "
        "WHERE i.name = ?"
    )
    row = database.execute(query, (image,)).fetchone()
    if row is None:
        return None
    rows, columns, data = row
    return np.frombuffer(data or b"", np.float32).reshape(rows, columns)
