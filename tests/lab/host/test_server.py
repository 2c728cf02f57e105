# SPDX-License-Identifier: Apache-2.0
"""Serving for real: what is enabled is mounted over RDMA, what is disabled leaves no trace."""

import ctypes
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import make_state_dir
from nfsrdma_tools.host.nfsd import nfsctl, serving
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.undo import journal, recover
from testbed.node.mounts import mounted
from testbed.node.programs import call
from testbed.remote import on

CONF = Path("/etc/nfs.conf.d/lab.conf")
MNT = Path("/mnt")
ETAB = Path("/var/lib/nfs/etab")


class Snapshot(NamedTuple):
    """The machine as far as serving goes, without times of folders: a rename changes them."""

    files: dict[str, str]
    journals: list[str]
    exports: str
    portlist: list[str]
    threads: str
    versions: list[str]
    service: str
    boot: str


def sh(script: str) -> None:
    call("sh", "-ec", script)


def snapshot() -> Snapshot:
    places = ("/etc/exports", "/etc/exports.d", "/etc/nfs.conf", "/etc/nfs.conf.d",
              "/var/lib/nfsrdma")  # fmt: skip
    files = [p for place in map(Path, places) for p in (place, *sorted(place.rglob("*")))]
    return Snapshot(
        {str(p): p.read_text() if p.is_file() else "" for p in files if p.exists()},
        sorted(path.name for path in make_state_dir().iterdir()),
        call("exportfs", "-v"),
        sorted(Path("/proc/fs/nfsd/portlist").read_text().split("\n")),
        Path("/proc/fs/nfsd/threads").read_text(),
        # a stopped nfsd remembers what it offered last; each start sets them anew
        list(nfsctl.versions()) if nfsctl.threads() else [],
        call("systemctl", "is-active", "nfs-server", check=False),
        call("systemctl", "is-enabled", "nfs-server", check=False),
    )


def is_as(before: Snapshot) -> None:
    for name, value, now in zip(Snapshot._fields, before, snapshot(), strict=True):
        assert now == value, name


@contextmanager
def restored(*folders: str) -> Iterator[None]:
    """nfsd, its configuration and the machine are as before; folders to export are there."""
    plain, begin = CONF.read_text(), snapshot()
    try:
        for folder in folders:
            Path(folder).mkdir()
        yield
    finally:
        CONF.write_text(plain)
        for folder in folders:
            Path(folder).rmdir()
        sh("systemctl restart nfs-server")
    is_as(begin)


def enable(path: str, *clients: str, versions: tuple[str, ...] = (), **options: Any) -> bool:
    """Whether it changed the machine."""
    with journal() as book:
        result = serving.enable(Export(Path(path), clients, **options), book, versions=versions)
        book.keep()
    return bool(result.changed)


def refused(path: str, *clients: str) -> str:
    try:
        enable(path, *clients)
    except UserError as error:
        return str(error)
    raise AssertionError(f"{path} is enabled")


@on("server")
def serve_any_directory() -> None:
    """Directories with hostile names, and one on a tmpfs."""
    before, net = snapshot(), "10.9.1.0/24"
    paths = ['/srv/a b#(ro)"', "/srv/$(reboot);'%s", "/export/tmpfs", "/srv/-o"]
    for path in paths:
        Path(path).mkdir()
        Path(path, "here").write_text(path)
        assert enable(path, net, "client"), path
        assert not enable(path, net, "client"), path
        with mounted("vers=3", MNT, f"server:{path}"):
            assert (MNT / "here").read_text() == path
            (row,) = (r for r in Path("/proc/mounts").read_text().split("\n") if " /mnt nfs" in r)
            assert "proto=rdma" in row
    assert list(serving.serving().own) == paths
    options = {e.path: set(e.options) for e in serving.serving().exports if e.client == net}
    assert all({"rw", "insecure", "root_squash"} <= options[path] for path in paths)
    assert any(option.startswith("fsid=") for option in options["/export/tmpfs"])
    enable("/srv/-o", net, read_only=True)
    assert [e.client for e in serving.serving().exports if "ro" in e.options] == [net]
    assert "is already exported to *" in refused("/export", "*")
    for words, expected in (
        (
            ("/srv/new\nline", "*"),
            "export path '/srv/new\\nline' has a backslash or control characters (rename it)",
        ),
        (("/srv/-o", "a b"), "client 'a b'"),
        (("/srv/none", "*"), "export path '/srv/none' is not a directory (create it first)"),
    ):
        assert refused(*words).partition(":")[0] == expected
    for path in paths:
        serving.disable(path)
        Path(path, "here").unlink()
        Path(path).rmdir()
    is_as(before)


@pytest.mark.main
def test_any_directory_is_served_over_rdma_and_taken_back(solo: Lab) -> None:
    serve_any_directory(solo)


def is_served(state: Snapshot) -> None:
    assert "rdma 20049" in state.portlist
    assert "/srv/plain" in state.exports
    assert state.boot == "enabled\n"
    assert "rdma-port=20049" in state.files["/etc/nfs.conf.d/nfsrdma.conf"]


