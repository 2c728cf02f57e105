# SPDX-License-Identifier: Apache-2.0
"""The BPF program of some probe sets: its text, and its events on this kernel.

The events are not cached, because modules are loaded and unloaded.
"""

from __future__ import annotations

import importlib.resources
import os.path
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "ISSUER", "TRACEFS", "TRANSPORTS", "Missing", "Program", "has_event", "has_system", "present",
    "program", "record_checks", "rows",
]  # fmt: skip

TRACEFS = Path("/sys/kernel/tracing")

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
# event systems of a module of that name; the others are built into the kernel
_MODULES = {*TRANSPORTS, "sunrpc", "nfs", "nfsd"}
# one entry per client: of sunrpc, of nfsd (NFSv4 only)
_CLIENTS = (Path("/sys/kernel/sunrpc/rpc-clients"), Path("/proc/fs/nfsd/clients"))
# NFSv3 has 22; a client uses some 30 of NFSv4's 70
_PROCEDURES = 32
_FEWEST, _MOST = 8192, 1 << 16

ISSUER = "issuer"
"""The file of bpf/ that knows which process issues an RPC."""

# probe sets of more than one file
_PARTS = {
    "chunks": ("chunks", "chunks_ours"),
    "connections": ("connections", "credits"),
    "registrations": ("registrations", "registrations_ours"),
    "server": ("server", "server_sends", "server_ours"),
}


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
    """Source text in bcc's dialect, its compiler flags, its events and its missing events."""

    text: str
    flags: tuple[str, ...]
    events: tuple[str, ...]
    missing: tuple[Missing, ...]


def program(sets: Sequence[str], pid: int = 0) -> Program:
    """The program of the probe ``sets`` for the running kernel.

    With ``pid`` it counts only RPCs of that process, in the probe sets that filter by process.
    """
    sets = (*((ISSUER,) if pid else ()), *sets)
    texts, users = _texts(tuple(sets)), _users(tuple(sets))
    there = present(sets)
    # a transport module that is not loaded has no RPCs
    asked = [pair for pair in users if pair[0] not in TRANSPORTS or has_system(pair[0])]
    parts = [_part(name, text, there) for name, text in texts.items()]
    probes = [_probe(*pair, users[pair]) for pair in there]
    checks = [record_checks(pair, "".join(texts[name] for name in users[pair])) for pair in there]
    return Program(
        text="\n".join(((source() / "account.h").read_text(), *probes, *parts, *checks)),
        flags=(
            f"-DPAGE_BITS={_page_bits()}",
            f"-DROWS={rows()}",
            *((f"-DPID={pid}",) if pid else ()),
        ),
        events=tuple(f"{system}:{event}" for system, event in there),
        missing=tuple(_missing(*pair) for pair in asked if pair not in there),
    )


def present(sets: Sequence[str]) -> tuple[Pair, ...]:
    """The events of the probe ``sets`` that the kernel has now, as (system, event).

    Loading or unloading a module changes the result; the program must then be compiled again.
    """
    users = _users(tuple(sets))
    loaded = {system for system in {pair[0] for pair in users} if has_system(system)}
    return tuple(pair for pair in users if pair[0] in loaded and has_event(*pair))


@cache
def _texts(sets: tuple[str, ...]) -> dict[str, str]:
    names = [part for name in sets for part in _PARTS.get(name, (name,))]
    return {name: (source() / f"{name}.c").read_text() for name in names}


@cache
def _users(sets: tuple[str, ...]) -> dict[Pair, list[str]]:
    """The files that count each event, by event in order."""
    users: dict[Pair, list[str]] = {}
    for name, text in _texts(sets).items():
        for pair in _PROBE.findall(text):
            users.setdefault(pair, []).append(name)
    return dict(sorted(users.items()))


def rows() -> int:
    """The size of maps: enough rows for the present clients and for new ones.

    One row per procedure of each client of sunrpc and of nfsd.  The kernel allocates memory for
    rows in use; an unused row takes 16 bytes.
    """
    clients = sum(1 for folder in _CLIENTS for _ in folder.glob("*"))
    needed = max(_PROCEDURES * clients * 2, _FEWEST)
    return min(1 << (needed - 1).bit_length(), _MOST)


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
    described = (TRACEFS / "events" / "/".join(event) / "format").read_text()
    read = {name for names in _READ.findall(text) for name in names}
    checks = []
    for kind, member, offset, size in _MEMBER.findall(described):
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
    package = Path(str(importlib.resources.files("nfsrdma_tools")))
    inside = package / "data" / "bpf"
    return inside if inside.is_dir() else package.parent / "bpf"


def _missing(system: str, event: str) -> Missing:
    if system in _MODULES and not has_system(system):
        return Missing(f"{system}:{event}", f"module {system} is not loaded")
    return Missing(f"{system}:{event}", "this kernel has no such event")
