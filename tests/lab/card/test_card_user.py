# SPDX-License-Identifier: Apache-2.0
"""User-space verbs over the modelled card: programs, checks, figures, cleanup after SIGKILL."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import multiprocessing
import os
import pwd
import re
import resource
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_uint
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.labs import cards_lab
from testbed.node import modelled
from testbed.node.programs import call, until
from testbed.remote import on

# enum ibv_wc_status
SUCCESS, LOC_PROT, LOC_ACCESS, REM_ACCESS, REM_OP = 0, 4, 8, 10, 11
# microseconds of the CPU for a Read: posting, the timer's interrupt, polling
CPU_US = 10
CLIENT, SERVER = "card0", "card1"
ADDRESS = "10.9.1.1"
PORT = 18600
SIZE = 65536
LIMIT = 300
# transfers of 1 MiB that take longer than any test; a program with events cannot work for a time
WITHOUT_END = 4_000_000
# enum ib_uverbs_write_cmds
POST_SEND = 28
# requests that the card refuses: words of struct card_abi_send, or their number
COUNT, OPCODE, FLAGS, ELEMENTS, LENGTH = 16, 5, 6, 8, 9
INLINE, REG_MR, LOCAL_INV, READ = 8, 0x20, 7, 4
MOST = 0xFFFFFFFF
BAD = {
    "more requests than the queue pair has": {COUNT: 65},
    "4 Gi requests": {COUNT: MOST},
    "a registration": {OPCODE: REG_MR},
    "an invalidation": {OPCODE: LOCAL_INV},
    "no opcode": {OPCODE: MOST},
    "more elements than the queue pair has": {ELEMENTS: 3},
    "4 Gi elements": {ELEMENTS: MOST},
    "too much inline data": {FLAGS: INLINE, LENGTH: 257},
    "4 GiB of inline data": {FLAGS: INLINE, LENGTH: MOST},
    "an inline Read": {FLAGS: INLINE, OPCODE: READ, LENGTH: 16},
}
# a mapped IPv4 address
GID = "0000:0000:0000:0000:0000:ffff:"


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab on the instruction clock with two modelled cards and their provider."""
    with cards_lab(pytestconfig, "cardu", clock="instructions", link="none") as lab:
        yield lab


# --- programs ---


def gid_index(card: str) -> int:
    folder = modelled.SYSFS / card / "ports/1"
    for index in range(16):
        with contextlib.suppress(OSError):
            # an empty entry has no type
            kind = (folder / "gid_attrs/types" / str(index)).read_text().strip()
            gid = (folder / "gids" / str(index)).read_text()
            if kind == "RoCE v2" and gid.startswith(GID):
                return index
    raise LookupError(f"{card} has no IPv4 GID")


class Ended(NamedTuple):
    """The exit status and output of a program."""

    status: int
    output: str