@on("server")
def put_back() -> None:
    """Enable, and take back, in each state of the service."""
    with restored("/srv/plain"):
        CONF.write_text("[nfsd]\nthreads=8\nvers3=n\n")
        sh("systemctl restart nfs-server")
        running = snapshot()
        assert not any("rdma" in line for line in running.portlist)
        assert "3" not in running.versions

        # killed in the middle: the next start takes it back, with a restart, and again, harmlessly
        if os.fork() == 0:
            with journal() as book:
                serving.enable(Export(Path("/srv/plain"), ("client",)), book)
                os.kill(os.getpid(), 9)
        os.wait()
        killed = snapshot()
        is_served(killed)
        assert "/var/lib/nfsrdma/server.json" in killed.files
        recover()
        is_as(running)

        # an nfsd that runs gets its listener without a restart, and loses it with one
        pids = call("pgrep", "nfsd")
        enable("/srv/plain", "client")
        live = snapshot()
        is_served(live)
        assert "3" not in live.versions
        assert call("pgrep", "nfsd") == pids
        serving.disable("/srv/plain")
        is_as(running)

        sh("systemctl stop nfs-server")
        stopped = snapshot()
        enable("/srv/plain", "client", versions=("3",))
        started = snapshot()
        is_served(started)
        assert (started.service, "3" in started.versions) == ("active\n", True)
        serving.disable("/srv/plain")
        is_as(stopped)

        # somebody else's file has the last word: nothing is left of the attempt
        other = Path("/etc/nfs.conf.d/zz.conf")
        other.write_text("[nfsd]\nrdma=n\n")
        try:
            overridden = snapshot()
            assert "requested rdma-port=20049, got 0" in refused("/srv/plain", "client")
            is_as(overridden)
        finally:
            other.unlink()


def test_the_service_is_put_back_as_it_was(solo: Lab) -> None:
    put_back.at(timeout=300)(solo)


def access(name: str) -> None:
    """A file that is written to the mount is in the export."""
    # without the kernel's cache of exports, nfsd asks mountd again
    sh("exportfs -f")
    (MNT / name).write_text(name)
    assert Path("/srv/by hand", name).read_text() == name


def lines_of_etab(part: str) -> list[str]:
    return [line for line in ETAB.read_text().split("\n") if part in line]


@on("server", timeout=300)
def keep_export_by_hand() -> None:
    client = "10.9.1.0/24"
    with restored("/srv/by hand", "/srv/plain"):
        CONF.write_text("[nfsd]\nthreads=8\n")
        sh("systemctl restart nfs-server")
        sh(f"exportfs -i -o rw,insecure,no_root_squash,fsid=77 '{client}:/srv/by hand'")
        try:
            sh("mount -t nfs -o vers=3,nolock 'server:/srv/by hand' /mnt")
            access("before")
            (row,) = lines_of_etab("/srv/by\\040hand")
            enable("/srv/plain", "client")
            access("enabled")
            assert lines_of_etab("/srv/by\\040hand") == [row]
            enable("/srv/plain", "client", client, read_only=True)
            access("again")
            assert lines_of_etab("/srv/by\\040hand") == [row]
            # the listener of RDMA goes with a restart
            pids = call("pgrep", "nfsd")
            serving.disable("/srv/plain")
            assert call("pgrep", "nfsd") != pids
            access("disabled")
            assert lines_of_etab("/srv/by\\040hand") == [row]
            assert lines_of_etab("plain") == []
        finally:
            sh(f"umount -f /mnt || true; exportfs -u '{client}:/srv/by hand' || true")
            sh("rm '/srv/by hand'/*")


def test_an_export_by_hand_survives_enable_and_disable(solo: Lab) -> None:
    keep_export_by_hand(solo)


@contextmanager
def tcp_listener() -> Iterator[None]:
    with socket.create_server(("", 2049)):
        yield


@contextmanager
def rdma_listener() -> Iterator[None]:
    cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    cm.rdma_create_event_channel.restype = ctypes.c_void_p
    channel, held = ctypes.c_void_p(cm.rdma_create_event_channel()), ctypes.c_void_p()
    # RDMA_PS_TCP
    assert cm.rdma_create_id(channel, ctypes.byref(held), None, 0x106) == 0
    address = socket.AF_INET.to_bytes(2, "little") + (20049).to_bytes(2, "big") + bytes(12)
    assert cm.rdma_bind_addr(held, address) == 0, ctypes.get_errno()
    assert cm.rdma_listen(held, 1) == 0, ctypes.get_errno()
    try:
        yield
    finally:
        cm.rdma_destroy_id(held)
        cm.rdma_destroy_event_channel(channel)


@on("server", timeout=300)
def refuse_beside_others() -> None:
    with restored("/srv/plain"):
        sh("systemctl stop nfs-server")
        stopped = snapshot()
        for listener, port in ((tcp_listener, "TCP 2049"), (rdma_listener, "RDMA 20049")):
            with listener():
                error = refused("/srv/plain", "client")
                expected = f"python3 listens on {port}: the kernel's server cannot"
                assert error == f"{expected} (stop that server first)"
                status = json.loads(call("nfsrdma", "server", "status", "--json"))
                assert status["other"]["program"] == "python3"
            is_as(stopped)
        enable("/srv/plain", "client")
        serving.disable("/srv/plain")
        is_as(stopped)


def test_nfsd_is_not_enabled_beside_another_server(solo: Lab) -> None:
    refuse_beside_others(solo)
