# SPDX-License-Identifier: Apache-2.0
"""Expected results of the parts of client_node.py."""

from __future__ import annotations

from typing import Any

__all__ = ["check_files"]


def check_files(result: dict[str, Any]) -> None:
    assert result["reads"] == {
        "whole": True, "small": True, "end": [True, 0], "array": [True, True], "copied": True,
        "direct": [True, True], "registered": [True, True],
    }  # fmt: skip
    assert result["ranges"] == {"wrong": 0, "calls": True, "doorbells": True}
    assert result["writes"] == {"counts": [True, True, True], "same": True}
