# SPDX-License-Identifier: Apache-2.0
"""Personalities per mount: requested, in effect on both sides, refused, and nothing left behind."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.sweep.store import Trial
from testbed.dashboard import until
from testbed.labs import OURS, cards_lab, serve
from testbed.tracing import SAID, tracing

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
# as the module reports it, without nfsrdma: of clients and of the server's connections
IN_EFFECT = "grep -h '^personality ' /sys/kernel/debug/nfsrdma{}/[0-9]*/connection"
KILLED = """
import os, signal
from nfsrdma_tools.host.nfs.personality import TABLE, requested_for
from nfsrdma_tools.undo import journal

with journal() as changes, requested_for(["192.0.2.7"], "cached", changes):
    print(TABLE.read_text(), end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
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


@pytest.fixture(scope="module")
def served(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A kernel whose module is ours, on both ends of two modelled cards."""
    with cards_lab(pytestconfig, "personality") as lab:
        serve(lab, "solo", OURS)
        lab.run("client", "mkdir", "-p", HERE, BESIDE)
        yield lab


@pytest.fixture
def lab(served: Lab) -> Iterator[Lab]:
    yield served
    sh(served, f"umount -a -t nfs,nfs4; rm -f {STORE}*")
    assert sh(served, LEFT) == ""


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
    said = lab.run("client", "nfsrdma", "mount", "server:/export", at, "--json", *words).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def refused(lab: Lab, *words: str) -> str:
    """The one line that says why a mount was refused."""
    argv = ("nfsrdma", "mount", "server:/export", HERE, *words)
    said = lab.run("client", *argv, check=False)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.count("\n") == 1
    return said.stderr


def in_effect(lab: Lab, side: str = "") -> list[str]:
    lines = sh(lab, IN_EFFECT.format(side)).splitlines()
    return sorted(line.partition(" ")[2] for line in lines)


def test_a_mount_gets_the_personality_that_it_requests(accepting: Lab) -> None:
    made = mount(accepting, "--personality", "cached")
    assert (made["transport"], made["personality"]) == ("nfsrdma", "cached")
    assert set(in_effect(accepting)) == set(in_effect(accepting, "-server")) == {"cached"}
    assert sh(accepting, f"cat {TABLE}") == "\n"

    # NFSv3 has a transport of its own, and gets the default
    made = mount(accepting, "--transport", "nfsrdma", "--vers", "3", "-o", "nolock", at=BESIDE)
    assert set(in_effect(accepting)) == {"cached", "read-write"}
    # Linux 6.1 does not provide the transports of a mount: those of both go to one server
    exact = sh(accepting, "ls -d /sys/fs/nfs/*:*/nfs_client")
    both = {HERE: "cached", BESIDE: "read-write"} if exact else {}
    listed = json.loads(accepting.run("client", "nfsrdma", "mounts", "--json").stdout)["mounts"]
    found = {each["directory"]: each["personality"] for each in listed}
    assert found == {HERE: "cached, read-write", BESIDE: "cached, read-write"} | both
    assert made["personality"] == found[BESIDE]
    table = accepting.run("client", "nfsrdma", "mounts").stdout.splitlines()
    for line in table[1:]:
        assert f"  {found[line.split()[0]]}  " in line

    status = accepting.run("client", "nfsrdma", "module", "status").stdout
    assert "; accepts read-write, cached\n" in status
    assert ", requested cached, in effect cached, cache bytes " in status
    assert ", requested read-write, in effect read-write\n" in status
    assert status.count(", cached, ") == in_effect(accepting, "-server").count("cached") > 0


def test_each_of_several_connections_has_it(accepting: Lab) -> None:
    made = mount(accepting, "--personality", "cached", "--vers", "3", "--nconnect", "4",
                 "-o", "nolock")  # fmt: skip
    assert (made["connections"], made["personality"]) == (4, "cached")
    sh(accepting, f"for n in 1 2 3 4 5 6 7 8; do stat -f {HERE}; done")
    assert in_effect(accepting) == ["cached"] * 4


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
    argv = ("nfsrdma", "mount", "server:/export", BESIDE, "--personality", "cached")
    said = accepting.run("client", *argv, check=False)
    assert said.returncode == 1
    assert said.stderr == (
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


def test_a_killed_nfsrdma_is_cleaned_up_by_the_next(lab: Lab) -> None:
    said = lab.run("client", "python3", "-", stdin=KILLED.encode(), check=False)
    assert said.stdout == "192.0.2.7,cached\n"
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
    said = sh(lab, "grep -h '^optimistic_reads ' /sys/kernel/debug/nfsrdma/[0-9]*/counters")
    return sum(int(line.split()[1]) for line in said.splitlines())


def read_until_granted(lab: Lab) -> None:
    def granted() -> bool:
        sh(lab, READ)
        return reads(lab) > 0

    until(granted, "the first optimistic read")


def test_optimistic_reads_are_mounted_and_shown(optimistic: Lab) -> None:
    """--optimistic is short for --personality optimistic, with NFSv3 by default."""
    read_until_granted(optimistic)
    assert set(in_effect(optimistic)) == set(in_effect(optimistic, "-server")) == {"optimistic"}
    assert [
        each["personality"]
        for each in json.loads(optimistic.run("client", "nfsrdma", "mounts", "--json").stdout)[
            "mounts"
        ]
    ] == ["optimistic"]
    status = optimistic.run("client", "nfsrdma", "module", "status").stdout
    assert "; accepts read-write, optimistic\n" in status
    assert " of 256M of the page cache granted" in status
    assert ", requested optimistic, in effect optimistic, references " in status
    assert f", optimistic paused 0, optimistic reads {reads(optimistic)}, " in status


def test_a_server_that_accepts_no_optimistic_reads_is_an_error(lab: Lab) -> None:
    line = refused(lab, "--optimistic", "-o", "nolock")
    assert line.startswith("nfsrdma: personality: requested optimistic, got read-write (")


def traced(lab: Lab) -> list[dict[str, Any]]:
    """The rows of all complete lines of ``nfsrdma trace``; the first line has none."""
    lines = lab.run("client", "cat", SAID).stdout.rpartition("\n")[0].splitlines()[1:]
    return [row for line in lines for row in json.loads(line)["rows"]]


@pytest.mark.nightly
def test_probes_count_optimistic_reads_of_a_mount(optimistic: Lab) -> None:
    read_until_granted(optimistic)
    with tracing(optimistic, "client", "chunks"):
        before = reads(optimistic)
        sh(optimistic, READ)
        done = reads(optimistic) - before
        assert done > 0

        def count(name: str) -> int:
            rows = [r for r in traced(optimistic) if (r["mount"], r["procedure"]) == (HERE, "READ")]
            return sum(row[name] for row in rows)

        # dd reads at the end of the file, too, which goes by RPC
        until(lambda: count("rpcs") >= 257, "as many READs as there were")
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
            return sum(row[name] for row in traced(optimistic) if row["procedure"] == "GRANT")

        until(lambda: count("revoked_opened") > 0, "a revocation")
        assert count("grants") == count("revoked_opened") + count("revoked_replaced") == 1
        assert count("granted_bytes") == 1 << 20


def swept(lab: Lab) -> dict[tuple[str, str], Trial]:
    """The trials of a sweep by transport and requested personality."""
    lab.run("client", *SWEEP, timeout=600)
    argv = ("nfsrdma", "results", "export", STORE, "--format", "json")
    exported = json.loads(lab.run("client", *argv).stdout)["trials"]
    trials = [Trial.from_json(each) for each in exported]
    found = {(t.cell.transport, t.cell.personality or ""): t for t in trials}
    assert len(found) == len(trials)
    return found


@pytest.mark.nightly
def test_a_sweep_measures_each_personality(accepting: Lab) -> None:
    found = swept(accepting)
    assert {key: (t.status, t.in_effect.axes) for key, t in found.items()} == {
        ("tcp", ""): ("ok", {}),
        ("nfsrdma", "read-write"): ("ok", {"personality": "read-write"}),
        ("nfsrdma", "cached"): ("ok", {"personality": "cached"}),
    }


@pytest.mark.nightly
def test_a_sweep_stores_what_the_server_does_not_offer(lab: Lab) -> None:
    found = swept(lab)
    assert found["nfsrdma", "read-write"].ok
    trial = found["nfsrdma", "cached"]
    assert trial.status == "not_offered"
    assert trial.reason.startswith("personality: requested cached, got read-write (")
