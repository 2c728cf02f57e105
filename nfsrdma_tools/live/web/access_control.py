# SPDX-License-Identifier: Apache-2.0
"""Who is let in, and with what: methods, host names, the token, headers of every answer.

A page of somebody else's must not read ours by a name of its own that leads to 127.0.0.1, so
without a token only names of this machine's loopback are answered.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["COOKIE", "Guard", "is_loopback"]

COOKIE = "nfsrdma-token"
_HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


class Guard:
    """In front of the application; with an empty ``token`` none is asked for."""

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self.app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by itself what may not be asked."""
        if scope["type"] != "http":
            # "lifespan" goes on; a websocket is closed by not being accepted
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS.items()]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, dressed)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this is read-only\n", 405, {"allow": "GET, HEAD"})
        if not self._token:
            own = is_loopback(_host(headers.get("host", "")))
            return None if own else PlainTextResponse("not by this name\n", 421)
        return self._unproven(scope, headers)

    def _unproven(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and self._fits(given):
            # so that the token does not stay in the address, of which pictures are taken
            moved = RedirectResponse("/", 303)
            moved.set_cookie(COOKIE, given, httponly=True, samesite="strict", path="/")
            return moved
        kind, _, word = headers.get("authorization", "").partition(" ")
        if (kind.lower() == "bearer" and self._fits(word)) or self._fits(_cookie(headers)):
            return None
        refused: dict[str, Any] = {"www-authenticate": "Bearer"}
        return PlainTextResponse("a token is needed\n", 401, refused)

    def _fits(self, given: str) -> bool:
        # as long for a wrong one as for the right one
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)


def _host(header: str) -> str:
    name, _, port = header.rpartition(":")
    return name if name and port.isdigit() else header


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
