# SPDX-License-Identifier: Apache-2.0
"""Personality padded: data of some pages moves in messages, and begins with a page.

Over modelled cards, with client and server in one kernel, and our module on both ends.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.dashboard import until
from testbed.hostile import PORT, SERVER, argv_of
from testbed.module_data import around, carried
from testbed.mounts import HERE, connections, mounted, set_parameters
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
from testbed.tracing import sums, tracing

MOST = 65536


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Iterator[Lab]:
    """A solo lab whose mounts and server are padded."""
    with agreed(lab, "padded"):
        yield lab


@pytest.mark.parametrize("most", (8192, pytest.param(16384, marks=pytest.mark.nightly), MOST))
def test_small_data_needs_no_chunk(lab: Lab, most: int) -> None:
    """Data up to the limit moves in messages, and more than that in chunks of version 1."""
    script = f"""
for size in 8192 {most} {most * 2}; do
	dd if=/dev/urandom of={HERE}/small bs=$size count=9 oflag=direct status=none
	dd if={HERE}/small of=/run/small bs=$size count=9 iflag=direct status=none
	cmp /run/small /export/small
	cd /sys/kernel/debug/nfsrdma
	cat */counters | grep -E '^(padded_calls|padded_replies|read_chunks|write_chunks) '
done
"""
    # larger data goes in a chunk even if it fits inline
    with set_parameters(lab, padded_max=most, server_memory=64), mounted(lab, "vers=3,noac"):
        assert in_effect(lab) == [["padded"]] * 2
        (sizes,) = {(row["padded_send"], row["padded_recv"]) for row in connections(lab)}
        assert sizes == (str(most), str(max(most, 8192)))
        lines = lab.run("client", "sh", "-ec", script, timeout=LIMIT).stdout.split()
        lab.run("client", "rm", "/export/small", "/run/small")
    counts = [dict(zip(lines[n : n + 8 : 2], map(int, lines[n + 1 : n + 8 : 2]), strict=True))
              for n in (0, 8, 16)]  # fmt: skip
    small, large, larger = counts
    at_limit = 9 if most == MOST else 0
    # min_chunk is 64 KiB
    assert small["padded_calls"] == small["padded_replies"] == 9
    assert large["padded_calls"] == large["padded_replies"] == 18 - at_limit
    assert (large["read_chunks"], large["write_chunks"]) == (at_limit, at_limit)
    assert larger["padded_calls"] == large["padded_calls"]
    nothing_left(lab)


@pytest.mark.parametrize("options", VERSIONS)
@pytest.mark.parametrize("most", (16384, pytest.param(32768, marks=pytest.mark.nightly)))
def test_data_is_equal(lab: Lab, options: str, most: int) -> None:
    with set_parameters(lab, padded_max=most, server_memory=64):
        carried(lab, options, around(1024, 4096, 8192, most, 3 * most, 1 << 17), 5666)
        with mounted(lab, options):
            lab.run("client", "sh", "-ec", f"""
head -c 16777216 /dev/urandom > /export/much
for size in 4096 {most} 3000 20000; do
	dd if={HERE}/much of=/run/much bs=$size status=none
	cmp /export/much /run/much
	dd if=/run/much of={HERE}/other bs=$size status=none
	cmp /export/other /run/much
	echo 3 > /proc/sys/vm/drop_caches
done
rm /export/much /export/other /run/much
""", timeout=LIMIT * 3)  # fmt: skip
            bad, failed = counted(lab, "nfsrdma", "bad_replies", "failed_marshals")
    assert (bad, failed) == (0, 0)
    nothing_left(lab)


PROBED = (
    *("rpcs", "calls_inline", "calls_padded"),
    *("replies_padded", "replies_inline", "read_segments"),
)


@pytest.mark.nightly
def test_the_probe_counts_messages_with_padding(lab: Lab) -> None:
    """Neither as inline messages nor as chunks."""
    with (
        set_parameters(lab, padded_max=16384, server_memory=64),
        mounted(lab, "vers=3,noac"),
        tracing(lab, "client", "chunks"),
    ):
        lab.run("client", "sh", "-ec", f"""
