# SPDX-License-Identifier: Apache-2.0
"""The counters of NFS mounts: /proc/self/mountstats, statvers 1.0 and 1.1.

A mount has one ``xprt:`` line per connection (nconnect), and each transport has its own columns
(xs_tcp_print_stats and xs_udp_print_stats in net/sunrpc/xprtsock.c, xprt_rdma_print_stats in
net/sunrpc/xprtrdma/transport.c).  Per operation the kernel prints nine columns, eight before
statvers 1.1 (_print_rpc_iostats in net/sunrpc/stats.c).  Operations are counted per mount;
a connection's counters include all mounts that share it.

The kernel prints the implementation id of an NFSv4.1 server as the server sent it, line breaks
included (show_implementation_id in fs/nfs/super.c).  So such a server can put lines into the
records of its own mounts, whole records of other mounts among them.  mountinfo has the same mounts
in the same order and no text of a server, and tells which records are the kernel's.
"""

from __future__ import annotations

import bisect
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from operator import sub
from pathlib import Path
from typing import NamedTuple, TypeVar

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfs.mountinfo import Entry

__all__ = [
    "COLUMNS",
    "DATA",
    "NOTHING",
    "STATES",
    "ByteCounts",
    "MountStats",
    "Operation",
    "Reader",
    "Xprt",
    "difference",
    "of",
    "parse",
    "read",
    "read_all",
    "read_at",
]

_HEAD = re.compile(
    r"^device ([^ \n]*) mounted on ([^ \n]+) with fstype (nfs4?)(?: statvers=[^\n]*)?$",
    re.MULTILINE,
)
_IMPL_ID = "\n\timpl_id:\t"
_IMPL_ID_END = re.compile(r"',date='[0-9]+,[0-9]+'\n\tcaps:\t")
# name and domain have at most NFS4_OPAQUE_LIMIT bytes each, 1024.  The kernel's own lines up to the
# next record are longer, because there is one for each of 55 and more operations
_IMPL_ID_MOST = 2 * 1024 + 100
# a terminal prints blanks for the kernel's tabs
_TAGGED = re.compile(r"^[ \t]+(opts|age|bytes|xprt):([^\n]*)$", re.MULTILINE)
_OPERATION = re.compile(r"\s*([A-Za-z0-9_]+): ([0-9 ]+)")
_COMMON = (
    "connect_count connect_time idle_time sends recvs bad_xids req_u bklog_u"  # of tcp and rdma
)
COLUMNS = {
    proto: tuple(names.split())
    for proto, names in {
        "tcp": f"port bind_count {_COMMON} max_slots sending_u pending_u",
        "udp": "port bind_count sends recvs bad_xids req_u bklog_u max_slots sending_u pending_u",
        "rdma": f"port bind_count {_COMMON} read_chunk_count write_chunk_count reply_chunk_count "
        "total_rdma_request total_rdma_reply pullup_copy_count fixup_copy_count "
        "hardway_register_count failed_marshal_count bad_reply_count nomsg_call_count "
        "mrs_recycled mrs_orphaned mrs_allocated local_inv_needed empty_sendctx_q "
        "reply_waits_for_send",
    }.items()
}
"""The columns of an ``xprt:`` line after the transport's name."""
# NFSv4.2 over TCP uses READ_PLUS if the kernel has it, over RDMA never
# (nfs4_server_set_init_caps in fs/nfs/nfs4client.c)
DATA = {"read": ("READ", "READ_PLUS"), "write": ("WRITE",)}
"""The operations that move data in each direction, by their names in mountstats."""
STATES = frozenset(("port", "idle_time", "max_slots"))
"""Columns that are the state of a connection, not counters."""
# the kernel formats mounts into one page, and again if a mount does not fit (seq_read_iter in
# fs/seq_file.c): read half a page at a time, so that it does not start one that may not fit
_HALF_A_PAGE = os.sysconf("SC_PAGE_SIZE") // 2
_TRIES = 4


class ByteCounts(NamedTuple):
    """Bytes by kind of I/O (fs/nfs/iostat.h), and pages of read-ahead and writeback."""

    normal_read: int = 0
    normal_write: int = 0
    direct_read: int = 0
    direct_write: int = 0
    server_read: int = 0
    server_write: int = 0
    read_pages: int = 0
    write_pages: int = 0


