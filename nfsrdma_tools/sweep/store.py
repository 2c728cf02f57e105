# SPDX-License-Identifier: Apache-2.0
"""Trials, and the store: one SQLite file that holds them, plans, and the environments they ran in.

Each trial is committed to disk before the next one starts: write-ahead log, synchronous=FULL.
``application_id`` identifies a store among SQLite files, ``user_version`` is the version of its
tables.  Plan, cell and run identify a trial, so adding it twice changes nothing: the events of a
sweep may be copied into another store repeatedly.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.json_records import INVALID, fault
from nfsrdma_tools.sweep.plan import Cell, Plan, integer_fault
from nfsrdma_tools.sweep.server_cpu import Sample, as_sample

__all__ = [
    "FAILED",
    "NOT_OFFERED",
    "OK",
    "VERSION",
    "CpuUsage",
    "DiskFullError",
    "InEffect",
    "Merged",
    "RpcStatistics",
    "Store",
    "StoreError",
    "Transfer",
    "Trial",
    "as_csv",
    "as_facts",
    "environment_uid",
    "merge",
]

OK = "ok"
FAILED = "failed"
NOT_OFFERED = "not_offered"


@dataclass(frozen=True)
class Transfer:
    """The data that the reader or writer moved.

    ``duration_ns`` is from its first to its last request, ``throughput`` in MB/s of 1,000,000
    bytes.  More ``bytes`` than the file has: it read the file again.
    """

    duration_ns: int = 0
    bytes: int = 0
    throughput: float = 0.0


@dataclass(frozen=True)
class CpuUsage:
    """CPU time of the whole host, and of the reader's threads, while the reader ran.

    ``busy_ns`` (not idle), ``task_ns`` (running tasks, by schedstat) and ``cpu_share`` (busy share
    of all CPUs, 0 to 1) are without ``harness_ns``, the cost of starting and watching the reader.
    ``cpu_modes`` and ``steal_s`` (seconds, in ticks) span ``wall_ns``, start and end included.
    """

    busy_ns: int = 0
    task_ns: int = 0
    harness_ns: int = 0
    wall_ns: int = 0
    cpu_share: float = 0.0
    cpu_modes: dict[str, float] = field(default_factory=dict)
    steal_s: float = 0.0
    reader_user_s: float = 0.0
    reader_system_s: float = 0.0


@dataclass(frozen=True)
class RpcStatistics:
    """Counts and times of the mount's RPCs, from mountstats.

    ``operations`` are those with data.  Round trip, queue and execute times are their means in
    milliseconds.  ``ceiling`` is rsize divided by the mean round trip, in MB/s: the limit of one
    request at a time.  ``rdma`` has the sum of each counter of the rdma transports.
    """

    operations: int = 0
    rpc_counts: dict[str, int] = field(default_factory=dict)
    rtt_ms: float = 0.0
    queue_ms: float = 0.0
    execute_ms: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    retransmits: int = 0
    ceiling: float = 0.0
    rdma: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class InEffect:
    """What the kernel had: options of the mount, read-ahead before and after, values of axes."""

    cache: str = ""
    mount: dict[str, str] = field(default_factory=dict)
    read_ahead_kb_before: int = 0
    read_ahead_kb_after: int = 0
    axes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One run of one cell.  Figures are 0 or empty unless ``status`` is ``ok``.

    The reader ran within ``cpu.wall_ns`` from ``began`` (UTC) on.  ``verified``: its data was
    compared.  ``probe_rows`` has the rows of each attached probe set by its name.  ``file_size`` is
    in bytes.  ``total_ns`` is from the first tunable to the unmount.

    A store, CSV and JSON have the fields of ``transfer``, ``cpu``, ``rpc`` and ``in_effect`` beside
    the others.
    """

    plan: str
    cell: Cell
    run: int
    order: int
    status: str = OK
    reason: str = ""
    environment: str = ""
    started: str = ""
    transfer: Transfer = Transfer()
    cpu: CpuUsage = CpuUsage()
    rpc: RpcStatistics = RpcStatistics()
    verified: bool = False
    in_effect: InEffect = InEffect()
    probe_rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    began: str = ""
    file_size: int = 0
    total_ns: int = 0

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.status == OK

    def to_json(self) -> dict[str, Any]:
        """As plain data for JSON."""
        data: dict[str, Any] = {}
        for name, value in asdict(self).items():
            data |= value if name in _PARTS else {name: value}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The trial of ``to_json``; UserError when it is not one."""
        if not _HINTS.keys() >= data.keys() >= {"plan", "cell", "run", "order"}:
            raise UserError("this is not a trial", "was it written by another version?")
        return _assembled({**data, "cell": Cell.from_json(data["cell"])})


_PARTS: dict[str, Any] = {
    name: kind
    for name, kind in get_type_hints(Trial).items()
    if kind in (Transfer, CpuUsage, RpcStatistics, InEffect)
}
"""The fields of a trial that are records themselves."""


def _columns() -> dict[str, Any]:
    """The type of each column of a trial, by its name, in their order."""
    columns: dict[str, Any] = {}
    for name, kind in get_type_hints(Trial).items():
        columns |= get_type_hints(kind) if name in _PARTS else {name: kind}
    return columns


_HINTS = _columns()


def _assembled(values: Mapping[str, Any]) -> Trial:
    """The trial of these columns; those that lack have their defaults."""

    def picked(kind: Any) -> dict[str, Any]:
        return {item.name: values[item.name] for item in fields(kind) if item.name in values}

    return Trial(**picked(Trial), **{name: kind(**picked(kind)) for name, kind in _PARTS.items()})


T = TypeVar("T")
VERSION = 5
APPLICATION = 0x4E465352  # "NFSR"
_SQL_TYPES = {int: "INTEGER", bool: "INTEGER", float: "REAL"}
# the second: no space for the index of the write-ahead log, in NAME-shm
_FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
_NOTE = "INSERT OR REPLACE INTO notes (plan, key, value) VALUES (?, ?, ?)"
_LOAD = "load of a server"  # instead of a plan's uid


class StoreError(UserError):
    """The file cannot serve as a store."""


class DiskFullError(StoreError):
    """The disk of the store has no space left; what was stored before is unchanged."""

    def __init__(self, path: Path, hint: str = "free space there, then continue with --resume"):
        super().__init__(f"{path}: its disk is full", hint)


class Store:
    """An open store.  Use as a context manager; ``read_only`` never writes a byte.

    An empty or absent file becomes a store, unless ``must_exist``.
    """

    def __init__(self, path: Path, *, read_only: bool = False, must_exist: bool = False) -> None:
        self.path = path
        if read_only and not path.is_file():
            raise StoreError(f"no store {path}", "run a sweep first, or give the path of its store")
        with self._explained():
            self._db = sqlite3.connect(_uri(path, read_only), uri=True, timeout=10)
            if read_only:
                # a row of a store is not longer than the store
                self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(_size(path), _LEAST_LENGTH))
            self._check(read_only, must_exist)
            if not read_only:
                # only after the check: a foreign file must not change
                self._db.execute("PRAGMA journal_mode=WAL")
                # in builds with SQLITE_DEFAULT_WAL_SYNCHRONOUS=1 a commit would not sync the log
                self._db.execute("PRAGMA synchronous=FULL")

    def __enter__(self) -> Store:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; the write-ahead log is merged into it."""
        self._db.close()

    def add_plan(self, plan: Plan) -> None:
        """Store a plan; storing it again changes nothing."""
        self._write(_plan_row(plan))

    def add_environment(self, facts: Mapping[str, str]) -> str:
        """Store an environment and return its uid; equal facts have equal uids."""
        self._write(_environment_row(facts))
        return environment_uid(facts)

    def add_trial(self, trial: Trial) -> None:
        """Store a trial on disk; an existing one (plan, cell, run) stays unchanged."""
        self._write(_trial_row(trial))

    def add_all(
        self,
        plans: Iterable[Plan],
        environments: Iterable[Mapping[str, str]],
        trials: Iterable[Trial],
    ) -> None:
        """Store many in one transaction."""
        rows = [*map(_plan_row, plans), *map(_environment_row, environments)]
        self._write(*rows, *map(_trial_row, trials))

    def note(self, plan: Plan, key: str, value: str) -> None:
        """Store a note on the progress of a plan, for the sweep that resumes it."""
        self._write((_NOTE, (plan.uid, key, value)))

    def noted(self, plan: Plan, key: str) -> str:
        """The note stored by ``note``, or ""."""
        sql = "SELECT value FROM notes WHERE plan = ? AND key = ?"
        return "".join(self._read(sql, (plan.uid, key), lambda row: str(row[0])))

    def add_load(self, host: str, samples: Iterable[Sample]) -> None:
        """Store CPU samples of a server (server_cpu.py); existing samples stay."""
        merged = sorted({*self.loads().get(host, ()), *samples})
        self._write((_NOTE, (_LOAD, host, _json(merged))))

    def loads(self) -> dict[str, tuple[Sample, ...]]:
        """The samples per server name, in order of time."""
        sql = "SELECT key, value FROM notes WHERE plan = ? ORDER BY key"
        return dict(self._read(sql, (_LOAD,), _of_load))

    def plans(self) -> list[Plan]:
        """All plans, oldest first."""
        sql = "SELECT plan FROM plans ORDER BY rowid"
        return self._read(sql, (), lambda row: Plan.from_json(json.loads(row[0])))

    def plan(self, uid: str = "") -> Plan:
        """The plan of that uid, or the newest one with trials; StoreError when there is none.

        A sweep that failed to start does not hide the one before it.
        """
        plans = [plan for plan in self.plans() if uid in ("", plan.uid)]
        if not plans:
            raise StoreError(f"{self.path} has no plan {uid}".rstrip(), "run a sweep first")
        measured = set(self._read("SELECT DISTINCT plan FROM trials", (), lambda row: row[0]))
        return next((p for p in reversed(plans) if p.uid in measured), plans[-1])

    def trials(self, plan: Plan | None = None) -> list[Trial]:
        """All trials, or a plan's, in the order they ran."""
        uid = plan.uid if plan else None
        return self._read(_SELECT, (uid,), _trial)

    def environments(self) -> dict[str, dict[str, str]]:
        """Facts about each environment by its uid."""
        sql = "SELECT uid, facts FROM environments ORDER BY rowid"
        return dict(self._read(sql, (), lambda row: (row[0], _facts(json.loads(row[1])))))

    def _check(self, read_only: bool, must_exist: bool) -> None:
        application = self._pragma("application_id")
        version = self._pragma("user_version")
        if self._empty() and not (read_only or must_exist):
            self._create()
        elif application != APPLICATION:
            raise StoreError(f"{self.path} is not a store of nfsrdma", "give another file")
        elif version != VERSION:
            raise StoreError(
                f"{self.path}: expected a store of version {VERSION}, found {version}",
                "use the nfsrdma that wrote it",
            )
        self._check_schema()
        if read_only:
            self._check_pages()

    def _check_schema(self) -> None:
        """Refuse a file that computes what is read: views, triggers, generated columns."""
        for kind, name, sql in self._db.execute("SELECT type, name, sql FROM sqlite_master"):
            if (sql or kind != "index") and _words(str(sql)) not in _TABLES:
                message = f"{self.path}: {kind} {name} is not of a store of version {VERSION}"
                raise StoreError(message, "the store is damaged; give another file")

    def _check_pages(self) -> None:
        """Refuse a file in which rows share pages: a small one may have rows without end."""
        result = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
        if result != "ok":
            message = f"{self.path}: PRAGMA quick_check found {result.splitlines()[-1]}"
            raise StoreError(message, "the store is damaged; give another file")

    def _empty(self) -> bool:
        return not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _create(self) -> None:
        # one transaction: an unfinished store is an empty file, which is initialized again
        self._db.executescript(_SCHEMA)

    def _write(self, *rows: tuple[str, tuple[Any, ...]]) -> None:
        with self._explained(), self._db:
            for sql, values in rows:
                self._db.execute(sql, values)

    def _read(self, sql: str, values: tuple[Any, ...], row: Callable[[Any], T]) -> list[T]:
        with self._explained():
            return [row(values) for values in self._db.execute(sql, values)]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "") in _FULL:
                raise DiskFullError(self.path) from error
            raise StoreError(f"{self.path}: {error}", _hint(str(error))) from error
        except StoreError:
            raise
        except UserError as error:
            # of a plan: its hint is for the command line of a sweep
            raise StoreError(f"{self.path}: {error.message}", "the store is damaged") from error
        except INVALID as error:
            raise StoreError(f"{self.path}: {fault(error)}", "the store is damaged") from error


