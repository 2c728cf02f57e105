# SPDX-License-Identifier: Apache-2.0
"""Snapshots: JSON, recordings, and the parts of the sampler."""

import errno
import json
import math
import operator
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner
from unit.files_made import write_all
from unit.host.nfsd_netlink_made import RPC_STATUS, Kernel, rpc
from unit.live.snapshots_made import hostile, mount, served, snapshot, xprt

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, host_of_container
from nfsrdma_tools.host.nfs import mountinfo, sunrpc
from nfsrdma_tools.host.nfs.mounts import Mount as Effect
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.nfsd_status import NO_FAMILY
from nfsrdma_tools.host.rdma import ports as rdma_ports
from nfsrdma_tools.live import snapshot_json
from nfsrdma_tools.live.collect import mount_statistics, probe_statistics
from nfsrdma_tools.live.collect.client_finder import ClientFinder, RpcClients
from nfsrdma_tools.live.collect.host_statistics import HostReader
from nfsrdma_tools.live.collect.namespace import mount_namespace
from nfsrdma_tools.live.collect.pending_rpcs import PendingRpcs
from nfsrdma_tools.live.collect.probe_statistics import on_mounts
from nfsrdma_tools.live.collect.readings import Readings, Sources
from nfsrdma_tools.live.collect.sampler import Sampler
from nfsrdma_tools.live.collect.server_statistics import ServerReader
from nfsrdma_tools.live.feed import Feed, FeedOptions
from nfsrdma_tools.live.snapshot import Credits, Op, Personality, Server, Snapshot, Timing, Waiting
from nfsrdma_tools.live.snapshot_json import from_plain, to_plain
from nfsrdma_tools.probes import probe_sets, program, rpc_clients
from nfsrdma_tools.probes.maps import Row
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.probes.sets import chunks, connections, latency, readahead, registrations, server

DATA = Path(__file__).parents[1] / "data"
SAMPLER = "nfsrdma_tools.live.collect.sampler"
LOOK = ClientFinder.look_up


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HostReader:
    """A host with the mounts of a file of Linux 6.12; ``read`` writes its mountstats."""
    info, line = mountinfo.read_text(DATA / "mountinfo-6.12.txt"), LINE.format("proto=rdma")
    write_all(tmp_path, {"proc/self/mountinfo": info, "etc/fstab": line})
    monkeypatch.setattr(ClientFinder, "look_up", lambda self: None)
    return HostReader(ClientFinder(), Machine(tmp_path))


def read(reader: HostReader, mountstats: str) -> Readings:
    reader._mounts._machine.of_process("mountstats").write_text(mountstats)
    return reader.read()


@pytest.mark.parametrize("taken", [snapshot(), hostile(), snapshot(2, (), server=served())])
def test_a_snapshot_survives_json(taken: Snapshot) -> None:
    assert from_plain(Snapshot, json.loads(snapshot_json.line(taken))) == taken


def test_default_values_are_omitted() -> None:
    assert to_plain(Snapshot(1.0, 2.0)) == {"time": 1.0, "seconds": 2.0}


def test_unknown_fields_are_ignored() -> None:
    assert from_plain(Snapshot, {"time": 1, "seconds": 2, "new": [3]}) == Snapshot(1, 2)


@pytest.mark.parametrize(
    "plain",
    [[], 3, {}, {"time": "x", "seconds": 1}, {"time": 1, "seconds": 1, "mounts": {}},
     {"time": 1, "seconds": 1, "mounts": [{"device": 3, "directory": "/"}]},
     {"time": True, "seconds": 1}],
)  # fmt: skip
def test_an_invalid_snapshot_is_an_error(plain: object) -> None:
    with pytest.raises(UserError, match="invalid Snapshot"):
        from_plain(Snapshot, plain)


def test_a_recording_replays_at_its_intervals(tmp_path: Path) -> None:
    # the clock was set between the second and the third
    taken = [hostile(), snapshot(2), replace(snapshot(4), seconds=2.0, time=86400.0)]
    recorder = snapshot_json.Recorder(tmp_path / "r")
    for each in taken:
        recorder.add(each)
    recorder.close()
    seen: list[Snapshot] = []
    waits: list[float] = []
    snapshot_json.replayed(snapshot_json.read(tmp_path / "r"), seen.append, waits.append)
    assert seen == taken
    assert waits == [1.0, 2.0]


def test_an_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    recorder = snapshot_json.Recorder(tmp_path / "r")
    recorder.add(snapshot())
    recorder.close()
    whole = (tmp_path / "r").read_text()
    (tmp_path / "r").write_text(whole + whole.splitlines()[1][:90])
    assert len(list(snapshot_json.read(tmp_path / "r"))) == 1
    (tmp_path / "r").write_text(whole + "{}\n")
    with pytest.raises(UserError, match="invalid Snapshot"):
        list(snapshot_json.read(tmp_path / "r"))
    with pytest.raises(UserError, match="exists"):
        snapshot_json.Recorder(tmp_path / "r")
    with pytest.raises(UserError, match="No such file"):
        list(snapshot_json.read(tmp_path / "none"))


