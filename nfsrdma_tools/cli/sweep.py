# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nfsrdma_tools.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from nfsrdma_tools.sweep.plan import Plan
    from nfsrdma_tools.sweep.progress_events import Event
    from nfsrdma_tools.sweep.runner import Options
    from nfsrdma_tools.sweep.store import Store

    Source = Callable[[Plan, Store], Generator[Event, None, None]]

__all__ = ["sweep"]

LAB_TARGET = "server:/export"
_LAB = {"clock": "instructions", "kernel": "6.12", "link": "1gbit/100us"}


def sweep(
    target: Annotated[
        str | None,
        typer.Argument(metavar="SERVER:/PATH", help="What to mount; the store with --resume."),
    ] = None,
    preset: Annotated[str, typer.Option(help="quick, full or paper2003.")] = "quick",
    transport: Annotated[str | None, typer.Option(help="Of tcp, rdma, nfsrdma: tcp,rdma.")] = None,
    rsize: Annotated[str | None, typer.Option(help="Sizes: 4k..1M doubles, or 8k,32k.")] = None,
    read_ahead: Annotated[
        str | None, typer.Option(help="Reads ahead in blocks of rsize: 0..16 or 0,4.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs per cell.")] = None,
    vers: Annotated[str | None, typer.Option(help="3, 4.0, 4.1 or 4.2.")] = None,
    nconnect: Annotated[str | None, typer.Option(help="Connections: 1,4.")] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=V,V", help="A sysctl or module parameter; server:NAME."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write instead of read.")] = False,
    direct: Annotated[bool, typer.Option("--direct", help="O_DIRECT, no caches.")] = False,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="All runs of all cells, no racing.")
    ] = False,
    file_size: Annotated[str | None, typer.Option(help="Size of the test file.")] = None,
    whole_file: Annotated[
        bool,
        typer.Option(
            "--whole-file",
            help="Read the whole file in each cell (default: a share without read-ahead).",
        ),
    ] = False,
    block_size: Annotated[str | None, typer.Option(help="Size of one read(2), 8k.")] = None,
    order: Annotated[
        str | None, typer.Option(help="random, or grouped: one transport after the other.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random order.")] = None,
    verify: Annotated[bool, typer.Option(help="Check the data of each cell.")] = True,
    directory: Annotated[Path | None, typer.Option(help="Mount point; default: one's own.")] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("sweep.db"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a store's sweep.")] = False,
    keep_file: Annotated[bool, typer.Option("--keep-file", help="Leave the test file.")] = False,
    accounts: Annotated[
        bool, typer.Option(help="Keep CPU by layer, chunks and registrations of each trial.")
    ] = True,
    in_step: Annotated[
        str | None,
        typer.Option(metavar="START/SECONDS", help="Run n begins START + n * SECONDS, Unix time."),
    ] = None,
    server_ssh: Annotated[str, typer.Option(help="Host to reach server: tunables on.")] = "",
    lab: Annotated[bool, typer.Option("--lab", help="In a lab made for it; no target.")] = False,
    lab_clock: Annotated[str, typer.Option(help="wall or instructions.")] = _LAB["clock"],
    lab_kernel: Annotated[str, typer.Option(help="6.12, 6.1 or 7.2.")] = _LAB["kernel"],
    lab_link: Annotated[str, typer.Option(help="Rate/round trip, or none.")] = _LAB["link"],
    as_json: Annotated[bool, typer.Option("--json", help="Events as lines of JSON.")] = False,
) -> None:
    """Measure NFS over rsize and read-ahead, and find the best cell.

    Each trial mounts (as root), reads or writes the test file, and unmounts.  Ctrl-C ends the
    sweep cleanly, --resume continues it.
    """
    from nfsrdma_tools.sweep.runner import Options
    from nfsrdma_tools.sweep.start_times import IMMEDIATELY, Rhythm
    from nfsrdma_tools.sweep.store import Store

    rhythm = Rhythm.parse(in_step) if in_step else IMMEDIATELY
    options = Options(server_ssh, keep_file, accounts, rhythm)
    source = _in_lab(lab_clock, lab_kernel, lab_link, accounts) if lab else _here(options)
    where = {"clock": lab_clock, "kernel": lab_kernel, "link": lab_link} if lab else {}
    again = _again(options, where)
    if resume:
        path = Path(target) if target else store
        if not path.is_file():
            raise UserError(f"there is no store {path} to resume", "name it: --resume STORE")
        with Store(path) as kept:
            _run(kept.plan(), kept, source, as_json, again)
        return
    changes = {
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
        **_sizes(rsize=rsize, read_ahead=read_ahead, nconnect=nconnect),
        **_one_size(file_size=file_size, block_size=block_size),
    }
    plan = _plan(preset, LAB_TARGET if lab else target, changes)
    with Store(store) as kept:
        _run(plan, kept, source, as_json, again)


