# SPDX-License-Identifier: Apache-2.0
"""The BPF program of some probe sets: its text, and its events on this kernel.

The events are not cached, because modules are loaded and unloaded.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nfsrdma_tools.files import shipped

__all__ = [
    "ISSUER", "NAMES", "TRACEFS", "TRANSPORTS", "Missing", "Program", "has_event", "has_system",
    "present", "program", "record_checks", "rows", "unreadable",
]  # fmt: skip

TRACEFS = Path("/sys/kernel/tracing")
NAMES = tuple(sorted(file.stem for file in Path(__file__).parent.glob("sets/[a-z]*.py")))
"""The probe sets: modules of sets/.  Their programs are NAME.c and NAME_*.c in bpf/."""

_KALLSYMS = Path("/proc/kallsyms")
# The allocator of BPF, which a probe may call in any context: commits 7c8199e24fa0 ("bpf:
# Introduce any context BPF specific memory allocator") and 96da3f7d489d ("bpf: Relax the
# requirement to use preallocated hash maps in tracing progs."), both in Linux 6.1.  Older kernels
# warn of rows that are allocated in a probe, and those with PREEMPT_RT refuse them.
_ALLOCATOR = re.compile(r" bpf_mem_alloc_init\b")

TRANSPORTS = ("rpcrdma", "nfsrdma")
"""The modules that define a transport's trace events: the kernel's and ours."""

# PROBE(system, event) with its body, on one line or up to a brace at the start of a line
_PROBE = re.compile(r"^PROBE\((\w+), (\w+)\)(?: .*\}|\n(?:.*\n)*?\})$", re.MULTILINE)
Pair = tuple[str, str]
# members of an event's record: in a probe, and in the kernel's description
_READ = re.compile(r"\bargs->(\w+)|\bTP_DATA_LOC_READ_STR\([^,]+, (\w+),")
_MEMBER = re.compile(
    r"^\tfield:([^;]*?)\b(\w+)(?:\[[^;]*\])?;\toffset:(\d+);\tsize:(\d+);", re.MULTILINE
)
_DEFINE = re.compile(r"^#define (\w+)((?:.*\\\n)*.*)$", re.MULTILINE)
# event systems of a module of that name; the others are built into the kernel
_MODULES = {*TRANSPORTS, "sunrpc", "nfs", "nfsd"}
# one entry per client: of sunrpc, of nfsd (NFSv4 only)
_CLIENTS = (Path("/sys/kernel/sunrpc/rpc-clients"), Path("/proc/fs/nfsd/clients"))
# NFSv3 has 22; a client uses some 30 of NFSv4's 70
_PROCEDURES = 32
_FEWEST, _MOST = 8192, 1 << 16
# where all rows are allocated at once: bytes of a CPU's row of all probe sets, and of all rows
_ROW_BYTES, _PREALLOCATED = 3072, 128 << 20
_FEWEST_PREALLOCATED = 512

ISSUER = "issuer"
"""The file of bpf/ that knows which process issues an RPC."""


@dataclass(frozen=True)
class Missing:
    """An event that cannot be counted here, and why."""

    event: str
    reason: str


def has_event(system: str, event: str) -> bool:
    """Whether the kernel or a loaded module has the event."""
    # called each second for all counted events: Path takes five times as long
    return os.path.isdir(f"{TRACEFS}/events/{system}/{event}")  # noqa: PTH112


def has_system(name: str) -> bool:
    """Whether this event system exists, so that its module is loaded."""
    return (TRACEFS / "events" / name).is_dir()


@dataclass(frozen=True)
class Program:
    """Source text in bcc's dialect, its compiler flags, its events and its missing events.

    ``sets`` are the probe sets of the text: one that reads what a record lacks is missing as a
    whole, because its counts would be wrong.
    """

    sets: tuple[str, ...]
    text: str
    flags: tuple[str, ...]
    events: tuple[str, ...]
    missing: tuple[Missing, ...]


def program(sets: Sequence[str], pid: int = 0) -> Program:
    """The program of the probe ``sets`` for the running kernel.

    With ``pid`` it counts only RPCs of that process, in the probe sets that filter by process.
    """
    lacking = unreadable(sets)
    kept = tuple(name for name in sets if name not in lacking)
    sets = (*((ISSUER,) if pid and kept else ()), *kept)
    allocates = allocates_rows()
    texts, users = _texts(tuple(sets)), _users(tuple(sets))
    there = present(sets)
    # a transport module that is not loaded has no RPCs
    asked = [pair for pair in users if pair[0] not in TRANSPORTS or has_system(pair[0])]
    parts = [_part(name, text, there) for name, text in texts.items()]
    probes = [_probe(*pair, users[pair]) for pair in there]
    checks = [record_checks(pair, "".join(texts[name] for name in users[pair])) for pair in there]
    return Program(
        sets=kept,
        text="\n".join(((source() / "account.h").read_text(), *probes, *parts, *checks)),
        flags=(
            f"-DPAGE_BITS={_page_bits()}",
            f"-DROWS={rows(allocates)}",
            f"-DWHEN_NEEDED={int(allocates)}",
            *((f"-DPID={pid}",) if pid else ()),
        ),
        events=tuple(f"{system}:{event}" for system, event in there),
        missing=(
            *(_missing(*pair) for pair in asked if pair not in there),
            *(Missing(f"probe set {name}", reason) for name, reason in lacking.items()),
        ),
    )


def unreadable(sets: Sequence[str]) -> dict[str, str]:
    """Those of the probe ``sets`` whose events lack members that the sets read, and which."""
    return {name: reason for name in sets if (reason := _unreadable(name))}


def _unreadable(name: str) -> str:
    """Which members a probe set reads that records of this kernel lack; "" if it lacks none."""
    texts = _texts((name,)).values()
    for pair in present([name]):
        lacks = {member for text in texts for member in _reads(pair, text)} - _members(pair)
        if lacks:
            return f"the record of {':'.join(pair)} has no {', '.join(sorted(lacks))} here"
    return ""


def _reads(pair: Pair, text: str) -> set[str]:
    """The members that the probe of an event reads, also by the macros that it uses."""
    macros = dict(_DEFINE.findall(text))
    body = "".join(match[0] for match in _PROBE.finditer(text) if match.groups() == pair)
    while used := {name for name in macros if re.search(rf"\b{name}\b", body)}:
        body += "".join(macros.pop(name) for name in used)
    return {name for names in _READ.findall(body) for name in names if name}


def _members(event: Pair) -> set[str]:
    """The members of an event's record."""
    return {groups[1] for groups in _MEMBER.findall(_format(event))}