def test_host_statistics_are_the_difference_of_two_readings(reader: HostReader) -> None:
    text = mountinfo.read_text(DATA / "mountstats-6.12.txt")
    again = text.replace("READ: 23 23 0 4048", "READ: 24 25 0 4148", 1)
    again = again.replace("bytes:\t0 0 1507328", "bytes:\t0 0 1507428", 1)
    again = again.replace("rdma 0 0 1 0 8 55 55", "rdma 0 0 2 0 9 57 56", 1)
    before = read(reader, text)
    mounts = {m.directory: m for m in reader.mounts(read(reader, again), before)}
    busy = mounts.pop("/mnt/a")
    assert busy.ops == (Op("READ", 1, again=1, sent=100),)
    assert busy.direct == 100
    assert [(x.connects, x.counters) for x in busy.xprts] == [(1, {"sends": 2, "recvs": 1})]
    assert not any(each.did_something or each.xprts[0].counters for each in mounts.values())


@pytest.mark.parametrize(
    ("old", "new"),
    [("READ: 23 23 0 4048", "READ: 3 3 0 90"), ("bytes:\t0 0 1507328", "bytes:\t0 0 7"),
     ("fstype nfs4", "fstype nfs"), ("        NULL: 1 1 0 40 24 38 1 39 0\n", ""),
     ("\txprt:\trdma 0 0 1 0 8", "\txprt:\trdma 0 0 1 0 8 1\n\txprt:\trdma 0 0 1 0 8")],
)  # fmt: skip
def test_a_new_mount_in_the_same_place_has_no_counts(
    old: str, new: str, reader: HostReader
) -> None:
    text = mountinfo.read_text(DATA / "mountstats-6.12.txt")
    assert old in text
    before = read(reader, text)
    table = reader._machine.of_process("mountinfo")
    info = mountinfo.read_text(table)
    types = old.replace("fstype", " -"), new.replace("fstype", " -")
    table.write_text(info.replace(*types, 1))
    mounts = reader.mounts(read(reader, text.replace(old, new, 1)), before)
    (mount,) = (each for each in mounts if each.directory == "/mnt/a")
    assert not mount.did_something
    assert mount.xprts


def test_an_invalid_line_is_reported(reader: HostReader) -> None:
    text = mountinfo.read_text(DATA / "mountstats-6.12.txt")
    assert read(reader, text.replace("bytes:\t0 0 1507328", "bytes:\t0 0 x", 1)).mounts == {}
    assert "cannot parse mountstats" in reader.missing["mountstats"]
    assert read(reader, text).mounts
    assert reader.missing == {}


TASKS = """\
 1093 2281 -11 0x3 0x5b6d2d7e 14999 nfs_ops [nfs] nfsv4 READ a:call_status [sunrpc] q:xprt_pending
 what else
 1094 2281 0 0x3 0x0        0 nfs_ops nfsv3 GETATTR a:call_reserveresult q:none
"""


def test_pending_rpcs() -> None:
    tasks = sunrpc.parse_tasks(3, TASKS)
    assert [(t.number, t.procedure, t.waits_for) for t in tasks] == [
        (1093, "READ", "xprt_pending"), (1094, "GETATTR", "none"),
    ]  # fmt: skip
    assert [(t.program, t.xid, t.action) for t in tasks] == [
        ("nfs", 0x5B6D2D7E, "call_status"), ("nfs", 0, "call_reserveresult"),
    ]  # fmt: skip
    null = "    1 0000      0 0x3 0x9        0 call_ops nfsv4 no proc a:call_start q:none"
    assert [(t.procedure, t.xid) for t in sunrpc.parse_tasks(3, null)] == [("no proc", 9)]
    assert sunrpc.parse_tasks(3, null.replace("call_ops", "x" * 1000)) == []


def test_connections_in_sysfs(tmp_path: Path) -> None:
    machine = Machine(sysfs=tmp_path)
    switch = machine.path("sys/kernel/sunrpc/xprt-switches/switch-0")
    folder = switch / "xprt-7-rdma"
    info = "last_used=4295\ncur_cong=512\ncong_win=16384\nmax_num_slots=128\nnum_reqs=2\n"
    info += "pending_q_len=2\nsrc_port=0\ndst_port=20049\n"
    state = "state=CONNECTED BOUND\n"
    write_all(folder, {"dstaddr": "10.9.1.1\n", "xprt_state": state, "xprt_info": info})
    (switch / "xprt-8-tcp").mkdir()
    watched = sunrpc.Transports({7, 8}, machine)
    # one that disappeared meanwhile is skipped
    (rdma,) = watched.read().values()
    assert (rdma.number, rdma.kind, rdma.address) == (7, "rdma", "10.9.1.1")
    assert (rdma.credits, rdma.used, rdma.requests, rdma.pending) == (64, 2, 2, 2)
    assert rdma.connected
    (folder / "xprt_info").write_text(info.replace("last_used=4295", "last_used=9999"))
    assert watched.read()[7] is rdma
    (folder / "xprt_state").write_text("state=CLOSED\n")
    assert not watched.read()[7].connected
    assert sunrpc.Transports({8}, machine).read() == {}


