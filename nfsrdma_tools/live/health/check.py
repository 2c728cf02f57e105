# SPDX-License-Identifier: Apache-2.0
"""One run of the check: read, remember, judge, and print."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.errors import UsageError, UserError, escaped
from nfsrdma_tools.files import beginning, check_replaceable, state_dir, write_atomically
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.live.collect.namespace import is_in_container
from nfsrdma_tools.live.health.ages import FILES, kept_ages
from nfsrdma_tools.live.health.guarded import guarded
from nfsrdma_tools.live.health.metrics import metrics
from nfsrdma_tools.live.health.mount_table import MOST_MOUNTS
from nfsrdma_tools.live.health.observe import observe
from nfsrdma_tools.live.health.verdicts import NAMES, UNKNOWN, Limits, Report, Verdict, judge
from nfsrdma_tools.live.health.volumes import pod_names
from nfsrdma_tools.sizes import parse_seconds

__all__ = [
    "Outcome",
    "Request",
    "check",
    "limits",
    "lines",
    "mount_points",
    "run",
    "to_plain",
    "without_answer",
]

_MOST_LINES = 100
_BOOT = "sys/kernel/random/boot_id"
_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOCK_SECONDS = 2.0
_NOTHING = Report(UNKNOWN, [], [])


class Request(NamedTuple):
    """What to check: ``mounts`` are names as in mountinfo; none means all."""

    limits: Limits
    mounts: tuple[Path, ...] = ()
    machine: Machine = LIVE
    state: Path | None = None
    """The folder of what earlier runs saw; None for /run/nfsrdma."""
    textfile: Path | None = None
    """The file of metrics to write."""


class Outcome(NamedTuple):
    """The exit status of a run, and what it prints."""

    status: int
    lines: list[str]
    plain: dict[str, Any]


def limits(critical: str, warning: str | None) -> Limits:
    """The limits of ``30s``, ``500ms``, ``2m`` or ``30``; half of ``critical`` without ``warning``.

    UsageError unless they are times above 0, the warning not above the other.
    """
    most = parse_seconds(critical)
    parsed = Limits(parse_seconds(warning) if warning is not None else most / 2, most)
    if parsed.warning > parsed.critical:
        raise UsageError(
            f"the warning age {parsed.warning:g} s is above --max-rpc-age {parsed.critical:g} s",
            "give a smaller --warn-rpc-age",
        )
    return parsed


def mount_points(names: Iterable[str]) -> tuple[Path, ...]:
    """The names as mountinfo has them; UsageError for a relative one.

    Links are not followed, because that would access the mount.  The bytes of a name count, as in
    mountinfo, whatever the locale makes of them.
    """
    names = [os.fsencode(name).decode("utf-8", "surrogateescape") for name in names]
    for name in names:
        if not name.startswith("/"):
            raise UsageError(f"'{name}' is not absolute", "name mounts as `nfsrdma mounts` does")
    # normpath keeps two slashes at the beginning
    paths = (Path("/" + os.path.normpath(name).lstrip("/")) for name in names)
    return tuple(dict.fromkeys(paths))


def run(request: Request, seconds: float) -> Outcome:
    """The outcome of a check that ends in ``seconds``, whatever the kernel's files do."""

    def work() -> str:
        # a run that waits for another one says so, before it is itself too late
        report = check(request, min(_LOCK_SECONDS, seconds / 2))
        return json.dumps([report.status, [*lines(report, request.limits)], to_plain(report)])

    try:
        return Outcome(*json.loads(guarded(work, seconds)))
    except UserError as error:
        return without_answer(error)


def without_answer(error: UserError) -> Outcome:
    """The outcome of a check that found nothing out."""
    plain = {**to_plain(_NOTHING), "error": str(error)}
    return Outcome(UNKNOWN, [_shown(f"NFS UNKNOWN: {error}")], plain)


def check(request: Request, lock_seconds: float = _LOCK_SECONDS) -> Report:
    """The health of the mounts; the metrics of ``request`` are written.

    Waits ``lock_seconds`` for another run.  UserError if the mounts cannot be read, which the
    metrics say, too, or if these must not be written.
    """
    if not request.textfile:
        return _check(request, lock_seconds)
    _check_textfile(request.textfile, request.state or state_dir())
    try:
        report = _check(request, lock_seconds)
    except UserError:
        _with_metrics(_NOTHING, request.textfile, request.machine)
        raise
    return _with_metrics(report, request.textfile, request.machine)


def _check(request: Request, lock_seconds: float) -> Report:
    machine = request.machine
    if machine.process == "self" and not request.mounts and is_in_container():
        raise UserError(
            "these are the mounts of a container, not of its host",
            "mount the host's /proc, and give --path.procfs; or name the mounts",
        )
    try:
        boot = beginning(machine.path(f"proc/{_BOOT}"), 64).decode("ascii", "replace").strip()
    except OSError as error:
        # the file as it is named here: the option may be wrong
        message = f"cannot read {error.filename}: {error.strerror}"
        raise UserError(message, "see --path.procfs") from error
    if not _BOOT_ID.fullmatch(boot):
        raise UserError(
            f"{machine.path(f'proc/{_BOOT}')}: expected the id of a boot, found {boot!r}",
            "see --path.procfs",
        )
    with kept_ages(request.state or state_dir(), boot, lock_seconds) as ages:
        seen = observe(machine, ages)
    report = judge(seen, request.limits, request.mounts, ages.unknown)
    report.unseen.extend(ages.notes)
    # with more mounts, it is unknown whether the logs are on one of them
    if len(seen.table.closed) < MOST_MOUNTS:
        report = _with_pods(report, machine.root, seen.table.closed)
    return report


