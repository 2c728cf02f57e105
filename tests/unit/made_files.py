# SPDX-License-Identifier: Apache-2.0
"""Files of a host that tests make."""

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below a folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
