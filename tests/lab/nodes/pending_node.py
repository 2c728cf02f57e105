# SPDX-License-Identifier: Apache-2.0
"""A WRITE that waits for a frozen filesystem of the server, and what each reader says of it.

``python3 - SOURCE OPTIONS`` mounts it so, and prints JSON.  One kernel is server and client.  Never
imported by the tests.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nfsrdma_tools.undo import recover

IMAGE, EXPORT, MOUNT = Path("/export/held.img"), Path("/srv/held"), Path("/mnt/held")
BUNDLE = Path("/export/held.tar.gz")
TRACING = Path("/sys/kernel/tracing/instances/pending")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HUNG = Path("/proc/sys/kernel/hung_task_timeout_secs")
LIMIT = 300


def said(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout


def status(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said("nfsrdma", "server", "status", "--json", *words))
    return found


@contextlib.contextmanager
def mounted(source: str, options: str) -> Iterator[None]:
    EXPORT.mkdir()
    MOUNT.mkdir()
    said("truncate", "--size=64M", str(IMAGE))
    said("mkfs.ext4", "-q", str(IMAGE))
    said("mount", "-o", "loop", str(IMAGE), str(EXPORT))
    as_root = "rw,no_root_squash,insecure,no_subtree_check,fsid=77"
    said("exportfs", "-o", as_root, f"*:{EXPORT}")
    try:
        said("mount", "-t", "nfs", "-o", options, f"{source}:{EXPORT}", str(MOUNT))
        try:
            yield
        finally:
            said("umount", str(MOUNT))
    finally:
        said("exportfs", "-u", f"*:{EXPORT}")
        # nfsd keeps files open
        said("exportfs", "-f")
        end = time.monotonic() + LIMIT
        while subprocess.run(("umount", str(EXPORT)), check=False).returncode:
            assert time.monotonic() < end, "the filesystem is busy"
            time.sleep(0.2)
        for path in (IMAGE, BUNDLE):
            path.unlink(missing_ok=True)
        EXPORT.rmdir()
        MOUNT.rmdir()


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
def held() -> Iterator[int]:
    """A WRITE that nfsd has, and that the frozen filesystem does not let end."""
    # on a busy host the readers take longer than the 120 s after which the kernel reports nfsd
    patience = HUNG.read_text()
    HUNG.write_text("0")
    path = MOUNT / "file"
    path.write_bytes(bytes(4096))
    said("sync", str(path))
    said("fsfreeze", "--freeze", str(EXPORT))
    argv = ("dd", "if=/dev/zero", f"of={path}", "bs=4096", "count=1", "oflag=direct")
    writer = None
    try:
        seen = len(processed())
        writer = subprocess.Popen((*argv, "conv=notrunc"), stderr=subprocess.DEVNULL)
        yield seen
        assert writer.poll() is None, "the WRITE ended"
    finally:
        said("fsfreeze", "--unfreeze", str(EXPORT))
        if writer:
            assert writer.wait(LIMIT) == 0
        HUNG.write_text(patience)


def files() -> dict[str, str]:
    nfsd = Path("/proc/fs/nfsd")
    names = ("threads", "portlist", "versions", "pool_threads")
    return {name: (nfsd / name).read_text() for name in names}


def nfsdctl(command: str) -> str:
    """What nfsdctl prints; "" if it is not installed, or the kernel has no netlink family nfsd."""
    if not shutil.which("nfsdctl"):
        return ""
    done = subprocess.run(("nfsdctl", command), capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "nfsd not found" in done.stderr, done
    return done.stdout


def waiting(seen: int) -> tuple[dict[str, Any], list[str]]:
    """The status once nfsd has the WRITE, and the events of RPCs since the freeze.

    Of a kernel that does not report pending RPCs, the status at the first event.
    """
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        now, events = status(), processed()[seen:]
        pending = now["pending"]
        if any("WRITE" in rpc["name"] for rpc in (pending or {"rpcs": []})["rpcs"]):
            return now, processed()[seen:]
        if pending is None and events:
            return now, events
        time.sleep(0.2)
    raise AssertionError((status(), processed()))


def main(source: str, options: str) -> dict[str, Any]:
    with mounted(source, options), traced():
        with held() as seen:
            now, events = waiting(seen)
            said("nfsrdma", "collect", "--output", str(BUNDLE))
            found = {
                "status": now,
                "events": events,
                "text": said(*NOBODY, "nfsrdma", "server", "status"),
                "top": said("nfsrdma", "top", "--batch", "--no-probes", "--count", "2"),
                "bundle": status("--from", str(BUNDLE)),
                "files": files(),
                "nfsdctl": {
                    name: nfsdctl(name) for name in ("status", "threads", "listener", "version")
                },
            }
        found["after"] = status()
        # on Linux 6.1, top sends an RPC to each mount; it ended while this one was held
        recover()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
