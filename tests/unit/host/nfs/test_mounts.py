# SPDX-License-Identifier: Apache-2.0

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.files_made import write_all
from unit.host.nfs.requests_made import asks

from nfsrdma_tools.cli import mount as mount_command
from nfsrdma_tools.cli.main import app
from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfs import mountinfo, mounts, mountstats, readahead
from nfsrdma_tools.host.nfs.mount_state import MountState, states
from nfsrdma_tools.host.nfs.mounting import MountError, mount, unmount
from nfsrdma_tools.host.nfs.mounts import Mount, find
from nfsrdma_tools.host.nfs.mountstats import Xprt
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.host.nfs.requirements import differences, required_values
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.lock import try_folder_lock
from nfsrdma_tools.undo import journal


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_find_and_umount_refuse_what_is_no_nfs_mount(tmp_path: Path) -> None:
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
def test_a_lock_on_the_mount_point_blocks_nothing(
    state: Path, stand_in: Path, tmp_path: Path
) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: access denied by server >&2\nexit 32\n")
    with (
        try_folder_lock(tmp_path),
        journal() as book,
        pytest.raises(MountError, match="does not export"),
    ):
        mount(asks(directory=tmp_path), book)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root comes this far")
def test_a_mount_that_failed_leaves_nothing_to_undo(
    state: Path, stand_in: Path, tmp_path: Path
) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: access denied by server >&2\nexit 32\n")
    with journal() as book:
        with pytest.raises(MountError, match="does not export"):
            mount(asks(directory=tmp_path), book)
        assert book.actions == []


