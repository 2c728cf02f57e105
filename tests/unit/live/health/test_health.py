# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma health` on made hosts: each hang, each gap in what can be seen, and hostile files."""

import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner
from unit.live.health.health_made import BOOT, CONNECTING, ROOT_MOUNT, Host
from unit.pythons import interpreter
from unit.stuck_filesystem import stuck_filesystem

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import state_dir
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.live.health import check as health_check
from nfsrdma_tools.live.health import mount_table, threads
from nfsrdma_tools.live.health.check import Request, check, limits, lines
from nfsrdma_tools.live.health.guarded import guarded
from nfsrdma_tools.live.health.verdicts import (
    CRITICAL,
    NAMES,
    OK,
    UNKNOWN,
    WARNING,
    Report,
    Verdict,
)
from nfsrdma_tools.live.health.volumes import Volume, volume_of
from nfsrdma_tools.lock import holder, try_file_lock
from testbed.node.programs import until

ROOT = Path(__file__).parents[4]
UID = "0f5c4a52-8d1e-4c1b-9a63-1e2d3c4b5a69"
POD = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~csi/data/mount"
Clock = Callable[[float], None]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the time since boot."""
    now = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _: now[0])

    def set_to(seconds: float) -> None:
        now[0] = 1000.0 + seconds

    return set_to


def checked(host: Host, *mounts: str, state: str = "state") -> Report:
    """A run with the default limits: WARNING from 15 s, CRITICAL from 30 s."""
    wanted = tuple(map(Path, mounts))
    return check(Request(limits("30s", None), wanted, host.machine, host.root / state))


def hang(host: Host, clock: Clock, where: str = "/mnt/a", proto: str = "tcp") -> None:
    """A mount whose RPC was first seen 45 s ago."""
    host.mount(where, 3, proto)
    host.tasks(3, (9, 0x11))
    checked(host)
    clock(45)


def of(report: Report, where: str) -> Verdict:
    (verdict,) = (v for v in report.verdicts if v.where == where)
    return verdict


# ---- ages


def test_the_age_of_an_rpc_counts_from_the_first_run_that_saw_it(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3, "rdma")
    host.mount("/mnt/b", 4)
    host.tasks(3, (9, 0x2E34D279))
    report = checked(host)
    assert (report.status, of(report, "/mnt/a").status) == (OK, OK)
    assert of(report, "/mnt/a").reason == "ACCESS has waited for at least 0 s (for the reply)"
    for seconds, status in ((14.9, OK), (15, WARNING), (29.9, WARNING), (30, CRITICAL)):
        clock(seconds)
        report = checked(host)
        assert (report.status, of(report, "/mnt/a").status) == (status, status)
        assert of(report, "/mnt/b").status == OK
    assert of(report, "/mnt/a").age == 30
    host.tasks(3)
    assert checked(host).status == OK


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        # the kernel counts RPCs of a client from 0 again, when a later client gets its number
        ((9, 0x2E34D279), (9, 0x11), False),
        ((9, 0x2E34D279), (10, 0x2E34D279), False),
        # without a slot, an RPC has no XID yet
        ((9, 0), (9, 0x11), True),
        ((9, 0x11), (9, 0x11), True),
    ],
)
def test_an_rpc_is_known_by_client_number_and_xid(
    host: Host, clock: Clock, first: tuple[int, int], second: tuple[int, int], same: bool
) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, first)
    checked(host)
    clock(40)
    host.tasks(3, second)
    assert (checked(host).status == CRITICAL) == same


def test_ages_of_another_boot_do_not_count(host: Host, clock: Clock) -> None:
    hang(host, clock)
    host.write("proc/sys/kernel/random/boot_id", f"{BOOT.replace('8', '9')}\n")
    assert checked(host).status == OK


@pytest.mark.parametrize("text", [b"", b"none\n", b"\xff\n" * 20, BOOT.encode() + b"\n1\n"])
def test_without_the_id_of_the_boot_nothing_is_known(host: Host, text: bytes) -> None:
    # ages would never grow, or those of another boot would count
    host.write("proc/sys/kernel/random/boot_id", text)
    status, output = typed(host)
    assert (status, output.count("\n")) == (UNKNOWN, 1)
    assert "/boot_id: expected the id of a boot, found " in output


def test_an_empty_name_of_the_state_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    # and not the current directory
    monkeypatch.setenv("NFSRDMA_STATE", "")
    assert state_dir() == Path("/run/nfsrdma")


def test_the_state_is_private_and_replaced(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11))
    elsewhere = host.write("elsewhere", "mine")
    (host.root / "state").mkdir()
    (host.root / "state/health").symlink_to(elsewhere)
    checked(host)
    path = host.root / "state/health"
    assert (path.is_symlink(), elsewhere.read_text()) == (False, "mine")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["health"]


def randbytes(seed: int) -> bytes:
    return random.Random(seed).randbytes(100_000)  # noqa: S311 - no secret


def hostile_states() -> Iterator[bytes]:
    head = f"nfsrdma-health 1 {BOOT}\n".encode()
    for line in (
        b"rpc:3:9 11 99999.000 99999.000", b"rpc:3:9 11 900.000 5000.000", b"rpc:3:9 11 -5 1",
        b"rpc:3:9 11 nan nan", b"rpc:3:9 11 900.000 800.000", b"rpc:3:9 11 1e9 1e9", b"rpc:3:9",
        b"rpc:3:9 " + b"1" * 100_000 + b" 900.000 900.000", b"\xff\xfe\0", b"{" * 100_000,
    ):  # fmt: skip
        yield head + line + b"\n"
    yield randbytes(7)
    yield head + randbytes(7)
    yield head + b"x\n" * 1_000_000


@pytest.mark.parametrize("text", [*hostile_states()], ids=lambda text: str(len(text)))
def test_a_hostile_state_makes_no_age(host: Host, clock: Clock, text: bytes) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11))
    host.write("state/health", text).chmod(0o600)
    clock(0)
    report = checked(host)
    assert (report.status, of(report, "/mnt/a").age) == (OK, 0)


def test_a_state_that_others_may_write_is_ignored(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11))
    text = f"nfsrdma-health 1 {BOOT}\nrpc:3:9 11 900.000 900.000\n"
    clock(0)
    for mode, status in ((0o600, CRITICAL), (0o666, OK)):
        host.write("state/health", text).chmod(mode)
        report = checked(host)
        assert report.status == status
        assert any("another user may write" in line for line in report.unseen) == (status == OK)


def special_files(folder: Path) -> list[Path]:
    """FIFO, folder, socket, loop of links, as root a copy of /dev/null; and links to each."""
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    (folder / "loop").symlink_to("loop")
    if os.geteuid() == 0:
        # a container without CAP_MKNOD refuses it
        with contextlib.suppress(PermissionError):
            os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for path in [*folder.iterdir()]:
        (folder / f"link-to-{path.name}").symlink_to(path.name)
    return sorted(folder.iterdir())


def kinds(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    return {path.name: (path.lstat().st_mode, path.lstat().st_ino) for path in paths}


@pytest.mark.parametrize("name", ["health", "health.lock"])
def test_a_state_that_is_no_regular_file_is_refused(
    host: Host, short_path: Path, name: str
) -> None:
    host.mount("/mnt/a", 3)
    for special in special_files(short_path / "special"):
        state = host.root / f"state-{special.name}"
        state.mkdir()
        # the same file, under the name of the state
        path = state / name
        if special.is_symlink():
            path.symlink_to(special)
        else:
            special.rename(path)
        before = kinds([path])
        status, output = typed(host, "--state", str(state))
        assert (status, output.count("\n")) == (UNKNOWN, 1), output
        assert output.startswith(f"NFS UNKNOWN: cannot write {path}: "), output
        assert kinds(state.iterdir()) == before
        if not special.is_symlink():
            path.rename(special)


def test_a_state_that_is_no_folder_is_refused(host: Host, short_path: Path) -> None:
    folder = short_path / "special"
    files = special_files(folder)
    before = kinds(files)
    for path in (file for file in files if not file.is_dir()):
        status, output = typed(host, "--state", str(path))
        assert (status, output.count("\n")) == (UNKNOWN, 1), output
        assert output.startswith("NFS UNKNOWN: cannot write") and str(path) in output, output
        assert kinds(folder.iterdir()) == before, path


@pytest.mark.parametrize("name", ["fifo", "folder", "socket", "null"])
def test_a_lock_removes_no_special_file(short_path: Path, name: str) -> None:
    files = special_files(short_path / "special")
    path = short_path / "special" / name
    if path not in files:
        pytest.skip("this user may not make devices")
    before = kinds(files)
    with pytest.raises(UserError, match="cannot lock"), try_file_lock(path):
        pass
    assert kinds(sorted(path.parent.iterdir())) == before


def test_a_lock_is_not_written_into_a_file_with_another_name(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11))
    mine = host.write("mine", "precious")
    (host.root / "state").mkdir()
    os.link(mine, host.root / "state/health.lock")
    report = checked(host)
    assert (report.status, mine.read_text()) == (WARNING, "precious")
    assert "health.lock: the file has another name, too" in report.unseen[0]


def test_without_a_state_an_rpc_is_a_doubt(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.mount("/mnt/b", 4)
    host.write("file", "")
    assert checked(host, state="file/below").status == OK
    host.tasks(3, (9, 0x11))
    report = checked(host, state="file/below")
    assert (report.status, of(report, "/mnt/b").status) == (WARNING, OK)
    assert of(report, "/mnt/a").reason.startswith("ACCESS has waited for an unknown time")
    assert report.unseen == [
        f"ages are unknown: cannot write to {host.root}/file/below: Not a directory"
    ]


def test_a_state_in_use_is_an_error(host: Host) -> None:
    (host.root / "state").mkdir()
    # this process
    message = rf"another run, process {os.getpid()}, has used .*/state/health for 0\.1 s"
    request = Request(limits("30s", None), (), host.machine, host.root / "state")
    with (
        try_file_lock(host.root / "state/health.lock"),
        pytest.raises(UserError, match=rf"{message} .*/proc/{os.getpid()}/wchan"),
    ):
        check(request, 0.1)


def test_a_state_in_use_is_told_from_a_kernel_that_hangs(host: Host) -> None:
    (host.root / "state").mkdir()
    with try_file_lock(host.root / "state/health.lock"):
        status, output = typed(host, "--timeout", "1")
    assert (status, output.count("\n")) == (UNKNOWN, 1)
    assert output.startswith(f"NFS UNKNOWN: another run, process {os.getpid()}, has used ")


# ---- whose RPC


def test_a_line_names_server_transport_and_connection(host: Host, clock: Clock) -> None:
    hang(host, clock, proto="rdma")
    host.connection(3, CONNECTING, "rdma")
    first, second = lines(checked(host), limits("30s", None))
    assert first == (
        "NFS CRITICAL: /mnt/a: ACCESS has waited for at least 45 s | "
        "oldest_rpc=45.000s;15;30;0 mounts=1"
    )
    assert second.startswith(
        "/mnt/a: CRITICAL: ACCESS has waited for at least 45 s (connecting); "
        "from server:/export (10.9.1.1) over rdma NFSv4.2; check the server"
    )


@pytest.mark.parametrize(
    ("queue", "words"),
    [("RPCSEC_GSS upcall waitq", "for credentials of Kerberos"), ("xprt_backlog", "to be sent"),
     ("NFSv4.1 transport slot", "recovery of state"), ("delayq", "to be repeated")],
)  # fmt: skip
def test_the_queue_says_what_an_rpc_waits_for(host: Host, queue: str, words: str) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11), queue=queue)
    assert words in of(checked(host), "/mnt/a").reason


def test_an_rpc_that_waits_for_gssd_outside_of_a_queue(host: Host) -> None:
    host.mount("/mnt/a", 3)
    # as Linux 6.12 listed it while rpc.gssd was stopped
    call = "nfs41_call_sync_ops [nfsv4] nfsv4 GETATTR a:call_refreshresult [sunrpc] q:none"
    text = f"   12 c884      0 0x3 0x2e34d27a        0 {call}\n"
    host.write("sys/kernel/debug/sunrpc/rpc_clnt/3/tasks", text)
    assert "rpc.gssd" in of(checked(host), "/mnt/a").advice


def test_before_6_5_the_address_tells_the_mounts(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3, listed=False)
    host.mount("/mnt/b", 4, listed=False)
    host.mount("/mnt/rdma", 5, "rdma", listed=False)
    host.mount("/mnt/other", 6, address="10.9.1.2", listed=False)
    host.tasks(3, (9, 0x11))
    checked(host)
    clock(45)
    report = checked(host)
    assert [verdict.where for verdict in report.bad] == ["/mnt/a", "/mnt/b"]
    assert "for this mount or another one of its server" in report.bad[0].reason


def test_what_a_lazy_unmount_leaves_is_a_warning(host: Host, clock: Clock) -> None:
    hang(host, clock)
    host.write("proc/1/mountinfo", f"{ROOT_MOUNT}\n")
    (verdict,) = checked(host).verdicts
    assert (verdict.status, verdict.where) == (WARNING, "")
    assert verdict.reason.endswith("no mount has this RPC client: unmounted by umount -l")
    assert verdict.advice == "end it: echo 1 > /sys/fs/nfs/0:3/shutdown"
    assert checked(host, "/mnt/a").status == CRITICAL


def test_a_mount_that_may_be_in_a_hidden_namespace_is_not_to_be_ended(
    host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nfsrdma_tools.live.health import observe

    monkeypatch.setattr(observe, "_namespaces", lambda _: ([], True))
    hang(host, clock)
    host.write("proc/1/mountinfo", f"{ROOT_MOUNT}\n")
    report = checked(host)
    assert report.unseen == ["not all mount namespaces can be read"]
    assert report.verdicts[0].reason.endswith("in a namespace that this user cannot read")
    assert "shutdown" not in report.verdicts[0].advice


def test_a_mount_of_another_namespace_is_named(host: Host, clock: Clock) -> None:
    hang(host, clock, "/pod")
    host.write("proc/77/mountinfo", host.lines[-1] + "\n")
    for number, name in ((1, "mnt:[1]"), (77, "mnt:[2]")):
        folder = host.root / f"proc/{number}/ns"
        folder.mkdir()
        (folder / "mnt").symlink_to(name)
    host.write("proc/1/mountinfo", f"{ROOT_MOUNT}\n")
    (verdict,) = checked(host).verdicts
    assert (verdict.status, verdict.where, verdict.process) == (CRITICAL, "/pod", 77)


def test_callbacks_of_nfsd_are_no_rpc_of_a_mount(host: Host, clock: Clock) -> None:
    host.client(7)
    call = "nfsd4_cb_ops [nfsd] nfs4_cbv1 CB_RECALL a:call_status q:xprt_pending"
    text = f"    1 8880 0 0x7 0x9 0 {call}\n"
    host.write("sys/kernel/debug/sunrpc/rpc_clnt/7/tasks", text)
    checked(host)
    clock(99)
    assert checked(host).verdicts == []


def test_pods_and_volumes_are_named(host: Host, clock: Clock) -> None:
    hang(host, clock, POD)
    (host.root / f"var/log/pods/team_web-0_{UID}").mkdir(parents=True)
    report = checked(host)
    assert of(report, POD).volume == Volume(UID, "data", "kubernetes.io/csi", "team", "web-0")
    text = "\n".join(lines(report, limits("30s", None)))
    assert f"pod team/web-0 {UID} volume data of kubernetes.io/csi" in text


@pytest.mark.parametrize(
    ("path", "volume"),
    [
        (POD, Volume(UID, "data", "kubernetes.io/csi")),
        (f"/x/pods/{UID}/volumes/k8s~nfs/share", Volume(UID, "share", "k8s/nfs")),
        (f"/x/pods/{UID}/volume-subpaths/data/web/0", Volume(UID, "data", "")),
        (f"/x/pods/{UID}/volumes/a/b/c/d", None),
        ("/x/pods/../volumes/a/b", None),
    ],
)  # fmt: skip
def test_a_path_of_kubelet_has_a_volume(path: str, volume: Volume | None) -> None:
    assert volume_of(Path(path)) == volume


def test_a_mount_above_the_logs_of_pods_is_not_accessed(host: Host, clock: Clock) -> None:
    hang(host, clock, POD)
    host.mount("/var/log", 4)
    (host.root / f"var/log/pods/team_web-0_{UID}").mkdir(parents=True)
    assert of(checked(host), POD).volume == Volume(UID, "data", "kubernetes.io/csi")


def test_with_too_many_mounts_no_log_of_a_pod_is_looked_for(
    host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nfsrdma_tools.live.health import check as module

    hang(host, clock, POD)
    (host.root / f"var/log/pods/team_web-0_{UID}").mkdir(parents=True)
    monkeypatch.setattr(module, "MOST_MOUNTS", 1)
    assert of(checked(host), POD).volume == Volume(UID, "data", "kubernetes.io/csi")


# ---- named mounts


def test_autofs_that_waits_for_its_first_use_is_well(host: Host) -> None:
    host.line("60 25 0:60 / /mnt/auto rw - autofs systemd-1 rw,fd=55,timeout=0,direct")
    report = checked(host, "/mnt/auto", "/mnt/none")
    assert (of(report, "/mnt/auto").status, of(report, "/mnt/none").status) == (OK, CRITICAL)
    assert checked(host).verdicts == []


def test_only_named_mounts_are_judged(host: Host, clock: Clock) -> None:
    hang(host, clock, "/mnt/a b")
    host.mount("/mnt/c", 4)
    assert [checked(host, name).status for name in ("/mnt/a b", "/mnt/c")] == [CRITICAL, OK]


# ---- without the list of RPCs


def test_counters_show_that_no_reply_comes(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3, listed=False)
    host.without_debugfs()
    report = checked(host)
    assert (report.status, report.unseen) == (
        OK, [f"pending RPCs: debugfs is not mounted on {host.root}/sys/kernel/debug"],
    )  # fmt: skip
    host.counters("/mnt/a", 3, 11, 10)
    clock(10)
    assert checked(host).status == OK
    clock(30)
    host.counters("/mnt/a", 3, 12, 10)
    assert checked(host).status == WARNING
    # a Call of a process that was killed has no reply either, so without threads it is a doubt
    clock(41)
    host.counters("/mnt/a", 3, 13, 10)
    assert checked(host).status == WARNING
    host.thread(456, "rpc_wait_bit_killable", 55)
    host.counters("/mnt/a", 3, 14, 10)
    assert checked(host).status == CRITICAL
    host.counters("/mnt/a", 3, 14, 11)
    assert checked(host).status == OK


def test_a_call_that_is_not_repeated_waits_as_long_as_a_thread(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3, listed=False)
    host.without_debugfs()
    checked(host)
    host.counters("/mnt/a", 3, 11, 10)
    host.thread(456, "rpc_wait_bit_killable", 55)
    checked(host)
    clock(31)
    assert of(checked(host), "/mnt/a").status == CRITICAL
    # its program was killed: nothing shows that the mount hangs
    shutil.rmtree(host.root / "proc/456")
    assert checked(host).status == WARNING
    clock(600)
    assert checked(host).status == WARNING
    clock(700)
    assert checked(host).status == OK


def test_a_kernel_that_tells_no_place_of_a_thread_is_named(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3, listed=False)
    host.without_debugfs()
    checked(host)
    # root reads this on Linux 5.10
    host.thread(456, "0", 55)
    host.counters("/mnt/a", 3, 11, 10)
    checked(host)
    clock(61)
    host.counters("/mnt/a", 3, 12, 10)
    report = checked(host)
    assert of(report, "/mnt/a").status == WARNING
    assert report.unseen[1:] == [
        "where a thread waits: only root may read it, and x86 kernels before 5.16 do not say it"
    ]


def test_an_idle_mount_is_no_hang(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    host.without_debugfs()
    # a Call of long ago has no reply
    host.counters("/mnt/a", 3, 12, 10)
    for seconds in (0, 40, 80):
        clock(seconds)
        assert checked(host).status == OK


def test_queues_in_sysfs_show_that_a_call_waits(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    host.mount("/mnt/b", 4)
    host.without_debugfs()
    host.thread(456, "rpc_wait_bit_killable", 55)
    host.queue(3, 1)
    checked(host)
    clock(31)
    report = checked(host)
    assert (of(report, "/mnt/a").status, of(report, "/mnt/b").status) == (CRITICAL, OK)


def test_a_soft_mount_gives_up_each_rpc_and_is_dead_nevertheless(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3, more=",soft")
    for step in range(5):
        clock(step * 10)
        host.tasks(3, (9 + step, 0x11 + step))
        host.counters("/mnt/a", 3, 10 + step, 10)
        report = checked(host)
        expected = (OK, OK, WARNING, CRITICAL, CRITICAL)[step]
        assert (step, of(report, "/mnt/a").status) == (step, expected)
    assert of(report, "/mnt/a").reason == "Calls and no reply for at least 40 s"
    host.tasks(3)
    clock(50)
    assert of(checked(host), "/mnt/a").status == WARNING
    host.counters("/mnt/a", 3, 15, 11)
    assert checked(host).status == OK


def test_without_counters_a_mount_is_unknown(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.without_debugfs()
    (host.root / "proc/1/mountstats").unlink()
    report = checked(host)
    assert (report.status, of(report, "/mnt/a").status) == (UNKNOWN, UNKNOWN)
    host.write("file", "")
    assert checked(host, state="file/x").status == UNKNOWN


def cut_counters() -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "random", randbytes(8)
    head = b"device server:/export mounted on /mnt/a with fstype nfs4 statvers=1.1\n"
    yield "only its first line", head
    yield "no columns", head + b"\tage:\t24\n\txprt: rdma\n\tper-op statistics\n"
    yield "half of the columns", head + b"\tage:\t24\n\txprt:\ttcp 901 1 2 0 24 10\n"
    yield "another mount", head.replace(b"/mnt/a", b"/mnt/b") + b"\txprt:\ttcp 901 1 2 0 24 5 5\n"


@pytest.mark.parametrize(("case", "text"), [*cut_counters()], ids=lambda value: str(value)[:20])
def test_without_counters_of_its_own_a_mount_is_unknown(host: Host, case: str, text: bytes) -> None:
    host.mount("/mnt/a", 3)
    host.write("proc/1/mountstats", text)
    assert checked(host).status == OK
    host.without_debugfs()
    report = checked(host)
    assert (report.status, of(report, "/mnt/a").status) == (UNKNOWN, UNKNOWN), case
    assert of(report, "/mnt/a").reason == "RPCs are not listed, and counters cannot be read"
    counted = f"{host.root}/proc/1/mountstats has counters of 0 NFS superblocks, and none of 1 "
    assert f"{counted}that are mounted" in report.unseen
    assert typed(host)[0] == UNKNOWN


def test_a_mount_without_counters_hides_no_other(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    host.mount("/mnt/b", 4)
    host.without_debugfs()
    for seconds, status in ((0, OK), (60, CRITICAL)):
        clock(seconds)
        host.queue(4, 1)
        host.thread(456, "nfs_wait_bit_killable", 5)
        # the record of /mnt/a is missing
        host.write("proc/1/mountstats", host.stats["/mnt/b"])
        report = checked(host)
        assert (of(report, "/mnt/a").status, of(report, "/mnt/b").status) == (UNKNOWN, status)
        assert report.status == (status or UNKNOWN)


def test_mounts_above_each_other_have_their_own_counters(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    first = host.stats["/mnt/a"]
    host.mount("/mnt/a", 4)
    host.write("proc/1/mountstats", first + host.stats["/mnt/a"])
    host.without_debugfs()
    assert checked(host).status == OK
    host.write("proc/1/mountstats", first)
    assert [verdict.status for verdict in checked(host).verdicts] == [OK, UNKNOWN]


# ---- threads


def test_threads_that_wait_without_an_rpc_are_reported(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    host.thread(456, "nfs4_wait_clnt_recover", 55)
    host.thread(457, "nfsd4_cb_wait", 55)
    host.thread(458, "folio_wait_bit_common", 55)
    assert checked(host).status == OK
    clock(31)
    # it has run meanwhile, so this is another wait
    host.thread(456, "nfs4_wait_clnt_recover", 56)
    assert checked(host).status == OK
    clock(62)
    report = checked(host)
    # which mount it waits for is unknown
    assert report.status == WARNING
    (verdict,) = report.bad
    assert verdict.reason == (
        "thread 456 (a) b) has waited in nfs4_wait_clnt_recover for at least 31 s, "
        "and no RPC as long"
    )
    host.tasks(3, (9, 0x11))
    checked(host)
    clock(99)
    # the RPC explains them
    assert [v.where for v in checked(host).bad] == ["/mnt/a"]


def test_without_a_list_of_rpcs_a_thread_says_nothing_of_them(host: Host, clock: Clock) -> None:
    host.mount("/mnt/a", 3)
    host.without_debugfs()
    host.thread(456, "nfs4_wait_clnt_recover", 55)
    checked(host)
    clock(31)
    (verdict,) = checked(host).bad
    assert (verdict.status, verdict.reason.partition(", ")[2]) == (
        WARNING, "and RPCs are not listed",
    )  # fmt: skip


def test_processes_that_end_while_they_are_read_are_left_out(host: Host) -> None:
    host.mount("/mnt/a", 3)
    (host.root / "proc/500").mkdir()
    host.write("proc/501/stat", "")
    host.write("proc/502/stat", "502 (x) D 1")
    host.write("proc/503/stat", b"\xff" * 4000)
    (host.root / "proc/504/stat").mkdir(parents=True)
    assert checked(host).status == OK


def test_5000_threads_are_read_and_more_are_said(host: Host) -> None:
    host.mount("/mnt/a", 3)
    sleeping = host.thread(456, "rpc_wait_bit_killable", 55).replace(" D ", " S ")
    # and the first process
    for number in range(1001, 5999):
        host.write(f"proc/{number}/stat", sleeping)
    assert checked(host).unseen == []
    host.thread(457, "rpc_wait_bit_killable", 55)
    assert checked(host).unseen == ["threads that wait: there are more than 5000"]


def test_threads_of_one_process_count(host: Host) -> None:
    shutil.rmtree(host.root / "proc/1")
    stat = host.thread(10, "rpc_wait_bit_killable", 7)
    folder = host.root / "proc/10"
    (folder / "stat").write_text(stat.replace(" 1 0 4693 ", " 3 0 4693 "))
    for number in (11, 12):
        host.thread(number, "rpc_wait_bit_killable", 7)
        (folder / "task").mkdir(exist_ok=True)
        (host.root / f"proc/{number}").rename(folder / f"task/{number}")
    (folder / "task/10").mkdir()
    read = [threads.waiting_threads(host.root / "proc", most) for most in (1, 2, 3)]
    assert [(len(r.found), r.complete) for r in read] == [(1, False), (2, False), (3, True)]


# ---- hostile and large inputs


def test_a_mount_that_is_named_twice_is_one(host: Host) -> None:
    host.mount("/mnt/a", 3)
    status, output = typed(host, "/mnt/b", "/mnt/b/", "//mnt/b", "/mnt/a", "/mnt/a")
    assert (status, output.count("\n")) == (CRITICAL, 2)
    assert output.startswith("NFS CRITICAL: /mnt/b: not an NFS mount | ")


def test_escapes_and_line_breaks_in_names(host: Host, clock: Clock) -> None:
    name = "/mnt/a\nNFS OK: \\b \x1b[2J"
    hang(host, clock, name)
    report = checked(host, name)
    assert of(report, name).status == CRITICAL
    printed = [*lines(report, limits("30s", None))]
    assert len(printed) == 2
    assert all(line.isprintable() for line in printed)


ALIKE = (
    "/a\x01b", "/a\x02b", "/a\nb", r"/a\nb", r"/a\001b", r"/a\\001b", "/a|b", "/a?b", "/a\x1b[0mb",
    "/a\udcffb", "/a\udcfeb", r"/a\xffb", "/a\u202eb", "/a\u200bb", "/ab", "/a\x7fb", "/a\x85b",
)  # fmt: skip
"""Names that a terminal or a monitoring system may show in the same way."""


def named(line: str) -> str:
    """The text that is printed as ``line``."""
    octets = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), line.encode())
    return octets.decode("utf-8", "surrogateescape")


def test_different_names_have_different_lines(host: Host, clock: Clock) -> None:
    for number, name in enumerate(ALIKE, 3):
        host.mount(name, number, source=f"server:{name}")
        host.tasks(number, (9, 0x11))
    checked(host)
    clock(45)
    _, *text = lines(checked(host), limits("30s", None))
    assert all(line.isprintable() and "|" not in line for line in text)
    found = [named(line).split(": ACCESS")[0] for line in text]
    assert found == [f"{name}: CRITICAL" for name in ALIKE]
    assert [named(line).split("from server:")[1].split(" (")[0] for line in text] == [*ALIKE]


def test_an_error_names_what_is_wrong(host: Host) -> None:
    for name in (name.strip("/") for name in ALIKE):
        assert named(typed(host, name)[1]).startswith(f"NFS UNKNOWN: '{name}' is not absolute")


def test_no_name_begins_performance_data(host: Host, clock: Clock) -> None:
    # monitoring takes what is behind the first bar of a line for numbers
    host.mount("/mnt/a|oldest_rpc=0s", 3)
    host.tasks(3, (9, 0x11))
    host.write("file|x", "")
    checked(host)
    clock(45)
    report = checked(host, state="file|x/below")
    text = [*lines(report, limits("30s", None))]
    assert text[0].startswith(r"NFS WARNING: /mnt/a\174oldest_rpc=0s: ACCESS has waited for")
    assert [line.count("|") for line in text] == [1, 0, 0]
    assert of(report, "/mnt/a|oldest_rpc=0s").status == WARNING
    for words in (["re|lative"], ["--path.procfs", f"{host.root}/file|x"], ["--state", "/a|b/c"]):
        assert typed(host, *words)[1].partition(" | oldest_rpc=")[0].count("|") == 0, words


@pytest.mark.parametrize(
    "text",
    [
        b"\0" * 5000, b"x" * 1_000_000, b"1 " * 400_000, b"\xff\n" * 100_000,
        b"    9 8880      0 0x3 0x11    13484 " + b"a v" * 300_000,
        b"9 0 0 0x3 0x1 0 o nfsv4 " + b"x" * 400 + b" a:a q:" + b"q" * 400 + b"\n",
    ],
)  # fmt: skip
def test_a_hostile_list_of_rpcs_is_no_hang(host: Host, text: bytes) -> None:
    host.mount("/mnt/a", 3)
    host.write("sys/kernel/debug/sunrpc/rpc_clnt/3/tasks", text)
    assert checked(host).status in (OK, WARNING)


def test_an_unknown_format_of_the_list_is_said(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.write("sys/kernel/debug/sunrpc/rpc_clnt/3/tasks", "a later kernel's list\n")
    assert "unknown format" in checked(host).unseen[0]


def test_invalid_lines_of_mountinfo_are_counted(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.line("x y z - nfs4 server:/export rw")
    host.line("9" * 200_000 + " - nfs4 server:/export rw")
    report = checked(host)
    assert report.unseen == [f"1 lines of {host.root}/proc/1/mountinfo about NFS were left out"]


@pytest.mark.parametrize(
    "text",
    [b"", b"\n" * 9, randbytes(9), b"25 1 8:1 / / rw", b"x - ext4 y rw\n" * 9],
    ids=["empty", "newlines", "random", "cut", "invalid"],
)
def test_a_table_without_any_mount_is_unknown(host: Host, text: bytes) -> None:
    path = host.write("proc/1/mountinfo", text)
    for words in ((), ("/mnt/a",)):
        status, output = typed(host, *words)
        assert output == f"NFS UNKNOWN: {path} lists no mount (see --path.procfs)\n"
        assert status == UNKNOWN
    assert json.loads(typed(host, "--json")[1])["status"] == "unknown"


def test_a_table_of_a_million_lines_takes_little_memory(host: Host) -> None:
    path = host.root / "proc/1/mountinfo"
    host.mount("/mnt/a", 3)
    nfs = host.lines[-1]
    with path.open("w") as file:
        for start in range(0, 1_000_000, 10_000):
            block = range(start, start + 10_000)
            file.writelines(f"{n} 25 0:9 / /run/user/{n} rw - tmpfs tmpfs rw\n" for n in block)
        file.write(f"{nfs}\n" * 50_000)
    code = (
        "import resource, sys; from nfsrdma_tools.live.health import mount_table as m\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "t = m.read(sys.argv[1])\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(len(t.mounts), t.invalid, after - before)"
    )
    argv = (sys.executable, "-c", code, str(path))
    mounts, invalid, kib = map(int, subprocess.check_output(argv, cwd=ROOT).split())
    assert (mounts, invalid) == (mount_table.MOST_MOUNTS, 50_000 - mount_table.MOST_MOUNTS)
    assert kib < 40_000


LINES = (
    "26 25 0:9 / /run/user/{n} rw - tmpfs tmpfs rw", "31 25 0:9 / /f/{n} rw - nfsd nfsd rw",
    "27 25 0:{n} / /mnt/{n} rw - nfs s:/e rw,vers=3", "29 25 0:9 / /auto/{n} rw - autofs a rw",
    "28 25 0:{n} / /mnt/{n} rw - nfs4 s:/e rw,vers=4.2", "x - nfs4 {n}", "x - fuse {n}", "",
    "30 25 0:9 / /f/{n} rw - fuse.sshfs a rw",
    "32 25 0:{n} / /mnt/" + "l" * 40 + " rw - nfs4 s:/e rw",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_table_is_read_in_blocks_as_in_lines(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    longest, block = chance.choice((50, 60, 1000)), chance.choice((1, 7, 64, 300, 4096))
    monkeypatch.setattr(mount_table, "_LONGEST_LINE", longest)
    monkeypatch.setattr(mount_table, "_BLOCK", block)
    lines = [chance.choice(LINES).format(n=n) for n in range(chance.randrange(60))]
    path = tmp_path / "mountinfo"
    path.write_text("\n".join(lines) + "\n" * chance.randrange(2))
    good = [line for line in lines if len(line) < longest and re.match("[0-9]", line)]
    table = mount_table.read(path)
    mounts = [line for line in good if re.search(" - nfs4? ", line)]
    assert [mount.id for mount in table.mounts] == [int(line.split()[0]) for line in mounts]
    may_wait = [line for line in good if re.search(" - (nfs4? |autofs|fuse)", line)]
    assert table.closed == {line.split()[4] for line in may_wait}
    assert table.invalid == sum(line.startswith("x") for line in lines)
    assert table.is_empty is (not good)


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs"])
def test_of_many_mounts_those_above_the_limit_are_not_parsed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = tmp_path / "mountinfo", 3 * mount_table.MOST_MOUNTS
    path.write_text(f"27 25 0:9 / /mnt/a rw - {kind} s:/e rw\n" * count)
    parsed = []

    def counted(line: str) -> mountinfo.Entry:
        parsed.append(line)
        return parse_line(line)

    parse_line = mountinfo.parse_line
    monkeypatch.setattr(mountinfo, "parse_line", counted)
    table = mount_table.read(path)
    assert len(parsed) == 2 * mount_table.MOST_MOUNTS
    assert table.invalid == (2 * mount_table.MOST_MOUNTS if kind == "nfs4" else 0)
    assert table.closed == {"/mnt/a"}


# ---- processes that end

VANISHING = """
import json, os, shutil, sys
from pathlib import Path
from nfsrdma_tools.live.health import observe, threads
procfs, sample = map(Path, sys.argv[1:])
step = last = 0

