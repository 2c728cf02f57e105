# SPDX-License-Identifier: Apache-2.0
"""The grid to measure: a plan and its cells.

Defaults follow the experiment of Callaghan et al., "NFS over RDMA" (NICELI 2003), section 7: each
run mounts, reads the whole file in small reads and unmounts, three runs per cell.  Sizes are in
bytes, read-ahead in blocks of rsize, as in that paper.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.nfs.personality import default_vers
from nfsrdma_tools.json_records import INVALID, fault, record
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.personalities import DEFAULT, OPTIMISTIC, PERSONALITIES
from nfsrdma_tools.sizes import format_size

__all__ = [
    "BLOCK",
    "MOUNT_POINT",
    "PERSONALITY",
    "PRESETS",
    "SECONDS",
    "SIZE_STEP",
    "WARM_UP",
    "Cell",
    "ExistingMount",
    "Plan",
    "integer_fault",
    "preset",
]

BLOCK = 8192
"""Size of a block of the test file with its own checksum, and of a read(2) by default."""

SECONDS = 5.0
"""Length of a trial on hardware: at 100 Gb/s, the presets' files take milliseconds."""
WARM_UP = 0.2
"""Length of the warm-up before a trial, as a share of its length."""

SIZE_STEP = 16 << 20
"""A file as large as ``seconds`` need has a multiple of these bytes."""

MOUNT_POINT = "/MOUNT/POINT"
"""Stands in printed commands for a directory that the user chooses."""

PERSONALITY = "personality"
"""The axis of our module's protocol variants; the other axes in ``axes`` are tunables."""

# The window of a cell without read-ahead, as of a client with the smallest pages.  Not the page of
# this machine: a report made on another one derives the same number of bytes from the plan.
_LEAST_WINDOW = 4096
_MAY_BE_EMPTY = ("axes", "read_ahead_kbs")
_VALUES = {
    "transports": ("tcp", "rdma", "nfsrdma"),
    "vers": ("3", "4.0", "4.1", "4.2"),
    "direction": ("read", "write"),
    "mode": ("racing", "exhaustive"),
    "order": ("random", "grouped"),
}


@dataclass(frozen=True, order=True)
class Cell:
    """One combination of values, which a trial measures.

    ``rsize`` is the transfer size in bytes (wsize when the plan writes), ``read_ahead`` in blocks
    of it, ``axes`` the values of tunables and the personality, in the order of the plan.  ``jobs``
    and ``depth`` are fio's numjobs and iodepth: threads that read a part of the file each, and
    requests that a thread has in flight.  ``direct`` marks O_DIRECT where buffered reads are in the
    same plan; where all cells are O_DIRECT, none is marked.

    ``as_mounted`` marks the mount that the host had before the sweep, which is in no grid: its
    window is ``read_ahead_kb``, in KiB, because it need not be whole blocks.
    """

    transport: str
    rsize: int
    read_ahead: int
    nconnect: int = 1
    axes: tuple[tuple[str, str], ...] = ()
    jobs: int = 1
    depth: int = 1
    direct: bool = False
    as_mounted: bool = False
    read_ahead_kb: int = 0

    @property
    def key(self) -> str:
        """Canonical JSON: equal cells have equal keys, in every process and version."""
        data = asdict(self)
        for name, before in _OMITTED.items():
            if data[name] == before:
                del data[name]
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @property
    def personality(self) -> str | None:
        """The personality to request; None if the plan does not vary it."""
        return dict(self.axes).get(PERSONALITY)

    @property
    def has_default_personality(self) -> bool:
        """Whether the mount has the module's default personality, or a transport without any."""
        return self.personality in (None, DEFAULT)

    @property
    def tunables(self) -> tuple[tuple[str, str], ...]:
        """The axes that are tunables."""
        return tuple((name, value) for name, value in self.axes if name != PERSONALITY)

    @classmethod
    def from_key(cls, key: str) -> Cell:
        """The cell of a key."""
        return cls.from_json(json.loads(key))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        """The cell of a decoded key."""
        axes = tuple((str(name), str(value)) for name, value in data["axes"])
        return cls(**{**data, "axes": axes})

    def __str__(self) -> str:
        """The name in reports: ``rdma 128k, 4 ahead``."""
        text = "as mounted today: " if self.as_mounted else ""
        text += f"{self.transport} {format_size(self.rsize)}, "
        ahead = f"{self.read_ahead_kb} KiB" if self.as_mounted else f"{self.read_ahead}"
        text += "direct" if self.direct else f"{ahead} ahead"
        text += f", {self.jobs} jobs" if self.jobs > 1 else ""
        text += f", depth {self.depth}" if self.depth > 1 or self.direct else ""
        text += f", nconnect {self.nconnect}" if self.nconnect > 1 else ""
        return text + "".join(f", {name}={value}" for name, value in self.axes)


