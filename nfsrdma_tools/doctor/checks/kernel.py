# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel: its features, transport modules, headers, log, and known faults."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nfsrdma_tools import files
from nfsrdma_tools.doctor import inputs
from nfsrdma_tools.doctor.finding import Finding, Status, carry_out, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_faults, kernel_modules, packages, transports
from nfsrdma_tools.host.kernel_config import config
from nfsrdma_tools.host.kernel_faults import Fault
from nfsrdma_tools.host.kernel_log.explain import Explanation, read_log
from nfsrdma_tools.host.kernel_log.sources import kernel_ring
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.kernel_release import KernelVersion, kernel_of
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.transports import CONF, KERNELS, Circumstances, Origin, client_owners, owner
from nfsrdma_tools.module_source import BUILDS_FOR, OURS, is_too_old

__all__ = [
    "btf",
    "fault",
    "feature",
    "gpudirect",
    "headers",
    "judge_known_faults",
    "judge_log",
    "judge_module",
    "judge_no_module",
    "judge_our_module",
    "kernel_log",
    "known_faults",
    "lacking",
    "module",
    "netid",
    "our_module",
]

_OPTION = "CONFIG_SUNRPC_XPRT_RDMA"
_BTF = "CONFIG_DEBUG_INFO_BTF"
_MODULE_BTF, _FIRST_MODULE_BTF = "CONFIG_DEBUG_INFO_BTF_MODULES", (5, 11, 0)
_TYPES = "sys/kernel/btf/vmlinux"
_LACKING = "the kernel has no RPC over RDMA"
_REAL = "install the vendor's NFS over RDMA (package mlnx-nfsrdma), or reinstall the kernel package"
_FITTING = "install the package for this kernel and for the loaded RDMA stack, then reboot"
_TRY = "modprobe rpcrdma; if that fails: nfsrdma explain"
_OTHER_KERNEL = "boot a kernel that has it: the kernels of Debian, RHEL and SUSE do"


@check(20, "kernel")
def feature(machine: Machine) -> Iterator[Finding]:
    """The kernel was built with RPC over RDMA."""
    text = config(machine)
    if text is None:
        lacks = "no kernel configuration in /boot, /proc or /lib/modules"
        yield Finding("kernel", "unknown", lacks, f"{_OPTION}=m or y")
        return
    match = _built_with(text)
    lacks = f"{machine.release} does not have {_OPTION}"
    if match:
        yield Finding("kernel", "ok", f"{machine.release} has {_OPTION}={match[1]}")
    elif loaded := owner(machine):
        yield Finding("kernel", "ok", f"{lacks}, and {loaded} is loaded")
    elif file := _real_file(machine):
        yield Finding("kernel", "ok", f"{lacks}, and a vendor's {file.path} is installed")
    else:
        yield Finding("kernel", "error", lacks, f"{_OPTION}=m or y", _OTHER_KERNEL)


def _built_with(config: str) -> re.Match[str] | None:
    return re.search(rf"^{_OPTION}=([ym])$", config, re.MULTILINE)


def _real_file(machine: Machine) -> ModuleFile | None:
    """A vendor's module for a kernel that was built without one."""
    try:
        file = kernel_modules.on_disk(KERNELS, machine)
    except UserError:
        return None
    return file if file and not transports.dummy_marks(file) else None


def lacking(machine: Machine) -> bool:
    """Whether it is known that the kernel has no RPC over RDMA, and no module adds it."""
    return any(finding.status == "error" for finding in carry_out("kernel", feature, machine))


@check(30, "rpcrdma")
def module(machine: Machine) -> Iterator[Finding]:
    """The module that modprobe would load is a real one that the kernel takes; whose it is."""
    # modinfo ignores modprobe.d: the name means the kernel's module, also after `module install`
    file = kernel_modules.on_disk(KERNELS, machine)
    known = transports.circumstances(file, machine)
    if file is None and not known.loaded and lacking(machine):
        finding = Finding(KERNELS, "unknown", f"not judged, because {_LACKING}")
    elif file is None and machine.in_container:
        text = f"modinfo finds no module for kernel {known.release} in this container"
        finding = Finding(KERNELS, "unknown", text, remedy="run this on the host")
    elif file is None:
        finding = judge_no_module(known, packages.install(KERNELS, known.release, machine))
    else:
        finding = judge_module(file, transports.origin(file, machine), known)
    if finding.status == "error" and OURS in kernel_modules.loaded(machine):
        # nothing is broken as long as ours is in its place
        finding = finding._replace(
            status="warning", found=f"{finding.found}; {OURS} is loaded instead"
        )
    elif finding.status == "ok" and (loss := transports.gpudirect_loss(machine)):
        finding = finding._replace(found=f"{finding.found}; {loss}")
    yield finding