def start(argv: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> Ended:
    output = process.communicate(timeout=LIMIT)[0]
    return Ended(process.returncode, output)


def listens(port: int) -> bool:
    return f":{port} " in call("ss", "-Hltn")


def both(
    server: Sequence[str], client: Sequence[str], ready: Callable[[], bool]
) -> tuple[Ended, Ended]:
    """The ends of a client and of a server, each of which must succeed."""
    process = start(server)
    try:
        until("the server", lambda: ready() or process.poll() is not None, LIMIT)
        ends = end(start(client)), end(process)
    finally:
        process.kill()
    assert not any(program.status for program in ends), ends
    return ends


@on("client")
def devinfo() -> dict[str, str]:
    """The attributes that ibv_devinfo prints."""
    text = call("ibv_devinfo", "-v", "-d", CLIENT)
    return dict(re.findall(r"^\s*([\w ]+):\s+(.*\S)\s*$", text, re.MULTILINE))


def test_ibv_devinfo_shows_the_card(cards: Lab) -> None:
    attributes = devinfo(cards)
    assert attributes["fw_ver"].startswith("nfsrdma_card ")
    assert attributes["state"] == "PORT_ACTIVE (4)"
    assert attributes["link_layer"] == "Ethernet"


@on("client", timeout=1800)
def pingpong() -> None:
    """With polling and with events, ibv_rc_pingpong compares the data of its messages (-c)."""
    for more in ((), ("-e",)):
        words = ("ibv_rc_pingpong", "-c", "-s", str(SIZE), "-n", "100", *more)
        server = (*words, "-d", SERVER, "-g", str(gid_index(SERVER)))
        client = (*words, "-d", CLIENT, "-g", str(gid_index(CLIENT)), ADDRESS)
        for program in both(server, client, lambda: listens(18515)):
            # 100 messages in both directions
            assert f"{2 * 100 * SIZE} bytes in" in program.output
            assert "invalid" not in program.output


def test_ibv_rc_pingpong_compares_its_data(cards: Lab) -> None:
    pingpong(cards)


def compare_by_rping() -> None:
    """Rping compares the data (-V)."""
    words = ("rping", "-a", ADDRESS, "-C", "50", "-V", "-S", "32768")
    ready = lambda: ":7174" in call("rdma", "resource", "show", "cm_id")  # noqa: E731
    both((*words, "-s"), (*words, "-c"), ready)


@on("client", timeout=1800)
def rping() -> None:
    before = {card: modelled.counters(card) for card in modelled.CARDS}
    compare_by_rping()
    changes = {card: modelled.changes(card, before[card]) for card in modelled.CARDS}
    # the server reads each message of the client, and writes it back
    assert changes[SERVER]["reads"] == changes[SERVER]["writes"] == 50
    assert changes[SERVER]["bytes"] >= 2 * 50 * 32768
    for card in changes.values():
        assert (card["refused"], card["retries"], card["lost"]) == (0, 0, 0)


def test_rping_compares_its_data(cards: Lab) -> None:
    rping(cards)


def perftest(card: str, *words: str) -> tuple[str, ...]:
    # without rdma_cm (-R) the server waits in a socket: it uses no CPU time
    return (*words, "-F", "-p", str(PORT), "-d", card, "-x", str(gid_index(card)))


@on("client", timeout=1800)
def columns(*words: str) -> list[float]:
    """The columns of the last line of perftest's figures."""
    server, client = (perftest(card, *words) for card in (SERVER, CLIENT))
    output = both(server, (*client, ADDRESS), lambda: listens(PORT))[0].output
    rows = re.findall(r"^ *\d+ +\d+ +[\d. \t]+$", output, re.MULTILINE)
    return [float(word) for word in rows[-1].split()]


def figures(lab: Lab, link: str, *words: str) -> list[float]:
    """The columns that a program of perftest prints, with the cards on a link."""
    lab.set_link(link)
    try:
        return columns(lab, *words)
    finally:
        lab.set_link("none")


# of a Send's ends, two processes that share a CPU, each waits for the other to be woken
@pytest.mark.parametrize(
    ("program", "least"), (("ib_write_bw", 0.98), ("ib_read_bw", 0.98), ("ib_send_bw -e", 0.8))
)
def test_perftest_agrees_with_the_rate_of_the_wire(cards: Lab, program: str, least: float) -> None:
    # with 54 ms of requests posted, the card works on while other processes have the CPU
    words = ("-s", "65536", "-n", "2000", "-t", "1024", "--report_gbits")
    size, _, _, rate, _ = figures(cards, "10gbit/100us", *program.split(), *words)
    # 58 bytes of headers in each packet of 4096, 16 more for a Read or Write
    headers = 16 * 58 + (16 if program == "ib_write_bw" else 0)
    expected = 10 * size / (size + headers)
    assert expected * least < rate < expected * 1.02


def test_perftest_agrees_with_the_latency_of_the_wire(cards: Lab) -> None:
    words = ("ib_read_lat", "-s", "8", "-n", "200")
    short = figures(cards, "10gbit/20us", *words)[4]
    long = figures(cards, "10gbit/220us", *words)[4]
    # request of 74 bytes, answer of 66
    wire = (74 + 66) * 8 / 10_000
    assert 20 + wire < short < 20 + wire + CPU_US
    assert long - short == pytest.approx(200, rel=0.01)


# --- limits of pinned memory, for a user whose limit of locked memory is 64 KiB ---


@on("client")
def starts(size: int) -> bool:
    """Whether a program with a buffer of ``size`` bytes starts."""
    limit = ("prlimit", "--memlock=65536:65536", "ibv_rc_pingpong", "-s", str(size))
    process = subprocess.Popen(
        (*limit, "-d", SERVER, "-g", str(gid_index(SERVER))),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        user="nobody", group="nogroup", extra_groups=(),
    )  # fmt: skip
    until("the program", lambda: process.poll() is not None or listens(18515), LIMIT)
    running = process.poll() is None
    process.kill()
    process.communicate()
    return running


def test_pinned_memory_has_a_limit(cards: Lab) -> None:
    assert starts(cards, 4096)
    assert not starts(cards, 1 << 20)


def as_limited_user(check: Callable[[], None]) -> None:
    def run() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
        check()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0, "see the output"


def pinned() -> int:
    """Kibibytes of this process that devices have pinned."""
    text = Path("/proc/self/status").read_text()
    return int(re.findall(r"^VmPin:\s+(\d+) kB$", text, re.MULTILINE)[0])


def check_completion_queues() -> None:
    from pyverbs import cq, device

    context = device.Context(name=CLIENT)
    queues: list[Any] = []
    assert pinned() == 0
    # 256 elements of 48 bytes and two cache lines: 4 pages
    with contextlib.suppress(Exception):
        while len(queues) < 64:
            queues.append(cq.CQ(context, 256))
    assert (len(queues), pinned()) == (4, 64)
    for queue in queues:
        queue.close()
    cq.CQ(context, 256).close()
    assert pinned() == 0


@on("client")
def completion_queues() -> None:
    as_limited_user(check_completion_queues)


def test_memory_of_completion_queues_counts_as_pinned(cards: Lab) -> None:
    completion_queues(cards)


def check_queue_pairs() -> None:
    from pyverbs import cq, device, enums, pd, qp

    context = device.Context(name=CLIENT)
    domain, queue = pd.PD(context), cq.CQ(context, 16)

    def created(receives: int) -> Any:
        room = qp.QPCap(max_send_wr=1, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        init = qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=queue, rcq=queue, cap=room)
        return qp.QP(domain, init, qp.QPAttr(port_num=1))

    start = pinned()
    pair = created(256)
    # in the kernel: 256 receives of 40 bytes and a request; in the process: a page of requests
    assert 8 <= pinned() - start <= 20
    pair.close()
    with contextlib.suppress(Exception):
        created(16384)
        raise SystemExit("16384 receives have room")
    assert pinned() == start


@on("client")
def queue_pairs() -> None:
    as_limited_user(check_queue_pairs)


def test_rings_of_queue_pairs_count_as_pinned(cards: Lab) -> None:
    queue_pairs(cards)


# --- transfers that end early ---


def objects() -> dict[str, dict[str, int]]:
    """The RDMA objects of each card, by kind."""
    rows = json.loads(call("rdma", "-j", "resource"))
    return {row.pop("ifname"): row for row in rows if row.pop("ifindex") is not None}


@contextlib.contextmanager
def transfer() -> Any:
    """Two processes during a transfer without an end, the server's first.

    They wait for events: a process that polls an empty ring does not see that its card was removed.
    """
    words = ("ib_read_bw", "-n", str(WITHOUT_END), "-s", "1048576", "--events")
    server = start(perftest(SERVER, *words))
    client = None
    try:
        until("the server", lambda: listens(PORT) or server.poll() is not None, LIMIT)
        client = start((*perftest(CLIENT, *words), ADDRESS))
        before = modelled.counters(CLIENT)["reads"]
        until(
            "transfers",
            lambda: client.poll() is not None or modelled.counters(CLIENT)["reads"] > before + 100,
            LIMIT,
        )
        assert server.poll() is client.poll() is None
        yield server, client
    finally:
        for process in filter(None, (server, client)):
            process.kill()
            process.communicate()


@on("client", timeout=1800)
def kill(*which: int) -> None:
    """SIGKILL for the server (0), the client (1), or both, during a transfer."""
    before = objects()

    def are_back(card: str) -> bool:
        return objects()[card] == before[card]

    with transfer() as processes:
        during = objects()
        for number in which:
            processes[number].send_signal(signal.SIGKILL)
        for number in which:
            # the other process still runs
            until("objects", partial(are_back, (SERVER, CLIENT)[number]), LIMIT)
    assert during[CLIENT]["mr"] > before[CLIENT]["mr"]
    assert objects() == before


def test_sigkill_during_a_transfer_leaves_no_object(cards: Lab) -> None:
    kill(cards, 1)
    kill(cards, 0)
    kill(cards, 0, 1)


@on("client", timeout=1800)
def ended_by(*command: str) -> None:
    """Both processes of a transfer fail upon a command; afterwards the cards work."""
    try:
        with transfer() as processes:
            call(*command)
            assert not (modelled.SYSFS / CLIENT).exists()
            assert all(process.wait(LIMIT) > 0 for process in processes)
    finally:
        modelled.restore()
    compare_by_rping()


def test_a_card_can_be_removed_during_a_transfer(cards: Lab) -> None:
    ended_by(cards, "rdma", "link", "delete", CLIENT)


def test_the_module_unloads_during_a_transfer(cards: Lab) -> None:
    ended_by(cards, "rmmod", "nfsrdma_card")


# --- verbs, by rdma-core's Python binding ---


class End:
    """A queue pair with a buffer of each kind of access."""

    def __init__(self, card: str) -> None:
        from pyverbs import cq, device, enums, mr, pd, qp

        rights = enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_READ
        self.card = card
        self.context = device.Context(name=card)
        self.domain, self.other_domain = pd.PD(self.context), pd.PD(self.context)
        self.cq = cq.CQ(self.context, 16)
        local = enums.IBV_ACCESS_LOCAL_WRITE
        self.region = mr.MR(self.domain, SIZE, local | rights)
        self.private = mr.MR(self.domain, SIZE, local)
        self.readable = mr.MR(self.domain, SIZE, 0)
        self.foreign = mr.MR(self.other_domain, SIZE, local | rights)
        capacities = qp.QPCap(
            max_send_wr=64, max_recv_wr=64, max_send_sge=2, max_recv_sge=2, max_inline_data=256
        )
        init = qp.QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacities, sq_sig_all=1
        )
        attributes = qp.QPAttr(port_num=1)
        attributes.qp_access_flags = local | rights
        self.qp = qp.QP(self.domain, init, attributes)

    def connect(self, peer: End) -> None:
        from pyverbs import addr, enums, qp

        route = addr.GlobalRoute(
            dgid=peer.context.query_gid(1, gid_index(peer.card)),
            sgid_index=gid_index(self.card), hop_limit=64,
        )  # fmt: skip
        attributes = qp.QPAttr(port_num=1)
        attributes.path_mtu = enums.IBV_MTU_4096
        attributes.dest_qp_num = peer.qp.qp_num
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4
        attributes.min_rnr_timer, attributes.timeout = 12, 10
        attributes.retry_cnt, attributes.rnr_retry = 3, 3
        attributes.ah_attr = addr.AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rtr(attributes)
        attributes = qp.QPAttr(port_num=1)
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 10, 3, 3
        attributes.max_rd_atomic = 4
        self.qp.to_rts(attributes)

    def post(self, opcode: int, local: Any, remote: Any = None, **more: Any) -> None:
        """Post a request with ``local`` (address, length, key) and ``remote`` (key, address)."""
        from pyverbs import wr

        request = wr.SendWR(opcode=opcode, num_sge=1, sg=[wr.SGE(*local)], **more)
        if remote:
            request.set_wr_rdma(*remote)
        self.qp.post_send(request)

    def receive(self, buffer: Any) -> None:
        from pyverbs import wr

        self.qp.post_recv(wr.RecvWR(num_sge=1, sg=[wr.SGE(*buffer)]))

    def statuses(self, count: int) -> list[int]:
        completed: list[int] = []

        def polled() -> bool:
            completed.extend(wc.status for wc in self.cq.poll(count - len(completed))[1])
            return len(completed) == count

        until("a completion", polled, LIMIT)
        return completed


