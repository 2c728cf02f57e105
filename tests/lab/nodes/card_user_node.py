# SPDX-License-Identifier: Apache-2.0
"""Runs in a node: user-space programs over modelled cards; ``python3 - NAME`` prints JSON.

The tests do not import this file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pwd
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import c_uint
from pathlib import Path
from typing import Any

CLIENT, SERVER = "card0", "card1"
NETDEVS = {"card0": "v0", "card1": "v1"}
ADDRESS = "10.9.1.1"
PORT = 18600
SIZE = 65536
LIMIT = 300.0
SYSFS = Path("/sys/class/infiniband")
# enum ib_uverbs_write_cmds
POST_SEND = 28
MOST_RECEIVES = 16384
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


def call(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def wait_for(what: str, there: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not there():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)


def counters(card: str) -> dict[str, int]:
    # the core keeps what it has read for 10 ms
    time.sleep(0.05)
    folder = SYSFS / card / "ports/1/hw_counters"
    return {p.name: int(p.read_text()) for p in folder.iterdir() if p.name != "lifespan"}


def gid_index(card: str) -> int:
    folder = SYSFS / card / "ports/1"
    for index in range(16):
        with contextlib.suppress(OSError):
            # an empty entry has no type
            kind = (folder / "gid_attrs/types" / str(index)).read_text().strip()
            gid = (folder / "gids" / str(index)).read_text()
            if kind == "RoCE v2" and gid.startswith(GID):
                return index
    raise LookupError(f"{card} has no IPv4 GID")


def objects() -> Any:
    """The RDMA objects of each card, by kind."""
    found = json.loads(call("rdma", "-j", "resource"))
    return {one.pop("ifname"): one for one in found if one.pop("ifindex") is not None}


def start(argv: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    output = process.communicate(timeout=LIMIT)[0]
    return {"code": process.returncode, "output": output}


def listens(port: int) -> bool:
    return f":{port} " in call("ss", "-Hltn")


def both(
    server: Sequence[str], client: Sequence[str], ready: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Exit codes and outputs of a server and a client, the client's first."""
    first = start(server)
    try:
        wait_for("the server", lambda: ready() or first.poll() is not None)
        return [end(start(client)), end(first)]
    finally:
        first.kill()


def devinfo() -> Any:
    """The attributes that ibv_devinfo prints."""
    text = call("ibv_devinfo", "-v", "-d", CLIENT)
    return dict(re.findall(r"^\s*([\w ]+):\s+(.*\S)\s*$", text, re.MULTILINE))


def pingpong() -> Any:
    """ibv_rc_pingpong with polling and with events; it compares the data (-c)."""
    found = {}
    for name, more in (("poll", ()), ("events", ("-e",))):
        words = ("ibv_rc_pingpong", "-c", "-s", str(SIZE), "-n", "100", *more)
        server = (*words, "-d", SERVER, "-g", str(gid_index(SERVER)))
        client = (*words, "-d", CLIENT, "-g", str(gid_index(CLIENT)), ADDRESS)
        found[name] = both(server, client, lambda: listens(18515))
    return found


def rping() -> Any:
    """Rping, which compares the data (-V), and the counters of both cards."""
    before = {card: counters(card) for card in NETDEVS}
    words = ("rping", "-a", ADDRESS, "-C", "50", "-V", "-S", "32768")
    ends = both(
        (*words, "-s"), (*words, "-c"), lambda: ":7174" in call("rdma", "resource", "show", "cm_id")
    )
    changes = {
        card: {name: value - before[card][name] for name, value in counters(card).items()}
        for card in NETDEVS
    }
    return {"ends": ends, "counters": changes}


def perftest(card: str, *words: str) -> tuple[str, ...]:
    # without rdma_cm (-R) the server waits in a socket: it uses no CPU time
    return (*words, "-F", "-p", str(PORT), "-d", card, "-x", str(gid_index(card)))


def measured() -> Any:
    """The columns of the last line of perftest's figures: ``measured PROGRAM ARGUMENTS``."""
    ends = [perftest(card, *sys.argv[2:]) for card in (SERVER, CLIENT)]
    client, server = both(ends[0], (*ends[1], ADDRESS), lambda: listens(PORT))
    rows = re.findall(r"^ *\d+ +\d+ +[\d. \t]+$", client["output"], re.MULTILINE)
    if client["code"] or server["code"] or not rows:
        raise RuntimeError(f"{client} {server}")
    return [float(word) for word in rows[-1].split()]


@contextlib.contextmanager
def transfer() -> Any:
    """Two processes during a transfer without an end, the server's first."""
    words = ("ib_write_bw", "-D", "3600", "-s", "1048576")
    server = start(perftest(SERVER, *words))
    client = None
    try:
        wait_for("the server", lambda: listens(PORT))
        client = start((*perftest(CLIENT, *words), ADDRESS))
        before = counters(CLIENT)["writes"]
        wait_for("transfers", lambda: counters(CLIENT)["writes"] > before + 100)
        yield server, client
    finally:
        for process in filter(None, (server, client)):
            process.kill()
            process.communicate()