_NO_BYTES = ByteCounts()


class Operation(NamedTuple):
    """One kind of RPC: count, bytes (headers included), milliseconds.

    ``queue_ms`` is the wait to be sent, ``rtt_ms`` the wait for the reply, ``execute_ms`` the
    whole; each is the sum over all operations.
    """

    operations: int
    transmissions: int
    timeouts: int
    bytes_sent: int
    bytes_received: int
    queue_ms: int
    rtt_ms: int
    execute_ms: int
    errors: int = 0


NOTHING = Operation(0, 0, 0, 0, 0, 0, 0, 0)


class Xprt(NamedTuple):
    """One connection: "tcp", "rdma" or "udp", and its columns by their names in the kernel.

    Times are in seconds, ``req_u``, ``bklog_u``, ``sending_u`` and ``pending_u`` are sums of
    queue lengths, one sample per send.  An unknown transport has no counters, and neither has a
    line with a column that is no number.
    """

    proto: str
    counters: dict[str, int]


@dataclass(frozen=True)
class MountStats:
    """The counters of one mount since it was made ``age_s`` seconds ago."""

    directory: Path
    device: str
    fstype: str
    age_s: int = 0
    options: dict[str, str] = field(default_factory=dict)
    bytes: ByteCounts = _NO_BYTES
    xprts: tuple[Xprt, ...] = ()
    operations: dict[str, Operation] = field(default_factory=dict)

    def data(self, direction: str) -> Operation:
        """The operation that moved data in a direction, "read" or "write"."""
        done = [self.operations.get(name, NOTHING) for name in DATA[direction]]
        return Operation(*map(sum, zip(*done)))


def read(directory: Path, machine: Machine = LIVE) -> MountStats:
    """The counters of the NFS mount on ``directory``.  UserError if there is none."""
    return read_at(mountinfo.canonical(directory, mountinfo.read(machine)), machine)


def read_at(mount_point: Path, machine: Machine = LIVE) -> MountStats:
    """The counters of the NFS mount on ``mount_point``, a name in mountinfo; the same error."""
    for stats in reversed(read_all(machine)):
        if stats.directory == mount_point:
            return stats
    raise UserError(f"{mount_point} is not an NFS mount point", "see `nfsrdma mounts`")


def read_all(machine: Machine = LIVE) -> list[MountStats]:
    """The counters of all NFS mounts, in the kernel's order.

    Checked against ``mountinfo``, if there is one.
    """
    path, info = machine.of_process("mountstats"), machine.of_process("mountinfo")
    before = _text(info)
    for _ in range(_TRIES):
        text = os.fsdecode(files.raw(path, _HALF_A_PAGE))
        # mounts may come and go between two files
        if (after := _text(info)) == before:
            break
        before = after
    return parse(text, None if after is None else _nfs_entries(after))


def of(machine: Machine) -> list[MountStats]:
    """The counters of all NFS mounts of the process of a host whose mounts are read."""
    name = f"proc/{machine.process}/mountstats"
    if machine.lists:
        # not all records of a very long list are there
        return machine.keep(name, lambda: parse(machine.list_now(name)))
    return machine.keep(name, lambda: read_all(machine))


class Reader:
    """Reads the counters each second, and mountinfo only after a change of the mounts."""

    def __init__(self, machine: Machine = LIVE) -> None:
        self._machine = machine
        self._path = machine.of_process("mountstats")
        self._info = machine.of_process("mountinfo")
        self._watch = mountinfo.Watch(machine)
        self._entries: list[Entry] | None = None
        self._operations: _Known = {}

    def read(self) -> list[MountStats]:
        """The same as ``read_all``."""
        entries = self._entries
        if self._watch.changed() or entries is None:
            entries = _nfs_entries(mountinfo.read_text(self._info))
        text = os.fsdecode(files.raw(self._path, _HALF_A_PAGE))
        mounts, self._operations = _parsed(text, entries, self._operations)
        # a mount meanwhile, or another name of a folder above a mount (without an event)
        if self._watch.changed() or len(mounts) != len(entries):
            self._entries = None
            return read_all(self._machine)
        self._entries = entries
        return mounts


