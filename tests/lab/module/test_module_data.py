# SPDX-License-Identifier: Apache-2.0
"""Our module carries data of every size, and every kind of long message, unchanged."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from testbed.module_data import WAYS, around, carried, delegation, fio
from testbed.mounts import HERE, LIMIT, mounted, set_parameters
from testbed.node import mounts
from testbed.node.programs import call
from testbed.remote import on

Record = Callable[[str, object], None]
PAGE, KIB64, MIB = 4096, 1 << 16, 1 << 20
FEW = ("buffered", "direct-skewed")
IPV6 = "[fd09:9:1::1]:/export"
EVERY = around(*(1 << n for n in range(24)))
STRESSORS = ("hdd", "rename", "utime", "flock", "iomix")
MORE = (*STRESSORS, "dentry", "dir", "link", "symlink")
# mr_depth 16: as many pages in a memory region, many regions in a chunk
INLINE = {"inline_send": 1024, "inline_recv": 1024}
SMALL = INLINE | {"mr_depth": 16}
EXPORT = Path("/export")
# lengths of targets: inline, around the inline limit, the longest that Linux takes
TARGETS = (1, 900, 1023, 1024, 3800, 3900, 4000, 4095)
ATTRIBUTES = (1, 1000, 4095, 4096, 4097, 65535, 65536)


def test_data_of_every_size_is_what_it_was(
    ours: Lab, long: bool, pytestconfig: pytest.Config, record_property: Record
) -> None:
    plans = (
        (
            "vers=3,rsize=1024,wsize=1024",
            [1, 2, 3, 4, 5, *around(1024, PAGE, 9216)],
            "server:/export",
        ),
        ("vers=4.0,rsize=65536,wsize=65536", around(KIB64), IPV6),
        ("vers=4.1,nconnect=16", EVERY if long else around(MIB), "server:/export"),
    )
    moved = 0
    for seed, (options, sizes, target) in enumerate(plans):
        result = carried(ours, options, sizes, seed, WAYS if long else FEW, target)
        moved += result.bytes
    # the kernel's server takes messages of a page, ours of two, into which each reply here fits
    small = pytestconfig.getoption("--server") == "kernel"
    largest = PAGE if small else 2 * PAGE
    assert largest - 600 < result.limits["write"] < largest
    chunks = result.chunks
    data = chunks["write"] + chunks["fetches"]
    assert (chunks["read"] > 0, data > 0, chunks["reply"] > 0) == (True, True, small)
    record_property("bytes", moved)
    record_property("sizes", len(result.sizes))


def test_data_in_many_small_regions(ours: Lab, long: bool, record_property: Record) -> None:
    with set_parameters(ours, "client", **SMALL):
        sizes = EVERY if long else around(1024, KIB64, 17 * KIB64)
        result = carried(ours, "vers=4.2", sizes, 4, FEW)
        assert 500 < result.limits["write"] < 1024
        last = carried(ours, "vers=3", [8 * MIB - 1], 5, FEW[1:], IPV6)
    record_property("bytes", result.bytes + last.bytes)


def test_fio_finds_nothing_wrong(ours: Lab, long: bool, record_property: Record) -> None:
    done = fio(ours, "vers=4.2,nconnect=4", loops=200 if long else 2, seed=5)
    for name, value in done.items():
        record_property(name, value)


def test_stress_ng_finds_nothing_wrong(ours: Lab, long: bool, record_property: Record) -> None:
    """Its stressors, all at once, verify what they do."""
    names, seconds = (MORE, 60) if long else (STRESSORS, 5)
    one_each = [word for name in names for word in (f"--{name}", "1")]
    words = ("--verify", "--timeout", f"{seconds}s", "--hdd-bytes", "8m", "--fallocate-bytes", "8m")
    with mounted(ours, "vers=3"):
        ours.run("client", "mkdir", f"{HERE}/stress")
        argv = ("stress-ng", "--temp-path", f"{HERE}/stress", *words, *one_each)
        output = ours.run("client", *argv, timeout=seconds + LIMIT).stdout
        ours.run("client", "rm", "-r", f"{HERE}/stress")
    record_property("verdict", next(line for line in output.splitlines() if "passed:" in line))


class Chunks(NamedTuple):
    """Messages that were too long to travel inline."""

    replies: int
    calls: int


def chunks(before: Chunks = Chunks(0, 0)) -> Chunks:
    """Those of the mount since ``before``; the client reads some replies (read-read)."""
    rows = [xprt.counters for xprt in mountstats.read(mounts.HERE).xprts]
    replies = sum(row["reply_chunk_count"] for row in rows) + mounts.counters().get("fetches", 0)
    calls = sum(row["nomsg_call_count"] for row in rows)
    return Chunks(replies - before.replies, calls - before.calls)


def many(count: int) -> list[str]:
    return [f"entry-{i}-{'x' * (i % 60)}" for i in range(count)]


def target(length: int) -> Path:
    """No part of a path is longer than 255 bytes."""
    return Path((("d" * 199 + "/") * (length // 200 + 1))[: length - 1] + "t")


@on("server")
def make_folder(count: int) -> None:
    (EXPORT / "many").mkdir()
    for name in many(count):
        (EXPORT / "many" / name).touch()


@on("client")
def list_and_link(options: str, count: int) -> None:
    """List the folder by name and with the attributes of each entry; make links, and read them."""
    with mounts.mounted(options) as mount:
        assert mounts.connections(), "the mount is not carried by our module"
        before = chunks()
        assert sorted(path.name for path in (mount / "many").iterdir()) == sorted(many(count))
        mounts.drop_caches()
        assert [path for path in (mount / "many").iterdir() if path.stat().st_nlink != 1] == []
        assert chunks(before).replies > 0
        for length in TARGETS:
            (mount / f"link-{length}").symlink_to(target(length))
        mounts.drop_caches()
        check_links(mount)


def check_links(folder: Path) -> None:
    assert [n for n in TARGETS if (folder / f"link-{n}").readlink() != target(n)] == []


@on("server")
def check_links_there() -> None:
    check_links(EXPORT)


def list_folder(lab: Lab, options: str, count: int) -> None:
    """A folder of many entries, and links with targets of all lengths."""
    make_folder(lab, count)
    try:
        list_and_link(lab, options, count)
        check_links_there(lab)
    finally:
        lab.run("server", "sh", "-c", "rm -rf /export/many /export/link-*")


@contextmanager
def long_messages(options: str, *, calls: bool = True) -> Iterator[Path]:
    """A new file; what the block does with it needs long replies, and long Calls."""
    with mounts.mounted(options) as mount:
        assert mounts.connections(), "the mount is not carried by our module"
        path, before = mount / "attributes", chunks()
        path.touch()
        yield path
        since = chunks(before)
        assert since.replies > 0
        assert since.calls > 0 or not calls
        path.unlink()


@on("client")
def set_nfs4_acl(options: str, count: int) -> None:
    users = [str(20001 + i) for i in range(count)]
    entries = "".join(f"A::{user}:rwatTnNcCy\n" for user in users)
    with long_messages(options, calls=False) as path:
        call("nfs4_setfacl", "-A", "-", path, stdin=entries)
        lines = call("nfs4_getfacl", path).splitlines()
        assert [line.split(":")[2] for line in lines if line.startswith("A::2")] == users


@on("client")
def set_posix_acl(options: str, count: int) -> None:
    """Written in a Call that does not fit, read into pages that nobody had provided."""
    entries = [f"user:{20001 + i}:r-x" for i in range(count)]
    with long_messages(options) as path:
        call("setfacl", "-M", "-", path, stdin="\n".join(entries) + "\n")
        mounts.drop_caches()
        lines = call("getfacl", "-cn", path).splitlines()
        assert [line for line in lines if line.startswith("user:2")] == entries


@pytest.mark.nightly
def test_folders_links_and_access_lists(ours: Lab, long: bool) -> None:
    list_folder(ours, "vers=4.1", 10_000 if long else 2_000)
    with set_parameters(ours, "client", **INLINE):
        set_nfs4_acl(ours, "vers=4.0", 100)
        list_folder(ours, "vers=3", 10_000 if long else 500)
        set_posix_acl(ours, "vers=3", 300)


@on("server")
def has_user_attributes() -> bool:
    """Whether the exported file system stores user attributes; tmpfs does since Linux 6.6."""
    path = EXPORT / "attributes"
    path.touch()
    try:
        os.setxattr(path, "user.asked", b"1")
    except OSError:
        return False
    finally:
        path.unlink()
    return True


@on("client")
def set_attributes(options: str) -> None:
    """User attributes of NFSv4.2: values of all lengths, a long list of names."""
    values = {f"user.value-{size}": os.urandom(size) for size in ATTRIBUTES}
    values |= {f"user.{'n' * 100}-{i}": b"" for i in range(100)}
    with long_messages(options) as path:
        for name, value in values.items():
            os.setxattr(path, name, value)
        mounts.drop_caches()
        assert {name for name in os.listxattr(path) if name.startswith("user.")} == set(values)
        assert [
            name for name in values if values[name] and attribute(path, name) != values[name]
        ] == []
        os.removexattr(path, "user.value-65536")
        assert "user.value-65536" not in os.listxattr(path)


def attribute(path: Path, name: str) -> bytes:
    """Its value; Python would try a small buffer first, and the reply does not fit."""
    argv = ("getfattr", "--absolute-names", "--only-values", "-n", name, path)
    return subprocess.run(argv, capture_output=True, check=True).stdout


def test_user_attributes(ours: Lab) -> None:
    if not has_user_attributes(ours):
        pytest.skip("no user attributes on this tmpfs; missed: theirs over NFSv4.2")
    set_attributes(ours, "vers=4.2")


def test_the_server_calls_the_client_back(ours: Lab, pytestconfig: pytest.Config) -> None:
    delegation(ours, "vers=4.1")
    # how a device goes is known of soft-RoCE
    if pytestconfig.getoption("--nic") == "rxe":
        delegation(ours, "vers=4.2,nconnect=4", "server's device removed")
