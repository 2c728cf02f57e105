# SPDX-License-Identifier: Apache-2.0
"""Our module carries data of every size, and every kind of long message, unchanged."""

import pytest
from module_data import acls, around, carried, delegation, fio, folders, stressed
from storm import set_parameters

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

MIB = 1 << 20
WAYS = ("buffered", "direct-skewed")
IPV6 = "[fd09:9:1::1]:/export"


def test_data_of_every_size_is_what_it_was(module_pair: Lab) -> None:
    small = [1, 2, 3, 4, 5, *around(4096)]
    carried(module_pair, "vers=3,rsize=1024,wsize=1024", [*small, *around(1024, 9216)], 1, WAYS)
    carried(module_pair, "vers=4.0,rsize=65536,wsize=65536", around(65536), 2, WAYS, IPV6)
    found = carried(module_pair, "vers=4.1,nconnect=16", around(MIB), 3, WAYS)
    assert 3500 < found["limits"]["write"] < 4096
    assert min(found["chunks"].values()) > 0
    # 16 pages in a memory region: many in a chunk
    with set_parameters(module_pair, inline_send=1024, inline_recv=1024, mr_depth=16):
        found = carried(module_pair, "vers=4.2", around(1024, 65536, 17 * 65536), 4, WAYS)
        assert 500 < found["limits"]["write"] < 1024
        carried(module_pair, "vers=3", [8 * MIB - 1], 5, WAYS[1:], IPV6)


def test_fio_and_stress_ng_find_nothing_wrong(module_pair: Lab) -> None:
    fio(module_pair, "vers=4.2,nconnect=4", seconds=20, seed=5)
    stressed(module_pair, "vers=3", 5, ("hdd", "rename", "utime", "flock", "iomix"))


def test_folders_links_access_lists_and_attributes(module_pair: Lab) -> None:
    folders(module_pair, "vers=4.1")
    assert acls(module_pair, "vers=4.2", "attributes", 0)["calls"] > 0
    assert acls(module_pair, "vers=4.0", "nfs4_acl", 100)["replies"] > 0
    with set_parameters(module_pair, inline_send=1024, inline_recv=1024):
        folders(module_pair, "vers=3")
        # written in a call that does not fit, read into pages that nobody had provided
        assert acls(module_pair, "vers=3", "posix_acl", 300)["calls"] > 0


def test_the_server_calls_the_client_back(module_pair: Lab) -> None:
    delegation(module_pair, "vers=4.1")
    delegation(module_pair, "vers=4.2,nconnect=4", "server's device removed")