def fault(machine: Machine) -> str:
    """The error that the check of the kernel or of its module reports; "" if there is none."""
    if lacking(machine):
        return _LACKING
    broken = (
        finding for finding in carry_out(KERNELS, module, machine) if finding.status == "error"
    )
    return next((f"{KERNELS}: {finding.found}" for finding in broken), "")


def judge_no_module(known: Circumstances, remedy: str) -> Finding:
    """Judge that modinfo finds no rpcrdma."""
    text = f"no module for kernel {known.release}"
    if known.loaded:
        # removed with its package
        text = f"it is loaded, but modinfo finds {text}: it could not be loaded again"
        return Finding(KERNELS, "warning", text, "a file of the loaded module", remedy)
    return Finding(KERNELS, "error", text, "the kernel's own rpcrdma, or a vendor's", remedy)


def judge_module(file: ModuleFile, origin: Origin, known: Circumstances) -> Finding:
    """Judge a file of rpcrdma: broken, in doubt as long as it is not loaded, or well."""
    label = f"{file.path or 'built in'}, {origin.label}"
    if marks := transports.dummy_marks(file):
        text = f"{file.path} is not the real module: {'; '.join(marks)}"
        return Finding(KERNELS, "error", text, "the kernel's own rpcrdma, or a vendor's", _REAL)
    parts = " and ".join(transports.offers(file)) or "no part that has an alias"
    if origin.kind == "nfs stack":
        parts += ", with remoteports= and localports="
    if known.loaded:
        return _judge_loaded(file, label, parts, known)
    if file.builtin:
        return Finding(KERNELS, "ok", label)
    if broken := _broken(file, known):
        return Finding(KERNELS, "error", f"{label}: {broken}", "a module that it takes", _FITTING)
    if doubt := _doubt(file, known):
        loaded = "it is not loaded" if known.loaded is False else "it may not be loaded"
        text = f"{label}: {doubt}, and {loaded}"
        return Finding(KERNELS, "warning", text, "a module that the kernel takes", _TRY)
    return Finding(KERNELS, "ok", f"{label}, not loaded; for {parts}")


def _judge_loaded(file: ModuleFile, label: str, parts: str, known: Circumstances) -> Finding:
    if known.srcversion and file.srcversion and known.srcversion != file.srcversion:
        text = (
            f"the loaded module has srcversion {known.srcversion}, {file.path} has"
            f" {file.srcversion}"
        )
        remedy = "unload the module, or reboot"
        return Finding(KERNELS, "warning", text, "the same srcversion", remedy)
    if file.built_for not in ("", known.release):
        label += f", built for kernel {file.built_for}, which this kernel has accepted"
    return Finding(KERNELS, "ok", f"{label}, for {parts}" if file.aliases else label)


def _broken(file: ModuleFile, known: Circumstances) -> str:
    """Why the kernel is known to refuse a file; "" if that is not known."""
    if known.refused:
        return f"the kernel refused it: {known.refused}"
    if known.signed_only and not file.signer:
        return f"it is not signed, and {known.signed_only}"
    if file.built_for not in ("", known.release) and not file.has_symbol_versions:
        return f"it was built for kernel {file.built_for}, without symbol versions"
    return ""


def _doubt(file: ModuleFile, known: Circumstances) -> str:
    """The reason why the kernel may not load a file; "" if none is known."""
    if known.foreign:
        return f"the loaded {', '.join(known.foreign)} is of another origin"
    if file.built_for not in ("", known.release):
        return f"it was built for kernel {file.built_for}, and may fit {known.release} (kABI)"
    if not transports.offers(file):
        return "it has no alias by which nfsd and rdma-core load it"
    return ""


