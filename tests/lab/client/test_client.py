# SPDX-License-Identifier: Apache-2.0
"""The client without a mount: Python, commands and fsspec, against both modules of the server."""

import asyncio
import errno
import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.lab import Lab
from testbed.client_files import DATA, HERE, TARGET, files, session_here
from testbed.client_library import place_program
from testbed.labs import OURS, THEIRS, serve
from testbed.remote import on

pytestmark = pytest.mark.lab

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
# eleven commands, on a busy host
SECONDS = 900


def device(lab: Lab) -> str:
    return f"{lab.config.nic}0"


def sh(lab: Lab, script: str, check: bool = True) -> Result:
    return lab.run("client", "sh", "-ec", script, check=check, timeout=SECONDS)


def fails(lab: Lab, script: str) -> str:
    """The one line of a command that fails with status 1."""
    done = sh(lab, script, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    return done.stderr


# --- Python ---

HOSTILE = (b"\x1b[2Jx", b"new\nline", b"\xff\xfe", b"-rf", b" ", "日本".encode(), b"n" * 255)
ATTRIBUTES = ("mode", "ino", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns")


def error_of(call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "none"


def check_attributes(session: Session, name: str) -> None:
    ours, theirs = session.lstat(name), (HERE / name).lstat()
    for attribute in ATTRIBUTES:
        assert getattr(ours, f"st_{attribute}") == getattr(theirs, f"st_{attribute}"), attribute


@on("client", timeout=SECONDS)
def names() -> None:
    """Names and attributes, compared with those that the server's file system has."""
    with session_here() as session:
        session.unlink("data")
        for name in HOSTILE:
            (HERE / os.fsdecode(name)).write_bytes(name)
        assert sorted(map(os.fsencode, session.listdir())) == sorted(HOSTILE)
        for name in HOSTILE:
            assert session.open(name).readall() == name
        session.mkdir("sub")
        for number in range(400):
            (HERE / "sub" / f"{number:0200}").touch()
        assert sorted(session.listdir("sub")) == sorted(p.name for p in (HERE / "sub").iterdir())
        session.symlink("../data", "sub/link")
        session.rename("sub/link", "moved")
        assert session.readlink("moved") == "../data"
        assert stat.S_ISLNK(session.lstat("moved").st_mode)
        check_attributes(session, "sub")
        check_attributes(session, os.fsdecode(HOSTILE[0]))
        assert error_of(session.stat, "none") == "ENOENT"
        assert error_of(session.rmdir, "sub") == "ENOTEMPTY"
        assert error_of(session.open, "sub") == "EISDIR"
        assert error_of(session.mkdir, "sub") == "EEXIST"
        session.unlink("moved")
        session.mkdir("empty")
        session.rmdir("empty")
        assert sorted(os.fsencode(p.name) for p in HERE.iterdir()) == sorted((*HOSTILE, b"sub"))


@on("client", timeout=SECONDS)
def coroutines() -> None:
    """Many reads in an event loop that goes on meanwhile."""
    with session_here() as session:
        file, out = session.open("data"), session.open("async", "w")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async def read() -> list[bytes]:
            clock = asyncio.create_task(tick())
            pieces = (file.pread_async(30_000, n * 30_000) for n in range(101))
            data = await asyncio.wait_for(asyncio.gather(*pieces), 120)
            clock.cancel()
            return data

        async def write() -> None:
            steps = range(0, len(DATA), 99_999)
            pieces = (out.pwrite_async(DATA[n : n + 99_999], n) for n in steps)
            await asyncio.wait_for(asyncio.gather(*pieces), 120)

        assert b"".join(asyncio.run(read())) == DATA
        assert ticks > 1
        asyncio.run(write())
        assert asyncio.run(read()) == [DATA[n * 30_000 :][:30_000] for n in range(101)]
        assert (HERE / "async").read_bytes() == DATA


@on("client", timeout=SECONDS)
def forked() -> None:
    """A child cannot use the session, opens its own, and the parent's goes on."""
    with session_here() as session:
        file = session.open("data")
        child = os.fork()
        if not child:
            status = 1
            try:
                if error_of(file.pread, 1, 0) == "EOWNERDEAD":
                    with connect(TARGET) as own, own.open("data") as again:
                        status = 0 if again.pread(1000, 5) == DATA[5:1005] else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert file.pread(70_000, 9) == DATA[9:70_009]


@on("client", timeout=SECONDS)
def fsspec_files() -> None:
    """Reads and writes of other programs, by URL."""
    import fsspec

    from nfsrdma_tools.client.fsspec import NfsRdmaFileSystem

    # an installed package has an entry point
    fsspec.register_implementation("nfsrdma", NfsRdmaFileSystem)
    with session_here():
        url = f"nfsrdma://{TARGET.replace(':/', '/')}"
        with fsspec.open(f"{url}/data") as file:
            system = file.fs
            assert file.read() == DATA
        paths = [f"{HERE}/{name}" for name in ("data", "none", "data")]
        first, missing, last = system.cat_ranges(paths, [0, 0, 2_900_000], [50_000, 1, 4_000_000])
        assert first == DATA[:50_000]
        assert isinstance(missing, FileNotFoundError)
        assert last == DATA[2_900_000:]
        with fsspec.open(f"{url}/new", "wb") as file:
            file.write(DATA)
        assert (HERE / "new").read_bytes() == DATA
        assert sorted(system.ls(str(HERE), detail=False)) == [f"{HERE}/data", f"{HERE}/new"]
        system.close()


def restart(*before: str) -> None:
    """Restart nfsd; its clients have a grace period of 10 seconds."""
    script = "; ".join((*before, "systemctl restart nfs-server"))
    subprocess.run(["sh", "-ec", script], check=True, timeout=SECONDS)


@on("client", timeout=SECONDS)
def restarts_with_nfs41() -> None:
    """nfsd restarts while files are open: what was not committed is reported, and nothing else."""
    conf = "/etc/nfs.conf.d/short.conf"
    lines = "[nfsd]\\nlease-time=10\\ngrace-time=10\\n"
    restart("mkdir -p /etc/nfs.conf.d", f"printf '{lines}' > {conf}")
    try:
        with session_here(), connect(TARGET, vers="4.1", timeout=300) as session:
            session.mkdir("sub", 0o750)
            mode = os.O_RDWR | os.O_CREAT | os.O_EXCL
            kept, changed = (session.open(f"sub/{name}", mode, 0o640) for name in ("a", "b"))
            check_attributes(session, "sub")
            check_attributes(session, "sub/a")
            kept.pwrite(DATA, 0)
            kept.fsync()
            changed.pwrite(DATA, 0)
            restart()
            # in the grace period: the open files are reclaimed, and a new one waits for its end
            kept.pwrite(DATA[::-1], 0)
            assert kept.pread(1000, 5) == DATA[::-1][5:1005]
            assert error_of(changed.fsync) == "EIO"
            changed.pwrite(DATA, 0)
            changed.fsync()
            with session.open("sub/c", "w") as new:
                new.write(DATA[:1000])
            session.rename("sub/c", "sub/d")
            session.truncate("sub/d", 500)
            kept.truncate(2_000_000)
            # nfsd forgets the client, as after a lease
            for ctl in Path("/proc/fs/nfsd/clients").glob("*/ctl"):
                ctl.write_text("expire\n")
            changed.pwrite(b"end", len(DATA))
            for file in (kept, changed):
                file.fsync()
            restart()
            for file in (kept, changed):
                file.close()
            assert (HERE / "sub/a").read_bytes() == DATA[::-1][:2_000_000]
            assert (HERE / "sub/b").read_bytes() == DATA + b"end"
            assert (HERE / "sub/d").read_bytes() == DATA[:500]
            for name in ("a", "b", "d"):
                session.unlink(f"sub/{name}")
            session.rmdir("sub")
            assert session.listdir() == ["data"]
    finally:
        restart(f"rm -f {conf}")


PARTS = (files, names, coroutines, forked, fsspec_files)


@pytest.mark.parametrize("part", PARTS)
def test_python(solo: Lab, part: Callable[[Lab], None]) -> None:
    part(solo)


@pytest.mark.nightly
def test_python_with_our_server(solo: Lab) -> None:
    try:
        serve(solo, "client", OURS)
        for part in PARTS:
            part(solo)
        sh(solo, "echo padded,cached > /sys/module/nfsrdma/parameters/server_personalities")
        terms = ping(solo, "server")
        assert (terms["extended"], terms["personalities"]) == (True, ["padded", "cached"])
        assert "module nfsrdma" in sh(solo, "nfsrdma ping server").stdout
    finally:
        serve(solo, "client", THEIRS)


@pytest.mark.nightly
def test_nfs41_goes_on_after_restarts(solo: Lab) -> None:
    restarts_with_nfs41(solo)


# --- ping ---


def ping(lab: Lab, words: str, before: str = "") -> dict[str, Any]:
    terms: dict[str, Any] = json.loads(sh(lab, f"{before} nfsrdma ping {words} --json").stdout)
    return terms


def test_ping_has_the_terms_and_the_round_trips(solo: Lab) -> None:
    terms = ping(solo, "server --count 20")
    trips = terms.pop("round_trip_us")
    # the lab's wire has 50 us each way
    assert 100 <= trips["min"] <= trips["median"] <= trips["p99"]
    assert terms["address"] == "10.9.1.1"
    assert terms["device"] == device(solo)
    assert terms["credits"] > 1
    assert (terms["private_data"], terms["extended"]) == (True, False)
    # the kernel's default, RPCRDMA_DEF_INLINE
    assert (terms["send_size"], terms["recv_size"]) == (4096, 4096)
    assert terms["count"] == 20
    text = sh(solo, "nfsrdma ping 10.9.1.1:20049 -c 1").stdout
    assert text.startswith(
        f"10.9.1.1:20049: address 10.9.1.1, RDMA port 20049, by device {device(solo)}\n"
    )
    assert "\n1 round trips: min " in text


def test_ping_fails_in_one_line(solo: Lab) -> None:
    assert "refuses RDMA connections" in fails(solo, "nfsrdma ping server:4711")
    assert "no RDMA device has a route" in fails(solo, "nfsrdma ping 127.0.0.1")
    assert "none.invalid" in fails(solo, "nfsrdma ping none.invalid")
    missing = fails(solo, "NFSRDMA_LIBRARY=/none.so nfsrdma ping server")
    assert "/none.so: cannot open shared object file" in missing
    assert "apt install libnfsrdma0" in missing
    closed = "systemctl stop nfs-server; nfsrdma ping server --timeout 5"
    try:
        assert "nfsrdma: server" in fails(solo, closed)
    finally:
        serve(solo, "client", THEIRS)


def test_ping_of_an_ordinary_user(solo: Lab) -> None:
    user = "setpriv --reuid 1000 --regid 1000 --init-groups"
    assert ping(solo, "server", before=user)["credits"] > 1
    devices = "/dev/infiniband/rdma_cm"
    script = f"chmod 600 {devices}; trap 'chmod 666 {devices}' EXIT; {user} nfsrdma ping server"
    assert "may this user open it" in fails(solo, script)


def test_an_ordinary_user_needs_no_mount_daemon(solo: Lab) -> None:
    """It refuses ports above 1023 of an export that is secure."""
    user = "setpriv --reuid 1000 --regid 1000 --init-groups"
    script = f"""
    exportfs -o rw,async,no_root_squash,secure,no_subtree_check,fsid=1 '*:/export'
    trap 'exportfs -ra; rm -rf /export/readable /export/own /export/others' EXIT
    head -c 100000 /dev/urandom > /export/readable
    {user} nfsrdma cat server:/export/readable | cmp - /export/readable
    {user} nfsrdma ls server:/export
    install -d -o 1000 /export/own /export/others
    chown root /export/others
    {user} nfsrdma cp /export/readable server:/export/own > /dev/null
    cmp /export/readable /export/own/readable
    stat --format %u /export/own/readable
    ! {user} nfsrdma cp /etc/hostname server:/export/others 2> /tmp/error; cat /tmp/error
    """
    *listed, owner, error = sh(solo, script).stdout.splitlines()
    assert "readable" in listed
    assert owner == "1000"
    assert "Permission denied" in error


# --- files ---


def test_commands_copy_both_ways(solo: Lab) -> None:
    script = """
    mkdir -p /export/tree/sub /tmp/here; cd /tmp/here
    trap 'rm -rf /export/tree /tmp/here' EXIT
    head -c 9000001 /dev/urandom > /export/tree/big
    head -c 100 /dev/urandom > /export/tree/sub/small
    : > /export/tree/sub/empty
    ln -s /etc/passwd /export/tree/sub/link
    nfsrdma ls server:/export/tree
    nfsrdma stat server:/export/tree/sub/link | head -3
    nfsrdma cat server:/export/tree/big server:/export/tree/sub/small > both
    cat /export/tree/big /export/tree/sub/small | cmp - both
    nfsrdma cat server:/export/tree/big | head -c 5 | cmp -n 5 - /export/tree/big
    nfsrdma cp server:/export/tree/big . && cmp big /export/tree/big
    ! nfsrdma cp server:/export/tree/big . 2> error; cat error
    nfsrdma cp --force big server:/export/tree/big
    nfsrdma cp -r server:/export/tree copy 2> error; cat error
    diff -r --no-dereference -x link copy /export/tree; test ! -e copy/sub/link
    nfsrdma cp -r copy server:/export/tree/sub
    diff -r copy /export/tree/sub/copy
    test -z "$(find / -xdev -name '*.nfsrdma-part')"
    """
    lines = sh(solo, script).stdout.splitlines()
    assert lines == [
        "big", "sub",
        "path      server:/export/tree/sub/link", "type      link", "mode      lrwxrwxrwx (0777)",
        "copied 1 file, 9000001 bytes",
        "nfsrdma: big exists (replace it with --force)",
        "copied 1 file, 9000001 bytes",
        "copied 3 files, 9000101 bytes",
        "left out, neither a file nor a directory: sub/link",
        "copied 3 files, 9000101 bytes",
    ]  # fmt: skip


# kills itself in the middle, with reads or writes in flight
KILLED = """
import os, signal, sys
from nfsrdma_tools.client import copy

left = 20_000_000
def advance(count):
    global left
    left -= count
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

os.chdir("/tmp")
copy.copy(sys.argv[1], sys.argv[2], copy.Options(advance=advance))
"""


def kill_copy(lab: Lab, source: str, target: str, part: str) -> int:
    """The bytes of a copy that was killed."""
    argv = ("sh", "-c", 'python3 - "$@"; exit $?', "sh", source, target)
    done = lab.run("client", *argv, stdin=KILLED.encode(), timeout=300, check=False)
    assert done.returncode == 137, done
    return int(sh(lab, f"cd /tmp; stat -c %s {part}").stdout)


def test_a_killed_copy_goes_on(solo: Lab) -> None:
    size, remote = 60_000_000, "server:/export/big"
    sh(solo, f"head -c {size} /dev/urandom > /export/big")
    try:
        there = kill_copy(solo, remote, ".", "big.nfsrdma-part")
        assert 0 < there < size
        again = f"cd /tmp; nfsrdma cp --continue --json {remote} . && cmp big /export/big"
        assert json.loads(sh(solo, again).stdout)["bytes"] == size - there
        sh(solo, "rm /export/big")
        assert 0 < kill_copy(solo, "big", "server:/export", "/export/big.nfsrdma-part") < size
        sh(solo, "cd /tmp; test ! -e /export/big; nfsrdma cp --continue big server:/export")
        sh(solo, "cmp /tmp/big /export/big")
    finally:
        sh(solo, "rm -f /export/big* /tmp/big*")


def test_hostile_names_reach_no_terminal(solo: Lab) -> None:
    """Python makes a terminal of its own, which is what a user would see."""
    name = "\x1b[2Jx\ny"
    script = f"""
    mkdir -p /export/names; trap 'rm -rf /export/names /tmp/names' EXIT
    : > /export/names/{shlex.quote(name)}
    python3 -c 'import pty; pty.spawn(["nfsrdma", "ls", "server:/export/names"])'
    nfsrdma ls -l server:/export/names
    nfsrdma cp -r server:/export/names /tmp/names
    test -e /tmp/names/{shlex.quote(name)}
    """
    text = sh(solo, script).stdout
    assert "\x1b" not in text
    assert text.count("?[2Jx?y") == 2


def test_doctor_tests_rdma(solo: Lab) -> None:
    findings = json.loads(sh(solo, "nfsrdma doctor server --json || true").stdout)["findings"]
    (row,) = (each for each in findings if each["name"] == "rdma server")
    assert row["status"] == "ok"
    place = f"10.9.1.1 answers on RDMA 20049 by {device(solo)}; round trip "
    assert row["found"].startswith(place)
    script = "NFSRDMA_LIBRARY=/none.so nfsrdma doctor server | grep -A1 'rdma server'"
    assert "apt install libnfsrdma0" in sh(solo, script).stdout


# --- the page ---


def program_of(page: str, before: str) -> str:
    """The first program of a page behind some text."""
    text = (PAGES / page).read_text().split(before)[1]
    match = re.search(r"^```\w+\n(.*?)^```$", text, re.M | re.S)
    assert match
    return match[1]


def test_the_programs_of_the_page_run(solo: Lab, tmp_path: Path) -> None:
    source = tmp_path / "ranges.c"
    source.write_text(program_of("client-c.md", "<!-- ranges.c"))
    place_program(solo, "client", source, "/run/ranges")
    sh(solo, "yes 1234567 | head -c 2000000 > /export/data")
    try:
        lines = sh(solo, "/run/ranges server:/export data").stdout.splitlines()
        assert sorted(lines) == sorted(f"read {number}: 4096 bytes" for number in range(16))
        python = program_of("client.md", "## Python").encode()
        printed = solo.run("client", "python3", "-", stdin=python, timeout=300).stdout
    finally:
        sh(solo, "rm /export/data /run/ranges")
    assert printed == "65536 b'1234567\\n'\n"
