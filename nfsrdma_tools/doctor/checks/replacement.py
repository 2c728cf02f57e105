# SPDX-License-Identifier: Apache-2.0
"""The users that a replacement of the transport module, or a reload of a driver, would end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nfsrdma_tools.doctor import inputs
from nfsrdma_tools.doctor.finding import Finding, Status, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules, rdma_routes, transports
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.module import users as module_users
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.rdma.ports import Link
from nfsrdma_tools.module_source import CARD, OURS

__all__ = ["reload", "replace"]

_SHOWN = 8
_CLIENTS = "proc/fs/nfsd/clients"
_MODULES = {
    "rxe": "rdma_rxe", "siw": "siw", "card": CARD, "mlx5": "mlx5_ib", "mlx4": "mlx4_ib",
    "cxgb4": "iw_cxgb4", "hns": "hns_roce", "mana": "mana_ib", "qib": "ib_qib", "nes": "iw_nes",
}  # fmt: skip
"""The modules of drivers by their names in netlink; of others, the name is the same."""
_CONSUMERS = frozenset(
    {
        "ib_ipoib", "ib_iser", "ib_isert", "ib_srp", "ib_srpt", "ko2iblnd", "ksmbd", "nvidia_fs",
        "nvidia_peermem", "nvme_rdma", "nvmet_rdma", "rds_rdma", "rnbd_client", "rnbd_server",
        "rtrs_client", "rtrs_server", "smbdirect", "smc",
    }
)  # fmt: skip
"""Modules other than ours and rpcrdma that are clients of the RDMA core (ib_register_client)."""


@check(100, "replace", after_reboot=True)
def replace(machine: Machine) -> Iterator[Finding]:
    """The users of the transport module: what has to end before another one can replace it."""
    machine.require("proc/modules")
    loaded = kernel_modules.loaded(machine)
    own = transports.owner(machine)
    for name in sorted({own, *({OURS} & loaded.keys())} - {""}):
        if name not in loaded:
            text = "part of the kernel: nothing can replace it without another kernel"
            yield Finding(f"replace {name}", "ok", text)
            continue
        users, count = module_users.users(name, machine), loaded[name].users
        loss = transports.gpudirect_loss(machine) if name == transports.KERNELS else ""
        yield _judge(f"replace {name}", users, count, _clients(machine), loss)
    if not own:
        yield Finding("replace", "ok", "no transport module is loaded")


def _judge(name: str, users: list[str], count: int, clients: int, loss: str) -> Finding:
    """Judge the users of a module that has ``count`` references."""
    references = f"{count} reference{'s' * (count != 1)}"
    if not users and count:
        text = f"{references}: {module_users.UNSEEN.format(to='')}"
        return Finding(name, "unknown", text, remedy="see /sys/kernel/sunrpc/xprt-switches")
    if not users:
        text = "nothing uses it"
        return Finding(name, "warning" if loss else "ok", "; ".join(filter(None, (text, loss))))
    text = f"would end: {_listed(users)}; {references}"
    if clients and any(user.startswith(module_users.NFSD) for user in users):
        text += f"; {clients} NFSv4 client{'s' * (clients > 1)} of nfsd, over any transport"
    status: Status = "warning" if loss else "ok"
    remedy = "keep this module" if loss else f"first: {', then '.join(module_users.ending(users))}"
    return Finding(name, status, "; ".join(filter(None, (text, loss))), remedy=remedy)


def _clients(machine: Machine) -> int:
    with contextlib.suppress(OSError):
        return len(list(machine.path(_CLIENTS).glob("*/info")))
    return 0


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if words[_SHOWN:] else ""
    return f"{', '.join(words[:_SHOWN])}{more}"


@check(110, "reload", after_reboot=True)
def reload(machine: Machine) -> Iterator[Finding]:
    """The mounts, connections, modules and programs that lose a device with its driver."""
    try:
        links = machine.links()
    except NotRecordedError:
        raise
    except UserError:
        # no RDMA device
        return
    machine.require("proc/modules")
    loaded = kernel_modules.loaded(machine)
    mounts = module_users.rdma_mounts(machine)
    try:
        listeners = nfsctl.listeners(machine)
    except (OSError, UserError):
        listeners = []
    served = [
        f"connections of clients to nfsd's {listener}"
        for listener in listeners
        if listener.over_rdma
    ]
    contexts = inputs.user_contexts(machine)
    by_driver: dict[str, set[str]] = {}
    for link in links:
        by_driver.setdefault(link.device.driver, set()).add(link.device.name)
    for driver, devices in sorted(by_driver.items()):
        module = loaded.get(_MODULES.get(driver, driver))
        losers = [
            f"mount {mount.directory}"
            for mount in mounts
            if _may_use(machine, mount, devices, links)
        ]
        waiting = "; a mount waits until a device has its route again" if losers else ""
        modules = {*(module.used_by if module else ()), *(_CONSUMERS & loaded.keys())}
        losers += [*served, *(f"module {user}" for user in sorted(modules))]
        if number := sum((contexts or {}).get(name, 0) for name in devices):
            losers.append(f"{number} context{'s' * (number > 1)} of programs")
        shown = ", ".join(sorted(devices))
        text = f"would take {shown} from {_listed(losers)}" if losers else f"nothing uses {shown}"
        if contexts is None:
            text += "; contexts of programs were not recorded"
        status: Status = "unknown" if contexts is None and not losers else "ok"
        name = f"reload {module.name if module else driver or 'driver'}"
        yield Finding(name, status, text + waiting)


def _may_use(machine: Machine, mount: Mount, devices: set[str], links: list[Link]) -> bool:
    """Whether the route of a mount uses one of these devices; a doubt counts as use."""
    if {link.device.name for link in links} <= devices:
        return True
    address = mount.options.get("addr", "").partition("%")[0]
    try:
        route_ports = rdma_routes.ports_of(machine, rdma_routes.route_to(machine, address))
    except (UserError, OSError, ValueError):
        return True
    return not route_ports.ports or any(link.device.name in devices for link in route_ports.ports)
