"""What a request must be before anything of it is read: who asks, from where, how much.

A page of another site can send requests to a server on this machine, and can give its own name this
machine's address (DNS rebinding). So the name in ``Host`` must be one of ours, the ``Origin`` must
be our own page, and answers may not be used by other pages. From any other machine a token is
needed as well.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "hardnet-token"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

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
"""Of every answer: the page runs its own scripts only and asks nobody else."""

BODY_SECONDS = 60.0
"""The body of a request must arrive within this time."""
RETRY_SECONDS = 2
"""When to try again, for those who are turned away because there is too much work."""
SMALL_BODY = 1 << 20
"""Bytes of a request that brings no photo."""


@dataclass
class Lane:
    """Requests of one kind of work: those that are worked on, and those that wait."""

    method: str  # of the requests
    paths: tuple[str, ...]  # how their paths begin
    limit: int  # how many there may be at a time
    busy: int = field(default=0, init=False)  # how many there are now

    def takes(self, scope: Scope) -> bool:
        """Whether a request is of this kind."""
        path: str = scope["path"]
        return scope["method"] == self.method and path.startswith(self.paths)


class Guard:
    """The outermost layer of the application.

    ``hosts`` are names and addresses that ``Host`` may have; with ``any_address`` every address in
    numbers is right as well: a name can be made to lead here by others, an address cannot. A
    request must show the token, if there is one, and with photos have at most ``max_bytes``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] = LOOPBACK,
        any_address: bool = False,
        token: str | None = None,
        max_bytes: int,
        lanes: Collection[Lane] = (),
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.app, self._token, self._max_bytes = app, token, max_bytes
        self._hosts = {host.lower() for host in hosts}
        self._any_address, self._lanes, self._body_seconds = any_address, lanes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {key.decode("latin-1"): v.decode("latin-1") for key, v in scope["headers"]}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.encode(): value.encode() for name, value in HEADERS.items()}
                kept = [(name, v) for name, v in message["headers"] if name.lower() not in own]
                message = {**message, "headers": [*kept, *own.items()]}
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        body = _Body(receive, self._limit(headers), self._body_seconds)
        lane = next((lane for lane in self._lanes if lane.takes(scope)), None)
        if lane is None:
            await self.app(scope, body, guarded)
            return
        if lane.busy >= lane.limit:
            await body.drain()  # a browser reads the answer only after it has sent all
            words = f"too much work at the moment: try again in {RETRY_SECONDS} seconds"
            refusal = _error(429, words, {"retry-after": str(RETRY_SECONDS)})
            await refusal(scope, receive, guarded)
            return
        lane.busy += 1
        try:
            await self.app(scope, body, guarded)
        finally:
            lane.busy -= 1

    def _limit(self, headers: Mapping[str, str]) -> int:
        kind = headers.get("content-type", "")
        return self._max_bytes if kind.startswith("multipart/form-data") else SMALL_BODY

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _error(421, f"this server is not called {host!r}: open the address it printed")
        if not _is_own_page(scope, headers, host):
            return _error(403, "pages of other sites may not use this server")
        size = headers.get("content-length", "0")
        if size.isdecimal() and int(size) > self._limit(headers):
            return _error(413, _size_words(self._limit(headers)), {"connection": "close"})
        if self._token is None:
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        given = asked.pop("token", [""])[0]
        if scope["method"] == "GET" and self._is_token(given):
            query = urlencode(asked, doseq=True)
            path = "/" + scope["path"].lstrip("/")  # "//name" would be another server
            answer = RedirectResponse(path + (f"?{query}" if query else ""), 303)
            answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", path="/")
            return answer
        if self._is_token(_bearer(headers)) or self._is_token(_cookie(headers)):
            return None
        words = "a token is needed: open the address that `hardnet serve` printed"
        if scope["path"] == "/":
            return PlainTextResponse(words, 401)
        return _error(401, words, {"www-authenticate": "Bearer"})

    def _is_token(self, given: str) -> bool:
        token = self._token or ""
        return bool(token) and secrets.compare_digest(given.encode(), token.encode())

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address


def _is_own_page(scope: Scope, headers: Mapping[str, str], host: str) -> bool:
    """Whether a request comes from our page, from a person, or from a program; not from a site."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return False
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return True
    # A link to the page may stand anywhere; nothing else may be asked for from there.
    link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in (
        None,
        "document",
    )
    return link and scope["method"] == "GET" and scope["path"] in ("/", "/docs")


def _bearer(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _error(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, dict(headers or {}))


def _size_words(limit: int) -> str:
    return f"the request has more than {limit / 1e6:.0f} MB: send smaller photos (--max-upload)"


class _Body:
    """The body of a request: as it comes, but not more than ``limit`` bytes, and not for ever."""

    def __init__(self, receive: Receive, limit: int, seconds: float) -> None:
        self._receive, self._limit, self._left = receive, limit, limit
        self._seconds, self._deadline = seconds, asyncio.get_running_loop().time() + seconds
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()  # only that the client has gone can come now
        rest = self._deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(rest, 0.001))
        except TimeoutError:
            words = f"the request did not arrive within {self._seconds:g} seconds"
            raise HTTPException(408, words, {"connection": "close"}) from None
        self._whole = not message.get("more_body", False)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, _size_words(self._limit), {"connection": "close"})
        return message

    async def drain(self) -> None:
        """Read all, and keep nothing."""
        try:
            while not self._whole:
                await self()
        except HTTPException:
            pass
