# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma load``: put a load of many sessions on a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import Json, argument, flag, option
from nfsrdma_tools.cli.output import aligned, print_json
from nfsrdma_tools.errors import UsageError, UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.client.load import Operations, Outcome, Plan, Progress, Times

__all__ = ["load"]

_Loop, _Files = "Options of the loop", "Options of the files"


def load(
    target: Annotated[
        str, argument("SERVER:/EXPORT", "Export; SERVER[:PORT] is enough for --mix null=1.")
    ],
    sessions: Annotated[
        int, option("N", "Sessions, each a connection (default: 10).", least=1, most=100_000)
    ] = 10,
    mix: Annotated[
        str | None,
        option(
            "LIST",
            "Kinds of operations with their weights, such as read=70,write=20,getattr=10; also "
            "null, and readdir, which is READDIRPLUS (default: read=1; without an export null=1).",
        ),
    ] = None,
    size: Annotated[
        str, option("SIZE", "Size of a READ or WRITE, a multiple of 8 (default: 4k).")
    ] = "4k",
    duration: Annotated[
        str, option("TIME", "Time to measure; 0 only connects (default: 10s).")
    ] = "10s",
    warm_up: Annotated[
        str | None, option("TIME", "Time of load before the measurement (default: none).")
    ] = None,
    at_once: Annotated[
        int | None,
        option(
            "N",
            "Sessions that connect at a time; --sessions is a connect storm (default: 64).",
            least=1,
        ),
    ] = None,
    timeout: Annotated[
        float,
        option(
            "SECONDS",
            "Time to connect, and of an operation without a reply (default: 60 s).",
            least=1,
            most=86_400,
        ),
    ] = 60,
    seed: Annotated[
        int, option("N", "Seed of the random numbers (default: 1).", least=0, most=2**63)
    ] = 1,
    as_json: Json = False,
    depth: Annotated[
        int,
        option(
            "N", "Unfinished operations of a session (default: 1).", least=1, most=127, panel=_Loop
        ),
    ] = 1,
    rate: Annotated[
        float | None,
        option(
            "N",
            "Open loop: N operations per second of all sessions together, at random times "
            "(default: closed loop).",
            least=0.001,
            most=1e9,
            panel=_Loop,
        ),
    ] = None,
    queue: Annotated[
        int,
        option(
            "N",
            "Open loop: operations that a session keeps while its depth is reached; others are "
            "dropped, and counted (default: 64).",
            least=1,
            most=1_000_000,
            panel=_Loop,
        ),
    ] = 64,
    think: Annotated[
        str | None,
        option(
            "TIME",
            "Closed loop: mean of the random time between an operation and the next one "
            "(default: none).",
            panel=_Loop,
        ),
    ] = None,
    in_flight: Annotated[
        int | None,
        option(
            "N",
            "Closed loop: unfinished operations of all sessions together; the next one is that of "
            "a random session (default: --depth of each session).",
            least=1,
            most=1_000_000,
            panel=_Loop,
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        option(
            "PATH",
            "Read this file below the export, which stays as it is; may be repeated (default: "
            "files that the command makes and removes).",
            panel=_Files,
        ),
    ] = None,
    files: Annotated[
        int,
        option("N", "Files to make (default: 1).", least=1, most=10_000, panel=_Files),
    ] = 1,
    file_size: Annotated[
        str, option("SIZE", "Size of each file to make (default: 16M).", panel=_Files)
    ] = "16M",
    sequential: Annotated[
        bool,
        flag(
            "Read and write in ascending order from a random place (default: at random offsets).",
            "--sequential",
            panel=_Files,
        ),
    ] = False,
    stable: Annotated[
        bool, flag("WRITE to stable storage (DATA_SYNC).", "--stable", panel=_Files)
    ] = False,
    verify: Annotated[
        bool, flag("Compare all data that READ returns.", "--verify", panel=_Files)
    ] = False,
    remove: Annotated[
        str | None,
        option(
            "DIR",
            "Only remove the directory DIR of an earlier load (default: none).",
            panel=_Files,
        ),
    ] = None,
) -> None:
    """Put a load of many sessions on a server.

    Each session is a client of its own: one connection, without a mount.  It needs access to
    /dev/infiniband and the library libnfsrdma, and root where the mount daemon requires it.

    An open loop measures a response from when the operation was due, a closed loop from when it
    was sent.  Writes go to files that the command has made.

    Exit status: 0 when all sessions connected and no operation failed, 1 otherwise, 130 after
    Ctrl-C.
    """
    from nfsrdma_tools.client import load as client
    from nfsrdma_tools.client.place import is_remote
    from nfsrdma_tools.sizes import parse_seconds, parse_size

    if remove is not None:
        client.remove(target, remove)
        return
    plan = client.Plan(
        sessions=sessions,
        depth=depth,
        mix=_mix(mix if mix is not None else "read=1" if is_remote(target) else "null=1"),
        size=parse_size(size),
        sequential=sequential,
        stable=stable,
        verify=verify,
        rate=rate or 0,
        think=parse_seconds(think) if think else 0,
        in_flight=in_flight or 0,
        queue=queue,
        duration=0 if duration == "0" else parse_seconds(duration),
        warm_up=parse_seconds(warm_up) if warm_up else 0,
        paths=tuple(file or ()),
        files=files,
        file_size=parse_size(file_size),
        at_once=at_once or 64,
        timeout=timeout,
        seed=seed,
    )
    outcome = _run(target, plan)
    if as_json:
        print_json(_facts(target, plan, outcome))
    else:
        for line in _lines(plan, outcome):
            print(printable(line))
    if outcome.interrupted:
        raise typer.Exit(130)
    if not client.succeeded(plan, outcome):
        raise typer.Exit(1)


def _run(target: str, plan: Plan) -> Outcome:
    from nfsrdma_tools.client.load import load as put
    from nfsrdma_tools.doctor.ping import remedy

    try:
        return put(target, plan, _show)
    except OSError as error:
        hint = remedy(error, target.partition(":/")[0])
        if not hint:
            raise
        raise UserError(error.strerror or str(error), hint) from error


def _mix(text: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in text.split(","):
        kind, _, weight = part.partition("=")
        if kind in weights:
            raise UsageError(f"the mix has {kind} twice")
        if not weight.isascii() or not weight.isdigit() or len(weight) > 6:
            hint = "example: read=70,write=20,getattr=10; a weight has up to 6 digits"
            raise UsageError(f"{part!r} is no KIND=WEIGHT", hint)
        weights[kind] = int(weight)
    return weights


def _show(progress: Progress) -> None:
    """Print a line on a terminal."""
    if not sys.stderr.isatty():
        return
    text = f"{progress.connected} sessions connected"
    if progress.seconds >= 0:
        text = (
            f"{progress.seconds:.0f} s: {progress.up} sessions, {progress.per_second:.0f} "
            f"operations/s, {progress.bytes_per_second / (1 << 20):.1f} MiB/s, p50 "
            f"{progress.p50:.0f} us, p99 {progress.p99:.0f} us, {progress.unfinished} unfinished"
        )
    print(text, file=sys.stderr)


def _times(times: Times) -> dict[str, float]:
    facts = times._asdict()
    return {"count": facts.pop("samples"), **facts}


def _of_kind(operations: Operations) -> dict[str, object]:
    return {
        "done": operations.done,
        "failed": operations.failed,
        "bytes": operations.bytes,
        "per_second": operations.per_second,
        "bytes_per_second": operations.bytes_per_second,
        "response_us": _times(operations.response),
        "service_us": _times(operations.service),
    }


def _facts(target: str, plan: Plan, outcome: Outcome) -> dict[str, object]:
    from nfsrdma_tools.client.load import jain

    return {
        "target": target,
        "address": outcome.address,
        "device": outcome.device,
        "plan": {
            "sessions": plan.sessions,
            "depth": plan.depth,
            "mix": dict(plan.mix),
            "size_bytes": plan.size,
            "in_flight": plan.in_flight or None,
            "rate_per_second": plan.rate,
            "think_seconds": plan.think,
            "sequential": plan.sequential,
            "stable": plan.stable,
            "verify": plan.verify,
            "at_once": plan.at_once,
            "seed": plan.seed,
            "duration_seconds": plan.duration,
            "warm_up_seconds": plan.warm_up,
            "timeout_seconds": plan.timeout,
            "queue": plan.queue,
            "paths": list(plan.paths),
            "files": plan.files,
            "file_size_bytes": plan.file_size,
        },
        "seconds": outcome.seconds,
        "interrupted": outcome.interrupted,
        "kinds": {each.kind: _of_kind(each) for each in outcome.kinds},
        "total": _of_kind(outcome.total),
        "arrivals": outcome.arrivals,
        "dropped": outcome.dropped,
        "unsent": outcome.unsent,
        "unfinished": outcome.unfinished,
        "late_us": _times(outcome.late),
        "fairness": {
            "jain": round(jain(outcome.shares), 6),
            "least": min(outcome.shares, default=0),
            "most": max(outcome.shares, default=0),
        },
        "connections": {
            "connected": outcome.connected,
            "connect_seconds": outcome.connect_seconds,
            "connect_us": _times(outcome.connect),
            "failed_attempts": outcome.failures,
            "up": outcome.up,
            "lost": outcome.lost,
            "reconnects": outcome.reconnects,
            "outages": outcome.outages,
            "recovery_seconds": outcome.recovery_seconds,
            "outage_us": _times(outcome.outage),
        },
        "resent": outcome.resent,
        "short": outcome.short_moves,
        "mismatches": outcome.mismatches,
        "mismatch": outcome.mismatch,
        "errors": outcome.errors,
        "message": outcome.message,
        "left": outcome.left,
    }


_COLUMNS = ("", "done", "per second", "MiB/s", "failed", "p50 us", "p90", "p99", "p99.9", "max")


def _row(operations: Operations) -> tuple[str, ...]:
    times = operations.response
    return (
        operations.kind,
        str(operations.done),
        f"{operations.per_second:.1f}",
        f"{operations.bytes_per_second / (1 << 20):.1f}",
        str(operations.failed),
        *(f"{each:.0f}" for each in (times.p50, times.p90, times.p99, times.p99_9, times.max)),
    )


def _lines(plan: Plan, outcome: Outcome) -> list[str]:
    from nfsrdma_tools.client.load import jain

    times = outcome.connect
    whole = outcome.connect_seconds
    lines = [
        f"{outcome.connected} of {plan.sessions} sessions connected to {outcome.address} by "
        f"{outcome.device}" + (f" in {whole:.3f} s" if whole is not None else ""),
        f"connect times  p50 {times.p50:.0f} us, p99 {times.p99:.0f} us, max {times.max:.0f} us; "
        f"{outcome.failures} attempts failed",
    ]
    if outcome.seconds:
        loop = f"open loop, {plan.rate:g} per second" if plan.rate else "closed loop"
        rows = [*outcome.kinds, *([outcome.total] if len(outcome.kinds) > 1 else [])]
        lines += [
            f"{outcome.seconds:.1f} s, {loop}, {plan.depth} at a time in each session",
            *aligned([_COLUMNS, *map(_row, rows)], right=range(1, len(_COLUMNS))),
            f"fairness       Jain's index {jain(outcome.shares):.4f}; operations of a session: "
            f"{min(outcome.shares, default=0)} to {max(outcome.shares, default=0)}",
        ]
    if outcome.lost:
        whole = outcome.recovery_seconds
        until = "not all of them" if whole is None else f"{whole:.3f} s until all were"
        lines.append(
            f"connections    {outcome.lost} lost, {outcome.reconnects} made again; {until}; "
            f"{outcome.resent} calls sent again"
        )
    return [*lines, *_warnings(plan, outcome)]


def _warnings(plan: Plan, outcome: Outcome) -> list[str]:
    """Reasons why the figures may mislead, and failures."""
    lines = []
    if outcome.dropped or outcome.unsent:
        lines.append(
            f"the server did not keep up: of {outcome.arrivals} operations that were due, "
            f"{outcome.dropped} found a full queue and {outcome.unsent} were not sent; the "
            "response times leave them out"
        )
    # in another closed loop only the first operations are due at a time
    if (plan.rate or plan.think) and outcome.late.p99 > max(outcome.total.response.p50, 1000):
        lines.append(
            f"this host was late: 1% of the operations began {outcome.late.p99:.0f} us or more "
            "after they were due; give it more CPU time, or reduce the load"
        )
    if outcome.up < outcome.connected:
        lines.append(f"{outcome.connected - outcome.up} sessions had no connection at the end")
    if outcome.unfinished:
        lines.append(f"{outcome.unfinished} operations had no reply at the end")
    if outcome.connected < plan.sessions or outcome.up < outcome.connected:
        lines.append(f"last failure   {outcome.message}")
    if outcome.errors:
        pairs = (f"{name} {count}" for name, count in outcome.errors.items())
        lines.append(f"errors         {', '.join(pairs)}")
    if outcome.left:
        lines.append(f"left there     {outcome.left}")
    if outcome.mismatches:
        lines.append(f"wrong data     {outcome.mismatches} READs; {outcome.mismatch}")
    return lines