# mounts a tmpfs by a stand-in for mount.nfs, and is killed as soon as it exists
KILLED = """
import os, signal, sys
from pathlib import Path
from nfsrdma_tools.host.nfs import mounting
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.undo import journal
killed = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
vars(mounting)["_verified"] = killed
target = Target.parse("127.0.0.1:/export")
request = mounting.MountRequest(target, Path(sys.argv[1]), transport="tcp")
with journal() as changes:
    mounting.mount(request, changes)
"""
RECOVER = "from nfsrdma_tools.undo import recover; print(*recover())"


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("meanwhile", "left", "message"),
    [
        ("true", [], ""),
        ("umount {0}", [], ""),
        ("umount {0}; mount -t tmpfs foreign {0}", ["foreign"], ""),
        ("umount {0}; mount -t tmpfs 127.0.0.1:/export {0}", ["127.0.0.1:/export"], ""),
        ("mount -t tmpfs foreign {0}", ["127.0.0.1:/export", "foreign"], "foreign covers it"),
    ],
)
def test_recovery_unmounts_the_mount_that_was_made_and_no_other(
    early: bool, meanwhile: str, left: list[str], message: str,
    state: Path, stand_in: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """``early``: the process is killed before mount.nfs returns."""
    if early and "umount {0}; mount -t tmpfs 127" in meanwhile:
        pytest.skip("nothing distinguishes the two mounts")
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of mounts here")
    kill = "kill -9 $(ps -o ppid= $$)" if early else ""
    stand_in.write_text(f'#!/bin/sh -e\nmount -t tmpfs "$1" "$2"\n{kill}\n')
    umount = stand_in.with_name("umount.nfs")
    umount.write_text('#!/bin/sh\nexec umount "$1"\n')
    umount.chmod(0o755)
    directory = tmp_path / "mount point"
    directory.mkdir()
    steps = f"""
        '{sys.executable}' -c "$KILLED" '{directory}' || test $? = 137
        {meanwhile.format(f"'{directory}'")}
        '{sys.executable}' -c "$RECOVER"
        exec cat /proc/self/mountinfo
    """
    env = {**os.environ, "KILLED": KILLED, "RECOVER": RECOVER}
    words = ("unshare", "-rm", "sh", "-ec", steps)
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    output, _, mounts = done.stdout.partition("\n")
    entries = mountinfo.parse(mounts)
    assert [e.source for e in entries if e.directory == directory] == left, done.stderr
    assert message in output
    assert bool(message) == bool(output)
    assert list(state.glob("*.undo")) == []


LINE = "{id} 25 {device} / {where} rw - nfs4 server:/x rw,vers=4.2,rsize=524288,proto=rdma\n"
STATS = """device server:/x mounted on {where} with fstype nfs4 statvers=1.1
\txprt:\trdma 0 0 1 0 0 9 9 0
"""


@pytest.mark.parametrize("gone_at", ["mountstats", "read-ahead"])
def test_mount_states_leave_out_a_mount_that_vanishes(
    gone_at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between any two looks at the kernel; mountstats is read once for all mounts."""
    here = [LINE.format(id=n, device=f"0:{n}", where=f"/mnt/{n}") for n in (41, 42, 43)]
    left = [here[0], here[2]]
    stats = [STATS.format(where=f"/mnt/{n}") for n in (41, 42, 43)]
    if gone_at == "mountstats":
        del stats[1]
    looks = iter([here])
    monkeypatch.setattr(mountinfo, "read", lambda _: mountinfo.parse("".join(next(looks, left))))
    counted: list[str] = []

    def read_all(_: Path) -> list[mountstats.MountStats]:
        counted.append("read")
        return mountstats.parse("".join(stats))

    def get_kb(device: str, _: Path) -> int:
        if device == "0:42":
            raise UserError("read-ahead of device 0:42 cannot be read")
        return 1024

    monkeypatch.setattr(mountstats, "read_all", read_all)
    monkeypatch.setattr(readahead, "get_kb", get_kb)
    listed = states()
    assert [str(each.mount.directory) for each in listed] == ["/mnt/41", "/mnt/43"]
    assert [(len(each.xprts), each.read_ahead_kb) for each in listed] == [(1, 1024)] * 2
    assert counted == ["read"]


@pytest.mark.parametrize("text", [None, "", "much"])
def test_a_mount_without_a_read_ahead_hides_no_other_one(tmp_path: Path, text: str | None) -> None:
    """The kernel's files are there, but the read-ahead of one mount is missing or no number."""
    proc, bdi = tmp_path / "proc/self", tmp_path / "sys/class/bdi"
    proc.mkdir(parents=True)
    numbers = (41, 42)
    for name, line in (("mountinfo", LINE), ("mountstats", STATS)):
        lines = (line.format(id=n, device=f"0:{n}", where=f"/mnt/{n}") for n in numbers)
        (proc / name).write_text("".join(lines))
    for number, kb in zip(numbers, (text, "1024"), strict=True):
        (bdi / f"0:{number}").mkdir(parents=True)
        if kb is not None:
            (bdi / f"0:{number}/read_ahead_kb").write_text(f"{kb}\n")
    listed = states(Machine(tmp_path))
    assert [
        (str(each.mount.directory), each.read_ahead_kb, each.connections) for each in listed
    ] == [
        ("/mnt/41", None, 1),
        ("/mnt/42", 1024, 1),
    ]


def test_a_mount_whose_optimistic_reads_pause_is_marked() -> None:
    on_client = Mount(
        Target("server", "/e"), Path("/mnt"), "0:45", "nfs", "nfsrdma", "3", 65536, 65536, 2, {}
    )

    def state(paused: int) -> MountState:
        transports = tuple(
            ClientTransport(
                number, "10.9.1.2", 20049, "optimistic", "optimistic",
                {"references": 3, "optimistic_paused": paused * number}, {"optimistic_reads": 4},
            )
            for number in (0, 1)
        )  # fmt: skip
        return MountState(on_client, (), 128, (), transports)

    assert state(0).figures == {"references": 6, "optimistic_paused": 0, "optimistic_reads": 8}
    assert state(1).facts()["figures"] == state(1).figures
    shown = [mount_command._personality(state(paused)) for paused in (0, 1)]
    assert shown == ["optimistic", "optimistic (paused)"]


INFO = (
    "41 25 0:41 / /mnt/many rw - nfs 192.0.2.1:/x rw,vers=3,rsize=65536,proto=rdma,nconnect=6,"
    "remoteports=192.0.2.1-192.0.2.3,addr=192.0.2.1\n"
    "42 25 0:42 / /mnt/old rw - nfs4 server:/y rw,vers=4.2,rsize=65536,proto=rdma6,"
    "addr=2001:db8::2\n"
    "43 25 0:43 / /mnt/unknown rw - nfs4 server:/z rw,vers=4.2,rsize=65536,proto=tcp,"
    "max_connect=4,addr=192.0.2.4\n"
)


@pytest.fixture
def recorded(tmp_path: Path) -> Machine:
    """A host with a vendor's client; only the first mount's connections are in sysfs."""
    text = ""
    for name, source, fstype, count in (
        ("many", "192.0.2.1:/x", "nfs", 6),
        ("old", "server:/y", "nfs4", 1),
        ("unknown", "server:/z", "nfs4", 2),
    ):
        text += f"device {source} mounted on /mnt/{name} with fstype {fstype} statvers=1.1\n"
        text += "\txprt:\trdma 0 0 1 0 0 9 9 0\n" * count
    files = {
        "proc/self/mountinfo": INFO,
        "proc/self/mountstats": text,
        "proc/modules": "rpcrdma 1 2 - Live 0x0 (OE)\nsunrpc 1 2 nfs,rpcrdma, Live 0x0 (OE)\n"
        "rdma_cm 1 2 rpcrdma, Live 0x0\n",
        "sys/module/sunrpc/parameters/nfs_bundle_version": "4.5.1-vastdata\n",
        **{f"sys/class/bdi/0:{n}/read_ahead_kb": "128\n" for n in (41, 42, 43)},
    }
    switch = "sys/kernel/sunrpc/xprt-switches/switch-7"
    for number in range(6):
        files[f"{switch}/xprt-{number}-rdma/dstaddr"] = f"192.0.2.{number % 3 + 1}\n"
    files[f"{switch}/xprt-6-rdma/dstaddr"] = "<closed>\n"
    write_all(tmp_path, files)
    link = tmp_path / "sys/fs/nfs/0:41/nfs_client/switch"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / switch)
    argv = ("modinfo", "-0", "--", "rpcrdma")
    info = "filename: /lib/modules/x/updates/dkms/rpcrdma.ko\0name: rpcrdma\0alias: svcrdma\0"
    return Machine(tmp_path, recording=Recording({argv: Result(argv, info, "", 0)}))


def test_the_addresses_of_all_connections(recorded: Machine) -> None:
    many, old, unknown = states(recorded)
    assert many.addresses == {"192.0.2.1": 2, "192.0.2.2": 2, "192.0.2.3": 2}
    assert old.facts()["addresses"] == {"2001:db8::2": 1}
    assert (old.facts()["transport"], old.facts()["proto"]) == ("rdma", "rdma6")
    # further addresses may be in use, and an older kernel does not list them
    assert unknown.facts()["addresses"] is None
    assert [mount_command._connections(state) for state in (many, old, unknown)] == [
        "2 to 192.0.2.1, 2 to 192.0.2.2, 2 to 192.0.2.3",
        "1 to 2001:db8::2",
        "2 to 192.0.2.4 and others",
    ]
    crowd = many._replace(addresses={f"192.0.2.{n}": 1 for n in range(1, 65)})
    assert mount_command._connections(crowd) == "64 to 64 addresses, 192.0.2.1 to 192.0.2.64"


def test_whose_module_serves_rdma(
    recorded: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mount_command, "machine_of", lambda *_, **__: nullcontext(recorded))
    mount_command.mounts()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["rdma", "rdma6", "tcp"]
    vasts = "rpcrdma of vastnfs 4.5.1-vastdata"
    assert [line.endswith(f"  {vasts}") for line in lines[1:]] == [True, True, False]
    mount_command.mounts(as_json=True)
    shown = json.loads(capsys.readouterr().out)["mounts"]
    assert [f"{row['module']} {row['module_origin']}" for row in shown] == [vasts, vasts, " "]


REQUIRED_FROM = (
    "61 22 0:52 / /mnt rw - nfs4 server:/export rw,vers={vers},rsize=1048576,wsize=65536,{rest}"
)
REST = "hard,proto={proto},nconnect=4,timeo=600,sec=krb5i,addr=192.0.2.1"


def a_mount(vers: str = "4.2", proto: str = "rdma", owner: str = "rpcrdma") -> Mount:
    (entry,) = mountinfo.parse(REQUIRED_FROM.format(vers=vers, rest=REST.format(proto=proto)))
    return Mount.of(entry, owner)


@pytest.mark.parametrize(
    "required",
    [
        "transport=rdma", "proto=rdma", "vers=4.2", "vers=4", "rsize=1M", "rsize=1048576",
        "wsize=64k", "nconnect=4", "hard", "timeo=600", "sec=krb5:krb5i", "addr=192.0.2.1",
        "target=server:/export", "fstype=nfs4", "port=2049", "rw,hard,transport=rdma,vers=4.2",
    ],
)  # fmt: skip
def test_required_values_in_effect_are_met(required: str) -> None:
    assert differences(a_mount(), required_values([required])) == []


@pytest.mark.parametrize(
    ("required", "current", "wanted"),
    [
        ("transport=tcp", "rdma", "tcp"), ("transport=nfsrdma", "rdma", "nfsrdma"),
        ("transport=rdma6", "rdma", "rdma6"), ("vers=4.1", "4.2", "4.1"), ("vers=3", "4.2", "3"),
        ("rsize=512k", "1048576", "524288"), ("nconnect=8", "4", "8"), ("soft", "none", "set"),
        ("remoteports=dns", "none", "dns"), ("sec=krb5:krb5p", "krb5i", "krb5:krb5p"),
        ("port=20049", "2049", "20049"),
    ],
)  # fmt: skip
def test_a_difference_has_both_values(required: str, current: str, wanted: str) -> None:
    (difference,) = differences(a_mount(), required_values([required]))
    name = required.partition("=")[0]
    assert (difference.name, difference.found, difference.required) == (name, current, wanted)


@pytest.mark.parametrize(
    ("flags", "superblock", "missing"),
    [
        ("rw,nosuid,noatime", "rw", ["ro", "nodev"]),
        # a bind mount may be read-only by itself, and so may the superblock
        ("ro,nosuid,noatime,nodev", "rw", ["rw"]),
        ("rw,nosuid,noatime,nodev", "ro", ["rw"]),
        ("ro,nodev", "ro", ["rw", "nosuid", "noatime"]),
    ],
)
def test_options_of_the_mount_itself_count(flags: str, superblock: str, missing: list[str]) -> None:
    line = f"61 22 0:52 / /mnt {flags} shared:4 - nfs4 s:/e {superblock},vers=4.2,proto=tcp"
    (entry,) = mountinfo.parse(line)
    required = required_values(["ro,rw,nosuid,noatime,nodev"])
    differing = differences(Mount.of(entry, ""), required)
    assert [
        (difference.name, difference.found, difference.required) for difference in differing
    ] == [(name, "none", "set") for name in required if name in missing]


def test_families_and_modules() -> None:
    over_ipv6 = a_mount(proto="rdma6")
    assert differences(over_ipv6, required_values(["transport=rdma6,proto=rdma"])) == []
    assert differences(over_ipv6, required_values(["transport=rdma"])) == []
    ours = a_mount(owner="nfsrdma")
    assert differences(ours, required_values(["transport=nfsrdma,proto=rdma"])) == []
    assert [d.found for d in differences(ours, required_values(["transport=rdma"]))] == ["nfsrdma"]
    # without vers=4, nothing says which port was used
    assert [d.found for d in differences(a_mount("3"), required_values(["port=2049"]))] == ["none"]


def test_values_that_mountinfo_lacks() -> None:
    state = MountState(a_mount(), (Xprt("rdma", {}),) * 4, 16384, ())
    assert differences(state, required_values(["connections=4,read_ahead_kb=16384,vers=4.2"])) == []
    differing = differences(
        state, required_values(["connections=8,read_ahead_kb=128,personality=cached"])
    )
    assert [d.found for d in differing] == ["4", "16384", "none"]


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ([""], "nothing is required"),
        (["=x"], "'=x' is not a requirement"),
        (["vers="], "'vers=' is not a requirement"),
        (["a b=c"], "is not a requirement"),
        (["rsize=big"], "'big' is not a size"),
        (["vers=3", "vers=4"], "vers is both 3 and 4"),
    ],
)
def test_a_requirement_that_means_nothing_is_wrong_usage(lists: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        required_values(lists)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of pasted files, with one mount over RDMA and one over TCP."""
    lines = [
        REQUIRED_FROM.format(vers="4.2", rest=REST.format(proto="rdma")),
        REQUIRED_FROM.format(vers="3", rest=REST.format(proto="tcp"))
        .replace("61 22 0:52", "62 22 0:53")
        .replace("/mnt", "/mnt/b\\012c"),
    ]
    (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
    return tmp_path


def status_of(*argv: str) -> tuple[int, str, str]:
    """The exit status, the output and the message of `nfsrdma mounts`."""
    done = CliRunner().invoke(app, ["mounts", *argv])
    if isinstance(done.exception, (UserError, OSError)):
        return getattr(done.exception, "status", 1), done.stdout, str(done.exception)
    return done.exit_code, done.stdout, ""


def test_the_exit_status_is_the_answer(host: Path) -> None:
    here = ("--from", str(host), "--require")
    assert status_of(*here, "transport=rdma,vers=4.2", "/mnt") == (0, "", "")
    assert status_of(*here, "rsize=1M", *here[2:], "hard") == (0, "", "")
    expected = "/mnt/b?c: transport: found tcp, required rdma; vers: found 3, required 4\n"
    assert status_of(*here, "transport=rdma,vers=4") == (1, expected, "")
    assert status_of(*here, "transport=rdma", "/mnt/b\nc")[0] == 1
    status, printed, message = status_of(*here, "transport=rdma", "/mnt/none")
    assert (status, printed) == (2, "")
    assert message.startswith("/mnt/none is not an NFS mount point")
    assert status_of(*here, "vers=")[0] == 2
    # mountstats, in which the connections are, was not pasted
    for name in ("connections", "read_ahead_kb"):
        status, printed, message = status_of(*here, f"{name}=4")
        assert (status, printed, message) == (2, "", f"{name} of /mnt was not recorded")
    (host / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    status, _, message = status_of(*here, "transport=rdma")
    assert (status, message.partition(" (")[0]) == (2, "there is no NFS mount")


def test_a_covered_mount_is_not_the_one_that_programs_see(host: Path) -> None:
    here = ("--from", str(host), "--require", "transport=rdma", "/mnt")
    assert status_of(*here)[0] == 0
    with (host / "mountinfo").open("a") as file:
        file.write("70 61 0:60 / /mnt rw - overlay overlay rw,lowerdir=/mnt\n")
    status, _, message = status_of(*here)
    assert (status, message.partition(" (")[0]) == (2, "/mnt is not an NFS mount point")


def test_the_answer_as_json(host: Path) -> None:
    status, printed, _ = status_of("--from", str(host), "--require", "transport=rdma", "--json")
    document = json.loads(printed)
    assert (status, document["schema_version"], document["met"]) == (1, 1, False)
    assert [row["directory"] for row in document["mounts"]] == ["/mnt", "/mnt/b\nc"]
    assert [row["differences"] for row in document["mounts"]] == [
        [], [{"name": "transport", "found": "tcp", "required": "rdma"}],
    ]  # fmt: skip


def test_a_mount_is_listed_by_its_directory(host: Path) -> None:
    assert status_of("--from", str(host), "/mnt/none")[0] == 1


def test_the_mount_namespace_of_another_process(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (folder / "mountinfo").write_text(
        REQUIRED_FROM.format(vers="4.2", rest=REST.format(proto="tcp"))
    )
    (only,) = mounts.mounts(Machine(tmp_path, process="7"))
    assert only.transport == "tcp"
    assert mounts.find(Path("/mnt"), Machine(tmp_path, process="7")) == only
    status, _, message = status_of("--pid", str(os.getpid()), "--require", "vers=4", "/proc")
    assert (status, message.partition(" (")[0]) == (2, "/proc is not an NFS mount point")
    # Linux has no process of this number (PID_MAX_LIMIT)
    none = str((1 << 22) + 1)
    assert status_of("--pid", none, "--require", "vers=4") == (2, "", f"there is no process {none}")
    assert status_of("--pid", none) == (1, "", f"there is no process {none}")
    assert status_of("--pid", "1", "--from", str(tmp_path))[0] == 2