def on(event, arguments):
    # a process ends at the n-th access to its folder
    global step
    path = str(arguments[0]) if event in ("open", "os.scandir") and arguments else ""
    if path.startswith((f"{procfs}/20", f"{procfs}/30")):
        step += 1
        if step == last:
            shutil.rmtree("/".join(path.split("/")[: len(procfs.parts) + 1]))

sys.addaudithook(on)
rows = []
while True:
    # copying is no access
    step = -1000
    shutil.rmtree(procfs, ignore_errors=True)
    shutil.copytree(sample, procfs, symlinks=True)
    step, last = 0, last + 1
    found = threads.waiting_threads(procfs, 100)
    processes, hidden = observe._namespaces(procfs)
    left = sorted(int(path.name) for path in procfs.iterdir())
    numbers = sorted(one.number for one in found.found)
    rows.append([numbers, found.complete, hidden, left, processes])
    if step < last:
        break
print(json.dumps(rows))
"""


def test_a_process_that_ends_while_it_is_read_is_left_out(host: Host, tmp_path: Path) -> None:
    for number in (10, 20, 30):
        host.thread(number, "rpc_wait_bit_killable", 7)
        host.thread(number + 1, "rpc_wait_bit_killable", 7)
        folder = host.root / f"proc/{number}"
        stat = (folder / "stat").read_text()
        (folder / "stat").write_text(re.sub(r" 1 0 4693 ", " 2 0 4693 ", stat))
        (folder / "task").mkdir()
        (host.root / f"proc/{number + 1}").rename(folder / f"task/{number + 1}")
        (folder / "ns").mkdir()
        (folder / "ns/mnt").symlink_to(f"mnt:[{number}]")
    sample = host.root / "proc"
    for other in set(sample.iterdir()) - {sample / "10", sample / "20", sample / "30"}:
        shutil.rmtree(other) if other.is_dir() else other.unlink()
    argv = (sys.executable, "-c", VANISHING, tmp_path / "proc", sample)
    rows = json.loads(subprocess.check_output(argv, cwd=ROOT))
    *ended, whole = rows
    assert whole == [[10, 11, 20, 21, 30, 31], True, False, [10, 20, 30], [10, 20, 30]]
    # stat, wchan and status of four threads, and two lists
    assert len(ended) == 14
    for seen, complete, hidden, left, processes in ended:
        assert (complete, hidden, processes, len(left)) == (True, False, left, 2)
        assert {*left, *(number + 1 for number in left)} <= set(seen)


STORM = """
import itertools, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from nfsrdma_tools.live.health import observe, threads

