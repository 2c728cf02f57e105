# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma module``: build, load and install the transport module of this project."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from nfsrdma_tools.cli.options import DryRun, Json, Verbose, argument, flag, option
from nfsrdma_tools.cli.output import print_changes, print_json
from nfsrdma_tools.errors import printable
from nfsrdma_tools.module_source import BUILDS_FOR, OURS
from nfsrdma_tools.sizes import format_size

if TYPE_CHECKING:
    from nfsrdma_tools.host.kernel_modules import ModuleFile
    from nfsrdma_tools.host.module.build import Build
    from nfsrdma_tools.host.module.devices import DeviceLimits
    from nfsrdma_tools.host.module.server_debugfs import Client, ServerTransport
    from nfsrdma_tools.host.module.status import ParameterValue, Status
    from nfsrdma_tools.host.nfs.personality import ClientTransport

__all__ = ["app", "build_with_progress", "load_lines", "status_facts", "status_lines"]

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
    module = build_with_progress(kernel, force)
    if as_json:
        facts = {"kernel": module.release, "path": str(module.path), "fresh": module.fresh}
        print_json(facts)
        return
    print(f"{module.path}: {'built' if module.fresh else 'already built'} for {module.release}")


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

    A vendor's rpcrdma may have hooks for GPUDirect Storage, which nfsrdma lacks: load and install
    warn of that.

    --set client=N --set server_name=NAME loads it beside rpcrdma, as a second server transport.
    """
    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.host.module import parameters as module_parameters
    from nfsrdma_tools.host.module import swap as module_swap
    from nfsrdma_tools.host.transports import owner, serves_as
    from nfsrdma_tools.undo import journal

    given = dict(text.partition("=")[::2] for text in setting or ())
    if not module_swap.beside(given):
        _warn_of_loss()
    if dry_run:
        print_changes(module_swap.loading(file, setting or ()), as_json)
        return
    with journal() as changes:
        module_swap.check_room(given)
        wanted = kernel_modules.in_file(file or build_with_progress().path)
        values = module_parameters.checked(setting or (), wanted)
        before = owner()
        new = module_swap.load(wanted, values, changes)
        changes.keep()
    if as_json:
        facts = {"module": wanted.path, "srcversion": wanted.srcversion, "before": before}
        roles = {"owner": owner(), "server": serves_as(wanted.name)}
        print_json({**facts, "loaded": new, "parameters": values, **roles})
        return
    print("\n".join(load_lines(wanted, new, before, values)))


@app.command()
def unload(dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Unload nfsrdma and load the module from before."""
    from nfsrdma_tools.host.module import swap as module_swap
    from nfsrdma_tools.host.transports import owner, would_load
    from nfsrdma_tools.undo import journal

    if dry_run:
        print_changes(module_swap.unloading(), as_json)
        return

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

    Also show its parameters and users, and the build, server, clients and DKMS state of nfsrdma,
    and what each RDMA device cannot do with it.
    """
    from nfsrdma_tools.host.module import status as module_status

    current = module_status.status()
    print_json(status_facts(current)) if as_json else print("\n".join(status_lines(current)))


@app.command()
def install(dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Make nfsrdma the permanent module of mounts and of nfsd.

    DKMS builds it for each new kernel.  Does not load it now.  `nfsrdma module uninstall` removes
    everything again.
    """
    from nfsrdma_tools.host.module import install as module_install
    from nfsrdma_tools.undo import journal

    _warn_of_loss()
    if dry_run:
        print_changes(module_install.installing(), as_json)
        return
    with journal() as changes:
        module_install.check()
        module = build_with_progress()
        new = module_install.install(module, changes)
        changes.keep()
    here = module_install.installed()
    version = here.version if here else ""
    folder = str(module_install.source_folder(version))
    if as_json:
        paths = {"source": folder, "modprobe": str(module_install.CONF)}
        print_json({"installed": new, "version": version, **paths})
        return
    print(f"{'installed' if new else 'already installed:'} nfsrdma {version} for {module.release}")
    print(f"  permanent: DKMS builds {folder} for each new kernel;")
    print(f"  {module_install.CONF} selects it for mounts with proto=rdma and for nfsd")
    print("  takes effect at the next load: nfsrdma module load, or a reboot")
    print("  undo: nfsrdma module uninstall")


