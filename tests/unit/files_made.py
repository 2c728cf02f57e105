# SPDX-License-Identifier: Apache-2.0
"""Files of a host that a test makes below a folder."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["write", "write_all"]


def write(root: Path, name: str, text: str | bytes) -> Path:
    """Write a file, and the folders above it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogateescape"))
    return path


def write_all(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by name."""
    for name, text in files.items():
        write(root, name, text)