@check(40, "netid rdma")
def netid(machine: Machine) -> Iterator[Finding]:
    """A mount with proto=rdma uses rpcrdma or our module."""
    machine.require("proc/modules")
    ours = kernel_modules.parameters(OURS, machine)
    owners = client_owners(kernel_modules.loaded(machine), ours)
    only = owners[0] if len(owners) == 1 else owner(machine) if not owners else ""
    if only in (KERNELS, OURS):
        yield Finding("netid rdma", "ok", f"owned by {only}")
    elif not owners and (cause := fault(machine)):
        yield Finding("netid rdma", "unknown", f"not judged, because {cause}")
    elif not owners and (judged := carry_out(KERNELS, module, machine))[0].status == "ok":
        text = "no transport module is loaded; a mount with proto=rdma loads rpcrdma"
        yield Finding("netid rdma", "ok", text)
    elif not owners and judged[0].status == "unknown":
        text = f"no transport module is loaded; {KERNELS}: {judged[0].found}"
        yield Finding("netid rdma", "unknown", text, remedy=judged[0].remedy)
    elif not owners:
        remedy = "modprobe rpcrdma (a mount with proto=rdma loads it too)"
        yield Finding("netid rdma", "warning", "no transport module is loaded", "rpcrdma", remedy)
    else:
        text = f"used by {', '.join(owners)}"
        remedy = "unload the others: the first module to register owns the netid"
        yield Finding("netid rdma", "warning", text, "rpcrdma alone", remedy)


@check(50, "gpudirect")
def gpudirect(machine: Machine) -> Iterator[Finding]:
    """GPUDirect Storage uses the transport module of the mounts over RDMA, if nvidia_fs is loaded.

    A mount works either way: without it, data for a GPU goes through the host's memory.
    """
    name, module = "gpudirect", owner(machine)
    if not module or "nvidia_fs" not in kernel_modules.loaded(machine):
        return
    mounts = dict.fromkeys(
        str(entry.directory) for entry in mountinfo.of(machine) if entry.is_nfs and entry.over_rdma
    )
    if not mounts:
        return
    # an unreadable list is not an empty one
    machine.require_readable(transports.NVFS_MODULES)
    registered = transports.gpudirect_modules(machine)
    if not registered:
        text = (
            "/proc/driver/nvidia-fs/modules was not recorded"
            if registered is None
            else "nvidia_fs lists no module: no program uses GPUDirect Storage now"
        )
        yield Finding(name, "unknown", text, remedy="while a program uses it: gdscheck -p")
        return
    shown = f"nvidia_fs is registered with {', '.join(registered)}"
    if module in registered:
        yield Finding(name, "ok", shown)
        return
    first, *others = mounts
    more = f" and {len(others)} more" if others else ""
    text = (
        f"{shown}, not with {module}: GPUDirect Storage does not use {first}{more}: "
        "the mount itself works; data goes through the host's memory"
    )
    remedy = (
        f"see gdscheck -p; NFS needs an {KERNELS} that offers rpcrdma_register_nvfs_dma_ops() to "
        "nvidia_fs: a vendor's that fits it"
    )
    yield Finding(name, "warning", text, f"{KERNELS} in the list of nvidia_fs", remedy)


@check(210, "headers")
def headers(machine: Machine) -> Iterator[Finding]:
    """The kernel headers are optional: a build of nfsrdma needs them, probes do not."""
    name = f"lib/modules/{machine.release}/build"
    if machine.has_optional(f"{name}/Makefile"):
        yield Finding("headers", "ok", f"/{name}")
        return
    text = f"no /{name}: probes need none, a build of nfsrdma does"
    # a module is built on the host
    install = packages.install("headers", machine.release, machine)
    yield Finding("headers", "ok", text, "", "" if machine.in_container else install)


def _modules_have_no_types(machine: Machine) -> bool:
    """Whether rpcrdma is a module, and the kernel was built without type information of modules.

    Modules have it since Linux 5.11, commit 5f9ae91f7c0d ("kbuild: Build kernel module BTFs if BTF
    is enabled and pahole supports it").
    """
    text = config(machine) or ""
    transport = _built_with(text)
    if not transport or transport[1] == "y":
        return False
    setting = re.search(rf"^(?:{_MODULE_BTF}=y|# {_MODULE_BTF} is not set)$", text, re.MULTILINE)
    if setting:
        return setting[0].startswith("#")
    # an older kernel does not have the option, unless it was backported
    kernel = kernel_of(machine)
    dated = kernel.kind not in ("backports", "unknown")
    return dated and kernel.number < _FIRST_MODULE_BTF