def _here(options: Options) -> Source:
    from nfsrdma_tools.cli.module_view import build
    from nfsrdma_tools.sweep.runner import sweep

    def run(plan: Plan, store: Store) -> Generator[Event, None, None]:
        if "nfsrdma" in plan.transports:
            build()
        return sweep(plan, store, options)

    return run


def _in_lab(clock: str, kernel: str, link: str, accounts: bool) -> Source:
    import os
    import sys

    from nfsrdma_tools.cli.in_lab import sweep_in_lab
    from nfsrdma_tools.lab.config import LabConfig

    def config(plan: Plan) -> LabConfig:
        # the kernel's server needs the kernel's module, so ours is another machine's
        shape = "pair" if "nfsrdma" in plan.transports else "solo"
        if shape == "pair" and clock == "instructions":
            what = "nfsrdma takes a lab of two machines, which cannot share an instruction clock"
            raise UserError(what, "give --lab-clock counted, or wall")
        return LabConfig(f"sweep-{os.getpid()}", shape, kernel, clock, link)

    def step(text: str) -> None:
        print(f"lab: {text}", file=sys.stderr)

    def run(plan: Plan, store: Store) -> Generator[Event, None, None]:
        lab = config(plan)
        if lab.shape == "pair":
            step("the node builds our module first, which takes minutes where it is emulated")
        return sweep_in_lab(lab, plan, store, step, accounts)

    return run


def _plan(name: str, target: str | None, changes: dict[str, Any]) -> Plan:
    from nfsrdma_tools.host.nfs.target import Target
    from nfsrdma_tools.sweep.plan import preset

    if not target:
        raise UserError("there is nothing to sweep", "name it: nfsrdma sweep SERVER:/EXPORT")
    return preset(name, str(Target.parse(target)), **changes)


def _sizes(rsize: str | None, read_ahead: str | None, nconnect: str | None) -> dict[str, Any]:
    from nfsrdma_tools.sizes import parse_counts, parse_sizes

    return {
        "rsizes": parse_sizes(rsize) if rsize else None,
        "read_aheads": parse_counts(read_ahead) if read_ahead else None,
        "nconnects": parse_counts(nconnect) if nconnect else None,
    }


def _one_size(**texts: str | None) -> dict[str, Any]:
    from nfsrdma_tools.sizes import parse_size

    return {name: parse_size(text) if text else None for name, text in texts.items()}


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
    from nfsrdma_tools.host.tunables import Tunable

    name, found, values = text.partition("=")
    if not found or not values:
        raise UserError(f"axis {text!r} has no values", "write it like NAME=4096,8192")
    return str(Tunable.parse(name)), tuple(values.split(","))


def _again(options: Options, lab: dict[str, str]) -> list[str]:
    """What a store does not know, as options for whoever resumes."""
    words = ["--lab"] if lab else []
    words += [f"--lab-{key}={value}" for key, value in lab.items() if value != _LAB[key]]
    words += [f"--server-ssh={options.server_ssh}"] if options.server_ssh else []
    words += ["--keep-file"] * options.keep_file
    return words + ["--no-accounts"] * (not options.accounts)


def _run(
    plan: Plan, store: Store, source: Source, as_json: bool, again: Sequence[str] = ()
) -> None:
    from contextlib import closing

    from nfsrdma_tools.cli.sweep_view import Lines, Progress, conclusion

    done, interrupted = False, False
    with (
        Lines(plan) if as_json else Progress() as view,
        closing(source(plan, store)) as events,
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
