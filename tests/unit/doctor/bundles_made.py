# SPDX-License-Identifier: Apache-2.0
"""Bundles made for tests."""

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle

__all__ = ["anonymous"]


def anonymous(text: str) -> str:
    """A log as an anonymized bundle has it."""
    made = Bundle()
    made.notes.programs["dmesg",] = Result(("dmesg",), text, "", 0)
    result = anonymized(made).notes.programs["dmesg",]
    assert result
    return result.stdout