def environment_uid(facts: Mapping[str, str]) -> str:
    """Name of an environment: a hash of its facts."""
    return hashlib.sha256(_json(dict(facts)).encode()).hexdigest()[:16]


def _uri(path: Path, read_only: bool) -> str:
    # without a log nobody writes to it; then a read-only folder is no obstacle
    unused = read_only and not path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}&immutable={unused:d}"


def _size(path: Path) -> int:
    """Bytes of the store with its write-ahead log."""
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)


def _words(sql: str) -> str:
    return " ".join(sql.split())


def _hint(message: str) -> str:
    hints = {
        "not a database": "give a store of nfsrdma",
        "readonly": "the file or its folder cannot be written",
        "unable to open": "check that its folder exists and can be written",
        "locked": "another program writes to it; give another file",
        "disk I/O error": "see the kernel's log, and the quota and free space of its disk",
    }
    known = (hint for word, hint in hints.items() if word in message)
    return next(known, "the store is damaged; give another file")


def _of_load(row: tuple[Any, ...]) -> tuple[str, tuple[Sample, ...]]:
    return str(row[0]), tuple(as_sample(sample) for sample in json.loads(row[1]))


def _plan_row(plan: Plan) -> tuple[str, tuple[Any, ...]]:
    data = plan.to_json()
    # programs from before existing mounts read all other sweeps
    if data["existing"] is None:
        del data["existing"]
    row = (plan.uid, datetime.now(UTC).isoformat(timespec="seconds"), _json(data))
    return "INSERT OR IGNORE INTO plans (uid, created, plan) VALUES (?, ?, ?)", row


