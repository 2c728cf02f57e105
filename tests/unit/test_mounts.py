# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nfsrdma_tools.errors import CommandError, UserError
from nfsrdma_tools.host import busy
from nfsrdma_tools.host.mountinfo import parse
from nfsrdma_tools.host.mountnfs import MountError, call
from nfsrdma_tools.host.mounts import MountRequest, Target, find, mount, undo_for, unmount
from nfsrdma_tools.host.request import parse_size
from nfsrdma_tools.host.sharing import connection
from nfsrdma_tools.undo import journal

HERE = Target("localhost", "/export")


def asks(**words: object) -> MountRequest:
    return MountRequest(**{"target": HERE, "directory": Path("/mnt"), **words})  # type: ignore[arg-type]


# --- what is asked -----------------------------------------------------------------------------


def test_rdma_goes_to_its_port_unless_told_otherwise() -> None:
    assert asks().mount_options("rdma") == "vers=4.2,proto=rdma,port=20049,retry=0"
    assert asks(port=4711).mount_options("rdma") == "vers=4.2,proto=rdma,port=4711,retry=0"
    assert asks(transport="tcp", vers="3").mount_options("tcp6") == "vers=3,proto=tcp6,retry=0"


def test_everything_asked_is_in_the_options() -> None:
    request = asks(rsize=65536, wsize=4096, nconnect=4, options=("ro", "sec=sys"))
    assert request.mount_options("rdma") == (
        "vers=4.2,proto=rdma,port=20049,rsize=65536,wsize=4096,nconnect=4,retry=0,ro,sec=sys"
    )


def test_a_mount_with_its_own_read_ahead_has_its_own_cache() -> None:
    assert "nosharecache" in asks(read_ahead=0).mount_options("rdma").split(",")
    assert "nosharecache" not in asks().mount_options("rdma")
    shares = asks(read_ahead=0, options=("sharecache",)).mount_options("rdma")
    assert "nosharecache" not in shares


def test_a_users_retry_wins() -> None:
    assert asks(options=("retry=2",)).mount_options("rdma").endswith("20049,retry=2")


@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192, 12288, 524288, 1 << 20])
def test_sizes_that_linux_keeps(size: int) -> None:
    assert asks(rsize=size, wsize=size).rsize == size


@pytest.mark.parametrize("size", [-4096, 0, 1, 512, 1023, 1025, 3072, 4097, 6144, 65535])
def test_sizes_that_linux_would_round(size: int) -> None:
    with pytest.raises(UserError, match=f"rsize is {size} bytes"):
        asks(rsize=size)
    with pytest.raises(UserError, match=f"wsize is {size} bytes"):
        asks(wsize=size)