# fields of a cell that its key has only if they differ from these
_OMITTED = {"jobs": 1, "depth": 1, "direct": False, "as_mounted": False, "read_ahead_kb": 0}


def integer_fault(row: object, least: Mapping[str, int]) -> str:
    """The first of these fields that is no integer, or below its least value; "" if none is."""
    for name, smallest in least.items():
        value = getattr(row, name)
        if type(value) is not int or value < smallest:
            return f"{name}: expected {smallest} or more, found {value!r}"
    return ""


@dataclass(frozen=True)
class ExistingMount:
    """The mount of a plan's target that the host had before the sweep: the values in effect.

    Sizes are in bytes.  ``personality`` is that of our module, "" for other transports.
    """

    directory: str
    transport: str
    vers: str
    rsize: int
    wsize: int
    nconnect: int
    read_ahead_kb: int
    personality: str = ""

    def __post_init__(self) -> None:
        for name, known in {"transport": "transports", "vers": "vers"}.items():
            if getattr(self, name) not in _VALUES[known]:
                raise UsageError(f"existing mount: unknown {name} {getattr(self, name)!r}")
        least = {"rsize": 1, "wsize": 1, "nconnect": 1, "read_ahead_kb": 0}
        if wrong := integer_fault(self, least):
            raise UsageError(f"existing mount: {wrong}")
        for name in ("directory", "personality"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"existing mount: expected a text as its {name}")

    def __str__(self) -> str:
        """``/mnt/data: NFSv4.2 over rdma, rsize 1M, wsize 1M, nconnect 4, read_ahead_kb 128``."""
        sizes = f"rsize {format_size(self.rsize)}, wsize {format_size(self.wsize)}"
        text = f"{self.directory}: NFSv{self.vers} over {self.transport}, {sizes}"
        text += f", nconnect {self.nconnect}, read_ahead_kb {self.read_ahead_kb}"
        return text + (f", personality {self.personality}" if self.personality else "")


