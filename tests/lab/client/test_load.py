# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma load` against the kernel's server: its counts beside those of nfsd, faults, a kill."""

import json
from typing import Any

import pytest

from nfsrdma_tools.client.load import Plan
from nfsrdma_tools.lab.lab import Lab
from testbed.node.sessions import restart_under
from testbed.remote import on

pytestmark = [pytest.mark.lab, pytest.mark.nightly]

SESSIONS = 30
# on a busy host
SECONDS = 1800
LOAD = f"nfsrdma load server:/export --sessions {SESSIONS} --file-size 1M --timeout 600 --json"
MIX = "--mix read=6,write=3,getattr=2,readdir=1,null=1 --files 3 --verify"
# procedures of RFC 1813 in the line proc3, which begins with their number
PROCEDURES = {"null": 0, "getattr": 1, "read": 6, "write": 7, "readdir": 17}
# until nfsd has executed READs of the load, or the load has ended
READING = """
reads() { awk '/^proc3/ { print $9 }' /proc/net/rpc/nfsd; }
first=$(reads)
reading() { while kill -0 $load && test "$(reads)" -le $((first + 20)); do sleep 0.2; done; }
"""


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-ec", script, timeout=SECONDS).stdout


def executed(lab: Lab) -> dict[str, int]:
    """Calls of each procedure that nfsd has executed."""
    (line,) = lab.run("server", "grep", "^proc3 ", "/proc/net/rpc/nfsd").stdout.splitlines()
    counts = [int(word) for word in line.split()[2:]]
    return {kind: counts[number] for kind, number in PROCEDURES.items()}


def left(lab: Lab) -> list[str]:
    return sh(lab, "ls /export | grep ^nfsrdma-load- || true").split()


def run_load(lab: Lab, words: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The output of a load, and the calls that nfsd executed for it."""
    before = executed(lab)
    facts: dict[str, Any] = json.loads(sh(lab, f"{LOAD} {words}"))
    after = executed(lab)
    assert not left(lab)
    return facts, {kind: after[kind] - before[kind] for kind in PROCEDURES}


def test_nfsd_counts_the_same_operations(solo: Lab) -> None:
    # what makes and removes the files, and connects
    idle, setup = run_load(solo, f"{MIX} --duration 0")
    assert idle["connections"]["connected"] == SESSIONS
    assert idle["total"]["done"] == 0
    facts, calls = run_load(solo, f"{MIX} --duration 10s")
    assert (facts["total"]["failed"], facts["mismatches"], facts["resent"]) == (0, 0, 0)
    done = {kind: facts["kinds"][kind]["done"] for kind in PROCEDURES}
    assert {kind: calls[kind] - setup[kind] for kind in PROCEDURES} == done
    assert min(done.values()) > 0
    # each session has a part
    assert facts["fairness"]["least"] > 0
    assert facts["connections"]["lost"] == 0


@on("client", timeout=SECONDS)
def restarted() -> None:
    """A load during which the server restarts; it ends when all sessions are connected again."""
    plan = Plan(sessions=SESSIONS, duration=900, timeout=600, file_size=1 << 20, verify=True)
    outcome = restart_under("server:/export", plan)
    assert outcome.up == outcome.connected == SESSIONS
    # a busy host may lose more
    assert outcome.lost == outcome.reconnects >= SESSIONS
    assert outcome.outages >= 1
    assert outcome.recovery_seconds
    assert (outcome.total.failed, outcome.mismatches) == (0, 0)
    assert min(outcome.shares) > 0


def test_all_sessions_come_back_after_a_restart_of_the_server(solo: Lab) -> None:
    restarted(solo)


def test_the_next_command_removes_what_a_killed_load_left(solo: Lab) -> None:
    script = f"""{READING}
    {LOAD} --duration 600s > /dev/null & load=$!
    reading
    kill -9 $load
    wait $load || test $? = 137
    """
    sh(solo, script)
    (directory,) = left(solo)
    facts, _ = run_load(solo, "--duration 0")
    assert facts["connections"]["connected"] == SESSIONS
    assert directory not in left(solo)
