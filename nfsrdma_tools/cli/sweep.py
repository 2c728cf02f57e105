# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma sweep``: measure a grid of mount options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nfsrdma_tools.cli.options import (
    Verbose,
    argument,
    complete_transport,
    flag,
    option,
    vers_option,
)
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.sizes import parse_counts, parse_size, parse_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from nfsrdma_tools.sweep.plan import Plan
    from nfsrdma_tools.sweep.progress import Event
    from nfsrdma_tools.sweep.runner import Options
    from nfsrdma_tools.sweep.store import Store
    from nfsrdma_tools.sweep.trial import Rhythm

    Run = Callable[[Store], Generator[Event, None, None]]
    # checks the plan, so call it before the store is created
    Source = Callable[[Plan], Run]

__all__ = ["sweep"]

LAB_TARGET = "server:/export"
_FLEET, _IN_LAB = "Options of several hosts", "Options of a lab"
_LAB = {
    "clock": "instructions",
    "kernel": "6.12",
    "link": "10gbit/20us",
    "nic": "card",
    "kernel_args": "",
}


def sweep(
    target: Annotated[
        str | None,
        argument("SERVER:/PATH", "Export to measure; required without --lab and --resume."),
    ] = None,
    preset: Annotated[
        str | None,
        option(
            "NAME", "Grid: quick, full, hardware or paper2003 (default: hardware; in a lab quick)."
        ),
    ] = None,
    transport: Annotated[
        str | None,
        option(
            "LIST",
            "Transports: tcp, rdma, nfsrdma (default: tcp,rdma).",
            complete=complete_transport,
        ),
    ] = None,
    rsize: Annotated[
        str | None,
        option(
            "LIST", "Transfer sizes in bytes: 8k,32k or doubling 4k..1M (default: the preset's)."
        ),
    ] = None,
    read_ahead: Annotated[
        str | None,
        option("LIST", "Read-ahead in blocks of rsize: 0,4 or 0..16 (default: the preset's)."),
    ] = None,
    read_ahead_kb: Annotated[
        str | None,
        option(
            "LIST",
            "Read-ahead in KiB: 0,128 or 128..4096; each rsize gets the windows that are "
            "whole blocks of it (default: blocks of --read-ahead).",
        ),
    ] = None,
    runs: Annotated[int | None, option("N", "Runs per cell (default: 3).", least=1)] = None,
    vers: Annotated[
        str | None, vers_option("4.2; 3 with personality optimistic, and of preset paper2003")
    ] = None,
    nconnect: Annotated[
        str | None, option("LIST", "Numbers of connections: 1,4 (default: the preset's).")
    ] = None,
    jobs: Annotated[
        str | None,
        option(
            "LIST",
            "Threads that read or write a part of the file each, as numjobs of fio: 1,4,16 "
            "(default: the preset's).",
        ),
    ] = None,
    depth: Annotated[
        str | None,
        option(
            "LIST",
            "Requests of io_uring that a thread has in flight, as iodepth of fio: 1,8,64; without "
            "--direct also measures O_DIRECT reads beside the buffered ones (default: with "
            "--direct the preset's).",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        option(
            "NAME=V,V",
            "Also vary a sysctl, a module parameter, nfsd.threads or nfsd.max_block_size, "
            "server:NAME on the server, or the personality of transport nfsrdma; repeatable "
            "(default: none).",
        ),
    ] = None,
    write: Annotated[bool, flag("Measure writes instead of reads.", "--write")] = False,
    direct: Annotated[
        bool, flag("Use O_DIRECT: no page cache, no read-ahead.", "--direct")
    ] = False,
    exhaustive: Annotated[
        bool, flag("Do all runs of all cells (default: racing).", "--exhaustive")
    ] = False,
    seconds: Annotated[
        float | None,
        option(
            "N",
            "Length of a trial in seconds, after a warm-up of a fifth of that; O_DIRECT trials "
            "reread the file, others stop at its end; 0 reads the file once "
            "(default: 5; with --file-size, in a lab and with preset paper2003: 0).",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        option(
            "N",
            "Start no trial after N minutes of trials (default: no limit; preset hardware: 50).",
        ),
    ] = None,
    file_size: Annotated[
        str | None,
        option(
            "SIZE",
            "Size of the test file in bytes (default: as large as --seconds needs; where trials "
            "read the file once, that of the preset: quick 32M, full 256M, paper2003 1G).",
        ),
    ] = None,
    whole_file: Annotated[
        bool,
        flag(
            "Read the whole file in each trial (default: cells with a window below 32 KiB "
            "read a share of it).",
            "--whole-file",
        ),
    ] = False,
    block_size: Annotated[
        str | None, option("SIZE", "Size of a read(2) or write(2) in bytes (default: 8k).")
    ] = None,
    order: Annotated[
        str | None,
        option(
            "ORDER",
            "Order of trials: random, or grouped by transport (default: random; with --lab and "
            "transport nfsrdma: grouped).",
        ),
    ] = None,
    seed: Annotated[int | None, option("N", "Seed of the random order (default: 1).")] = None,
    verify: Annotated[
        bool | None, flag("Verify the data (default: verify).", "--verify/--no-verify")
    ] = None,
    directory: Annotated[
        Path | None, option("DIR", "Mount point (default: a temporary one).", "--mount")
    ] = None,
    store: Annotated[Path, option("STORE", "File for the results.", "--output", "-o")] = Path(
        "sweep.db"
    ),
    resume: Annotated[
        Path | None,
        option("STORE", "Continue the newest sweep of this store (default: begin one)."),
    ] = None,
    keep_file: Annotated[bool, flag("Keep the test file on the server.", "--keep-file")] = False,
    probes: Annotated[
        bool, flag("Attach the probe sets and store their counts with each trial (default: on).")
    ] = True,
    start_at: Annotated[
        float | None,
        option(
            "TIME",
            "Start the first run of several clients at TIME, in Unix time (default: now).",
            panel=_FLEET,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        option("SECONDS", "Time from run to run; required with --start-at.", panel=_FLEET),
    ] = None,
    server_ssh: Annotated[
        str,
        option("HOST", "Host for ssh that sets server: tunables (default: none).", panel=_FLEET),
    ] = "",
    lab: Annotated[
        bool, flag("Measure in a temporary lab instead of a target.", "--lab", panel=_IN_LAB)
    ] = False,
    lab_clock: Annotated[
        str, option("CLOCK", "Clock of the lab: wall, instructions or counted.", panel=_IN_LAB)
    ] = _LAB["clock"],
    lab_kernel: Annotated[
        str, option("VERSION", "Kernel of the lab: 6.12, 6.1 or 7.2.", panel=_IN_LAB)
    ] = _LAB["kernel"],
    lab_link: Annotated[
        str, option("LINK", "Network of the lab: RATE/ROUND-TRIP, or none.", panel=_IN_LAB)
    ] = _LAB["link"],
    lab_nic: Annotated[
        str,
        option(
            "TYPE",
            "RDMA device of the lab: card (modelled card) or rxe (soft-RoCE).",
            panel=_IN_LAB,
        ),
    ] = _LAB["nic"],
    lab_kernel_args: Annotated[
        str,
        option(
            "ARGS",
            "Add ARGS to the lab kernel's command line, such as init_on_alloc=0 (default: none).",
            panel=_IN_LAB,
        ),
    ] = _LAB["kernel_args"],
    as_json: Annotated[bool, flag("Print an event per line as JSON.", "--json", "-j")] = False,
    verbose: Verbose = False,
) -> None:
    """Measure NFS by transport, rsize and read-ahead.

    Print the cell with the best throughput, overall and per transport.  Each trial mounts the
    export (as root), reads or writes the test file, and unmounts.  Ctrl-C stops the sweep and
    cleans up; --resume continues it.
    """
    from nfsrdma_tools.sweep.runner import Options
    from nfsrdma_tools.sweep.store import Store

    options = Options(server_ssh, keep_file, probes, _rhythm(start_at, interval))
    where = {
        "clock": lab_clock,
        "kernel": lab_kernel,
        "link": lab_link,
        "nic": lab_nic,
        "kernel_args": lab_kernel_args,
    }
    where = where if lab else {}
    source = _in_lab(where, probes) if lab else _here(options)
    again = _again(options, where)
    changes = {
        "preset": preset,
        "transports": tuple(transport.split(",")) if transport else None,
        "runs": runs,
        "vers": vers,
        "direction": "write" if write else None,
        "direct": direct or None,
        "mode": "exhaustive" if exhaustive else None,
        "axes": tuple(map(_axis, axis)) if axis else None,
        "order": order,
        "seed": seed,
        "verify": verify,
        "whole_from": 0 if whole_file else None,
        "directory": str(directory) if directory else None,
        **_lists(rsize, read_ahead, read_ahead_kb),
        **_counts(jobs=jobs, depth=depth, nconnect=nconnect),
        "with_direct": _has_both_kinds(depth, direct, write),
        "seconds": seconds,
        "minutes": minutes,
        **_sizes(file_size=file_size, block_size=block_size),
    }
    if resume:
        _check_resume(resume, target, changes)
        with Store(resume, must_exist=True) as kept:
            stored = kept.plan()
            _run(stored, kept, source(stored), as_json, again)
        return
    preset = changes["preset"] = preset or _default_preset(lab)
    changes |= _length(seconds, file_size, preset, lab)
    if lab and not order and "nfsrdma" in (transport or ""):
        # with each exchange of the modules, nfsd of the lab is restarted
        changes["order"] = "grouped"
    plan = _plan(LAB_TARGET if lab else target, changes)
    if not lab and start_at is None:
        plan = _with_existing(plan)
    run = source(plan)
    with Store(store) as kept:
        _run(plan, kept, run, as_json, again)


def _default_preset(lab: bool) -> str:
    """The grid without --preset: quick is too small and too short for a host with a card."""
    from nfsrdma_tools.sweep.conditions import lab_facts

    return "quick" if lab or lab_facts() else "hardware"


def _length(
    seconds: float | None, file_size: str | None, preset: str | None, lab: bool
) -> dict[str, Any]:
    """The fields of a plan for the length of a trial: by time, or by the size of the file."""
    from nfsrdma_tools.sweep.conditions import lab_facts
    from nfsrdma_tools.sweep.plan import SECONDS

    if seconds is None and (lab or preset == "paper2003" or lab_facts()):
        # hardware has no other length
        if preset == "hardware":
            return {}
        seconds = 0.0
    if file_size or seconds == 0:
        return {}
    return {"seconds": SECONDS if seconds is None else seconds, "file_size": 0}


def _rhythm(start_at: float | None, interval: float | None) -> Rhythm:
    """The start times of runs; UsageError unless both options are given, or none."""
    from nfsrdma_tools.sweep.trial import IMMEDIATELY, Rhythm

    if start_at is None and interval is None:
        return IMMEDIATELY
    if start_at is None or interval is None:
        raise UsageError("--start-at and --interval need each other", "give both")
    return Rhythm.checked(start_at, interval)


def _check_resume(store: Path, target: str | None, changes: dict[str, Any]) -> None:
    """Raise UsageError when the command line changes the stored plan, UserError without a store."""
    if target:
        raise UsageError("--resume and SERVER:/PATH exclude each other", "omit one of them")
    given = [name for name, value in changes.items() if value is not None]
    if given:
        message = f"--resume cannot change the stored plan ({', '.join(given)})"
        raise UsageError(message, "start a new sweep, or omit these options")
    if not store.is_file():
        raise UserError(f"no store {store} to resume", "usage: nfsrdma sweep --resume STORE")


def _plan(target: str | None, changes: dict[str, Any]) -> Plan:
    """The plan of a preset with ``changes``; UsageError when it makes no sense."""
    from nfsrdma_tools.host.nfs.target import Target
    from nfsrdma_tools.sweep.plan import preset

    if not target:
        raise UsageError("the export is missing", "usage: nfsrdma sweep SERVER:/PATH")
    return preset(changes.pop("preset"), str(Target.parse(target)), **changes)


def _with_existing(plan: Plan) -> Plan:
    """The plan with the mount of its target that this host has; a lab's node has a mount of tests.

    Several hosts that measure at once have no such mount: their runs would be out of step.
    """
    from dataclasses import replace

    from nfsrdma_tools.sweep import existing
    from nfsrdma_tools.sweep.conditions import lab_facts

    return plan if lab_facts() else replace(plan, existing=existing.find(plan.target))


def _lists(rsize: str | None, read_ahead: str | None, read_ahead_kb: str | None) -> dict[str, Any]:
    """Fields of a plan from lists of sizes and counts; None: unchanged."""
    if read_ahead and read_ahead_kb:
        raise UsageError("--read-ahead and --read-ahead-kb exclude each other", "omit one of them")
    return {
        "rsizes": parse_sizes(rsize) if rsize else None,
        "read_aheads": parse_counts(read_ahead) if read_ahead else None,
        "read_ahead_kbs": parse_counts(read_ahead_kb) if read_ahead_kb else None,
    }


def _has_both_kinds(depth: str | None, direct: bool, write: bool) -> bool | None:
    """Whether a plan has O_DIRECT reads with a depth beside buffered reads; None: unchanged."""
    if not depth or direct:
        return None
    if write:
        raise UsageError("--depth needs --direct: buffered writes have none", "give --direct")
    return True


def _counts(**texts: str | None) -> dict[str, Any]:
    """Fields of a plan from numbers of jobs, requests and connections; None: unchanged."""
    names = {"jobs": "jobs", "depth": "depths", "nconnect": "nconnects"}
    return {names[name]: parse_counts(text) if text else None for name, text in texts.items()}


def _sizes(**texts: str | None) -> dict[str, Any]:
    """Fields of a plan from single sizes; None: unchanged."""
    return {name: parse_size(text) if text else None for name, text in texts.items()}


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
    """An axis of a plan from NAME=V,V; the name is a tunable's, or ``personality``."""
    from nfsrdma_tools.host.tunables import Tunable
    from nfsrdma_tools.sweep.plan import PERSONALITY

    name, separator, values = text.partition("=")
    if not separator or not values:
        raise UsageError(f"axis {text!r} has no values", "example: NAME=4096,8192")
    return name if name == PERSONALITY else str(Tunable.parse(name)), tuple(values.split(","))


def _here(options: Options) -> Source:
    from nfsrdma_tools.cli.module import build_with_progress
    from nfsrdma_tools.cli.sweep_lab import of_this_host
    from nfsrdma_tools.sweep.runner import sweep

    def source(plan: Plan) -> Run:
        def run(store: Store) -> Generator[Event, None, None]:
            if "nfsrdma" in plan.transports:
                build_with_progress()
            return sweep(plan, store, of_this_host(options))

        return run

    return source


def _in_lab(where: dict[str, str], probes: bool) -> Source:
    import os
    import sys

    from nfsrdma_tools.cli.sweep_lab import sweep_in_node
    from nfsrdma_tools.lab.config import LabConfig

    config = LabConfig(
        f"sweep-{os.getpid()}",
        kernel=where["kernel"],
        clock=where["clock"],
        link=where["link"],
        nic=where["nic"],
        kernel_args=where["kernel_args"],
    )

    def step(text: str) -> None:
        print(f"lab: {text}", file=sys.stderr)

    def source(plan: Plan) -> Run:
        def run(store: Store) -> Generator[Event, None, None]:
            return sweep_in_node(config, plan, store, step, probes)

        return run

    return source


def _again(options: Options, lab: dict[str, str]) -> list[str]:
    """Options that a resumed sweep needs because the store does not have them."""
    words = ["--lab"] if lab else []
    words += [
        f"--lab-{key.replace('_', '-')}={value}" for key, value in lab.items() if value != _LAB[key]
    ]
    words += [f"--server-ssh={options.server_ssh}"] if options.server_ssh else []
    words += ["--keep-file"] * options.keep_file
    return words + ["--no-probes"] * (not options.probes)


def _run(plan: Plan, store: Store, run: Run, as_json: bool, again: Sequence[str] = ()) -> None:
    from contextlib import closing

    from nfsrdma_tools.cli.sweep_view import JsonEvents, Progress, conclusion

    done, interrupted = False, False
    with (
        JsonEvents(plan) if as_json else Progress() as view,
        closing(run(store)) as events,
    ):
        try:
            for event in events:
                view.show(event)
            done = True
        except KeyboardInterrupt:
            interrupted = True
            view.stopped("interrupted")
        except UserError as error:
            view.stopped(str(error))
            raise
    if not as_json:
        print("\n".join(conclusion(plan, store, done, again)))
    if interrupted:
        raise typer.Exit(130)
