"""Input and output of the API: the objects that commands print with --json, typed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Pair = tuple[float, float, float, float]
"""x, y in the first image and x, y in the second, in pixels of the originals."""


class ImageFacts(BaseModel):
    """One image of a match."""

    path: str | None = Field(description="Name of the photo.")
    size: tuple[int, int] = Field(description="Width and height of the upright original.")
    keypoints: int


class GeometryFacts(BaseModel):
    """The geometry that the inliers fit."""

    kind: str | None = Field(description="homography, fundamental, or null: nothing is verified.")
    model: list[list[float]] | None = Field(description="3x3, from pixels of a to pixels of b.")
    mirrored: bool = Field(description="One photo is a mirror image of the other.")


class MatchAnswer(BaseModel):
    """Two matched photos; the object of `hardnet match --json`."""

    images: list[ImageFacts]
    orientation: str
    geometry: GeometryFacts
    matches: list[Pair] = Field(description="x1, y1, x2, y2, best first.")
    inliers: list[bool] = Field(description="Which matches fit the geometry.")
    seconds: dict[str, float] = Field(description="Time per stage.")


class FeaturesAnswer(BaseModel):
    """The keypoints of one photo."""

    path: str | None
    size: tuple[int, int]
    descriptor: str
    orientation: str
    frames: list[tuple[tuple[float, float, float], tuple[float, float, float]]] = Field(
        description="One 2x3 map per keypoint, from the patch square [-1, 1]² to pixels."
    )
    scores: list[float]
    descriptors: list[list[float]] | None = Field(description="One row per keypoint, if requested.")
    seconds: dict[str, float]


class QueryFacts(BaseModel):
    """What was searched for."""

    path: str | None
    size: tuple[int, int]
    features: int
    box: tuple[float, float, float, float] | None


class HitFacts(BaseModel):
    """One photo that was found."""

    path: str
    score: float
    inliers: int
    verified: bool
    transform: list[list[float]] | None = Field(description="2x3, query pixels to hit pixels.")
    region: list[tuple[float, float]] | None = Field(description="The query's outline in the hit.")
    view: int
    id: str | None = Field(description="Id of the photo, for other requests.")
    size: tuple[int, int] | None = Field(description="Width and height of the photo.")


class SearchAnswer(BaseModel):
    """The hits of a search, best first; the object of `hardnet search --json`, with ids."""

    index: str
    images: int
    mode: str
    query: list[QueryFacts]
    hits: list[HitFacts]
    seconds: dict[str, float]
    missing: list[str]


class PhotoFacts(BaseModel):
    """One photo of the collection."""

    id: str
    path: str
    name: str = Field(description="Last parts of the path, for display.")
    size: tuple[int, int]
    features: int = Field(description="Features of the photo in the index.")


class ExplainAnswer(PhotoFacts):
    """Why a photo is a hit: the features it shares with the query, and those that fit one map."""

    query: QueryFacts
    shared: int = Field(description="Pairs with the same visual word and close signatures.")
    inliers: int = Field(description="Pairs that fit one affine map.")
    verified: bool = Field(description="More inliers than chance explains.")
    transform: list[list[float]] | None
    pairs: list[Pair] = Field(description="The inliers: x, y in the query, x, y in the photo.")


class PhotosAnswer(BaseModel):
    """A part of the collection, sorted by path."""

    total: int = Field(description="Photos that match the text.")
    offset: int
    photos: list[PhotoFacts]


class RemoveAnswer(BaseModel):
    """The result of a removal or of undoing one; the object of `hardnet index remove --json`."""

    index: str
    removed: int = Field(description="Number removed; negative if photos were restored.")
    images: int = Field(description="Photos in the index now.")
    undo: int = Field(description="Removals that can be undone.")


class FolderFacts(BaseModel):
    """A folder from which photos may be added."""

    id: str
    path: str
    images: int = Field(description="Images directly in it.")


class AddRequest(BaseModel):
    """Which folder to add."""

    folder: str = Field(description="Id of a folder from GET /folders.", max_length=64)


class JobFacts(BaseModel):
    """Work that takes longer than a request; GET /jobs/{id}/events reports its progress."""

    id: str
    kind: str
    state: Literal["running", "done", "stopped", "failed"]
    what: str
    done: int
    total: int
    result: Any = None
    problem: str | None = None


class InfoAnswer(BaseModel):
    """What this server can do."""

    version: str
    collection: dict[str, Any] | None = Field(
        description="The object of `hardnet index info --json`, and the removals to undo."
    )
    detectors: list[str]
    descriptors: list[str]
    modes: list[str]
    ratio: float = Field(description="Default of the ratio test.")
    max_upload: int = Field(description="Largest request in bytes.")
    max_pixels: int = Field(description="Largest uploaded photo in pixels.")
    results: bool = Field(description="Whether there are stored benchmark results.")


class PairFacts(BaseModel):
    """Two photos of the same thing, as in `hardnet groups --json`, with ids and points."""

    a: str
    b: str
    kind: str
    inliers: int
    transform: list[list[float]] = Field(description="2x3, pixels of a to pixels of b.")
    overlap: tuple[float, float] = Field(description="Share of a that b shows, then of b.")
    ids: tuple[str | None, str | None]
    points: list[Pair] = Field(description="Some of the inliers: x, y in a, x, y in b.")


class GroupFacts(BaseModel):
    """Photos that belong together."""

    kind: str
    photos: list[str]
    best: str = Field(description="The photo to keep if only one is kept.")
    ids: list[str | None]


class GroupsAnswer(BaseModel):
    """The groups of the collection; the object of `hardnet groups --json`, and more."""

    pairs: list[PairFacts]
    groups: list[GroupFacts]
    photos: int
    compared: int
    removable: list[str] = Field(description="Copies that are not the best of their group.")
    unread: dict[str, str]


class TableFacts(BaseModel):
    """A table of stored results; ** around a number marks the best."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]


class ResultsEntry(BaseModel):
    """A results file."""

    name: str
    kind: str
    title: str


class ResultsAnswer(ResultsEntry):
    """The tables and figures of a results file."""

    command: str | None
    tables: list[TableFacts]
    figures: list[str]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": words}
    for status, words in {
        400: "A photo cannot be read, or the work cannot be done.",
        401: "The token is missing.",
        403: "The request comes from the page of another site.",
        404: "There is no such photo, folder, job or results file.",
        408: "The request took too long to arrive.",
        409: "Another job is running, or there is nothing to undo.",
        413: "The request has too many bytes, or a photo too many pixels.",
        421: "The host name is not this server's.",
        422: "A parameter is missing or out of range.",
        429: "Too much work at the moment; Retry-After says when to try again.",
    }.items()
}
"""Errors that any request may get, for the description of the API."""