@app.command()
def uninstall(dry_run: DryRun = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Remove everything that `module install` installed."""
    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.host.module import install as module_install

    if dry_run:
        print_changes(module_install.uninstalling(), as_json)
        return

    gone = module_install.uninstall()
    still = OURS in kernel_modules.loaded()
    if as_json:
        version = gone.version if gone else None
        print_json({"uninstalled": version, "still_loaded": still})
        return
    print(f"uninstalled nfsrdma {gone.version}" if gone else "nfsrdma was not installed")
    if gone and still:
        print("  the module is still loaded; unload it: nfsrdma module unload")


def _warn_of_loss() -> None:
    from nfsrdma_tools.host.transports import gpudirect_loss

    if loss := gpudirect_loss():
        print(f"nfsrdma: warning: {loss}", file=sys.stderr)


def build_with_progress(kernel: str = "", force: bool = False) -> Build:
    """Build the module and show progress on standard error."""
    from nfsrdma_tools.host.module import build as module_build

    with _Building() as line:
        return module_build.build(kernel, force, line.show)


class _Building:
    """A progress line on standard error while a build runs; with seconds on a terminal."""

    def __init__(self) -> None:
        self._start, self._shown = time.monotonic(), ""

    def __enter__(self) -> Self:
        """Return itself; the line appears when a build starts."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the line."""
        if self._shown and sys.stderr.isatty():
            print(file=sys.stderr)

    def show(self, release: str) -> None:
        """Show what is built and for how long; called a few times a second."""
        text = f"building nfsrdma for {release}"
        if sys.stderr.isatty():
            print(f"\r{text} ({time.monotonic() - self._start:.0f} s)", end="", file=sys.stderr)
        elif not self._shown:
            print(text, file=sys.stderr, flush=True)
        self._shown = text


def load_lines(wanted: ModuleFile, new: bool, before: str, values: dict[str, str]) -> list[str]:
    """The result of `load` as lines; ``before`` is the module that carried mounts until now."""
    from nfsrdma_tools.host.transports import owner, serves_as

    loaded, now = f"{OURS} {wanted.version} (srcversion {wanted.srcversion})", owner()
    if not new:
        more = [f"{name} is now {value}" for name, value in values.items()]
        more += [f"mounts with proto=rdma use {now}"] if now not in ("", OURS) else []
        return [f"{loaded} was already loaded{'; ' if more else ''}{', '.join(more)}"]
    back = "  lasts until a reboot; undo: nfsrdma module unload"
    if now == OURS:
        instead = f", instead of {before}" if before not in ("", OURS) else ""
        return [f"{loaded} is now the transport module{instead}", back]
    name = serves_as(OURS)
    kept = f", beside {now}" if now else ""
    way = f"  to let nfsd listen on it: echo '{name} PORT' > /proc/fs/nfsd/portlist"
    return [
        f"{loaded} is now a server transport{kept}, not a client transport",
        *([way] if name else []),
        back,
    ]


def status_facts(status: Status) -> dict[str, Any]:
    """The status as plain values, for JSON."""
    from dataclasses import asdict

    return {
        **asdict(status),
        "source": str(status.source),
        "built": str(status.built) if status.built else None,
        "kernel_too_old": status.too_old,
        "loaded_is_this_source": status.current,
    }


def status_lines(status: Status) -> list[str]:
    """The status as lines, a fact per line."""
    rows = [
        ("kernel", status.release),
        ("module", _module(status)),
        *(("server", text) for text in _server(status)),
        *(
            ("client", _client(client))
            for client in (status.server.clients if status.server else ())
        ),
        *(("transport", _transport(transport)) for transport in status.transports),
        *(("device", f"{device.name}: {text}") for device, text in _devices(status)),
        ("source", f"{status.source}, hash {status.source_hash}"),
        ("built", _built(status)),
        *(("parameter", _parameter(parameter)) for parameter in status.tunables),
        *(("user", user) for user in status.users or ("none",)),
        *(("dkms", text) for text in _dkms(status)),
    ]
    return [printable(f"{name:9}  {text}") for name, text in rows]


def _module(status: Status) -> str:
    if not status.owner:
        return "none; a mount with proto=rdma loads one"
    version = f" {status.version}" if status.version else ""
    source = f", srcversion {status.srcversion}" if status.srcversion else ""
    return f"{status.owner}{version}, {status.origin}{source}"


def _server(status: Status) -> list[str]:
    if not status.server:
        return []
    whose = "" if status.owner == OURS else f", srcversion {status.ours}"
    accepts = ", ".join(status.server.personalities)
    load = _load(status.server)
    return [f"{OURS}, for nfsd {status.server.name}{whose}{load}; accepts {accepts}"]


def _load(server: ServerTransport) -> str:
    if server.connections is None:
        return "; connections unknown (needs root)"
    load = [f"{server.connections} of {server.connections_max} connections"]
    for used, purpose in ((server.memory, "RDMA Reads"), (server.reply_memory, "replies")):
        if used is not None and server.memory_max is not None:
            load.append(f"{format_size(used)} of {format_size(server.memory_max)} for {purpose}")
    if server.floor_memory and server.floor_max:
        most = format_size(server.floor_max)
        load.append(f"{format_size(server.floor_memory)} of {most} for floors")
    if server.floor_sharers:
        load.append(f"{server.floor_sharers} clients share a floor")
    load += _exposed(server.exposed_memory, server.dones_outstanding, server.lanes)
    if server.granted_memory and server.granted_max:
        most = format_size(server.granted_max)
        load.append(f"{format_size(server.granted_memory)} of {most} of the page cache granted")
    return f"; {', '.join(load)}"


def _exposed(memory: int | None, dones: int | None, lanes: int | None) -> list[str]:
    """Resources that personalities other than read-write use, without those that are 0."""
    return [
        *([f"{format_size(memory)} exposed"] if memory else []),
        *([f"{dones} RDMA_DONEs outstanding"] if dones else []),
        *([f"{lanes} lanes"] if lanes else []),
    ]


def _client(client: Client) -> str:
    state = "connected" if client.connected else "ended"
    reason = f": {client.reason}" if client.reason != "none" else ""
    exposed = ["shares a floor"] if client.floor == 0 else []
    exposed += _exposed(client.exposed_memory, client.dones_outstanding, client.lanes)
    if client.granted_memory:
        exposed.append(f"{format_size(client.granted_memory)} of the page cache granted")
    exposed += [f"{name.replace('_', ' ')} {count}" for name, count in client.grants.items()]
    use = ", ".join(
        (f"{client.in_use} of {client.credits} credits in use", f"{client.calls} calls", *exposed)
    )
    return f"{client.peer}, {client.personality}, {use}, {state}{reason}"


def _devices(status: Status) -> list[tuple[DeviceLimits, str]]:
    """Each device with each of its limits."""
    return [(device, text) for device in status.devices for text in device.limits or ("no limits",)]


def _transport(transport: ClientTransport) -> str:
    where = f"{transport.number} to {transport.server} port {transport.port}"
    figures = (
        f"{name.replace('_', ' ')} {n}"
        for name, n in (transport.gauges | transport.counters).items()
    )
    effect = transport.personality or "(not connected)"
    return ", ".join((where, f"requested {transport.requested}", f"in effect {effect}", *figures))


def _built(status: Status) -> str:
    if not status.built:
        if status.too_old:
            only = f"it builds for {BUILDS_FOR}, for an older one only with backports"
            return f"not built for this kernel; {only}"
        return "not built for this kernel; build it: nfsrdma module build"
    known = {None: "", True: ", loaded", False: ", but another build is loaded"}
    return f"{status.built}, srcversion {status.built_srcversion}{known[status.current]}"


def _parameter(parameter: ParameterValue) -> str:
    shown = f"{parameter.name} {parameter.value or '(empty)'}"
    if not parameter.about:
        return shown
    default = parameter.about.default or "(empty)"
    changed = "" if parameter.value == parameter.about.default else f", default {default}"
    bounds = f" ({parameter.about.bounds})" if parameter.about.bounds else ""
    return f"{shown}{bounds}{changed}"


def _dkms(status: Status) -> list[str]:
    if status.registered is None:
        return ["not installed"]
    if not status.registered:
        advice = "" if status.too_old else "; register it: nfsrdma module install"
        return [f"not registered{advice}"]
    return [" ".join(filter(None, (x.version, x.kernel, x.state))) for x in status.registered]
