# SPDX-License-Identifier: Apache-2.0
"""Bundles made for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import recorded
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.host.machine import Machine

__all__ = ["anonymous", "read_back"]


def anonymous(text: str) -> str:
    """A log as an anonymized bundle has it."""
    made = Bundle()
    made.notes.programs["dmesg",] = Result(("dmesg",), text, "", 0)
    result = anonymized(made).notes.programs["dmesg",]
    assert result
    return result.stdout


@contextmanager
def read_back(made: Bundle, folder: Path) -> Iterator[Machine]:
    """The host of a bundle, as read from a file in the folder."""
    file = folder / "bundle.tar.gz"
    file.write_bytes(made.archive())
    with recorded.opened(file) as machine:
        yield machine
