# SPDX-License-Identifier: Apache-2.0
"""Folders, links and attributes, for which NFS needs long messages; runs in the node.

``python3 - NAME JSON`` calls the function NAME with arguments from JSON and prints its result;
/mnt/here is mounted by our module.  Never imported by the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nfsrdma_tools.host.nfs import mountstats

HERE = Path("/mnt/here")
EXPORT = Path("/export")
# inline, around the inline limit, the longest that Linux takes
TARGETS = (1, 900, 1023, 1024, 3800, 3900, 4000, 4095)
ATTRIBUTES = (1, 1000, 4095, 4096, 4097, 65535, 65536)


def many(count: int) -> list[str]:
    return [f"entry-{i}-{'x' * (i % 60)}" for i in range(count)]


def chunks() -> dict[str, int]:
    """Messages that were too long to travel inline."""
    xprts = mountstats.read(HERE).xprts
    names = {"replies": "reply_chunk_count", "calls": "nomsg_call_count"}
    found = {name: sum(one.counters[column] for one in xprts) for name, column in names.items()}
    found["replies"] += fetches()
    return found


def fetches() -> int:
    """Replies that the client read from the server (personality read-read)."""
    files = Path("/sys/kernel/debug/nfsrdma").glob("[0-9]*/counters")
    lines = (line.split() for file in files for line in file.read_text().splitlines())
    return sum(int(value) for name, value in lines if name == "fetches")


def forget() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def make_folder(count: int) -> None:
    """On the server."""
    (EXPORT / "many").mkdir()
    for name in many(count):
        (EXPORT / "many" / name).touch()


def folder(count: int) -> dict[str, Any]:
    """List it by name, and with the attributes of each entry."""
    before = chunks()
    listed = sorted(path.name for path in (HERE / "many").iterdir())
    forget()
    files = sum(entry.stat().st_nlink == 1 for entry in os.scandir(HERE / "many"))
    return {
        "listed": len(listed), "same": listed == sorted(many(count)), "files": files,
        "replies": chunks()["replies"] - before["replies"],
    }  # fmt: skip


def target(length: int) -> str:
    """No part of a path is longer than 255 bytes."""
    return (("d" * 199 + "/") * (length // 200 + 1))[: length - 1] + "t"


def links(_: None) -> list[int]:
    """Lengths of targets that are not read as they were made."""
    for length in TARGETS:
        (HERE / f"link-{length}").symlink_to(target(length))
    forget()
    return [n for n in TARGETS if str((HERE / f"link-{n}").readlink()) != target(n)]


def links_there(_: None) -> list[int]:
    """The same on the server."""
    return [n for n in TARGETS if str((EXPORT / f"link-{n}").readlink()) != target(n)]


def acl(count: int) -> list[str]:
    return [f"user:{20001 + i}:r-x" for i in range(count)]


def posix_acl(count: int) -> dict[str, Any]:
    path, before = HERE / "acl", chunks()
    path.touch()
    words = "\n".join(acl(count)) + "\n"
    subprocess.run(("setfacl", "-M", "-", path), input=words, text=True, check=True)
    forget()
    said = subprocess.run(("getfacl", "-cn", path), capture_output=True, text=True, check=True)
    got = [line for line in said.stdout.splitlines() if line.startswith("user:2")]
    now = chunks()
    return {"same": got == acl(count), **{name: now[name] - before[name] for name in now}}


def nfs4_acl(count: int) -> dict[str, Any]:
    path, before = HERE / "acl4", chunks()
    path.touch()
    words = "".join(f"A::{20001 + i}:rwatTnNcCy\n" for i in range(count))
    subprocess.run(("nfs4_setfacl", "-A", "-", path), input=words, text=True, check=True)
    said = subprocess.run(("nfs4_getfacl", path), capture_output=True, text=True, check=True)
    got = [line.split(":")[2] for line in said.stdout.splitlines() if line.startswith("A::2")]
    now = chunks()
    wanted = [str(20001 + i) for i in range(count)]
    return {"same": got == wanted, **{name: now[name] - before[name] for name in now}}


def attribute(path: Path, name: str) -> bytes:
    """Python tries a small buffer first, and the reply does not fit."""
    argv = ("getfattr", "--absolute-names", "--only-values", "-n", name, path)
    return subprocess.run(argv, capture_output=True, check=True).stdout


def attributes(_: None) -> dict[str, Any]:
    """User attributes of NFSv4.2: values of all lengths, a long list of names."""
    path, before = HERE / "attributes", chunks()
    path.touch()
    values = {f"user.value-{size}": os.urandom(size) for size in ATTRIBUTES}
    values |= {f"user.{'n' * 100}-{i}": b"" for i in range(100)}
    for name, value in values.items():
        os.setxattr(path, name, value)
    forget()
    names = [name for name in os.listxattr(path) if name.startswith("user.")]
    wrong = [name for name in values if values[name] and attribute(path, name) != values[name]]
    os.removexattr(path, "user.value-65536")
    now = chunks()
    return {
        "names": sorted(names) == sorted(values), "wrong": wrong,
        "removed": "user.value-65536" not in os.listxattr(path),
        **{name: now[name] - before[name] for name in now},
    }  # fmt: skip


def main() -> Any:
    return globals()[sys.argv[1]](json.loads(sys.argv[2]))
