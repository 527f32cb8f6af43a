"""The application: the page, the API that it uses, and the server around both."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import hardnet
from hardnet.errors import HardnetError, InputError, MissingExtraError

try:
    import uvicorn
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
from hardnet.web.questions import add_matching, add_searching
from hardnet.web.state import MAX_PIXELS, PICTURES, PROBLEMS, Previews, Settings, State
from hardnet.web.stored_results import StoredResults
from hardnet.web.work import Jobs, Pool

STATIC = files("hardnet") / "web" / "static"


def make_app(settings: Settings) -> ASGIApp:
    """The guarded application."""
    workers = settings.workers or usable_cores()
    collection = None
    if settings.index is not None:
        collection = Collection(settings.index, settings.roots, settings.descriptor)
    pools = Pool(workers), Pool(max(workers // 2, 1))
    results = StoredResults(settings.results)
    state = State(settings, *pools, Jobs(), Previews(), results, collection)

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


def serve(settings: Settings, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, on any free port if it is 0; ``say`` is told the address of the page."""
    app = make_app(settings)
    listener = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = socket.gethostname()
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    say(f"{address}?token={settings.token}" if settings.token else address)
    say("stop with Ctrl-C")
    server(app).run([listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address, if that can be used."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise HardnetError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
        ) from error
    return listener


def server(app: object) -> uvicorn.Server:
    """Uvicorn around an application; it logs nothing but errors."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        ws="none",
        lifespan="on",
    )
    return uvicorn.Server(config)