@dataclass(frozen=True)
class Plan:
    """Cells of a sweep, and the conditions of its trials; ``uid`` identifies one sweep in a store.

    Each pass over the grid has its own order: ``random``, so that drift affects all cells alike,
    or ``grouped`` by transport, which swaps modules least.

    ``read_ahead_kbs``, windows in KiB, replace ``read_aheads`` unless it is empty: each rsize has
    the windows that are multiples of it.

    ``depths`` apply to O_DIRECT; read-ahead is the depth of buffered reads.  ``direct`` has
    O_DIRECT in all cells; ``with_direct`` has cells of both kinds: buffered reads with each
    read-ahead, and O_DIRECT reads with each depth.  ``minutes`` of trials end the sweep; 0 is no
    limit.

    The axis ``personality`` applies to transport nfsrdma; cells of other transports lack it.

    With ``seconds``, a trial ends after that time, or with the file; O_DIRECT reads begin with the
    file again, as the client does not cache it.  ``file_size`` 0 is as large as that needs.

    Without ``seconds``, a cell with a read-ahead window below ``whole_from`` bytes reads a share of
    the file in proportion to its window, so that all reads take about as long.  0: always the whole
    file.

    ``existing`` is the mount of the target that the host had before the sweep, None without one:
    its ``existing_cells`` are no part of the grid.
    """

    target: str
    directory: str = ""
    transports: tuple[str, ...] = ("tcp", "rdma")
    rsizes: tuple[int, ...] = (8 << 10, 32 << 10, 128 << 10, 512 << 10)
    read_aheads: tuple[int, ...] = (0, 1, 4, 16)
    read_ahead_kbs: tuple[int, ...] = ()
    nconnects: tuple[int, ...] = (1,)
    jobs: tuple[int, ...] = (1,)
    depths: tuple[int, ...] = (1,)
    vers: str = default_vers()
    direction: str = "read"
    direct: bool = False
    with_direct: bool = False
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    runs: int = 3
    file_size: int = 32 << 20
    seconds: float = 0.0
    minutes: float = 0.0
    block_size: int = BLOCK
    preset: str = "quick"
    mode: str = "racing"
    order: str = "random"
    seed: int = 1
    verify: bool = True
    whole_from: int = 0
    existing: ExistingMount | None = None
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        _check_words(self)
        _check_numbers(self)

    @property
    def server(self) -> str:
        """The host of the target; UsageError for a target that no mount can have."""
        from nfsrdma_tools.host.nfs.target import Target

        return Target.parse(self.target).host

    def cells(self) -> tuple[Cell, ...]:
        """The whole grid, in a fixed order."""
        return tuple(cell for transport in self.transports for cell in self._cells_of(transport))

    def existing_cells(self) -> tuple[Cell, ...]:
        """The existing mount with each load of the grid, the smallest first; () without one."""
        mount = self.existing
        if mount is None:
            return ()
        axes = ((PERSONALITY, mount.personality),) if mount.personality else ()
        size = mount.wsize if self.direction == "write" else mount.rsize
        loads = sorted({(cell.direct, cell.jobs, cell.depth) for cell in self.cells()})
        return tuple(
            Cell(mount.transport, size, 0, mount.nconnect, axes, jobs, depth, direct,
                 as_mounted=True, read_ahead_kb=mount.read_ahead_kb)
            for direct, jobs, depth in loads
        )  # fmt: skip

    def vers_of(self, cell: Cell) -> str:
        """The NFS version of the mount of ``cell``."""
        return self.existing.vers if cell.as_mounted and self.existing else self.vers

    def _cells_of(self, transport: str) -> Iterator[Cell]:
        for direct in (False, True) if self.with_direct else (False,):
            yield from self._cells_of_kind(transport, direct)

    def _cells_of_kind(self, transport: str, direct: bool) -> Iterator[Cell]:
        sizes = [
            (rsize, ahead) for rsize in self.rsizes for ahead in self._blocks_ahead(rsize, direct)
        ]
        axes = [
            [(name, value) for value in values]
            for name, values in self.axes
            if name != PERSONALITY or transport == OURS
        ]
        loads = itertools.product(self.jobs, self.depths if self.direct or direct else (1,))
        for size, nconnect, set_, load in itertools.product(
            sizes, self.nconnects, itertools.product(*axes), loads
        ):
            yield Cell(transport, *size, nconnect, set_, *load, direct)

    def _blocks_ahead(self, rsize: int, direct: bool) -> tuple[int, ...]:
        """Read-ahead in blocks, for each cell of an rsize; O_DIRECT and writes have none."""
        if direct or not self.reads_ahead:
            return (0,)
        windows = (kb << 10 for kb in self.read_ahead_kbs)
        whole = tuple(window // rsize for window in windows if window % rsize == 0)
        return whole if self.read_ahead_kbs else self.read_aheads

    @property
    def personalities(self) -> tuple[str, ...]:
        """The values of the axis ``personality``; empty if the plan does not vary it."""
        return dict(self.axes).get(PERSONALITY, ())

    @property
    def reads_ahead(self) -> bool:
        """Whether read-ahead is part of what this plan measures."""
        return self.direction == "read" and not self.direct

    def has_read_ahead(self, cell: Cell) -> bool:
        """Whether ``cell`` is a buffered read, which has a read-ahead."""
        return self.reads_ahead and not cell.direct

    def is_direct(self, cell: Cell) -> bool:
        """Whether ``cell`` is O_DIRECT."""
        return self.direct or cell.direct

    def request_size(self, cell: Cell) -> int:
        """Bytes of a read(2) or write(2): small, as large requests hide the effect of read-ahead.

        With O_DIRECT there is no read-ahead, and a request smaller than rsize would hide rsize.
        """
        return cell.rsize if self.is_direct(cell) else self.block_size

    def engine(self, cell: Cell) -> str:
        """The ioengine of fio; "" if one thread with one request in flight does all trials.

        All cells of a kind have the same one, as they are compared.
        """
        deep = (self.direct or self.with_direct) and max(self.depths) > 1
        if deep and self.is_direct(cell):
            return "io_uring"
        return "psync" if deep or max(self.jobs) > 1 else ""

    def part(self, cell: Cell) -> int:
        """Bytes of the part of the file that each job of ``cell`` has to itself."""
        request = self.request_size(cell)
        return self.file_size // cell.jobs // request * request

    def reads_again(self, cell: Cell) -> bool:
        """Whether a trial of ``cell`` may read the file more than once."""
        return bool(self.seconds) and self.is_direct(cell) and self.direction == "read"

    def bytes_moved(self, cell: Cell) -> int:
        """Bytes that each trial of ``cell`` reads from the start of the file, or writes.

        With ``seconds`` it is the most, unless the trial begins with the file again.  Several jobs
        have equal shares, each at the start of its part.
        """
        window = max(cell.read_ahead * cell.rsize, cell.read_ahead_kb << 10, _LEAST_WINDOW)
        window = cell.rsize if self.is_direct(cell) else window
        if self.direction == "write" or self.seconds or window >= self.whole_from:
            return self.part(cell) * cell.jobs
        request = self.request_size(cell)
        share = self.file_size * window // self.whole_from // cell.jobs
        return max(share // request, 1) * request * cell.jobs

    def mount_options(self, cell: Cell) -> str:
        """The options of mount(8) and fstab(5) for ``cell``; read-ahead and ``axes`` are none."""
        from nfsrdma_tools.host.transports import family
        from nfsrdma_tools.nfs_ports import RDMA_PORT

        proto = family(cell.transport)
        words = [f"vers={self.vers}", f"proto={proto}{'6' * self.target.startswith('[')}"]
        words += [f"port={RDMA_PORT}"] * (proto == "rdma")
        words.append(f"{'wsize' if self.direction == 'write' else 'rsize'}={cell.rsize}")
        return ",".join(words + [f"nconnect={cell.nconnect}"] * (cell.nconnect > 1))

    def fstab_line(self, cell: Cell, directory: str = MOUNT_POINT) -> str:
        """The line of /etc/fstab that mounts the target as ``cell`` does."""
        from nfsrdma_tools.host.nfs.mountinfo import escape

        source, where = escape(self.target), escape(directory)
        return f"{source}  {where}  nfs  {self.mount_options(cell)}  0 0"

    def mount_command(self, cell: Cell, directory: str = MOUNT_POINT) -> str:
        """The command of mount(8) that does the same."""
        argv = ("mount", "-t", "nfs", "-o", self.mount_options(cell), self.target, directory)
        return shlex.join(argv)

    def ways_to_mount(self, cell: Cell) -> tuple[str, str]:
        """Two lines to print: how fstab(5) and mount(8) mount the target as ``cell`` does."""
        return f"fstab: {self.fstab_line(cell)}", f"mount: {self.mount_command(cell)}"

    def to_json(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The plan of ``to_json``; UserError when it is not one."""
        try:
            values = {name: _tuple(value) for name, value in data.items()}
            if values.get("existing") is not None:
                values["existing"] = record(ExistingMount, values["existing"])
            return record(cls, values)
        except INVALID as error:
            raise UserError(f"this is not a plan: {fault(error)}") from error


_KB = 1 << 10
_HOUR = 3600
_MOST_JOBS, _MOST_DEPTH = 256, 1024
_MOST_CELLS = 10_000
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"whole_from": 32 * _KB},
    "full": {
        "whole_from": 32 * _KB,
        "rsizes": tuple(_KB << n for n in range(2, 11)),
        "read_aheads": (0, 1, 2, 4, 8, 16),
        "file_size": 256 << 20,
    },
    # sizes from which on a card matters, and what keeps it busy
    "hardware": {
        "rsizes": (64 * _KB, 256 * _KB, 1024 * _KB),
        "read_aheads": (1, 4, 16),
        "nconnects": (1, 4, 16),
        "jobs": (1, 4, 16),
        "depths": (1, 8, 64),
        "seconds": SECONDS,
        "file_size": 0,
        # with the test file less than an hour
        "minutes": 50.0,
    },
    # figures 15 to 18 include 512-byte reads; Linux rounds them, and the sweep reports that
    "paper2003": {
        "rsizes": tuple(512 << n for n in range(12)),
        "read_aheads": (0, 1, 2, 4, 8, 16),
        "file_size": 1 << 30,
        "mode": "exhaustive",
        "vers": "3",
    },
}


def preset(name: str, target: str, **changes: Any) -> Plan:
    """The plan of a preset with ``changes``; a change of None keeps the preset's value.

    Without ``vers``, the NFS version is that of `nfsrdma mount` with the plan's personalities.
    """
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}", f"the presets are {', '.join(PRESETS)}")
    given = {key: value for key, value in changes.items() if value is not None}
    personalities = dict(given.get("axes", ())).get(PERSONALITY, ())
    values = {"vers": default_vers(personalities), **PRESETS[name], **given}
    return Plan(target, preset=name, **values)


def _check_words(plan: Plan) -> None:
    # names of files and folders have it
    if not isinstance(plan.uid, str) or not re.fullmatch(r"[\w-]{1,64}", plan.uid, re.ASCII):
        raise UsageError(f"uid: expected letters and digits, found {plan.uid!r:.80}")
    for name, allowed in _VALUES.items():
        value = getattr(plan, name)
        for word in value if isinstance(value, tuple) else (value,):
            if word not in allowed:
                raise UsageError(f"{name}: unknown value {word!r}", f"use {', '.join(allowed)}")


def _check_numbers(plan: Plan) -> None:
    for item in fields(plan):
        if getattr(plan, item.name) == () and item.name not in _MAY_BE_EMPTY:
            raise UsageError(f"the plan has no {item.name}", "name at least one")
    _check_grid(plan)
    counts = (plan.runs, plan.block_size, *plan.nconnects, *plan.jobs, *plan.depths)
    if min(counts) < 1:
        raise UsageError("the least value of runs, nconnect, jobs, depth and block size is 1")
    if max(plan.jobs) > _MOST_JOBS or max(plan.depths) > _MOST_DEPTH:
        raise UsageError(f"the largest value of jobs is {_MOST_JOBS}, of depth {_MOST_DEPTH}")
    _check_length(plan)
    for name, values in plan.axes:
        if not values or len(set(values)) != len(values):
            raise UsageError(f"axis {name}: expected different values, found {list(values)}")
    _check_personalities(plan)
    _check_buffered(plan)
    _check_requests(plan)


def _check_grid(plan: Plan) -> None:
    """A grid whose cells fit into memory, by its lengths: a store of some KiB may name billions."""
    lengths = {
        "transports": len(plan.transports),
        "rsizes": len(plan.rsizes),
        "read-aheads": len(plan.read_ahead_kbs or plan.read_aheads),
        "nconnects": len(plan.nconnects),
        "jobs": len(plan.jobs),
        "depths": len(plan.depths),
        **{f"axis {name}": len(values) for name, values in plan.axes},
    }
    product = math.prod(lengths.values())
    if product > _MOST_CELLS:
        factors = " x ".join(f"{count} {name}" for name, count in lengths.items() if count > 1)
        message = f"the grid has {product} cells ({factors}), the limit is {_MOST_CELLS}"
        raise UsageError(message, "name fewer values, or run several sweeps")


def _check_length(plan: Plan) -> None:
    if not 0 <= plan.seconds <= _HOUR:
        raise UsageError(f"seconds: expected 0 to {_HOUR}, found {plan.seconds:g}")
    # 0 is as large as the seconds need
    least = 0 if plan.seconds else BLOCK
    if plan.file_size < least or plan.file_size % BLOCK:
        size = format_size(plan.file_size)
        raise UsageError(f"file size: expected a multiple of {BLOCK} bytes, found {size}")
    if plan.minutes < 0:
        raise UsageError(f"minutes: expected 0 or more, found {plan.minutes:g}")


def _check_personalities(plan: Plan) -> None:
    values = plan.personalities
    for value in values:
        if value not in PERSONALITIES:
            message = f"axis {PERSONALITY}: unknown value {value!r}"
            raise UsageError(message, f"use {', '.join(PERSONALITIES)}")
    if values and OURS not in plan.transports:
        transports = ", ".join(plan.transports)
        message = f"axis {PERSONALITY}: expected transport {OURS}, found {transports}"
        raise UsageError(message, f"add it to --transport: {transports.replace(' ', '')},{OURS}")
    if OPTIMISTIC in values and plan.vers != "3":
        message = f"axis {PERSONALITY}: {OPTIMISTIC} needs vers 3, found {plan.vers}"
        raise UsageError(message, "use --vers 3")


def _check_buffered(plan: Plan) -> None:
    if plan.with_direct and not plan.reads_ahead:
        message = "O_DIRECT beside buffered reads: this plan has no buffered reads"
        raise UsageError(message, "omit --direct and --write, or use --direct for all of it")
    if plan.read_ahead_kbs and all(cell.direct for cell in plan.cells()):
        message = f"no read-ahead of {list(plan.read_ahead_kbs)} KiB is a multiple of an rsize"
        raise UsageError(message, f"rsizes: {', '.join(map(format_size, plan.rsizes))}")


def _check_requests(plan: Plan) -> None:
    file_size = plan.file_size or SIZE_STEP
    sizes = plan.rsizes if plan.direct or plan.with_direct else ()
    for size in sizes if plan.direct else (plan.block_size, *sizes):
        if file_size % size:
            message = f"the file size, {file_size} bytes, is not a multiple of requests of {size}"
            raise UsageError(message, "choose powers of two for both")
        if file_size < size * max(plan.jobs):
            message = f"{max(plan.jobs)} jobs with requests of {size} bytes need a larger file"
            raise UsageError(message, f"the file size is {format_size(file_size)}")


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
