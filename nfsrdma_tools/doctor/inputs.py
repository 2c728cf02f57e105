# SPDX-License-Identifier: Apache-2.0
"""What doctor's checks ask of programs, netlink and the resolver, and the files that they read.

A bundle has all of it, without an import of a check.  A check asks some of it under a condition;
``ask`` knows the conditions that save time or spare the host, and asks the rest always.
tests/unit/doctor/test_inputs.py compares both on many hosts.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Optional

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import kernel_changelog
from nfsrdma_tools.doctor.vocabulary import MODULES
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import boot_files, kernel_modules, rdma_routes
from nfsrdma_tools.host.boot_files import SYSCTLS
from nfsrdma_tools.host.kernel_config import is_built_in
from nfsrdma_tools.host.kernel_log.sources import boot_log, kernel_ring
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.machine import SBIN, Machine
from nfsrdma_tools.host.nfs import definitions, fstab, mountinfo, servers, udev_rules, units
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.nfsd import configuration, ganesha, other_servers, serving
from nfsrdma_tools.host.transports import CONF, KERNELS
from nfsrdma_tools.module_source import OURS

__all__ = [
    "CONTENTS",
    "CONTEXTS",
    "IP6TABLES",
    "NO_BCC",
    "PORT",
    "RELEASE",
    "Keep",
    "ask",
    "bcc",
    "filter_commands",
    "flow_control",
    "mount_program",
    "nothing",
    "our_build",
    "script",
    "service",
    "udev_runs",
    "user_contexts",
    "verbs",
    "whole",
]

CONTEXTS = "user contexts"
"""The fact: the contexts of programs in user space, a line "DEVICE COUNT" per device."""
IP6TABLES = ("ip6tables-legacy-save",)
NO_BCC = "ModuleNotFoundError: No module named 'bcc'"
"""The last line that Python prints without bcc."""
_IMPORT_BCC = "import bcc; bcc.BPF; print(bcc.__version__)"
_MOST_MOUNTED = 1000
"""The most servers of mounts whose routes are read: each is a run of ip(8)."""
_UDEV = Path("/run/udev/control")


def ask(machine: Machine) -> None:
    """Ask what the checks ask; ``machine`` notes each answer.

    A question that fails leaves the answer unknown, as it does for a check.
    """
    for question in _QUESTIONS:
        # one that fails must not hide the answers to the others
        with contextlib.suppress(Exception):
            question(machine)


# ---- the kernel and its modules


def filter_commands(machine: Machine) -> Iterator[tuple[str, ...]]:
    """The commands that list the rules of the packet filters that are there.

    Calling nft or iptables loads their modules.
    """
    loaded = kernel_modules.loaded(machine)
    if "nf_tables" in loaded or is_built_in(machine, "NF_TABLES"):
        yield "nft", "list", "ruleset"
    if "iptable_filter" in loaded:
        yield ("iptables-legacy-save",)
    if "ip6table_filter" in loaded:
        yield IP6TABLES


def our_build(machine: Machine) -> ModuleFile | None:
    """The build of this source for the running kernel; None if there is none."""
    path = machine.fact("module build", lambda: _cached_build(machine.release))
    return kernel_modules.in_file(Path(path), machine) if path else None


def _cached_build(release: str) -> str:
    from nfsrdma_tools import module_source
    from nfsrdma_tools.host.module import build

    try:
        source = module_source.find()
    except UserError:
        # `make zipapp` has no source of the module
        return ""
    return str(build.cached(release, source) or "")


def _packet_filter(machine: Machine) -> None:
    for argv in filter_commands(machine):
        with contextlib.suppress(UserError):
            machine.run(*argv)


def _modules(machine: Machine) -> None:
    names = [KERNELS]
    if machine.path(str(CONF.relative_to("/"))).exists() or OURS in kernel_modules.loaded(machine):
        names.append(OURS)
    for name in names:
        with contextlib.suppress(UserError):
            kernel_modules.on_disk(name, machine)


def _logs(machine: Machine) -> None:
    for read in (kernel_ring, boot_log):
        with contextlib.suppress(UserError):
            read(machine)


# ---- programs


def bcc(machine: Machine) -> Result:
    """The result of an import of bcc, the BPF compiler."""
    # in a child process: the import takes a second and 100 MB
    return machine.run(sys.executable, "-c", _IMPORT_BCC)


def mount_program(machine: Machine) -> Result:
    """What mount.nfs prints as its version."""
    return machine.run("mount.nfs", "-V")


def udev_runs(machine: Machine) -> bool:
    """Whether udev runs, or that is unknown."""
    return machine.fact("udevd", lambda: "runs" if _UDEV.exists() else "missing") != "missing"


def _mount_program(machine: Machine) -> None:
    if machine.has_program("mount.nfs"):
        mount_program(machine)


# ---- RDMA


def verbs(machine: Machine) -> Result:
    """What ibv_devinfo prints: neither sysfs nor RDMA netlink has the active MTU."""
    return machine.run("ibv_devinfo", timeout=10)


def flow_control(machine: Machine, netdev: str) -> Result:
    """The priorities of a network device that have PFC."""
    return machine.run("dcb", "-j", "pfc", "show", "dev", netdev)


def user_contexts(machine: Machine) -> dict[str, int] | None:
    """The number of contexts of user space by RDMA device; None if nobody recorded it."""
    text = machine.fact(CONTEXTS, _counted) if machine.live or machine.recording else ""
    rows = (line.rpartition(" ") for line in text.splitlines())
    counts = {name: int(count) for name, _, count in rows if count.isdecimal()}
    return counts if text else None


def _counted() -> str:
    # most hosts that are read have no RDMA device
    from nfsrdma_tools.host.rdma import nldev

    try:
        uses = nldev.resources()
    except (OSError, UserError):
        return ""
    return "\n".join(f"{name} {count.get('ctx', 0)}" for name, count in sorted(uses.items()))


def _rdma(machine: Machine) -> None:
    active = [link for link in machine.links() if link.active]
    if active:
        with contextlib.suppress(UserError):
            verbs(machine)
    for netdev in sorted({link.netdev for link in active if link.device.protocol == "roce"} - {""}):
        with contextlib.suppress(UserError):
            flow_control(machine, netdev)


# ---- mounts and their servers


def _routes(machine: Machine) -> None:
    """Ask for the address that a mount takes, and for the route to it."""
    mounted = dict.fromkeys(address for _, address, _ in servers.mounted_over_rdma(machine))
    for address in list(mounted)[:_MOST_MOUNTED]:
        _route(machine, address)
    named = [(machine.server, servers.ANY_VERSION)] if machine.server else []
    wanted = dict.fromkeys(servers.requested_over_rdma(machine))
    for host, version in [*named, *list(wanted)[: servers.MOST_SERVERS]]:
        plain, _, zone = host.partition("%")
        with contextlib.suppress(UserError):
            known = machine.addresses(plain)
            by_version = {servers.ip_version(address): address for address in reversed(known)}
            for address in by_version.values():
                if version in (servers.ip_version(address), servers.ANY_VERSION):
                    _route(machine, address, zone)


def _route(machine: Machine, address: str, zone: str = "") -> None:
    with contextlib.suppress(UserError, OSError, ValueError):
        route = rdma_routes.route_to(machine, address, zone)
        route_ports = rdma_routes.ports_of(machine, route)
        for device in (route.device, *(link.netdev for link in route_ports.ports)):
            rdma_routes.mtu_of(machine, device)


def _definitions(machine: Machine) -> None:
    defined = list(definitions.defined(machine))
    states = definitions.states(machine, defined)
    entries = mountinfo.of(machine)
    closed = mountinfo.closed(entries)
    for wanted in defined:
        directory, _ = mountinfo.without_links(wanted.directory, closed, machine.root)
        for entry in entries:
            if entry.is_nfs and directory in (entry.directory, wanted.directory):
                definitions.same_source(machine, wanted, entry)
        state = states.get(wanted.unit)
        if state and state.active == "failed":
            units.last_error(machine, wanted.unit)


def _own_names(machine: Machine) -> None:
    """Ask which servers of fstab are this host, which may mount from itself."""
    for line in fstab.nfs_lines(machine.text("etc/fstab")):
        if fstab.transport(line.options) == "rdma":
            servers.is_own(machine, Target.of(line.source).host)


_QUESTIONS: tuple[Callable[[Machine], object], ...] = (
    _packet_filter,
    _modules,
    our_build,
    _logs,
    _rdma,
    user_contexts,
    _routes,
    _definitions,
    _own_names,
    _mount_program,
    udev_runs,
    bcc,
    other_servers.other_server,
    serving.nfsd_status,
    configuration.requested,
    configuration.read_ahead_values,
)


# ---- files

# the field of a line of mountinfo
_MOUNT_POINT = 4
Keep = Callable[[str], Optional[str]]
"""Returns the part of a file's text that the bundle keeps; None leaves the file out."""


