# SPDX-License-Identifier: Apache-2.0
"""Our server serves our client and the kernel's; ``make matrix`` does this with everything."""

from collections.abc import Iterator

import pytest
from carriers import OURS, THEIRS, WHOSE, carry, serve
from matrix import cell

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

TOTALS = "cat /sys/kernel/debug/nfsrdma-server/totals; ls -d /sys/kernel/debug/nfsrdma-server/*/"


@pytest.fixture
def our_server(pair: Lab) -> Iterator[Lab]:
    serve(pair, "server", OURS)
    yield pair
    carry(pair, "client", THEIRS)
    serve(pair, "server", THEIRS)


@pytest.mark.parametrize("whose", WHOSE)
def test_our_server_serves(our_server: Lab, whose: str) -> None:
    carry(our_server, "client", whose)
    for vers in ("3", "4.0", "4.2"):
        found = cell(our_server, "rdma", vers, "sys")
        assert set(found.values()) == {"ok"}, f"NFSv{vers}: {found}"
    # nothing of a client that left stays
    our_server.run("server", "systemctl", "stop", "nfs-server")
    said = our_server.run("server", "sh", "-c", TOTALS, check=False).stdout
    assert said == "connections 0 of 1024\nread_pages 0 of 4096\n"
