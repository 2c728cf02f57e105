# SPDX-License-Identifier: Apache-2.0
"""A script of mount.nfs' name stands in for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from unit.host.nfs.requests_made import asks

from nfsrdma_tools import command
from nfsrdma_tools.errors import CommandError, MismatchError, ProgramMissingError
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.nfs import mountinfo, mounting
from nfsrdma_tools.host.nfs.mount_state import MountState
from nfsrdma_tools.host.nfs.mounting import MountError, RejectedOptionError, mount_nfs
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.mountstats import Xprt
from nfsrdma_tools.host.nfs.target import Target


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
        ("No route to host for localhost:/export on /mnt", "is unreachable"),
        ("No such device for localhost:/export on /mnt", "no rdma device has a route to localhost"),
        ("Protocol error", "the rdma connection to localhost failed"),
        ("an incorrect mount option was specified for /mnt", "rejects these options"),
        ("rpc.statd is not running but is required for remote locking.\nE: nolock", "rpc.statd"),
    ],
)
def test_refusals_are_one_clear_line(stand_in: Path, words: str, meant: str) -> None:
    stand_in.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nmount.nfs: {words}\nEND\nexit 32\n")
    with pytest.raises(MountError, match=meant) as caught:
        mount_nfs(asks(), Path("/mnt"), timeout=30)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_refusal_nobody_knows_is_handed_on(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\necho mount.nfs: the moon is full >&2\nexit 32\n")
    with pytest.raises(CommandError, match="the moon is full"):
        mount_nfs(asks(), Path("/mnt"), timeout=30)


def test_a_missing_mount_nfs_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PATH has setpriv and nothing else; that of ``run`` has /usr/sbin of this host, too."""
    setpriv = command.END_WITH_US[0]
    (tmp_path / setpriv).symlink_to(str(shutil.which(setpriv)))
    monkeypatch.setattr(command, "_environment", lambda _: {"PATH": str(tmp_path)})
    monkeypatch.setattr(packages, "install", lambda name: f"apt install {name}")
    with pytest.raises(ProgramMissingError) as caught:
        mount_nfs(asks(), Path("/mnt"), timeout=30)
    assert str(caught.value) == "mount.nfs is not installed (apt install nfs-utils)"


def test_arguments_arrive_as_they_are(stand_in: Path, tmp_path: Path) -> None:
    arguments = tmp_path / "said"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {arguments}\n')
    target = Target.parse("127.0.0.1:/a b;$(touch x)\n'%s")
    directory = Path("/mnt/-x $(y)\n")
    mount_nfs(asks(target=target, vers="3", transport="tcp"), directory, timeout=30)
    assert arguments.read_text().split("\0")[:-1] == [
        str(target), str(directory), "-o", "vers=3,proto=tcp,retry=0",
    ]  # fmt: skip


def test_the_family_that_was_asked_for_is_requested(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(f'#!/bin/sh\nprintf %s "$4" > {tmp_path}/said\n')
    for host, ipv6, netid in (("127.0.0.1", False, "rdma"), ("::1", True, "rdma6")):
        mount_nfs(asks(target=Target(host, "/x"), ipv6=ipv6), Path("/mnt"), timeout=30)
        assert (tmp_path / "said").read_text().split(",")[1] == f"proto={netid}"


def test_the_kernel_refuses_what_its_client_does_not_have(stand_in: Path) -> None:
    stand_in.write_text(
        "#!/bin/sh\necho mount.nfs: an incorrect mount option was specified >&2\nexit 32\n"
    )
    ranges = "remoteports=192.0.2.1-192.0.2.8"
    with pytest.raises(RejectedOptionError) as caught:
        mount_nfs(asks(nconnect=32, options=(ranges,)), Path("/mnt"), timeout=30)
    assert caught.value.message == f"mount.nfs or the kernel rejects {ranges} nconnect=32"
    assert caught.value.hint == "the kernel's own client takes nconnect up to 16"


def mounted(options: str, connections: int, owner: str = "rpcrdma") -> MountState:
    line = f"61 22 0:52 / /mnt rw - nfs4 server:/export rw,{options}"
    (entry,) = mountinfo.parse(line)
    return MountState(Mount.of(entry, owner), (Xprt("rdma", {}),) * connections, 128, ())


@pytest.mark.parametrize(
    ("words", "options", "connections", "message"),
    [
        ({"ipv6": True}, "vers=4.2,proto=rdma6", 1, ""),
        # NFSv4 may use the connection of an earlier mount of that server
        ({"ipv6": True}, "vers=4.2,proto=rdma", 1, "proto: requested rdma6, got rdma"),
        ({}, "vers=4.2,proto=rdma6", 1, ""),
        ({"nconnect": 4}, "vers=4.2,proto=rdma,nconnect=4", 1, "nconnect: requested 4, got 1"),
        # a vendor's client makes some of them later
        ({"nconnect": 32, "options": ("remoteports=dns",)},
         "vers=3,proto=rdma,nconnect=32,remoteports=192.0.2.1-192.0.2.8", 4, ""),
        ({"nconnect": 34, "options": ("mdconnect=2",)}, "vers=3,proto=rdma,nconnect=34", 32, ""),
        ({"options": ("max_connect=16",)}, "vers=4.2,proto=rdma,max_connect=16", 2, ""),
        ({"options": ("max_connect=16",)}, "vers=4.2,proto=rdma", 1,
         "max_connect: requested 16, got 1"),
        ({"options": ("max_connect=1",)}, "vers=4.2,proto=rdma", 1, ""),
        ({"options": ("max_connect=16",)}, "vers=3,proto=rdma", 1, ""),
    ],
)  # fmt: skip
def test_what_was_asked_is_compared_with_what_is(
    words: dict[str, object], options: str, connections: int, message: str
) -> None:
    request, current = asks(**words), mounted(options, connections)
    try:
        mounting._verify_max_connect(request, current.mount)
        mounting._verify_connections(request, current)
    except MismatchError as error:
        assert error.message == message
    else:
        assert message == ""


def test_a_mount_that_hangs_ends_and_leaves_no_process(stand_in: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stand_in.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 1000\n")
    with pytest.raises(MountError, match="did not answer within 2 s"):
        mount_nfs(asks(), Path("/mnt"), timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_mount_ends_with_a_killed_toolkit(stand_in: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # the fifo is at its end as soon as the last one who has it open for writing is gone
    stand_in.write_text(f"#!/bin/sh\nexec >{fifo}\necho started\nexec sleep 1000\n")
    code = (
        "from pathlib import Path\n"
        "from nfsrdma_tools.host.nfs.mounting import MountRequest, mount_nfs\n"
        "from nfsrdma_tools.host.nfs.target import Target\n"
        "mount_nfs(MountRequest(Target('127.0.0.1', '/x'), Path('/mnt')), Path('/mnt'), 1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as child, fifo.open() as output:
        assert output.readline() == "started\n"
        child.kill()
        assert output.read() == ""