def whole(text: str) -> str:
    """All of the text."""
    return text


def _lines(pattern: str) -> Callable[[str], str]:
    wanted = re.compile(pattern)

    def keep(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if wanted.search(line))

    return keep


def nothing(_: str) -> str:
    """No text: only that the file exists."""
    return ""


_OTHER_MOUNT = re.compile(
    r"^(?:no )?device .* ?mounted on .+ with fstype (?!nfs4?[ \n])[^ \n]+\n", re.MULTILINE
)


def _nfs_records(text: str) -> str:
    """The text of mountstats without the lines of other mounts, each of which has one.

    A line of a server's implementation id may begin with "device", too, and is kept.
    """
    return _OTHER_MOUNT.sub("", text)


_MOUNT_OF_INTEREST = re.compile(r" / / | - (nfs4?|nfsd|autofs|rpc_pipefs|debugfs) ")
_OF_NFS = re.compile(r" - (nfs4?|autofs) ")


def _nfs_mounts(text: str) -> str:
    """The lines of mounts that readers use, and of those that cover an NFS mount."""
    lines = [line for line in text.split("\n") if line.count(" ") > _MOUNT_POINT]
    places = {line.split(" ")[_MOUNT_POINT] for line in lines if _OF_NFS.search(line)}
    return "".join(
        f"{line}\n"
        for line in lines
        if _MOUNT_OF_INTEREST.search(line) or line.split(" ")[_MOUNT_POINT] in places
    )


