# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma server``: export directories over TCP and RDMA from this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nfsrdma_tools.cli.options import (
    DryRun,
    From,
    Json,
    Verbose,
    argument,
    complete_vers,
    flag,
    machine_of,
    option,
)
from nfsrdma_tools.cli.output import print_changes, print_json, print_line
from nfsrdma_tools.errors import printable
from nfsrdma_tools.sizes import format_size, parse_size, size_label

if TYPE_CHECKING:
    from nfsrdma_tools.host.nfsd.serving import Serving
    from nfsrdma_tools.host.nfsd.threadless import Threadless

__all__ = ["app"]

app = typer.Typer(help="Export directories over TCP and RDMA, and undo that.", no_args_is_help=True)

_PATH = argument("EXPORT", "Directory to export.")


@app.command()
def enable(
    path: Annotated[Path, _PATH],
    client: Annotated[
        list[str],
        option(
            "CLIENT", "Host, network or wildcard that may mount it, as in exports(5); repeatable."
        ),
    ],
    rdma_port: Annotated[
        int | None,
        option(
            "PORT",
            "Port for RDMA (default: the one that nfsd has or that is configured, else 20049).",
            least=1,
            most=65535,
        ),
    ] = None,
    vers: Annotated[
        list[str] | None,
        option(
            "VERSION",
            "NFS version to enable: 3, 4.0, 4.1 or 4.2; repeatable.  Restarts nfsd if the "
            "version is off (default: leave versions unchanged).",
            complete=complete_vers,
        ),
    ] = None,
    read_only: Annotated[bool, flag("Export read-only.", "--read-only")] = False,
    threadless: Annotated[
        str | None,
        option(
            "SIZE",
            "Answer NFSv3 READs of up to SIZE from the page cache without a thread of nfsd: "
            "4k to 128k in steps of 4k, such as 64k; 0 turns that off (default: leave it "
            "unchanged).  Needs module nfsrdma, and applies to all exports.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Export a directory, now and after each boot.

    `nfsrdma server disable` undoes it.  The export squashes root.  It has the option insecure of
    exports(5), because RDMA clients connect from ports above 1023: the port of a client proves
    nothing.  Therefore --client has no default.
    """
    from nfsrdma_tools.host.nfsd import serving
    from nfsrdma_tools.host.nfsd.exports import Export, file_of
    from nfsrdma_tools.undo import journal

    export, versions = Export(path, tuple(client), read_only), tuple(vers or ())
    limit = None if threadless is None else _limit(threadless)
    if dry_run:
        print_changes(serving.enabling(export, rdma_port, versions, limit), as_json)
        return
    with journal() as changes:
        result = serving.enable(export, changes, rdma_port, versions, limit)
        changes.keep()
    if as_json:
        where = {"path": str(path), "clients": client, "rdma_port": result.port}
        where["threadless"] = limit
        print_json({"enabled": result.changed, **where, "file": str(file_of(path))})
        return
    if not result.changed:
        print(f"{path} is already exported")
        return
    print(f"exported {path} to {', '.join(client)} over TCP and RDMA (port {result.port})")
    print("  option insecure: the server does not check client ports, RDMA clients use any")
    print(f"  permanent: {file_of(path)}, and nfs-server starts at boot")
    if limit:
        print(f"  threadless reads of up to {format_size(limit)}, now and at each modprobe nfsrdma")
    elif limit == 0:
        print("  threadless reads are off")
    print(f"  undo: {shlex.join(('nfsrdma', 'server', 'disable', str(path)))}")


def _limit(text: str) -> int:
    return 0 if text == "0" else parse_size(text)


@app.command()
def disable(
    path: Annotated[str, argument("EXPORT", "Exported directory.")],
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Stop exporting a directory that `server enable` exported.

    With the last one, restore the server's earlier state.  That may restart nfsd (clients continue
    after the grace period), or stop nfsd if it was not running before.
    """
    from nfsrdma_tools.host.nfsd import serving

    if dry_run:
        print_changes(serving.disabling(path), as_json)
        return
    serving.disable(path)
    if as_json:
        print_json({"disabled": path})
        return
    print(f"nfsrdma no longer exports {path}")


@app.command()
def cpu(
    interval: Annotated[
        float, option("SECONDS", "Time per sample.", "--interval", "-i", least=0.1)
    ] = 1,
    count: Annotated[int, option("N", "Stop after N samples.", "--count", "-c", least=1)] = 3600,
) -> None:
    """Print samples of CPU time, for a sweep of several clients.

    Each line is a JSON object: "time" (Unix time, s) and "busy_s", the busy time of all CPUs
    together (s), of which only differences count.  `nfsrdma results merge --server-cpu` adds the
    samples to the clients' results.
    """
    from nfsrdma_tools.sweep.server_cpu import to_facts, watch

    for sample in watch(count, interval):
        print_line(to_facts(sample))


@app.command()
def status(source: From = None, as_json: Json = False) -> None:
    """Show threads, listeners, pending RPCs, I/O modes and exports.

    An RPC is pending while a thread of nfsd works on it, such as a READ that waits for a disk.  Its
    line has the XID, the age and the client.  The kernel reports them since Linux 6.7.

    With module nfsrdma, also show READs that it answered without a thread of nfsd (threadless
    reads), which nfsd's own counters do not have.
    """
    from nfsrdma_tools.host.nfsd import nfsctl, serving

    with machine_of(source) as machine:
        state, hidden = serving.serving(machine), nfsctl.is_hidden(machine)
    if as_json:
        print_json(_document(state))
        return
    why = "run this on the host" if hidden else "needs root" if source is None else "not recorded"
    print(*_lines(state, f"unknown ({why})"), sep="\n")


def _document(state: Serving) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(state)
    if state.pending:
        rows = [{"name": rpc.name, **asdict(rpc)} for rpc in state.pending.rpcs]
        document["pending"]["rpcs"] = rows
    return document


def _lines(state: Serving, unknown: str) -> list[str]:
    listeners = unknown if state.listeners is None else ", ".join(map(str, state.listeners))
    versions = unknown if state.versions is None else ", ".join(state.versions) or "none"
    size, modes = state.max_block_size, _io_modes(state)
    lines = [
        f"server     {state.other}, in place of the kernel's" if state.other else "",
        f"threads    {unknown if state.threads is None else _threads(state)}",
        f"listeners  {listeners or 'none'}",
        f"versions   {versions}",
        *_pending(state),
        f"block size {format_size(size)} at most, for rsize and wsize" if size else "",
        f"file I/O   {modes}" if modes else "",
        *(_threadless(state.threadless, unknown) if state.threadless else []),
    ]
    shown = [printable(line) for line in lines if line]
    for each in state.exports:
        own = "  (by nfsrdma)" if each.path in state.own else ""
        shown.append(f"export     {each.path} to {each.client} ({','.join(each.options)}){own}")
    return shown


_MOST_RPCS = 10


def _pending(state: Serving) -> list[str]:
    pending = state.pending
    if pending is None:
        return [f"pending    unknown ({state.pending_unknown})"]
    if not pending.rpcs:
        return [f"pending    {f'unknown ({pending.cut})' if pending.cut else 'none'}"]
    least = "at least " if pending.cut else ""
    why = f"; {pending.cut}" if pending.cut else ""
    many = f"{pending.count} RPC{'s' if pending.count > 1 else ''}"
    rows = [f"  {rpc}" for rpc in pending.rpcs[:_MOST_RPCS]]
    if (more := pending.count - len(rows)) > 0:
        rows.append(f"  and {more} more")
    head = f"pending    {least}{many}, the oldest for {pending.rpcs[0].seconds:.1f} s{why}"
    return [head, *rows]


def _threadless(state: Threadless, unknown: str) -> list[str]:
    most = f"up to {size_label(state.limit)}" if state.limit else "off"
    if state.hits is None:
        return [f"threadless {most}; hits {unknown}"]
    if not state.limit and not state.hits:
        return ["threadless off"]
    entries = f"; {state.entries} of {state.entries_max} entries" if state.entries_max else ""
    missed = ", ".join(f"{printable(name)} {count}" for name, count in state.missed.items())
    return [
        f"threadless {most}: {state.hits} READs, {state.bytes} bytes{entries}",
        *([f"  missed   {missed}"] if missed else []),
        f"READs      {state.reads}: {state.nfsd_reads} by nfsd, {state.hits} threadless",
    ]


def _threads(state: Serving) -> str:
    least = f"{state.min_threads} to " if state.min_threads else ""
    pools = state.pool_threads or ()
    shares = f" in {len(pools)} pools: {', '.join(map(str, pools))}" if len(pools) > 1 else ""
    mode = f", pool mode {printable(state.pool_mode)}" if state.pool_mode else ""
    return f"{least}{state.threads}{shares}{mode}"


def _io_modes(state: Serving) -> str:
    modes = {"read": state.io_cache_read, "write": state.io_cache_write}
    words = [f"{name} {mode}" for name, mode in modes.items() if mode]
    if state.splice_read is not None:
        words.append("READ may splice" if state.splice_read else "READ does not splice")
    return ", ".join(words)
