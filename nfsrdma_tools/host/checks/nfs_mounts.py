# SPDX-License-Identifier: Apache-2.0
"""Checks of mounting: mount.nfs, and read-ahead against rsize and udev's rules."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.checks.finding import Finding, Status
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import fstab, mountinfo, readahead, udev_rules, units
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.udev_rules import ReadAheadRule, RuleFile
from nfsrdma_tools.host.nfsd.configuration import NfsConf
from nfsrdma_tools.host.tune import udev_helper

__all__ = ["installed", "read_ahead", "udev_rule", "utils"]

_SBIN = ("sbin", "usr/sbin", "usr/local/sbin")
_BDI = "sys/class/bdi"
_KERNEL = "none: each mount gets the kernel's 128 KiB"
_CONTROL = Path("/run/udev/control")
_SHOWN = 3
_TUNED = "nfsrdma tune"


def utils(machine: Machine) -> Iterator[Finding]:
    """nfs-utils is installed, if this host is to mount NFS."""
    if not installed(machine):
        remedy = packages.install("nfs-utils", root=machine.root)
        needed = any(fstab.nfs_lines(machine.text("etc/fstab"))) or units.nfs_units(machine)
        status: Status = "error" if needed else "warning"
        found = "not installed" if needed else "not installed; nothing here defines an NFS mount"
        yield Finding("mount.nfs", status, found, "nfs-utils", remedy)
        return
    said = machine.run("mount.nfs", "-V")
    version = re.search(r"nfs-utils ([\w.]+)", said.stdout + said.stderr)
    yield Finding("mount.nfs", "ok", f"nfs-utils {version[1] if version else '(unknown)'}")


def installed(machine: Machine) -> bool:
    """Whether mount.nfs is installed; NotRecordedError if that is unknown."""
    paths = [f"{folder}/mount.nfs" for folder in _SBIN]
    return any(machine.path(path).exists() for path in paths) or machine.has(paths[0])


def read_ahead(machine: Machine) -> Iterator[Finding]:
    """The read-ahead of each NFS mount covers at least one READ of rsize, or is set on purpose.

    Since Linux 5.4 the kernel's default is 128 KiB for any rsize (commit c128e575514c, "NFS:
    Optimise the default readahead size").  Mounts with equal findings have one.
    """
    entries = _nfs(machine)
    intended = _Intended(machine)
    equal: dict[tuple[Status, str, str, str], list[Entry]] = {}
    for entry in entries:
        equal.setdefault(_window(machine, intended, entry), []).append(entry)
    if entries and all(found[0] == "unknown" for found in equal):
        machine.require(f"{_BDI}/{entries[0].device}/read_ahead_kb")
    for (status, found, expected, remedy), same in equal.items():
        others = len({entry.directory for entry in same}) - 1
        more = f"; the same for {others} other mount{'s' * (others > 1)}" if others else ""
        yield Finding(f"read-ahead {same[0].directory}", status, f"{found}{more}", expected, remedy)


def _window(machine: Machine, intended: _Intended, entry: Entry) -> tuple[Status, str, str, str]:
    """The status of a mount's read-ahead, what was found, what is expected, and the remedy."""
    try:
        machine.require(f"{_BDI}/{entry.device}/read_ahead_kb")
        kb = readahead.get_kb(entry.device, machine.path(_BDI))
        rsize = int(entry.options["rsize"])
    except (KeyError, ValueError, UserError):
        return "unknown", "the read-ahead of this mount cannot be read", "", ""
    found = f"{kb} KiB, {readahead.blocks_for(kb, rsize):.4g} blocks of rsize {rsize // 1024}K"
    values = intended.values(entry)
    if sources := [source for value, source in values if _written(value, kb)]:
        return "ok", f"{found}, set by {sources[-1]}", "", ""
    if kb * 1024 >= rsize:
        return "ok", found, "", ""
    remedy = "find the best with nfsrdma sweep, make it persistent with nfsrdma tune apply"
    if values:
        value, source = values[-1]
        found += f"; {source} has {value} KiB: the mount is older, or the rule failed"
        remedy = "mount again, and see journalctl -b -u systemd-udevd"
    return "warning", found, "at least one block", remedy


