# SPDX-License-Identifier: Apache-2.0
"""Checks of NFS mounts: mount.nfs, read-ahead against rsize and udev's rules, and their past.

The counters of a mount in mountstats tell what has been, not what is: each such finding is a
warning with its doubt, and a mount without anything noticeable has none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.doctor import inputs
from nfsrdma_tools.doctor.finding import Finding, Status, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import fstab, mountinfo, mountstats, readahead, udev_rules, units
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.mountstats import MountStats, Operation
from nfsrdma_tools.host.nfs.udev_rules import ReadAheadRule, RuleFile
from nfsrdma_tools.host.nfsd import configuration
from nfsrdma_tools.host.tune import udev_helper

__all__ = [
    "Intended",
    "history",
    "installed",
    "namespace",
    "read_ahead",
    "udev_rule",
    "utils",
    "written",
]

_BDI = "sys/class/bdi"
_KERNEL = "none: each mount gets the kernel's 128 KiB"
_SHOWN = 3
_OF_HOST = (
    "mount the host's /proc, /sys and root, and give --path.procfs, --path.sysfs and --path.rootfs"
)
_TUNED = "nfsrdma tune"


@check(10, "mounts")
def namespace(machine: Machine) -> Iterator[Finding]:
    """The mounts that the other checks read are those of the host, not those of a container."""
    if machine.hides_mounts:
        text = "these are the mounts of a container, not of its host"
        yield Finding("mounts", "unknown", text, "the mounts of the host", _OF_HOST)


@check(130, "mount.nfs")
def utils(machine: Machine) -> Iterator[Finding]:
    """nfs-utils is installed, if this host is to mount NFS."""
    if not installed(machine):
        remedy = packages.install("nfs-utils", machine=machine)
        needed = any(fstab.nfs_lines(machine.text("etc/fstab"))) or units.nfs_units(machine)
        status: Status = "error" if needed else "warning"
        text = "not installed" if needed else "not installed; nothing here defines an NFS mount"
        yield Finding("mount.nfs", status, text, "nfs-utils", remedy)
        return
    result = inputs.mount_program(machine)
    version = re.search(r"nfs-utils ([\w.]+)", result.stdout + result.stderr)
    yield Finding("mount.nfs", "ok", f"nfs-utils {version[1] if version else '(unknown)'}")


def installed(machine: Machine) -> bool:
    """Whether mount.nfs is installed; NotRecordedError if that is unknown."""
    return machine.has_program("mount.nfs")


@check(140, "read-ahead")
def read_ahead(machine: Machine) -> Iterator[Finding]:
    """The read-ahead of each NFS mount covers at least one READ of rsize, or is set on purpose.

    Since Linux 5.4 the kernel's default is 128 KiB for any rsize (commit c128e575514c, "NFS:
    Optimise the default readahead size").  Mounts with equal findings have one.
    """
    entries = _nfs(machine)
    intended = Intended(machine)
    equal: dict[tuple[Status, str, str, str], list[Entry]] = {}
    for entry in entries:
        equal.setdefault(_window(machine, intended, entry), []).append(entry)
    if entries and all(window[0] == "unknown" for window in equal):
        machine.require(f"{_BDI}/{entries[0].device}/read_ahead_kb")
    for (status, text, expected, remedy), same in equal.items():
        others = len({entry.directory for entry in same}) - 1
        more = f"; the same for {others} other mount{'s' * (others > 1)}" if others else ""
        yield Finding(f"read-ahead {same[0].directory}", status, f"{text}{more}", expected, remedy)


def _window(machine: Machine, intended: Intended, entry: Entry) -> tuple[Status, str, str, str]:
    """The status of a mount's read-ahead, what was found, what is expected, and the remedy."""
    try:
        machine.require(f"{_BDI}/{entry.device}/read_ahead_kb")
        kb = readahead.get_kb(entry.device, machine)
    except (ValueError, UserError):
        return "unknown", f"cannot read its read_ahead_kb below /{_BDI}", "", ""
    try:
        rsize = int(entry.options["rsize"])
    except (KeyError, ValueError):
        return "unknown", f"read-ahead {kb} KiB; mountinfo has no rsize of this mount", "", ""
    text = f"{kb} KiB, {readahead.blocks_for(kb, rsize):.4g} blocks of rsize {rsize // 1024}K"
    values = intended.values(entry)
    if sources := [source for value, source in values if written(value, kb)]:
        return "ok", f"{text}, set by {sources[-1]}", "", ""
    if kb * 1024 >= rsize:
        return "ok", text, "", ""
    remedy = "find the best with nfsrdma sweep, make it persistent with nfsrdma tune apply"
    if values:
        value, source = values[-1]
        text += f"; {source} has {value} KiB: the mount is older, or the rule failed"
        remedy = "mount again, and see journalctl -b -u systemd-udevd"
    return "warning", text, "at least one block", remedy


