# SPDX-License-Identifier: Apache-2.0
"""Transfers of our module, both ways: data, long messages, calls of the server.

The tests run a few of each, the campaign runs all.  Each function takes a lab whose client has the
module loaded; AssertionError names the failure.
"""

from __future__ import annotations

import json
import time
from typing import Any

from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import FAULTS
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.scripts import on

__all__ = [
    "acls",
    "around",
    "carried",
    "delegation",
    "fio",
    "folders",
    "has_user_attributes",
    "stressed",
]

WAYS = ("buffered", "buffered-skewed", "direct", "direct-skewed")


# --- data ---


def around(*limits: int) -> list[int]:
    """Sizes at which something may change, and their neighbours."""
    return sorted({limit + d for limit in limits for d in (-1, 0, 1) if limit + d > 0})


def carried(
    lab: Nodes, options: str, sizes: list[int], seed: int, ways: tuple[str, ...] = WAYS,
    target: str = "server:/export",
) -> dict[str, Any]:  # fmt: skip
    """Every size, written each of ``ways`` and read every way, is what it was on both sides.

    The sizes around which data stops travelling inline are found and added.
    """
    plan: dict[str, Any] = {
        "options": options, "target": target, "sizes": sizes, "ways": ways, "seed": seed,
    }  # fmt: skip
    result: dict[str, Any] = on(lab, "client", "data", "carry", json.dumps(plan), timeout=3600)
    assert result["wrong"] == [], f"{options}, seed {seed}: {result['wrong'][:9]}"
    there = {**plan, "sizes": result["sizes"], "folder": "/export"}
    assert on(lab, "server", "data", "check", json.dumps(there)) == [], f"{options}, seed {seed}"
    return result


def fio(lab: Nodes, options: str, loops: int, seed: int) -> dict[str, int]:
    """Two buffered and two direct jobs write 8 MiB, and verify what they wrote, again and again."""
    size = 8 << 20
    about = f"--output-format=json --size={size} --loops={loops} --rw=randwrite --fallocate=none"
    sizes = f"--bsrange=1k-1m --ioengine=psync --verify=crc32c --verify_fatal=1 --randseed={seed}"
    jobs = "--name=buffered --numjobs=2 --name=direct --direct=1 --numjobs=2"
    words = f"--directory={HERE}/fio {about} {sizes} {jobs}".split()
    with mounted(lab, options):
        lab.run("client", "mkdir", f"{HERE}/fio")
        output = lab.run("client", "fio", *words, timeout=loops * LIMIT).stdout
        lab.run("client", "rm", "-r", f"{HERE}/fio")
    jobs_done = json.loads(output)["jobs"]
    assert [job["error"] for job in jobs_done] == [0] * 4
    done = {way: sum(job[way]["io_bytes"] for job in jobs_done) for way in ("read", "write")}
    assert min(done.values()) >= len(jobs_done) * loops * size
    return done


def stressed(lab: Nodes, options: str, seconds: int, stressors: tuple[str, ...]) -> str:
    """stress-ng's stressors, all at once, verify what they do; returns its verdict."""
    one_each = [word for name in stressors for word in (f"--{name}", "1")]
    small = ["--hdd-bytes", "8m", "--fallocate-bytes", "8m"]
    with mounted(lab, options):
        lab.run("client", "mkdir", f"{HERE}/stress")
        words = ["--temp-path", f"{HERE}/stress", "--verify", "--timeout", f"{seconds}s"]
        argv = ["stress-ng", *words, *one_each, *small]
        done = lab.run("client", *argv, check=False, timeout=seconds + LIMIT)
        lab.run("client", "rm", "-r", f"{HERE}/stress")
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if "passed:" in line)


# --- long messages ---


def folders(lab: Nodes, options: str, count: int = 10_000) -> dict[str, Any]:
    """A folder of many entries, and links with targets of all lengths."""
    on(lab, "server", "tree", "make_folder", str(count))
    try:
        with mounted(lab, options):
            result: dict[str, Any] = on(lab, "client", "tree", "folder", str(count))
            wrong = on(lab, "client", "tree", "links", "null")
        wrong += on(lab, "server", "tree", "links_there", "null")
    finally:
        lab.run("server", "sh", "-c", "rm -rf /export/many /export/link-*")
    assert (result["listed"], result["same"], result["files"]) == (count, True, count)
    assert result["replies"] > 0
    assert wrong == []
    return result


def acls(lab: Nodes, options: str, kind: str, count: int) -> dict[str, Any]:
    """An access list of many entries (``posix_acl``, ``nfs4_acl``), or ``attributes``."""
    try:
        with mounted(lab, options):
            result: dict[str, Any] = on(lab, "client", "tree", kind, json.dumps(count))
    finally:
        lab.run("server", "sh", "-c", "rm -f /export/acl /export/acl4 /export/attributes")
    good = [value for name, value in result.items() if name in ("same", "names", "removed")]
    assert all(good), result
    assert result.get("wrong", []) == []
    assert result["replies"] > 0
    return result


def has_user_attributes(lab: Nodes) -> bool:
    """Whether the exported file system stores user attributes; tmpfs does since Linux 6.6."""
    script = """
touch /export/attributes
setfattr --name=user.asked --value=1 /export/attributes && echo yes
rm /export/attributes
"""
    return lab.run("server", "sh", "-c", script).stdout == "yes\n"


# --- the reverse direction ---


def delegation(lab: Nodes, options: str, fault: str = "") -> dict[str, Any]:
    """A delegation is recalled over the connection, also over one made anew after ``fault``."""
    name = f"recalled-{time.monotonic_ns()}"
    with mounted(lab, options):
        if fault:
            lab.run(FAULTS[fault].node, "sh", "-ec", FAULTS[fault].script)
            lab.run("client", "ls", HERE)
        before = callbacks(lab)
        delegated(lab, name)
        # waits for the delegation to come back
        lab.run("server", "sh", "-c", f"echo after > /export/{name}", timeout=LIMIT)
        assert lab.run("client", "cat", f"{HERE}/{name}").stdout == "after\n"
        told = lab.run("client", "grep", "-A200", f" {HERE} ", "/proc/self/mountstats").stdout
        count = callbacks(lab) - before
    lab.run("server", "rm", f"/export/{name}")
    operations = {row.split(":")[0].strip(): row.split()[1:] for row in told.splitlines() if row}
    # had the lease run out instead, the client would ask whether its state is still good
    assert operations["TEST_STATEID"][0] == "0"
    assert int(operations["DELEGRETURN"][0]) > 0
    assert count > 0
    return {"callbacks": count}


def callbacks(lab: Nodes) -> int:
    return sum(int(connection["callbacks"]) for connection in connections(lab))


def delegated(lab: Nodes, name: str) -> None:
    """Open a file until the server delegates it, which it does not before its grace period ends."""
    held = f"grep '{name}' /proc/fs/nfsd/clients/*/states | grep -q 'type: deleg'"
    lab.run("server", "sh", "-c", f"echo before > /export/{name}")
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        lab.run("client", "cat", f"{HERE}/{name}")
        if not lab.run("server", "sh", "-c", held, check=False).returncode:
            return
        time.sleep(1)
    raise AssertionError(f"{name} was not delegated")