def test_parse_statistics_of_nfsd_and_ports(tmp_path: Path) -> None:
    served = nfsctl.parse_statistics("rc 0 0 9\nio 4096 77\nth 8 0\nrpc 12 1 1 0 0\n\n")
    assert served == nfsctl.Served(4096, 77, 12, 1)
    reads = "proc3 22 0 9 0 0 3 0 40 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\nproc4 2 0 8\nproc4ops 3 0 0 0\n"
    assert nfsctl.parse_statistics(reads) == nfsctl.Served(reads=40)
    folder = tmp_path / "rxe0/ports/1"
    write_all(folder, {"state": "1: DOWN\n", "phys_state": "3: Disabled\n"})
    ports = rdma_ports.Ports(tmp_path)
    assert ports.read() == [rdma_ports.Port("rxe0/1", "", "DOWN", "Disabled")]
    write_all(folder, {"gid_attrs/ndevs/0": "eth1\n", "state": "4: ACTIVE\n"})
    assert ports.read() == [rdma_ports.Port("rxe0/1", "eth1", "ACTIVE", "Disabled")]
    (tmp_path / "rxe0").rename(tmp_path / "rxe1")
    assert [port.name for port in ports.read()] == ["rxe1/1"]
    assert rdma_ports.Ports(tmp_path / "none").read() == []


@pytest.fixture
def server_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host whose nfsd runs; netlink is that of a stand-in."""
    write_all(tmp_path, {
        "proc/self/mountinfo": "", "proc/self/net/rpc/nfsd": "io 4096 77\nrpc 12 1 1 0 0\n",
        "proc/fs/nfsd/threads": "5\n", "proc/fs/nfsd/portlist": "tcp 2049\n",
    })  # fmt: skip
    monkeypatch.setattr(Machine, "live", True)
    return Machine(tmp_path)


def booted(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfsrdma_tools.host.nfsd_netlink.socket.socket", kernel)
    clock = "nfsrdma_tools.host.nfsd_netlink.time.monotonic_ns"
    monkeypatch.setattr(clock, lambda: 60_000_000_000)


def server_of(machine: Machine, **options: bool) -> tuple[Server, dict[str, str]]:
    sources = Sources()
    reader = ServerReader(machine, sources, **options)
    now = Readings(nfsd=reader.statistics())
    nfsd = reader.server(now, now)
    assert nfsd
    return nfsd, sources.missing


def test_the_rpcs_that_nfsd_holds_are_in_a_snapshot(
    server_host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = [0, 900_000, 1_000_000, *range(2_000_000, 9_000_000, 1_000_000)]
    kernel = Kernel(rpcs=[rpc(age, started_us=60_000_000 - age) for age in ages])
    booted(kernel, monkeypatch)
    nfsd, missing = server_of(server_host, pending_rpcs=True)
    assert (nfsd.threads, nfsd.listeners) == (8, ("rdma 20049", "tcp 2049"))
    assert nfsd.pending == len(ages)
    assert [held.seconds for held in nfsd.held] == [8, 7, 6, 5, 4]
    assert missing == {}
    assert from_plain(Server, json.loads(json.dumps(to_plain(nfsd)))) == nfsd


def test_server_statistics_of_an_old_kernel_are_read_by_files(
    server_host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted(Kernel(family=0), monkeypatch)
    nfsd, missing = server_of(server_host, pending_rpcs=True)
    assert (nfsd.threads, nfsd.listeners) == (5, ("tcp 2049",))
    assert (nfsd.pending, nfsd.held) == (None, ())
    assert missing == {"pending RPCs of nfsd": NO_FAMILY}


def test_nobody_who_does_not_look_reads_pending_rpcs(
    server_host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(rpcs=[rpc(started_us=0)])
    booted(kernel, monkeypatch)
    nfsd, missing = server_of(server_host)
    assert (nfsd.threads, nfsd.pending, nfsd.held, missing) == (8, None, (), {})
    assert RPC_STATUS not in [command for command, _ in kernel.asked]


def test_only_top_reads_pending_rpcs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FeedOptions] = []
    monkeypatch.setattr(
        "nfsrdma_tools.cli.live._serve", lambda options, *_, **__: made.append(options)
    )
    monkeypatch.setattr("nfsrdma_tools.live.top.app.run", made.append)
    for command in ("exporter", "dashboard", "top"):
        assert CliRunner().invoke(app, [command]).exit_code == 0
    assert [options.pending_rpcs for options in made] == [False, False, True]


def test_counters_of_a_personality_restart_with_its_connection() -> None:
    def state(**counters: int) -> Readings:
        lanes = {"lanes": 3}
        transport = ClientTransport(3, "10.9.1.1", 20049, "cached", "cached", lanes, counters)
        return Readings(transports={3: transport})

    def found(now: Readings, before: Readings) -> Personality | None:
        return mount_statistics._with_personality(xprt(), now, before).personality

    before = state(cache_hits=7, cache_misses=2)
    after = state(cache_hits=9, cache_misses=2)
    assert found(after, before) == Personality("cached", {"lanes": 3}, {"cache_hits": 2})
    assert found(state(cache_hits=4), before) == Personality(
        "cached", {"lanes": 3}, {"cache_hits": 4}
    )
    # new in this interval
    assert found(after, Readings()) == Personality("cached", {"lanes": 3}, {})
    assert found(Readings(), after) is None


def test_client_finder_repeats_a_look_that_failed(
    reader: HostReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mounts do not change again, so nothing else would cause another look."""
    answers: Iterator[OSError | dict[int, tuple[str, ...]]] = iter(
        [OSError(errno.EINVAL, "Invalid argument"), {3: ("/mnt",)}]
    )

    def clients(*_: object) -> dict[int, tuple[str, ...]]:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("nfsrdma_tools.live.collect.client_finder.clients", clients)
    monkeypatch.setattr(ClientFinder, "look_up", LOOK)
    now = reader.read()
    for _ in range(2):
        reader.mounts(now, now)
        thread = reader._mounts._clients._thread
        assert thread
        thread.join()
    assert reader._mounts._clients.known.clients == {"/mnt": 3}