def written(value: int, kb: int) -> bool:
    """Whether the kernel makes ``kb`` of a value that is written: whole pages, of any size."""
    return kb in (value, *(value - value % page for page in (4, 16, 64)))


class Intended:
    """The read-ahead that nfsrdma tune and udev's rules set."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def values(self, entry: Entry) -> list[tuple[int, str]]:
        """The values in KiB that may be in effect on a mount, and who sets them."""
        tuned = self._tuned.get(str(entry.directory))
        if tuned is not None:
            # its rule comes last
            return [(tuned, _TUNED)]
        values = []
        for rule in _in_effect(udev_rules.rules_for(self._files, entry.device, is_nfs=True)):
            if rule.value:
                values.append((int(rule.value), str(rule)))
            elif "nfsrahead" in rule.program:
                value = self._conf.get(entry.fstype, self._conf.get("default"))
                values += [(value, f"[nfsrahead] in nfs.conf, by {rule}")] if value else []
        return values

    @cached_property
    def _conf(self) -> dict[str, int]:
        return configuration.read_ahead_values(self._machine)

    @cached_property
    def _files(self) -> list[RuleFile]:
        return [] if _without_udev(self._machine) else udev_rules.effective_files(self._machine)

    @cached_property
    def _tuned(self) -> dict[str, int]:
        path = self._machine.path(udev_helper.CONFIG.lstrip("/"))
        try:
            return udev_helper.tuned(files.open_file(path))
        except OSError as error:
            files.note_unread(error)
        except (ValueError, KeyError, TypeError):
            pass
        return {}


def _in_effect(rules: list[ReadAheadRule]) -> list[ReadAheadRule]:
    """The last rule that certainly applies, and the later ones that may."""
    last = max((i for i, rule in enumerate(rules) if rule.certain), default=0)
    return rules[last:]


@check(150, "udev rule")
def udev_rule(machine: Machine) -> Iterator[Finding]:
    """The udev rule that sets the read-ahead of new NFS mounts sets it for no other device."""
    name = "udev rule"
    if why := _without_udev(machine):
        yield Finding(name, "unknown", f"{why}: the rules here do not count")
        return
    missing = _missing_folders(machine)
    known = udev_rules.effective_files(machine)
    rules = udev_rules.rules_for(known, _any_device(machine), is_nfs=True)
    yield Finding(name, "ok", _described(machine, rules, known))
    for rule in dict.fromkeys(rules):
        if kinds := _others(known, rule):
            yield _wide(machine, rule, kinds)
    if missing:
        text = f"/{missing[0]} was not recorded; its rules may mask or follow these"
        yield Finding(name, "unknown", text)


def _without_udev(machine: Machine) -> str:
    """Why no udev of this host's files sets the read-ahead; "" if one may."""
    if machine.in_container:
        return "this is a container, and the host's udev sets the read-ahead"
    if not inputs.udev_runs(machine):
        return "udev does not run here"
    return ""