def _written(value: int, kb: int) -> bool:
    """Whether the kernel makes ``kb`` of a value that is written: whole pages, of any size."""
    return kb in (value, *(value - value % page for page in (4, 16, 64)))


class _Intended:
    """The read-ahead that nfsrdma tune and udev's rules set."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def values(self, entry: Entry) -> list[tuple[int, str]]:
        """The values in KiB that may be in effect on a mount, and who sets them."""
        tuned = self._tuned.get(str(entry.directory))
        if tuned is not None:
            # its rule comes last
            return [(tuned, _TUNED)]
        found = []
        for rule in _in_effect(udev_rules.rules_for(self._files, entry.device, is_nfs=True)):
            if rule.value:
                found.append((int(rule.value), str(rule)))
            elif "nfsrahead" in rule.program:
                value = self._conf.get(entry.fstype, self._conf.get("default"))
                found += [(value, f"[nfsrahead] in nfs.conf, by {rule}")] if value else []
        return found

    @cached_property
    def _conf(self) -> dict[str, int]:
        return _nfsrahead_values(self._machine)

    @cached_property
    def _files(self) -> list[RuleFile]:
        return [] if _without_udev(self._machine) else udev_rules.effective_files(self._machine)

    @cached_property
    def _tuned(self) -> dict[str, int]:
        try:
            return udev_helper.tuned(str(self._machine.path(udev_helper.CONFIG.lstrip("/"))))
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _in_effect(rules: list[ReadAheadRule]) -> list[ReadAheadRule]:
    """The last rule that certainly applies, and the later ones that may."""
    last = max((i for i, rule in enumerate(rules) if rule.certain), default=0)
    return rules[last:]


def _nfsrahead_values(machine: Machine) -> dict[str, int]:
    """The read-ahead in KiB that nfs.conf has by type of filesystem, "nfs", "nfs4" or "default".

    conf_get_readahead in nfs-utils' tools/nfsrahead/main.c.
    """
    conf = NfsConf(machine)
    settings = ((name, conf.get(name, "nfsrahead")) for name in ("nfs", "nfs4", "default"))
    return {
        name: int(setting.value)
        for name, setting in settings
        if setting and re.fullmatch("[0-9]{1,9}", setting.value)
    }


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
        found = f"/{missing[0]} was not recorded; its rules may mask or follow these"
        yield Finding(name, "unknown", found)


def _without_udev(machine: Machine) -> str:
    """Why no udev of this host's files sets the read-ahead; "" if one may."""
    if machine.in_container:
        return "this is a container, and the host's udev sets the read-ahead"
    if machine.fact("udevd", lambda: "runs" if _CONTROL.exists() else "missing") == "missing":
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
    return [folder for folder in wanted if folder not in [same.get(one, one) for one in there]]


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
        values = ", ".join(f"{name} {kb}" for name, kb in _nfsrahead_values(machine).items())
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
    found = f"{rule} sets the read-ahead {value}for {every}: NFS, {', '.join(kinds)}"
    if here := _with_value(machine, rule.value):
        found += f"; here {', '.join(here[:_SHOWN])}"
        found += f" and {len(here) - _SHOWN} more" if here[_SHOWN:] else ""
    if rule.torn:
        found += "; the line before it has no backslash at its end, so its conditions do not count"
    remedy = (
        "set nfs= and nfs4= in [nfsrahead] of nfs.conf in place of it, or add the condition "
        'PROGRAM="/usr/bin/grep -qw %k /proc/fs/nfsfs/volumes"'
    )
    return Finding("udev rule", "warning", found, "a rule for NFS only", remedy)


def _with_value(machine: Machine, value: str) -> list[str]:
    """The devices of this host that have this read-ahead and are none of NFS."""
    if not value:
        return []
    nfs = set[str]()
    with contextlib.suppress(OSError, UserError):
        nfs = {entry.device for entry in _nfs(machine)}
    windows = sorted(machine.path(_BDI).glob("*/read_ahead_kb"))
    found = {path.parent.name: files.readable(path).strip() for path in windows}
    return [
        device
        for device, kb in found.items()
        if device not in nfs and kb.isdecimal() and _written(int(value), int(kb))
    ]


def _nfs(machine: Machine) -> list[Entry]:
    return [entry for entry in mountinfo.of(machine) if entry.is_nfs]
