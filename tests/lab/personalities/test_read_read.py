# SPDX-License-Identifier: Apache-2.0
"""Personality read-read: the client reads large results from its server, and sends RDMA_DONE.

Over modelled cards, with client and server in one kernel, and our module on both ends.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.dashboard import until
from testbed.hostile import PORT, SERVER, argv_of
from testbed.kernel_events import recorded
from testbed.mounts import HERE, mounted, set_parameters
from testbed.personalities import (
    FOLDER,
    LIMIT,
    VERSIONS,
    agreed,
    compare,
    counted,
    hostile_files,
    in_effect,
    nothing_left,
    serves_others,
)
from testbed.tracing import said, tracing

# statuses of a Read that the server's card refuses, and of a Write
REFUSED = (9, 10, 11)
# a page, in bytes; the module's limit for the replies of one client, in pages: what it may borrow,
# and its floor, the length of the largest message
PAGE, SHARE = 4096, 1024 + 257


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Iterator[Lab]:
    """A solo lab whose mounts and server speak read-read."""
    with agreed(lab, "read-read"):
        yield lab


@pytest.mark.parametrize("options", VERSIONS)
def test_data_is_equal_and_every_done_arrives(lab: Lab, options: str) -> None:
    with mounted(lab, options):
        assert in_effect(lab) == [["read-read"]] * 2
        # the server may expose 5 MiB, and one Reply for each thread beyond that
        compare(lab, 64 << 20, 1 << 20)
        fetches, sent = counted(lab, "nfsrdma", "fetches", "dones")
        exposures, dones, late, stray = counted(
            lab, "nfsrdma-server", "exposures", "dones", "done_timeouts", "stray_dones"
        )
    assert fetches == sent > 64
    # the last Done may be on its way
    assert exposures >= dones >= sent - 1
    assert (late, stray) == (0, 0)
    nothing_left(lab)


@pytest.mark.nightly
def test_the_probe_counts_replies_that_the_client_reads(lab: Lab) -> None:
    """Their bytes, and the RDMA_DONE of each."""
    lab.run("server", "sh", "-ec", "head -c 4194304 /dev/urandom > /export/probed")
    with mounted(lab, "vers=3"), tracing(lab, "client", "server"):
        argv = (f"if={HERE}/probed", "of=/dev/null", "bs=64k", "iflag=direct", "status=none")
        lab.run("client", "dd", *argv)

        def counted() -> dict[str, int]:
            rows = [row for row in said(lab, "client") if row["procedure"] == "RDMA_DONE"]
            names = ("exposures", "exposed_bytes", "dones", "done_timeouts", "stray_dones")
            sums = {name: sum(row[name] for row in rows) for name in names}
            return sums | {"dones_outstanding": rows[-1]["dones_outstanding"] if rows else 0}

        until(lambda: counted()["dones"] >= 64, "as many RDMA_DONEs as READs")
        counts = counted()
    lab.run("server", "rm", "/export/probed")
    assert counts == {"exposures": 64, "exposed_bytes": 4 << 20, "dones": 64, "done_timeouts": 0,
                     "stray_dones": 0, "dones_outstanding": 0}  # fmt: skip


@pytest.mark.parametrize("options", VERSIONS)
def test_long_messages_move_as_a_whole(lab: Lab, options: str) -> None:
    """A list of many names, and a link whose target is as long as a name may be."""
    lab.run("server", "sh", "-ec", """
