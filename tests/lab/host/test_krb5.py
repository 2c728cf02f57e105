# SPDX-License-Identifier: Apache-2.0
"""NFS over RDMA with Kerberos: who one is, that nothing was changed, that nobody could read it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed.kerberos import kerberos
from testbed.node.mounts import HERE, mounted
from testbed.node.programs import until
from testbed.remote import on

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("pair_lab")]
SECURITY = ("krb5", "krb5i", "krb5p")
SIZE = 700_000
COUNTERS = ("read_chunk_count", "write_chunk_count", "reply_chunk_count", "nomsg_call_count")
Counts = dict[str, int]


def sh(script: str, user: str = "root") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ("sh", "-c", script), user=user, group=user, extra_groups=(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@contextmanager
def mount(vers: str, sec: str) -> Iterator[Path]:
    """A mount of which no superblock is left: it would keep what has been read."""
    with mounted(f"vers={vers},sec={sec}") as here:
        (row,) = (r for r in Path("/proc/mounts").read_text().splitlines() if f" {here} " in r)
        options = set(row.split()[3].split(","))
        assert {f"vers={vers}", f"sec={sec}", "proto=rdma"} <= options
        yield here / "krb5"
    volumes = Path("/proc/fs/nfsfs/volumes")
    until("no superblock", lambda: len(volumes.read_text().splitlines()) < 2, pause=0.1)


def counters() -> Counts:
    xprts = mountstats.read(HERE).xprts
    return {name: sum(xprt.counters[name] for xprt in xprts) for name in COUNTERS}


@on("client", timeout=900)
def measure(vers: str, sec: str) -> tuple[Counts, Counts]:
    """Two users write and read; returns the counters of mountstats after each."""
    data = os.urandom(SIZE)
    Path("/tmp/data").write_bytes(data)  # noqa: S108
    with mount(vers, sec) as folder:
        folder.mkdir()
        folder.chmod(0o777)
        for user in ("root", "lab"):
            copy = f"cp /tmp/data {folder}/{user} && ls -l {folder} > {folder}/{user}.list"
            assert sh(copy, user).returncode == 0
        stranger = sh(f"cat {folder}/lab", "daemon")
        assert stranger.returncode != 0
        assert "Permission denied" in stranger.stderr
        written = counters()
    with mount(vers, sec) as folder:
        for user in ("root", "lab"):
            assert (folder / user).read_bytes() == data
            assert (folder / user).owner() == user
        read = counters()
        shutil.rmtree(folder)
    return written, read


@pytest.fixture(params=["pair", "module_pair"])
def carrier(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A client with the kernel's module, and one with ours, both in a realm."""
    lab = request.getfixturevalue(request.param)
    with kerberos(lab):
        yield lab


def reduces(lab: Lab, written: Counts, read: Counts) -> bool:
    """Whether sunrpc is sure to permit chunks for the data of krb5.

    Kernels for checking do not clear allocated memory, and sunrpc does not initialize the flags
    of an auth (docs/dev/faults-of-other-software.md).
    """
    both = written["read_chunk_count"] and read["write_chunk_count"]
    return bool(both) or lab.config.kernel not in CHECKING


def test_kerberos_over_rdma(carrier: Lab) -> None:
    # krb5p fails with EIO on 6.1, over TCP too
    security = SECURITY[:2] if carrier.config.kernel == "6.1" else SECURITY
    for vers, sec in product(("3", "4.2"), security):
        written, read = measure(carrier, vers, sec)
        if sec == "krb5" and reduces(carrier, written, read):
            assert written["read_chunk_count"] > 0, written
            assert read["write_chunk_count"] > 0, read
        elif sec == "krb5":
            print(f"missed: NFSv{vers} with krb5 and data in chunks of their own")
            assert written["read_chunk_count"] + written["nomsg_call_count"] > 0
            assert read["write_chunk_count"] + read["reply_chunk_count"] > 0
        else:
            # what is signed or sealed moves as a whole: no data is taken out of the message
            assert written["nomsg_call_count"] > 0
            assert read["write_chunk_count"] == 0
            assert read["reply_chunk_count"] > 0
