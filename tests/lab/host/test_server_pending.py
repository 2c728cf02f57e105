# SPDX-License-Identifier: Apache-2.0
"""A WRITE that a server holds is shown pending; each way to read nfsd's state says the same."""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.undo import recover
from testbed.node.mounts import mounted
from testbed.node.programs import call, until
from testbed.remote import on

MOUNTS = {
    "NFSv3 WRITE": ("server", "vers=3"),
    # over IPv6, whose addresses have an attribute of their own
    "NFSv4 WRITE": ("[::1]", "proto=tcp6,port=2049,vers=4.2"),
}
STATE = ("threads", "listeners", "versions", "pool_threads", "pool_mode")
IMAGE, EXPORT = Path("/export/held.img"), Path("/srv/held")
BUNDLE = Path("/export/held.tar.gz")
TRACING = Path("/sys/kernel/tracing/instances/pending")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HUNG = Path("/proc/sys/kernel/hung_task_timeout_secs")
LIMIT = 300


class Held(NamedTuple):
    """The state of nfsd by each reader, while it holds a WRITE; ``after`` is a status later."""

    status: dict[str, Any]
    events: list[str]
    text: str
    top: str
    bundle: dict[str, Any]
    files: dict[str, str]
    nfsdctl: dict[str, str]
    after: dict[str, Any]


def status_of(*words: str) -> dict[str, Any]:
    return dict(json.loads(call("nfsrdma", "server", "status", "--json", *words)))


@contextlib.contextmanager
def exported() -> Iterator[None]:
    """A file system that can be frozen."""
    EXPORT.mkdir()
    call("truncate", "--size=64M", IMAGE)
    call("mkfs.ext4", "-q", IMAGE)
    call("mount", "-o", "loop", IMAGE, EXPORT)
    call("exportfs", "-o", "rw,no_root_squash,insecure,no_subtree_check,fsid=77", f"*:{EXPORT}")
    try:
        yield
    finally:
        call("exportfs", "-u", f"*:{EXPORT}")
        # nfsd keeps files open
        call("exportfs", "-f")

        def is_unmounted() -> bool:
            return not subprocess.run(("umount", EXPORT), check=False).returncode

        until("an idle filesystem", is_unmounted, LIMIT, pause=0.2)
        for path in (IMAGE, BUNDLE):
            path.unlink(missing_ok=True)
        EXPORT.rmdir()


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """The XIDs of RPCs by the kernel's own event."""
    TRACING.mkdir()
    event = TRACING / "events/sunrpc/svc_process/enable"
    event.write_text("1")
    try:
        yield
    finally:
        event.write_text("0")
        TRACING.rmdir()


def processed() -> list[str]:
    lines = (TRACING / "trace").read_text().splitlines()
    return [line.partition("svc_process: ")[2] for line in lines if "svc_process: " in line]


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """A WRITE that nfsd has, and that the frozen filesystem does not let end."""
    # on a busy host the readers take longer than the 120 s after which the kernel reports nfsd
    patience = HUNG.read_text()
    HUNG.write_text("0")
    path.write_bytes(bytes(4096))
    call("sync", path)
    call("fsfreeze", "--freeze", EXPORT)
    argv = ("dd", "if=/dev/zero", f"of={path}", "bs=4096", "count=1", "oflag=direct")
    writer = None
    try:
        before = len(processed())
        writer = subprocess.Popen((*argv, "conv=notrunc"), stderr=subprocess.DEVNULL)
        yield before
        assert writer.poll() is None, "the WRITE ended"
    finally:
        call("fsfreeze", "--unfreeze", EXPORT)
        if writer:
            assert writer.wait(LIMIT) == 0
        HUNG.write_text(patience)


def files() -> dict[str, str]:
    nfsd = Path("/proc/fs/nfsd")
    names = ("threads", "portlist", "versions", "pool_threads")
    return {name: (nfsd / name).read_text() for name in names}