def _missing_folders(machine: Machine) -> list[str]:
    """The folders that nobody recorded; NotRecordedError if that is all of them."""
    wanted = ("usr/lib/udev/rules.d", "etc/udev/rules.d")
    there = [folder for folder in udev_rules.FOLDERS if machine.path(folder).is_dir()]
    if not there:
        machine.require(wanted[0])
    if machine.recording is None or machine.recording.complete:
        return []
    same = {"lib/udev/rules.d": wanted[0]}
    return [folder for folder in wanted if folder not in [same.get(path, path) for path in there]]


def _any_device(machine: Machine) -> str:
    """The device of a mount, or one like those of mounts."""
    with contextlib.suppress(OSError, UserError):
        return next((entry.device for entry in _nfs(machine)), "0:45")
    return "0:45"


def _described(machine: Machine, rules: list[ReadAheadRule], known: list[RuleFile]) -> str:
    """Which rule is in effect for NFS, its value, and what it masks and overwrites."""
    last = _in_effect(rules)
    parts = [
        f"{rule} {'sets' if rule.certain else 'may set'} the read-ahead of new NFS mounts: "
        f"{_value(machine, rule)}"
        for rule in last
    ]
    overwritten = [str(rule) for rule in dict.fromkeys(rules[: -len(last)] if last else ())]
    if overwritten:
        parts.append(f"overwrites {', '.join(overwritten)}")
    used = {rule.file for rule in rules}
    for file in known:
        if file.masked:
            verb = "masks" if file.path in used else "disables"
            parts.append(f"{file.path} {verb} {', '.join(file.masked)}")
    return "; ".join(parts if last else [_KERNEL, *parts])


def _value(machine: Machine, rule: ReadAheadRule) -> str:
    if rule.value:
        return f"{rule.value} KiB"
    if "nfsrahead" in rule.program:
        known = configuration.read_ahead_values(machine)
        values = ", ".join(f"{name} {kb}" for name, kb in known.items())
        return f"[nfsrahead] in nfs.conf has {values or 'no value'}, the default is 128 KiB"
    return "what nfsrdma tune has" if "nfsrdma" in rule.program else "what its program prints"


def _others(known: list[RuleFile], rule: ReadAheadRule) -> list[str]:
    """The kinds of devices other than NFS that a rule certainly applies to."""
    return [
        kind
        for kind, device in udev_rules.KINDS.items()
        for other in udev_rules.rules_for(known, device, is_nfs=False)
        if other == rule and other.certain
    ]


def _wide(machine: Machine, rule: ReadAheadRule, kinds: list[str]) -> Finding:
    every = "every bdi" if len(kinds) == len(udev_rules.KINDS) else "other devices than NFS"
    value = f"to {rule.value} KiB " if rule.value else ""
    text = f"{rule} sets the read-ahead {value}for {every}: NFS, {', '.join(kinds)}"
    if here := _with_value(machine, rule.value):
        text += f"; here {', '.join(here[:_SHOWN])}"
        text += f" and {len(here) - _SHOWN} more" if here[_SHOWN:] else ""
    if rule.torn:
        text += "; the line before it has no backslash at its end, so its conditions do not count"
    remedy = (
        "set nfs= and nfs4= in [nfsrahead] of nfs.conf in place of it, or add the condition "
        'PROGRAM="/usr/bin/grep -qw %k /proc/fs/nfsfs/volumes"'
    )
    return Finding("udev rule", "warning", text, "a rule for NFS only", remedy)


def _with_value(machine: Machine, value: str) -> list[str]:
    """The devices of this host that have this read-ahead and are none of NFS."""
    if not value:
        return []
    nfs = set[str]()
    with contextlib.suppress(OSError, UserError):
        nfs = {entry.device for entry in _nfs(machine)}
    windows = sorted(machine.path(_BDI).glob("*/read_ahead_kb"))
    by_device = {path.parent.name: files.readable(path).strip() for path in windows}
    return [
        device
        for device, kb in by_device.items()
        if device not in nfs and kb.isdecimal() and written(int(value), int(kb))
    ]