def test_a_pending_rpc_has_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = PendingRpcs(lambda client: sunrpc.parse_tasks(client, TASKS))
    known = RpcClients({"/mnt": 3})
    busy = (mount(xprts=(xprt(pending=2),)),)
    assert pending.add_to(busy, known, 100.0)[0].waiting == ()
    oldest = pending.add_to(busy, known, 107.0)[0].waiting[0]
    assert oldest == Waiting("READ", 7.0, "xprt_pending", 3, 1093)
    assert pending.add_to((mount(),), known, 108.0)[0].waiting == ()


@pytest.mark.parametrize(
    ("options", "transport", "asked", "another"),
    [
        ("vers=4.2,proto=tcp,port=20049", "tcp", "rdma", True),
        ("vers=4.2,proto=rdma,port=20049", "rdma", "rdma", False),
        ("vers=4.2,proto=tcp", "tcp", "", False),
    ],
)
def test_a_mount_that_is_not_in_fstab_has_the_transport_of_its_port(
    options: str, transport: str, asked: str, another: bool
) -> None:
    line = f"44 29 0:45 / /var/lib/kubelet/x rw - nfs4 s:/e rw,{options},addr=10.9.1.1\n"
    effects = [Effect.of(entry, "rpcrdma") for entry in mountinfo.parse(line)]
    (grouped,) = mount_statistics._grouped(effects, {})
    assert (grouped.transport, grouped.asked, grouped.has_another) == (transport, asked, another)


# as systemd-fstab-generator of systemd 252 writes it
GENERATED = """\
# Automatically generated by systemd-fstab-generator

[Unit]
Documentation=man:fstab(5) man:systemd-fstab-generator(8)
SourcePath=/etc/fstab
Before=remote-fs.target

[Mount]
What=server:/export
Where=/mnt/b
Type=nfs
Options={}
"""
# as an administrator writes it (systemd.mount(5))
BY_HAND = """\
[Unit]
Description=Scratch
Wants=network-online.target
After=network-online.target

[Mount]
What=server:/export
Where=/mnt/b
Type={}
Options={}
TimeoutSec=30

[Install]
WantedBy=remote-fs.target
"""
AUTOMOUNT = "[Automount]\nWhere=/mnt/b\n\n[Install]\nWantedBy=remote-fs.target\n"
AUTOFS = "40 29 0:39 / /mnt/b rw,relatime - autofs systemd-1 rw,fd=58,pgrp=1,minproto=5,direct\n"
UNIT = "etc/systemd/system/mnt-b.mount"
LINE = "server:/export /mnt/b nfs {} 0 0\n"


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({UNIT: BY_HAND.format("nfs", "vers=4.2,proto=rdma")}, "rdma"),
        ({UNIT: BY_HAND.format("nfs4", "rw,rdma,hard")}, "rdma"),
        ({UNIT: BY_HAND.format("nfs", "proto=rdma6,port=20050")}, "rdma"),
        ({UNIT: BY_HAND.format("nfs", "vers=4.2,proto=tcp")}, "tcp"),
        ({UNIT: BY_HAND.format("nfs", "vers=4.2")}, "tcp"),
        ({UNIT: BY_HAND.format("cifs", "vers=3,rdma")}, ""),
        ({UNIT: BY_HAND.format("nfs", "rdma").replace("/mnt/b", "/mnt/other")}, ""),
        # a unit that a package has
        ({f"usr/lib/{UNIT[4:]}": BY_HAND.format("nfs", "proto=rdma")}, "rdma"),
        # the unit has the options of its automount unit
        ({UNIT: BY_HAND.format("nfs", "proto=rdma"),
          UNIT.replace(".mount", ".automount"): AUTOMOUNT, "proc/self/mountinfo": AUTOFS}, "rdma"),
        # systemctl edit writes a drop-in
        ({UNIT: BY_HAND.format("nfs", "vers=4.2"),
          f"{UNIT}.d/override.conf": "[Mount]\nOptions=vers=4.2,proto=rdma\n"}, "rdma"),
        # systemd uses the unit in place of the line
        ({UNIT: BY_HAND.format("nfs", "proto=rdma"), "etc/fstab": LINE.format("tcp")}, "rdma"),
        # the line was edited after the last daemon-reload
        ({"run/systemd/generator/mnt-b.mount": GENERATED.format("proto=tcp"),
          "etc/fstab": LINE.format("noauto,x-systemd.automount,rdma")}, "rdma"),
        # a link: systemd and mount(8) resolve it
        ({"link": "", "etc/fstab": LINE.format("rdma").replace("/mnt/b", "/data")}, "rdma"),
        # nfsmount.conf may name the transport: the line does not request TCP
        ({"etc/nfsmount.conf": "[ NFSMount_Global_Options ]\nProto=rdma\n",
          "etc/fstab": LINE.format("defaults")}, ""),
        ({"etc/fstab": "not a line\n", UNIT: "[Mount]\nWhere=b\n\0"}, ""),
    ],
)  # fmt: skip
def test_a_mount_has_the_transport_that_its_definition_requests(
    reader: HostReader, tmp_path: Path, files: dict[str, str], asked: str
) -> None:
    """The mount on /mnt/b, which uses TCP: each request of RDMA is one that was not met."""
    (tmp_path / "etc/fstab").unlink()
    for name, text in files.items():
        path = tmp_path / name
        if name == "link":
            (tmp_path / "data").symlink_to("/mnt/b")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else ""
        path.write_text(text + before)
    now = read(reader, mountinfo.read_text(DATA / "mountstats-6.12.txt"))
    at_b = {m.directory: m for m in reader.mounts(now, now)}["/mnt/b"]
    assert (at_b.transport, at_b.asked, at_b.has_another) == ("tcp", asked, asked == "rdma")


