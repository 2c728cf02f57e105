# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma mounts --require``: what is compared, and the exit status."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo, mounts
from nfsrdma_tools.host.nfs.mounts import Mount, MountState
from nfsrdma_tools.host.nfs.mountstats import Xprt
from nfsrdma_tools.host.nfs.requirements import differences, parse

LINE = "61 22 0:52 / /mnt rw - nfs4 server:/export rw,vers={vers},rsize=1048576,wsize=65536,{rest}"
REST = "hard,proto={proto},nconnect=4,timeo=600,sec=krb5i,addr=192.0.2.1"


def a_mount(vers: str = "4.2", proto: str = "rdma", owner: str = "rpcrdma") -> Mount:
    (entry,) = mountinfo.parse(LINE.format(vers=vers, rest=REST.format(proto=proto)))
    return Mount.of(entry, owner)


@pytest.mark.parametrize(
    "required",
    [
        "transport=rdma", "proto=rdma", "vers=4.2", "vers=4", "rsize=1M", "rsize=1048576",
        "wsize=64k", "nconnect=4", "hard", "timeo=600", "sec=krb5:krb5i", "addr=192.0.2.1",
        "target=server:/export", "fstype=nfs4", "port=2049", "rw,hard,transport=rdma,vers=4.2",
    ],
)  # fmt: skip
def test_a_value_in_effect_meets_its_requirement(required: str) -> None:
    assert differences(a_mount(), parse([required])) == []


@pytest.mark.parametrize(
    ("required", "found", "wanted"),
    [
        ("transport=tcp", "rdma", "tcp"), ("transport=nfsrdma", "rdma", "nfsrdma"),
        ("transport=rdma6", "rdma", "rdma6"), ("vers=4.1", "4.2", "4.1"), ("vers=3", "4.2", "3"),
        ("rsize=512k", "1048576", "524288"), ("nconnect=8", "4", "8"), ("soft", "none", "set"),
        ("remoteports=dns", "none", "dns"), ("sec=krb5:krb5p", "krb5i", "krb5:krb5p"),
        ("port=20049", "2049", "20049"),
    ],
)  # fmt: skip
def test_a_difference_has_both_values(required: str, found: str, wanted: str) -> None:
    (difference,) = differences(a_mount(), parse([required]))
    name = required.partition("=")[0]
    assert (difference.name, difference.found, difference.required) == (name, found, wanted)


def test_families_and_modules() -> None:
    over_ipv6 = a_mount(proto="rdma6")
    assert differences(over_ipv6, parse(["transport=rdma6,proto=rdma"])) == []
    assert differences(over_ipv6, parse(["transport=rdma"])) == []
    ours = a_mount(owner="nfsrdma")
    assert differences(ours, parse(["transport=nfsrdma,proto=rdma"])) == []
    assert [d.found for d in differences(ours, parse(["transport=rdma"]))] == ["nfsrdma"]
    # without vers=4, nothing says which port was used
    assert [d.found for d in differences(a_mount("3"), parse(["port=2049"]))] == ["none"]


def test_values_that_mountinfo_lacks() -> None:
    state = MountState(a_mount(), (Xprt("rdma", {}),) * 4, 16384, ())
    assert differences(state, parse(["connections=4,read_ahead_kb=16384,vers=4.2"])) == []
    found = differences(state, parse(["connections=8,read_ahead_kb=128,personality=cached"]))
    assert [d.found for d in found] == ["4", "16384", "none"]


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
        parse(lists)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of pasted files, with one mount over RDMA and one over TCP."""
    lines = [
        LINE.format(vers="4.2", rest=REST.format(proto="rdma")),
        LINE.format(vers="3", rest=REST.format(proto="tcp"))
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
    (folder / "mountinfo").write_text(LINE.format(vers="4.2", rest=REST.format(proto="tcp")))
    (found,) = mounts.mounts(Machine(tmp_path, process="7"))
    assert found.transport == "tcp"
    assert mounts.find(Path("/mnt"), Machine(tmp_path, process="7")) == found
    status, _, message = status_of("--pid", str(os.getpid()), "--require", "vers=4", "/proc")
    assert (status, message.partition(" (")[0]) == (2, "/proc is not an NFS mount point")
    # Linux has no process of this number (PID_MAX_LIMIT)
    none = str((1 << 22) + 1)
    assert status_of("--pid", none, "--require", "vers=4") == (2, "", f"there is no process {none}")
    assert status_of("--pid", none) == (1, "", f"there is no process {none}")
    assert status_of("--pid", "1", "--from", str(tmp_path))[0] == 2
