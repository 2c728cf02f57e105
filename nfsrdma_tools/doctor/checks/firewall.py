# SPDX-License-Identifier: Apache-2.0
"""Check of the packet filter: it accepts what NFS sends through it on this host.

The device decides that.  A card sends and receives RDMA itself (RoCE, InfiniBand, and iWARP, which
it offloads), so the packet filter does not see it.  Soft links use the network stack: soft-RoCE
(rxe) UDP 4791, soft-iWARP (siw) TCP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.doctor import inputs
from nfsrdma_tools.doctor.finding import Finding, Status, check
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.host import kernel_modules, packet_filter
from nfsrdma_tools.host.kernel_config import config, is_built_in
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.nfsd.other_servers import other_server
from nfsrdma_tools.host.packet_filter import Flow
from nfsrdma_tools.host.rdma.ports import Link
from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT, ROCE_PORT

__all__ = ["Need", "firewall", "judge_filter"]


class Need(NamedTuple):
    """A flow that the packet filter has to accept, and what uses it."""

    flow: Flow
    user: str

    def __str__(self) -> str:
        return f"{self.flow} ({self.user})"


_TCP = Need(Flow("tcp", NFS_PORT), "NFS over TCP")
_IWARP, _ROCE = Flow("tcp", RDMA_PORT), Flow("udp", ROCE_PORT)
_ANY = (_TCP, Need(_IWARP, "soft-iWARP"), Need(_ROCE, "soft-RoCE"))
_SOFT = {"rxe": _ROCE, "siw": _IWARP}
"""The drivers of soft links; the modelled card copies between memories, without packets."""
_MODULES = {"rdma_rxe": "RDMA_RXE", "siw": "RDMA_SIW"}
"""Their modules, and the options of the kernel that make them a part of it."""
_OF_PROTOCOL = {"roce": (_ROCE,), "iw": (_IWARP,)}
_MOST_SHOWN = 4
_LONGEST_RULE = 120


class _Use(NamedTuple):
    """The flows that this host needs from the packet filter, and the devices that need none."""

    needs: tuple[Need, ...] = ()
    cards: str = ""
    """Which devices are cards, as text; "" if none is known to be one."""
    doubt: str = ""
    """Why a need may be none, as text."""


@check(120, "firewall")
def firewall(machine: Machine) -> Iterator[Finding]:
    """The packet filter accepts NFS over TCP, and the traffic of soft RDMA links."""
    _require_modules(machine)
    texts = []
    is_known = True
    for argv in inputs.filter_commands(machine):
        if argv != inputs.IP6TABLES:
            texts.append(_rules(machine, *argv))
            continue
        try:
            texts.append(packet_filter.rules_of_input(_rules(machine, *argv), "ip6"))
        except NotRecordedError:
            # a bundle of an older version
            is_known = False
    use = _use(machine)
    finding = judge_filter("\n".join(texts), use.needs or _ANY)
    if finding.status == "ok" and not is_known:
        text = f"{finding.found}; the rules of ip6tables were not recorded"
        finding = Finding(
            finding.name, "unknown", text, remedy="ip6tables-legacy-save, on the host"
        )
    if finding.status != "ok" and not use.needs:
        text = "this host needs none: it serves NFS neither over TCP nor over a soft link"
        finding = Finding(finding.name, "ok", f"{finding.found}; {text}")
    doubt = "" if finding.status == "ok" else use.doubt
    yield finding._replace(found="; ".join(filter(None, (finding.found, use.cards, doubt))))


def _require_modules(machine: Machine) -> None:
    """NotRecordedError if it is unknown which packet filters the kernel has."""
    machine.require("proc/modules")
    # a kernel without modules has no such file, but mostly a configuration
    if not machine.path("proc/modules").exists() and not config(machine):
        raise NotRecordedError(machine.unrecorded("/proc/modules", "/proc/modules does not exist"))


def _rules(machine: Machine, *argv: str) -> str:
    result = machine.run(*argv)
    if result.returncode and not machine.root_user:
        raise PermissionError(result.stderr)
    if result.returncode:
        # such as root in a container, without CAP_NET_ADMIN
        text = f"cannot list the rules: {one_line(result.stderr) or f'status {result.returncode}'}"
        raise UserError(text, "run this on the host" if machine.in_container else "")
    return result.stdout


# ---- what uses the filter


def _use(machine: Machine) -> _Use:
    """The flows that this host needs; a doubt counts as a need."""
    listeners, links = _listeners(machine), _links(machine)
    serves = listeners is None or bool(listeners)
    if not links:
        if links is not None and not serves:
            return _Use()
        why = "no RDMA device was recorded" if links is None else "no RDMA device is visible"
        return _Use(_ANY, doubt=f"{why}, and RDMA of a card passes the packet filter by")
    is_soft = {link: _is_soft(machine, link) for link in links}
    needs = (
        [_TCP] if listeners is None or any(not listener.over_rdma for listener in listeners) else []
    )
    for flow, kind in ((_IWARP, "iWARP"), (_ROCE, "RoCE")):
        users = [link for link in links if is_soft[link] is not False and flow in _flows(link)]
        # only the server of a connection of iWARP accepts one; each packet of RoCE is new
        if users and (serves or flow == _ROCE):
            needs.append(Need(flow, f"{kind} of {_names(users)}"))
    if not needs:
        return _Use()
    cards = _names([link for link, soft in is_soft.items() if soft is False])
    unknown = _names([link for link, soft in is_soft.items() if soft is None])
    return _Use(
        tuple(needs),
        f"RDMA of {cards} passes the packet filter by, as of any card" if cards else "",
        f"{unknown} may be a card, whose RDMA passes the packet filter by" if unknown else "",
    )


def _listeners(machine: Machine) -> list[Listener] | None:
    """The listeners of this host's nfsd; None if they are unknown, as those of another server."""
    try:
        machine.require("proc/fs/nfsd/portlist")
        listeners = nfsctl.listeners(machine)
        return None if not listeners and other_server(machine) else listeners
    except OSError as error:
        files.note_unread(error)
        return None
    except UserError:
        return None