def test_a_definition_that_cannot_be_read_hides_no_mount(
    reader: HostReader, tmp_path: Path
) -> None:
    """A container may not read /proc/1/root; here, a folder stands in for fstab."""
    (tmp_path / "etc/fstab").unlink()
    (tmp_path / "etc/fstab").mkdir()
    now = Readings()
    requested = {m.directory: m.asked for m in reader.mounts(now, now)}
    assert (requested["/mnt/b"], len(requested)) == ("", 5)


def test_mount_statistics_of_a_further_mount_point_may_request_rdma() -> None:
    """The first mount of an export decides; the kernel lists its options for the second, too."""
    lines = "".join(
        f"{number} 29 0:45 / {where} rw - nfs4 s:/e rw,vers=4.2,proto=tcp,addr=10.9.1.1\n"
        for number, where in ((44, "/first"), (45, "/second"), (46, "/third"))
    )
    effects = [Effect.of(entry, "rpcrdma") for entry in mountinfo.parse(lines)]
    requested = {Path("/first"): "tcp", Path("/second"): "rdma", Path("/third"): "tcp"}
    (grouped,) = mount_statistics._grouped(effects, requested)
    assert (grouped.directory, grouped.also) == ("/first", ("/second", "/third"))
    assert (grouped.asked, grouped.has_another) == ("rdma", True)


def test_mounts_from_files_of_the_kernel(reader: HostReader) -> None:
    """Two readings of the same text: all mounts, and no counts."""
    now = read(reader, mountinfo.read_text(DATA / "mountstats-6.12.txt"))
    mounts = {m.directory: m for m in reader.mounts(now, now)}
    assert set(mounts) == {"/mnt/a", "/mnt/b", "/mnt/c d", "/mnt/e", "/mnt/g"}
    at_b = mounts["/mnt/b"]
    assert (at_b.asked, at_b.transport, len(at_b.xprts)) == ("rdma", "tcp", 4)
    assert not any(mount.did_something for mount in mounts.values())
    assert {m.directory for m in reader.mounts(Readings(), now)} == set(mounts)


def test_a_container_reads_the_host_that_is_mounted_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of a DaemonSet; /host/proc/self would be the container's own process."""
    xprt_path = "sys/kernel/sunrpc/xprt-switches/switch-0/xprt-7-rdma"
    write_all(tmp_path, {
        "proc/1/mountinfo": mountinfo.read_text(DATA / "mountinfo-6.12.txt"),
        "proc/1/mountstats": mountinfo.read_text(DATA / "mountstats-6.12.txt"),
        "proc/self/mountinfo": "", "proc/self/mountstats": "",
        "proc/1/net/rpc/nfsd": "io 4096 77\nrpc 12 1 1 0 0\n",
        "proc/fs/nfsd/threads": "8\n", "proc/fs/nfsd/portlist": "rdma 20049\n",
        "root/etc/fstab": LINE.format("proto=rdma"),
        "sys/class/bdi/0:46/read_ahead_kb": "512\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
        f"{xprt_path}/xprt_state": "state=CONNECTED BOUND\n",
        f"{xprt_path}/xprt_info": "cong_win=16384\npending_q_len=2\n",
        f"{xprt_path}/dstaddr": "10.9.1.1\n",
        "sys/kernel/debug/sunrpc/rpc_clnt/3/tasks": TASKS,
    })  # fmt: skip
    (tmp_path / "proc/1/ns").mkdir()
    (tmp_path / "proc/1/ns/mnt").symlink_to("mnt:[4026531841]")
    client = tmp_path / "sys/kernel/sunrpc/rpc-clients/clnt-3"
    client.mkdir(parents=True)
    (client / "switch").symlink_to("../../xprt-switches/switch-0")
    folder = tmp_path / "sys/fs/nfs/0:46"
    folder.mkdir(parents=True)
    (folder / "nfs_client").symlink_to("../../../kernel/sunrpc/rpc-clients/clnt-3")
    host = host_of_container(tmp_path / "proc", tmp_path / "sys", tmp_path / "root")
    # an RPC is sent to a mount that is in sight only, and none of these is
    monkeypatch.setattr(rpc_clients, "_send_rpc", lambda *_: pytest.fail("touches a mount"))
    sampler = Sampler(sets=(), machine=host)
    sampler._clients.look_up(wait=True)
    first = sampler.take()
    mounts = {mount.directory: mount for mount in sampler.take().mounts}
    assert set(mounts) == {"/mnt/a", "/mnt/b", "/mnt/c d", "/mnt/e", "/mnt/g"}
    assert mounts["/mnt/b"].asked == "rdma"
    assert mounts["/mnt/a"].read_ahead_kb == 512
    (connection,) = mounts["/mnt/a"].xprts
    assert (connection.number, connection.address, connection.pending) == (7, "10.9.1.1", 2)
    assert (first.server and first.server.threads, [port.name for port in first.ports]) == (
        8, ["mlx5_0/1"],
    )  # fmt: skip
    assert mount_namespace(host) == (f"{tmp_path}/proc/1/mountinfo", "4026531841")


