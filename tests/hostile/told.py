# SPDX-License-Identifier: Apache-2.0
"""What a program in a node tells while it works, a JSON object a line; the last is its answer."""

from __future__ import annotations

import json
import threading
from typing import Any

__all__ = ["TEXT", "tell"]

# so much of a message's hexadecimal text says what it was: header, lists and the RPC's beginning
TEXT = 400
_ONE = threading.Lock()


def tell(**what: Any) -> None:
    """``did=`` for each thing done, ``failure=`` for each that went wrong; else the answer."""
    with _ONE:
        print(json.dumps(what), flush=True)
