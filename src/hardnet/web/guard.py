"""Checks on a request before its body is read: sender, origin and size.

A page of another site can send requests to a server on this machine, and can point its own name to
this machine's address (DNS rebinding). So the name in ``Host`` must be one of ours, the ``Origin``
must be our own page, and other pages may not use the answers. Other machines also need a token.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hardnet.web.state import Settings

COOKIE = "hardnet-token"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
"""Headers of every answer: the page runs only its own scripts and contacts no other server."""

BODY_SECONDS = 60.0
"""The body of a request must arrive within this time."""
RETRY_SECONDS = 2
"""When clients should try again after a refusal because of too much work."""
SMALL_BODY = 1 << 20
"""Bytes of a request without a photo."""


@dataclass
class Lane:
    """Requests of one kind of work, running or waiting."""

    method: str = ""  # of the requests
    paths: tuple[str, ...] = ()  # prefixes of their paths
    limit: float = math.inf  # at the same time
    busy: int = 0  # current number


class Guard:
    """The outermost layer of the application.

    With the setting ``any_address``, every numeric host address is accepted: others can make a name
    point here, but not an address.
    """

    def __init__(self, app: ASGIApp, settings: Settings, lanes: Collection[Lane]) -> None:
        self.app, self._settings, self._lanes, self._free = app, settings, lanes, Lane()
        self._hosts = {host.lower() for host in settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope)
        has_photos = request.headers.get("content-type", "").startswith("multipart/form-data")
        body = _Body(receive, self._settings.max_upload if has_photos else SMALL_BODY)
        of_kind = (lane for lane in self._lanes if lane.method == scope["method"])
        lane = next((one for one in of_kind if scope["path"].startswith(one.paths)), self._free)
        refusal = self._refusal(request, body.limit)
        if refusal is None and lane.busy >= lane.limit:
            await body.drain()  # a browser reads the answer only after sending everything
            words = f"too much work at the moment: try again in {RETRY_SECONDS} seconds"
            refusal = _error(429, words, {"retry-after": str(RETRY_SECONDS)})
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        lane.busy += 1
        try:
            await self.app(scope, body, guarded)
        finally:
            lane.busy -= 1

    def _refusal(self, request: Request, limit: int) -> Response | None:
        headers, path = request.headers, request.scope["path"]
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _error(421, f"this server is not called {host!r}: open the address it printed")
        if not _is_own_page(request, host):
            return _error(403, "pages of other sites may not use this server")
        size = headers.get("content-length", "0")
        if size.isdecimal() and int(size) > limit:
            return _error(413, _size_words(limit), {"connection": "close"})
        if self._settings.token is None:
            return None
        given = request.query_params.get("token", "")
        if request.method == "GET" and self._is_token(given):
            rest = [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
            target = "/" + path.lstrip("/")  # "//name" would be another server
            answer = RedirectResponse(target + (f"?{urlencode(rest)}" if rest else ""), 303)
            answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", path="/")
            return answer
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        by_header = kind.lower() == "bearer" and self._is_token(bearer.strip())
        if by_header or self._is_token(request.cookies.get(COOKIE, "")):
            return None
        words = "a token is needed: open the address that `hardnet serve` printed"
        if path == "/":
            return PlainTextResponse(words, 401)
        return _error(401, words, {"www-authenticate": "Bearer"})

    def _is_token(self, given: str) -> bool:
        token = self._settings.token or ""
        return bool(token) and secrets.compare_digest(given.encode(), token.encode())

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
            if name in self._hosts:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._settings.any_address


def _is_own_page(request: Request, host: str) -> bool:
    """Whether a request comes from our page, a person or a program, not from another site."""
    headers, origin = request.headers, request.headers.get("origin")
    # An origin is exactly SCHEME://HOST, and need not even be an address.
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return False
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    # Any site may link to the page; it may request nothing else.
    shown_whole = headers.get("sec-fetch-dest", "document") == "document"
    link = headers.get("sec-fetch-mode") == "navigate" and shown_whole
    return link and request.method == "GET" and request.scope["path"] in ("/", "/docs")


def _error(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, headers)


def _size_words(limit: int) -> str:
    return f"the request has more than {limit / 1e6:.0f} MB: send smaller photos (--max-upload)"


class _Body:
    """The body of a request, limited to ``limit`` bytes and to a time."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self.limit, self._left = receive, limit, limit
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()  # only a disconnect can follow
        rest = self._deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(rest, 0.001))
        except TimeoutError:
            words = f"the request did not arrive within {BODY_SECONDS:g} seconds"
            raise HTTPException(408, words, {"connection": "close"}) from None
        self._whole = not message.get("more_body", False)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, _size_words(self.limit), {"connection": "close"})
        return message

    async def drain(self) -> None:
        with suppress(HTTPException):
            while not self._whole:
                await self()