def killed() -> Any:
    """SIGKILL for the client, the server, or both, during a transfer: what remains of each."""
    found = {}
    for name, which in (("client", [1]), ("server", [0]), ("both", [0, 1])):
        before = objects()
        with transfer() as processes:
            during = objects()
            for number in which:
                processes[number].send_signal(signal.SIGKILL)
            for card in ((SERVER, CLIENT)[number] for number in which):
                # the other process still runs
                wait_for("objects", lambda c=card, then=before: objects()[c] == then[c])
        grown = during[CLIENT]["mr"] > before[CLIENT]["mr"]
        found[name] = {"grown": grown, "same": objects() == before}
    return found


def add(card: str) -> None:
    call("rdma", "link", "add", card, "type", "nfsrdma_card", "netdev", NETDEVS[card])
    wait_for(card, lambda: f"link {card}/1 state ACTIVE" in call("rdma", "link"))


def removed() -> Any:
    """Delete a card during a transfer: the processes fail."""
    with transfer() as processes:
        call("rdma", "link", "delete", CLIENT)
        gone = not (SYSFS / CLIENT).exists()
        failed = [process.wait(LIMIT) > 0 for process in processes]
    add(CLIENT)
    again = [one["code"] for one in rping()["ends"]]
    return {"gone": gone, "failed": failed, "rping": again}


def unloaded() -> Any:
    """Unload the module during a transfer, and load it again."""
    with transfer() as processes:
        call("rmmod", "nfsrdma_card")
        failed = [process.wait(LIMIT) > 0 for process in processes]
    call("insmod", "/run/nfsrdma_card.ko")
    for card in NETDEVS:
        add(card)
    return {"failed": failed, "rping": [one["code"] for one in rping()["ends"]]}


