# SPDX-License-Identifier: Apache-2.0
"""Reads that no thread of nfsd executes, optimistic and threadless: what their tests share."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pytest

from nfsrdma_tools.lab.console import EmulatorFaultError
from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import place_program
from testbed.mounts import set_to
from testbed.scripts import NODES, node_script

__all__ = ["DISK", "HUGE", "MIB", "PAGE", "SEED", "USERS", "WITHDRAWALS", "Record", "bring_fuse",
           "campaign", "check_acl_by_nfs", "check_changes", "check_nameless",
           "check_opened_for_writing", "check_withdrawn", "check_withdrawn_meanwhile",
           "counts_listeners", "make_folders", "misreads_holes", "nothing_broke", "nothing_in_use",
           "on", "stale"]  # fmt: skip

SCRIPT = node_script("optimistic")
PROGRAM = NODES / "staleness.c"
MIB, PAGE = 1 << 20, 4096
DISK, HUGE = "/srv/disk", "/srv/huge"
Record = Callable[[str, object], None]
# minutes of a campaign, one seed for all its rounds
MINUTES = os.environ.get("MINUTES")
# readers through libnfsrdma in rounds of a campaign
USERS = 3 if os.environ.get("USER_LEVEL") else 0
SEED = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))


def on(lab: Lab, *words: str, timeout: float = 900) -> Any:
    """The result of a function of optimistic_node.py, which runs in the node."""
    output = lab.run("client", "python3", "-", *words, stdin=SCRIPT, timeout=timeout).stdout
    result = json.loads(output)
    print(words, json.dumps(result)[:1500])
    return result


def counts_listeners(kernel: str) -> None:
    """Skip where the server may let no READ pass nfsd by: a listener might decide about it."""
    if kernel == "6.1":
        pytest.skip("6.1 counts no listeners of a file system; missed: READs that pass nfsd by")


def make_folders(lab: Lab) -> None:
    """Export file systems on a disk, and of huge pages."""
    on(lab, "make_disk")
    on(lab, "make_huge")


def nothing_in_use(result: dict[str, Any]) -> None:
    assert set(result["server"].values()) == {0}


def nothing_broke(result: dict[str, Any]) -> None:
    """The client's Calls went well, and so did the connection that carries them."""
    assert {each["disconnects"] for each in result["state"]} == {"0"}
    counters = result["counters"]
    assert (counters["bad_replies"], counters["failed_marshals"]) == (0, 0)


# what a reader who has the file open may find instead of new content
KEPT = {"rename over": "old", "unlink and create": "old", "unlink": "old"}
WITHDRAWN = ("chmod", "chown", "acl")


def check_changes(result: dict[str, Any]) -> None:
    """After each change, a reader got what the file has, or what its access allows."""
    for name, change in result["changes"].items():
        about = f"{name}: {change}"
        assert change["granted"] > 0, about
        assert change["left"] == 0, about
        allowed = [[new] for new in change["new"]]
        if name in WITHDRAWN:
            allowed = [["EACCES"]] * len(allowed)
        elif name in KEPT:
            # nfsd may keep the old file open for a while
            allowed = [[old, "ESTALE"] for old in change["old"]]
        assert all(got in may for got, may in zip(change["got"], allowed, strict=True)), about
        assert change["again"] in ("", change["there"]), about
    assert len(result["changes"]) >= 13


def check_withdrawn_meanwhile(lab: Lab, *steps: str) -> dict[str, Any]:
    """A READ that nfsd began before access was withdrawn lets no later one pass.

    ``steps`` are the steps of the server's clock before and after that, in seconds.
    """
    result: dict[str, Any] = on(lab, "withdrawn_meanwhile", *steps)
    assert result["meanwhile"], "the READ was faster than the disk"
    assert result["first"] == result["data"]
    assert set(result["later"]) == {"EACCES"}
    nothing_in_use(result)
    return result


WITHDRAWALS = ("exportfs -u", "all_squash", "sec=krb5")


def check_withdrawn(lab: Lab, how: str, seconds: int) -> None:
    """A change of an export ends reads that pass nfsd by, within the time that the pages state."""
    result = on(lab, "withdrawn", how, str(seconds))
    assert result["late"] in (["EACCES"], ["EPERM"], ["ESTALE"])
    nothing_in_use(result)


def check_opened_for_writing(lab: Lab) -> None:
    """nfsd answers all READs of a file that a process has open for writing."""
    result = on(lab, "opened_for_writing")
    assert (result["left"], result["pages"]) == (0, 0)
    assert result["same"]
    assert not result["meanwhile"]
    nothing_in_use(result)


def check_acl_by_nfs(lab: Lab, folder: str, version: str) -> None:
    """An ACL that a client sets ends access, although fsnotify does not report it."""
    result = on(lab, "acl_by_nfs", folder, version)
    assert not result["may"], "the ACL does not deny access"
    assert set(result["later"]) == {"EACCES"}
    nothing_in_use(result)


def check_nameless(lab: Lab, folder: str) -> dict[str, Any]:
    """nfsd answers all READs of a file without a name, or does not find it."""
    result: dict[str, Any] = on(lab, "nameless", folder)
    assert (result["left"], result["optimistic"]) == (0, 0)
    for answer, wanted in zip(result["said"], result["wanted"], strict=True):
        assert answer in (wanted, "ESTALE")
    nothing_in_use(result)
    return result