def _nfs_definitions(text: str) -> str:
    lines = "".join(f"{line.text}\n" for line in fstab.nfs_lines(text))
    return _SECRET_OPTION.sub(r"\1=withheld", lines)


# mount.nfs has no such option, but fstab may have one behind a colon of another filesystem
_SECRET_OPTION = re.compile(
    r"\b(user(?:name)?|pass(?:word|wd)?2?|secret|cred(?:entials)?|domain|token|key)=[^,\s]*", re.I
)


def _nfs_unit(text: str) -> str | None:
    # a unit of another filesystem may have a password
    return _without_secrets(text) if units.is_nfs(text) or not text else None


def _listed(text: str) -> str:
    words = (line.strip() for line in text.splitlines())
    return "".join(f"{word}\n" for word in words if word.replace("-", "_") in MODULES)


def _sysctls(text: str) -> str:
    pairs = (line.partition("=") for line in text.splitlines())
    return "".join(
        f"{key.strip()} = {value.strip()}\n"
        for key, equals, value in pairs
        if equals and key.strip().removeprefix("-").replace("/", ".") in SYSCTLS
    )


_SECRET = re.compile(r"pass|secret|user|cred|key|token|domain", re.IGNORECASE)


def _without_secrets(text: str) -> str:
    """Remove the lines of a unit whose names are those of secrets; NFS has no such option."""
    rows = text.replace("\\\n", " ").splitlines(keepends=True)
    return "".join(row for row in rows if not _SECRET.search(_VALUES_OF_TYPE.sub("", row)))


# words of mount options and units in which a part looks like that of a secret
_VALUES_OF_TYPE = re.compile(r"\bno(?:user|users)\b|\busers?\b(?!\w*=)|multi-user\.target")


