# SPDX-License-Identifier: Apache-2.0
"""Checks whether mounts over RDMA, their read-ahead and the settings of NFS survive a reboot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from nfsrdma_tools.doctor.checks import mount_definitions, nfs_mounts
from nfsrdma_tools.doctor.checks.reboot import commands, made_by
from nfsrdma_tools.doctor.finding import Finding, Status, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import boot_files, kernel_modules
from nfsrdma_tools.host.boot_files import SYSCTLS, Value
from nfsrdma_tools.host.kernel_release import kernel_of
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import definitions, mountinfo, readahead, units
from nfsrdma_tools.host.nfs.definitions import Definition
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.module_source import OURS

__all__ = ["mounts", "read_ahead", "settings"]

_NOT_READ = "not all files that a boot reads are known"
_COLLECT = "run this on the host, or collect a bundle with this version"
_MANAGED = {"kubelet": "kubelet", "docker": "docker", "containers": "podman"}
"""Programs that mount again below their folder in /var/lib."""
_AUTOFS = "autofs.service"
_DEFAULT_KB = 128
_BDI = "sys/class/bdi"
# numbers and switches: texts, such as nfs4_unique_id, are names
_PLAIN = re.compile(r"-?\d{1,12}|[YN]")


@check(70, "reboot mount", after_reboot=True)
def mounts(machine: Machine) -> Iterator[Finding]:
    """A boot, or the first access, makes the mounts over RDMA again, with the same options."""
    entries = mountinfo.of(machine)
    by_number = {entry.id: entry for entry in entries}
    closed = mountinfo.closed(entries)
    try:
        defined = list(definitions.defined(machine))
    except NotRecordedError:
        defined = []
    known: dict[Path, Definition] = {}
    for wanted in defined:
        if not wanted.overridden:
            directory, _ = mountinfo.without_links(wanted.directory, closed, machine.root)
            known[directory] = wanted
    for entry in entries:
        above = by_number.get(entry.parent)
        # the kernel made a mount below another one, where an export begins
        if not entry.is_nfs or (above and above.is_nfs):
            continue
        definition = known.get(entry.directory)
        if definition and (entry.over_rdma or definition.requested.transport == "rdma"):
            yield from _defined(machine, definition, entry, entries)
        elif entry.over_rdma:
            yield _undefined(machine, entry, above)


def _defined(
    machine: Machine, wanted: Definition, entry: Entry, entries: list[Entry]
) -> Iterator[Finding]:
    name = f"reboot mount {entry.directory}"
    if not (wanted.automatic or wanted.automounted):
        by_unit = wanted.name.startswith("unit")
        if by_unit and not boot_files.read(machine) and not _has_wants(machine):
            text = f"{wanted.name} defines it; what starts that unit was not recorded"
            yield Finding(name, "unknown", text, "", f"see: systemctl is-enabled {wanted.unit}")
            return
        why = f"no unit starts {wanted.unit}" if by_unit else "its line has noauto"
        remedy = f"systemctl enable {wanted.unit}" if by_unit else "remove noauto, if it is wanted"
        yield Finding(name, "warning", f"not mounted by a boot: {why}", "mounted at boot", remedy)
        return
    findings = list(mount_definitions.compared(machine, wanted, entry, entries))
    for finding in findings:
        if finding.status == "ok":
            yield Finding(name, "ok", f"{wanted.name} mounts it again: {finding.found}")
        else:
            text = f"a boot requests what {wanted.name} has; now {finding.found}"
            status: Status = "unknown" if finding.status == "unknown" else "warning"
            remedy = f"change the options of {wanted.name} if the mount is right as it is"
            yield Finding(name, status, text, finding.expected, remedy)


def _has_wants(machine: Machine) -> bool:
    """Whether any start of a mount unit was recorded."""
    return any(unit.endswith((".mount", ".automount")) for unit in units.wanted(machine))


def _undefined(machine: Machine, entry: Entry, above: Entry | None) -> Finding:
    name, shown = f"reboot mount {entry.directory}", f"{entry.source} over RDMA"
    if above and above.fstype == "autofs" and above.directory != Path("/"):
        return _automounted(machine, name, shown, above)
    parts = PurePath(entry.directory).parts
    if parts[1:3] == ("var", "lib") and len(parts) > 3 and parts[3] in _MANAGED:
        return Finding(name, "ok", f"{shown}; {_MANAGED[parts[3]]} mounts it when it needs it")
    mounting = [command for command in commands(machine) if _mounts(command.text, entry.directory)]
    if made := made_by(mounting, "mounts it"):
        return made.finding(name, shown, "a mount at boot")
    if not _is_known(machine):
        return Finding(name, "unknown", f"{shown}; {_NOT_READ}", "", _COLLECT)
    if doubt := definitions.doubt(machine):
        return Finding(name, "unknown", f"{shown}; {doubt}")
    text = f"{shown}; gone after a reboot: neither fstab nor a mount unit defines it"
    remedy = f"add its line to fstab: nfsrdma mounts {entry.directory} has its options"
    return Finding(name, "warning", text, "a definition", remedy)


def _mounts(text: str, directory: Path) -> bool:
    """Whether a command mounts over RDMA on a directory."""
    words = re.split(r"[\s\"';&|]+", text)
    programs = {word.rpartition("/")[2] for word in words}
    rdma = re.search(r"[\s,=]rdma6?(?:[\s,]|$)", text) or OURS in programs
    return str(directory) in words and "mount" in programs and bool(rdma)


def _automounted(machine: Machine, name: str, shown: str, above: Entry) -> Finding:
    text = f"{shown}; the map {above.source} of autofs mounts it at the first access"
    if _AUTOFS in boot_files.started(machine):
        return Finding(name, "ok", text)
    if not boot_files.read(machine):
        text += f"; what starts {_AUTOFS} was not recorded"
        return Finding(name, "unknown", text, "", f"see: systemctl is-enabled {_AUTOFS}")
    text += f", and no unit starts {_AUTOFS}"
    return Finding(name, "warning", text, f"{_AUTOFS} enabled", f"systemctl enable {_AUTOFS}")


@check(80, "reboot read-ahead", after_reboot=True)
def read_ahead(machine: Machine) -> Iterator[Finding]:
    """The read-ahead of each mount over RDMA is the default, or one that a file sets."""
    intended = nfs_mounts.Intended(machine)
    done = set[str]()
    for entry in mountinfo.of(machine):
        if not entry.is_nfs or not entry.over_rdma or entry.device in done:
            continue
        done.add(entry.device)
        name = f"reboot read-ahead {entry.directory}"
        try:
            machine.require(f"{_BDI}/{entry.device}/read_ahead_kb")
            kb = readahead.get_kb(entry.device, machine)
        except UserError as error:
            yield Finding(name, "unknown", error.message)
            continue
        values = intended.values(entry)
        if sources := [source for value, source in values if nfs_mounts.written(value, kb)]:
            yield Finding(name, "ok", f"{kb} KiB, set by {sources[-1]}")
        elif values:
            value, source = values[-1]
            text = f"{kb} KiB now, and {source} has {value}"
            yield Finding(name, "warning", text, f"{value} KiB", _tune(entry, kb))
        elif kb == _DEFAULT_KB or _is_of_rsize(machine, entry, kb):
            yield Finding(name, "ok", f"{kb} KiB, the kernel's default")
        elif not _is_known(machine):
            yield Finding(name, "unknown", f"{kb} KiB; the rules of udev were not recorded")
        else:
            text = f"{kb} KiB; {_DEFAULT_KB} after a reboot: no rule and no file sets it"
            yield Finding(name, "warning", text, "a rule that sets it", _tune(entry, kb))


def _tune(entry: Entry, kb: int) -> str:
    return f"nfsrdma tune apply --mount {entry.directory} --read-ahead-kb {kb}"


def _is_known(machine: Machine) -> bool:
    """Whether lines of fstab, mount units and rules of udev that are missing do not exist.

    Each bundle of ``collect`` has them, also an older one.
    """
    recording = machine.recording
    by_collect = recording is not None and recording.complete and recording.collected
    return boot_files.read(machine) or (by_collect and not machine.in_container)


def _is_of_rsize(machine: Machine, entry: Entry, kb: int) -> bool:
    """Whether it is 15 times rsize, the default before 5.4 (commit c128e575514c)."""
    number = kernel_of(machine).number
    rsize = entry.options.get("rsize", "")
    return number < (5, 4, 0) and rsize.isdecimal() and kb == 15 * int(rsize) // 1024


@check(90, "reboot setting", after_reboot=True)
def settings(machine: Machine) -> Iterator[Finding]:
    """The sysctls and module parameters of NFS are the defaults, or a file sets them at boot."""
    files = boot_files.sysctls(machine)
    options = _module_options(machine)
    for name, defaults in SYSCTLS.items():
        path = f"proc/sys/{name.replace('.', '/')}"
        if (now := " ".join(machine.text(path).split())) and now.isdecimal():
            wanted = files.get(name) or options.get(name)
            yield from _setting(machine, name, now, wanted, defaults)
    for name, wanted in options.items():
        module, _, parameter = name.partition(".")
        path = f"sys/module/{module}/parameters/{parameter}"
        if name not in SYSCTLS and _PLAIN.fullmatch(now := machine.text(path).strip()):
            yield from _setting(machine, name, now, wanted, ())
    yield from _ours(machine, options)


def _module_options(machine: Machine) -> dict[str, Value]:
    """What modprobe.d sets: module.parameter, and its value."""
    options: dict[str, Value] = {}
    for line in boot_files.modprobe_lines(machine):
        pairs = (
            (word.partition("=") for word in line.rest.split()) if line.command == "options" else ()
        )
        options |= {f"{line.name}.{name}": Value(value, line.source) for name, _, value in pairs}
    return options


def _setting(
    machine: Machine, name: str, now: str, wanted: Value | None, defaults: tuple[str, ...]
) -> Iterator[Finding]:
    title, remedy = f"reboot setting {name}", f"set {name} in sysctl.d or modprobe.d"
    if wanted and _same(wanted.value, now):
        yield Finding(title, "ok", f"{now}, as in {wanted.source}")
    elif wanted:
        text = f"{now} now, and {wanted.source} sets {wanted.value or '(nothing)'}"
        yield Finding(title, "warning", text, f"{wanted.value}", f"set {now} in {wanted.source}")
    elif defaults and now not in defaults:
        default = " or ".join(defaults)
        if boot_files.read(machine):
            text = f"{now}; the default after a reboot ({default}): no file sets it"
            yield Finding(title, "warning", text, f"a file that sets {now}", remedy)
        else:
            yield Finding(title, "unknown", f"{now}, default {default}; {_NOT_READ}", "", _COLLECT)


def _same(wanted: str, now: str) -> bool:
    booleans = {"1": "Y", "y": "Y", "0": "N", "n": "N"}
    return booleans.get(wanted.lower(), wanted) == booleans.get(now.lower(), now)


def _ours(machine: Machine, options: dict[str, Value]) -> Iterator[Finding]:
    """The parameters of our module that differ from those that modprobe would give it."""
    if OURS not in kernel_modules.loaded(machine):
        return
    from nfsrdma_tools.host.module.parameters import known

    try:
        file = kernel_modules.on_disk(OURS, machine)
    except UserError:
        file = None
    if file is None:
        # its check of modules has told that a boot does not load it
        return
    for name, about in known(file).items():
        now = kernel_modules.parameters(OURS, machine).get(name)
        if now is not None and f"{OURS}.{name}" not in options:
            yield from _setting(machine, f"{OURS}.{name}", now, None, (about.default,))
