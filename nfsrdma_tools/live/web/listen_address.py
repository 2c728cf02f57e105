# SPDX-License-Identifier: Apache-2.0
"""Addresses of ``--web.listen-address``: HOST:PORT, [IPV6]:PORT, or :PORT for all addresses."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from nfsrdma_tools.errors import UserError

__all__ = ["Address", "is_loopback", "parse"]

_FORM = "expected HOST:PORT, [IPV6]:PORT or :PORT"


class Address(NamedTuple):
    """A host and a TCP port; "" is every address of this host, port 0 any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this host reaches it."""
        return is_loopback(self.host)

    def bind(self) -> socket.socket:
        """A socket that listens there; UserError if the system refuses."""
        try:
            if not self.host and socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("::", self.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
                )
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "choose another --web.listen-address"
            raise UserError(f"cannot listen on {self}: {reason}", hint) from error

    def url(self, scheme: str) -> str:
        """The URL of the server there; localhost stands for every address."""
        return f"{scheme}://{self._replace(host=self.host or 'localhost')}/"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(address: str) -> bool:
    """Whether only this host reaches an address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def parse(text: str) -> Address:
    """The address in ``text``; UserError if it has another form."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"--web.listen-address {text}: the port is missing or not a port", _FORM)
    if (":" in bare) != bracketed:
        raise UserError(f"--web.listen-address {text}: only IPv6 addresses have brackets", _FORM)
    return Address(bare, int(port))
