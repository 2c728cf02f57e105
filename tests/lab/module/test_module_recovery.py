# SPDX-License-Identifier: Apache-2.0
"""How our client gets over a server that falls silent: at once when it gives the connection up."""

from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.faults import FAULTS
from testbed.kernel_events import recorded, stacks
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.scripts import on

# seconds until its Calls time out, which is before soft-RoCE gives a silent peer up
TIMEOUT = 2
# Calls that have to time out.  The first timeout ends a connection, and none is made in the
# silence: a slow machine sends fewer Calls before it
MANY = 100
IMPATIENT = "vers=3,actimeo=600"
FILES = """
mkdir /export/silent && cd /export/silent
for i in $(seq 100); do : > $(printf 'a-name-%050d' $i); done
head -c 4096 /dev/urandom > data
for name in one two; do head -c 4M /dev/urandom > $name; done
sha256sum data one two
"""
TCP = "mkdir -p /mnt/tcp && mount -t nfs -o vers=3,proto=tcp server:/export /mnt/tcp"
BRIEF_LEASE = """
mkdir -p /etc/nfs.conf.d
printf '[nfsd]\\nlease-time=10\\ngrace-time=10\\n' > /etc/nfs.conf.d/lease.conf
systemctl restart nfs-server
"""
NO_LEASE = "rm /etc/nfs.conf.d/lease.conf; systemctl restart nfs-server"


@pytest.fixture
def sums(both_ours: Lab) -> Iterator[dict[str, str]]:
    """Files on the server, and their SHA-256 by name."""
    said = both_ours.run("server", "sh", "-ec", FILES).stdout
    yield {line.split()[1]: line.split()[0] for line in said.splitlines()}
    both_ours.run("server", "rm", "-r", "/export/silent")


def test_a_broken_connection_does_not_wait_for_its_device(
    both_ours: Lab, sums: dict[str, str]
) -> None:
    """A listing is killed, whose memory the transport keeps; a READ times out beside a WRITE."""
    if both_ours.config.nic == "siw":
        # RFC 5040, section 5.5: a Send is done before the peer has it, so nothing waits behind it
        pytest.skip("soft-iWARP keeps no requests of a silent peer; missed: what waits for them")
    events = {"nfsrdma/nfsrdma_disconnect/enable": "1"}
    options = f"{IMPATIENT},timeo={10 * TIMEOUT},retrans=10"
    with mounted(both_ours, options), recorded(both_ours, "client", events) as lines:
        found = on(both_ours, "client", "silent", "recall")
    assert (found["sent"], found["killed"], found["broken"]) == (True, True, True)
    assert found["kept"] == 1, "the listing was not abandoned"
    assert found["hung"] == []
    assert found["sha256"] == sums["data"]
    reasons = [line.split("reason=")[1] for line in lines if "nfsrdma_disconnect:" in line]
    assert reasons[0] == "a reply did not come in time"
    assert found["by_device"] == 0, "it waited until the device had given up"


def test_tasks_that_time_out_leave_the_workers_to_others(
    both_ours: Lab, sums: dict[str, str]
) -> None:
    """rpciod's workers carry all mounts: a hundred Calls that time out sleep elsewhere.

    The silence outlasts their major timeout. Nevertheless each Call has its time for a reply on the
    connection that follows, or Calls would break connections one after the other.
    """
    asleep = 'stacktrace if prev_state == 2 && prev_comm ~ "kworker*"'
    events = {"sched/sched_switch/trigger": asleep, "sunrpc/xprt_timer/enable": "1"}
    # soft-iWARP does not give up; with a kernel's checks its Calls take longer to be sent, and none
    # is after the first timeout: nothing connects
    timeout = TIMEOUT * (3 * both_ours.config.patience if both_ours.config.nic == "siw" else 1)
    options = f"{IMPATIENT},timeo={10 * timeout},retrans=1,nconnect=16,rsize=4096"
    both_ours.run("client", "sh", "-ec", TCP)
    try:
        with mounted(both_ours, options), recorded(both_ours, "client", events) as lines:
            found = on(both_ours, "client", "silent", "timeouts", str(4 * timeout), str(MANY))
            reasons = {one["last_disconnect"] for one in connections(both_ours)}
    finally:
        both_ours.run("client", "umount", "/mnt/tcp")
    assert found["broken"]
    expired = sum("xprt_timer:" in line for line in lines)
    print(f"{expired} timeouts")
    assert expired >= MANY
    assert reasons == {"a reply did not come in time"}
    assert found["rounds"] > 0, "nothing went on over TCP"
    assert found["sums"] == sorted(f"{sums[name]}  {name}" for name in ("one", "two"))
    slept = stacks(lines)
    assert slept, "no worker was seen asleep: the trigger records nothing"
    ours = ("nfr_client_timer", "nfr_client_wait_closed")
    assert [stack for stack in slept if any(name in stack for name in ours)] == []


def test_connecting_takes_no_longer_than_sunrpc_allows(both_ours: Lab) -> None:
    """NFSv4 sets a mount's connect timeout to the lease, which is less than our bound here."""
    if both_ours.config.nic != "rxe":
        pytest.skip("how a device goes is known of soft-RoCE; missed: the connect timeout")
    both_ours.run("server", "sh", "-ec", BRIEF_LEASE)
    try:
        with mounted(both_ours, "vers=4.2"):
            both_ours.run("client", "sh", "-ec", FAULTS["client's device removed"].script)
            both_ours.run("client", "ls", HERE, timeout=LIMIT)
            (found,) = connections(both_ours)
        assert found["connects"] == "2"
        assert found["connect_timeout_ms"] == "10000"
    finally:
        both_ours.run("server", "sh", "-ec", NO_LEASE)
