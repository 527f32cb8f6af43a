"""The application: the page, and the API that it uses."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import hardnet
from hardnet.errors import HardnetError, InputError, MissingExtraError

try:
    from fastapi import Depends, FastAPI, File, Form, HTTPException, Query, Request, UploadFile
    from fastapi.exceptions import RequestValidationError
    from fastapi.openapi.utils import get_openapi
    from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
    from fastapi.staticfiles import StaticFiles
    from pydantic import AfterValidator
    from starlette.types import ASGIApp
except ImportError as error:
    raise MissingExtraError("fastapi", "web") from error

from hardnet import descriptors, detectors
from hardnet.features import Features, Orientation, extract
from hardnet.images import Pixels
from hardnet.matching.matches import Strategy, match
from hardnet.retrieval.query import Box
from hardnet.retrieval.search import DEFAULT_MODE, MODES
from hardnet.threads import usable_cores
from hardnet.web import objects
from hardnet.web.collection import Collection, Photo, id_of
from hardnet.web.guard import LOOPBACK, Guard, Lane
from hardnet.web.pictures import (
    JPEG,
    MAX_PIXELS,
    PREVIEW,
    THUMBNAIL,
    Previews,
    Upload,
    read_upload,
    to_jpeg,
)
from hardnet.web.stored_results import StoredResults
from hardnet.web.work import Check, Jobs, Pool

MAX_UPLOAD = 64_000_000
"""Bytes of a request: two photos as cameras write them."""
QUEUE = 8
"""Requests that may wait for each thread that works."""
PICTURES = 256
"""Small pictures that may be asked for at a time: the grid of a page, of a few people."""
MOST_KEYPOINTS, MOST_PIXELS_SIDE, MOST_HITS = 20_000, 4096, 500

STATIC = files("hardnet") / "web" / "static"


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


def make_app(settings: Settings) -> ASGIApp:
    """The guarded application.

    Raises:
        HardnetError: the index cannot be opened.
    """
    workers = settings.workers or usable_cores()
    state = State(
        settings,
        Pool(workers),
        Pool(max(workers // 2, 1)),
        Jobs(),
        Previews(),
        StoredResults(settings.results),
        None
        if settings.index is None
        else Collection(settings.index, settings.roots, settings.descriptor),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.pool.close()
        state.pictures.close()
        state.jobs.stop()

    app = FastAPI(
        title="hardnet",
        version=hardnet.__version__,
        summary="Match and find photos.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.shared = state
    app.add_exception_handler(HardnetError, _explain_error)
    app.add_exception_handler(RequestValidationError, _explain_validation)
    for add in (_pages, _matching, _searching, _photos, _jobs, _groups, _results):
        add(app, state)
    app.mount("/static", StaticFiles(directory=str(STATIC)))
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    lanes = [
        Lane(
            {"POST"}, ("/match", "/extract", "/search", "/explain"), workers * (1 + settings.queue)
        ),
        Lane({"POST"}, ("/preview",), workers * (1 + settings.queue)),
        Lane({"GET"}, ("/photos/",), PICTURES, ("/thumbnail", "/preview")),
    ]
    return Guard(
        app,
        hosts=settings.hosts,
        any_address=settings.any_address,
        token=settings.token,
        max_bytes=settings.max_upload,
        lanes=lanes,
    )


async def _explain_error(_: Request, error: Exception) -> JSONResponse:
    status = 422 if isinstance(error, InputError) else 400
    return JSONResponse({"detail": str(error)}, status)


async def _explain_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return JSONResponse({"detail": "; ".join(lines)}, 422)


def _schema(app: FastAPI) -> dict[str, Any]:
    if not app.openapi_schema:
        made = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        # Our errors are one sentence, not FastAPI's list.
        for unused in ("HTTPValidationError", "ValidationError"):
            made.get("components", {}).get("schemas", {}).pop(unused, None)
        app.openapi_schema = made
    return app.openapi_schema


_PROBLEMS: dict[int | str, dict[str, Any]] = {
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


def _known(names: Callable[[], Sequence[str]], what: str) -> Any:
    """A text that must be one of some names: a request never names a file or code."""

    def check(name: str) -> str:
        if name not in names():
            raise ValueError(f"no {what} '{name}': choose one of {', '.join(names())}")
        return name

    return AfterValidator(check)


DetectorName = Annotated[str, _known(detectors.names, "detector")]
DescriptorName = Annotated[str, _known(descriptors.available_names, "descriptor")]
ModeName = Annotated[str, _known(lambda: list(MODES), "mode")]
Id = Annotated[
    str | None, Form(max_length=64, description="A photo of the index, in place of a file.")
]


class Describing:
    """How photos of a request are described."""

    def __init__(
        self,
        detector: Annotated[DetectorName, Form()] = "dog",
        descriptor: Annotated[DescriptorName, Form()] = "hardnet",
        keypoints: Annotated[int, Form(ge=1, le=MOST_KEYPOINTS)] = 2048,
        max_size: Annotated[int, Form(ge=64, le=MOST_PIXELS_SIDE)] = 1600,
        orientation: Annotated[Orientation, Form()] = "auto",
    ) -> None:
        self.detector, self.descriptor, self.keypoints = detector, descriptor, keypoints
        self.max_size, self.orientation = max_size, orientation

    def extract(self, source: Upload | Path) -> Features:
        """The features of a photo."""
        image: Pixels | Path = source.pixels() if isinstance(source, Upload) else source
        found = extract(
            image,
            self.detector,
            self.descriptor,
            self.keypoints,
            self.max_size,
            orientation=self.orientation,
        )
        if isinstance(source, Upload):
            # The pixels are not needed again; while many wait, they would fill memory.
            found = dataclasses.replace(found, path=source.name, pixels=None)
        return found


def _pages(app: FastAPI, state: State) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return (STATIC / "index.html").read_text("utf-8")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs() -> str:
        return (STATIC / "docs.html").read_text("utf-8")

    @app.get("/info", response_model=objects.InfoAnswer, responses=_PROBLEMS)
    def info() -> dict[str, Any]:
        """What this server can do, and which collection it has."""
        collection = state.collection
        return {
            "version": hardnet.__version__,
            "collection": None if collection is None else collection.info(),
            "detectors": detectors.names(),
            "descriptors": descriptors.available_names(),
            "modes": list(MODES),
            "ratio": Strategy().ratio,
            "max_upload": state.settings.max_upload,
            "max_pixels": MAX_PIXELS,
            "results": bool(state.results),
        }


def _matching(app: FastAPI, state: State) -> None:
    @app.post("/match", response_model=objects.MatchAnswer, responses=_PROBLEMS)
    async def match_photos(
        request: Request,
        describing: Annotated[Describing, Depends()],
        a: Annotated[UploadFile | None, File(description="First photo.")] = None,
        b: Annotated[UploadFile | None, File(description="Second photo.")] = None,
        photo_a: Id = None,
        photo_b: Id = None,
        ratio: Annotated[float, Form(gt=0, le=1)] = Strategy().ratio,
        model: Annotated[str, Form(pattern="^(auto|homography|fundamental)$")] = "auto",
        guided: Annotated[bool, Form()] = False,
    ) -> dict[str, Any]:
        """Match two photos and verify the matches by the geometry between them."""
        first = state.source(await read_upload(a), photo_a)
        second = state.source(await read_upload(b), photo_b)
        strategy = Strategy(ratio=ratio, guided=guided)

        def work(check: Check) -> dict[str, Any]:
            one = describing.extract(first)
            check()
            other = describing.extract(second)
            check()
            return match(one, other, model, strategy=strategy).to_json()  # type: ignore[arg-type]

        return await state.pool.run(request, work)

    @app.post("/extract", response_model=objects.FeaturesAnswer, responses=_PROBLEMS)
    async def extract_photo(
        request: Request,
        describing: Annotated[Describing, Depends()],
        file: Annotated[UploadFile | None, File(description="The photo.")] = None,
        photo: Id = None,
        vectors: Annotated[bool, Form(description="Also give the descriptors.")] = False,
    ) -> dict[str, Any]:
        """Detect and describe the keypoints of a photo."""
        source = state.source(await read_upload(file), photo)

        def work(check: Check) -> dict[str, Any]:
            found = describing.extract(source)
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

    @app.post("/preview", response_class=Response, responses={**_PROBLEMS, 200: _IMAGE})
    async def preview_upload(
        request: Request, file: Annotated[UploadFile, File(description="The photo.")]
    ) -> Response:
        """A photo as JPEG, for pictures that a browser cannot show (TIFF, PGM and others)."""
        upload = await read_upload(file)
        assert upload is not None
        data = await state.pictures.run(request, lambda _: to_jpeg(upload.pixels(), PREVIEW))
        return Response(data, media_type=JPEG)


_IMAGE = {"content": {JPEG: {}}, "description": "A picture."}
_FIGURE = {"content": {"image/png": {}}, "description": "A picture."}


def _box(text: str | None) -> Box | None:
    """A box as texts have it, x,y,width,height."""
    if not text:
        return None
    try:
        x, y, width, height = (float(word) for word in text.split(","))
    except ValueError:
        raise HTTPException(422, f"box {text}: give x,y,width,height in pixels") from None
    return x, y, width, height


BoxText = Annotated[
    str | None,
    Form(max_length=100, description="x,y,width,height: only this part of it, in its pixels."),
]


def _searching(app: FastAPI, state: State) -> None:
    @app.post("/search", response_model=objects.SearchAnswer, responses=_PROBLEMS)
    async def search_photos(
        request: Request,
        file: Annotated[UploadFile | None, File(description="The query.")] = None,
        photo: Id = None,
        box: BoxText = None,
        k: Annotated[int, Form(ge=1, le=MOST_HITS)] = 20,
        mode: Annotated[ModeName, Form()] = DEFAULT_MODE,
    ) -> dict[str, Any]:
        """Find the photos that show the same object or place as the query."""
        collection, region = state.searched(), _box(box)
        source = state.source(await read_upload(file), photo)

        def work(check: Check) -> dict[str, Any]:
            image = source.pixels() if isinstance(source, Upload) else source
            check()
            answer = collection.search(image, k, region, mode, check)
            if isinstance(source, Upload):
                answer["query"][0]["path"] = source.name
            return answer

        return await state.pool.run(request, work)

    @app.post("/explain", response_model=objects.ExplainAnswer, responses=_PROBLEMS)
    async def explain_hit(
        request: Request,
        hit: Annotated[str, Form(max_length=64, description="The id of the hit.")],
        file: Annotated[UploadFile | None, File(description="The query.")] = None,
        photo: Id = None,
        box: BoxText = None,
    ) -> dict[str, Any]:
        """Why a photo was found: what it shares with the query, and what agrees on one map."""
        collection, region = state.searched(), _box(box)
        found = collection.photo(hit)
        source = state.source(await read_upload(file), photo)

        def work(check: Check) -> dict[str, Any]:
            image = source.pixels() if isinstance(source, Upload) else source
            check()
            answer = collection.explain(image, found, region, check)
            if isinstance(source, Upload):
                answer["query"]["path"] = source.name
            return answer

        return await state.pool.run(request, work)


def _photos(app: FastAPI, state: State) -> None:
    @app.get("/photos", response_model=objects.PhotosAnswer, responses=_PROBLEMS)
    def list_photos(
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        text: Annotated[str, Query(max_length=200, description="A part of the path.")] = "",
    ) -> dict[str, Any]:
        """A part of the collection, sorted by path."""
        collection = state.searched()
        if not offset:
            collection.index.refresh()  # other programs may have changed it
        wanted = text.casefold()
        found = [p for p in collection.listing.photos.values() if wanted in p.path.casefold()]
        shown = [photo.to_json() for photo in found[offset : offset + limit]]
        return {"total": len(found), "offset": offset, "photos": shown}

    @app.post("/photos", response_model=objects.JobFacts, status_code=202, responses=_PROBLEMS)
    def add_folder(wanted: objects.AddRequest) -> dict[str, Any]:
        """Add a folder of photos; GET /jobs/{id}/events tells how far it is."""
        collection = state.searched()
        folder = collection.folder(wanted.folder)
        return state.jobs.start("adding photos", lambda job: collection.add(folder, job)).to_json()

    @app.get("/photos/{id}", response_model=objects.PhotoFacts, responses=_PROBLEMS)
    def one_photo(id: str) -> dict[str, Any]:
        """A photo of the index."""
        return state.searched().photo(id).to_json()

    @app.delete("/photos/{id}", response_model=objects.RemoveAnswer, responses=_PROBLEMS)
    def remove_photo(id: str) -> dict[str, Any]:
        """Remove a photo from the index; its file stays, and POST /undo takes it back."""
        collection = state.searched()
        return collection.remove(collection.photo(id))

    @app.post("/undo", response_model=objects.RemoveAnswer, responses=_PROBLEMS)
    def undo_removal() -> dict[str, Any]:
        """Undo the last removal, until the index is compacted."""
        return state.searched().undo()

    @app.post("/compact", response_model=objects.JobFacts, status_code=202, responses=_PROBLEMS)
    def compact_index() -> dict[str, Any]:
        """Free the room of removed photos, which cannot come back then."""
        return state.jobs.start("compacting", state.searched().compact).to_json()

    @app.get("/folders", response_model=list[objects.FolderFacts], responses=_PROBLEMS)
    def list_folders() -> list[dict[str, Any]]:
        """The folders from which photos may be added."""
        found = state.searched().folders().items()
        return [{"id": id, "path": str(path), "images": count} for id, (path, count) in found]

    async def small(request: Request, id: str, size: int) -> Response:
        collection = state.searched()
        photo: Photo = collection.photo(id)
        tag = f'"{id_of(f"{photo.path} {photo.state} {size}")}"'
        headers = {"etag": tag, "cache-control": "private, max-age=3600"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        path = collection.file(photo)
        data = await state.pictures.run(request, lambda _: state.previews.get(path, size))
        return Response(data, media_type=JPEG, headers=headers)

    given = {**_PROBLEMS, 200: _IMAGE}

    @app.get("/photos/{id}/thumbnail", response_class=Response, responses=given)
    async def thumbnail(request: Request, id: str) -> Response:
        """A photo of the index, small."""
        return await small(request, id, THUMBNAIL)

    @app.get("/photos/{id}/preview", response_class=Response, responses=given)
    async def preview(request: Request, id: str) -> Response:
        """A photo of the index, as large as a screen."""
        return await small(request, id, PREVIEW)


def _jobs(app: FastAPI, state: State) -> None:
    @app.get("/jobs/{id}", response_model=objects.JobFacts, responses=_PROBLEMS)
    def job_state(id: str) -> dict[str, Any]:
        """How far a job is."""
        return state.jobs.get(id).to_json()

    events = {"content": {"text/event-stream": {}}, "description": "Events: JobFacts as JSON."}

    @app.get("/jobs/{id}/events", response_class=Response, responses={**_PROBLEMS, 200: events})
    async def job_events(id: str) -> StreamingResponse:
        """The same as server-sent events: progress, and at the end done, stopped or failed."""
        job = state.jobs.get(id)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(job.events(), media_type="text/event-stream", headers=headers)

    @app.delete("/jobs/{id}", response_model=objects.JobFacts, responses=_PROBLEMS)
    def stop_job(id: str) -> dict[str, Any]:
        """Stop a job; what it has finished is kept."""
        job = state.jobs.get(id)
        job.stop()
        return job.to_json()


def _groups(app: FastAPI, state: State) -> None:
    @app.get("/groups", response_model=objects.GroupsAnswer, responses=_PROBLEMS)
    def groups() -> dict[str, Any]:
        """Copies, crops and scenes, as the last POST /groups found them."""
        found = state.searched().found_groups
        if found is None:
            raise HTTPException(404, "the photos are not compared yet: POST /groups does it")
        return found

    @app.post("/groups", response_model=objects.JobFacts, status_code=202, responses=_PROBLEMS)
    def find_groups(
        mirrored: Annotated[bool, Query(description="Also look for mirror images.")] = True,
    ) -> dict[str, Any]:
        """Compare all photos with each other; only new ones if it was done before."""
        collection = state.searched()
        job = state.jobs.start("comparing photos", lambda job: collection.groups(job, mirrored))
        return job.to_json()


def _results(app: FastAPI, state: State) -> None:
    @app.get("/results", response_model=list[objects.ResultsEntry], responses=_PROBLEMS)
    def list_results() -> list[dict[str, Any]]:
        """The stored benchmark results."""
        return state.results.entries()

    @app.get("/results/{name}", response_model=objects.ResultsAnswer, responses=_PROBLEMS)
    def results(name: str) -> dict[str, Any]:
        """The tables of a results file, and the names of its figures."""
        return state.results.get(name)

    @app.get(
        "/results/{name}/{figure}",
        response_class=Response,
        responses={**_PROBLEMS, 200: _FIGURE},
    )
    async def figure(request: Request, name: str, figure: str) -> Response:
        """A figure of a results file."""
        data = await state.pictures.run(request, lambda _: state.results.figure(name, figure))
        return Response(data, media_type="image/png")
