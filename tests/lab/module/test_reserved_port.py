# SPDX-License-Identifier: Apache-2.0
"""Exports with the option secure, and the parameter server_reserved_port of our server."""

import itertools
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from wire.rpcrdma import Header, decode, encode

from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, ModulePair, lent
from testbed.mounts import connections, set_to
from testbed.peers import calls, rpc
from testbed.peers.lanes import PRE_POSTED, asked
from testbed.peers.peer import Connection, GoneError, Host, Wish
from testbed.peers.private_data import extended
from testbed.personalities import agreed
from testbed.remote import on

pytestmark = pytest.mark.nightly
EXPORTS = ("secure", "insecure")
EXPORT = """
for n in secure insecure; do mkdir -p /srv/$n; echo $n > /srv/$n/file; done
exportfs -o rw,secure,no_subtree_check,fsid=91 '*:/srv/secure'
exportfs -o rw,insecure,no_subtree_check,fsid=92 '*:/srv/insecure'
"""
END = """
exportfs -u '*:/srv/secure'; exportfs -u '*:/srv/insecure'
rm -rf /srv/secure /srv/insecure
"""
LOOK = """
mkdir -p /mnt/look
mount -t nfs -o vers=4.2,proto=rdma,port=20049,soft,$1 server:/srv/$2 /mnt/look || exit
cat /mnt/look/file; said=$?
umount /mnt/look
exit $said
"""
OK, PERM = 0, 1


@pytest.fixture
def kernel_client(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server with our module, and a client with the kernel's."""
    yield from lent(pair_file.bring(OURS, THEIRS), pair_file.restart, request)


@contextmanager
def exported(lab: Lab, reserved: str) -> Iterator[None]:
    """Both exports, while the server looks at ports, or does not."""
    lab.run("server", "sh", "-ec", EXPORT)
    set_to(lab, "server", "server_reserved_port", reserved)
    try:
        yield
    finally:
        set_to(lab, "server", "server_reserved_port", "N")
        lab.run("server", "sh", "-c", END)


def reads(lab: Lab, options: str) -> dict[str, bool]:
    """Which exports a mount with these options can read."""
    readable = {}
    for export in EXPORTS:
        argv = ("sh", "-c", LOOK, "sh", options, export)
        result = lab.run("client", *argv, check=False, timeout=600)
        readable[export] = (result.returncode, result.stdout) == (0, f"{export}\n")
    return readable


PORTS = {"any": itertools.repeat(0), "reserved": itertools.count(700)}


@on("client")
def lookups() -> dict[str, dict[str, int]]:
    """The status of a lookup of each export, by the kind of the client's port."""
    host, statuses = Host(), {}
    for kind, ports in PORTS.items():
        connection = host.connect(Wish(private=calls.GOOD_PRIVATE, port=next(ports)))
        statuses[kind] = {export: status(connection, export) for export in EXPORTS}
        connection.close()
    return statuses


def status(connection: Connection, export: str) -> int:
    """The status of a COMPOUND of NFSv4.0 that looks up a folder (RFC 7530)."""
    putrootfh, lookup, getattr_ = 24, 15, 9
    look = b"".join(rpc.words(lookup) + rpc.opaque(name) for name in (b"srv", export.encode()))
    body = rpc.words(0, 0, 4, putrootfh) + look + rpc.words(getattr_, 0)
    call = rpc.call(calls.XID, rpc.COMPOUND, body)
    # version 4, not 3
    call = call[:16] + rpc.words(4) + call[20:]
    connection.send(encode(Header(calls.XID, 1, 0)) + call)
    message = connection.next()
    assert message, connection.ended
    _, size = decode(message.data)
    # behind xid, kind, accepted, verifier (2 words), success
    words = struct.unpack_from(">7I", message.data, size)
    assert words[:6] == (calls.XID, 1, 0, 0, 0, 0), words
    return int(words[6])


@on("client")
def joins() -> dict[tuple[str, str], bool]:
    """Whether the server lets a lane join a connection, by the kinds of their ports."""
    host = Host()
    return {(lane, home): join(host, home, lane) for home in PORTS for lane in PORTS}


def join(host: Host, home: str, lane: str) -> bool:
    token = 0x5EC0000 + next(PORTS["reserved"])
    first = host.connect(Wish(private=extended(PRE_POSTED, token), port=next(PORTS[home])))
    try:
        host.connect(Wish(private=asked(token), port=next(PORTS[lane]))).close()
    except GoneError:
        return False
    finally:
        first.close()
    return True


def test_a_port_decides_only_where_the_server_looks_at_it(both_ours: Lab) -> None:
    lab = both_ours
    with exported(lab, "N"):
        assert reads(lab, "noresvport") == {"secure": True, "insecure": True}
        assert lookups(lab)["any"] == {"secure": OK, "insecure": OK}
    with exported(lab, "Y"):
        assert reads(lab, "resvport") == {"secure": True, "insecure": True}
        assert reads(lab, "noresvport") == {"secure": False, "insecure": True}
        assert lookups(lab) == {
            "any": {"secure": PERM, "insecure": OK},
            "reserved": {"secure": OK, "insecure": OK},
        }


def test_further_connections_are_held_to_the_port_of_the_first(both_ours: Lab) -> None:
    lab = both_ours
    with agreed(lab, "pre-posted"), exported(lab, "Y"):
        assert joins(lab) == {
            ("any", "any"): True,
            ("reserved", "any"): True,
            ("any", "reserved"): False,
            ("reserved", "reserved"): True,
        }
        assert reads(lab, "resvport") == {"secure": True, "insecure": True}


def test_the_kernels_client_has_no_reserved_port(kernel_client: Lab) -> None:
    lab = kernel_client
    with exported(lab, "N"):
        assert reads(lab, "resvport") == {"secure": True, "insecure": True}
    with exported(lab, "Y"):
        assert reads(lab, "resvport") == {"secure": False, "insecure": True}
        served = connections(lab, "server", "nfsrdma-server")
        assert {connection["privileged"] for connection in served} <= {"no"}