def connected() -> tuple[End, End]:
    ends = End(CLIENT), End(SERVER)
    for end_, peer in (ends, ends[::-1]):
        end_.connect(peer)
    return ends


def buffer(region: Any, length: int = 4096, offset: int = 0, key: int | None = None) -> Any:
    return (region.buf + offset, length, region.lkey if key is None else key)


def remote(region: Any, offset: int = 0, key: int | None = None) -> Any:
    return (region.rkey if key is None else key, region.buf + offset)


def sent(local: Callable[[End], Any], into: Callable[[End], Any], **more: Any) -> list[int]:
    """Statuses of a Send and of its receive."""
    from pyverbs import enums

    client, server = connected()
    server.receive(into(server))
    opcode = more.pop("opcode", enums.IBV_WR_SEND)
    client.post(opcode, local(client), **more)
    return client.statuses(1) + server.statuses(1)


def accessed(opcode: int, local: Callable[[End], Any], there: Callable[[End], Any]) -> int:
    """Status of a Read or Write."""
    client, server = connected()
    client.post(opcode, local(client), there(server))
    return client.statuses(1)[0]


@on("client", timeout=1800)
def checked() -> None:
    """Compare the completion statuses of permitted and refused requests."""
    from pyverbs import enums

    write, read = enums.IBV_WR_RDMA_WRITE, enums.IBV_WR_RDMA_READ
    own: Callable[[End], Any] = lambda e: buffer(e.region)  # noqa: E731
    peer: Callable[[End], Any] = lambda e: remote(e.region)  # noqa: E731
    end_of = {"offset": SIZE - 4095}
    cases = {
        "send": (sent(own, own), [SUCCESS, SUCCESS]),
        "receive into read-only memory": (
            sent(own, lambda e: buffer(e.readable)), [REM_OP, LOC_PROT],
        ),
        "write": (accessed(write, own, peer), SUCCESS),
        "read": (accessed(read, own, peer), SUCCESS),
        "key 0": (accessed(write, lambda e: buffer(e.region, key=0), peer), LOC_PROT),
        "local key of another domain": (
            accessed(write, lambda e: buffer(e.foreign), peer), LOC_PROT,
        ),
        "local bounds": (accessed(write, lambda e: buffer(e.region, **end_of), peer), LOC_PROT),
        "read into read-only memory": (
            accessed(read, lambda e: buffer(e.readable), peer), LOC_PROT,
        ),
        "remote key": (
            accessed(write, own, lambda e: remote(e.region, key=e.region.rkey ^ 1)), REM_ACCESS,
        ),
        "remote key of another domain": (
            accessed(write, own, lambda e: remote(e.foreign)), REM_ACCESS,
        ),
        "remote bounds": (accessed(write, own, lambda e: remote(e.region, **end_of)), REM_ACCESS),
        "remote rights to write": (accessed(write, own, lambda e: remote(e.private)), REM_ACCESS),
        "remote rights to read": (accessed(read, own, lambda e: remote(e.readable)), REM_ACCESS),
    }  # fmt: skip
    wrong = {name: case for name, case in cases.items() if case[0] != case[1]}
    assert wrong == {}, wrong