def _links(machine: Machine) -> list[Link] | None:
    """The RDMA links of this host; None if they are unknown."""
    try:
        return machine.links()
    except NotRecordedError:
        return None
    except UserError:
        # without ib_core there is none
        return []


def _is_soft(machine: Machine, link: Link) -> bool | None:
    """Whether a link's packets go through the network stack; None if that is unknown."""
    if link.device.driver not in ("", "unknown"):
        return link.device.driver in _SOFT
    if link.device.protocol in ("ib", "opa"):
        return False
    loaded = kernel_modules.loaded(machine)
    may_be = any(
        name in loaded or is_built_in(machine, option) for name, option in _MODULES.items()
    )
    return None if may_be else False


def _flows(link: Link) -> tuple[Flow, ...]:
    """The flows of a link if it is soft."""
    if flow := _SOFT.get(link.device.driver):
        return (flow,)
    return _OF_PROTOCOL.get(link.device.protocol, (_IWARP, _ROCE))


def _names(links: Sequence[Link]) -> str:
    """The devices of links, the first few."""
    names = list(dict.fromkeys(link.device.name for link in links))
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{', '.join(names[:_MOST_SHOWN])}{more}"


# ---- what the filter does


def judge_filter(rules: str, needs: Sequence[Need] = _ANY) -> Finding:
    """Judge the text of ``nft list ruleset`` or ``iptables-save`` for the flows that are needed."""
    tables = packet_filter.parse(rules)
    fates = {str(need.flow): _fate(tables, need.flow) for need in needs}
    for kind, status, words in _JUDGED:
        named = {port: fate.rule for port, fate in fates.items() if fate.kind == kind and fate.rule}
        if named:
            # one rule often decides for all ports
            by_rule: dict[str, list[str]] = {}
            for port, rule in named.items():
                by_rule.setdefault(rule, []).append(port)
            text = "; ".join(
                f"{', '.join(ports)} {words}: {_cut(rule)}" for rule, ports in by_rule.items()
            )
            if status == "ok":
                return Finding("firewall", "ok", text)
            expected = f"{', '.join(map(str, needs))} accepted from the peers"
            users = ", ".join(need.user for need in needs if str(need.flow) in named)
            remedy = f"accept {', '.join(named)} for {users}"
            remedy = f"compare the rules with the peers' addresses; {remedy}"
            return Finding("firewall", status, text, expected, remedy)
    *others, last = fates
    first = f"{', '.join(others)} or " if others else ""
    return Finding("firewall", "ok", f"no rule drops {first}{last}")


_JUDGED: tuple[tuple[str, Status, str], ...] = (
    ("dropped", "warning", "dropped by"),
    ("unknown", "unknown", "not judged, because nfsrdma cannot interpret"),
    ("partly", "unknown", "accepted from some peers only, by"),
    ("accepted", "ok", "accepted, except by"),
)
"""Fates, the worst first."""


def _cut(rule: str) -> str:
    return rule if len(rule) <= _LONGEST_RULE else f"{rule[:_LONGEST_RULE]}..."


def _fate(tables: packet_filter.Ruleset, flow: Flow) -> packet_filter.Fate:
    """The fate over IPv4; a filter that drops IPv6 alone may be on a host without IPv6."""
    four = packet_filter.fate(tables, flow)
    six = packet_filter.fate(tables, flow._replace(family="ip6"))
    if four.kind == "accepted" and six.kind in ("dropped", "unknown"):
        return packet_filter.Fate("partly", f"IPv4, not IPv6 ({six.rule})")
    return four
