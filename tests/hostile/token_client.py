# SPDX-License-Identifier: Apache-2.0
"""A client with a token of its own, by which it finds its connection in the server's debugfs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hostile import private_data
from hostile.json_lines import print_json
from hostile.peer import Host, Wish
from hostile.server_state import SERVER

__all__ = ["HOST", "TokenClient", "contents", "run_case"]

HOST = Host()
EXPORT = Path("/export")


class TokenClient:
    """A connection to the server that the arguments of the program name."""

    def __init__(self, capabilities: int, **wish: Any) -> None:
        self.token = int.from_bytes(os.urandom(8), "big")
        server, port = sys.argv[1:3]
        own = private_data.extended(capabilities, self.token)
        self.connection = HOST.connect(server, int(port), Wish(own, **wish))
        self.agreed, token = private_data.parsed(self.connection.private)
        assert token == self.token

    def raw(self, message: bytes) -> None:
        self.connection.finish(self.connection.send(message))

    def folder(self) -> Path:
        """The folder of the connection in the server's debugfs."""
        word = f"token {self.token:016x}"
        (found,) = (path.parent for path in SERVER.glob("*/connection") if word in path.read_text())
        return found

    def values(self, *names: str) -> list[int]:
        """Values of the connection in the server's debugfs."""
        texts = [(self.folder() / name).read_text() for name in ("connection", "counters")]
        rows = dict(line.split(" ", 1) for text in texts for line in text.splitlines())
        return [int(rows[name]) for name in names]


def contents(name: str) -> bytes:
    """The contents of a file of the server, which runs on the same host."""
    return (EXPORT / sys.argv[3] / name).read_bytes()


def run_case(cases: Sequence[Callable[[], dict[str, Any]]]) -> None:
    """Run the case that the arguments name, and print its result."""
    (case,) = (case for case in cases if case.__name__ == sys.argv[4])
    print_json(**case())