def test_a_wrong_procfs_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*/1/mountinfo: No such file.*procfs"):
        Sampler(sets=(), machine=host_of_container(tmp_path, None, None))


def test_without_options_the_own_mount_namespace_is_read() -> None:
    path, number = mount_namespace()
    assert path == "/proc/self/mountinfo"
    assert Path(f"mnt:[{number}]") == Path("/proc/self/ns/mnt").readlink()
    assert host_of_container(None, Path("/host/sys"), None).process == "self"
    assert host_of_container(Path("/host/proc"), None, None).path("etc/fstab") == Path(
        "/host/proc/1/root/etc/fstab"
    )


def test_snapshots_need_neither_nfs_nor_root() -> None:
    sampler = Sampler()
    sampler.take()
    second = sampler.take()
    assert second.number == 2
    assert min(second.seconds, second.processors.wall_ns) > 0


def test_a_sampler_stops() -> None:
    sampler = Sampler(interval=0.01)
    seen: list[Snapshot] = []

    def deliver(taken: Snapshot) -> None:
        seen.append(taken)
        if len(seen) == 3:
            sampler.stop()

    sampler.run(deliver)
    assert [each.number for each in seen] == [2, 3, 4]
    assert "probes" in seen[-1].missing


@contextmanager
def sampling(sampler: Sampler, deliver: Callable[[Snapshot], object] = id) -> Iterator[None]:
    """The sampler runs beside the block."""
    thread = threading.Thread(target=sampler.run, args=(deliver,))
    thread.start()
    try:
        yield
    finally:
        sampler.stop()
        thread.join(60)


class Faulty:
    """Probe sets of which latency counts 1 per reading; ``fails`` are the readings that fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fails: int) -> None:
        self.fails, self.counts = fails, {"latency": 0, "chunks": 0}
        monkeypatch.setattr(probe_sets, "probe_set", self._probe_set)

    def counted(self) -> probe_statistics.ProbeReader:
        session = cast(Session, SimpleNamespace(table=lambda _: {}, missing=()))
        return probe_statistics.ProbeReader(session, tuple(self.counts))

    def _probe_set(self, name: str) -> object:
        def read(_: object) -> int:
            self.counts[name] += 1
            if name == "latency" and self.counts[name] in self.fails:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return self.counts[name]

        return SimpleNamespace(read=read, difference=operator.sub, forget=lambda *_: None)


def test_probe_statistics_survive_a_reading_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Faulty(monkeypatch, 3, 4).counted()
    assert counted.read() == {"latency": 1, "chunks": 1, "lost": {}}
    for _ in range(2):
        assert counted.read() == {"chunks": 1, "lost": {}}
        assert list(counted.failed) == ["latency"]
        assert "Invalid argument" in counted.failed["latency"]
    assert counted.read() == {"latency": 3, "chunks": 1, "lost": {}}
    assert not counted.failed and not counted.is_broken


def test_a_reading_that_fails_does_not_turn_the_probes_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler()
    sampler._probes = Faulty(monkeypatch, 2).counted()
    monkeypatch.setattr(f"{SAMPLER}.on_mounts", lambda mounts, *_: mounts)
    assert "Invalid argument" in sampler.take().missing["latency"]
    assert "latency" not in sampler.take().missing


def test_probes_that_cannot_be_read_are_attached_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    log: queue.Queue[str] = queue.Queue()

    @contextmanager
    def counting(_: object, names: object, proc: object) -> Iterator[probe_statistics.ProbeReader]:
        log.put("attached")
        try:
            yield Faulty(monkeypatch, *range(2, 1000)).counted()
        finally:
            log.put("detached")

    sampler = Sampler(interval=0.01, sets=("latency", "chunks"))
    monkeypatch.setattr(f"{SAMPLER}.counting", counting)
    monkeypatch.setattr(f"{SAMPLER}._RETRY", 0.0)
    monkeypatch.setattr(f"{SAMPLER}.on_mounts", lambda mounts, *_: mounts)
    taken: list[Snapshot] = []
    with sampling(sampler, taken.append):
        messages = [log.get(timeout=60) for _ in range(3)]
    assert messages == ["attached", "detached", "attached"]
    failed = [each for each in taken if "latency" in each.missing]
    assert len(failed) >= 10


def test_probes_that_cannot_be_attached_are_attached_later(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: queue.Queue[int] = queue.Queue()

    def counting(_: object, names: object, proc: object) -> object:
        tries.put(1)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(f"{SAMPLER}.counting", counting)
    monkeypatch.setattr(f"{SAMPLER}._RETRY", 0.0)
    sampler = Sampler(interval=0.01, sets=("latency",))
    with sampling(sampler):
        assert [tries.get(timeout=60) for _ in range(2)] == [1, 1]


def test_probes_attach_again_when_a_module_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The exporter starts at boot; the first mount may load sunrpc, nfs and a transport."""
    attached: queue.Queue[tuple[str, ...]] = queue.Queue()

    @contextmanager
    def counting(_: dict[str, str], names: Sequence[str], proc: object) -> Iterator[None]:
        attached.put(program.program(names).events)
        yield None

    monkeypatch.setattr(program, "TRACEFS", tmp_path)
    monkeypatch.setattr(f"{SAMPLER}.counting", counting)
    sampler = Sampler(interval=0.01, sets=("latency", "readahead"))
    with sampling(sampler):
        assert attached.get(timeout=60) == ()
        for event in (("sunrpc", "rpc_request"), ("nfs", "nfs_aop_readahead")):
            made = tmp_path / "made" / event[1]
            made.mkdir(parents=True)
            members = ("client_id", "task_id", "dev", "fileid", "offset", "nr_pages")
            fields = (f"\tfield:u32 {name};\toffset:8;\tsize:4;\n" for name in members)
            (made / "format").write_text("".join(fields))
            # at once, as the kernel does it: the description is there with the event
            (tmp_path / "events" / event[0]).mkdir(parents=True)
            made.rename(tmp_path / "events" / event[0] / event[1])
            assert ":".join(event) in attached.get(timeout=60)


