# SPDX-License-Identifier: Apache-2.0
"""Checks of NFS servers: nfsd's listeners, and a remote server's TCP port."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

from nfsrdma_tools.doctor.checks import rdma_links
from nfsrdma_tools.doctor.finding import Finding, check
from nfsrdma_tools.doctor.ping import over_rdma
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import boot_files
from nfsrdma_tools.host.boot_files import SERVERS, BootCommand
from nfsrdma_tools.host.kernel_log.explain import boot_messages
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import fstab, mountinfo
from nfsrdma_tools.host.nfs.servers import is_own
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.nfsd import configuration, nfsctl
from nfsrdma_tools.host.nfsd.configuration import UNIT, Requested
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.nfsd.other_servers import OtherServer, other_server
from nfsrdma_tools.host.transports import KERNELS
from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT

__all__ = ["listeners", "reach"]

_PORTLIST = "portlist"
_RESTART = "systemctl restart nfs-server"
_ENABLE = "nfsrdma server enable DIRECTORY --client CLIENTS"
_TIMEOUT_S = 5


@check(100, "portlist")
def listeners(machine: Machine) -> Iterator[Finding]:
    """A running nfsd listens on RDMA, if the host's configuration requests that."""
    # read portlist, not threads, which only root may read
    machine.require("proc/fs/nfsd/portlist")
    listening = nfsctl.listeners(machine)
    if not listening and nfsctl.is_hidden(machine):
        text = "nfsd is loaded, and this container does not see /proc/fs/nfsd"
        yield Finding(_PORTLIST, "unknown", text, remedy="run this on the host")
        return
    if not listening:
        yield _judge_other(other_server(machine))
        return
    try:
        asked = configuration.requested(machine)
    except NotRecordedError:
        asked = None
    shown = f"nfsd listens on {', '.join(map(str, listening))}"
    if any(listener.over_rdma for listener in listening):
        yield _judge_rdma(machine, listening, shown, asked)
    elif asked is None:
        text = f"{shown}; without nfs.conf it is unknown whether it should use RDMA"
        yield Finding(_PORTLIST, "unknown", text)
    elif asked.rdma:
        yield _judge_failure(machine, shown, asked)
    elif asked.ignored:
        remedy = f"set rdma=y in [nfsd] of nfs.conf, then {_RESTART}"
        text = f"{shown}; {asked.ignored[0]}"
        yield Finding(_PORTLIST, "warning", text, "RDMA, if that request still stands", remedy)
    else:
        text = f"{shown}, and its configuration requests no RDMA"
        yield Finding(_PORTLIST, "ok", text, remedy=f"for RDMA: {_ENABLE}")


def _judge_other(other: OtherServer | None) -> Finding:
    """Judge a host whose kernel serves no NFS."""
    if other is None:
        return Finding(_PORTLIST, "ok", "no NFS server runs here")
    text = f"{other}, in place of the kernel's NFS server"
    if other.program:
        remedy = "" if other.rdma_ports else "whether it uses RDMA: rdma resource show cm_id"
        return Finding(_PORTLIST, "ok", text, remedy=remedy)
    text += "; neither its process nor an active unit of it (systemctl show) is known"
    remedy = "see which, as root: rdma resource show cm_id"
    if other.ports:
        remedy = f"see which, as root: ss -ltnp 'sport = :{other.ports[0]}'"
    return Finding(_PORTLIST, "unknown", text, remedy=remedy)


def _judge_rdma(
    machine: Machine, listening: list[Listener], shown: str, asked: Requested | None
) -> Finding:
    """Judge an nfsd that listens on RDMA: the port, and whether the next start requests it."""
    ports = sorted({listener.port for listener in listening if listener.over_rdma})
    if asked and asked.rdma_port and asked.rdma_port not in ports:
        text = f"{shown}; {asked.rdma_source} requests RDMA port {asked.rdma_port}"
        expected = "one port; the configuration may have changed since nfsd started"
        return Finding(_PORTLIST, "warning", text, expected, _RESTART)
    if asked and not asked.rdma_port:
        return _judge_unrequested(machine, ports, shown, asked)
    if RDMA_PORT in ports:
        return _with_unread(machine, Finding(_PORTLIST, "ok", shown), asked)
    text = f"{shown}: RDMA has not the default port, so clients need port={ports[0]}"
    if lines := _own_mounts(machine, RDMA_PORT):
        text = f"{shown}; fstab mounts {', '.join(lines)} of this host from port {RDMA_PORT}"
        remedy = f"set port={ports[0]} in fstab"
        return Finding(_PORTLIST, "warning", text, f"port {ports[0]}", remedy)
    return Finding(_PORTLIST, "ok", text)


def _judge_unrequested(machine: Machine, ports: list[int], shown: str, asked: Requested) -> Finding:
    """Judge listeners on RDMA that nfsd's configuration does not request; a unit may add them."""
    adding = _adding(machine, ports)
    if adding and adding.starts is not False:
        text = f"{shown}; {adding.source} adds RDMA port {ports[0]}"
        return _with_unread(machine, Finding(_PORTLIST, "ok", text), asked)
    if adding:
        text = f"{shown}; {adding.source} adds RDMA port {ports[0]}, and no unit starts it"
        remedy = f"systemctl enable {adding.unit}"
        return Finding(_PORTLIST, "warning", text, "a unit that is enabled", remedy)
    text = f"{shown}; {asked.fault or 'its configuration does not request RDMA'}"
    expected = "a request in nfs.conf: at the next start, only a script would add the listener"
    return Finding(_PORTLIST, "warning", text, expected, _ENABLE)


