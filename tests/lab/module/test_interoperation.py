# SPDX-License-Identifier: Apache-2.0
"""Our server serves our client and the kernel's; bench/matrix does this with everything."""

from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.faults import FAULTS
from testbed.interoperation import cell
from testbed.kernel_events import recorded
from testbed.labs import OURS, THEIRS, WHOSE, ModulePair, lent
from testbed.mounts import HERE, LIMIT, connections, mounted, set_parameters

pytestmark = pytest.mark.lab
OURS_NIGHTLY = (THEIRS, pytest.param(OURS, marks=pytest.mark.nightly))

TOTALS = """
cd /sys/kernel/debug/nfsrdma-server
grep ' of ' totals
ls -d */
"""

MOUNT = f"""
mkdir -p {HERE}
mount -t nfs -o vers=4.2,nconnect=3,proto=rdma,port=20049 server:/export {HERE}
"""

# One mount reads the start of a file again and again. Other mounts on the same transport each read
# one part behind it, and the last of them all of the file.
SECOND = """
first=/mnt/first second=/mnt/second options=vers=3,nosharecache,rsize=$1,proto=rdma,port=20049
mkdir -p $first $second
mount -t nfs -o $options server:/export $first
while :; do dd if=$first/$2 of=/dev/null bs=512 count=1 iflag=direct status=none; done &
reader=$!
trap 'kill $reader; wait $reader || true; umount $first' EXIT
# a file that changed in the last second is read by nfsd
sleep 2
for n in 1 2 3 4 5 6; do
	mount -t nfs -o $options server:/export $second
	dd if=$second/$2 bs=$1 skip=$n count=1 iflag=direct status=none | sha256sum
	umount $second
done
mount -t nfs -o $options server:/export $second
sha256sum < $second/$2
umount $second
"""
WANTED = """
head -c $((8 * $1 + 1003)) /dev/urandom > /export/$2
for n in 1 2 3 4 5 6; do dd if=/export/$2 bs=$1 skip=$n count=1 status=none | sha256sum; done
sha256sum < /export/$2
"""

FORGOTTEN = (
    "until grep -q '^connections 0 ' /sys/kernel/debug/nfsrdma-server/totals; do sleep 1; done"
)


def tokens(lab: Lab, node: str, folder: str) -> list[tuple[str, str]]:
    """The token of each connection, and whether the peer sent the extension."""
    rows = connections(lab, node, folder)
    return sorted((row["token"], row["peer_extension"]) for row in rows)


@pytest.fixture
def our_server(whose: str, pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Our server, with our client or the kernel's."""
    yield from lent(pair_file.bring(OURS, whose), pair_file.restart, request)


# the tests of personalities, and most others, have our client with our server
@pytest.mark.parametrize("whose", (pytest.param(OURS, marks=pytest.mark.nightly), THEIRS))
def test_our_server_serves(our_server: Lab, long: bool) -> None:
    for vers in ("3", "4.0", "4.2") if long else ("3", "4.2"):
        results = cell(our_server, "rdma", vers, "sys")
        assert set(results.values()) == {"ok"}, f"NFSv{vers}: {results}"
    # nothing of a client that left stays
    our_server.run("server", "systemctl", "stop", "nfs-server")
    # a worker frees connections, and may not have done so yet
    our_server.run("server", "sh", "-c", FORGOTTEN, timeout=LIMIT)
    totals = our_server.run("server", "sh", "-c", TOTALS, check=False).stdout
    our_server.run("server", "systemctl", "start", "nfs-server")
    used = [line.split()[1] for line in totals.splitlines()]
    assert totals.startswith("connections 0 of ") and set(used) == {"0"}, totals


@pytest.fixture
def threadless(our_server: Lab) -> Iterator[Lab]:
    """The server answers READs from its page cache."""
    with set_parameters(our_server, "server", server_threadless=65536):
        yield our_server


@pytest.mark.parametrize("whose", OURS_NIGHTLY)
@pytest.mark.parametrize("size", ["1024", "32768"])
def test_the_first_read_of_a_mount_needs_no_thread(threadless: Lab, size: str) -> None:
    """Inline and by a Write chunk: the client learns from it how long the header of a reply is."""
    name = f"threadless-{size}"
    wanted = threadless.run("server", "sh", "-ec", WANTED, "sh", size, name).stdout
    events = {"nfsrdma/nfsrdma_svc_threadless/enable": "1"}
    with recorded(threadless, "server", events) as lines:
        sums = threadless.run("client", "sh", "-ec", SECOND, "sh", size, name).stdout
    assert sums == wanted
    firsts = []
    for number in range(1, 7):
        place = f" position={number * int(size)} "
        firsts.append(next(line.split()[-1] for line in lines if place in line))
    # nfsd reads once a second, and what a busy CPU has no time for
    assert "hit" in firsts
    assert set(firsts) <= {"hit", "absent", "expired", "share"}


@pytest.mark.parametrize("whose", OURS_NIGHTLY)
def test_our_server_serves_from_its_cache(threadless: Lab) -> None:
    results = cell(threadless, "rdma", "3", "sys")
    assert set(results.values()) == {"ok"}, results


@pytest.mark.parametrize("whose", WHOSE)
def test_the_server_shows_whose_connection_it_is(our_server: Lab, whose: str) -> None:
    # those of the test before would be shown, too
    our_server.run("server", "sh", "-c", FORGOTTEN, timeout=LIMIT)
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
        FAULTS["client's link down"].happen(our_server)
        our_server.run("server", "sh", "-c", FORGOTTEN, timeout=LIMIT)
        our_server.run("client", "ls", HERE, timeout=LIMIT)