def _environment_row(facts: Mapping[str, str]) -> tuple[str, tuple[Any, ...]]:
    sql = "INSERT OR IGNORE INTO environments (uid, facts) VALUES (?, ?)"
    return sql, (environment_uid(facts), _json(dict(facts)))


def _trial_row(trial: Trial) -> tuple[str, tuple[Any, ...]]:
    values = trial.to_json() | {"cell": trial.cell.key}
    return _INSERT, tuple(_encode(values[name]) for name in _HINTS)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _encode(value: object) -> object:
    return _json(value) if isinstance(value, dict) else value


def _trial(row: tuple[Any, ...]) -> Trial:
    values = {name: _decode(name, value) for name, value in zip(_HINTS, row, strict=True)}
    _check(values)
    return _assembled(values)


def _decode(name: str, value: Any) -> Any:
    kind = _HINTS[name]
    if kind is Cell:
        return _checked_cell(Cell.from_key(value))
    if kind in (int, float, bool, str):
        return kind(value)
    decoded = json.loads(value)
    if not isinstance(decoded, dict):
        raise ValueError(f"{name}: expected a mapping, found {type(decoded).__name__}")
    return decoded


def _check(values: Mapping[str, Any]) -> None:
    """Raise ValueError for figures that no trial has."""
    for name, value in values.items():
        if isinstance(value, int | float) and not 0 <= value < _MOST:
            raise ValueError(f"{name}: expected a number of 0 to {_MOST:g}, found {value}")
    if values["status"] == OK and not values["throughput"]:
        raise ValueError("throughput: expected more than 0 MB/s in a successful trial, found 0")
    if values["began"]:
        datetime.fromisoformat(values["began"]).timestamp()
    for name in ("cpu_modes", "rpc_counts", "rdma"):
        if not all(type(value) in (int, float) for value in values[name].values()):
            raise ValueError(f"{name}: expected numbers, found {values[name]}")


