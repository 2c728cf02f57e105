# SPDX-License-Identifier: Apache-2.0
"""The client without a mount: Python, commands and fsspec, against both modules of the server."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from carriers import OURS, THEIRS, serve
from client_library import place_program
from client_parts import check_files
from node_files import node_script

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

SCRIPT = node_script("client")
PAGES = Path(__file__).parents[2] / "docs" / "how-to"
# eleven commands, on a busy host
SECONDS = 900


def device(lab: Lab) -> str:
    return f"{lab.config.nic}0"


def on(lab: Lab, name: str) -> Any:
    """Run the function ``name`` of client_node.py in the node; returns its result."""
    return json.loads(lab.run("client", "python3", "-", name, stdin=SCRIPT, timeout=SECONDS).stdout)


def sh(lab: Lab, script: str, check: bool = True) -> Result:
    return lab.run("client", "sh", "-ec", script, check=check, timeout=SECONDS)


def fails(lab: Lab, script: str) -> str:
    """The one line of a command that fails with status 1."""
    done = sh(lab, script, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    return done.stderr


def check_names(found: dict[str, Any]) -> None:
    assert found == {
        "listed": True, "read": True, "many": True, "link": ["../data", True], "attributes": [],
        "errors": ["ENOENT", "ENOTEMPTY", "EISDIR", "EEXIST"], "left": True,
    }  # fmt: skip


def check_coroutines(found: dict[str, Any]) -> None:
    assert found == {"same": True, "ticked": True, "again": True, "written": True}


def check_forked(found: dict[str, Any]) -> None:
    assert found == {"child": 0, "parent": True}


def check_fsspec_files(found: dict[str, Any]) -> None:
    assert found == {
        "whole": True, "ranges": [True, "FileNotFoundError", True], "written": True,
        "listed": ["/export/client/data", "/export/client/new"],
    }  # fmt: skip


CHECKS = {
    "files": check_files,
    "names": check_names,
    "coroutines": check_coroutines,
    "forked": check_forked,
    "fsspec_files": check_fsspec_files,
}


@pytest.mark.parametrize("part", CHECKS)
def test_python(solo: Lab, part: str) -> None:
    CHECKS[part](on(solo, part))


@pytest.mark.nightly
def test_python_with_our_server(solo: Lab) -> None:
    try:
        serve(solo, "client", OURS)
        for part, check in CHECKS.items():
            check(on(solo, part))
        sh(solo, "echo padded,cached > /sys/module/nfsrdma/parameters/server_personalities")
        found = ping(solo, "server")
        assert (found["extended"], found["personalities"]) == (True, ["padded", "cached"])
        assert "module nfsrdma" in sh(solo, "nfsrdma ping server").stdout
    finally:
        serve(solo, "client", THEIRS)


# --- ping ---


def ping(lab: Lab, words: str, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sh(lab, f"{before} nfsrdma ping {words} --json").stdout)
    return found


def test_ping_has_the_terms_and_the_round_trips(solo: Lab) -> None:
    found = ping(solo, "server --count 20")
    trips = found.pop("round_trip_us")
    # the lab's wire has 50 us each way
    assert 100 <= trips["min"] <= trips["median"] <= trips["p99"]
    assert found["address"] == "10.9.1.1"
    assert found["device"] == device(solo)
    assert found["credits"] > 1
    assert (found["private_data"], found["extended"]) == (True, False)
    # the kernel's default, RPCRDMA_DEF_INLINE
    assert (found["send_size"], found["recv_size"]) == (4096, 4096)
    assert found["count"] == 20
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
    found = ping(solo, "server", before="setpriv --reuid 1000 --regid 1000 --init-groups")
    assert found["credits"] > 1
    devices = "/dev/infiniband/rdma_cm"
    script = (
        f"chmod 600 {devices}; trap 'chmod 666 {devices}' EXIT; "
        "setpriv --reuid 1000 --regid 1000 --init-groups nfsrdma ping server"
    )
    assert "may this user open it" in fails(solo, script)


def test_an_ordinary_user_reads_without_the_mount_daemon(solo: Lab) -> None:
    """It refuses ports above 1023 of an export that is secure."""
    user = "setpriv --reuid 1000 --regid 1000 --init-groups"
    script = f"""
    exportfs -o rw,async,no_root_squash,secure,no_subtree_check,fsid=1 '*:/export'
    trap 'exportfs -ra; rm -f /export/readable' EXIT
    head -c 100000 /dev/urandom > /export/readable
    {user} nfsrdma cat server:/export/readable | cmp - /export/readable
    {user} nfsrdma ls server:/export
    ! {user} nfsrdma cp /etc/hostname server:/export 2> /tmp/error; cat /tmp/error
    """
    *names, said = sh(solo, script).stdout.splitlines()
    assert "readable" in names
    assert "ports below 1024, which need root" in said


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
    found = json.loads(sh(solo, "nfsrdma doctor server --json || true").stdout)["findings"]
    (row,) = (each for each in found if each["name"] == "rdma server")
    assert row["status"] == "ok"
    place = f"10.9.1.1 answers on RDMA 20049 by {device(solo)}; round trip "
    assert row["found"].startswith(place)
    script = "NFSRDMA_LIBRARY=/none.so nfsrdma doctor server | grep -A1 'rdma server'"
    assert "apt install libnfsrdma0" in sh(solo, script).stdout


# --- the page ---


def program_of(page: str, before: str) -> str:
    """The first program of a page behind some text."""
    found = re.search(
        r"^```\w+\n(.*?)^```$", (PAGES / page).read_text().split(before)[1], re.M | re.S
    )
    assert found
    return found[1]


def test_the_programs_of_the_page_run(solo: Lab, tmp_path: Path) -> None:
    source = tmp_path / "ranges.c"
    source.write_text(program_of("client-c.md", "<!-- ranges.c"))
    place_program(solo, "client", source, "/run/ranges")
    sh(solo, "yes 1234567 | head -c 2000000 > /export/data")
    try:
        lines = sh(solo, "/run/ranges server:/export data").stdout.splitlines()
        assert sorted(lines) == sorted(f"read {number}: 4096 bytes" for number in range(16))
        python = program_of("client.md", "## Python").encode()
        said = solo.run("client", "python3", "-", stdin=python, timeout=300).stdout
    finally:
        sh(solo, "rm /export/data /run/ranges")
    assert said == "65536 b'1234567\\n'\n"
