# SPDX-License-Identifier: Apache-2.0
"""Our module carries data of every size, and every kind of long message, unchanged."""

from collections.abc import Callable

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.module_data import (
    WAYS,
    acls,
    around,
    carried,
    delegation,
    fio,
    folders,
    has_user_attributes,
    stressed,
)
from testbed.mounts import set_parameters

Record = Callable[[str, object], None]
PAGE, KIB64, MIB = 4096, 1 << 16, 1 << 20
FEW = ("buffered", "direct-skewed")
IPV6 = "[fd09:9:1::1]:/export"
EVERY = around(*(1 << n for n in range(24)))
STRESSORS = ("hdd", "rename", "utime", "flock", "iomix")
MORE = (*STRESSORS, "dentry", "dir", "link", "symlink")
# mr_depth 16: as many pages in a memory region, many regions in a chunk
SMALL = {"inline_send": 1024, "inline_recv": 1024, "mr_depth": 16}


def test_data_of_every_size_is_what_it_was(
    ours: Lab, long: bool, pytestconfig: pytest.Config, record_property: Record
) -> None:
    plans = (
        (
            "vers=3,rsize=1024,wsize=1024",
            [1, 2, 3, 4, 5, *around(1024, PAGE, 9216)],
            "server:/export",
        ),
        ("vers=4.0,rsize=65536,wsize=65536", around(KIB64), IPV6),
        ("vers=4.1,nconnect=16", EVERY if long else around(MIB), "server:/export"),
    )
    moved = 0
    for seed, (options, sizes, target) in enumerate(plans):
        found = carried(ours, options, sizes, seed, WAYS if long else FEW, target)
        moved += found["bytes"]
    # the kernel's server takes messages of a page, ours of two, into which each reply here fits
    small = pytestconfig.getoption("--server") == "kernel"
    largest = PAGE if small else 2 * PAGE
    assert largest - 600 < found["limits"]["write"] < largest
    chunks = found["chunks"]
    data = chunks["write"] + chunks["fetches"]
    assert (chunks["read"] > 0, data > 0, chunks["reply"] > 0) == (True, True, small)
    record_property("bytes", moved)
    record_property("sizes", len(found["sizes"]))


def test_data_in_many_small_regions(ours: Lab, long: bool, record_property: Record) -> None:
    with set_parameters(ours, "client", **SMALL):
        sizes = EVERY if long else around(1024, KIB64, 17 * KIB64)
        found = carried(ours, "vers=4.2", sizes, 4, FEW)
        assert 500 < found["limits"]["write"] < 1024
        last = carried(ours, "vers=3", [8 * MIB - 1], 5, FEW[1:], IPV6)
    record_property("bytes", found["bytes"] + last["bytes"])


def test_fio_finds_nothing_wrong(ours: Lab, long: bool, record_property: Record) -> None:
    done = fio(ours, "vers=4.2,nconnect=4", loops=200 if long else 2, seed=5)
    for name, value in done.items():
        record_property(name, value)


def test_stress_ng_finds_nothing_wrong(ours: Lab, long: bool, record_property: Record) -> None:
    names, seconds = (MORE, 60) if long else (STRESSORS, 5)
    record_property("verdict", stressed(ours, "vers=3", seconds, names))


@pytest.mark.nightly
def test_folders_links_and_access_lists(ours: Lab, long: bool) -> None:
    folders(ours, "vers=4.1", 10_000 if long else 2_000)
    with set_parameters(ours, inline_send=1024, inline_recv=1024):
        acls(ours, "vers=4.0", "nfs4_acl", 100)
        folders(ours, "vers=3", 10_000 if long else 500)
        # written in a call that does not fit, read into pages that nobody had provided
        assert acls(ours, "vers=3", "posix_acl", 300)["calls"] > 0


def test_user_attributes(ours: Lab) -> None:
    if not has_user_attributes(ours):
        pytest.skip("no user attributes on this tmpfs; missed: theirs over NFSv4.2")
    assert acls(ours, "vers=4.2", "attributes", 0)["calls"] > 0


def test_the_server_calls_the_client_back(ours: Lab, pytestconfig: pytest.Config) -> None:
    delegation(ours, "vers=4.1")
    # how a device goes is known of soft-RoCE
    if pytestconfig.getoption("--nic") == "rxe":
        delegation(ours, "vers=4.2,nconnect=4", "server's device removed")
