# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script of mount.nfs' name, found before the real one."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = tmp_path / "mount.nfs"
    script.touch(mode=0o755)
    return script