def forks():
    rows = Path("/proc/stat").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("processes"))

first, ended = forks(), 0
for _ in itertools.count():
    before = observe._processes(Path("/proc"))
    assert threads.waiting_threads(Path("/proc"), 100_000).complete
    found, _ = observe._namespaces(Path("/proc"))
    assert found
    ended += sum(not Path(f"/proc/{number}").exists() for number in before)
    if ended > 20 and forks() - first > 500:
        break
print("read")
"""


def test_a_storm_of_short_processes_is_read() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do (:) & done"]) as storm:
        try:
            argv = (sys.executable, "-c", STORM, ROOT)
            assert subprocess.check_output(argv, text=True) == "read\n"
        finally:
            storm.kill()


# ---- no access


def files_named(command: list[str], tmp_path: Path) -> set[str]:
    """The paths in the system calls of a command and its children, as strace prints them."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed; tests/lab/doctor/test_health.py looks at the kernel")
    trace = tmp_path / "trace"
    argv = ("strace", "-f", "-qq", "-s", "500", "-e", "trace=%file", "-o", str(trace), *command)
    subprocess.run(argv, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    return set(re.findall(r'"((?:[^"\\]|\\.)*)"', trace.read_text()))


def touched(names: set[str], host: Host, mounts: list[str]) -> set[str]:
    places = [*mounts, *(f"{host.root}{mount}" for mount in mounts)]
    real = {os.path.normpath(name) for name in names}
    return {name for name in real for p in places if name == p or name.startswith(f"{p}/")}


def test_no_system_call_names_a_mount(host: Host, tmp_path: Path) -> None:
    mounts = [f"/mnt/{number}" for number in range(500)] + [POD, "/var/log/pods"]
    for number, where in enumerate(mounts):
        host.mount(where, number + 10)
        host.tasks(number + 10, (9, 0x11))
        (host.root / where.lstrip("/")).mkdir(parents=True, exist_ok=True)
    host.thread(456, "rpc_wait_bit_killable", 55)
    (host.root / "proc/456/cwd").symlink_to(f"{host.root}/mnt/0")
    command = [sys.executable, "-m", "nfsrdma_tools", "health", *host.words]
    # all are bad, so all that is read for a bad mount is read
    command += ["--max-rpc-age", "1ms", "--textfile", f"{tmp_path}/nfs.prom"]
    files_named(command, tmp_path)
    names = files_named(command, tmp_path)
    assert f"{host.root}/proc/1/mountinfo" in names
    assert f"{host.root}/proc/456/wchan" in names
    assert touched(names, host, mounts) == set()
    forbidden = {"cmdline", "environ", "maps", "exe", "cwd", "root", "fd", "stack"}
    of_threads = {name.split("/")[-1] for name in names if f"{host.root}/proc/456/" in name}
    assert of_threads & forbidden == set()
    # strace sees an access
    assert touched(files_named(["stat", f"{host.root}/mnt/7"], tmp_path), host, mounts)


def test_a_file_system_that_hangs_is_not_accessed(host: Host) -> None:
    where = host.root / "stuck"
    where.mkdir()
    host.mount("/stuck", 3)
    host.mount(str(where), 4)
    host.tasks(3, (9, 0x11))
    try:
        with stuck_filesystem(where) as stuck:
            assert checked(host).status == OK
            assert checked(host, "/stuck", str(where)).status == OK
            assert stuck.waiting == []
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")


# ---- the command


def typed(host: Host, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["health", *host.words, *words], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_exit_status_is_that_of_monitoring_plugins(host: Host) -> None:
    assert typed(host) == (0, "NFS OK: no NFS is mounted | oldest_rpc=0.000s;15;30;0 mounts=0\n")
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11))
    assert typed(host)[0] == 0
    tenth = ("--max-rpc-age", "1h", "--warn-rpc-age", "1ms")
    status, output = typed(host, *tenth)
    assert (status, output.splitlines()[1].split(":")[1]) == (1, " WARNING")
    assert typed(host, "--max-rpc-age", "1ms")[0] == 2
    (host.root / "proc/1/mountinfo").unlink()
    status, output = typed(host)
    assert (status, output.count("\n")) == (3, 1)
    assert output.startswith(f"NFS UNKNOWN: cannot read {host.root}/proc/1/mountinfo: No such file")