@pytest.mark.parametrize(
    "words",
    [
        {"transport": "udp"}, {"vers": "4"}, {"vers": "4.2,sec=none"}, {"nconnect": 0},
        {"nconnect": 17}, {"read_ahead": -1}, {"port": 0}, {"port": 65536},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(UserError, match="it can be"):
        asks(**words)


@pytest.mark.parametrize(
    "option",
    [
        "ro,exec", "a\nb", "", "x y", 'context="a"', "a\\054b", "a\0b", "\u2028", "proto=tcp",
        "tcp", "vers=3", "v4.1", "rsize=4096", "nconnect=2", "port=1", "bg", "remount", "bind",
    ],
)  # fmt: skip
def test_options_that_smuggle_or_contradict_are_refused(option: str) -> None:
    with pytest.raises(UserError, match="mount option") as caught:
        asks(options=(option,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("64k", 65536), ("64K", 65536), ("1M", 1 << 20), ("4KiB", 4096)],
)
def test_sizes_as_users_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5M", "1G", "4096,ro", "١", "4096\n"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        parse_size(text)


# --- what mount.nfs says; a script of its name stands in for it ----------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = tmp_path / "mount.nfs"
    script.touch(mode=0o755)
    return script


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("Connection refused for localhost:/export on /mnt", "refuses rdma.*port 20049"),
        ("access denied by server while mounting localhost:/export", "does not export '/export'"),
        (
            "mounting localhost:/export failed, reason given by server: No such file or directory",
            "has no export '/export'",
        ),
        (
            "requested NFS version or transport protocol is not supported for localhost:/export",
            "does not offer NFS 4.2 over rdma",
        ),
        ("Connection timed out for localhost:/export on /mnt", "does not answer on rdma"),
        ("No route to host for localhost:/export on /mnt", "cannot be reached"),
        ("No such device for localhost:/export on /mnt", "no rdma device leads to localhost"),
        ("Protocol error", "no rdma connection to localhost"),
        ("an incorrect mount option was specified for /mnt", "does not take these options"),
        ("rpc.statd is not running but is required for remote locking.\nE: nolock", "rpc.statd"),
    ],
)
def test_refusals_are_one_clear_line(stand_in: Path, words: str, meant: str) -> None:
    stand_in.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nmount.nfs: {words}\nEND\nexit 32\n")
    with pytest.raises(MountError, match=meant) as caught:
        call(asks(), Path("/mnt"), timeout=30)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_refusal_nobody_knows_is_handed_on(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: the moon is full >&2\nexit 32\n")
    with pytest.raises(CommandError, match="the moon is full"):
        call(asks(), Path("/mnt"), timeout=30)


def test_arguments_arrive_as_they_are(stand_in: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {said}\n')
    target = Target.parse("127.0.0.1:/a b;$(touch x)\n'%s")
    directory = Path("/mnt/-x $(y)\n")
    call(asks(target=target, vers="3", transport="tcp"), directory, timeout=30)
    assert said.read_text().split("\0")[:-1] == [
        str(target), str(directory), "-o", "vers=3,proto=tcp,retry=0",
    ]  # fmt: skip


def test_a_mount_that_hangs_ends_and_leaves_no_process(stand_in: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stand_in.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 1000\n")
    with pytest.raises(MountError, match="did not answer within 2 s"):
        call(asks(), Path("/mnt"), timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_mount_ends_with_a_killed_toolkit(stand_in: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # the fifo is at its end as soon as the last one who has it open for writing is gone
    stand_in.write_text(f"#!/bin/sh\nexec >{fifo}\necho started\nexec sleep 1000\n")
    code = (
        "from pathlib import Path\n"
        "from nfsrdma_tools.host.mountnfs import call\n"
        "from nfsrdma_tools.host.mounts import MountRequest, Target\n"
        "call(MountRequest(Target('127.0.0.1', '/x'), Path('/mnt')), Path('/mnt'), 1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as child, fifo.open() as said:
        assert said.readline() == "started\n"
        child.kill()
        assert said.read() == ""


# --- mounting and unmounting, as far as it goes without a server ---------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_what_is_no_nfs_mount_is_not_found_and_not_unmounted(tmp_path: Path) -> None:
    assert find(Path("/proc")) is None
    for path in (Path("/proc"), tmp_path):
        with pytest.raises(UserError, match="is not an NFS mount point"):
            unmount(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may mount")
def test_mounting_needs_root(state: Path, tmp_path: Path) -> None:
    with journal() as book, pytest.raises(UserError, match="only root"):
        mount(asks(directory=tmp_path), book)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root comes this far")
@pytest.mark.parametrize(
    ("directory", "why"),
    [("/proc", "in use: proc"), ("missing", "No such file"), ("file", "Not a directory")],
)
def test_mount_points_that_cannot_be_used(
    state: Path, tmp_path: Path, directory: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with journal() as book, pytest.raises(UserError, match=why):
        mount(asks(directory=tmp_path / directory), book)
    assert list(state.glob("*.undo")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root comes this far")
def test_a_mount_that_failed_leaves_nothing_to_undo(
    state: Path, stand_in: Path, tmp_path: Path
) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: access denied by server >&2\nexit 32\n")
    with journal() as book:
        with pytest.raises(MountError, match="does not export"):
            mount(asks(directory=tmp_path), book)
        assert book.actions == []


def test_the_undo_is_an_argv_that_ends_nfs_only() -> None:
    assert undo_for(Path("/mnt/a b")).argv == ("umount.nfs", "/mnt/a b")


# --- who uses a mount point ----------------------------------------------------------------------


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "inside").mkdir()
    code = (
        "import os, signal; os.close(0); os.open('f', os.O_CREAT); print(flush=1); signal.pause()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path / "inside",
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    child.stdout.readline()
    yield child
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_users_are_named_with_what_they_hold(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (user,) = busy.users(tmp_path / "inside", "0:99999")
    assert (user.pid, user.holds) == (sleeper.pid, "working folder")
    assert str(user).startswith(f"pid {sleeper.pid} (python")
    (user,) = busy.users(tmp_path / "inside" / "f", "0:99999")
    assert (user.pid, user.holds) == (sleeper.pid, "open file 0")
    assert busy.users(tmp_path / "in", "0:99999") == []


def test_mappings_are_found_by_device(sleeper: subprocess.Popen[bytes]) -> None:
    stat = Path(sys.executable).resolve().stat()
    device = f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)}"
    held = {user.pid: user.holds for user in busy.users(Path("/nowhere"), device)}
    assert held[sleeper.pid] == "mapped file"
    assert os.getpid() not in held


def test_inner_mounts_keep_a_mount_busy() -> None:
    lines = [f"{n} 1 0:{n} / {d} rw - nfs4 s:/ rw" for n, d in ((1, "/m"), (2, "/m/x"), (3, "/mx"))]
    assert busy.inner_mounts(Path("/m"), parse("\n".join(lines))) == [Path("/m/x")]


# --- who shares connections ----------------------------------------------------------------------


def test_connections_by_the_rpc_clients_switch(tmp_path: Path) -> None:
    for clnt, switch in (("clnt-1", "switch-0"), ("clnt-2", "switch-0"), ("clnt-3", "switch-1")):
        (tmp_path / "switches" / switch).mkdir(parents=True, exist_ok=True)
        (tmp_path / clnt).mkdir()
        (tmp_path / clnt / "switch").symlink_to(tmp_path / "switches" / switch)
    for device, clnt in (("0:45", "clnt-1"), ("0:46", "clnt-2"), ("0:47", "clnt-3")):
        (tmp_path / device).mkdir()
        (tmp_path / device / "nfs_client").symlink_to(tmp_path / clnt)
    names = [connection(d, tmp_path, tmp_path / "none") for d in ("0:45", "0:46", "0:47")]
    assert names == ["switch-0", "switch-0", "switch-1"]


def test_connections_by_the_list_of_volumes(tmp_path: Path) -> None:
    volumes = tmp_path / "volumes"
    volumes.write_text(
        "NV SERVER   PORT DEV          FSID                              FSC\n"
        "v4 0a090102 4e51 0:45         0:0                               no \n"
        "v3 0a090102  801 0:46         8af5c1:0                          no \n"
    )
    assert connection("0:45", tmp_path, volumes) == "v4 0a090102 4e51"
    assert connection("0:46", tmp_path, volumes) == "v3 0a090102 801"
    assert connection("0:47", tmp_path, volumes) is None
    assert connection("0:45", tmp_path, tmp_path / "none") is None
