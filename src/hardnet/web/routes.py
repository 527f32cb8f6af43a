"""The requests: match, describe and search photos; show and change the collection; long work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from pydantic import AfterValidator

import hardnet
from hardnet import descriptors, detectors
from hardnet.features import Features, Orientation, extract
from hardnet.matching.matches import Strategy, match
from hardnet.retrieval.groups import to_jpeg
from hardnet.retrieval.query import Box
from hardnet.retrieval.search import DEFAULT_MODE, MODES
from hardnet.web import objects
from hardnet.web.collection import MAX_PIXELS, PREVIEW, QUALITY, THUMBNAIL, Upload, read_upload
from hardnet.web.state import State
from hardnet.web.work import Check, Job

MOST_KEYPOINTS, MOST_PIXELS_SIDE, MOST_HITS = 20_000, 4096, 500
JPEG = "image/jpeg"
STATIC = files("hardnet") / "web" / "static"

router = APIRouter()


async def _state(request: Request) -> State:
    state: State = request.app.state.shared
    return state


Shared = Annotated[State, Depends(_state)]


def _content(kind: str, words: str = "A picture.") -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {kind: {}}, "description": words}}


def _known(names: Callable[[], Sequence[str]], what: str) -> Any:
    """A text that must be one of the given names: a request never names a file or code."""

    def check(name: str) -> str:
        if name not in names():
            raise ValueError(f"no {what} '{name}': choose one of {', '.join(names())}")
        return name

    return AfterValidator(check)


DetectorName = Annotated[str, _known(detectors.names, "detector")]
DescriptorName = Annotated[str, _known(descriptors.available_names, "descriptor")]
ModeName = Annotated[str, _known(lambda: list(MODES), "mode")]
Id = Annotated[
    str | None, Form(max_length=64, description="A photo of the index, instead of a file.")
]


@dataclass(frozen=True)
class Describing:
    """How to describe the photos of a request."""

    detector: Annotated[DetectorName, Form()] = "dog"
    descriptor: Annotated[DescriptorName, Form()] = descriptors.DEFAULT
    keypoints: Annotated[int, Form(ge=1, le=MOST_KEYPOINTS)] = 2048
    max_size: Annotated[int, Form(ge=64, le=MOST_PIXELS_SIDE)] = 1600
    orientation: Annotated[Orientation, Form()] = "auto"

    def extract(self, source: Upload | Path) -> Features:
        if isinstance(source, Path):
            return extract(source, **vars(self))
        # Drop the pixels: with many waiting requests they would fill memory.
        return replace(extract(source.pixels(), **vars(self)), path=source.name, pixels=None)


@dataclass(frozen=True)
class Asked:
    """A query: a photo of the request or of the index, and the part to search for."""

    file: Annotated[UploadFile | None, File(description="The query.")] = None
    photo: Id = None
    box: Annotated[
        str | None,
        Form(
            max_length=100,
            description="x,y,width,height: search for this part only, in pixels of the photo.",
        ),
    ] = None

    def region(self) -> Box | None:
        if not self.box:
            return None
        try:
            x, y, width, height = (float(word) for word in self.box.split(","))
        except ValueError:
            raise HTTPException(422, f"box {self.box}: give x,y,width,height in pixels") from None
        return x, y, width, height


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
@router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
def page(request: Request) -> str:
    name = "docs.html" if request.url.path == "/docs" else "index.html"
    return (STATIC / name).read_text("utf-8")


@router.get("/info", response_model=objects.InfoAnswer)
def info(state: Shared) -> dict[str, Any]:
    """What this server can do, and which collection it has."""
    return {
        "version": hardnet.__version__,
        "collection": state.served and state.served.info(),
        "detectors": detectors.names(),
        "descriptors": descriptors.available_names(),
        "modes": list(MODES),
        "ratio": Strategy().ratio,
        "max_upload": state.settings.max_upload,
        "max_pixels": MAX_PIXELS,
        "results": bool(state.results.files()),
    }


@router.post("/match", response_model=objects.MatchAnswer)
async def match_photos(
    request: Request,
    state: Shared,
    describing: Annotated[Describing, Depends()],
    a: Annotated[UploadFile | None, File(description="First photo.")] = None,
    b: Annotated[UploadFile | None, File(description="Second photo.")] = None,
    photo_a: Id = None,
    photo_b: Id = None,
    ratio: Annotated[float, Form(gt=0, le=1)] = Strategy().ratio,
    model: Annotated[str, Form(pattern="^(auto|homography|fundamental)$")] = "auto",
    guided: Annotated[bool, Form()] = False,
) -> dict[str, Any]:
    """Match two photos and verify the matches geometrically."""
    strategy = Strategy(ratio=ratio, guided=guided)

    def work(check: Check) -> dict[str, Any]:
        sources = state.source(a, photo_a), state.source(b, photo_b)
        one = describing.extract(sources[0])
        check()
        other = describing.extract(sources[1])
        check()
        return match(one, other, model, strategy=strategy).to_json()  # type: ignore[arg-type]

    return await state.pool.run(request, work)


@router.post("/extract", response_model=objects.FeaturesAnswer)
async def extract_photo(
    request: Request,
    state: Shared,
    describing: Annotated[Describing, Depends()],
    file: Annotated[UploadFile | None, File(description="The photo.")] = None,
    photo: Id = None,
    vectors: Annotated[bool, Form(description="Also return the descriptors.")] = False,
) -> dict[str, Any]:
    """Detect and describe the keypoints of a photo."""

    def work(check: Check) -> dict[str, Any]:
        found = describing.extract(state.source(file, photo))
        check()
        return {
            "path": found.path,
            "size": found.image_size,
            "descriptor": found.descriptor,
            "orientation": found.orientation,
            "frames": found.frames.round(4).tolist(),
            "scores": found.scores.tolist(),
            "descriptors": found.descriptors.tolist() if vectors else None,
            "seconds": found.seconds,
        }

    return await state.pool.run(request, work)


@router.post("/preview", response_class=Response, responses=_content(JPEG))
async def preview_upload(
    request: Request, state: Shared, file: Annotated[UploadFile, File(description="The photo.")]
) -> Response:
    """A photo as JPEG, for formats that a browser cannot show (TIFF, PGM and others)."""

    def work(_: Check) -> Response:
        pixels = read_upload(file).pixels()
        return Response(to_jpeg(pixels, PREVIEW, QUALITY[PREVIEW]), media_type=JPEG)

    return await state.pictures.run(request, work)


@router.post("/search", response_model=objects.SearchAnswer)
async def search_photos(
    request: Request,
    state: Shared,
    asked: Annotated[Asked, Depends()],
    k: Annotated[int, Form(ge=1, le=MOST_HITS)] = 20,
    mode: Annotated[ModeName, Form()] = DEFAULT_MODE,
) -> dict[str, Any]:
    """Find the photos that show the same object or place as the query."""

    def work(check: Check) -> dict[str, Any]:
        source = state.source(asked.file, asked.photo)
        return state.collection.search(source, k, asked.region(), mode, check)

    return await state.pool.run(request, work)


@router.post("/explain", response_model=objects.ExplainAnswer)
async def explain_hit(
    request: Request,
    state: Shared,
    asked: Annotated[Asked, Depends()],
    hit: Annotated[str, Form(max_length=64, description="The id of the hit.")],
) -> dict[str, Any]:
    """Why a photo was found: the features it shares with the query, and those on one map."""

    def work(check: Check) -> dict[str, Any]:
        source = state.source(asked.file, asked.photo)
        return state.collection.explain(source, hit, asked.region(), check)

    return await state.pool.run(request, work)


@router.get("/photos", response_model=objects.PhotosAnswer)
def list_photos(
    state: Shared,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    text: Annotated[str, Query(max_length=200, description="A part of the path.")] = "",
) -> dict[str, Any]:
    """A part of the collection, sorted by path."""
    collection, wanted = state.collection, text.casefold()
    if not offset:
        collection.index.refresh()  # other programs may have changed it
    found = [p for p in collection.listing.photos.values() if wanted in p.path.casefold()]
    shown = [photo.to_json() for photo in found[offset : offset + limit]]
    return {"total": len(found), "offset": offset, "photos": shown}


@router.post("/photos", response_model=objects.JobFacts, status_code=202)
def add_folder(state: Shared, wanted: objects.AddRequest) -> Job:
    """Add a folder of photos; GET /jobs/{id}/events reports progress."""
    collection = state.collection
    folder = collection.folder(wanted.folder)
    return state.jobs.start("adding photos", lambda job: collection.add(folder, job))


@router.get("/photos/{id}", response_model=objects.PhotoFacts)
def one_photo(state: Shared, id: str) -> dict[str, Any]:
    """A photo of the index."""
    return state.collection.listing.photo(id).to_json()


@router.delete("/photos/{id}", response_model=objects.RemoveAnswer)
def remove_photo(state: Shared, id: str) -> dict[str, Any]:
    """Remove a photo from the index; its file is kept, and POST /undo restores it."""
    collection = state.collection
    return collection.remove(collection.listing.photo(id))


@router.post("/undo", response_model=objects.RemoveAnswer)
def undo_removal(state: Shared) -> dict[str, Any]:
    """Undo the last removal, until the index is compacted."""
    return state.collection.undo()


@router.post("/compact", response_model=objects.JobFacts, status_code=202)
def compact_index(state: Shared) -> Job:
    """Free the space of removed photos, which then cannot be restored."""
    return state.jobs.start("compacting", state.collection.compact)


@router.get("/folders", response_model=list[objects.FolderFacts])
def list_folders(state: Shared) -> list[dict[str, Any]]:
    """The folders from which photos may be added."""
    found = state.collection.folders().items()
    return [{"id": id, "path": str(path), "images": count} for id, (path, count) in found]


@router.get("/photos/{id}/thumbnail", response_class=Response, responses=_content(JPEG))
@router.get("/photos/{id}/preview", response_class=Response, responses=_content(JPEG))
async def small(request: Request, state: Shared, id: str) -> Response:
    """A photo of the index as JPEG: a thumbnail, or at screen size."""
    size = THUMBNAIL if request.url.path.endswith("/thumbnail") else PREVIEW

    def work(_: Check) -> Response:
        photo = state.collection.listing.photo(id)
        headers = {"etag": photo.tag(size), "cache-control": "private, max-age=3600"}
        if request.headers.get("if-none-match") == photo.tag(size):
            return Response(status_code=304, headers=headers)
        return Response(state.preview(photo, size), media_type=JPEG, headers=headers)

    return await state.pictures.run(request, work)


@router.get("/jobs/{id}", response_model=objects.JobFacts)
def job_state(state: Shared, id: str) -> Job:
    """How far a job is."""
    return state.jobs[id]


EVENTS = "text/event-stream"


@router.get(
    "/jobs/{id}/events",
    response_class=Response,
    responses=_content(EVENTS, "Events: JobFacts as JSON."),
)
async def job_events(state: Shared, id: str) -> StreamingResponse:
    """The same as server-sent events: progress, and at the end done, stopped or failed."""
    headers = {"cache-control": "no-store"}
    return StreamingResponse(state.jobs[id].events(), media_type=EVENTS, headers=headers)


@router.delete("/jobs/{id}", response_model=objects.JobFacts)
def stop_job(state: Shared, id: str) -> Job:
    """Stop a job; what it has finished is kept."""
    job = state.jobs[id]
    job.stop.set()
    return job


@router.get("/groups", response_model=objects.GroupsAnswer)
def groups(state: Shared) -> dict[str, Any]:
    """Copies, crops and scenes, as the last POST /groups found them."""
    if (found := state.collection.found_groups) is None:
        raise HTTPException(404, "the photos have not been compared yet: use POST /groups")
    return found


@router.post("/groups", response_model=objects.JobFacts, status_code=202)
def find_groups(
    state: Shared, mirrored: Annotated[bool, Query(description="Also find mirror images.")] = True
) -> Job:
    """Compare all photos with each other; after the first time, only new ones."""
    collection = state.collection
    return state.jobs.start("comparing photos", lambda job: collection.groups(job, mirrored))


@router.get("/results", response_model=list[objects.ResultsEntry])
def list_results(state: Shared) -> list[dict[str, Any]]:
    """The stored benchmark results."""
    return state.results.entries()


@router.get("/results/{name}", response_model=objects.ResultsAnswer)
def results(state: Shared, name: str) -> dict[str, Any]:
    """The tables of a results file, and the names of its figures."""
    return state.results.get(name)


@router.get("/results/{name}/{figure}", response_class=Response, responses=_content("image/png"))
async def figure(request: Request, state: Shared, name: str, figure: str) -> Response:
    """A figure of a results file."""
    data = await state.pictures.run(request, lambda _: state.results.figure(name, figure))
    return Response(data, media_type="image/png")
