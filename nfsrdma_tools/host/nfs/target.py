# SPDX-License-Identifier: Apache-2.0
"""The target of a mount: ``server:/path``, parsed, and the addresses of its server."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from nfsrdma_tools.errors import UsageError, UserError

__all__ = ["Target", "UnknownHostError"]

_FORM = re.compile(r"(?:\[(?P<literal>[^\]]*)\]|(?P<name>[^:\[\]]*)):(?P<path>.*)", re.DOTALL)
# mount.nfs splits at commas ("replicated servers"); host names contain only these characters
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_NUMBER = re.compile(r"[0-9]{1,10}")


class UnknownHostError(UserError):
    """The server's name has no address."""


class Target(NamedTuple):
    """A server and the path of an export or of a folder below one."""

    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse ``server:/path``; IPv6 addresses are in brackets.

        Raises UsageError for anything that mount.nfs would parse as something else.
        """
        hint = "write server:/path, 192.0.2.1:/path or [2001:db8::1]:/path"
        match = _FORM.fullmatch(text)
        url = text.lower().startswith("nfs://")
        if not match or url or not match["path"].startswith("/"):
            raise UsageError(f"{text!r} is not an NFS target", hint)
        host = match["name"] if match["literal"] is None else match["literal"]
        if not (_is_ipv6(host) if match["literal"] is not None else _NAME.fullmatch(host)):
            raise UsageError(f"{host!r} in {text!r} is not a host", hint)
        if "\0" in match["path"]:
            raise UsageError(f"{text!r} has a NUL character", hint)
        return cls(host, match["path"].rstrip("/") or "/")

    @classmethod
    def of(cls, source: str) -> Target:
        """Parse the source of a mount as the kernel prints it; accepts any text."""
        match = _FORM.fullmatch(source)
        if not match:
            return cls(source, "")
        return cls(match["literal"] or match["name"] or "", match["path"])

    def __str__(self) -> str:
        return f"[{self.host}]:{self.path}" if ":" in self.host else f"{self.host}:{self.path}"

    def netid(self, transport: str, ipv6: bool = False) -> str:
        """The ``proto=`` that reaches this host: "tcp" means IPv4 only, "tcp6" IPv6 only (nfs(5)).

        IPv4 is preferred if the host has both, unless ``ipv6`` is required.
        Raises UnknownHostError.
        """
        import socket

        families = {family for family, _ in self._resolve(ipv6)}
        return transport if socket.AF_INET in families else f"{transport}6"

    def addresses(self, ipv6: bool = False) -> list[str]:
        """The addresses that a mount may use: of the family of ``netid``, an IPv6 zone as %NUMBER.

        Raises UnknownHostError.
        """
        resolved = self._resolve(ipv6)
        wanted = min(family for family, _ in resolved)
        return [address for family, address in resolved if family == wanted]

    def _resolve(self, ipv6: bool) -> list[tuple[int, str]]:
        """The family and the text of each address, each once; those of IPv6 only if so required."""
        import socket  # few commands resolve a name

        try:
            infos = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            message = f"unknown host {self.host!r}: {why}"
            raise UnknownHostError(message, "check the name, or use an address") from error
        known = list[tuple[int, str]](
            dict.fromkeys((family, _with_zone(address)) for family, *_, address in infos)
        )
        usable = [
            (family, address) for family, address in known if not ipv6 or family == socket.AF_INET6
        ]
        if not usable:
            addresses = ", ".join(address for _, address in known)
            message = f"{self.host!r} has no IPv6 address, found {addresses}"
            raise UnknownHostError(message, "use proto=rdma or proto=tcp for IPv4")
        return usable


def _with_zone(address: tuple[str | int | bytes, ...]) -> str:
    # the last item of an IPv6 address is its zone, which is 0 if there is none
    text, _, *more = address
    return f"{text!s}%{more[-1]!s}" if more and more[-1] else f"{text!s}"


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).version == 6
    except ValueError:
        return False
