# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma server``: have this machine serve a directory over TCP and RDMA."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Serve a directory over TCP and RDMA, and take that back.")

_PATH = typer.Argument(metavar="EXPORT", help="The directory to serve.")


@app.command()
def enable(
    path: Annotated[Path, _PATH],
    client: Annotated[
        list[str], typer.Option(help="Who may mount it: host, network, wildcard. May be repeated.")
    ],
    rdma_port: Annotated[int, typer.Option(min=1, max=65535, help="For RDMA.")] = 20049,
    vers: Annotated[
        list[str] | None,
        typer.Option(
            help="3, 4.0, 4.1, 4.2: have it on, if need be by a restart of nfsd. May be repeated."
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option(help="No writing.")] = False,
) -> None:
    """Serve a directory, now and after each boot.

    What it does is taken back by server disable.

    Root is squashed.  The export is insecure in the sense of exports(5): RDMA clients come from
    ports above 1023, so a client's port proves nothing.  That is why --client has no default.
    """
    from nfsrdma_tools.host.nfsd import serving
    from nfsrdma_tools.host.nfsd.exports import Export, file_of
    from nfsrdma_tools.undo import journal

    export = Export(path, tuple(client), read_only)
    with journal() as book:
        changed = serving.enable(export, book, rdma_port, tuple(vers or ()))
        book.keep()
    if not changed:
        print(f"{path} is served already")
        return
    print(f"serving {path} on RDMA port {rdma_port} and TCP to {', '.join(client)}")
    print("  insecure: RDMA clients come from ports above 1023, so theirs are not checked")
    print(f"  lasts across reboots: {file_of(path)}, nfs-server started at boot")
    print(f"  undo: {shlex.join(('nfsrdma', 'server', 'disable', str(path)))}")


@app.command()
def disable(path: Annotated[str, _PATH]) -> None:
    """Stop serving a directory.

    After the last one the server is as it was before.
    That may restart nfsd (clients go on after its grace period), or stop it, if it did not run.
    """
    from nfsrdma_tools.host.nfsd import serving

    serving.disable(path)
    print(f"{path} is no longer served by nfsrdma")


@app.command()
def load(
    seconds: Annotated[float, typer.Option(min=0, help="For how long.")] = 3600,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds from line to line.")] = 1,
) -> None:
    """Print what this machine's processors do while clients measure.

    A line of JSON a second: the time, and how many seconds all CPUs together were busy until then.
    `nfsrdma store merge` takes them into a report of the clients.
    """
    import json

    from nfsrdma_tools.sweep.server_cpu import watch

    for one in watch(seconds, interval):
        print(json.dumps(one), flush=True)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show nfsd's threads, listeners and versions, and all exports."""
    import json
    from dataclasses import asdict

    from nfsrdma_tools.host.nfsd import serving

    found = serving.serving()
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    unknown = "unknown (needs root)"
    versions = unknown if found.versions is None else ", ".join(found.versions) or "none"
    print(f"threads    {unknown if found.threads is None else found.threads}")
    print(f"listeners  {', '.join(map(str, found.listeners)) or 'none'}")
    print(f"versions   {versions}")
    for each in found.exports:
        own = "  (by nfsrdma)" if each.path in found.own else ""
        print(f"export     {each.path} to {each.client} ({','.join(each.options)}){own}")
