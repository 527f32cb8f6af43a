"""The application: the page, the API that it uses, and the server around both."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

import hardnet
from hardnet.errors import HardnetError, InputError
from hardnet.threads import usable_cores
from hardnet.web import objects
from hardnet.web.collection import Collection
from hardnet.web.guard import Guard, Lane
from hardnet.web.routes import STATIC, router
from hardnet.web.state import Settings, State, StoredResults
from hardnet.web.work import Pool

PICTURES = 256
"""Thumbnails that may be requested at a time: the page's grid, for a few users."""


def make_app(settings: Settings) -> ASGIApp:
    """The guarded application."""
    workers = settings.workers or usable_cores()
    collection = None
    if settings.index is not None:
        collection = Collection(settings.index, settings.roots, settings.descriptor)
    pools = Pool(workers, "hardnet-serve"), Pool(max(workers // 2, 1), "hardnet-serve")
    state = State(settings, *pools, StoredResults(settings.results), collection)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        state.jobs.stop()

    app = FastAPI(
        title="hardnet",
        version=hardnet.__version__,
        summary="Match and find photos.",
        docs_url=None,  # these pages would load scripts from other servers
        redoc_url=None,
        responses=objects.PROBLEMS,
        lifespan=lifespan,
    )
    app.state.shared = state
    app.add_exception_handler(HardnetError, _explain_error)
    app.add_exception_handler(RequestValidationError, _explain_validation)
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=str(STATIC)))
    at_once = workers * (1 + settings.queue)
    lanes = [
        Lane("POST", ("/match", "/extract", "/search", "/explain"), at_once),
        Lane("POST", ("/preview",), at_once),
        Lane("GET", ("/photos/", "/results/"), PICTURES),
    ]
    return Guard(app, settings, lanes)


async def _explain_error(_: Request, error: Exception) -> JSONResponse:
    status = 422 if isinstance(error, InputError) else 400
    return JSONResponse({"detail": str(error)}, status)


async def _explain_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return JSONResponse({"detail": "; ".join(lines)}, 422)


def serve(settings: Settings, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, on any free port if it is 0; ``say`` gets the address of the page."""
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
    """A socket on an address, or an error if it cannot be used."""
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