@check(220, "btf")
def btf(machine: Machine) -> Iterator[Finding]:
    """Kernel and rpcrdma have the type information (BTF) that gives capture structure offsets."""
    source = f"/{_TYPES}"
    try:
        there = machine.has_optional(_TYPES)
    except NotRecordedError:
        text = config(machine) or ""
        setting = re.search(rf"^(?:{_BTF}=y|# {_BTF} is not set)$", text, re.MULTILINE)
        if not setting:
            raise
        source = f"{machine.release} has {setting[0]}"
        there = setting[0] == f"{_BTF}=y"
    if there and _modules_have_no_types(machine):
        expected = "that of rpcrdma, for nfsrdma capture"
        remedy = f"boot Linux 5.11 or later with {_MODULE_BTF}; nfsrdma trace needs none"
        yield Finding("btf", "warning", f"{source}, and none of modules", expected, remedy)
    elif there:
        yield Finding("btf", "ok", source)
    else:
        remedy = "boot a kernel with CONFIG_DEBUG_INFO_BTF"
        yield Finding("btf", "warning", "no type information", "BTF, for nfsrdma capture", remedy)


@check(60, "nfsrdma")
def our_module(machine: Machine) -> Iterator[Finding]:
    """An installed nfsrdma has a build for this kernel; a loaded one was built from this source."""
    installed = machine.path(str(CONF.relative_to("/"))).exists()
    if installed and kernel_modules.on_disk(OURS, machine) is None:
        yield _unbuilt(machine.release)
        return
    machine.require("proc/modules")
    built = inputs.our_build(machine)
    there = OURS in kernel_modules.loaded(machine)
    running = kernel_modules.srcversion(OURS, machine) if there else None
    values = kernel_modules.parameters(OURS, machine)
    yield judge_our_module(built, running, values, transports.signature_rule(machine))


def _unbuilt(release: str) -> Finding:
    text = f"installed, but DKMS has no build for {release}: mounts and nfsd use {KERNELS}"
    remedy = f"install the headers of {release}, then: dkms autoinstall -k {release}"
    if is_too_old(release):
        remedy = f"{OURS} builds for {BUILDS_FOR}: boot such a kernel, or nfsrdma module uninstall"
    return Finding(OURS, "warning", text, f"{OURS}.ko for {release}", remedy)


def judge_our_module(
    built: ModuleFile | None, running: str | None, values: dict[str, str], signed_only: str = ""
) -> Finding:
    """Judge our module by its cached build and the loaded srcversion (None: not loaded).

    ``signed_only`` is why the kernel loads signed modules only, "" if it does not.
    """
    if running is None:
        if built and signed_only and not built.signer:
            text = f"not loaded, and the build is not signed: {signed_only}"
            remedy = f"sign {built.path} with a key of the machine's owner (MOK)"
            return Finding(OURS, "warning", text, "a signed module", remedy)
        state = "built for this kernel" if built else "not built for this kernel"
        return Finding(OURS, "ok", f"not loaded, {state}")
    if built is None:
        remedy = "run nfsrdma module build to compare it with this source"
        return Finding(OURS, "ok", f"loaded, srcversion {running}; not built here", "", remedy)
    if running != built.srcversion:
        text = f"loaded with srcversion {running}, this source has {built.srcversion}"
        return Finding(OURS, "warning", text, "the same srcversion", "nfsrdma module load")
    from nfsrdma_tools.host.module import parameters as module_parameters

    changed = module_parameters.changed(values, built)
    tuned = ", ".join(f"{name}={value}" for name, value in changed.items()) or "none"
    return Finding(OURS, "ok", f"loaded, built from this source; changed parameters: {tuned}")


_OSRELEASE = "proc/sys/kernel/osrelease"
_LOG, _FAULTS = "kernel log", "known faults"
_MOST = 3
_MODULES_OF = {
    "client": {"rpcrdma"},
    "server": {"rpcrdma", "nfsd"},
    "rxe": {"rdma_rxe"},
    "siw": {"siw"},
    "iwarp": {"iw_cm"},
}
"""The loaded modules without which a fault of this part cannot be met."""


@check(230, "kernel log")
def kernel_log(machine: Machine) -> Iterator[Finding]:
    """The kernel's log of this boot has no message of NFS or RDMA that needs attention."""
    log = read_log(kernel_ring(machine))
    if log.is_unreadable:
        text = f"none of its {log.lines} lines has a form that nfsrdma can read"
        yield Finding(
            _LOG, "unknown", text, remedy="journalctl -k -o short-iso | nfsrdma explain -"
        )
        return
    if log.withheld:
        text = f"recognized messages withheld from this anonymized bundle: {log.withheld}"
        yield Finding(_LOG, "unknown", text, remedy="on its host: nfsrdma explain")
    if log.entries or not log.withheld:
        yield from judge_log(log.entries)