def locked() -> Any:
    """Whether a program starts for a user whose limit of locked memory is 64 KiB, by its buffer."""
    limit = ("prlimit", "--memlock=65536:65536", "ibv_rc_pingpong")
    words = (*limit, "-d", SERVER, "-g", str(gid_index(SERVER)))
    found = {}
    for size in (4096, 1 << 20):
        process = subprocess.Popen(
            (*words, "-s", str(size)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            user="nobody", group="nogroup", extra_groups=(),
        )  # fmt: skip
        wait_for("the program", lambda p=process: p.poll() is not None or listens(18515))
        found[size] = process.poll() is None
        process.kill()
        process.communicate()
    return found


def rings() -> Any:
    """Completion queues of a user whose limit of locked memory is 64 KiB, and their memory."""
    return limited(rings_of_user)


def receive_rings() -> Any:
    """Queue pairs of such a user, by the receives that they have room for, and their memory."""
    return limited(receive_rings_of_user)


def limited(work: Callable[[], Any]) -> Any:
    """What a function returns for a user whose limit of locked memory is 64 KiB."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    with os.fdopen(writer, "w") as pipe:
        json.dump(work(), pipe)
    os._exit(0)


def pinned() -> int:
    """Kibibytes of this process that devices have pinned."""
    text = Path("/proc/self/status").read_text()
    return int(re.findall(r"^VmPin:\s+(\d+) kB$", text, re.MULTILINE)[0])


def rings_of_user() -> Any:
    from pyverbs import cq, device

    context = device.Context(name=CLIENT)
    created: list[Any] = []
    start = pinned()
    refused = False
    while not refused and len(created) < 64:
        try:
            # 256 elements of 48 bytes and two cache lines: 4 pages
            created.append(cq.CQ(context, 256))
        except Exception:
            refused = True
    during, number = pinned(), len(created)
    for one in created:
        one.close()
    cq.CQ(context, 256).close()
    return {"number": number, "start": start, "during": during, "end": pinned()}


def receive_rings_of_user() -> Any:
    from pyverbs import cq, device, enums, pd, qp

    context = device.Context(name=CLIENT)
    domain, queue = pd.PD(context), cq.CQ(context, 16)

    def created(receives: int) -> Any:
        room = qp.QPCap(max_send_wr=1, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        init = qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=queue, rcq=queue, cap=room)
        return qp.QP(domain, init, qp.QPAttr(port_num=1))

    start, made = pinned(), {}
    for receives in (256, MOST_RECEIVES):
        try:
            one = created(receives)
        except Exception:
            made[receives] = 0
        else:
            made[receives] = pinned() - start
            one.close()
    return {"pinned": made, "left": pinned() - start}


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
        found: list[int] = []

        def polled() -> bool:
            found.extend(wc.status for wc in self.cq.poll(count - len(found))[1])
            return len(found) == count

        wait_for("a completion", polled)
        return found


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


def checked() -> Any:
    """The completion statuses of permitted and refused requests."""
    from pyverbs import enums

    write, read = enums.IBV_WR_RDMA_WRITE, enums.IBV_WR_RDMA_READ
    own: Callable[[End], Any] = lambda end_: buffer(end_.region)  # noqa: E731
    return {
        "send": sent(own, own),
        "receive into read-only memory": sent(own, lambda e: buffer(e.readable)),
        "write": accessed(write, own, lambda e: remote(e.region)),
        "read": accessed(read, own, lambda e: remote(e.region)),
        "key 0": accessed(write, lambda e: buffer(e.region, key=0), lambda e: remote(e.region)),
        "local key of another domain": accessed(
            write, lambda e: buffer(e.foreign), lambda e: remote(e.region)
        ),
        "local bounds": accessed(
            write, lambda e: buffer(e.region, offset=SIZE - 4095), lambda e: remote(e.region)
        ),
        "read into read-only memory": accessed(
            read, lambda e: buffer(e.readable), lambda e: remote(e.region)
        ),
        "remote key": accessed(write, own, lambda e: remote(e.region, key=e.region.rkey ^ 1)),
        "remote key of another domain": accessed(write, own, lambda e: remote(e.foreign)),
        "remote bounds": accessed(write, own, lambda e: remote(e.region, offset=SIZE - 4095)),
        "remote rights to write": accessed(write, own, lambda e: remote(e.private)),
        "remote rights to read": accessed(read, own, lambda e: remote(e.readable)),
    }


def uninvited() -> Any:
    """A peer's Send with invalidate names a region of user memory; the region stays valid."""
    from pyverbs import enums

    client, server = connected()
    server.receive(buffer(server.region))
    key = server.region.rkey
    client.post(enums.IBV_WR_SEND_WITH_INV, buffer(client.region), imm_data=key)
    return client.statuses(1) + server.statuses(1)


def inline() -> Any:
    """Inline data is copied at the post: a later change of the buffer has no effect."""
    from pyverbs import enums

    client, server = connected()
    server.receive(buffer(server.region))
    client.private.write("a" * 200, 200)
    flags = enums.IBV_SEND_INLINE | enums.IBV_SEND_SIGNALED
    client.post(enums.IBV_WR_SEND, (client.private.buf, 200, 0), send_flags=flags)
    client.private.write("b" * 200, 200)
    statuses = client.statuses(1) + server.statuses(1)
    refused = []
    try:
        client.post(enums.IBV_WR_SEND, (client.private.buf, 257, 0), send_flags=flags)
    except Exception as error:
        refused.append(type(error).__name__)
    same = server.region.read(200, 0) == b"a" * 200
    return {"statuses": statuses, "same": same, "refused": refused}


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


def requested() -> Any:
    """A process writes requests by itself: what each doorbell says, and posts of two of them."""
    from pyverbs import enums

    client, server = connected()
    client.post(enums.IBV_WR_RDMA_WRITE, buffer(client.region), remote(server.region))
    statuses = client.statuses(1)
    # one request, which the card has taken: a completion queue has zeros behind its head
    (at,) = (first for first, _ in shared_memory() if (c_uint * 2).from_address(first)[:] == [1, 1])
    links = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    opened = [int(path.name) for path in links if "uverbs" in str(path.readlink())]
    places = [(descriptor, handle) for descriptor in opened for handle in range(32)]
    head: Any = (c_uint * 2).from_address(at)
    request: Any = (c_uint * 10).from_address(at + 64)
    good = request[:]
    found = {}
    # the server's queue pair has no request; other objects are no queue pairs
    (place,) = (each for each in places if not doorbell(*each) and client.cq.poll(1)[0])
    for name, changes in BAD.items():
        head[0], head[1], request[:] = 1, 7, good
        for field, value in changes.items():
            (head if field == COUNT else request)[field & 15] = value
        found[name] = [doorbell(*place), head[1]]
    head[0], request[:] = 1, good
    found["good"] = [doorbell(*place), head[1]]
    return {"found": found, "statuses": statuses + client.statuses(1)}


def overwritten() -> Any:
    """A process overwrites its queues: its queue pair breaks, the card works on."""
    from pyverbs import enums

    client, server = connected()
    rings = shared_memory()
    for first, last in rings:
        ctypes.memset(first, 0xA5, last - first)
    client.post(enums.IBV_WR_RDMA_WRITE, buffer(client.region), remote(server.region))
    broken = client.qp.query(enums.IBV_QP_STATE)[0].qp_state == enums.IBV_QPS_ERR
    return {"rings": len(rings), "broken": broken, "rping": [x["code"] for x in rping()["ends"]]}


print(json.dumps(globals()[sys.argv[1]]()))
