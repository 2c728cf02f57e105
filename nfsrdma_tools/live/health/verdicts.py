# SPDX-License-Identifier: Apache-2.0
"""OK, WARNING, CRITICAL or UNKNOWN for each mount and the host, as monitoring plugins have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.live.health.mount_table import server_address
from nfsrdma_tools.live.health.observe import Observation, PendingRpc, Silence
from nfsrdma_tools.live.health.rpc_clients import RpcConnection
from nfsrdma_tools.live.health.volumes import Volume, volume_of

__all__ = [
    "CRITICAL",
    "NAMES",
    "OK",
    "UNKNOWN",
    "WARNING",
    "Limits",
    "Report",
    "Verdict",
    "judge",
    "worst",
]

OK, WARNING, CRITICAL, UNKNOWN = range(4)
NAMES = ("ok", "warning", "critical", "unknown")
_SEVERITY = (OK, UNKNOWN, WARNING, CRITICAL)
"""From the least to the most severe."""


class Limits(NamedTuple):
    """The ages of an RPC, in seconds, from which a mount is WARNING and CRITICAL."""

    warning: float
    critical: float

    def of(self, age: float) -> int:
        """The status of this age."""
        return CRITICAL if age >= self.critical else WARNING if age >= self.warning else OK


class Verdict(NamedTuple):
    """The status of a mount, or of something without one."""

    status: int
    where: str
    """Its mount point; "" for what has none."""
    reason: str
    advice: str = ""
    server: str = ""
    address: str = ""
    transport: str = ""
    vers: str = ""
    connection: str = ""
    """"connected", "connecting", "not connected"; "" if it was not read."""
    age: float = 0.0
    """Of the oldest RPC in seconds; 0 if none waits."""
    rpc: PendingRpc | None = None
    volume: Volume | None = None
    process: int = 0
    """A process of its mount namespace, if it is not the one that was read."""


class Report(NamedTuple):
    """The status of a host, and the verdicts: those of its mounts in the kernel's order first."""

    status: int
    verdicts: list[Verdict]
    unseen: list[str]
    """What was not seen, one reason each."""
    error: str = ""
    """Why the metrics were not written; "" if they were, or none are wanted."""

    @property
    def bad(self) -> list[Verdict]:
        """The verdicts that are not OK, the worst first."""
        rank = _SEVERITY.index
        return sorted(
            (verdict for verdict in self.verdicts if verdict.status != OK),
            key=lambda verdict: (-rank(verdict.status), -verdict.age),
        )


def worst(statuses: Iterable[int]) -> int:
    """The most severe status; OK without any."""
    return max(statuses, key=_SEVERITY.index, default=OK)


def judge(
    seen: Observation, limits: Limits, wanted: Sequence[Path] = (), unknown_ages: str = ""
) -> Report:
    """The verdicts of ``wanted`` mounts, or of all mounts and of what has none.

    ``unknown_ages`` says why no run can know an age; "" if it can.
    """
    mounts = seen.table.mounts
    if wanted:
        mounts = [entry for entry in mounts if entry.directory in wanted]
    verdicts = [_mount(entry, seen, limits, unknown_ages) for entry in mounts]
    verdicts += _not_mounted(seen, wanted)
    if not wanted:
        verdicts += _without_mount(seen, limits, unknown_ages)
        verdicts += _threads(seen, verdicts, limits)
    status = worst(verdict.status for verdict in verdicts)
    unseen = [*seen.unseen, *([f"ages are unknown: {unknown_ages}"] if unknown_ages else [])]
    return Report(status, verdicts, unseen)


def _not_mounted(seen: Observation, wanted: Sequence[Path]) -> Iterator[Verdict]:
    mounted = {entry.directory for entry in seen.table.mounts}
    for directory in wanted:
        if directory in mounted:
            continue
        if str(directory) in seen.table.closed:
            yield Verdict(OK, str(directory), "not mounted yet: autofs waits for its first use")
        else:
            yield Verdict(
                CRITICAL, str(directory), "not an NFS mount",
                "mount it, or give its name as in /proc/self/mountinfo: links are not followed",
            )  # fmt: skip


def _mount(entry: Entry, seen: Observation, limits: Limits, unknown_ages: str) -> Verdict:
    connections = seen.connections.get(entry.device, ())
    verdict = Verdict(
        OK, str(entry.directory), "no RPC waits",
        server=entry.source,
        address=server_address(entry),
        transport=entry.options.get("proto", ""),
        vers=entry.options.get("vers", ""),
        connection=_state(connections),
        volume=volume_of(entry.directory),
    )  # fmt: skip
    rpc = seen.rpcs.get(entry.device)
    if rpc is not None:
        verdict = _waiting(verdict, rpc, entry.device in seen.guessed, limits, unknown_ages)
    elif not seen.rpcs_seen and (unknown_ages or entry.device not in seen.counted):
        reason = "counters are not kept" if unknown_ages else "counters cannot be read"
        return verdict._replace(status=UNKNOWN, reason=f"RPCs are not listed, and {reason}")
    elif not seen.rpcs_seen:
        verdict = verdict._replace(reason="no Call without a reply was seen")
    silence = seen.silences.get(entry.device)
    if silence is None or silence.seconds <= verdict.age:
        return verdict
    status = _of_silence(silence, seen, limits, unknown_ages)
    if _SEVERITY.index(status) < _SEVERITY.index(verdict.status):
        return verdict
    reason = f"Calls and no reply for at least {silence.seconds:.0f} s"
    return verdict._replace(status=status, reason=reason, age=silence.seconds, advice=_NO_REPLY)


