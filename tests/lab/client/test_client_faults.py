# SPDX-License-Identifier: Apache-2.0
"""The user-level client when servers, links and processes end, and when there is no room.

client_faults.c is the application.  The server is the kernel's, or ours.
"""

import array
import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import place_program
from testbed.exports import DISK, SMALL, cut_power, disk_export, small_export
from testbed.faults import FAULTS, RESTARTED, Fault
from testbed.node.programs import until

PROGRAM, TARGET = "/run/client_faults", "server:/export"
SECONDS = 120
SILENCE = "server silent"
# of client_faults.c
BLOCK, BATCH = 65536, 16
DEEDS = ("synced", "closed", "open", "released", "batched")
LOST = {"open", "released"}


@pytest.fixture(params=("pair", pytest.param("both_ours", marks=pytest.mark.nightly)))
def server(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server and a client, which has the program and a file of 16 MiB."""
    lab: Lab = request.getfixturevalue(request.param)
    place_program(lab, "client", Path(__file__).with_name("client_faults.c"), PROGRAM)
    lab.run("server", "sh", "-c", "yes | head -c 16M > /export/data")
    yield lab
    lab.run("server", "sh", "-c", "rm -f /export/data /export/storm /export/full /export/gone")
    lab.run("client", "rm", PROGRAM)


def run(lab: Lab, mode: str, target: str = TARGET) -> dict[str, Any]:
    """Run the program and return its last line; a failure shows all of its output."""
    done = lab.run("client", PROGRAM, mode, target, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counts


@contextmanager
def granted(lab: Lab, credits: int) -> Iterator[None]:
    """Limit the credits that the kernel's server grants to new connections; ours grants fewer.

    Newer kernels grant 128, and a session has 127 reads.
    """
    path = "/proc/sys/sunrpc/svc_rdma/max_requests"
    if lab.run("server", "test", "-e", path, check=False).returncode:
        yield
        return
    before = lab.run("server", "cat", path).stdout
    lab.run("server", "tee", path, stdin=b"%d\n" % credits)
    try:
        yield
    finally:
        lab.run("server", "tee", path, stdin=before.encode())


@contextmanager
def running(lab: Lab, mode: str, target: str = TARGET) -> Iterator[subprocess.Popen[str]]:
    """The program, from the moment that it is ready."""
    argv = lab.ssh("client").argv(PROGRAM, mode, target)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            lab.run("client", "pkill", "-9", "-f", PROGRAM, check=False)
            process.stdin.close()  # type: ignore[union-attr]


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """The line that begins with a word."""
    assert process.stdout
    line = ""
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise AssertionError(f"no line {word!r}, exit status {process.wait()}, last line {line!r}")


def connects(process: subprocess.Popen[str], least: int) -> int:
    """Read batches until the program has made ``least`` connections; return their number."""
    while (count := int(read_until(process, "connects").split()[1])) < least:
        pass
    return count


def tell(process: subprocess.Popen[str]) -> None:
    """Write the line that the program waits for."""
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def connections(lab: Lab) -> int:
    """Reliable connections of the server's device."""
    (link,) = {row["ifname"] for row in json.loads(lab.run("server", "rdma", "-j", "link").stdout)}
    rows = json.loads(lab.run("server", "rdma", "-j", "resource", "show", "qp").stdout)
    return sum(row["type"] == "RC" and row["ifname"] == link for row in rows)


def wait_for_connections(lab: Lab, count: int) -> None:
    until(f"{count} connections", lambda: connections(lab) == count, SECONDS, 0.3)


def make_faults(lab: Lab, mode: str, faults: tuple[Fault, ...]) -> dict[str, Any]:
    """Inject each fault, wait until the program has reconnected, and return its last line."""
    with running(lab, mode) as process:
        for fault in faults:
            before = connects(process, 1)
            # a restart may take more than one connection
            lab.run(fault.node, "sh", "-c", fault.script)
            connects(process, before + 1)
        tell(process)
        assert process.stdout
        *_, last = process.stdout
        assert process.wait() == 0, last
    counts: dict[str, Any] = json.loads(last)
    return counts


def test_data_is_right_after_restarts_and_silence(server: Lab) -> None:
    counts = make_faults(server, "storm", (RESTARTED, FAULTS[SILENCE], RESTARTED))
    assert counts["direct"] > 0
    assert counts["copied"] > 0


def test_a_lost_session_is_made_again(server: Lab) -> None:
    make_faults(server, "session", (RESTARTED, RESTARTED))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ("server's device removed", "server's link down"))
