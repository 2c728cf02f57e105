# SPDX-License-Identifier: Apache-2.0
import errno
import os
import threading
from pathlib import Path

import pytest

from nfsrdma_tools.sweep.trial import release_server_pages


def test_requests_are_sent_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No request is answered before eight are there, as many as nfsd has threads."""
    all_there, asked = threading.Barrier(8), []

    def answer(path: Path) -> None:
        all_there.wait(timeout=60)
        asked.append(path)

    monkeypatch.setattr(os, "statvfs", answer)
    release_server_pages(tmp_path)
    assert asked == [tmp_path] * 32


def test_a_server_that_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(_path: Path) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")

    monkeypatch.setattr(os, "statvfs", answer)
    with pytest.raises(TimeoutError):
        release_server_pages(tmp_path)
