# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma module``: build, load and install the transport module of this project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nfsrdma_tools.cli.options import DryRun, Json, Verbose, argument, flag, option
from nfsrdma_tools.cli.output import print_changes, print_json

__all__ = ["app"]

app = typer.Typer(
    help="Build, load and install the transport module nfsrdma.", no_args_is_help=True
)


@app.command()
def build(
    kernel: Annotated[str, option("RELEASE", "Kernel release (default: the running kernel).")] = "",
    force: Annotated[bool, flag("Rebuild a cached module.", "--force")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build the module for a kernel and cache it.

    Needs the headers package of that kernel; does not need root.
    """
    from nfsrdma_tools.cli import module_view

    made = module_view.build(kernel, force)
    if as_json:
        facts = {"kernel": made.release, "path": str(made.path), "fresh": made.fresh}
        print_json(facts)
        return
    print(f"{made.path}: {'built' if made.fresh else 'already built'} for {made.release}")


@app.command()
def load(
    file: Annotated[
        Path | None, argument("MODULE", "Module file (default: build this source).")
    ] = None,
    setting: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE", "Module parameter; repeatable (default: those of the module).", "--set"
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Replace rpcrdma by the nfsrdma module until a reboot.

    No NFS mount may use RDMA, and nfsd may not listen on it: stop nfs-server, load the module, and
    start nfs-server again.  If nfsrdma does not load, rpcrdma is loaded again.

    --set client=N --set server_name=NAME loads it beside rpcrdma, as a second server transport.
    """
    from nfsrdma_tools.cli import module_view
    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.host.module import parameters as module_parameters
    from nfsrdma_tools.host.module import swap as module_swap
    from nfsrdma_tools.host.transports import owner, serves_as
    from nfsrdma_tools.undo import journal

    if dry_run:
        print_changes(module_swap.loading(file, setting or ()), as_json)
        return
    with journal() as changes:
        module_swap.check_room(dict(each.partition("=")[::2] for each in setting or ()))
        wanted = kernel_modules.in_file(file or module_view.build().path)
        values = module_parameters.checked(setting or (), wanted)
        before = owner()
        new = module_swap.load(wanted, values, changes)
        changes.keep()
    if as_json:
        facts = {"module": wanted.path, "srcversion": wanted.srcversion, "before": before}
        roles = {"owner": owner(), "server": serves_as(wanted.name)}
        print_json({**facts, "loaded": new, "parameters": values, **roles})
        return
    print("\n".join(module_view.loaded(wanted, new, before, values)))


@app.command()
def unload(as_json: Json = False, verbose: Verbose = False) -> None:
    """Unload nfsrdma and load the module from before."""
    from nfsrdma_tools.host.module import swap as module_swap
    from nfsrdma_tools.host.transports import owner, would_load
    from nfsrdma_tools.undo import journal

    with journal() as changes:
        before = module_swap.unload(changes)
        changes.keep()
    if as_json:
        print_json({"unloaded": before is not None, "owner": owner()})
        return
    print("nfsrdma was not loaded" if before is None else "unloaded nfsrdma")
    print(f"  mounts with proto=rdma use {owner() or would_load()}")


@app.command()
def status(as_json: Json = False, verbose: Verbose = False) -> None:
    """Show the transport module in use.

    Also show its parameters and users, and the build, server, clients and DKMS state of nfsrdma.
    """
    from nfsrdma_tools.cli.module_view import facts, lines
    from nfsrdma_tools.host.module import status as module_status

    found = module_status.status()
    print_json(facts(found)) if as_json else print("\n".join(lines(found)))


@app.command()
def install(dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Make nfsrdma the permanent module of mounts and of nfsd.

    DKMS builds it for each new kernel.  Does not load it now.  `nfsrdma module uninstall` removes
    everything again.
    """
    from nfsrdma_tools.cli import module_view
    from nfsrdma_tools.host.module import install as module_install
    from nfsrdma_tools.undo import journal

    if dry_run:
        print_changes(module_install.installing(), as_json)
        return
    with journal() as changes:
        module_install.check()
        made = module_view.build()
        new = module_install.install(made, changes)
        changes.keep()
    here = module_install.installed()
    version = here.version if here else ""
    folder = str(module_install.source_folder(version))
    if as_json:
        paths = {"source": folder, "modprobe": str(module_install.CONF)}
        print_json({"installed": new, "version": version, **paths})
        return
    print(f"{'installed' if new else 'already installed:'} nfsrdma {version} for {made.release}")
    print(f"  permanent: DKMS builds {folder} for each new kernel;")
    print(f"  {module_install.CONF} selects it for mounts with proto=rdma and for nfsd")
    print("  takes effect at the next load: nfsrdma module load, or a reboot")
    print("  undo: nfsrdma module uninstall")


@app.command()
def uninstall(as_json: Json = False, verbose: Verbose = False) -> None:
    """Remove everything that `module install` installed."""
    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.host.module import install as module_install
    from nfsrdma_tools.module_source import OURS

    gone = module_install.uninstall()
    still = OURS in kernel_modules.loaded()
    if as_json:
        version = gone.version if gone else None
        print_json({"uninstalled": version, "still_loaded": still})
        return
    print(f"uninstalled nfsrdma {gone.version}" if gone else "nfsrdma was not installed")
    if gone and still:
        print("  the module is still loaded; unload it: nfsrdma module unload")