def _nfs(machine: Machine) -> list[Entry]:
    return [entry for entry in mountinfo.of(machine) if entry.is_nfs]


# the client closes a connection without requests: XS_IDLE_DISC_TO in net/sunrpc/xprtsock.c,
# RPCRDMA_IDLE_DISC_TO in net/sunrpc/xprtrdma/xprt_rdma.h
_IDLE_S = 300
_FEW_CONNECTS = 3
_FEW = 10
_PER_THOUSAND = 1
# requests that one lost connection resends: RPCRDMA_DEF_SLOT_TABLE in net/sunrpc/xprtrdma
_BURST = 128
_LEAST_CONNECT_S = 60
_LEAST_SENDS = 1000
_DOUBT = "a restart of the server or of a link explains some at once"
_NEXT = "see when: nfsrdma explain; watch: nfsrdma top"


@check(180, "history")
def history(machine: Machine) -> Iterator[Finding]:
    """No mount has reconnected, sent again or waited for slots more than it should."""
    by_directory = {entry.directory: entry for entry in mountinfo.of(machine) if entry.is_nfs}
    if not by_directory:
        return
    counted = {
        by_directory[stats.directory].device: _Mount.of(by_directory[stats.directory], stats)
        for stats in reversed(mountstats.of(machine))
        if stats.directory in by_directory
    }
    # the first of several mount points of a device
    mounts = list(reversed(counted.values()))
    clients: dict[object, list[_Mount]] = {}
    for mount in mounts:
        yield from _resent(mount)
        if mount.stats.xprts:
            clients.setdefault(mount.client, []).append(mount)
    for sharing in clients.values():
        yield from _Connections(sharing).findings()
    yield from _uncounted(by_directory.values(), mounts)


def _uncounted(entries: Iterable[Entry], counted: list[_Mount]) -> Iterator[Finding]:
    """One line about the mounts whose history nobody can tell."""
    known = {mount.entry.device for mount in counted if mount.stats.xprts}
    missing = {entry.device: entry.directory for entry in entries if entry.device not in known}
    if missing:
        first, *others = missing.values()
        more = f" and {len(others)} more" if others else ""
        text = f"not judged: mountstats has no counters of the connections of {first}{more}"
        yield Finding("history", "unknown", text)


class _Mount(NamedTuple):
    entry: Entry
    stats: MountStats
    sent: tuple[Operation, ...]
    """The kinds of RPC that were sent: a few of some sixty."""

    @classmethod
    def of(cls, entry: Entry, stats: MountStats) -> _Mount:
        return cls(
            entry,
            stats,
            tuple(operation for operation in stats.operations.values() if any(operation)),
        )

    @property
    def name(self) -> str:
        return f"history {self.entry.directory}"

    @property
    def client(self) -> object:
        """Equal for mounts that have the same connections."""
        options = self.entry.options
        columns = ("port", "bind_count", "connect_count", "connect_time")
        return (
            *(options.get(name) for name in ("addr", "vers", "proto")),
            *((x.proto, *(x.counters.get(name) for name in columns)) for x in self.stats.xprts),
        )

    @property
    def transmissions(self) -> int:
        return sum(operation.transmissions for operation in self.sent)


def _resent(mount: _Mount) -> Iterator[Finding]:
    """Operations that were sent more than once, or that timed out."""
    operations = again = timeouts = 0
    for operation in mount.sent:
        operations += operation.operations
        again += max(operation.transmissions - operation.operations, 0)
        timeouts += operation.timeouts
    connections = max(len(mount.stats.xprts), 1)
    if not _noticeable(max(again, timeouts), operations, mount.stats.age_s, connections):
        return
    text = (
        f"{_since(mount.stats.age_s)}: {again} retransmissions in {operations} operations "
        f"({_share(again, operations)}), {timeouts} timeouts; {_DOUBT}"
    )
    expected = "less than 1 of 1000 operations sent again"
    yield Finding(mount.name, "warning", text, expected, _NEXT)


