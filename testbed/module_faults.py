# SPDX-License-Identifier: Apache-2.0
"""Faults that our module must survive: killed tasks, servers that do not answer, removed devices.

Each function takes a lab whose client has the module loaded; AssertionError names the failure.
"""

from __future__ import annotations

from typing import Any

from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import FAULTS, SILENT, SOUND
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.scripts import on

__all__ = ["killed", "reason", "removed", "soft"]


def killed(lab: Nodes, options: str, silent: bool, seed: str, rounds: int) -> dict[str, Any]:
    """Readers and writers die when they are killed, also when the server does not answer."""
    way = "silent" if silent else "answered"
    with mounted(lab, options):
        result: dict[str, Any] = on(lab, "client", "kill", way, seed, str(rounds))
    alive = [stack for turn in result["rounds"] for stack in turn["alive"]]
    assert not alive, f"seed {seed}: {alive}"
    after = (result["left"], result["lost"], result["wrong"])
    assert after == (0, 0, []), f"seed {seed}: {after}"
    return result


SOFT = f"""
mkdir {HERE}/soft
head -c 200000 /dev/urandom > {HERE}/soft/file
sync
md5sum < {HERE}/soft/file
echo 3 > /proc/sys/vm/drop_caches
trap '{SOUND}' EXIT
{SILENT}cat {HERE}/soft/file
"""


UNUSED = "until grep -qx 0 /sys/module/nfsrdma/refcnt; do sleep 0.2; done"


def soft(lab: Nodes, vers: str) -> None:
    """A soft mount fails while the server does not answer, and goes on when it does."""
    with mounted(lab, f"vers={vers},soft,timeo=20,retrans=1"):
        done = lab.run("client", "sh", "-c", SOFT, check=False, timeout=LIMIT)
        assert done.returncode == 1
        assert "Input/output error" in done.stderr or "timed out" in done.stderr, done.stderr
        reasons = [connection["last_disconnect"] for connection in connections(lab)]
        assert "a reply did not come in time" in reasons
        again = lab.run("client", "sh", "-c", f"md5sum < {HERE}/soft/file", timeout=LIMIT)
        assert again.stdout == done.stdout
        lab.run("client", "rm", "-r", f"{HERE}/soft")


def reason(lab: Nodes, options: str, fault: str) -> str:
    """The reason of a fault of an idle connection; the mount reconnects when it needs to."""
    there = FAULTS[fault]
    # no client has state to reclaim; an open would wait for the end of the grace period
    grace = "echo Y > /proc/fs/nfsd/v4_end_grace" if there.forgets else ""
    with mounted(lab, options):
        lab.run(there.node, "sh", "-ec", there.script + grace)
        lab.run("client", "sh", "-c", f"touch {HERE}/alive && rm {HERE}/alive", timeout=LIMIT)
        (connection,) = connections(lab)
    counts = (connection["connects"], connection["disconnects"])
    assert (connection["connected"], *counts) == ("yes", "2", "1")
    return connection["last_disconnect"]


def removed(lab: Nodes, options: str, busy: bool) -> None:
    """The device goes for good, idle or under load: the mount goes, and then the module.

    What a hard mount has under way outlives the tasks that wanted it, and holds the module, until
    there is a server again or ``umount -f`` gives it up.
    """
    with mounted(lab, options, off=("umount", "-f") if busy else ("umount",)):
        if busy:
            assert on(lab, "client", "kill", "removed", "1", "1")["rounds"][0]["alive"] == []
        else:
            lab.run("client", "rdma", "link", "delete", f"{lab.config.nic}0")
    try:
        # a connection that is to be tried again later ends then
        lab.run("client", "sh", "-c", UNUSED, timeout=LIMIT)
        lab.run("client", "nfsrdma", "module", "unload")
        gone = "test ! -e /sys/module/nfsrdma && test ! -e /sys/kernel/debug/nfsrdma"
        lab.run("client", "sh", "-c", gone)
    finally:
        kind = lab.config.nic
        lab.run("client", "rdma", "link", "add", f"{kind}0", "type", kind, "netdev", "eth1")
        lab.run("client", "nfsrdma", "module", "load")
    lab.run("server", "rm", "-rf", "/export/killed")