def _of_silence(silence: Silence, seen: Observation, limits: Limits, unknown_ages: str) -> int:
    status = limits.of(silence.seconds)
    if not silence.pending:
        # the mount may be well now: nothing asks it
        return min(status, WARNING)
    if seen.rpcs_seen:
        return WARNING if unknown_ages else status
    # the Call may be that of a process that was killed
    return status if seen.threads else min(status, WARNING)


_NO_REPLY = "check the server, and the path to it: nfsrdma doctor HOST"


def _waiting(
    verdict: Verdict, rpc: PendingRpc, guessed: bool, limits: Limits, unknown_ages: str
) -> Verdict:
    age = "an unknown time" if unknown_ages else f"at least {rpc.age:.0f} s"
    reason = f"{rpc.procedure} has waited for {age}"
    if guessed:
        reason += ", for this mount or another one of its server"
    place, advice = _place(rpc, verdict.connection)
    return verdict._replace(
        status=WARNING if unknown_ages else limits.of(rpc.age),
        reason=f"{reason}{f' ({place})' if place else ''}",
        advice=advice,
        age=rpc.age,
        rpc=rpc,
    )


_PLACES = (
    (("slot", "nfs client", "nfsv4"), "for a slot, or for the recovery of state", _NO_REPLY),
    (("xprt_sending", "xprt_backlog", "xprt_resend"), "to be sent", ""),
    (("delayq",), "to be repeated", "nfsrdma explain shows what the server refuses"),
)
"""Words in the name of an RPC's queue, what it waits for, and what to do."""


def _place(rpc: PendingRpc, connection: str) -> tuple[str, str]:
    """Where an RPC waits, and what to do."""
    name = rpc.queue.lower()
    if rpc.action.startswith("call_refresh") or "upcall" in name or "gss" in name:
        return "for credentials of Kerberos", "check rpc.gssd: systemctl status rpc-gssd"
    if connection not in ("", "connected"):
        return connection, _NO_REPLY
    if name == "xprt_pending":
        return "for the reply", "check nfsd and the disks on the server"
    known = ((place, to_do) for words, place, to_do in _PLACES if any(w in name for w in words))
    return next(known, (rpc.action if name in ("", "none") else rpc.queue, ""))


def _state(connections: Sequence[RpcConnection]) -> str:
    """The state of all connections of a mount in words; one that is up hides no other."""
    states = [connection.state for connection in connections]
    if len(set(states)) < 2:
        return states[0] if states else ""
    return f"{states.count('connected')} of {len(states)} connected"


def _without_mount(seen: Observation, limits: Limits, unknown_ages: str) -> Iterator[Verdict]:
    """What waits on superblocks and clients without a mount point in the namespace."""
    mounted = seen.table.devices
    for device, rpc in seen.rpcs.items():
        if device in mounted:
            continue
        if device in seen.elsewhere:
            process, entry = seen.elsewhere[device]
            yield _mount(entry, seen, limits, unknown_ages)._replace(process=process)
            continue
        connections = seen.connections.get(device, ())
        first = connections[0] if connections else RpcConnection("", "", "", "")
        verdict = Verdict(
            OK, "", "",
            server=first.address, address=first.address, transport=first.netid,
            connection=_state(connections),
        )  # fmt: skip
        verdict = _waiting(verdict, rpc, False, limits, unknown_ages)
        lazy = "unmounted by umount -l"
        surely = ":" in device and not seen.namespaces_hidden
        if seen.namespaces_hidden:
            lazy += ", or mounted in a namespace that this user cannot read"
        elif not surely:
            lazy += ", being mounted, or of a data server (pNFS)"
        yield verdict._replace(
            # nothing that can be used waits: no mount to be repaired
            status=min(verdict.status, WARNING),
            reason=f"{verdict.reason}; no mount has this RPC client: {lazy}",
            advice=(
                f"end it: echo 1 > /sys/fs/nfs/{device}/shutdown" if surely else verdict.advice
            ),
        )


def _threads(seen: Observation, verdicts: Sequence[Verdict], limits: Limits) -> Iterator[Verdict]:
    """Threads that wait although no RPC does, as for the recovery of NFSv4 state.

    A thread does not say which mount it waits for, so no mount is known to be broken.
    """
    oldest = max(seen.threads, key=lambda waiting: waiting.age, default=None)
    if oldest is None or limits.of(oldest.age) == OK:
        return
    if any(verdict.age >= limits.warning for verdict in verdicts):
        return
    name, number, function = oldest.thread.name, oldest.thread.number, oldest.thread.function
    rpcs = "and no RPC as long" if seen.rpcs_seen else "and RPCs are not listed"
    yield Verdict(
        WARNING, "",
        f"thread {number} ({name}) has waited in {function} for at least {oldest.age:.0f} s, "
        f"{rpcs}",
        "the client recovers its state, or lost a reply: nfsrdma explain",
        age=oldest.age,
    )  # fmt: skip
