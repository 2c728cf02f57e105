# SPDX-License-Identifier: Apache-2.0
"""Personalities per mount: requested, in effect on both sides, refused, and nothing left behind."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.host.nfs import personality
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.sweep.store import Trial
from nfsrdma_tools.undo import journal
from testbed.node import channel
from testbed.node.programs import until
from testbed.personalities import counted, in_effect
from testbed.remote import RemoteError, on
from testbed.tracing import sums, tracing

HERE, BESIDE = "/mnt/here", "/mnt/beside"
TABLE = "/sys/module/nfsrdma/parameters/personality_for"
# the mounts, the table, the journals; the transports go a moment after their last mount
LEFT = f"""
grep ' nfs4\\? ' /proc/mounts
grep . {TABLE}
ls /run/nfsrdma | grep undo
for n in $(seq 600); do [ -z "$(ls /sys/kernel/debug/nfsrdma)" ] && break; sleep 0.1; done
ls /sys/kernel/debug/nfsrdma
"""
# READs of one extent: the first makes the client connect and the server grant, the others read
MAKE = "head -c 1048576 /dev/urandom > /export/optimistic"
READ = f"dd if={HERE}/optimistic of=/dev/null bs=4k iflag=direct status=none"
STORE = "/root/personality.db"
SWEEP = (
    *("nfsrdma", "sweep", "server:/export", "--output", STORE, "--transport", "tcp,nfsrdma"),
    *("--rsize", "32k", "--read-ahead", "4", "--file-size", "1M", "--runs", "1", "--no-probes"),
    *("--axis", "personality=read-write,cached"),
)


# the table is full, and the entry for the server is there, for another namespace only
OTHER = f"""
ip netns add other
ip netns exec other sh -c '
	for n in $(seq 63); do echo 192.0.2.$n,cached > {TABLE} || exit; done
	echo $1,cached > {TABLE} && cat {TABLE}
