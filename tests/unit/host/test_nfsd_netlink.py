# SPDX-License-Identifier: Apache-2.0
"""The state of nfsd by netlink: messages made by hand from the kernel's specification."""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import pytest
from unit.host.nfsd_netlink_made import (
    CONTROL,
    DONE,
    DUMP,
    ERROR,
    LISTENER,
    POOL_MODE,
    REPLIES,
    RPC_STATUS,
    THREADS,
    VERSION,
    Kernel,
    attribute,
    framed,
    ipv6,
    listener,
    nest,
    rpc,
    text,
    u32,
)

from nfsrdma_tools.host.nfsd_netlink import NfsdCommand, read
from nfsrdma_tools.host.nfsd_status import (
    INVALID_REPLY,
    LIST_ENDS_EARLY,
    LIST_TOO_LONG,
    MOST_RPCS,
    NO_FAMILY,
    SINCE,
    NfsdStatus,
    PendingList,
    Socket,
    too_old,
)

NOW = 5_000_000_000
"""Microseconds of the monotonic clock."""
Boot = Callable[[Kernel], Kernel]


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Boot:
    """Puts a kernel behind the socket, and stops the clock."""

    def booted(kernel: Kernel) -> Kernel:
        monkeypatch.setattr("nfsrdma_tools.host.nfsd_netlink.socket.socket", kernel)
        clock = "nfsrdma_tools.host.nfsd_netlink.time.monotonic_ns"
        monkeypatch.setattr(clock, lambda: NOW * 1000)
        return kernel

    return booted


def pending(boot: Boot, rpcs: Sequence[bytes], rest: Sequence[bytes] | None = None) -> PendingList:
    boot(Kernel(rpcs=rpcs, rest=rest))
    listed = read([NfsdCommand.RPC_STATUS]).pending
    assert listed is not None
    return listed


def test_all_commands_are_read(boot: Boot) -> None:
    kernel = boot(Kernel(rpcs=[rpc(started_us=NOW - 1_500_000)]))
    status = read()
    assert status.unknown == {}
    assert (status.pool_threads, status.min_threads, status.pool_mode) == ((4, 4), None, "pernode")
    assert status.versions == ("3", "4.1", "4.2")
    assert status.listeners == (
        Socket("rdma", "10.9.2.1", 20049),
        Socket("rdma", "::", 20049),
        Socket("tcp", "10.9.1.1", 2049),
    )
    assert status.pending
    assert asdict(status.pending.rpcs[0]) == {
        "xid": 0x12345678,
        "program": 100003,
        "version": 3,
        "procedure": 6,
        "age_us": 1_500_000,
        "client": "10.9.1.2",
        "client_port": 703,
        "server": "10.9.1.1",
        "server_port": 20049,
        "operations": (),
    }
    assert str(status.pending.rpcs[0]) == "0x12345678 NFSv3 READ for 1.5 s from 10.9.1.2:703"
    # it reads only: no command that sets
    assert kernel.asked == [*((n, 0) for n in (3, 5, 7, 9)), (RPC_STATUS, DUMP)]
    assert kernel.closed


def test_the_commands_are_those_of_the_specification() -> None:
    assert {command.label for command in NfsdCommand} == set(SINCE)
    assert {command.number for command in NfsdCommand} == {
        RPC_STATUS, THREADS, VERSION, LISTENER, POOL_MODE
    }  # fmt: skip


def test_a_number_of_threads_that_changes_has_a_least_one(boot: Boot) -> None:
    # Linux 7.0: min-threads is 5
    boot(Kernel({THREADS: REPLIES[THREADS] + u32(5, 2)}))
    assert read([NfsdCommand.THREADS]) == NfsdStatus(pool_threads=(4, 4), min_threads=2)
    boot(Kernel({THREADS: REPLIES[THREADS] + u32(5, 0)}))
    assert read([NfsdCommand.THREADS]).min_threads is None


def test_a_compound_has_its_operations(boot: Boot) -> None:
    # SEQUENCE PUTFH READ GETATTR
    row = rpc(started_us=NOW, version=4, procedure=1, operations=(53, 22, 25, 9))
    (compound,) = pending(boot, [row]).rpcs
    assert (compound.name, compound.operations) == ("NFSv4 READ GETATTR", (53, 22, 25, 9))


FULL = bytes.fromhex("20010db8000000000000000000000002")
SERVER = bytes.fromhex("20010db8000000000000000000000001")