def nfsdctl(command: str) -> str:
    """The output of nfsdctl; "" if it is not installed, or the kernel lacks nfsd's netlink."""
    if not shutil.which("nfsdctl"):
        return ""
    done = subprocess.run(("nfsdctl", command), capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "nfsd not found" in done.stderr, done
    return done.stdout


@on("server", timeout=900)
def hold(source: str, options: str) -> Held:
    """Have nfsd hold a WRITE.  One kernel is server and client."""
    with (
        exported(),
        mounted(options, Path("/mnt/held"), f"{source}:{EXPORT}") as folder,
        traced(),
    ):
        with held(folder / "file") as before:

            def waiting() -> tuple[dict[str, Any], list[str]] | None:
                """The status once nfsd has the WRITE, and the events of RPCs since the freeze.

                Of a kernel that does not report pending RPCs, the status at the first event.
                """
                status = status_of()
                events, pending = processed()[before:], status["pending"]
                if pending is None:
                    return (status, events) if events else None
                is_held = any("WRITE" in rpc["name"] for rpc in pending["rpcs"])
                return (status, events) if is_held else None

            status, events = until("a WRITE", waiting, LIMIT, pause=0.2)
            call("nfsrdma", "collect", "--output", BUNDLE)
            text = call(*NOBODY, "nfsrdma", "server", "status")
            top = call("nfsrdma", "top", "--batch", "--no-probes", "--count", "2")
            bundle = status_of("--from", str(BUNDLE))
            commands = {n: nfsdctl(n) for n in ("status", "threads", "listener", "version")}
            state = files()
        after = status_of()
        # on Linux 6.1, top sends an RPC to each mount; it ended while this one was held
        recover()
    return Held(status, events, text, top, bundle, state, commands, after)


def swapped(number: str) -> int:
    """A number in network order that nfsdctl prints as one in the host's order."""
    bits = 32 if number.startswith("0x") else 16
    return int.from_bytes(int(number, 0).to_bytes(bits // 8, "little"), "big")


def agree(held: Held) -> None:
    """Compare threads, listeners and versions with /proc/fs/nfsd, and with nfsdctl if it is there.

    /proc/fs/nfsd lists NFSv4.0 only if it is off.
    """
    status, files, nfsdctl = held.status, held.files, held.nfsdctl
    assert [status["threads"]] == [int(files["threads"])]
    assert status["pool_threads"] == list(map(int, files["pool_threads"].split()))
    listed = {tuple(line.split()) for line in files["portlist"].splitlines()}
    assert {(each["transport"], str(each["port"])) for each in status["listeners"]} == listed
    words = files["versions"].split()
    on = {word.removeprefix("+") for word in words if word[0] == "+"}
    assert set(status["versions"]) == (on - {"4"}) | ({"4.0"} if "-4.0" not in words else set())
    if not nfsdctl["status"]:
        return
    pools = re.search("pool-threads: (.*)", nfsdctl["threads"])
    assert pools
    assert status["pool_threads"] == list(map(int, pools[1].split()))
    listed = {tuple(re.split(r":(?:\S*:)?", line)) for line in nfsdctl["listener"].split()}
    assert {(each["transport"], str(each["port"])) for each in status["listeners"]} == listed
    on = {word.removeprefix("+") for word in nfsdctl["version"].split() if word[0] == "+"}
    assert set(status["versions"]) == {"3" if word == "3.0" else word for word in on}


@pytest.mark.parametrize("name", MOUNTS)
def test_a_held_write_is_pending(name: str, solo: Lab, request: pytest.FixtureRequest) -> None:
    held = hold(solo, *MOUNTS[name])
    agree(held)
    assert [held.bundle[key] for key in STATE] == [held.status[key] for key in STATE]
    if request.config.getoption("--kernel") == "6.1":
        why = "the kernel has no netlink family nfsd (before Linux 6.7)"
        assert f"\npending    unknown ({why})\n" in held.text
        assert "threads    unknown (needs root)\n" in held.text
        assert f"unavailable: pending RPCs of nfsd: {why}" in held.top
        readers = (held.status, held.bundle, held.after)
        assert {reader["pending_unknown"] for reader in readers} == {why}
        return
    (rpc,) = (row for row in held.status["pending"]["rpcs"] if row["name"].startswith(name))
    # the kernel's own event of the same RPC
    procedure = "WRITE" if rpc["version"] == 3 else "COMPOUND"
    event = re.compile(rf"xid=0x{rpc['xid']:08x} .*vers={rpc['version']} proc={procedure}")
    assert any(event.search(line) for line in held.events), (rpc, held.events)
    assert rpc["program"] == 100003
    # as another user than root
    assert f"threads    {held.status['threads']}, " in held.text
    line = f"0x{rpc['xid']:08x} {rpc['name']} for "
    assert line in held.text
    assert f"nfsd: pending: {line}" in held.top
    if name == "NFSv3 WRITE":
        addresses = [rpc[key] for key in ("client", "client_port", "server", "server_port")]
        assert addresses == ["10.9.1.11", 0, "10.9.1.1", 20049]
        assert rpc["operations"] == []
    else:
        # half an address of a kernel without "widen nfsd_genl_rqstp address fields"
        assert rpc["client"] == rpc["server"]
        assert rpc["client"] in ("::1", "::/64")
        assert (rpc["client_port"] > 0, rpc["server_port"]) == (True, 2049)
        # SEQUENCE PUTFH WRITE
        assert rpc["operations"][:3] == [53, 22, 38]
    (there,) = (row for row in held.bundle["pending"]["rpcs"] if row["xid"] == rpc["xid"])
    # collect came later, by the clock of the kernel
    assert there.pop("age_us") > rpc["age_us"] > 0
    assert there.items() < rpc.items()
    after = held.after["pending"]
    assert rpc["xid"] not in [row["xid"] for row in after["rpcs"]]
    if held.nfsdctl["status"]:
        rows = [row.split() for row in held.nfsdctl["status"].splitlines()]
        (row,) = (row for row in rows if swapped(row[0]) == rpc["xid"])
        assert row[2:5] == [str(rpc["program"]), str(rpc["procedure"]), f"NFS{rpc['version']}"]
        if name == "NFSv3 WRITE":
            ports = [swapped(port) for port in row[8:10]]
            assert [*row[6:8], *ports] == ["10.9.1.11", "10.9.1.1", 0, 20049]
