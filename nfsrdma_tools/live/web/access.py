# SPDX-License-Identifier: Apache-2.0
"""Access to the server: methods, host names, credentials, and the headers of every answer.

A web page elsewhere could read this server through a host name of its own that resolves to
127.0.0.1 (DNS rebinding).  So without credentials only loopback's own names are served.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nfsrdma_tools.errors import UserError

__all__ = ["COOKIE", "Access", "Guard", "Passwords", "is_loopback", "new_token", "read_token"]

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
        self._passwords = Passwords(access.users) if access.users else None

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
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if self._passwords and scheme.lower() == "basic":
            return await self._passwords.accept(credentials)
        return (scheme.lower() == "bearer" and self._is_token(credentials)) or self._is_token(
            _cookie(headers)
        )

    def _is_token(self, given: str) -> bool:
        # in constant time: the time of the answer gives no hint at the token
        is_equal = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)
        return is_equal and bool(self._token)

    def _unauthorized(self) -> Response:
        refusal = PlainTextResponse("authorization required\n", 401)
        for scheme, offered in (("Basic", self._passwords), ("Bearer", self._token)):
            if offered:
                refusal.headers.append("www-authenticate", f'{scheme} realm="nfsrdma"')
        return refusal


def is_loopback(address: str) -> bool:
    """Whether only this host reaches an address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def _with_cookie(token: str, secure: bool) -> Response:
    # the redirect removes the token from the address bar, which screenshots show
    redirect = RedirectResponse("/", 303)
    redirect.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/", secure=secure)
    return redirect


def _host(header: str) -> str:
    name, _, port = header.rpartition(":")
    return name if name and port.isdigit() else header


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


_SHORTEST = 16


def new_token() -> str:
    """A new token."""
    return secrets.token_urlsafe(24)


def read_token(file: Path) -> str:
    """The token in ``file``.

    Raises UserError if the file is unreadable, if other users may read it, or if the token is
    shorter than 16 characters.
    """
    try:
        open_to_others = file.stat().st_mode & 0o077
        token = file.read_text().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        make = f"openssl rand -hex 16 > {file}; chmod 600 {file}"
        raise UserError(f"cannot read the token in {file}: {why}", make) from error
    if open_to_others:
        raise UserError(f"other users may read {file}", f"chmod 600 {file}")
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        message = f"the token in {file} is not {_SHORTEST} or more ASCII characters without blanks"
        raise UserError(message, f"openssl rand -hex 16 > {file}")
    return token


# bytes of a password that bcrypt uses
_LONGEST = 72


class Passwords:
    """Checks passwords of ``users`` (names and bcrypt hashes).

    One check takes tens of milliseconds of CPU time by design.  So checks run in a thread, one at a
    time, and a password that was right once is remembered as a keyed hash.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        # only a server with users needs it
        import bcrypt

        self._matches = bcrypt.checkpw
        self._hashes = {name.encode(): value.encode() for name, value in users.items()}
        self._any = next(iter(self._hashes.values()), b"")
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()
        self._turn = asyncio.Lock()

    async def accept(self, credentials: str) -> bool:
        """Whether the ``credentials`` of a Basic authorization are right."""
        user, colon, password = _decoded(credentials).partition(b":")
        if not colon or len(password) > _LONGEST or b"\0" in password:
            return False
        digest = hashlib.blake2b(user + colon + password, key=self._key).digest()
        if digest in self._right:
            return True
        async with self._turn:
            right = await asyncio.to_thread(self._check, user, password)
        if right:
            self._right.add(digest)
        return right

    def _check(self, user: bytes, password: bytes) -> bool:
        # an unknown user takes as long as a known one
        right = self._matches(password, self._hashes.get(user, self._any))
        return right and user in self._hashes


def _decoded(credentials: str) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True)
    except (binascii.Error, ValueError):
        return b""