def _check_textfile(path: Path, state: Path) -> None:
    """UserError unless ``path`` is a regular file, or missing in a folder that exists.

    Also if it is a file of ``state``: without that, no age would ever grow.
    """
    try:
        check_replaceable(path)
        # not Path.resolve, which raises RuntimeError for a loop of links before Python 3.13
        if os.path.realpath(path) in [os.path.realpath(state / name) for name in FILES]:
            raise UserError(f"{path} is a file of the state folder", "give another --textfile")
        if not path.parent.is_dir():
            raise UserError(f"cannot write {path}: its folder does not exist", "create it first")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", "give --textfile a regular file"
        ) from error


def _with_metrics(report: Report, path: Path, machine: Machine) -> Report:
    """Write the metrics; the report says if that failed."""
    try:
        write_atomically(path, metrics(report, machine))
    except UserError as error:
        return report._replace(status=report.status or UNKNOWN, error=str(error))
    return report


def _with_pods(report: Report, root: Path, closed: set[str]) -> Report:
    """The report with the names of the pods whose volumes are bad."""
    if not any(verdict.volume for verdict in report.bad):
        return report
    names = pod_names(root, closed)
    verdicts = []
    for verdict in report.verdicts:
        if verdict.volume and (pod := names.get(verdict.volume.pod_uid)):
            volume = verdict.volume._replace(namespace=pod[0], pod=pod[1])
            verdict = verdict._replace(volume=volume)  # noqa: PLW2901
        verdicts.append(verdict)
    return report._replace(verdicts=verdicts)


def lines(report: Report, limits: Limits) -> Iterator[str]:
    """The report in lines: a summary with performance data, each bad mount, what was not seen."""
    bad = report.bad
    mounts = [verdict for verdict in report.verdicts if verdict.where]
    oldest = max((verdict.age for verdict in report.verdicts), default=0.0)
    data = f"oldest_rpc={oldest:.3f}s;{limits.warning:g};{limits.critical:g};0 mounts={len(mounts)}"
    text = report.error if report.error and not bad else _summary(bad, len(mounts))
    summary = _shown(f"NFS {NAMES[report.status].upper()}: {text}")
    yield f"{summary} | {data}"
    for verdict in bad[:_MOST_LINES]:
        yield _shown(_line(verdict))
    if len(bad) > _MOST_LINES:
        yield f"and {len(bad) - _MOST_LINES} more"
    for reason in report.unseen:
        yield _shown(f"not seen: {reason}")
    if report.error and bad:
        yield _shown(report.error)


def _shown(text: str) -> str:
    """One line without the bar, behind which monitoring looks for performance data."""
    return escaped(text, "|")


def _summary(bad: Sequence[Verdict], mounts: int) -> str:
    count = "1 mount" if mounts == 1 else f"{mounts} mounts"
    if not bad:
        return f"no RPC is late on {count}" if mounts else "no NFS is mounted"
    # the node-problem-detector keeps the first 80 characters
    worst = bad[0]
    text = f"{worst.where or 'without a mount'}: {worst.reason.partition(' (')[0]}"
    return f"{text}, and {len(bad) - 1} more" if len(bad) > 1 else text


def _line(verdict: Verdict) -> str:
    parts = [f"{verdict.where or '(no mount)'}: {NAMES[verdict.status].upper()}: {verdict.reason}"]
    if verdict.server:
        transport = " ".join(
            filter(None, (verdict.transport, verdict.vers and f"NFSv{verdict.vers}"))
        )
        address = (
            f" ({verdict.address})" if verdict.address and verdict.address != verdict.server else ""
        )
        parts.append(f"from {verdict.server}{address} over {transport}")
    if verdict.volume:
        pod = f"{verdict.volume.namespace}/{verdict.volume.pod} " if verdict.volume.pod else ""
        plugin = f" of {verdict.volume.plugin}" if verdict.volume.plugin else ""
        parts.append(f"pod {pod}{verdict.volume.pod_uid} volume {verdict.volume.name}{plugin}")
    if verdict.process:
        parts.append(f"in the mount namespace of process {verdict.process}")
    if verdict.advice:
        parts.append(verdict.advice)
    return "; ".join(parts)


def to_plain(report: Report) -> dict[str, Any]:
    """The report as a document of JSON."""
    return {
        "status": NAMES[report.status],
        "exit_status": report.status,
        "findings": [_plain(verdict) for verdict in report.verdicts],
        "not_seen": list(report.unseen),
        "error": report.error or None,
    }


def _plain(verdict: Verdict) -> dict[str, object]:
    return {
        "mount": verdict.where or None,
        "status": NAMES[verdict.status],
        "reason": verdict.reason,
        "advice": verdict.advice,
        "server": verdict.server,
        "address": verdict.address,
        "transport": verdict.transport,
        "vers": verdict.vers,
        "connection": verdict.connection,
        "age_seconds": round(verdict.age, 3),
        "rpc": (
            {
                "client": verdict.rpc.client,
                "task": verdict.rpc.number,
                "procedure": verdict.rpc.procedure,
                "queue": verdict.rpc.queue,
                "action": verdict.rpc.action,
            }
            if verdict.rpc
            else None
        ),
        "volume": verdict.volume._asdict() if verdict.volume else None,
        "namespace_of_process": verdict.process or None,
    }
