# SPDX-License-Identifier: Apache-2.0
"""Real mounts: options in effect, counters that agree, and how each fault ends."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nfsrdma_tools import udev
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.files import make_state_dir
from nfsrdma_tools.host.nfs import mountstats, readahead
from nfsrdma_tools.host.nfs.mount_state import state
from nfsrdma_tools.host.nfs.mounting import MountRequest, mount, unmount
from nfsrdma_tools.host.nfs.mounts import Mount, find, mounts
from nfsrdma_tools.host.nfs.sharing import sharing
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.undo import Journal, journal, recover
from testbed.node.mounts import HERE
from testbed.node.transfers import read_blocks, write_blocks
from testbed.remote import on

pytestmark = pytest.mark.lab

BLOCK, READS, WRITES = 65536, 23, 5
TARGET, THERE = Target.parse("server:/export"), Path("/mnt/there")
LEAVE = f"! grep ' {HERE}/' /proc/self/mountinfo; rmdir {HERE} {THERE}; rm -f /export/*"


@pytest.fixture
def node(solo: Lab) -> Iterator[Lab]:
    """The lab with two folders to mount on; files of the export go at the end."""
    solo.run("client", "mkdir", "-p", str(HERE), str(THERE))
    yield solo
    solo.run("client", "sh", "-ec", LEAVE)


@contextmanager
def mounted(book: Journal, transport: str, vers: str, **more: object) -> Iterator[Mount]:
    words = {"target": TARGET, "directory": HERE, **more}
    request = MountRequest(transport=transport, vers=vers, **words)  # type: ignore[arg-type]
    made = mount(request, book).mount
    try:
        yield made
    finally:
        unmount(made.directory, book)


def refused(
    transport: str = "rdma", vers: str = "4.2", left: tuple[Path, ...] = (), **more: object
) -> UserError:
    """The error of a mount that must fail; no more than the mounts ``left`` are there."""
    with journal() as book:
        try:
            with mounted(book, transport, vers, **more):
                raise AssertionError("it was mounted")
        except UserError as refusal:
            error = refusal
        assert tuple(made.directory for made in mounts()) == left
        assert not book.actions
    assert run("pgrep", "-c", "mount.nfs", check=False).stdout == "0\n"
    return error


def count_elsewhere() -> dict[str, int]:
    """READs and bytes as the NFS client, nfsd and the server's RDMA device count them."""
    rpc = Path("/proc/net/rpc")
    client = dict(line.split(" ", 1) for line in (rpc / "nfs").read_text().splitlines())
    server = dict(line.split(" ", 1) for line in (rpc / "nfsd").read_text().splitlines())
    packets = sum(nldev.statistics(link)["sent_pkts"] for link in nldev.links())
    return {
        # NFSPROC4_CLNT_READ, NFS3PROC_READ; OP_READ is 25 and OP_READ_PLUS 68 (RFC 7862)
        "client": int(client["proc3"].split()[1 + 6]) + int(client["proc4"].split()[1 + 1]),
        "server": sum(
            int(server[table].split()[1 + operation])
            for table, operation in (("proc3", 6), ("proc4ops", 25), ("proc4ops", 68))
        ),
        "server_read": int(server["io"].split()[0]),
        "server_written": int(server["io"].split()[1]),
        "rdma_packets": packets,
    }