def test_an_address_of_ipv6_is_whole_or_a_network(boot: Boot) -> None:
    (call,) = pending(boot, [rpc(started_us=NOW, addresses=ipv6(FULL, SERVER))]).rpcs
    assert (call.client, call.server) == ("2001:db8::2", "2001:db8::1")
    assert call.source == "[2001:db8::2]:703"
    # a kernel that keeps 16 bytes of struct sockaddr_in6: the flags are behind the client's half
    flags = (0x11).to_bytes(8, sys.byteorder)
    cut = ipv6(FULL[:8] + flags, SERVER[:8] + b"\x0a\x00\x02\xbf\0\0\0\0")
    (call,) = pending(boot, [rpc(started_us=NOW, addresses=cut)]).rpcs
    assert (call.client, call.server) == ("2001:db8::/64", "2001:db8::/64")


def test_an_rpc_without_an_address_has_none(boot: Boot) -> None:
    # such as one of AF_LOCAL
    (call,) = pending(boot, [rpc(started_us=NOW, addresses=b"")]).rpcs
    assert (call.client, call.client_port, call.source) == ("", 0, "an unknown address")


def test_a_server_with_thousands_of_rpcs_shows_the_oldest(boot: Boot) -> None:
    ages = list(range(8000))
    random.Random(1).shuffle(ages)  # noqa: S311
    listed = pending(boot, [rpc(age, started_us=NOW - age) for age in ages])
    assert (listed.count, listed.cut) == (8000, "")
    assert [call.age_us for call in listed.rpcs] == list(range(7999, 7999 - MOST_RPCS, -1))


def test_a_reply_has_a_limit(boot: Boot) -> None:
    listed = pending(boot, [rpc(started_us=NOW)] * 50_000)
    assert listed.cut == LIST_TOO_LONG
    assert len(listed.rpcs) == MOST_RPCS
    assert 10_000 < listed.count < 50_000


def test_a_list_without_its_end_is_said_to_be_cut(boot: Boot) -> None:
    # the kernel's socket sends nothing more
    assert pending(boot, [rpc(started_us=NOW)], rest=[]).cut == LIST_ENDS_EARLY
    # an error at the end: sequence 2, behind that for the family
    end = framed(DONE, 2, (-errno.ENOBUFS).to_bytes(4, sys.byteorder, signed=True))
    assert pending(boot, [rpc(started_us=NOW)], rest=[end]).cut == LIST_ENDS_EARLY


def test_a_message_that_did_not_fit_ends_the_list(boot: Boot) -> None:
    """Before "nfsd: fix netlink dumpit error handling for rpc_status_get".

    The kernel leaves the beginning of a message, whose header has the length of a header, and
    takes the attributes behind it for the next messages.
    """
    head = bytes([RPC_STATUS, 1, 0, 0])
    whole = framed(31, 2, head + rpc(started_us=NOW))
    part = framed(31, 2, head) + rpc(started_us=NOW)[:60]
    end = framed(DONE, 2, (-errno.ENOBUFS).to_bytes(4, sys.byteorder, signed=True))
    listed = pending(boot, [], rest=[whole + part + end])
    assert (listed.count, listed.cut) == (1, LIST_ENDS_EARLY)
    assert listed.rpcs[0].xid == 0x12345678


def test_an_rpc_without_a_number_ends_the_list(boot: Boot) -> None:
    listed = pending(boot, [rpc(started_us=NOW), u32(2, 0), rpc(started_us=NOW)])
    assert (listed.count, listed.cut) == (1, LIST_ENDS_EARLY)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_refused_permission_is_the_reason(number: int, boot: Boot) -> None:
    boot(Kernel(rpcs=number))
    status = read()
    assert (status.pending, status.unknown) == (None, {"rpc-status-get": os.strerror(number)})
    assert status.pool_threads == (4, 4)


def test_an_older_kernel_lacks_commands(boot: Boot) -> None:
    boot(Kernel({}))
    status = read()
    assert status.pending == PendingList()
    assert status.unknown == {name: too_old(name) for name in SINCE if name != "rpc-status-get"}


def test_a_kernel_without_the_family(boot: Boot) -> None:
    kernel = boot(Kernel(family=0))
    status = read()
    assert status == NfsdStatus(unknown=dict.fromkeys(SINCE, NO_FAMILY))
    assert kernel.closed


def test_a_stopped_nfsd_has_no_pending_rpc(boot: Boot) -> None:
    boot(Kernel(rpcs=errno.ENODEV))
    assert read([NfsdCommand.RPC_STATUS]) == NfsdStatus(pending=PendingList())