def _adding(machine: Machine, ports: list[int]) -> BootCommand | None:
    """The command beside nfsd's unit that adds a listener on one of these ports."""
    commands = [
        command
        for command in boot_files.commands(machine)
        if command.unit not in SERVERS and configuration.added_port(command.text) in ports
    ]
    return next((command for command in commands if command.starts), next(iter(commands), None))


def _with_unread(machine: Machine, finding: Finding, asked: Requested | None) -> Finding:
    """The same finding, with a number of threads that no program reads."""
    with contextlib.suppress(OSError, UserError):
        now = nfsctl.threads(machine)
        if now and asked and (setting := asked.unread_number(str(now))):
            text = (
                f"{finding.found}; {setting.source} is {setting.value}, which {UNIT} does not use"
            )
            remedy = f"set threads={setting.value} in [nfsd] of nfs.conf"
            return finding._replace(found=text, remedy=remedy)
    return finding


def _own_mounts(machine: Machine, port: int) -> list[str]:
    """The directories on which fstab mounts this host itself, over RDMA, from ``port``."""
    return [
        str(line.directory)
        for line in fstab.nfs_lines(machine.text("etc/fstab"))
        if fstab.transport(line.options) == "rdma"
        and _rdma_port(line.options) == port
        and is_own(machine, Target.of(line.source).host)
    ]


def _rdma_port(options: str) -> int:
    # the kernel's default for proto=rdma (nfs_parse_mount_options(), NFS_RDMA_PORT)
    given = [x.partition("=")[2] for x in mountinfo.split_options(options) if x[:5] == "port="]
    return int(given[-1]) if given and given[-1].isdecimal() else RDMA_PORT


def _judge_failure(machine: Machine, shown: str, asked: Requested) -> Finding:
    """Judge an nfsd without the requested listener on RDMA: the request is not in effect."""
    port = asked.rdma_port or RDMA_PORT
    text = f"{shown}; {asked.rdma_source} requests RDMA port {port}"
    if not asked.fault and (fault := rdma_links.fault(machine)):
        # that check has the remedy of the cause
        text = f"{text}; not judged, because {fault}"
        return Finding(_PORTLIST, "unknown", text, remedy=f"after that is mended: {_RESTART}")
    cause, remedy = _cause(machine, asked)
    text = f"{text}: {cause}"
    is_conf = re.fullmatch(r"(?:/usr)?/etc/nfs\.conf(?:\..+)?", asked.rdma_source)
    off = "set rdma=n there" if is_conf else f"remove that request from {asked.rdma_source}"
    remedy = f"{remedy}; or {off}, if TCP is enough"
    return Finding(_PORTLIST, "error", text, f"rdma {port}", remedy)


def _cause(machine: Machine, asked: Requested) -> tuple[str, str]:
    """Why the kernel has no listener on RDMA, as far as it is known, and the remedy."""
    if asked.fault:
        return asked.fault, f"set rdma=y and rdma-port={RDMA_PORT}, then {_RESTART}"
    reason = _refusal(machine)
    if reason in _REASONS:
        meaning, remedy = _REASONS[reason]
        return f"the kernel refused it: {meaning} ({reason})", f"{remedy}; then {_RESTART}"
    if reason:
        return f"the kernel refused it: {reason}", f"nfsrdma explain; then {_RESTART}"
    doubt = "no message says why, and the configuration may have changed since nfsd started"
    return doubt, f"{_RESTART}; if that fails: nfsrdma explain"


_REASONS = {
    "Protocol not supported": (
        "it had no transport module with a server when nfsd started",
        f"modprobe {KERNELS}",
    ),
    "No such device": (
        "no RDMA device has the address of host= in nfs.conf",
        "nfsrdma link show",
    ),
    "Cannot assign requested address": (
        "this host has no address of host= in nfs.conf",
        "ip address show",
    ),
    "Address already in use": (
        "another listener has the port",
        "rdma resource show cm_id",
    ),
}


def _refusal(machine: Machine) -> str:
    """The error with which rpc.nfsd or nfsdctl printed that the kernel refused it; "" if none."""
    refused = boot_messages(machine, "RDMA listener refused", "server command refused")
    return next((row.subject for row in refused), "")


@check(110, "server")
def reach(machine: Machine) -> Iterator[Finding]:
    """The given server accepts connections on TCP 2049, and then answers a ping over RDMA."""
    if not machine.server:
        return
    name = f"server {machine.server}"
    if not machine.local:
        yield Finding(name, "unknown", "not tried: these are the files of another host")
        return
    import socket

    try:
        with socket.create_connection((machine.server, NFS_PORT), timeout=_TIMEOUT_S) as link:
            address = link.getpeername()[0]
    except OSError as error:
        if error.errno == errno.ENETUNREACH:
            return  # nfs_routes reports it
        text = f"no connection to TCP {NFS_PORT}: {error.strerror or error}"
        remedy = "check the name, nfsd on the server, and the firewalls"
        yield Finding(name, "error", text, "a connection", remedy)
        return
    yield Finding(name, "ok", f"{address} answers on TCP {NFS_PORT}")
    yield over_rdma(machine.server)