def test_losses_of_probes_add_up_in_missing() -> None:
    lost = iter([{}, {"rpcs": 3}, {"rpcs": 4, "windows": 1}, {}])
    sampler = Sampler()
    counts = {**counted_found(), "server": server.Server({}, {})}
    counted = SimpleNamespace(read=lambda: {**counts, "lost": next(lost)}, failed={})
    sampler._probes = counted  # type: ignore[assignment]
    first, *others, last = (sampler.take() for _ in range(4))
    assert not any(name.startswith("lost") for name in first.missing)
    assert [each.lost for each in others] == [{"rpcs": 3}, {"rpcs": 4, "windows": 1}]
    assert last.missing["lost rpcs"] == "not counted by the probes: 7"
    assert last.missing["lost windows"].endswith(" 1")


def test_each_kind_of_loss_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """RPCs and samples without room in a map, and events that the ring buffer dropped."""
    added = {
        "connections": SimpleNamespace(lost=4),
        "cpu": SimpleNamespace(lost=9, host=SimpleNamespace(wall_ns=1)),
    }

    def probe_set(name: str) -> object:
        return SimpleNamespace(
            read=lambda _: None,
            difference=lambda *_: added[name],
            forget=lambda *_: None,
            records=lambda *_: [],
        )

    rpcs = iter([0, 2, 2])
    losses = SimpleNamespace(items=lambda: [(0, [next(rpcs)]), (1, [0]), (2, [0]), (3, [0])])
    monkeypatch.setattr(probe_sets, "probe_set", probe_set)
    monkeypatch.setattr(probe_statistics, "CPU_EVERY", math.inf)
    session = cast(Session, SimpleNamespace(table=lambda _: losses))
    counting = probe_statistics.ProbeReader(session, tuple(added))
    assert counting.read()["lost"] == {"rpcs": 2, "events": 4, "samples": 9}
    # CPU time by layer is read less often
    assert counting.read()["lost"] == {"events": 4}