def test_data_is_right_after_each_fault(server: Lab, name: str) -> None:
    make_faults(server, "storm", (FAULTS[name],))


def test_the_server_forgets_a_killed_process(server: Lab) -> None:
    # those of earlier programs
    wait_for_connections(server, 0)
    with running(server, "hold") as process:
        read_until(process, "ready")
        assert connections(server) == 1
        server.run("client", "pkill", "-9", "-f", PROGRAM)
        wait_for_connections(server, 0)


def test_a_child_keeps_no_connection_of_its_parent(server: Lab) -> None:
    # those of earlier programs
    wait_for_connections(server, 0)
    with running(server, "fork") as process:
        pid = read_until(process, "child").split()[1]
        read_until(process, "parent goes on")
        # the child has closed its own connection again, or not yet opened it
        wait_for_connections(server, 1)
        server.run("client", "sh", "-c", f"kill -9 $(cut -d' ' -f4 /proc/{pid}/stat)")
        wait_for_connections(server, 0)
        server.run("client", "test", "-d", f"/proc/{pid}")


def test_a_full_file_system_is_an_error(server: Lab) -> None:
    with small_export(server, "server", "4M"):
        written = run(server, "full", f"server:{SMALL}")["written"]
        assert 3 << 20 < written <= 4 << 20


def on_disk(lab: Lab, deed: int) -> list[int]:
    """How often each block of a file was written that is on the server's disk; 0: other bytes."""
    data = base64.b64decode(lab.run("server", "base64", f"{DISK}/{DEEDS[deed]}").stdout)
    times = []
    for number in range(BATCH):
        block = array.array("I", data[number * BLOCK : (number + 1) * BLOCK])
        first = deed * BATCH + number
        right = block[::2] == array.array("I", range(first, first + BLOCK // 8 * 256, 256))
        versions = set(block[1::2])
        times.append(versions.pop() if right and len(versions) == 1 else 0)
    return times


def test_a_power_cut_loses_nothing_without_an_error(server: Lab) -> None:
    export = disk_export(server, "server")
    with export, running(server, "power", f"server:{DISK}") as process:
        read_until(process, "ready")
        cut_power(server, "server")
        for deed, name in enumerate(DEEDS):
            # what no fsync or close has seen is lost indeed, or this test shows nothing
            assert on_disk(server, deed) == [0 if name in LOST else 1] * BATCH, name
        tell(process)
        read_until(process, "ready")
        cut_power(server, "server")
        for deed, name in enumerate(DEEDS):
            assert on_disk(server, deed) == [1] * BATCH, name
        tell(process)
        read_until(process, '{"cuts": 2')
        assert process.wait() == 0


def test_a_removed_file_is_stale(server: Lab) -> None:
    server.run("server", "cp", "/export/data", "/export/gone")
    with running(server, "stale") as process:
        read_until(process, "ready")
        server.run("server", "rm", "/export/gone")
        tell(process)
        read_until(process, '{"stale": 1')
        assert process.wait() == 0


def test_more_reads_than_credits_wait(server: Lab) -> None:
    with granted(server, 64):
        counts = run(server, "many")
    assert counts["direct"] + counts["inlined"] + counts["copied"] == 127


def test_a_server_with_small_transfers_is_read_in_parts(server: Lab) -> None:
    path = "/proc/fs/nfsd/max_block_size"
    size = server.run("server", "cat", path).stdout.strip()
    restart = "systemctl stop nfs-server; modprobe nfsd; echo {} > {}; systemctl start nfs-server"
    server.run("server", "sh", "-c", restart.format(16384, path))
    try:
        assert run(server, "small")["read_max"] == 16384
    finally:
        server.run("server", "sh", "-c", restart.format(size, path))
