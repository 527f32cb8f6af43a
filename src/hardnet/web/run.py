"""Start and stop the server."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from hardnet.errors import HardnetError
from hardnet.web.app import make_app
from hardnet.web.state import Settings


def serve(settings: Settings, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C.

    Args:
        settings: what is served.
        host: address to listen on.
        port: 0 for any that is free.
        say: told the address of the page.

    Raises:
        HardnetError: the address cannot be used.
    """
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
    """A socket on an address.

    Raises:
        HardnetError: it cannot be used.
    """
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