def bring_fuse(lab: Lab) -> None:
    """Let the node have file systems in user space."""
    lab.run("client", "tee", "/run/fuse_node.py", stdin=node_script("fuse"))


def misreads_holes(kernel: str, folder: str) -> bool:
    """nfsd of 6.1 does, in a tmpfs: docs/dev/faults-of-other-software.md."""
    return kernel == "6.1" and folder != DISK


def stale(
    lab: Lab,
    seconds: float,
    seed: str,
    folder: str,
    rest: str,
    faults: str = "",
    writer: str = "vers=3",
    *,
    users: int = 0,
    enough: Callable[[dict[str, Any]], bool] | None = None,
    **values: int,
) -> dict[str, Any]:
    """Run staleness.c in a folder of the server; no byte that a reader got was out of date.

    ``writer`` is the NFS version of the client over TCP; ``users`` is the number of readers
    through libnfsrdma beside those of the mount.  In a short run on a slow machine, few reads meet
    a change, or too few files stay unchanged for as long as a grant needs.  So there are up to
    three runs, until reads meet changes and ``enough`` is true.  AssertionError if that happens in
    none of them, or if a reader gets an old byte in any.
    """
    if users:
        place_program(lab, "client", PROGRAM, "/run/staleness", "-DUSER_LEVEL", "-pthread")
    else:
        build = "cat > /run/staleness.c && gcc -O2 -pthread -o /run/staleness /run/staleness.c"
        lab.run("client", "sh", "-ec", build, stdin=PROGRAM.read_bytes())
    for name, value in values.items():
        set_to(lab, "client", name, str(value))
    words = (str(int(seconds)), seed, folder, rest, faults, writer, str(users))
    for _ in range(3):
        result = _stale_once(lab, seconds, seed, words)
        if result["moving"] > 0 and (enough is None or enough(result)):
            return result
    raise AssertionError(f"seed {seed}: {result}")


def _stale_once(lab: Lab, seconds: float, seed: str, words: tuple[str, ...]) -> dict[str, Any]:
    result: dict[str, Any] = on(lab, "staleness", *words, timeout=seconds + 900)
    about = f"seed {seed}: {result}"
    assert (result["wrong"], result["failed"], result["writer_errors"]) == (0, 0, 0), about
    # a copy that met a change half way is rare
    assert result["torn"] < result["moving"] / 10 + 10, about
    nothing_in_use(result)
    return result


# microseconds between the changes of a writer
RESTS = ("100000", "400000", "1000000")


def campaign(
    lab: Lab,
    parameters: Mapping[str, Sequence[int]],
    faults: str,
    prepare: Callable[[Lab], None],
    writers: Sequence[str] = ("vers=3",),
    *,
    users: int = 0,
) -> tuple[dict[str, int], dict[str, Any]]:
    """MINUTES of rounds with faults, each with other parameters, and the module loaded again.

    Returns the sums of all, and the round with the last value of each parameter, the first one.
    """
    kernel = lab.config.kernel
    folders = [each for each in ("/export", DISK, HUGE) if not misreads_holes(kernel, each)]
    print(f"seed {SEED}, in {', '.join(folders)}", flush=True)
    chance = random.Random(SEED)  # noqa: S311 - no secret
    end, sums, number = time.monotonic() + 60 * float(MINUTES or 10), dict[str, int](), 0
    first: dict[str, Any] = {}
    while time.monotonic() < end or number < 2:
        folder, writer = folders[number % len(folders)], chance.choice(writers)
        seconds = min(120.0, max(20.0, end - time.monotonic()))
        # a file that changed in the last second is read by nfsd
        draw = chance.choice if first else itemgetter(-1)
        values = {name: draw(choices) for name, choices in parameters.items()}
        rest = draw(RESTS)
        some = chance.choice((faults, faults, "drop caches,squeeze", ""))
        seed = f"{SEED}{number:03}"
        try:
            result = stale(
                lab, seconds, seed, folder, rest, some, writer, users=users, enough=None, **values
            )
        except EmulatorFaultError as error:
            print(f"round {number} is void: {error}", flush=True)
            lab.restart()
            prepare(lab)
            make_folders(lab)
            number += 1
            continue
        for name in ("reads", "sectors", "moving", "torn", "denied", "stale", "wrong", "rpcs"):
            sums[name] = sums.get(name, 0) + result[name]
        for name, value in (result["optimistic"] | result["threadless"]).items():
            sums[name] = sums.get(name, 0) + value
        for name, value in result.get("user", {}).items():
            sums[f"user_{name}"] = sums.get(f"user_{name}", 0) + value
        about = (folder, writer, f"{rest} us", values, some)
        print(time.strftime("%X"), f"round {number}", *about, sums, flush=True)
        first = first or result
        number += 1
        if number % 4 == 0:
            lab.run("server", "systemctl", "stop", "nfs-server")
            _unload(lab)
            prepare(lab)
    return sums, first


def _unload(lab: Lab) -> None:
    end = time.monotonic() + 60
    while lab.run("client", "rmmod", "nfsrdma", check=False).returncode:
        assert time.monotonic() < end, "the module is still in use"
        time.sleep(1)
