# SPDX-License-Identifier: Apache-2.0
"""What doctor's checks ask of programs, netlink and the resolver, for a bundle that has all of it.

A check asks some of it under a condition; ``ask`` knows the conditions that save time or spare the
host, and asks the rest always.  tests/unit/doctor/test_questions.py compares both on many hosts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules, rdma_routes
from nfsrdma_tools.host.kernel_config import is_built_in
from nfsrdma_tools.host.kernel_log.sources import boot_log, kernel_ring
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import definitions, fstab, mountinfo, servers, units
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.nfsd import configuration, other_servers, serving
from nfsrdma_tools.host.transports import CONF, KERNELS
from nfsrdma_tools.module_source import OURS

__all__ = [
    "CONTEXTS",
    "IP6TABLES",
    "NO_BCC",
    "ask",
    "bcc",
    "filter_commands",
    "flow_control",
    "mount_program",
    "our_build",
    "udev_runs",
    "user_contexts",
    "verbs",
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