' sh $(getent ahostsv4 server | sed -n '1s/ .*//p') | tr ' ' '\\n' | grep -c cached
"""
# the entries end with the namespace, a moment later
ENDED = f"""
ip netns del other
for n in $(seq 600); do echo 192.0.2.99,cached > {TABLE} && break; sleep 0.1; done 2>/dev/null
cat {TABLE}
echo 192.0.2.99 > {TABLE}
"""


@pytest.fixture
def lab(lab: Lab) -> Iterator[Lab]:
    lab.run("client", "mkdir", "-p", HERE, BESIDE)
    yield lab
    sh(lab, f"umount -a -t nfs,nfs4; rm -f {STORE}*")
    assert sh(lab, LEFT) == ""


@pytest.fixture
def accepting(lab: Lab) -> Iterator[Lab]:
    """The same, and its server accepts cached."""
    accept(lab, "cached")
    yield lab
    accept(lab, "")


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-c", script, check=False).stdout


def accept(lab: Lab, names: str) -> None:
    lab.run("client", "nfsrdma", "module", "load", "--set", f"server_personalities={names}")
    parameter = "/sys/module/nfsrdma/parameters/server_personalities"
    assert sh(lab, f"cat {parameter}") == f"{names}\n"


def mount(lab: Lab, *words: str, at: str = HERE) -> dict[str, Any]:
    argv = ("nfsrdma", "mount", "server:/export", at, "--json", *words)
    made: dict[str, Any] = json.loads(lab.run("client", *argv).stdout)
    return made


def mounts(lab: Lab) -> dict[str, str]:
    """The personality of each mount by its directory, as ``nfsrdma mounts`` lists them."""
    rows = json.loads(lab.run("client", "nfsrdma", "mounts", "--json").stdout)["mounts"]
    return {row["directory"]: row["personality"] for row in rows}


def refused(lab: Lab, *words: str, at: str = HERE) -> str:
    """The one line that says why a mount was refused."""
    result = lab.run("client", "nfsrdma", "mount", "server:/export", at, *words, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_mount_gets_the_personality_that_it_requests(accepting: Lab) -> None:
    made = mount(accepting, "--personality", "cached")
    assert (made["transport"], made["personality"]) == ("nfsrdma", "cached")
    assert [set(side) for side in in_effect(accepting)] == [{"cached"}] * 2
    assert sh(accepting, f"cat {TABLE}") == "\n"

    # NFSv3 has a transport of its own, and gets the default
    made = mount(accepting, "--transport", "nfsrdma", "--vers", "3", "-o", "nolock", at=BESIDE)
    assert set(in_effect(accepting)[0]) == {"cached", "read-write"}
    # Linux 6.1 does not provide the transports of a mount: those of both go to one server
    exact = sh(accepting, "ls -d /sys/fs/nfs/*:*/nfs_client")
    both = {HERE: "cached", BESIDE: "read-write"} if exact else {}
    listed = mounts(accepting)
    assert listed == {HERE: "cached, read-write", BESIDE: "cached, read-write"} | both
    assert made["personality"] == listed[BESIDE]
    table = accepting.run("client", "nfsrdma", "mounts").stdout.splitlines()
    for line in table[1:]:
        assert f"  {listed[line.split()[0]]}  " in line

    status = accepting.run("client", "nfsrdma", "module", "status").stdout
    assert "; accepts read-write, cached\n" in status
    assert ", requested cached, in effect cached, cache bytes " in status
    assert ", requested read-write, in effect read-write\n" in status
    assert status.count(", cached, ") == in_effect(accepting)[1].count("cached") > 0


def test_each_of_several_connections_has_it(accepting: Lab) -> None:
    made = mount(accepting, "--personality", "cached", "--vers", "3", "--nconnect", "4",
                 "-o", "nolock")  # fmt: skip
    assert (made["connections"], made["personality"]) == (4, "cached")
    sh(accepting, f"for n in 1 2 3 4 5 6 7 8; do stat -f {HERE}; done")
    assert in_effect(accepting)[0] == ["cached"] * 4


@pytest.mark.parametrize("vers", ("3", "4.2"))
def test_a_server_that_does_not_accept_it_is_an_error(lab: Lab, vers: str) -> None:
    line = refused(lab, "--personality", "cached", "--vers", vers, "-o", "nolock" * (vers == "3"))
    assert line == (
        "nfsrdma: personality: requested cached, got read-write (the server does not accept it; "
        "nfsrdma does with server_personalities=cached)\n"
    )
    assert sh(lab, LEFT) == ""
    assert mount(lab, "--transport", "nfsrdma")["personality"] == "read-write"


def test_an_entry_belongs_to_the_network_namespace_of_its_writer(accepting: Lab) -> None:
    assert sh(accepting, OTHER) == "64\n"
    try:
        assert sh(accepting, f"cat {TABLE}") == "\n"
        assert sh(accepting, f"echo 192.0.2.99,cached > {TABLE}; echo $?") != "0\n"
        assert mount(accepting, "--transport", "nfsrdma")["personality"] == "read-write"
    finally:
        assert sh(accepting, ENDED) == "192.0.2.99,cached\n"


def test_a_transport_that_another_mount_has_keeps_its_personality(accepting: Lab) -> None:
    mount(accepting, "--transport", "nfsrdma")
    assert refused(accepting, "--personality", "cached", at=BESIDE) == (
        "nfsrdma: personality of a shared transport: requested cached, got read-write "
        f"(it uses the transport of {HERE}: unmount that first, or use another --vers)\n"
    )
    assert sh(accepting, f"grep -c ' {BESIDE} ' /proc/mounts; cat {TABLE}") == "0\n\n"
    assert mount(accepting, "--personality", "cached", "--vers", "3", "-o", "nolock", at=BESIDE)


def test_an_earlier_entry_comes_back(accepting: Lab) -> None:
    """The administrator's own entry, for this server and for another one."""
    address = sh(accepting, "getent ahostsv4 server").split()[0]
    sh(accepting, f"echo 192.0.2.7,cached >{TABLE}; echo {address},cached >{TABLE}")
    before = sh(accepting, f"cat {TABLE}")
    assert mount(accepting, "--personality", "read-write")["personality"] == "read-write"
    assert sh(accepting, f"cat {TABLE}") == before
    sh(accepting, f"umount {HERE}")
    assert mount(accepting, "--transport", "nfsrdma")["personality"] == "cached"
    assert sh(accepting, f"echo 192.0.2.7 >{TABLE}; echo {address} >{TABLE}; cat {TABLE}") == "\n"


@on("client")
def request_and_die() -> None:
    """Request a personality, and be killed before the request is taken back."""
    with journal() as changes, personality.requested_for(["192.0.2.7"], "cached", changes):
        channel.send(Path(TABLE).read_text())
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_nfsrdma_is_cleaned_up_by_the_next(lab: Lab) -> None:
    killed = pytest.raises(RemoteError, match="without a result")
    with killed, request_and_die.started(lab) as request:
        assert request.receive() == "192.0.2.7,cached\n"
    assert sh(lab, f"cat {TABLE}") == "192.0.2.7,cached\n"
    assert mount(lab, "--transport", "nfsrdma")["personality"] == "read-write"
    assert sh(lab, f"cat {TABLE}") == "\n"