def _format(event: Pair) -> str:
    return (TRACEFS / "events" / "/".join(event) / "format").read_text()


def present(sets: Sequence[str]) -> tuple[Pair, ...]:
    """The events of the probe ``sets`` that the kernel has now, as (system, event).

    Loading or unloading a module changes the result; the program must then be compiled again.
    """
    users = _users(tuple(sets))
    loaded = {system for system in {pair[0] for pair in users} if has_system(system)}
    return tuple(pair for pair in users if pair[0] in loaded and has_event(*pair))


@cache
def _texts(sets: tuple[str, ...]) -> dict[str, str]:
    files = (source() / f"{name}.c" for name in sets)
    parts = (part for file in files for part in (file, *sorted(source().glob(f"{file.stem}_*.c"))))
    return {part.stem: part.read_text() for part in parts}


@cache
def _users(sets: tuple[str, ...]) -> dict[Pair, list[str]]:
    """The files that count each event, by event in order."""
    users: dict[Pair, list[str]] = {}
    for name, text in _texts(sets).items():
        for pair in _PROBE.findall(text):
            users.setdefault(pair, []).append(name)
    return dict(sorted(users.items()))


def rows(allocates: bool = True) -> int:
    """The size of maps: enough rows for the present clients and for new ones, a power of two.

    One row per procedure of each client of sunrpc and of nfsd.  The kernel allocates memory for
    rows in use, and an unused row takes 16 bytes; without ``allocates``, it allocates all rows of
    all CPUs when the map is made.
    """
    clients = sum(1 for folder in _CLIENTS for _ in folder.glob("*"))
    fewest, most = _FEWEST, _MOST
    if not allocates:
        fewest = _FEWEST_PREALLOCATED
        room = _PREALLOCATED // (_ROW_BYTES * os.sysconf("SC_NPROCESSORS_CONF"))
        most = max(fewest, 1 << (room.bit_length() - 1))
    needed = max(_PROCEDURES * clients * 2, fewest)
    return min(1 << (needed - 1).bit_length(), most)


def allocates_rows() -> bool:
    """Whether the kernel can allocate a row of a map in a probe, in any context."""
    try:
        with _KALLSYMS.open() as lines:
            return any(_ALLOCATOR.search(line) for line in lines)
    except OSError:
        return False


def _page_bits() -> int:
    return os.sysconf("SC_PAGE_SIZE").bit_length() - 1


def _part(name: str, text: str, there: Sequence[Pair]) -> str:
    """A file without the probes of absent events: their records have no type here."""
    kept = _PROBE.sub(lambda match: match[0] if match.groups() in there else "", text)
    return f"#undef ACCOUNT\n#define ACCOUNT {name}\n{kept}"


def _probe(system: str, event: str, sets: Sequence[str]) -> str:
    """One function per event for all probe sets: bcc attaches it by its name."""
    record = f"struct tracepoint__{system}__{event}"
    names = [f"{name}__{system}__{event}" for name in sets]
    declared = "".join(f"static int {name}({record} *args);\n" for name in names)
    called = " ".join(f"{name}(args);" for name in names)
    return f"{record};\n{declared}TRACEPOINT_PROBE({system}, {event}) {{ {called} return 0; }}\n"


def record_checks(event: Pair, text: str) -> str:
    """Assertions that bcc's record has the members that ``text`` reads where the kernel's has them.

    bcc makes the structure of the kernel's description of the record, with types that bpf/headers
    defines: a type of another size would move all later members.
    """
    record = f"struct tracepoint__{'__'.join(event)}"
    read = {name for names in _READ.findall(text) for name in names}
    checks = []
    for kind, member, offset, size in _MEMBER.findall(_format(event)):
        if member in read:
            name = f"data_loc_{member}" if kind.startswith("__data_loc") else member
            checks.append(
                f"_Static_assert(__builtin_offsetof({record}, {name}) == {offset} &&"
                f" sizeof((({record} *)0)->{name}) == {size},"
                f' "{member} is elsewhere in {":".join(event)}");\n'
            )
    return "".join(checks)


def source() -> Path:
    """The folder bpf/: in a wheel it is part of the package, in a checkout beside it."""
    return shipped("bpf")


def _missing(system: str, event: str) -> Missing:
    if system in _MODULES and not has_system(system):
        return Missing(f"{system}:{event}", f"module {system} is not loaded")
    return Missing(f"{system}:{event}", "this kernel has no such event")