def test_reading_stacks_does_not_prolong_the_first_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first reading of cpu may take seconds; other sets would count events meanwhile."""
    order: list[str] = []

    def probe_set(name: str) -> object:
        return SimpleNamespace(read=lambda _: order.append(name))

    monkeypatch.setattr(probe_sets, "probe_set", probe_set)
    session = cast(Session, SimpleNamespace(table=lambda _: {}))
    probe_statistics.ProbeReader(session, ("latency", "cpu", "chunks"))
    assert order[0] == "cpu"


def counted_found() -> dict[str, object]:
    """Counts of client 3, and of transport 7 of our module, which client 4 uses."""
    row, other = Row(3, "READ"), Row(4, "WRITE")
    regions = tuple(range(1, 1 + len(registrations.COUNTS)))
    credit = connections.Credit(32, 5, 9, 2)
    return {
        "latency": latency.Latency(
            {row: (2, 900, 1, 0, 0, 800, 0, 0, 0), other: (1, 70, 0, 0, 0, 70, 0, 0, 0)},
            {row: (0, 2)}, {}, (),
        ),
        "chunks": chunks.Chunks(
            {row: (2,) * len(chunks.COUNTS)}, {row: (*[0] * 65, 2, *[0] * 62)}
        ),
        "registrations": registrations.Registrations(
            {(False, 3): regions, (True, 7): regions}, {(False, 3): (0, 4), (True, 7): (1,)}, 0, 0
        ),
        "connections": connections.Connections(
            (), 0, {(False, 3): credit, (True, 7): credit}
        ),
        "readahead": readahead.ReadAhead({"0:47": (1, 2, 3, 4, 5, 6)}),
    }  # fmt: skip


def test_on_mounts_assigns_counts_of_probes_to_mounts() -> None:
    plain = {"timings": (), "chunks": (), "regions": None}
    mounts = (
        mount("/a", **plain),
        mount("/b", device="0:46", transport="nfsrdma", xprts=(xprt(number=7),), **plain),
        mount("/c", device="0:47", transport="tcp", **plain),
        mount("/d", device="0:48", **plain),
    )
    known = RpcClients({"/a": 3, "/b": 4, "/c": 5, "/d": 6}, {"/a": (3,), "/b": (7,), "/d": (3,)})
    kernels, ours, ahead, idle = on_mounts(mounts, counted_found(), known)
    assert kernels.timings == (
        Timing("READ", 2, 900, {"slot": 1, "network_and_server": 800}, ((1, 2),)),
    )
    assert kernels.chunks[0].sizes == {"write": ((1, 2),)}
    # sysfs has the credits of the kernel's transport, the probes have those of our module
    assert kernels.xprts[0].credits == mounts[0].xprts[0].credits
    assert ours.xprts[0].credits == Credits(32, 5)
    assert (kernels.credit_waits, ours.credit_waits, idle.credit_waits) == (2, 0, 0)
    assert kernels.regions and ours.regions
    assert (kernels.regions.lifetimes, ours.regions.lifetimes) == (((1, 4),), ((0, 1),))
    assert ours.timings[0].procedure == "WRITE"
    assert ahead == replace(mounts[2], ahead=ahead.ahead)
    assert ahead.ahead and ahead.ahead.counts["windows"] == 1
    assert idle is mounts[3]


@pytest.mark.parametrize("attached", ["latency", "chunks", "registrations", "connections", ""])
def test_any_probe_set_may_be_absent(attached: str) -> None:
    plain = mount("/a", timings=(), chunks=(), regions=None)
    parts = {name: part for name, part in counted_found().items() if name == attached}
    (merged,) = on_mounts((plain,), parts, RpcClients({"/a": 3}))
    counts = {"latency": merged.timings, "chunks": merged.chunks, "registrations": merged.regions,
              "connections": merged.credit_waits}  # fmt: skip
    assert {name for name, count in counts.items() if count} == {attached} - {""}


def test_a_snapshot_needs_no_probe_set() -> None:
    sampler = Sampler()
    sampler._probes = SimpleNamespace(read=lambda: {"lost": {}}, failed={})  # type: ignore[assignment]
    assert "probes" not in sampler.take().missing


def test_credits_belong_to_connections_not_to_clients() -> None:
    """With nconnect, a client has one row in the probes, and each connection has credits."""
    exact = (xprt(number=3, credits=Credits(64, 7)), xprt(number=4, credits=Credits(16, 1)))
    unknown = (xprt(number=-1, credits=Credits()),)
    mounts = (
        mount("/a", nconnect=2, xprts=exact),
        mount("/b", device="0:46", xprts=unknown),
        mount("/c", device="0:47", nconnect=2, xprts=unknown * 2),
    )
    counts = counted_found()
    credit = connections.Credit(32, 32, 32, 5)
    counts["connections"] = connections.Connections((), 0, {(False, n): credit for n in (3, 4, 5)})
    double, single, blind = on_mounts(mounts, counts, RpcClients({"/a": 3, "/b": 4, "/c": 5}))
    assert double.xprts is exact
    assert double.credit_waits == single.credit_waits == blind.credit_waits == 5
    assert single.xprts[0].credits == Credits(32, 32)
    assert blind.xprts == mounts[2].xprts


def test_a_feed_reports_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(_: Snapshot) -> None:
        raise ZeroDivisionError("x")

    over = threading.Event()
    feed = Feed(FeedOptions(interval=0.01, probes=False), deliver, over.set)
    feed.start()
    assert over.wait(30)
    feed.stop()
    assert "the sampler failed: ZeroDivisionError" in str(feed.failure)


def test_a_replay_that_is_stopped_delivers_no_more() -> None:
    seen: list[Snapshot] = []
    snapshot_json.replayed(
        [snapshot(1), snapshot(2), replace(snapshot(3), seconds=7.0)],
        seen.append,
        lambda seconds: seconds > 1,
    )
    assert [each.number for each in seen] == [1, 2]


@pytest.mark.parametrize(
    ("more", "waits"), [({}, True), ({"probes": False}, False), ({"replay": True}, False)]
)
def test_only_waiting_for_the_compiler_prints_a_message(
    more: dict[str, Any], waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot_json.Recorder(tmp_path / "r").close()
    messages: list[str] = []
    stderr = SimpleNamespace(write=messages.append, flush=lambda: None)
    monkeypatch.setattr("sys.__stderr__", stderr)
    asked = FeedOptions(**{**more, **({"replay": tmp_path / "r"} if "replay" in more else {})})
    feed = Feed(asked, lambda _: None, lambda: None)
    busy = SimpleNamespace(is_alive=lambda: True, join=lambda timeout=0: None)
    monkeypatch.setattr(feed, "_thread", busy)
    feed.stop()
    assert any("waiting for the compiler" in text for text in messages) == waits


def test_a_feed_waits_for_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed's own thread detaches the probes that the compiler returns."""
    compiling, compiled, told, done = (threading.Event() for _ in range(4))

    @contextmanager
    def slow(*_: object) -> Iterator[None]:
        compiling.set()
        compiled.wait()
        yield None
        done.set()

    monkeypatch.setattr(f"{SAMPLER}.counting", slow)
    stderr = SimpleNamespace(write=lambda _: told.set(), flush=lambda: None)
    monkeypatch.setattr("sys.__stderr__", stderr)
    feed = Feed(FeedOptions(interval=0.01), lambda _: None, lambda: None)
    feed.start()
    assert compiling.wait(300)
    ending = threading.Thread(target=feed.stop)
    ending.start()
    assert told.wait(300)
    assert not done.is_set()
    compiled.set()
    ending.join(300)
    assert done.is_set()
