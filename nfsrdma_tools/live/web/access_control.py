# SPDX-License-Identifier: Apache-2.0
"""Access to the server: methods, host names, credentials, and the headers of every answer.

A web page elsewhere could read this server through a host name of its own that resolves to
127.0.0.1 (DNS rebinding).  So without credentials only loopback's own names are served.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nfsrdma_tools.live.web.listen_address import is_loopback

if TYPE_CHECKING:
    from nfsrdma_tools.live.web.passwords import Passwords

__all__ = ["COOKIE", "Access", "Guard"]

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


@dataclass(frozen=True)
class Access:
    """The credentials that the server accepts: a token, or the password of one of ``users``.

    ``users`` maps names to bcrypt hashes.  With ``certificate``, TLS has verified the client.
    """

    token: str = ""
    users: Mapping[str, str] = field(default_factory=dict)
    certificate: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the server requires no credentials."""
        return not (self.token or self.users or self.certificate)


class Guard:
    """Serves ``app`` to clients with access, and refuses the others."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self._access = access
        self._token = access.token.encode()
        self._passwords = _passwords(access.users) if access.users else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            # not accepting a websocket closes it
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS.items()]
            await send(message)

        refusal = await self._refusal(scope)
        await (refusal or self.app)(scope, receive, add_headers)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("read-only: use GET or HEAD\n", 405, {"allow": "GET, HEAD"})
        if self._access.is_open:
            own = is_loopback(_host(headers.get("host", "")))
            return None if own else PlainTextResponse("unknown host name\n", 421)
        if not (self._token or self._passwords):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and self._is_token(given):
            return _with_cookie(given, scope["scheme"] == "https")
        return None if await self._is_authorized(headers) else self._unauthorized()

    async def _is_authorized(self, headers: Mapping[str, str]) -> bool:
        scheme, _, word = headers.get("authorization", "").partition(" ")
        if self._passwords and scheme.lower() == "basic":
            return await self._passwords.accept(word)
        return (scheme.lower() == "bearer" and self._is_token(word)) or self._is_token(
            _cookie(headers)
        )

    def _is_token(self, given: str) -> bool:
        # in constant time: the time of the answer gives no hint at the token
        found = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)
        return found and bool(self._token)

    def _unauthorized(self) -> Response:
        refusal = PlainTextResponse("authorization required\n", 401)
        for scheme, offered in (("Basic", self._passwords), ("Bearer", self._token)):
            if offered:
                refusal.headers.append("www-authenticate", f'{scheme} realm="nfsrdma"')
        return refusal


def _passwords(users: Mapping[str, str]) -> Passwords:
    # only a server with users needs bcrypt
    from nfsrdma_tools.live.web.passwords import Passwords

    return Passwords(users)


def _with_cookie(token: str, secure: bool) -> Response:
    # the redirect removes the token from the address bar, which screenshots show
    moved = RedirectResponse("/", 303)
    moved.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/", secure=secure)
    return moved


def _host(header: str) -> str:
    name, _, port = header.rpartition(":")
    return name if name and port.isdigit() else header


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
