# SPDX-License-Identifier: Apache-2.0
"""Our server serves our client and the kernel's; ``make matrix`` does this with everything."""

from collections.abc import Iterator

import pytest
from carriers import OURS, WHOSE, Carriers
from faults import FAULTS
from shared_labs import lent
from storm import HERE, LIMIT, connections, mounted

from bench.matrix import cell
from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

TOTALS = """
cd /sys/kernel/debug/nfsrdma-server
grep ' of ' totals
ls -d */
"""

MOUNT = f"""
mkdir -p {HERE}
mount -t nfs -o vers=4.2,nconnect=3,proto=rdma,port=20049 server:/export {HERE}
"""

FORGOTTEN = (
    "until grep -q '^connections 0 ' /sys/kernel/debug/nfsrdma-server/totals; do sleep 1; done"
)


def tokens(lab: Lab, node: str, folder: str) -> list[tuple[str, str]]:
    """The token of each connection, and whether the peer sent the extension."""
    found = connections(lab, node, folder)
    return sorted((one["token"], one["peer_extension"]) for one in found)


@pytest.fixture
def our_server(whose: str, pair_file: Carriers, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Our server, with our client or the kernel's."""
    yield from lent(pair_file.bring(OURS, whose), pair_file.restart, request)


@pytest.mark.parametrize("whose", WHOSE)
def test_our_server_serves(our_server: Lab, long: bool) -> None:
    for vers in ("3", "4.0", "4.2") if long else ("3", "4.2"):
        found = cell(our_server, "rdma", vers, "sys")
        assert set(found.values()) == {"ok"}, f"NFSv{vers}: {found}"
    # nothing of a client that left stays
    our_server.run("server", "systemctl", "stop", "nfs-server")
    said = our_server.run("server", "sh", "-c", TOTALS, check=False).stdout
    our_server.run("server", "systemctl", "start", "nfs-server")
    used = [line.split()[1] for line in said.splitlines()]
    assert said.startswith("connections 0 of ") and set(used) == {"0"}, said


@pytest.mark.parametrize("whose", WHOSE)
def test_the_server_shows_whose_connection_it_is(our_server: Lab, whose: str) -> None:
    our_server.run("client", "sh", "-ec", MOUNT)
    try:
        # RPCs take turns on the transports, which connect when they are used
        our_server.run("client", "sh", "-ec", f"for n in $(seq 12); do stat -f {HERE}; done")
        served = tokens(our_server, "server", "nfsrdma-server")
        asked = tokens(our_server, "client", "nfsrdma") if whose == OURS else []
    finally:
        our_server.run("client", "umount", HERE)
    if whose == OURS:
        assert served == asked
        assert len(set(asked)) == 3
        assert {extension for _, extension in asked} == {"yes"}
    else:
        assert set(served) == {(f"{0:016x}", "no")}


@pytest.mark.parametrize("whose", (OURS,))
def test_a_client_that_goes_without_a_word_is_forgotten(our_server: Lab) -> None:
    with mounted(our_server, "vers=3"):
        our_server.run("client", "ls", HERE)
        # with its link down it cannot say goodbye, and nobody asks for a new connection
        our_server.run("client", "sh", "-ec", FAULTS["client's link down"].script)
        our_server.run("server", "sh", "-c", FORGOTTEN, timeout=LIMIT)
        our_server.run("client", "ls", HERE, timeout=LIMIT)