def _checked_cell(cell: Cell) -> Cell:
    """The cell; ValueError for values of other types, or below the least."""
    if wrong := integer_fault(cell, _LEAST):
        raise ValueError(f"cell: {wrong}")
    marks = cell.direct, cell.as_mounted
    if not isinstance(cell.transport, str) or not all(isinstance(mark, bool) for mark in marks):
        raise ValueError(f"cell: expected a transport, found {cell.transport!r}")
    return cell


# of nanoseconds, SQLite's largest number
_MOST = 1e19
_LEAST = {"rsize": 1, "read_ahead": 0, "nconnect": 1, "jobs": 1, "depth": 1, "read_ahead_kb": 0}


def _facts(facts: object) -> dict[str, str]:
    if not isinstance(facts, dict) or not all(isinstance(v, str) for v in facts.values()):
        raise ValueError("environment: expected names with texts")
    return facts


# "order" is an SQL keyword, so names are quoted; they are fields of Trial, not user input
_COLUMNS = ", ".join(f'"{name}"' for name in _HINTS)
_SELECT = f"SELECT {_COLUMNS} FROM trials WHERE plan = ifnull(?, plan) ORDER BY rowid"  # noqa: S608
_INSERT = f"INSERT OR IGNORE INTO trials ({_COLUMNS}) VALUES ({', '.join('?' * len(_HINTS))})"  # noqa: S608
_TYPED = "\n".join(
    f'  "{name}" {_SQL_TYPES.get(_HINTS[name], "TEXT")} NOT NULL,' for name in _HINTS
)
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE plans (uid TEXT PRIMARY KEY, created TEXT NOT NULL, plan TEXT NOT NULL);
CREATE TABLE environments (uid TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE notes (plan TEXT, key TEXT, value TEXT, PRIMARY KEY (plan, key));
CREATE TABLE trials (
{_TYPED}
  UNIQUE (plan, cell, run)
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""
_TABLES = {_words(sql) for sql in _SCHEMA.split(";") if "CREATE TABLE" in sql}
# of statements and of the tables' definitions, which have this limit, too
_LEAST_LENGTH = 1 << 16

_Key = tuple[str, Cell, int]


@dataclass(frozen=True)
class Merged:
    """The content of a store after a merge, and the number of new trials."""

    plans: int
    trials: int
    new: int
    hosts: tuple[str, ...]


@dataclass
class _Content:
    plans: dict[str, Plan] = field(default_factory=dict)
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)
    trials: dict[_Key, Trial] = field(default_factory=dict)
    loads: list[tuple[str, tuple[Sample, ...]]] = field(default_factory=list)

    def take(self, store: Store) -> None:
        """Add the content of a store; StoreError when it contradicts the others or itself."""
        for plan in store.plans():
            _agree(store, "plan", self.plans.setdefault(plan.uid, plan), plan)
        for uid, facts in store.environments().items():
            if environment_uid(facts) != uid:
                raise StoreError(f"{store.path}: environment {uid} does not match its uid",
                                 "the store is damaged")  # fmt: skip
            self.environments[uid] = facts
        for trial in store.trials():
            if trial.plan not in self.plans:
                raise StoreError(f"{store.path}: a trial has no plan", "the store is damaged")
            key = (trial.plan, trial.cell, trial.run)
            _agree(store, "trial", self.trials.setdefault(key, trial), trial)
        self.loads += store.loads().items()

    def in_order(self) -> tuple[list[Plan], list[Trial]]:
        """Plans by their first trial, trials by when they started."""
        trials = sorted(self.trials.values(), key=lambda t: (t.started, t.order))
        first: dict[str, int] = {}
        for index, trial in enumerate(trials):
            first.setdefault(trial.plan, index)
        known = self.plans.values()
        return sorted(known, key=lambda plan: first.get(plan.uid, -1)), trials


def merge(out: Path, stores: Iterable[Path], loads: Mapping[str, Sequence[Sample]] = {}) -> Merged:
    """Merge ``stores`` and the CPU samples ``loads`` of servers into ``out``, which may be new.

    Existing rows stay unchanged, so a second merge changes nothing.

    Raises StoreError and writes nothing when a file is not a store or two stores disagree.
    """
    content = _Content()
    before = 0
    if out.exists():
        with Store(out, read_only=True) as kept:
            content.take(kept)
        before = len(content.trials)
    for path in stores:
        with Store(path, read_only=True) as store:
            content.take(store)
    plans, trials = content.in_order()
    with Store(out) as store:
        store.add_all(plans, content.environments.values(), trials)
        for host, samples in [*content.loads, *loads.items()]:
            store.add_load(host, samples)
    names = {facts.get("host", "") for facts in content.environments.values()}
    return Merged(len(plans), len(trials), len(trials) - before, tuple(sorted(names)))


def _agree(store: Store, kind: str, here: object, there: object) -> None:
    if here != there:
        raise StoreError(f"{store.path} has another {kind} of the same name as another store",
                         "merge copies of one sweep from one place only")  # fmt: skip


def as_csv(store: Store) -> str:
    """One row per trial; the cell's parts are columns of their own, mappings are JSON text."""
    rows = [_row(trial) for trial in store.trials()]
    names = list(rows[0]) if rows else ["plan"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_facts(store: Store) -> dict[str, Any]:
    """Plans, environments and trials as plain values, for JSON."""
    return {
        "plans": [plan.to_json() for plan in store.plans()],
        "environments": store.environments(),
        "trials": [trial.to_json() for trial in store.trials()],
    }


def _row(trial: Trial) -> dict[str, Any]:
    data = trial.to_json()
    cell = {f"cell_{name}": value for name, value in data.pop("cell").items()}
    return {name: _flat(value) for name, value in {**cell, **data}.items()}


def _flat(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | tuple | list) else value