@pytest.mark.parametrize(
    "words",
    [
        ["--bad"], ["--max-rpc-age", "x"], ["--max-rpc-age", "0s"], ["--timeout", "0"],
        ["relative"], ["--max-rpc-age", "1s", "--warn-rpc-age", "2s"], ["--state", ""], [""],
        ["--timeout"], ["--json=x"], ["--b\nad|x"], ["--timeout", "soon"],
    ],
)  # fmt: skip
def test_wrong_usage_is_unknown(host: Host, words: list[str]) -> None:
    command = [sys.executable, "-m", "nfsrdma_tools", "health", *host.words, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # monitoring shows the first line of standard output, and nothing of standard error
    assert (done.returncode, done.stderr) == (3, "")
    assert re.fullmatch(r"NFS UNKNOWN: [^|\n]+\n", done.stdout)
    word = next(filter(None, words), "empty").partition("=")[0]
    assert word.split("\n")[0] in done.stdout or f"'{words[-1]}'" in done.stdout
    command.insert(command.index("health") + 1, "--json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    facts = json.loads(done.stdout)
    assert (done.returncode, done.stderr, facts["exit_status"]) == (3, "", 3)
    assert facts["error"]


def test_in_a_container_without_the_hosts_proc_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nfsrdma_tools.live.health import check as module

    monkeypatch.setattr(module, "is_in_container", lambda: True)
    result = CliRunner().invoke(app, ["health", "--state", str(tmp_path)], catch_exceptions=False)
    assert (result.exit_code, result.stdout.count("\n")) == (3, 1)
    assert "give --path.procfs" in result.stdout


def test_observe_that_waits_in_the_kernel_does_not_stop_the_command(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a file of the kernel may wait for a lock
    monkeypatch.setattr("nfsrdma_tools.live.health.check.observe", lambda *_: signal.pause())
    status, output = typed(host, "--timeout", "1")
    assert (status, output.count("\n")) == (3, 1)
    assert output.startswith("NFS UNKNOWN: the files of the kernel could not be read within 1 s")


WAITING = """
import signal
from nfsrdma_tools.cli.main import main
from nfsrdma_tools.live.health import check
check.observe = lambda *_: signal.pause()
main()
"""


def test_a_check_ends_with_a_command_that_is_killed(host: Host) -> None:
    command = [sys.executable, "-c", WAITING, "health", *host.words, "--timeout", "600"]
    lock = host.root / "state/health.lock"
    with subprocess.Popen(command, cwd=ROOT) as process:
        until("a holder of the lock", lambda: holder(lock))
        child = holder(lock)
        assert child != process.pid
        process.kill()
    # a zombie where nothing waits for it
    stat = Path(f"/proc/{child}/stat")
    until("its end", lambda: not stat.exists() or stat.read_text().rpartition(") ")[2][0] in "ZX")
    with try_file_lock(lock) as taken:
        assert taken


def test_guarded_tells_a_check_that_computes_from_one_that_waits() -> None:
    def compute() -> str:
        while True:
            pass

    def wait() -> str:
        signal.pause()
        return ""

    with pytest.raises(UserError, match=r"did not end within 1 s .* computing, not waiting"):
        guarded(compute, 1)
    with pytest.raises(UserError, match=r"could not be read within 1 s .*/wchan"):
        guarded(wait, 1)


def test_a_reader_of_the_output_does_not_wait_for_what_cannot_be_killed(host: Host) -> None:
    folder = host.root / "stuck"
    folder.mkdir()
    words = [*host.words, f"--state={folder}/state", "--timeout", "1"]
    command = [sys.executable, "-m", "nfsrdma_tools", "health", *words]
    try:
        with stuck_filesystem(folder) as stuck:
            # its pipes end with the last process that has them open
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50
            )
            assert (done.returncode, done.stderr) == (3, "")
            assert "could not be read within 1 s" in done.stdout
            # it waits, and no signal ends it
            assert stuck.waiting
            again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert again.returncode == 3
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")


def test_an_error_of_the_program_is_not_hidden() -> None:
    def fail() -> str:
        raise ZeroDivisionError("x")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: x"):
        guarded(fail, 60)


def test_without_a_free_descriptor_the_answer_is_unknown() -> None:
    code = (
        "import resource; from nfsrdma_tools.live.health.guarded import *\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "try: guarded(str, 5)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    output = subprocess.check_output((sys.executable, "-c", code), cwd=ROOT, text=True)
    assert output.startswith("UserError cannot start a process: Too many open files")


def test_a_result_of_many_bytes_arrives() -> None:
    assert guarded(lambda: "\udcff" * 3_000_000, 60) == "\udcff" * 3_000_000


def test_metrics_are_those_of_the_exporter(host: Host, tmp_path: Path) -> None:
    host.mount('/mnt/"a\n', 3)
    host.tasks(3, (9, 0x11))
    path = tmp_path / "nfs.prom"
    typed(host)
    assert typed(host, "--textfile", str(path), "--max-rpc-age", "1ms")[0] == 2
    text = path.read_text()
    labels = r'{mount="/mnt/\"a\n",transport="tcp"}'
    assert f"nfsrdma_mount_health_status{labels} 2\n" in text
    assert re.search(rf"^nfsrdma_mount_oldest_rpc_seconds{re.escape(labels)} [0-9.]+$", text, re.M)
    assert text.endswith("nfsrdma_health_status 2\n")
    from prometheus_client.parser import text_string_to_metric_families

    assert len([*text_string_to_metric_families(text)]) == 3
    status, output = typed(host, "--textfile", f"{path}/below")
    assert status == 3
    assert output.startswith(f"NFS UNKNOWN: cannot write {path}/below: Not a")
    # the name of the draft is too long
    wrong = ("--textfile", f"{tmp_path}/{'x' * 250}")
    status, output = typed(host, *wrong)
    assert (status, output.count("\n"), output.count("cannot write")) == (3, 1, 1)
    assert output.startswith(f"NFS UNKNOWN: cannot write {tmp_path}/xxx")
    assert json.loads(typed(host, *wrong, "--json")[1])["error"].startswith("cannot write ")
    status, output = typed(host, *wrong, "--max-rpc-age", "1ms")
    assert (status, output.splitlines()[-1][:13]) == (CRITICAL, "cannot write ")


@pytest.mark.parametrize("name", ["health", "health.lock", "link", "../state/health"])
def test_metrics_replace_no_state(host: Host, name: str) -> None:
    host.mount("/mnt/a", 3)
    host.tasks(3, (9, 0x11))
    assert typed(host)[0] == OK
    before = (host.root / "state/health").read_bytes()
    (host.root / "state/link").symlink_to("health")
    status, output = typed(host, "--textfile", f"{host.root}/state/{name}")
    assert (status, "is a file of the state folder" in output) == (UNKNOWN, True)
    assert (host.root / "state/health").read_bytes() == before


def test_a_loop_of_links_is_no_state(host: Host, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    # Python before 3.13 has another error for it
    code = "from nfsrdma_tools.cli.portable import main; main()"
    words = [*host.words, f"--state={tmp_path}/loop", f"--textfile={tmp_path}/x.prom"]
    command = [interpreter("3.9"), "-c", code, "health", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (UNKNOWN, "")
    assert done.stdout.startswith(f"NFS UNKNOWN: cannot write {tmp_path}/loop")


def test_metrics_say_that_nothing_is_known(host: Host, tmp_path: Path) -> None:
    host.mount("/mnt/a", 3)
    path = tmp_path / "nfs.prom"
    assert typed(host, "--textfile", str(path))[0] == OK
    (host.root / "proc/1/mountinfo").unlink()
    assert typed(host, "--textfile", str(path))[0] == UNKNOWN
    text = path.read_text()
    assert text.endswith("\nnfsrdma_health_status 3\n")
    assert "{" not in text


def test_metrics_of_mounts_above_each_other_are_the_worst(host: Host, tmp_path: Path) -> None:
    host.mount("/mnt/a", 3)
    host.mount("/mnt/a", 4)
    path = tmp_path / "nfs.prom"
    for client in (3, 4):
        host.tasks(7 - client)
        host.tasks(client, (9, 0x11))
        typed(host)
        assert typed(host, "--textfile", str(path), "--max-rpc-age", "1ms")[0] == CRITICAL
        text = path.read_text()
        assert 'nfsrdma_mount_health_status{mount="/mnt/a",transport="tcp"} 2\n' in text
        assert 'nfsrdma_mount_oldest_rpc_seconds{mount="/mnt/a",transport="tcp"} 0\n' not in text


def test_metrics_replace_no_special_file(host: Host, short_path: Path) -> None:
    host.mount("/mnt/a", 3)
    folder = short_path / "special"
    files = special_files(folder)
    before = kinds(files)
    for path in files:
        status, output = typed(host, "--textfile", str(path))
        assert (status, output.count("\n")) == (UNKNOWN, 1), output
        assert output.startswith(f"NFS UNKNOWN: cannot write {path}: "), output
        assert kinds(folder.iterdir()) == before, path


def test_metrics_replace_what_a_link_names_and_make_no_folder(host: Host, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for _ in range(2):
        assert typed(host, "--textfile", f"{tmp_path}/link")[0] == OK
        assert (tmp_path / "link").is_symlink()
        assert "nfsrdma_health_status 0\n" in (tmp_path / "file").read_text()
    path = tmp_path / "a/b.prom"
    assert typed(host, "--textfile", str(path)) == (
        UNKNOWN, f"NFS UNKNOWN: cannot write {path}: its folder does not exist (create it first)\n",
    )  # fmt: skip
    assert not path.parent.exists()


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(path))


def _make_link(path: Path, make: Callable[[Path], None]) -> None:
    target = path.with_name("target")
    make(target)
    path.symlink_to(target)


_MAKERS: dict[str, Callable[[Path], None]] = {
    "missing": lambda _: None,
    "a regular file": Path.touch,
    "a folder": Path.mkdir,
    "a named pipe": os.mkfifo,
    "a socket": _make_socket,
    "a device node": lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
    "a link to a regular file": lambda path: _make_link(path, Path.touch),
    "a link to a folder": lambda path: _make_link(path, Path.mkdir),
}
_WRITTEN = re.findall(
    r"^\| (missing|an? [\w ]+?) \| (.+?) \| (.+?) \|$",
    (ROOT / "docs/how-to/health.md").read_text(),
    re.M,
)


def test_the_page_says_what_each_kind_of_file_does() -> None:
    assert {kind for kind, *_ in _WRITTEN} == {*_MAKERS}


@pytest.mark.parametrize(("kind", "textfile", "state"), _WRITTEN)
def test_files_are_refused_as_the_page_says(
    kind: str, textfile: str, state: str, host: Host, short_path: Path
) -> None:
    for option, outcome in (("--textfile", textfile), ("--state", state)):
        folder = short_path / option.strip("-")
        folder.mkdir()
        path = folder / "it"
        try:
            _MAKERS[kind](path)
        except PermissionError:
            pytest.skip("device nodes need root")
        before = kinds(folder.iterdir())
        status, text = typed(host, option, str(path))
        assert status == (UNKNOWN if outcome == "refused" else OK), text
        if outcome == "refused":
            assert kinds(folder.iterdir()) == before
        else:
            assert path.is_symlink() == kind.startswith("a link")
            written = path if option == "--textfile" else path / "health"
            assert written.stat().st_size


# ---- the table of statuses


class Scene(NamedTuple):
    """A made host, and what is undone at the end of a test."""

    host: Host
    patch: pytest.MonkeyPatch
    stack: contextlib.ExitStack


def _idle(scene: Scene) -> None:
    scene.host.mount("/mnt/a", 3)


def _rpc(scene: Scene) -> None:
    scene.host.mount("/mnt/a", 3)
    scene.host.tasks(3, (9, 0x11))


def _autofs(scene: Scene) -> None:
    scene.host.line("61 25 0:61 / /mnt/auto rw - autofs systemd-1 rw,fd=6,pgrp=1,direct")


def _without_mount(scene: Scene) -> None:
    scene.host.client(7)
    scene.host.tasks(7, (9, 0x11))


def _thread(scene: Scene) -> None:
    scene.host.mount("/mnt/a", 3)
    scene.host.thread(456, "nfs4_wait_clnt_recover", 55)


def _silent(scene: Scene) -> None:
    scene.host.mount("/mnt/a", 3)
    scene.host.queue(3, 1)
    scene.host.without_debugfs()


def _silent_with_thread(scene: Scene) -> None:
    _silent(scene)
    scene.host.thread(456, "rpc_wait_bit_killable", 55)


def _soft(scene: Scene) -> None:
    """Another RPC in each run."""
    numbers = iter(range(100))
    observe = vars(health_check)["observe"]

    def again(*words: Any) -> Any:
        scene.host.tasks(3, (next(numbers), 0x11))
        return observe(*words)

    scene.host.mount("/mnt/a", 3, more=",soft")
    scene.patch.setattr(health_check, "observe", again)


def _nothing_counted(scene: Scene) -> None:
    scene.host.mount("/mnt/a", 3)
    scene.host.without_debugfs()
    scene.host.write("proc/1/mountstats", "")


def _waits(scene: Scene) -> None:
    scene.patch.setattr(health_check, "observe", lambda *_: signal.pause())


def _truncate(path: Path) -> None:
    os.truncate(path, 0)


def _locked(scene: Scene) -> None:
    (scene.host.root / "state").mkdir()
    scene.stack.enter_context(try_file_lock(scene.host.root / "state/health.lock"))


_NOW, _SOON, _LATE, _HOUR = 0, 15, 30, 3600
_SIGHTS: dict[str, tuple[Callable[[Scene], None], int, tuple[str, ...]]] = {
    "no RPC is late": (_rpc, _SOON - 1, ()),
    "a mount of autofs that waits for its first use": (_autofs, _NOW, ("/mnt/auto",)),
    "an RPC has waited for half of `--max-rpc-age`, or `--warn-rpc-age`": (_rpc, _SOON, ()),
    "no reply has come to a Call for as long, RPCs are not listed, and no thread waits": (
        _silent, _SOON, (),
    ),
    "an RPC without a mount (any more), however long it waits": (_without_mount, _HOUR, ()),
    "a thread waits in NFS although no RPC does, however long": (_thread, _HOUR, ()),
    "an RPC waits whose age is unknown": (_rpc, _HOUR, ("--state=/proc/none/state",)),
    "an RPC has waited for `--max-rpc-age` (30 s)": (_rpc, _LATE, ()),
    "no reply has come to a Call for `--max-rpc-age`, and a thread waits in NFS": (
        _silent_with_thread, _LATE, (),
    ),
    "a `soft` mount gives up its RPCs without a reply for `--max-rpc-age`": (_soft, _LATE, ()),
    "a `MOUNT` of the command line is not mounted": (_idle, _NOW, ("/mnt/b",)),
    "the mounts cannot be read": (
        lambda scene: (scene.host.root / "proc/1/mountinfo").unlink(), _NOW, (),
    ),
    "no file system is listed": (
        lambda scene: _truncate(scene.host.root / "proc/1/mountinfo"), _NOW, (),
    ),
    "the kernel lists neither RPCs nor counters of a mount": (_nothing_counted, _NOW, ()),
    "the check took longer than `--timeout` (10 s)": (_waits, _NOW, ("--timeout=1",)),
    "another run holds the state folder": (_locked, _NOW, ()),
    "the answer cannot be printed": (_idle, _NOW, (">/dev/full",)),
    "the metrics of `--textfile` cannot be written, and all else is `OK`": (
        _idle, _NOW, ("--textfile=/proc/self/mem",),
    ),
    "the command line is wrong": (_idle, _NOW, ("--bad",)),
}  # fmt: skip
"""For each cause: the function that arranges it, seconds after a first run, and options."""
_STATUSES = re.findall(
    r"^\| (?:(\d) `([A-Z]+)`)? ?\| (.+?) \|$",
    (ROOT / "docs/how-to/health.md").read_text().partition("it sees |")[2].partition("\n\n")[0],
    re.M,
)


def test_the_page_has_each_sight_once() -> None:
    assert [sight for *_, sight in _STATUSES] == [*_SIGHTS]
    assert [(int(n), name.lower()) for n, name, _ in _STATUSES if name] == [*enumerate(NAMES)]


@pytest.mark.parametrize("sight", _SIGHTS)
def test_each_sight_has_the_status_of_the_page(
    sight: str, host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = [number for number, _, text in _STATUSES[: [*_SIGHTS].index(sight) + 1] if number]
    arrange, seconds, words = _SIGHTS[sight]
    with contextlib.ExitStack() as stack:
        arrange(Scene(host, monkeypatch, stack))
        statuses = []
        for at in (0, seconds / 2, seconds):
            clock(at)
            if words == (">/dev/full",):
                statuses.append(full(host))
            else:
                statuses.append(typed(host, *words)[0])
    assert statuses[-1] == int(above[-1])


def full(host: Host) -> int:
    """The status with a standard output that takes nothing."""
    command = [sys.executable, "-m", "nfsrdma_tools", "health", *host.words]
    with Path("/dev/full").open("w") as output:
        return subprocess.run(
            command, cwd=ROOT, stdout=output, stderr=subprocess.DEVNULL, check=False
        ).returncode


def test_json_has_every_mount(host: Host) -> None:
    host.mount("/mnt/a", 3)
    host.mount("/mnt/b", 4)
    status, output = typed(host, "--json")
    facts = json.loads(output)
    assert (status, facts["status"], facts["exit_status"]) == (0, "ok", 0)
    assert [(finding["mount"], finding["status"]) for finding in facts["findings"]] == [
        ("/mnt/a", "ok"), ("/mnt/b", "ok"),
    ]  # fmt: skip


def test_json_has_an_error_of_the_words(host: Host) -> None:
    for words in (["relative"], ["--max-rpc-age", "x"]):
        status, output = typed(host, "--json", *words)
        facts = json.loads(output)
        assert (status, facts["exit_status"], facts["findings"]) == (UNKNOWN, UNKNOWN, [])
        assert words[-1] in facts["error"]


def test_a_name_is_that_of_the_kernel_in_any_locale(host: Host) -> None:
    host.mount("/mnt/d\u00e4ta", 3)
    command = [sys.executable, "-m", "nfsrdma_tools", "health", *host.words, "/mnt/d\u00e4ta"]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ascii_only}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout[:7]) == (OK, b"NFS OK:"), done
    # characters that the locale lacks beside those that the kernel escapes
    host.mount("/mnt/d\u00e4 ta", 4)
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ascii_only}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout[:7], done.stderr) == (OK, b"NFS OK:", b""), done


# ---- ready-made files

MONITORING = ROOT / "playbooks/monitoring"


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 0), (2, 1), (3, 2), (143, 2)])
def test_the_plugin_of_node_problem_detector_has_its_statuses(
    tmp_path: Path, status: int, expected: int
) -> None:
    program = tmp_path / "nfsrdma"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    program.chmod(0o755)
    done = subprocess.run(
        (MONITORING / "nfsrdma-health-npd.sh", "--timeout", "2"),
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (expected, "health --timeout 2\n")


def test_node_problem_detector_runs_that_plugin(host: Host) -> None:
    config = json.loads((MONITORING / "nfsrdma-health-npd.json").read_text())
    (rule,), (condition,) = config["rules"], config["conditions"]
    assert (rule["type"], rule["condition"]) == ("permanent", condition["type"])
    assert (MONITORING / Path(rule["path"]).name).exists()
    # the command ends before node-problem-detector kills it, and its own limit says why
    assert int(config["pluginConfig"]["timeout"].rstrip("s")) > 10
    assert typed(host, *rule["args"])[0] == 0


def test_the_timer_starts_a_command_that_exists(host: Host, tmp_path: Path) -> None:
    service = (MONITORING / "nfsrdma-health.service").read_text()
    (command,) = re.findall(r"^ExecStart=/usr/bin/nfsrdma health (.*)$", service, re.M)
    path = tmp_path / "nfsrdma.prom"
    words = [str(path) if word.endswith(".prom") else word for word in command.split()]
    assert typed(host, *words)[0] == 0
    assert path.read_text().endswith("nfsrdma_health_status 0\n")
    assert "SuccessExitStatus=1 2 3\n" in service
    timer = (MONITORING / "nfsrdma-health.timer").read_text()
    (seconds,) = re.findall(r"^OnUnitInactiveSec=(\d+)$", timer, re.M)
    assert int(seconds) * 2 < 30


def test_the_page_names_the_metrics(host: Host, tmp_path: Path) -> None:
    host.mount("/mnt/a", 3)
    typed(host, "--textfile", f"{tmp_path}/x.prom")
    page = (ROOT / "docs/how-to/health.md").read_text()
    for name in re.findall(r"^# TYPE (\S+)", (tmp_path / "x.prom").read_text(), re.M):
        assert f"| `{name}" in page


# ---- Python 3.9

CORE = "nfsrdma_tools.live.health.check"
LISTED = (
    f"import {CORE}, nfsrdma_tools.live.health.metrics, sys\n"
    "for name, module in sorted(sys.modules.items()):\n"
    "    file = getattr(module, '__file__', None) or ''\n"
    "    if name.startswith('nfsrdma_tools'): print(name, file)"
)


def core_modules() -> dict[str, Path]:
    # -S: without any package that is installed
    listing = subprocess.check_output((sys.executable, "-S", "-c", LISTED), cwd=ROOT, text=True)
    return {
        name: Path(path) for name, path in (line.split(" ", 1) for line in listing.splitlines())
    }


def test_the_core_needs_no_package_and_is_written_for_python_3_9() -> None:
    assert "nfsrdma_tools.host.nfs.mountstats" in core_modules()
    for path in core_modules().values():
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        new = [call.lineno for call in calls for word in call.keywords if word.arg == "strict"]
        assert (path.name, new) == (path.name, [])


def test_the_core_runs_on_python_3_9(host: Host) -> None:
    old = interpreter("3.9")
    host.mount("/mnt/a", 3, more=",soft")
    host.tasks(3, (9, 0x11))
    code = (
        f"import sys; from pathlib import Path; from {CORE} import *\n"
        "from nfsrdma_tools.host.machine import host_of_container\n"
        "root = Path(sys.argv[1])\n"
        "machine = host_of_container(root / 'proc', root / 'sys', root)\n"
        "print(*run(Request(limits('1ms', None), (), machine, root / 'state'), 60).lines)"
    )
    argv = (old, "-c", code, str(host.root))
    for words in ("NFS OK", "NFS CRITICAL"):
        output = subprocess.check_output(argv, cwd=ROOT, text=True)
        assert output.startswith(words)


def test_a_check_that_is_killed_is_unknown() -> None:
    def work() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    with pytest.raises(UserError, match="ended without a result"):
        guarded(work, 60)