def _text(path: Path) -> str | None:
    try:
        return mountinfo.read_text(path)
    except FileNotFoundError:
        return None


def _nfs_entries(text: str) -> list[Entry]:
    return [entry for entry in mountinfo.parse(text) if entry.is_nfs]


def parse(
    text: str, entries: Sequence[Entry] | None = None, with_operations: bool = True
) -> list[MountStats]:
    """Parse mountstats: its NFS mounts in the kernel's order.

    Without operations, it takes a fraction of the time.

    ``entries`` of mountinfo, in the kernel's order, identify the records of the kernel: no server
    can add, hide or change one.  With None, each record in the text counts as one.
    Raises UserError if a line has an unknown format.
    """
    return _parsed(text, entries, {}, with_operations)[0]


def _parsed(
    text: str, entries: Sequence[Entry] | None, before: _Known, with_operations: bool = True
) -> tuple[list[MountStats], _Known]:
    """The mounts, and their operations for the next reading."""
    mounts: list[MountStats] = []
    known: _Known = {}
    for record in _records(text, entries):
        head, _, rest = record.below.partition("per-op statistics\n")
        rest = rest if with_operations else ""
        try:
            known[record.mount] = _operations(rest, before.get(record.mount))
            mounts.append(_stats(record, head, known[record.mount].by_name))
        except (ValueError, TypeError) as error:
            message = f"cannot parse mountstats: a line of {record.mount[1]} has other columns"
            raise UserError(message, "report this kernel version") from error
    return mounts, known


class _Record(NamedTuple):
    """A mount, and the lines of its record above and below the implementation id."""

    mount: _Key
    above: str
    below: str


_Key = tuple[str, Path, str]
"""Device, mount point and type."""


class _Operations(NamedTuple):
    """The operations of a record: its lines, and what each of them says."""

    text: str
    lines: list[str]
    parsed: list[tuple[str, Operation] | None]
    by_name: dict[str, Operation]


_Known = dict[_Key, _Operations]
"""The operations of a reading by mount."""


def _records(text: str, entries: Sequence[Entry] | None) -> Iterator[_Record]:
    heads = [*_HEAD.finditer(text)]
    starts = [head.start() for head in heads]
    keys = [_key(head) for head in heads]
    order = _Order(keys if entries is None else [_entry_key(entry) for entry in entries])
    at = 0
    while at < len(heads):
        known = order.take(keys[at])
        above_end, ends = _ends(text, heads[at].end(), starts)
        wanted = order.next()
        chosen = min(ends)
        if entries is not None:
            # the last end is the kernel's: a server's text cannot be followed by another one. Files
            # that someone has shortened have records so short that it is the end of a later record
            fitting = (k for k in ends if (keys[k] if k < len(keys) else None) == wanted)
            chosen = max(fitting, default=max(ends))
        below_end = starts[chosen] if chosen < len(heads) else len(text)
        if known:
            above, below = text[heads[at].end() : above_end], text[ends[chosen] : below_end]
            yield _Record(keys[at], above, below)
        at = chosen


def _ends(text: str, start: int, starts: Sequence[int]) -> tuple[int, dict[int, int]]:
    """Where the lines above the implementation id end, and where those below it may begin.

    The latter by the number of the next record's first line, the last place if there are several.
    """
    following = bisect.bisect(starts, start)
    limit = starts[following] if following < len(starts) else len(text)
    impl_start = text.find(_IMPL_ID, start, limit)
    if impl_start < 0:
        return start, {following: start}
    ends = {
        bisect.bisect(starts, match.end()): match.end() - len("\tcaps:\t")
        for match in _IMPL_ID_END.finditer(text, impl_start, impl_start + _IMPL_ID_MOST)
    }
    return impl_start, ends or {following: impl_start}


