# SPDX-License-Identifier: Apache-2.0
"""The server half of our module, as its debugfs has it, and how it is shown."""

from dataclasses import replace
from pathlib import Path

import pytest

from nfsrdma_tools.cli import module
from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.module import server_debugfs
from nfsrdma_tools.host.module.server_debugfs import Client, ServerTransport
from nfsrdma_tools.host.module.status import Status
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.lab.config import MODULE_KERNELS

OLDEST = min(MODULE_KERNELS, key=lambda name: [int(part) for part in name.split(".")])
CONNECTION = """\
peer {peer}
local 10.9.1.1:20049
personality read-write
connected {connected}
disconnect {reason}
device rxe0
inline_send 4096
inline_recv 4096
remote_invalidation yes
credits_granted 64
credits_used 3
receives 112
requests 40
send_queue 384
read_pages 2
reply_pages 1
floor_pages {floor}
reads_at_once 16
lanes 0
"""
COUNTERS = "calls 1204\nreplies 1201\nerrors 0\ndropped 0\ncallbacks 1\n"


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Machine(tmp_path).path("sys/kernel/debug/nfsrdma-server")
    folder.mkdir(parents=True)
    monkeypatch.setattr(transports, "serves_as", lambda *_: "nfr")
    monkeypatch.setattr(server_debugfs, "_PAGE", 4096)
    (folder / "totals").write_text(
        "connections 3 of 1024\nread_pages 4 of 4096\nreply_pages 2 of 4096\nexposed_pages 0\n"
        "dones_outstanding 0\nlanes 0\ngranted_pages 0 of 65536\n"
        "floor_pages 256 of 16384\nclients 2\nclients_sharing 1\n"
    )
    connected(folder / "10", "10.9.1.12", "no", "disconnected by the peer", floor=0)
    connected(folder / "9", "10.9.1.11", "yes", "none")
    # it ended while this was read
    (folder / "11").mkdir()
    return folder


def host_of(debug: Path) -> Machine:
    return Machine(debug.parents[3])


def connected(folder: Path, peer: str, up: str, reason: str, floor: int = 256) -> None:
    folder.mkdir()
    text = CONNECTION.format(peer=peer, connected=up, reason=reason, floor=floor)
    (folder / "connection").write_text(text)
    (folder / "counters").write_text(COUNTERS)


def status(server: ServerTransport | None, owner: str) -> Status:
    here = Path("/x")
    whose = "of this project" if owner == "nfsrdma" else "of the kernel"
    return Status(
        "6.12", owner, "", "", whose, "ABC", server, here, "h", None, "", (), (), None, ""
    )


def test_the_server_is_read(debug: Path) -> None:
    server = server_debugfs.server(host_of(debug))
    first = Client("10.9.1.11", 64, 3, 1204, 8192, True, "none", 4096, "read-write")
    first = replace(first, floor=1 << 20)
    second = replace(
        first, peer="10.9.1.12", connected=False, reason="disconnected by the peer", floor=0
    )
    memory = (4 << 12, 2 << 12, 16 << 20)
    reach = (0, 0, 0, 0, 256 << 20)
    floors = (1 << 20, 64 << 20, 1)
    accepts = ("read-write",)
    assert server == ServerTransport(
        "nfr", accepts, 3, 1024, *memory, (first, second), *reach, *floors
    )


@pytest.mark.parametrize(
    ("release", "is_old"),
    [("5.10.0-46-amd64", True), (f"{OLDEST}.0-56-amd64", False), ("6.12.118+deb13-amd64", False)],
)
def test_a_kernel_that_is_too_old_for_the_module_is_named(release: str, is_old: bool) -> None:
    """Where a build fails, the status names the kernels that it succeeds for."""
    shown = replace(status(None, "rpcrdma"), release=release, registered=())
    lines = {line.split()[0]: line for line in module.status_lines(shown)}
    assert (f"builds for Linux {OLDEST} or later" in lines["built"]) == is_old
    assert ("build it: nfsrdma module build" in lines["built"]) != is_old
    assert ("register it: nfsrdma module install" in lines["dkms"]) != is_old
    assert module.status_facts(shown)["kernel_too_old"] == is_old
    page = (Path(__file__).parents[4] / "docs/how-to/module.md").read_text()
    assert f"* Linux {OLDEST} or later with NFS over RDMA" in page


