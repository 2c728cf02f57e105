# SPDX-License-Identifier: Apache-2.0
"""Parts of test_mount.py that run in a node: one function per test, each returns plain values.

Runs as ``python3 - NAME``, prints its answer as JSON; never imported by the tests.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfsrdma_tools import udev
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.files import make_state_dir
from nfsrdma_tools.host.nfs import mountinfo, mountstats, readahead
from nfsrdma_tools.host.nfs.mount_state import state
from nfsrdma_tools.host.nfs.mounting import MountRequest, mount, unmount
from nfsrdma_tools.host.nfs.mounts import Mount, find, mounts
from nfsrdma_tools.host.nfs.sharing import sharing
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.undo import Journal, journal, recover

BLOCK, READS, WRITES = 65536, 23, 5
TARGET = Target.parse("server:/export")
HERE, THERE = Path("/mnt/here"), Path("/mnt/there")


@contextmanager
def mounted(book: Journal, transport: str, vers: str, **more: object) -> Iterator[Mount]:
    words = {"target": TARGET, "directory": HERE, **more}
    request = MountRequest(transport=transport, vers=vers, **words)  # type: ignore[arg-type]
    made = mount(request, book).mount
    try:
        yield made
    finally:
        unmount(made.directory, book)


def refused(transport: str = "rdma", vers: str = "4.2", **more: object) -> dict[str, object]:
    """Request a mount that must fail; return the error and what is left."""
    with journal() as book:
        try:
            with mounted(book, transport, vers, **more):
                return {"error": None}
        except UserError as error:
            kind, said = type(error).__name__, str(error)
        left = [str(made.directory) for made in mounts()]
        running = run("pgrep", "-c", "mount.nfs", check=False)
        return {
            "kind": kind, "error": said, "left": left, "undo": len(book.actions),
            "running": int(running.stdout),
        }  # fmt: skip


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


def work(made: Mount) -> None:
    """READS reads and WRITES writes of a block, past the client's cache."""
    block = mmap.mmap(-1, BLOCK)
    file = os.open(made.directory / "read", os.O_RDONLY | os.O_DIRECT)
    assert [os.preadv(file, [block], i * BLOCK) for i in range(READS)] == [BLOCK] * READS
    os.close(file)
    file = os.open(made.directory / "written", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    assert [os.pwritev(file, [block], i * BLOCK) for i in range(WRITES)] == [BLOCK] * WRITES
    os.close(file)


def counters() -> list[dict[str, object]]:
    """Every transport and version: what is in effect, and what everybody counts."""
    Path("/export/read").write_bytes(os.urandom(READS * BLOCK))
    asked = {"rsize": BLOCK, "wsize": BLOCK, "nconnect": 4, "read_ahead": 4}
    with journal() as book:
        return [
            measured(book, transport, vers, asked)
            for vers in ("3", "4.2")
            for transport in ("tcp", "rdma")
        ]


def measured(book: Journal, transport: str, vers: str, asked: dict[str, int]) -> dict[str, object]:
    with mounted(book, transport, vers, **asked) as made:
        elsewhere, before = count_elsewhere(), mountstats.read(HERE)
        work(made)
        after, now = mountstats.read(HERE), count_elsewhere()
        udev.settle()
        delta = mountstats.difference(after, before)
        return {
            "asked": [transport, vers],
            "facts": state(made, after, mounts()).facts(),
            "kb_at_the_end": readahead.verify(made.device, 256),
            "READ": delta.operations["READ"].operations,
            "read": delta.data("read")._asdict(),
            "write": delta.data("write")._asdict(),
            "bytes": delta.bytes._asdict(),
            "xprts": [[xprt.proto, xprt.counters] for xprt in delta.xprts],
            "elsewhere": {name: now[name] - elsewhere[name] for name in now},
        }


def shared_transport() -> dict[str, object]:
    """The trap: a second NFSv4 mount of a server is given the first one's transport."""
    with journal() as book, mounted(book, "rdma", "4.2") as first:
        answer: dict[str, object] = {"v4": refused("tcp", directory=THERE)}
        answer["nconnect"] = refused("rdma", directory=THERE, nconnect=4)
        with mounted(book, "rdma", "4.2", directory=THERE, rsize=BLOCK) as rider:
            answer["shares"] = [str(path) for path in sharing(rider, mounts())]
        for vers in ("3", "4.1"):
            with mounted(book, "tcp", vers, directory=THERE) as other:
                answer[vers] = {"got": other.transport, "shares": sharing(other, [first])}
        return answer


def other_values() -> dict[str, object]:
    """Requests that the kernel does not grant, and read-ahead that is shared or changed."""
    answer: dict[str, object] = {"rsize": refused(rsize=1 << 20, vers="3")}
    with journal() as book, mounted(book, "rdma", "3") as made:
        shares: dict[str, Any] = {"directory": THERE, "read_ahead": 4, "options": ("sharecache",)}
        answer["sharecache"] = refused(vers="3", **shares)
        with mounted(book, "rdma", "3", directory=THERE, read_ahead=0) as own:
            answer["kb"] = [readahead.get_kb(m.device) for m in (made, own)]
            try:
                readahead.set_kb(own.device, 6)
            except MismatchError as error:
                answer["set"] = [error.requested, error.in_effect]
    return answer


def failures() -> dict[str, object]:
    """Every way in which a server or a machine refuses a mount."""
    return {
        "unknown host": refused(target=Target("nowhere.invalid", "/x")),
        "tcp port": refused("tcp", port=4711),
        "rdma port": refused("rdma", port=4711),
        "v3 port": refused("tcp", "3", port=4711),
        "v4 export": refused(target=Target("server", "/none")),
        "v3 export": refused("tcp", "3", target=Target("server", "/none")),
        "no device": refused(target=Target("127.0.0.1", "/export")),
        "option": refused(options=("foo=bar",)),
        "in use": refused(directory=Path("/export")),
        "missing": refused(directory=Path("/mnt/missing")),
    }


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


def hanging() -> dict[str, object]:
    """A server that does not answer, met with a time limit and with ctrl-C."""
    argv = ["nfsrdma", "mount", str(TARGET), str(HERE), "--transport", "tcp", "--port", "4711"]
    with silence(4711):
        limited = run(*argv, "--timeout", "2", check=False)
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        while run("pgrep", "-x", "mount.nfs", check=False).returncode:
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, said = child.communicate()
    running = run("pgrep", "-a", "mount.nfs", check=False).stdout
    left = [str(made.directory) for made in mounts()]
    return {
        "limited": [limited.returncode, limited.stderr], "stopped": [child.returncode, said],
        "running": running, "left": left,
        "journals": [str(path) for path in make_state_dir().iterdir()],
    }  # fmt: skip


def busy() -> dict[str, object]:
    """A mount in use is not forced; its users are named, and a mount inside it is one."""
    with journal() as book, mounted(book, "tcp", "4.2"):
        Path("/export/inside").mkdir(exist_ok=True)
        child = subprocess.Popen(["sleep", "1000"], cwd=HERE)
        first = run("nfsrdma", "umount", HERE, check=False)
        child.kill()
        child.wait()
        with mounted(book, "tcp", "3", directory=HERE / "inside"):
            second = run("nfsrdma", "umount", HERE, check=False)
        still = find(HERE) is not None
    Path("/export/inside").rmdir()
    return {"pid": child.pid, "first": first.stderr, "second": second.stderr, "still": still}


def killed() -> dict[str, object]:
    """A journal that ends, and one whose owner is killed: the mount goes in both cases."""
    with journal() as book:
        mount(MountRequest(TARGET, HERE), book)
    undone = find(HERE) is None
    child = (
        "import os, signal; from pathlib import Path\n"
        "from nfsrdma_tools.host.nfs.mounting import MountRequest, mount\n"
        "from nfsrdma_tools.host.nfs.target import Target\n"
        "from nfsrdma_tools.undo import journal\n"
        "with journal() as book:\n"
        f"    mount(MountRequest(Target.parse('{TARGET}'), Path('{HERE}')), book)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = run(sys.executable, "-c", child, check=False).returncode
    stayed = find(HERE) is not None
    failed = recover()
    return {
        "undone": undone, "ended": ended, "stayed": stayed, "failed": failed,
        "recovered": find(HERE) is None,
    }  # fmt: skip


def hostile() -> list[str]:
    """Names that break parsers and shells, as export paths and as mount points at once."""
    names = ["a b\n#", "$(id);%s", os.fsdecode(b"\xff\\040"), "a - nfs4 b\r", "-o,\u2028"]
    wrong = []
    for name in names:
        folder, export = Path("/mnt", f"-{name}"), Path("/export", name)
        folder.mkdir()
        export.mkdir()
        with journal() as book:
            target = Target.parse(f"server:{export}")
            with mounted(book, "tcp", "3", target=target, directory=folder) as made:
                found = (made.target, made.directory, mountstats.read(folder).directory)
                if found != (target, folder, folder):
                    wrong.append(ascii(found))
        folder.rmdir()
        export.rmdir()
    return wrong


def ipv6() -> list[list[str]]:
    """An address, and one with a zone, which is where IPv6 reaches RDMA on this wire."""
    said = run("ip", "-6", "-j", "addr", "show", "v1").stdout
    local = json.loads(said)[0]["addr_info"][0]["local"]
    answer = []
    for text, transport in (("[::1]:/export", "tcp"), (f"[{local}%v0]:/export", "rdma")):
        with (
            journal() as book,
            mounted(book, transport, "4.2", target=Target.parse(text)) as made,
        ):
            answer.append([text, str(made.target), made.transport, made.options["proto"]])
    return answer


def main() -> None:
    for folder in (HERE, THERE):
        folder.mkdir(exist_ok=True)
    try:
        print(json.dumps(globals()[sys.argv[1]]()))
    finally:
        assert not [entry for entry in mountinfo.read() if HERE in entry.directory.parents]
        for folder in (HERE, THERE):
            folder.rmdir()
        for file in Path("/export").iterdir():
            file.unlink()


main()