class _Order:
    """Mounts in the kernel's order, of which some may be missing in the text."""

    def __init__(self, keys: Sequence[_Key]) -> None:
        self._keys = keys
        self._places: defaultdict[_Key, list[int]] = defaultdict(list)
        for place, key in enumerate(keys):
            self._places[key].append(place)
        self._next = 0

    def take(self, key: _Key) -> bool:
        """Whether there is such a mount; go on behind it."""
        places = self._places.get(key, ())
        later = bisect.bisect_left(places, self._next)
        if later < len(places):
            self._next = places[later] + 1
        return bool(places)

    def next(self) -> _Key | None:
        """The mount that follows; None at the end."""
        return self._keys[self._next] if self._next < len(self._keys) else None


def _key(head: re.Match[str]) -> _Key:
    device, directory, fstype = (mountinfo.unescape(part) for part in head.groups())
    return device, Path(directory), fstype


def _entry_key(entry: Entry) -> _Key:
    return entry.source, entry.directory, entry.fstype


def difference(after: MountStats, before: MountStats) -> MountStats:
    """The difference between two readings of one mount.

    Ports, idle times and slots are those of ``after``.  Raises UserError if the two readings
    are of different mounts.
    """
    same = _names(after) == _names(before) and len(after.xprts) == len(before.xprts)
    if not same or after.age_s < before.age_s:
        raise _mounted_anew(after)
    delta = replace(
        after,
        age_s=after.age_s - before.age_s,
        bytes=_minus(after.bytes, before.bytes),
        xprts=tuple(map(_xprt_minus, after.xprts, before.xprts)),
        operations={
            # an operation whose line did not change is the same object (_operations)
            name: NOTHING if now is was else _minus(now, was)
            for name, now in after.operations.items()
            for was in (before.operations.get(name, NOTHING),)
        },
    )
    grown = (*delta.bytes, *(op.operations for op in delta.operations.values()))
    if min(grown) < 0:
        raise _mounted_anew(after)
    return delta


def _names(stats: MountStats) -> tuple[Path, str, str]:
    return stats.directory, stats.device, stats.fstype


def _mounted_anew(stats: MountStats) -> UserError:
    return UserError(f"{stats.directory} was remounted between two readings", "run it again")


_Counts = TypeVar("_Counts", ByteCounts, Operation)


def _minus(after: _Counts, before: _Counts) -> _Counts:
    return type(after)(*map(sub, after, before))


def _xprt_minus(after: Xprt, before: Xprt) -> Xprt:
    return Xprt(
        after.proto,
        {
            name: value if name in STATES else value - before.counters.get(name, 0)
            for name, value in after.counters.items()
        },
    )


def _stats(record: _Record, lines: str, operations: dict[str, Operation]) -> MountStats:
    device, directory, fstype = record.mount
    matches = _TAGGED.finditer(f"{record.above}\n{lines}")
    tagged = [(match[1], match[2].strip()) for match in matches]
    values = dict(tagged)
    return MountStats(
        directory=directory,
        device=device,
        fstype=fstype,
        age_s=int(values.get("age", 0)),
        options=mountinfo.options(values.get("opts", "")),
        bytes=ByteCounts(*map(int, values.get("bytes", "").split())),
        xprts=tuple(_xprt(value) for tag, value in tagged if tag == "xprt"),
        operations=operations,
    )


def _xprt(text: str) -> Xprt:
    proto, *values = text.split()
    names = COLUMNS.get(proto, ())
    try:
        # a later kernel may add columns at the end, an earlier one may have fewer
        return Xprt(proto, dict(zip(names, map(int, values))))
    except ValueError:
        # a word among the numbers: which column is which is unknown
        return Xprt(proto, {})


def _operations(text: str, before: _Operations | None) -> _Operations:
    """Parse the operations; those whose lines did not change are the same objects as ``before``."""
    if before and before.text == text:
        return before
    lines = text.split("\n")
    same, done = (before.lines, before.parsed) if before else ([], [])
    # without an index: this runs for each line of each busy mount in each interval
    known = zip(lines, chain(same, repeat(None)), chain(done, repeat(None)))
    parsed = [operation if line == was else _operation(line) for line, was, operation in known]
    return _Operations(text, lines, parsed, dict(filter(None, parsed)))


def _operation(line: str) -> tuple[str, Operation] | None:
    """The name and counters of an operation; None for other lines."""
    match = _OPERATION.fullmatch(line)
    return (match[1], Operation(*map(int, match[2].split()))) if match else None
