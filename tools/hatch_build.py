# SPDX-License-Identifier: Apache-2.0
"""Adds the man pages to a wheel, for those who set HATCH_BUILD_HOOK_ENABLE_CUSTOM=true."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):  # type: ignore[type-arg]
    """Writes them beside the wheel while it is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the pages and name where the wheel has them."""
        del version
        sys.path[:0] = [self.root, str(Path(self.root) / "tools")]
        from man_pages import write

        self._folder = tempfile.TemporaryDirectory()
        for page in write(Path(self._folder.name)):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written."""
        del version, build_data, artifact_path
        self._folder.cleanup()
