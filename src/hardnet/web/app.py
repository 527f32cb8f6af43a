"""The application: the page, and the API that it uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import hardnet
from hardnet.errors import HardnetError, InputError, MissingExtraError

try:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.openapi.utils import get_openapi
    from fastapi.responses import HTMLResponse, JSONResponse
    from fastapi.staticfiles import StaticFiles
    from starlette.types import ASGIApp
except ImportError as error:
    raise MissingExtraError("fastapi", "web") from error

from hardnet import descriptors, detectors
from hardnet.matching.matches import Strategy
from hardnet.retrieval.search import MODES
from hardnet.threads import usable_cores
from hardnet.web import objects
from hardnet.web.collection import Collection
from hardnet.web.guard import Guard, Lane
from hardnet.web.library import add_groups, add_jobs, add_photos, add_results
from hardnet.web.pictures import MAX_PIXELS, Previews
from hardnet.web.questions import add_matching, add_searching
from hardnet.web.state import PICTURES, PROBLEMS, Settings, State
from hardnet.web.stored_results import StoredResults
from hardnet.web.work import Jobs, Pool

STATIC = files("hardnet") / "web" / "static"


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
    for add in PARTS:
        add(app, state)
    app.mount("/static", StaticFiles(directory=str(STATIC)))
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    at_once = workers * (1 + settings.queue)
    lanes = [
        Lane("POST", ("/match", "/extract", "/search", "/explain"), at_once),
        Lane("POST", ("/preview",), at_once),
        Lane("GET", ("/photos/", "/results/"), PICTURES),
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


def _pages(app: FastAPI, state: State) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return (STATIC / "index.html").read_text("utf-8")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs() -> str:
        return (STATIC / "docs.html").read_text("utf-8")

    @app.get("/info", response_model=objects.InfoAnswer, responses=PROBLEMS)
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


PARTS = (_pages, add_matching, add_searching, add_photos, add_jobs, add_groups, add_results)