def test_each_request_is_checked_as_for_the_kernel(cards: Lab) -> None:
    checked(cards)


@on("client")
def uninvited() -> None:
    """A peer's Send with invalidate names a region of user memory; the region stays valid."""
    from pyverbs import enums

    client, server = connected()
    server.receive(buffer(server.region))
    key = server.region.rkey
    client.post(enums.IBV_WR_SEND_WITH_INV, buffer(client.region), imm_data=key)
    assert client.statuses(1) + server.statuses(1) == [REM_ACCESS, LOC_ACCESS]


def test_a_peer_cannot_invalidate_user_memory(cards: Lab) -> None:
    uninvited(cards)


@on("client")
def inline() -> None:
    """Inline data is copied at the post: a later change of the buffer has no effect."""
    from pyverbs import enums, pyverbs_error

    client, server = connected()
    server.receive(buffer(server.region))
    client.private.write("a" * 200, 200)
    flags = enums.IBV_SEND_INLINE | enums.IBV_SEND_SIGNALED
    client.post(enums.IBV_WR_SEND, (client.private.buf, 200, 0), send_flags=flags)
    client.private.write("b" * 200, 200)
    assert client.statuses(1) + server.statuses(1) == [SUCCESS, SUCCESS]
    assert server.region.read(200, 0) == b"a" * 200
    try:
        # more than max_inline_data
        client.post(enums.IBV_WR_SEND, (client.private.buf, 257, 0), send_flags=flags)
    except pyverbs_error.PyverbsRDMAError:
        return
    raise AssertionError("257 bytes were posted")