mkdir /export/long
cd /export/long
seq -f name-%g 5000 | xargs touch
ln -s "$(printf %01023d 7)" link
""", timeout=LIMIT)  # fmt: skip
    try:
        with mounted(lab, options):
            listed = lab.run("client", "ls", f"{HERE}/long", timeout=LIMIT).stdout.split()
            target = lab.run("client", "readlink", f"{HERE}/long/link").stdout.strip()
            (fetches,) = counted(lab, "nfsrdma", "fetches")
    finally:
        lab.run("server", "rm", "-r", "/export/long", timeout=LIMIT)
    assert sorted(listed) == sorted([*(f"name-{n}" for n in range(1, 5001)), "link"])
    assert target == f"{7:01023d}"
    assert fetches > 0
    nothing_left(lab)


@pytest.mark.nightly
@pytest.mark.parametrize("timeout", [2, 3600])
def test_a_slow_invalidation_ends_the_connection(lab: Lab, timeout: int) -> None:
    """The server waits 10 s for its card to invalidate what the client has read.

    It does so after a timeout as well as after a Done, when nothing expires for an hour.
    """
    delay = "/sys/kernel/debug/nfsrdma_card/card1/completion_delay"
    events = {"nfsrdma/nfsrdma_disconnect/enable": "1"}
    lab.run("server", "sh", "-ec", "head -c 4194304 /dev/urandom > /export/slow")
    with set_parameters(lab, server_done_timeout=timeout), mounted(lab, "vers=3"):
        lab.run("server", "tee", delay, stdin=str(60 * 10**9).encode())
        try:
            with recorded(lab, "server", events) as lines:
                words = (f"if={HERE}/slow", "of=/dev/null", "bs=64k", "count=1", "iflag=direct")
                lab.run("client", "dd", *words, timeout=LIMIT)
                until(lambda: counted(lab, "nfsrdma", "disconnects") == [1], "a disconnect")
        finally:
            lab.run("server", "tee", delay, stdin=b"0")
        lab.run("client", "cmp", "/export/slow", f"{HERE}/slow", timeout=LIMIT)
    lab.run("server", "rm", "/export/slow")
    assert [line for line in lines if "reason=an invalidation takes too long" in line]
    nothing_left(lab)


# --- a client that breaks the rules ---


@pytest.fixture(scope="module")
def victim(lab: Lab) -> Iterator[Lab]:
    """The server, with a file for hostile clients and a short time for the Done."""
    with hostile_files(lab), set_parameters(lab, server_done_timeout=2):
        yield lab


def case(lab: Lab, name: str) -> Any:
    """A case of readread_node.py; the server exposes nothing afterwards, and serves others."""
    argv = argv_of("readread", SERVER, PORT, FOLDER, name)
    said = json.loads(lab.run("client", *argv, timeout=LIMIT).stdout)
    serves_others(lab)
    return said


def is_refused(found: dict[str, Any]) -> bool:
    """A Read that brought nothing and ended its connection."""
    return found["status"] in REFUSED and not found["came"] and found["ended"]


@pytest.mark.nightly
def test_a_done_ends_the_access(victim: Lab) -> None:
    said = case(victim, "honest")
    assert said["agreed"] == 1
    assert said["exposed"] == [16, 1]
    assert said["same"]
    assert said["gone"]
    assert said["counted"] == [1, 1, 0, 0, 0]
    assert said["lives"]
    assert is_refused(said["late"])


@pytest.mark.nightly
def test_without_a_done_the_access_ends_by_itself(victim: Lab) -> None:
    said = case(victim, "never")
    assert said["same"]
    assert said["gone"]
    assert said["waited"] > 1
    assert said["counted"] == [0, 1, 0]
    # only what comes late ends the connection
    assert said["lives"]
    assert said["stray"]
    assert is_refused(said["late"])


@pytest.mark.nightly
def test_a_done_counts_once(victim: Lab) -> None:
    assert case(victim, "twice") == {"stray": True, "lives": True, "counted": [1, 1, 0]}


@pytest.mark.nightly
def test_a_done_for_another_connection_changes_nothing(victim: Lab) -> None:
    said = case(victim, "other")
    assert said["stray"]
    assert said["still"] == [1, 0]
    assert said["same"]
    assert is_refused(said["foreign"])
    assert said["gone"]
    assert said["lives"]


@pytest.mark.nightly
def test_a_done_for_no_reply_is_dropped(victim: Lab) -> None:
    assert case(victim, "unknown") == {"stray": True, "lives": True}


def test_a_key_that_comes_again_has_another_address(victim: Lab) -> None:
    said = case(victim, "key_comes_again")
    assert said["again"]
    assert said["uses"] > 200
    assert not said["repeated"]
    assert is_refused(said["late"])


@pytest.mark.nightly
def test_a_done_before_its_reply_is_dropped(victim: Lab) -> None:
    assert case(victim, "early") == {"gone": True, "sum": True}


@pytest.mark.nightly
def test_more_than_the_reply_is_not_readable(victim: Lab) -> None:
    assert is_refused(case(victim, "beyond"))


@pytest.mark.nightly
def test_exposed_memory_is_not_writable(victim: Lab) -> None:
    said = case(victim, "written")
    assert said["status"] in REFUSED
    assert said["ended"]
    assert said["same"]


@pytest.mark.nightly
def test_malformed_messages_end_their_connection(victim: Lab) -> None:
    said = case(victim, "malformed")
    assert said
    assert [name for name, ended in said.items() if not ended] == []


@pytest.mark.nightly
def test_an_unreadable_call_ends_its_connection(victim: Lab) -> None:
    assert case(victim, "stolen") == {"ended": True}


@pytest.mark.nightly
def test_a_client_without_dones_gets_its_share_only(victim: Lab) -> None:
    threads = int(victim.run("server", "cat", "/proc/fs/nfsd/threads").stdout)
    said = case(victim, "no_dones")
    assert said["answers"] == 32
    assert SHARE // 2 < said["most"] <= SHARE + threads * ((1 << 20) // PAGE)
    assert said["first"] < said["answers"]
    assert said["gone"]
    assert said["lives"]
    assert said["counted"] == [32, 32]


@pytest.mark.nightly
def test_a_client_that_leaves_leaves_nothing(victim: Lab) -> None:
    assert case(victim, "left")["exposed"] == [3 * 64]


@pytest.mark.nightly
def test_a_client_that_reads_nothing_gets_version_1(victim: Lab) -> None:
    assert case(victim, "unasked") == {"agreed": 0, "answered": True}
