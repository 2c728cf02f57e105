# SPDX-License-Identifier: Apache-2.0
"""The program ``nfsrdma``: its commands, and how errors and signals end it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nfsrdma_tools import __version__
from nfsrdma_tools.cli.options import PluginCommand, SectionedCommand, Verbose, refuse_empty_paths
from nfsrdma_tools.cli.process import run
from nfsrdma_tools.errors import UserError

__all__ = ["COMMANDS", "EXTRAS", "SECTIONS", "app", "extras_needed", "main"]

SECTIONS = {
    "Mount": {
        "mount": ("mount", "mount", "Mount an export and verify the values in effect."),
        "mounts": ("mount", "mounts", "List the NFS mounts with the values in effect."),
        "umount": ("mount", "umount", "Unmount an NFS mount and verify that it is gone."),
        "tune": ("tune", "app", "Make rsize, wsize and read-ahead of a mount permanent."),
        "server": ("server", "app", "Export directories over TCP and RDMA, and undo that."),
        "link": ("link", "app", "Show RDMA links; add and delete soft ones."),
    },
    "Diagnose": {
        "health": ("health", "health", "Check for mounts that hang, without accessing them."),
        "doctor": ("doctor", "doctor", "Check this machine for NFS over RDMA; print remedies."),
        "explain": ("explain", "explain", "Explain the kernel's messages about NFS and RDMA."),
        "ping": ("ping", "ping", "Connect to a server over RDMA, and measure round trips."),
        "certify": ("certify", "certify", "Test this host, its RDMA card and a server."),
        "collect": ("collect", "collect", "Write a bundle of files for a report about this host."),
    },
    "Watch": {
        "top": ("live", "top", "Show mounts, clients and bottlenecks, live."),
        "dashboard": (
            "live",
            "dashboard",
            "Serve a web page with mounts, clients and bottlenecks.",
        ),
        "exporter": ("live", "exporter", "Serve metrics to Prometheus at /metrics."),
        "trace": ("trace", "trace", "Count NFS/RDMA events in the kernel, per interval."),
        "capture": (
            "capture",
            "capture",
            "Write the messages of NFS over RDMA for Wireshark, or print a capture.",
        ),
    },
    "Measure": {
        "sweep": ("sweep", "sweep", "Measure NFS by transport, rsize and read-ahead."),
        "load": ("load", "load", "Put a load of many sessions on a server."),
        "size": ("size", "size", "Compute what a server needs for many clients."),
        "report": ("results", "report", "Write an HTML page with figures of a sweep."),
        "results": ("results", "app", "Export, merge and compare the results of sweeps."),
    },
    "Files without a mount": {
        "ls": ("remote", "ls", "List a directory of a server without a mount."),
        "stat": ("remote", "stat", "Print the attributes of a file of a server without a mount."),
        "cat": ("remote", "cat", "Write files of a server to standard output without a mount."),
        "cp": ("cp", "cp", "Copy files between a server and this host without a mount."),
    },
    "Research": {
        "module": ("module", "app", "Build, load and install the transport module nfsrdma."),
        "lab": ("lab", "app", "Start virtual machines with soft RDMA devices."),
    },
}
"""The headings of the help, and their commands.

Module of cli/, function or app in it, and first line of the help, by name of the command.
"""
COMMANDS = {name: of for commands in SECTIONS.values() for name, of in commands.items()}

_PLUGINS = ("health",)
"""The commands with the exit statuses of monitoring plugins."""

# typer 0.15, which Debian 13 has, escapes "[default: 1]" for rich, which does not print our help
if "rich" in vars(typer.core):
    vars(typer.core)["rich"] = None


class _Commands(MutableMapping[str, Any]):
    """Click's commands by name; a command's module is imported when the command is looked up.

    Importing all modules, and having typer evaluate the annotations of all their functions, takes
    as long as importing typer itself.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]


def _load(name: str) -> Any:
    import importlib

    module, attribute, _ = COMMANDS[name]
    command = getattr(importlib.import_module(f"nfsrdma_tools.cli.{module}"), attribute)
    # a parent, because typer gives the options for completion to what has none
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    parent.callback()(lambda: None)
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name)
    else:
        parent.command(name, cls=PluginCommand if name in _PLUGINS else SectionedCommand)(command)
    group: Any = typer.main.get_command(parent)
    refuse_empty_paths(group.commands[name])
    return group.commands[name]


class _Program(TyperGroup):
    """The group of all commands; ``nfsrdma --help`` imports none of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands in the order of the help."""
        del ctx
        return list(COMMANDS)

    # Any: click's formatter until typer 0.25, then that of typer's own copy of click
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print the commands with the first lines of their help, below their headings."""
        del ctx
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, _, text) in commands.items()])


app = typer.Typer(
    name="nfsrdma",
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Mount NFS over RDMA, verify the mount, measure it, and trace it.",
    epilog=(
        "Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted by Ctrl-C."
        "\n\n"
        "Shell completion: `nfsrdma --install-completion` sets it up for your shell."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nfsrdma {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    pass


def main() -> None:
    """Run a command; an error ends it with one line."""
    run(_run)


def _run() -> None:
    # the name is part of the completion's protocol, also for python -m nfsrdma_tools
    with extras_needed():
        app(prog_name="nfsrdma")


EXTRAS = {
    **dict.fromkeys(("jinja2", "markupsafe", "matplotlib", "numpy"), "report"),
    **dict.fromkeys(
        ("bcrypt", "prometheus_client", "starlette", "textual", "uvicorn", "yaml"), "live"
    ),
}
"""The extra of pyproject.toml that has a library, by the name that Python imports.

Not every installation has them.  lab/qemu.py knows its own.
"""
_DEBIAN = Path("/usr/lib/python3/dist-packages")


@contextlib.contextmanager
def extras_needed() -> Iterator[None]:
    """Raise UserError, with what to install, when the block needs a library that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        message = f"this command needs {library}, which is not installed"
        raise UserError(message, _install(library)) from error


def _install(library: str) -> str:
    if Path(__file__).is_relative_to(_DEBIAN):
        return f"apt install python3-{library.replace('_', '-')}"
    return f"{sys.executable} -m pip install 'nfsrdma-tools[{EXTRAS[library]}]'"