class _Connections:
    """The connections that some mounts share, since the oldest of these mounts."""

    def __init__(self, mounts: list[_Mount]) -> None:
        oldest = max(mounts, key=lambda mount: mount.stats.age_s)
        self._name = oldest.name
        self._age_s = oldest.stats.age_s
        self._xprts = oldest.stats.xprts
        others = [str(mount.entry.directory) for mount in mounts if mount is not oldest]
        shown = ", ".join(others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if others[_SHOWN:] else ""
        self._sharing = f" (shared with {shown}{more})" if others else ""
        # what mounts that have gone, or of other mount namespaces, sent, too; a client of NFSv4
        # renews its lease once in a while
        seen = sum(mount.transmissions for mount in mounts)
        self._has_others = self._sum("sends") > 2 * seen + self._age_s + _LEAST_SENDS

    def findings(self) -> Iterator[Finding]:
        """Warnings about reconnects, replies without a request, and a queue for slots."""
        yield from self._reconnects()
        yield from self._bad_xids()
        yield from self._backlog()

    def _sum(self, column: str) -> int:
        return sum(xprt.counters.get(column, 0) for xprt in self._xprts)

    def _reconnects(self) -> Iterator[Finding]:
        idle = self._age_s // _IDLE_S
        connects = [xprt.counters.get("connect_count", 0) for xprt in self._xprts]
        unexplained = sum(max(count - 1 - idle, 0) for count in connects)
        waited = self._sum("connect_time")
        slow = max(_LEAST_CONNECT_S, self._age_s // 100) <= waited <= self._age_s * len(connects)
        if unexplained < _FEW_CONNECTS and not slow:
            return
        number = f" by {len(connects)} connections" if len(connects) > 1 else ""
        text = (
            f"{_since(self._age_s)}{self._sharing}: connected {sum(connects)} times{number}, "
            f"which took {waited} s; {_DOUBT}"
        )
        if self._has_others:
            text += "; not judged: others use these connections, which may be older than the mount"
            yield Finding(self._name, "unknown", text)
            return
        most = (1 + idle) * len(connects)
        expected = f"at most {most}: idle connections close after {_IDLE_S // 60} minutes"
        yield Finding(self._name, "warning", text, expected, _NEXT)

    def _bad_xids(self) -> Iterator[Finding]:
        bad, received = self._sum("bad_xids"), self._sum("recvs")
        if not _noticeable(bad, received, self._age_s, len(self._xprts)):
            return
        text = (
            f"{_since(self._age_s)}{self._sharing}: {bad} of {received} replies came for no "
            f"request ({_share(bad, received)}); interrupted programs and soft mounts do that, too"
        )
        yield Finding(self._name, "warning", text, "no reply with an unknown XID", _NEXT)

    def _backlog(self) -> Iterator[Finding]:
        sends, waiting = self._sum("sends"), self._sum("bklog_u")
        if sends < _LEAST_SENDS or waiting < sends:
            return
        text = (
            f"{_since(self._age_s)}{self._sharing}: {waiting / sends:.1f} requests waited for a "
            "slot at each request sent; an average, which a burst can raise for long"
        )
        remedy = "see whether they wait now: nfsrdma top; if so, mount with a greater nconnect"
        yield Finding(self._name, "warning", text, "less than 1", remedy)


def _noticeable(count: int, among: int, age_s: int, connections: int) -> bool:
    """Whether there are many for the work, or more than one per hour beside a burst."""
    many = count * 1000 >= among * _PER_THOUSAND
    return count >= _FEW and (many or count > _BURST * connections + age_s / 3600)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2g} %" if whole else "of none"


def _since(age_s: int) -> str:
    """How long ago the mount was made, in the two largest units."""
    days, rest = divmod(age_s, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((at for at, (number, _) in enumerate(units) if number), 3)
    shown = " ".join(f"{number} {unit}" for number, unit in units[first : first + 2])
    return f"mounted {shown} ago"
