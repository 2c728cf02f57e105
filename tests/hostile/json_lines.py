# SPDX-License-Identifier: Apache-2.0
"""Lines that a program in a node prints, a JSON object each; the last is its result."""

from __future__ import annotations

import json
import threading
from typing import Any

__all__ = ["TEXT", "print_json"]

# enough of a message's hexadecimal text for its header, its lists and the beginning of the RPC
TEXT = 400
_ONE = threading.Lock()


def print_json(**what: Any) -> None:
    """Print ``did=`` for each step, ``failure=`` for each failure; else the result."""
    with _ONE:
        print(json.dumps(what), flush=True)
