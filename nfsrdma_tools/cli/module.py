# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma module``: our transport module built, loaded, and made the one of proto=rdma."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    help="The transport module of this project: build, load, install.", no_args_is_help=True
)

_JSON = typer.Option("--json", help="Print JSON.")


@app.command()
def build(
    kernel: Annotated[
        str, typer.Option(metavar="RELEASE", help="Of another kernel than the running one.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Even if it was built before.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Build the module for a kernel, in a cache; needs that kernel's headers and no root."""
    import json

    from nfsrdma_tools.cli import module_view

    made = module_view.build(kernel, force)
    if as_json:
        facts = {"kernel": made.release, "path": str(made.path), "fresh": made.fresh}
        print(json.dumps(facts, indent=2))
        return
    print(f"{made.path}: {'built' if made.fresh else 'was built'} for {made.release}")


@app.command()
def load(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="MODULE", help="A module built elsewhere; not this source's."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter; may be repeated."),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Have our module carry NFS over RDMA instead of the kernel's own, until a reboot.

    Nothing may be mounted over RDMA, and nfsd may not listen on it: stop nfs-server, load, start
    it, and nfsd gets ours.  If ours does not load, the kernel's own is put back.

    With --set client=N --set server_name=NAME it goes beside the kernel's, as a second server.
    """
    import json

    from nfsrdma_tools.cli import module_view
    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.host.module import parameters as module_parameters
    from nfsrdma_tools.host.module import swap as module_swap
    from nfsrdma_tools.host.transports import owner, serves_as
    from nfsrdma_tools.undo import journal

    with journal() as book:
        module_swap.check_room(dict(each.partition("=")[::2] for each in setting or ()))
        wanted = kernel_modules.in_file(file or module_view.build().path)
        values = module_parameters.checked(setting or (), wanted)
        before = owner()
        new = module_swap.load(wanted, values, book)
        book.keep()
    if as_json:
        facts = {"module": wanted.path, "srcversion": wanted.srcversion, "before": before}
        roles = {"owner": owner(), "server": serves_as(wanted.name)}
        print(json.dumps({**facts, "loaded": new, "parameters": values, **roles}, indent=2))
        return
    print("\n".join(module_view.loaded(wanted, new, before, values)))


@app.command()
def unload(as_json: Annotated[bool, _JSON] = False) -> None:
    """Take our module out, and put back the one that was there before."""
    import json

    from nfsrdma_tools.host.module import swap as module_swap
    from nfsrdma_tools.host.transports import owner, would_load
    from nfsrdma_tools.undo import journal

    with journal() as book:
        before = module_swap.unload(book)
        book.keep()
    if as_json:
        print(json.dumps({"unloaded": before is not None, "owner": owner()}, indent=2))
        return
    print("nfsrdma is not loaded" if before is None else "nfsrdma is unloaded")
    print(f"  mounts with proto=rdma get {owner() or would_load()}")


@app.command()
def status(as_json: Annotated[bool, _JSON] = False) -> None:
    """Show whose module carries NFS over RDMA, its tunables and users, and how ours stands."""
    import json

    from nfsrdma_tools.cli.module_view import facts, lines
    from nfsrdma_tools.host.module import status as module_status

    found = module_status.status()
    print(json.dumps(facts(found), indent=2) if as_json else "\n".join(lines(found)))


@app.command()
def install(as_json: Annotated[bool, _JSON] = False) -> None:
    """Make ours the module of mounts and of nfsd, across reboots and new kernels, by DKMS.

    Loads nothing now.  `nfsrdma module uninstall` takes every trace back.
    """
    import json

    from nfsrdma_tools.cli import module_view
    from nfsrdma_tools.host.module import dkms
    from nfsrdma_tools.host.module import install as module_install
    from nfsrdma_tools.undo import journal

    with journal() as book:
        module_install.check()
        made = module_view.build()
        new = module_install.install(made, book)
        book.keep()
    here = module_install.installed()
    version = here.version if here else ""
    folder = str(dkms.source_folder(version))
    if as_json:
        paths = {"source": folder, "modprobe": str(module_install.CONF)}
        print(json.dumps({"installed": new, "version": version, **paths}, indent=2))
        return
    print(f"nfsrdma {version} {'is' if new else 'was'} installed for {made.release}")
    print(f"  lasts across reboots: DKMS builds {folder} for each new kernel,")
    print(f"  and {module_install.CONF} has mounts with proto=rdma and nfsd load it")
    print("  in effect with the next load: nfsrdma module load, or a reboot")
    print("  undo: nfsrdma module uninstall")


@app.command()
def uninstall(as_json: Annotated[bool, _JSON] = False) -> None:
    """Take back all that install did."""
    import json

    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.host.module import install as module_install
    from nfsrdma_tools.host.module.source import OURS

    gone = module_install.uninstall()
    still = OURS in kernel_modules.loaded()
    if as_json:
        version = gone.version if gone else None
        print(json.dumps({"uninstalled": version, "still_loaded": still}, indent=2))
        return
    print(f"nfsrdma {gone.version} is uninstalled, for good" if gone else "nothing is installed")
    if gone and still:
        print("  it stays loaded until: nfsrdma module unload")