def test_inline_data_is_copied_at_the_post(cards: Lab) -> None:
    inline(cards)


def shared_memory() -> list[tuple[int, int]]:
    """The queues of this process: the only shared memory without a name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0] for line in lines if line.endswith("/dev/zero (deleted)")]
    return [(int(first, 16), int(last, 16)) for first, last in (x.split("-") for x in spans)]


def doorbell(descriptor: int, handle: int) -> str:
    """Have a queue pair post what its memory has; returns the name of the error."""
    answer = ctypes.create_string_buffer(4)
    # struct ib_uverbs_cmd_hdr and ib_uverbs_post_send, without a request
    words = (POST_SEND, 8, 1, ctypes.addressof(answer), handle, 0, 0, 128)
    try:
        os.write(descriptor, struct.pack("=IHHQIIII", *words))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


@on("client")
def requested() -> None:
    """A process writes requests by itself, and posts with two doorbells of the provider."""
    from pyverbs import enums

    client, server = connected()
    client.post(enums.IBV_WR_RDMA_WRITE, buffer(client.region), remote(server.region))
    assert client.statuses(1) == [SUCCESS]
    # one request, which the card has taken: a completion queue has zeros behind its head
    (at,) = (first for first, _ in shared_memory() if (c_uint * 2).from_address(first)[:] == [1, 1])
    links = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    opened = [int(path.name) for path in links if "uverbs" in str(path.readlink())]
    places = [(descriptor, handle) for descriptor in opened for handle in range(32)]
    head: Any = (c_uint * 2).from_address(at)
    request: Any = (c_uint * 10).from_address(at + 64)
    good = request[:]
    # the server's queue pair has no request; other objects are no queue pairs
    (place,) = (each for each in places if not doorbell(*each) and client.cq.poll(1)[0])
    for name, changes in BAD.items():
        head[0], head[1], request[:] = 1, 7, good
        for field, value in changes.items():
            (head if field == COUNT else request)[field & 15] = value
        # the error, and the number of requests that the card has taken
        assert [doorbell(*place), head[1]] == ["EINVAL", 0], name
    head[0], request[:] = 1, good
    assert [doorbell(*place), head[1]] == ["", 1]
    assert client.statuses(1) == [SUCCESS]


def test_the_card_refuses_requests_that_no_provider_writes(cards: Lab) -> None:
    requested(cards)


@on("client", timeout=1800)
def overwritten() -> None:
    """A process overwrites its queues: its queue pair breaks, the card works on."""
    from pyverbs import enums

    client, server = connected()
    rings = shared_memory()
    # two completion queues, and the requests of two queue pairs
    assert len(rings) == 4
    for first, last in rings:
        ctypes.memset(first, 0xA5, last - first)
    client.post(enums.IBV_WR_RDMA_WRITE, buffer(client.region), remote(server.region))
    assert client.qp.query(enums.IBV_QP_STATE)[0].qp_state == enums.IBV_QPS_ERR
    compare_by_rping()


def test_overwritten_queues_break_only_their_owner(cards: Lab) -> None:
    overwritten(cards)