def test_personalities_are_shown(debug: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the server, of its connections, and of client transports."""
    accepts = {"server_personalities": "cached"}
    monkeypatch.setattr(kernel_modules, "parameters", lambda *_: accepts)
    with (debug / "9" / "connection").open("a") as file:
        file.write("personality cached\n")
    server = server_debugfs.server(host_of(debug))
    assert server
    assert server.personalities == ("read-write", "cached")
    assert [each.personality for each in server.clients] == ["cached", "read-write"]
    transports = (
        ClientTransport(3, "10.9.1.2", 20049, "cached", "read-write"),
        ClientTransport(4, "10.9.1.3", 20049, "cached", ""),
    )
    shown = replace(status(server, "nfsrdma"), transports=transports)
    lines = [x for x in module.status_lines(shown) if "cached" in x]
    assert lines[0].endswith(" clients share a floor; accepts read-write, cached")
    assert lines[1:] == [
        "client     10.9.1.11, cached, 3 of 64 credits in use, 1204 calls, connected",
        "transport  3 to 10.9.1.2 port 20049, requested cached, in effect read-write",
        "transport  4 to 10.9.1.3 port 20049, requested cached, in effect (not connected)",
    ]
    assert module.status_facts(shown)["transports"][0]["requested"] == "cached"
    assert server_debugfs.server(Machine(debug)) == ServerTransport("nfr", ("read-write", "cached"))


def test_what_clients_reach_is_shown(debug: Path) -> None:
    """Memory that they may read, RDMA_DONEs that are missing, and lanes."""
    with (debug / "totals").open("a") as file:
        file.write("exposed_pages 32\ndones_outstanding 2\nlanes 7\n")
    with (debug / "9" / "connection").open("a") as file:
        file.write("personality read-read\nexposed_pages 16\ndones_outstanding 1\nlanes 0\n")
    server = server_debugfs.server(host_of(debug))
    assert server
    assert (server.exposed_memory, server.dones_outstanding, server.lanes) == (32 << 12, 2, 7)
    counters = {"cache_hits": 5}
    cached = ClientTransport(3, "10.9.1.2", 20049, "cached", "cached", {"cache_bytes": 9}, counters)
    shown = module.status_lines(replace(status(server, "nfsrdma"), transports=(cached,)))
    words = [x for x in shown if x.startswith(("server", "client", "transport"))]
    assert words[0].endswith(
        " clients share a floor, 128k exposed, 2 RDMA_DONEs outstanding, 7 lanes"
        "; accepts read-write"
    )
    assert words[1].endswith(", 1204 calls, 64k exposed, 1 RDMA_DONEs outstanding, connected")
    assert words[2].endswith(", 1204 calls, shares a floor, ended: disconnected by the peer")
    assert words[3].endswith(", in effect cached, cache bytes 9, cache hits 5")


def test_granted_page_cache_is_shown(debug: Path) -> None:
    with (debug / "totals").open("a") as file:
        file.write("granted_pages 768 of 65536\n")
    with (debug / "9" / "connection").open("a") as file:
        file.write("personality optimistic\ngranted_pages 256\nnotice_credits 60\n")
    with (debug / "9" / "counters").open("a") as file:
        file.write(
            "grants 5\ngrants_renewed 1\nrevoked_modified 2\nrevoked_moved 0\nrefused_open 7\n"
        )
    server = server_debugfs.server(host_of(debug))
    assert server
    assert (server.granted_memory, server.granted_max) == (3 << 20, 256 << 20)
    assert [each.granted_memory for each in server.clients] == [1 << 20, 0]
    gauges = {"references": 3, "optimistic_paused": 0}
    reads = {"optimistic_reads": 9, "optimistic_refused": 1}
    own = ClientTransport(3, "10.9.1.2", 20049, "optimistic", "optimistic", gauges, reads)
    shown = module.status_lines(replace(status(server, "nfsrdma"), transports=(own,)))
    words = [x for x in shown if x.startswith(("server", "client", "transport"))]
    assert words[0].endswith(
        " clients share a floor, 3M of 256M of the page cache granted; accepts read-write"
    )
    assert words[1].endswith(
        ", 1204 calls, 1M of the page cache granted, grants 5, revoked modified 2, refused open 7, "
        "connected"
    )
    assert words[3].endswith(
        ", in effect optimistic, references 3, optimistic paused 0, optimistic reads 9, "
        "optimistic refused 1"
    )


def test_who_is_not_root_sees_its_name(debug: Path) -> None:
    assert server_debugfs.server(Machine(debug)) == ServerTransport("nfr", ("read-write",))


def test_without_a_server_there_is_none(monkeypatch: pytest.MonkeyPatch, debug: Path) -> None:
    monkeypatch.setattr(transports, "serves_as", lambda *_: "")
    assert server_debugfs.server(host_of(debug)) is None


FILE = ModuleFile("nfsrdma", "/x.ko", version="0.1.0", srcversion="ABC")


@pytest.mark.parametrize(
    ("owner", "new", "values", "words"),
    [
        ("nfsrdma", True, {}, "is now the transport module, instead of rpcrdma"),
        ("rpcrdma", True, {}, "is now a server transport, beside rpcrdma, not a client transport"),
        ("", True, {}, "is now a server transport, not a client transport"),
        ("nfsrdma", False, {"credits": "64"}, "was already loaded; credits is now 64"),
        ("rpcrdma", False, {}, "was already loaded; mounts with proto=rdma use rpcrdma"),
    ],
)
def test_what_was_loaded_is_said(
    owner: str, new: bool, values: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "owner", lambda: owner)
    monkeypatch.setattr(transports, "serves_as", lambda name: "nfr")
    first, *more = module.load_lines(FILE, new, "rpcrdma", values)
    assert first == f"nfsrdma 0.1.0 (srcversion ABC) {words}"
    way = "  to let nfsd listen on it: echo 'nfr PORT' > /proc/fs/nfsd/portlist"
    assert (way in more) == (new and owner != "nfsrdma")


def test_each_client_has_a_line(debug: Path) -> None:
    state = status(server_debugfs.server(host_of(debug)), "nfsrdma")
    assert [x for x in module.status_lines(state) if x.startswith(("server", "client"))] == [
        "server     nfsrdma, for nfsd nfr; 3 of 1024 connections, 16k of 16M for RDMA Reads"
        ", 8k of 16M for replies, 1M of 64M for floors, 1 clients share a floor"
        "; accepts read-write",
        "client     10.9.1.11, read-write, 3 of 64 credits in use, 1204 calls, connected",
        "client     10.9.1.12, read-write, 3 of 64 credits in use, 1204 calls, shares a floor"
        ", ended: disconnected by the peer",
    ]
    assert module.status_facts(state)["server"]["clients"][0]["calls"] == 1204
    assert module.status_facts(state)["server"]["reply_memory"] == 2 << 12
    unread = status(ServerTransport("nfr", ("read-write",)), "rpcrdma")
    (line,) = (x for x in module.status_lines(unread) if "for nfsd" in x)
    assert line == (
        "server     nfsrdma, for nfsd nfr, srcversion ABC; connections unknown (needs root)"
        "; accepts read-write"
    )
