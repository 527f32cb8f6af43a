"""What the requests share: the settings of the server, its threads, its collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from hardnet.images import Pixels
from hardnet.web import objects
from hardnet.web.collection import Collection
from hardnet.web.guard import LOOPBACK
from hardnet.web.pictures import JPEG, Previews, Upload
from hardnet.web.stored_results import StoredResults
from hardnet.web.work import Jobs, Pool

MAX_UPLOAD = 64_000_000
"""Bytes of a request: two photos as cameras write them."""
QUEUE = 8
"""Requests that may wait for each thread that works."""
PICTURES = 256
"""Small pictures that may be asked for at a time: the grid of a page, of a few people."""


@dataclass(frozen=True)
class Settings:
    """How to serve.

    Attributes:
        index: folder of the index; None: there is nothing to search.
        roots: folders from which photos may be added.
        results: folder of stored benchmark results.
        descriptor: for an index that was made with a Python function.
        hosts: see :class:`~hardnet.web.guard.Guard`, like the following.
        any_address: see there.
        token: see there.
        max_upload: bytes of a request.
        workers: threads that work; by default one per core.
        queue: requests that may wait for each of them.
    """

    index: Path | None = None
    roots: Sequence[Path] = ()
    results: Path | None = None
    descriptor: str | None = None
    hosts: frozenset[str] = LOOPBACK
    any_address: bool = False
    token: str | None = None
    max_upload: int = MAX_UPLOAD
    workers: int | None = None
    queue: int = QUEUE


@dataclass
class State:
    """What the requests share."""

    settings: Settings
    pool: Pool
    pictures: Pool
    jobs: Jobs
    previews: Previews
    results: StoredResults
    collection: Collection | None

    def searched(self) -> Collection:
        """The collection.

        Raises:
            HTTPException: there is none.
        """
        if self.collection is None:
            raise HTTPException(404, "no index is served: start `hardnet serve INDEX`")
        return self.collection

    def source(self, upload: Upload | None, photo: str | None) -> Upload | Path:
        """Where the pixels of a request are: in it, or in a photo of the index."""
        if (upload is None) == (photo is None):
            raise HTTPException(422, "give either a file or the id of a photo of the index")
        if upload is not None:
            return upload
        collection = self.searched()
        return collection.file(collection.photo(photo or ""))

    def image(self, upload: Upload | None, photo: str | None) -> Pixels | Path:
        """The same, with the pixels of what is in the request."""
        source = self.source(upload, photo)
        return source.pixels() if isinstance(source, Upload) else source


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": objects.Problem, "description": words}
    for status, words in {
        400: "A photo cannot be read, or the work cannot be done.",
        401: "The token is missing.",
        403: "The request comes from the page of another site.",
        404: "There is no such photo, folder, job or results file.",
        408: "The request took too long to arrive.",
        409: "Another job is at work, or there is nothing to undo.",
        413: "The request has too many bytes, or a photo too many pixels.",
        421: "The host name is not this server's.",
        422: "A parameter is missing or out of range.",
        429: "Too much work at the moment; Retry-After says when to try again.",
    }.items()
}
"""What any request may be answered with, for the description of the API."""

IMAGE = {"content": {JPEG: {}}, "description": "A picture."}
FIGURE = {"content": {"image/png": {}}, "description": "A picture."}