def test_a_kernel_without_generic_netlink(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr("nfsrdma_tools.host.nfsd_netlink.socket.socket", refused)
    assert set(read().unknown.values()) == {"Protocol not supported"}


def test_messages_of_other_requests_and_processes_do_not_count(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = boot(Kernel(rpcs=[rpc(started_us=NOW)]))
    honest = kernel.recvfrom
    forged = framed(31, 2, bytes([RPC_STATUS, 1, 0, 0]) + rpc(0xBAD, started_us=0))
    late = framed(31, 1, bytes([RPC_STATUS, 1, 0, 0]) + rpc(0xBAD, started_us=0))
    others = [(forged, (4711, 0)), (late, (0, 0))]

    def recvfrom(size: int) -> tuple[bytes, tuple[int, int]]:
        return others.pop() if others and kernel.asked else honest(size)

    monkeypatch.setattr(kernel, "recvfrom", recvfrom)
    listed = read([NfsdCommand.RPC_STATUS]).pending
    assert listed
    assert [call.xid for call in listed.rpcs] == [0x12345678]
    assert others == []


BAD = {
    "threads without a number": (THREADS, u32(2, 90)),
    "a name with a line of its own": (
        LISTENER,
        nest(1, text(2, "tcp\nevil"), attribute(1, bytes(128))),
    ),
    "another family of addresses": (LISTENER, nest(1, text(2, "tcp"), attribute(1, b"\1\0" * 64))),
    "a short address": (LISTENER, nest(1, text(2, "tcp"), attribute(1, b"\2\0\0\1"))),
    "a listener without an address": (LISTENER, nest(1, text(2, "tcp"))),
    "a mode with an escape": (POOL_MODE, text(1, "\x1b[31m")),
    "no mode": (POOL_MODE, b""),
    "an attribute longer than its message": (POOL_MODE, b"\xff\xff\x01\x00abcd"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_reply_is_unknown(name: str, boot: Boot) -> None:
    number, body = BAD[name]
    boot(Kernel({**REPLIES, number: body}))
    status = read()
    (command,) = (c for c in NfsdCommand if c.number == number)
    assert status.unknown == {command.label: INVALID_REPLY}


@pytest.mark.parametrize("seed", range(8))
def test_no_bytes_break_the_reader(seed: int, boot: Boot) -> None:
    """Replies with bytes changed and cut at random: each is a status, with reasons."""
    chance = random.Random(seed)  # noqa: S311

    def spoiled(data: bytes) -> bytes:
        made = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            made[chance.randrange(len(made))] = chance.randrange(256)
        return bytes(made[: chance.randrange(len(made) + 1)] if chance.random() < 0.3 else made)

    class Hostile(Kernel):
        def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
            data, sender = super().recvfrom(size)
            # without the family's number, the reader requests nothing else
            return (spoiled(data) if self.asked and data else data), sender

    rows = [rpc(n, started_us=NOW - n, version=4, procedure=1, operations=(53, 25)) for n in range(8)]  # fmt: skip  # noqa: E501
    for _ in range(120):
        boot(Hostile(rpcs=rows))
        status = read()
        assert set(status.unknown) <= set(SINCE)
        assert all(reason.isprintable() for reason in status.unknown.values())
        for call in status.pending.rpcs if status.pending else ():
            assert str(call).isprintable()
            assert call.age_us >= 0


@pytest.mark.parametrize(
    "reply",
    [b"", b"\0" * 3, framed(CONTROL, 1, b""), framed(CONTROL, 1, bytes(4)), framed(ERROR, 1, b"")],
)
def test_an_invalid_family_is_the_reason_of_all(
    reply: bytes, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = boot(Kernel())
    waiting = [reply]

    def recvfrom(_: int) -> tuple[bytes, tuple[int, int]]:
        if not waiting:
            raise TimeoutError
        return waiting.pop(), (0, 0)

    monkeypatch.setattr(kernel, "recvfrom", recvfrom)
    assert set(read().unknown) == set(SINCE)
    assert kernel.closed


def test_addresses_of_a_storage_are_whole() -> None:
    # the stand-in's own form: 128 bytes, the port in network order
    made = listener("tcp", 0x0801, "::1")
    assert len(made) == 4 + 8 + 132
    assert socket.inet_pton(socket.AF_INET6, "::1") in made and b"\x08\x01" in made


HELP = """
import sys
from typer.testing import CliRunner
from nfsrdma_tools.cli.main import app
for words in (["server", "status", "--help"], ["top", "--help"], ["server", "status"]):
    CliRunner().invoke(app, words)
print("pyroute2" in sys.modules, "nfsrdma_tools.host.nfsd_netlink" in sys.modules)
"""


def test_help_and_a_host_without_nfsd_do_not_import_the_library() -> None:
    if os.path.exists("/proc/net/rpc/nfsd"):  # noqa: PTH110 -- as the reader looks for it
        pytest.skip("this host has nfsd")
    printed = subprocess.check_output((sys.executable, "-c", HELP), text=True)
    assert printed == "False False\n"


def test_the_clock_is_the_kernels() -> None:
    """ktime_get() is CLOCK_MONOTONIC, from which Python's monotonic_ns is."""
    assert time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"