@on("client")
def measure(transport: str, vers: str) -> None:
    """The mount has the requested options; mountstats, nfsd and the device count the same I/O."""
    Path("/export/read").write_bytes(os.urandom(READS * BLOCK))
    options = {"rsize": BLOCK, "wsize": BLOCK, "nconnect": 4, "read_ahead": 4}
    with journal() as book, mounted(book, transport, vers, **options) as made:
        before_elsewhere, before = count_elsewhere(), mountstats.read(HERE)
        read_blocks(HERE / "read", READS, BLOCK)
        write_blocks(HERE / "written", WRITES, BLOCK)
        after, now = mountstats.read(HERE), count_elsewhere()
        udev.settle()
        change = mountstats.difference(after, before)
        facts = state(made, after, mounts()).facts()
        assert readahead.verify(made.device, 256) == 256
    assert (made.options["proto"], made.options["local_lock"]) == (transport, "none")
    expected = {
        "transport": transport, "vers": vers, "rsize": BLOCK, "wsize": BLOCK,
        "nconnect": 4, "connections": 4, "read_ahead_kb": 256,
        "read_ahead_blocks": 4.0, "shares_with": [],
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected

    read, write = change.data("read"), change.data("write")
    elsewhere = {name: now[name] - before_elsewhere[name] for name in now}
    assert (read.operations, read.transmissions, read.errors) == (READS, READS, 0)
    assert (write.operations, write.errors) == (WRITES, 0)
    assert elsewhere["client"] == change.operations["READ"].operations
    assert elsewhere["server"] == READS
    assert change.bytes.direct_read == READS * BLOCK == elsewhere["server_read"]
    assert change.bytes.direct_write == WRITES * BLOCK == elsewhere["server_written"]

    assert [xprt.proto for xprt in change.xprts] == [transport] * 4
    counters = [xprt.counters for xprt in change.xprts]
    assert all(each["sends"] == each["recvs"] > 0 for each in counters)
    if transport == "rdma":
        # as many chunks as there is data to place, and soft-RoCE sends 4 KiB in a packet at most
        assert sum(each["write_chunk_count"] for each in counters) == READS
        assert sum(each["read_chunk_count"] for each in counters) == WRITES
        assert elsewhere["rdma_packets"] >= (READS + WRITES) * BLOCK // 4096
    else:
        assert elsewhere["rdma_packets"] == 0


def test_what_is_asked_is_in_effect_and_everybody_counts_the_same(node: Lab) -> None:
    for vers in ("3", "4.2"):
        for transport in ("tcp", "rdma"):
            measure(node, transport, vers)


@on("client")
def shared_transport() -> None:
    """The trap: a second NFSv4 mount of a server is given the first one's transport."""
    with journal() as book, mounted(book, "rdma", "4.2") as first:
        error = refused("tcp", directory=THERE, left=(HERE,))
        assert type(error) is MismatchError
        assert str(error) == (
            f"transport: requested tcp, got rdma (it shares the connections of {HERE}, as NFSv4 "
            "mounts of one server do: unmount that first, or use --vers 3)"
        )
        error = refused("rdma", directory=THERE, nconnect=4, left=(HERE,))
        assert "nconnect: requested 4, got 1 (it shares" in str(error)
        with mounted(book, "rdma", "4.2", directory=THERE, rsize=BLOCK) as rider:
            assert sharing(rider, mounts()) == (HERE,)
        for vers in ("3", "4.1"):
            with mounted(book, "tcp", vers, directory=THERE) as other:
                assert (other.transport, sharing(other, [first])) == ("tcp", ())


def test_a_second_nfsv4_mount_is_given_the_first_ones_transport(node: Lab) -> None:
    shared_transport(node)


@on("client")
def other_values() -> None:
    """Requests that the kernel does not grant, and read-ahead that is shared or changed."""
    assert "rsize: requested 1048576, got 524288" in str(refused(rsize=1 << 20, vers="3"))
    with journal() as book, mounted(book, "rdma", "3") as made:
        words = ("sharecache",)
        error = refused(vers="3", left=(HERE,), directory=THERE, read_ahead=4, options=words)
        assert f"{THERE} has one cache and one read-ahead with {HERE}" in str(error)
        with mounted(book, "rdma", "3", directory=THERE, read_ahead=0) as own:
            assert [readahead.get_kb(m.device) for m in (made, own)] == [128, 0]
            try:
                readahead.set_kb(own.device, 6)
            except MismatchError as mismatch:
                assert (mismatch.requested, mismatch.in_effect) == (6, 4)
            else:
                raise AssertionError("6 KiB were set")


def test_other_values_than_asked_are_errors_with_both(node: Lab) -> None:
    other_values(node)


@on("client")
def failures() -> None:
    """Every way in which a server or a machine refuses a mount."""
    missing, none = Path("/mnt/missing"), Target("server", "/none")
    for expected, error in (
        ("unknown host 'nowhere.invalid'", refused(target=Target("nowhere.invalid", "/x"))),
        ("server refuses tcp connections on port 4711", refused("tcp", port=4711)),
        ("server refuses rdma connections on port 4711", refused("rdma", port=4711)),
        ("server refuses tcp connections on port 4711", refused("tcp", "3", port=4711)),
        ("server has no export '/none'", refused(target=none)),
        ("server does not export '/none' to this host", refused("tcp", "3", target=none)),
        ("no rdma device has a route to 127.0.0.1", refused(target=Target("127.0.0.1", "/export"))),
        ("mount.nfs or the kernel rejects foo=bar", refused(options=("foo=bar",))),
        ("mount point /export is in use: tmpfs", refused(directory=Path("/export"))),
        ("mount point /mnt/missing: No such file or directory", refused(directory=missing)),
    ):
        assert str(error).startswith(expected)
        assert "\n" not in str(error)


def test_every_failure_is_one_line_and_leaves_nothing(node: Lab) -> None:
    failures(node)


@contextmanager
def silence(port: int) -> Iterator[None]:
    """Nothing that goes to ``port`` arrives."""
    rules = "type filter hook output priority 0; policy accept;\n"
    rules = f"table inet silent {{\nchain out {{\n{rules}tcp dport {port} drop\n}}\n}}\n"
    run("nft", "-f", "-", stdin=rules.encode())
    try:
        yield
    finally:
        run("nft", "delete", "table", "inet", "silent")


@on("client")
def hanging() -> None:
    """A server that does not answer, met with a time limit and with ctrl-C."""
    argv = ["nfsrdma", "mount", str(TARGET), str(HERE), "--transport", "tcp", "--port", "4711"]
    with silence(4711):
        limited = run(*argv, "--timeout", "2", check=False)
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        while run("pgrep", "-x", "mount.nfs", check=False).returncode:
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate()
    assert (limited.returncode, limited.stderr.count("\n")) == (1, 1)
    expected = "nfsrdma: server did not answer within 2 s, so the mount was aborted"
    assert limited.stderr.startswith(expected), limited.stderr
    assert child.returncode == 130
    assert "Traceback" not in stderr
    assert run("pgrep", "-a", "mount.nfs", check=False).stdout == ""
    assert not mounts()
    assert not list(make_state_dir().iterdir())


def test_a_server_that_does_not_answer_is_given_up(node: Lab) -> None:
    hanging(node)


# a mount whose server is gone, and a program that waits for it
WAITING = f"""
set -e
mkdir -p {HERE}
mount -t nfs -o vers=4.2,proto=rdma,port=20049 server:/export {HERE}
device=$(awk '$5 == "{HERE}" {{print $3}}' /proc/self/mountinfo)
systemctl stop nfs-server
systemd-run --quiet --collect --unit waits -- sh -c 'echo x > {HERE}/waits'
pid=$(systemctl show --property MainPID --value waits)
until grep -q rpc_wait /proc/$pid/stack; do sleep 0.2; done
"""
ENDED = "while systemctl --quiet is-active waits; do sleep 0.2; done"
MOUNTED = f"grep -q ' {HERE} ' /proc/self/mountinfo"
# out of the tree; umount still waits for the reply to DESTROY_SESSION, and a signal ends that
UNMOUNT = f"umount {HERE} & while {MOUNTED}; do sleep 0.2; done; pkill -x umount.nfs4 || true; wait"
FORCE = f"while {MOUNTED}; do timeout 5 umount -f {HERE} || true; done"
SHUTDOWN = "echo 1 > /sys/fs/nfs/$device/shutdown"
# docs/how-to/hang.md, steps 4 to 7
WAYS = {
    "kill": f"! umount {HERE}; systemctl kill --signal KILL waits; {ENDED}; {UNMOUNT}",
    "umount -f": f"{FORCE}; {ENDED}",
    "shutdown": f"{SHUTDOWN}; {ENDED}; umount {HERE}",
    "umount -l": f"umount -l {HERE}; systemctl is-active waits; test -d /sys/fs/nfs/$device;"
    f" {SHUTDOWN}; {ENDED}",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_mount_whose_server_is_gone_is_given_up(solo: Lab, way: str) -> None:
    def sh(script: str) -> str:
        return solo.run("client", "timeout", "120", "bash", "-c", script, timeout=300).stdout

    release = [int(part) for part in sh("uname -r").split(".")[:2]]
    if SHUTDOWN in WAYS[way] and release < [6, 5]:
        pytest.skip("Linux has the file shutdown since 6.5 (commit d9615d166c7e)")
    try:
        sh(f"{WAITING}{WAYS[way]}\nsync -f /")
        left = sh(f"{MOUNTED} && echo mounted; until ! grep ^v /proc/fs/nfsfs/volumes; do :; done")
        assert left == ""
    finally:
        sh("systemctl start nfs-server")


@on("client")
def busy() -> None:
    """A mount in use is not forced; its users are named, and a mount inside it is one."""
    with journal() as book, mounted(book, "tcp", "4.2"):
        Path("/export/inside").mkdir(exist_ok=True)
        child = subprocess.Popen(["sleep", "1000"], cwd=HERE)
        stderr = run("nfsrdma", "umount", HERE, check=False).stderr
        user = f"pid {child.pid} (sleep, working folder)"
        assert stderr.startswith(f"nfsrdma: {HERE} is in use by {user}"), stderr
        child.kill()
        child.wait()
        with mounted(book, "tcp", "3", directory=HERE / "inside"):
            stderr = run("nfsrdma", "umount", HERE, check=False).stderr
        assert stderr.startswith(f"nfsrdma: {HERE} is in use by mount {HERE}/inside"), stderr
        assert find(HERE)
    Path("/export/inside").rmdir()


def test_a_mount_in_use_names_its_users(node: Lab) -> None:
    busy(node)


@on("client")
def killed() -> None:
    """A journal that ends, and one whose owner is killed: the mount goes in both cases."""
    with journal() as book:
        mount(MountRequest(TARGET, HERE), book)
    assert find(HERE) is None
    child = os.fork()
    if not child:
        with journal() as book:
            mount(MountRequest(TARGET, HERE), book)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert find(HERE)
    assert recover() == []
    assert find(HERE) is None


@pytest.mark.main
def test_a_killed_toolkit_is_cleaned_up_by_the_next(node: Lab) -> None:
    killed(node)


@on("client")
def hostile() -> None:
    """Names that break parsers and shells, as export paths and as mount points at once."""
    for name in ("a b\n#", "$(id);%s", os.fsdecode(b"\xff\\040"), "a - nfs4 b\r", "-o,\u2028"):
        folder, export = Path("/mnt", f"-{name}"), Path("/export", name)
        folder.mkdir()
        export.mkdir()
        target = Target.parse(f"server:{export}")
        with (
            journal() as book,
            mounted(book, "tcp", "3", target=target, directory=folder) as made,
        ):
            places = (made.target, made.directory, mountstats.read(folder).directory)
            assert places == (target, folder, folder), ascii(places)
        folder.rmdir()
        export.rmdir()


def test_hostile_names_are_names(node: Lab) -> None:
    hostile(node)


@on("client")
def ipv6() -> None:
    """An address, and one with a zone, which is where IPv6 reaches RDMA on this wire."""
    output = run("ip", "-6", "-j", "addr", "show", "v1").stdout
    local = json.loads(output)[0]["addr_info"][0]["local"]
    assert local.startswith("fe80::")
    for text, transport in (("[::1]:/export", "tcp"), (f"[{local}%v0]:/export", "rdma")):
        with (
            journal() as book,
            mounted(book, transport, "4.2", target=Target.parse(text)) as made,
        ):
            assert (str(made.target), made.transport) == (text, transport)
            assert made.options["proto"] == f"{transport}6"


def test_ipv6_addresses_with_and_without_a_zone(node: Lab) -> None:
    ipv6(node)


@pytest.mark.main
def test_the_commands(solo: Lab) -> None:
    script = (
        f"mkdir -p '{HERE} x' && nfsrdma mount server:/export '{HERE} x' --rsize 64k "
        f"--read-ahead 4 -o noatime,soft --json && nfsrdma mounts && nfsrdma umount '{HERE} x' "
        f"&& rmdir '{HERE} x' && nfsrdma mounts --json"
    )
    output = solo.run("client", "sh", "-c", script).stdout
    made, end = json.JSONDecoder().raw_decode(output)
    assert (made["rsize"], made["read_ahead_blocks"], made["transport"]) == (BLOCK, 4.0, "rdma")
    assert f"{HERE} x  server:/export  rdma       4.2" in output[end:]
    assert "256 KiB = 4 blocks" in output[end:]
    # options of the superblock: noatime is not one of them
    assert "soft" in made["options"]
    assert json.loads(output[output.rindex("\n{") :]) == {"schema_version": 1, "mounts": []}
