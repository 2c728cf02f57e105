# SPDX-License-Identifier: Apache-2.0
"""A file is read by as many READs as it has rsizes."""

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from testbed.node.mounts import drop_caches, mounted
from testbed.remote import on


@on("client")
def reads(rsize: int, size: int) -> int:
    """The READs of a new file of ``size`` bytes."""
    with mounted(f"vers=3,rsize={rsize}") as folder:
        file = folder / "counted"
        file.write_bytes(bytes(size))
        drop_caches()
        before = mountstats.read(folder)
        file.read_bytes()
        change = mountstats.difference(mountstats.read(folder), before)
        file.unlink()
    return change.operations["READ"].operations


def test_a_mebibyte_is_16_reads_of_64_kib(pair: Lab) -> None:
    assert reads(pair, 1 << 16, 1 << 20) == 16