@pytest.fixture
def optimistic(lab: Lab) -> Iterator[Lab]:
    """A mount with optimistic reads, and a file on the server."""
    accept(lab, "optimistic")
    sh(lab, MAKE)
    made = mount(lab, "--optimistic", "-o", "nolock")
    assert (made["transport"], made["vers"]) == ("nfsrdma", "3")
    assert made["personality"] == "optimistic"
    yield lab
    sh(lab, f"umount {HERE}; rm /export/optimistic")
    accept(lab, "")


def reads(lab: Lab) -> int:
    """Optimistic reads since the mount was made."""
    return counted(lab, "nfsrdma", "optimistic_reads")[0]


def read_until_granted(lab: Lab) -> None:
    def granted() -> bool:
        sh(lab, READ)
        return reads(lab) > 0

    until("the first optimistic read", granted, 300, 0.5)


def test_optimistic_reads_are_mounted_and_shown(optimistic: Lab) -> None:
    """--optimistic is short for --personality optimistic, with NFSv3 by default."""
    read_until_granted(optimistic)
    assert [set(side) for side in in_effect(optimistic)] == [{"optimistic"}] * 2
    assert mounts(optimistic) == {HERE: "optimistic"}
    status = optimistic.run("client", "nfsrdma", "module", "status").stdout
    assert "; accepts read-write, optimistic\n" in status
    assert " of 256M of the page cache granted" in status
    assert ", requested optimistic, in effect optimistic, references " in status
    assert f", optimistic paused 0, optimistic reads {reads(optimistic)}, " in status


def test_a_server_that_accepts_no_optimistic_reads_is_an_error(lab: Lab) -> None:
    line = refused(lab, "--optimistic", "-o", "nolock")
    assert line.startswith("nfsrdma: personality: requested optimistic, got read-write (")


@pytest.mark.nightly
def test_probes_count_optimistic_reads_of_a_mount(optimistic: Lab) -> None:
    read_until_granted(optimistic)
    with tracing(optimistic, "client", "chunks"):
        before = reads(optimistic)
        sh(optimistic, READ)
        done = reads(optimistic) - before
        assert done > 0

        def count(name: str) -> int:
            return sums(optimistic, "client", name, mount=HERE, procedure="READ")[name]

        # dd reads at the end of the file, too, which goes by RPC
        until("as many READs as there were", lambda: count("rpcs") >= 257, 300, 0.5)
        assert count("replies_optimistic") == done
        assert count("optimistic_bytes") == done * 4096
        assert count("calls_inline") == 257 - done


@pytest.mark.nightly
def test_probes_count_grants_and_revocations(optimistic: Lab) -> None:
    with tracing(optimistic, "client", "server"):
        read_until_granted(optimistic)
        # it opens the file for writing
        sh(optimistic, "echo >> /export/optimistic")

        def count(name: str) -> int:
            return sums(optimistic, "client", name, procedure="GRANT")[name]

        until("a revocation", lambda: count("revoked_opened") > 0, 300, 0.5)
        assert count("grants") == count("revoked_opened") + count("revoked_replaced") == 1
        assert count("granted_bytes") == 1 << 20


def swept(lab: Lab) -> dict[tuple[str, str], Trial]:
    """The trials of a sweep by transport and requested personality."""
    lab.run("client", *SWEEP, timeout=600)
    argv = ("nfsrdma", "results", "export", STORE, "--format", "json")
    exported = json.loads(lab.run("client", *argv).stdout)["trials"]
    trials = [Trial.from_json(trial) for trial in exported]
    by_cell = {(t.cell.transport, t.cell.personality or ""): t for t in trials}
    assert len(by_cell) == len(trials)
    return by_cell


@pytest.mark.nightly
def test_a_sweep_measures_each_personality(accepting: Lab) -> None:
    trials = swept(accepting)
    assert {key: (t.status, t.in_effect.axes) for key, t in trials.items()} == {
        ("tcp", ""): ("ok", {}),
        ("nfsrdma", "read-write"): ("ok", {"personality": "read-write"}),
        ("nfsrdma", "cached"): ("ok", {"personality": "cached"}),
    }


@pytest.mark.nightly
def test_a_sweep_stores_what_the_server_does_not_offer(lab: Lab) -> None:
    trials = swept(lab)
    assert trials["nfsrdma", "read-write"].ok
    trial = trials["nfsrdma", "cached"]
    assert trial.status == "not_offered"
    assert trial.reason.startswith("personality: requested cached, got read-write (")