def _rules(text: str) -> str:
    """The rules for the read-ahead, or those that run a command of interest.

    Other files count by their names: one of these may mask one that has such rules.
    """
    return text if "read_ahead_kb" in text else _commands(text.replace("\\\n", " "))


def service(text: str, scripts: Container[str] = ()) -> str | None:
    """The lines of a unit that starts a command of interest, or one of ``scripts``."""
    kept = boot_files.kept_lines(text, scripts)
    return kept and _without_secrets(kept)


def script(text: str) -> str:
    """The first line of a script, and those with a command of interest."""
    first = text.partition("\n")[0]
    kept = (f"{line}\n" for line in (first, *boot_files.command_lines(text)))
    return _without_secrets("".join(kept))


def _commands(text: str) -> str:
    return _without_secrets("".join(f"{line}\n" for line in boot_files.command_lines(text)))


def _tuned(text: str) -> str | None:
    try:
        rows = json.loads(text)["mounts"]
        kept = [{key: row[key] for key in ("directory", "read_ahead_kb")} for row in rows]
    except (ValueError, KeyError, TypeError):
        return None
    return json.dumps({"mounts": kept})


_CONFIG = _lines(r"CONFIG_(SUNRPC|NFS|INFINIBAND|RDMA|DEBUG_INFO_BTF|NF_TABLES=)")
_UNITS = f"{{{','.join(units.FOLDERS)}}}"
_NAMES = r"nfs|sunrpc|rpcrdma|svcrdma|xprtrdma|lockd|rdma|mlx|siw"
_STARTING = f"{_UNITS}/*.{{wants,requires}}"
RELEASE = "proc/sys/kernel/osrelease"
_INFINIBAND = "sys/class/infiniband/*"
PORT = f"{_INFINIBAND}/ports/*"
_NET = "sys/class/net/*"
_MODULE = (
    "sys/module/{nfs,nfsv3,nfsv4,nfsd,sunrpc,rpcrdma,nfsrdma,lockd,rdma_cm,ib_core,rdma_rxe,siw,"
    "mlx5_core,mlx5_ib,irdma,bnxt_re,module}"
)
CONTENTS: tuple[tuple[str, Keep], ...] = (
    # the kernel and its modules
    (RELEASE, whole),
    ("proc/version", whole),
    ("proc/sys/kernel/hostname", whole),
    ("proc/version_signature", whole),
    ("proc/modules", whole),
    ("proc/config.gz", _CONFIG),
    ("boot/config-{release}", _CONFIG),
    ("lib/modules/{release}/config", _CONFIG),
    ("lib/modules/{release}/build/Makefile", nothing),
    ("sys/kernel/btf/vmlinux", nothing),
    ("sys/kernel/security/lockdown", whole),
    (f"{_MODULE}/version", whole),
    (f"{_MODULE}/srcversion", whole),
    (f"{_MODULE}/taint", whole),
    (f"{_MODULE}/initstate", whole),
    (f"{_MODULE}/parameters/*", whole),
    ("proc/driver/nvidia-fs/modules", whole),
    (f"{{{','.join(boot_files.MODPROBE)}}}/*.conf", _lines(_NAMES)),
    ("etc/os-release", whole),
    (kernel_changelog.FILES, kernel_changelog.abridged),
    # mounts
    ("proc/self/mountinfo", _nfs_mounts),
    ("proc/self/mountstats", _nfs_records),
    ("proc/self/limits", whole),
    ("proc/self/status", _lines("^CapEff:")),
    ("proc/fs/nfsfs/volumes", whole),
    ("proc/fs/nfsfs/servers", whole),
    ("etc/fstab", _nfs_definitions),
    ("etc/nfsmount.conf", whole),
    ("etc/nfsmount.conf.d/*.conf", whole),
    (f"{_UNITS}/*.mount", _nfs_unit),
    (f"{_UNITS}/*.mount.d/*.conf", _without_secrets),
    (f"{_UNITS}/*.automount", _without_secrets),
    (f"{_UNITS}/*.{{wants,requires}}/*.mount", _nfs_unit),
    (f"{_UNITS}/*.{{wants,requires}}/*.automount", _without_secrets),
    (f"{{{','.join(SBIN)}}}/mount.nfs", nothing),
    ("sys/class/bdi/*/read_ahead_kb", whole),
    ("sys/fs/nfs/*/nfs_client/switch/xprt-*/*", whole),
    ("sys/kernel/debug/nfsrdma/*/*", whole),
    (f"{{{','.join(udev_rules.FOLDERS)}}}/*.rules", _rules),
    ("var/lib/nfsrdma/tune.json", _tuned),
    # the server
    ("proc/fs/nfsd/{portlist,threads,versions,max_block_size,pool_threads,pool_mode}", whole),
    ("proc/fs/nfsd/clients/*/info", nothing),
    ("proc/net/rpc/nfsd", whole),
    ("proc/net/tcp{,6}", other_servers.listening_lines),
    (ganesha.CONF, ganesha.kept),
    ("sys/kernel/debug/nfsd/*", whole),
    ("sys/kernel/debug/nfsrdma-server/{totals,*/counters}", whole),
    ("sys/kernel/debug/nfsrdma-server/*/counters", whole),
    ("var/lib/nfs/etab", whole),
    ("etc/exports", whole),
    ("etc/exports.d/*.exports", whole),
    ("{usr/etc,etc}/nfs.conf{,.local}", whole),
    ("{usr/etc,etc}/nfs.conf.d/*.conf", whole),
    ("{etc,run}/sysconfig/nfs{,-utils}", whole),
    (f"{_UNITS}/nfs-server.service", whole),
    (f"{_UNITS}/nfs-server.service.d/*.conf", whole),
    ("etc/default/{nfs-kernel-server,nfs-common}", whole),
    ("etc/hosts", whole),
    # what a boot reads
    (f"{_STARTING}/{{{','.join(sorted(boot_files.SERVERS))}}}", whole),
    (f"{_STARTING}/autofs.service", nothing),
    (f"{_STARTING}/*.timer", nothing),
    (f"{_UNITS}/*.service", service),
    (f"{_UNITS}/*.service.d/*.conf", service),
    (f"{_STARTING}/*.service", service),
    (f"{{{','.join(boot_files.RC_LOCAL)}}}", _commands),
    (f"{{{','.join((*boot_files.MODULES_LOAD, boot_files.DEVICE_MODULES))}}}/*.conf", _listed),
    (f"{{{','.join(boot_files.SYSCTL)}}}/*.conf", _sysctls),
    ("etc/sysctl.conf", _sysctls),
    (f"proc/sys/{{{','.join(name.replace('.', '/') for name in SYSCTLS)}}}", whole),
    # RDMA devices, their ports, and the network devices
    (f"{_INFINIBAND}/{{fw_ver,hca_type,board_id,node_guid,node_type}}", whole),
    (f"{_INFINIBAND}/device/{{vendor,device}}", whole),
    (f"{PORT}/{{state,phys_state,rate,link_layer,cap_mask}}", whole),
    (f"{PORT}/{{counters,hw_counters}}/*", whole),
    (f"{_NET}/{{mtu,operstate,type,ifindex,iflink,flags,dev_id,dev_port,carrier,speed}}", whole),
    (f"{_NET}/address", whole),
    (f"{_NET}/ecn/roce_[nr]p/enable/*", whole),
    (f"{_NET}/device/{{vendor,device}}", whole),
    (f"{_NET}/{{lower,upper}}_*/ifindex", whole),
    (f"{_NET}/master/ifindex", whole),
    (f"{_NET}/bonding/{{slaves,mode,active_slave}}", whole),
    (f"{_NET}/bridge/bridge_id", nothing),
    ("proc/net/vlan/*", whole),
    # what tells a container
    ("{.dockerenv,run/.containerenv,run/systemd/container}", nothing),
    ("{run,var/run}/secrets/kubernetes.io/serviceaccount/namespace", nothing),
)
"""Patterns of files below the root, and which of their lines are kept.

``_add_gids`` of doctor/bundle.py adds GIDs.
"""
