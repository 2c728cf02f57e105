# SPDX-License-Identifier: Apache-2.0
"""Counts of the rows of nfsrdma trace in lab tests."""

from testbed.tracing import by_procedure


def chunks(mount: str, procedure: str, rpcs: int) -> dict[str, object]:
    return {"mount": mount, "client": 1, "procedure": procedure, "rpcs": rpcs}


def test_a_client_of_two_mounts_counts() -> None:
    """The mounts of one superblock share a client, and its row names both."""
    rows = [chunks("/mnt, /mnt/other", "READ", 23), chunks("/mnt/third", "READ", 5)]
    assert by_procedure(rows, "rpcs") == {"READ": 23}


def test_rows_without_a_mount_count() -> None:
    """The server's rows name a peer, and no mount."""
    assert by_procedure([{"procedure": "WRITE", "calls": 17}], "calls") == {"WRITE": 17}


def test_rpcs_of_no_mount_do_not_count() -> None:
    assert by_procedure([chunks("unattributed", "NULL", 1)], "rpcs") == {}