def judge_log(explained: list[Explanation]) -> Iterator[Finding]:
    """Judge the records of a log of this boot.

    A log tells what was broken, not what is: an error in it is a warning here, unless the host
    does not recover from it before it boots again.
    """
    serious = [entry for entry in explained if entry.severity != "information"]
    if not serious:
        text = f"{len(explained)} kinds of messages recognized, all of them normal"
        yield Finding(_LOG, "ok", text if explained else "no message of NFS or RDMA")
    # what stays broken comes first
    for entry in sorted(serious, key=lambda entry: entry.recovers != "no")[:_MOST]:
        about = f" {entry.subject}" if entry.subject else ""
        times = "once" if entry.count == 1 else f"{entry.count} times, last"
        at = f" at {entry.last}" if entry.last else ""
        known = f" This is {entry.fault} of nfsrdma explain --faults." if entry.fault else ""
        text = f"{entry.name}{about}, {times}{at}: {entry.meaning}{known}"
        remedy = entry.next_step or "nfsrdma explain"
        stays = entry.recovers == "no" and entry.severity == "error"
        status: Status = "error" if stays else "warning"
        yield Finding(_LOG, status, text, entry.doubt or "no such message", remedy)


@check(240, "known faults")
def known_faults(machine: Machine) -> Iterator[Finding]:
    """The kernel's release has no known fault of NFS over RDMA in a module that is loaded."""
    machine.require("proc/modules")
    machine.require(_OSRELEASE)
    machine.require_readable(_OSRELEASE)
    loaded = set(kernel_modules.loaded(machine))
    kernel = kernel_of(machine)
    in_table = any(modules <= loaded for modules in _MODULES_OF.values())
    if (0, 0, 0) < kernel.number < kernel_faults.OLDEST and in_table:
        begins = f"begins with Linux {kernel_faults.OLDEST_SERIES}"
        text = f"{kernel.release} is older than the table of faults, which {begins}"
        yield Finding(_FAULTS, "unknown", text)
        return
    possible = [
        fault for fault in kernel_faults.possible(kernel) if _MODULES_OF[fault.part] <= loaded
    ]
    # kernel.org's kernel has no package
    fixed = _listed(machine, kernel, possible) if possible and kernel.kind != "release" else []
    yield from judge_known_faults(
        kernel, [fault for fault in possible if fault not in fixed], len(fixed)
    )


def _listed(machine: Machine, kernel: KernelVersion, faults: list[Fault]) -> list[Fault]:
    """The faults whose fix the changelog of the kernel's package lists; [] if it is unreadable."""
    from nfsrdma_tools.doctor import kernel_changelog

    try:
        return kernel_changelog.listed(machine, kernel, faults)
    except OSError as error:
        files.note_unread(error)
    except UserError:
        pass
    return []


def judge_known_faults(
    kernel: KernelVersion, faults: list[Fault], fixed: int = 0
) -> Iterator[Finding]:
    """Judge the faults that a kernel may have, in one line.

    A release of kernel.org has the faults; a log tells whether it met one (``judge_log``).  Of the
    kernel of a distribution they are possible by its version: that is information, with the release
    of the same series that has the newest fix.  They are unknown if the version tells nothing about
    fixes.  ``fixed`` others have their fix in the changelog of the kernel's package.
    """
    if kernel.number == (0, 0, 0):
        raise UserError(f"{kernel.release!r} is no release of Linux")
    listed = f"the changelog of its package lists the fixes of {fixed}" if fixed else ""
    if not faults:
        text = f"none known in the loaded modules of Linux {kernel.text}"
        yield Finding(_FAULTS, "ok", f"{text}; {listed} that are possible" if fixed else text)
        return
    listed = f"; {listed} more" if fixed else ""
    count = f"{len(faults)} known fault{'s' * (len(faults) > 1)}"
    remedy = "nfsrdma explain --faults"
    # the newest fixes come last
    newest = faults[-1]
    mended = [fault for fault in faults if fault.fixed_in(kernel.number)]
    if kernel.kind == "release":
        text = f"{count} in Linux {kernel.text}; the newest: {newest.seen}"
        yield Finding(_FAULTS, "warning", text, f"Linux {newest.fixes} or later", remedy)
    elif kernel.kind == "backports" or kernel.number[2] == 0:
        text = f"{kernel.release}: {count} possible by version; {kernel.reason}{listed}"
        yield Finding(_FAULTS, "unknown", text, f"fixes of {count}", remedy)
    else:
        text = f"{count} possible in Linux {kernel.text} by its version, see the kernel log"
        if kernel.kind == "stable" and mended:
            text += f"; the newest fix is in Linux {mended[-1].fixed_in(kernel.number)}"
        yield Finding(_FAULTS, "ok", f"{text}{listed}", "", remedy)