dd if=/dev/urandom of={HERE}/probed bs=8k count=7 oflag=direct status=none
dd if={HERE}/probed of=/dev/null bs=8k count=7 iflag=direct status=none
""")  # fmt: skip

        def probed(procedure: str) -> dict[str, int]:
            return sums(lab, "client", *PROBED, mount=HERE, procedure=procedure)

        until(lambda: probed("READ")["rpcs"] >= 7, "as many READs as were done")
        reads, writes = probed("READ"), probed("WRITE")
        lab.run("client", "rm", f"{HERE}/probed")
    assert reads == dict(zip(PROBED, (7, 7, 0, 7, 0, 0), strict=True))
    assert writes == dict(zip(PROBED, (7, 0, 7, 0, 7, 0), strict=True))


def test_receives_are_bounded(lab: Lab) -> None:
    """Connections beyond the limit of the server are read-write."""
    with (
        set_parameters(lab, padded_max=16384, server_memory=4),
        mounted(lab, "vers=4.2,nconnect=3"),
    ):
        compare(lab, 4 << 20)
        sides = in_effect(lab)
    assert sides == [["padded", "read-write", "read-write"]] * 2
    nothing_left(lab)


# --- a client that breaks the rules ---


@pytest.fixture(scope="module")
def victim(lab: Lab) -> Iterator[Lab]:
    """The server, with files for hostile clients."""
    with hostile_files(lab):
        yield lab


def case(lab: Lab, name: str) -> Any:
    """A case of padded_node.py; the server serves others afterwards."""
    argv = argv_of("padded", SERVER, PORT, FOLDER, name)
    said = json.loads(lab.run("client", *argv, timeout=LIMIT).stdout)
    serves_others(lab)
    return said


def test_the_server_answers_as_the_documentation_says(victim: Lab) -> None:
    said = case(victim, "honest")
    assert said["agreed"] == 2
    assert said["wrote"] == ["ok", "ok"]
    assert said["there"]
    # RDMA_MSGP, but where there is little data
    assert said["reads"] == {"8192": [2, True], "16384": [2, True], "5000": [2, True],
                             "100": [0, True]}  # fmt: skip
    assert said["empty"] == "ok"
    assert said["counted"] == [2, 3, 8192 + 4097 + 8192 + 16384 + 5000, 0, 0]
    assert said["lives"]


@pytest.mark.nightly
def test_contradictions_are_refused_and_change_nothing(victim: Lab) -> None:
    said = case(victim, "lies")
    assert len(said["found"]) > 25
    assert {name: was for name, was in said["found"].items() if was != ["chunk", True]} == {}
    assert said["same"]


@pytest.mark.nightly
def test_what_the_rpc_says_of_its_data_is_checked(victim: Lab) -> None:
    said = case(victim, "senseless")
    assert said == {"more": ["rpc", True], "less": ["ok", True], "no arguments": ["ok", True]}


@pytest.mark.nightly
def test_a_message_longer_than_a_receive_ends_its_connection(victim: Lab) -> None:
    assert case(victim, "long") == {"ended": True}


@pytest.mark.nightly
def test_offers_without_use_are_refused(victim: Lab) -> None:
    said = case(victim, "offers")
    # two segments are memory of version 1, under a key that does not exist
    assert said.pop("two segments") == ["ended", False]
    # what is offered is a limit, and the data is within it
    assert said.pop("4 GiB, for a small READ") == ["ok", True]
    assert set(map(tuple, said.values())) == {("chunk", True)}


@pytest.mark.nightly
def test_others_cannot_use_padding(victim: Lab) -> None:
    assert case(victim, "unasked") == {"agreed": 0, "answer": "chunk", "lives": True}
