# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma lab``: virtual machines with soft RDMA devices."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nfsrdma_tools.cli.options import Json, argument, flag, option
from nfsrdma_tools.cli.output import print_inventory, print_json

__all__ = ["app"]

app = typer.Typer(help="Start virtual machines with soft RDMA devices.", no_args_is_help=True)


def _complete(incomplete: str) -> list[str]:
    from nfsrdma_tools.lab.nodes import status

    names = [lab["name"] for lab in status()["labs"]]
    return [name for name in names if name.startswith(incomplete)]


Name = Annotated[str, argument("NAME", "Lab.", complete=_complete)]


@app.command()
def build(
    kernel: Annotated[
        str,
        option(
            "VERSION",
            "6.12, 6.1, 7.2 or 5.10; 6.12-arm64 or 6.12-arm64-16k; debug (KASAN, lockdep), kcsan "
            "or 6.12-arm64-64k, which take 15 minutes.",
        ),
    ] = "6.12",
    extras: Annotated[
        bool, flag("Add Kerberos, tshark, perftest, firewalld and more.", "--extras")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the disk image, the kernel and the library of labs.

    Does nothing if all are in the cache.  Takes about a minute, with --extras two; ten times
    that for arm64.  On Debian 12, also unpack a newer QEMU.
    """
    from nfsrdma_tools.lab import client_library, image, kernels, qemu
    from nfsrdma_tools.lab.architecture import AMD64, of_kernel

    architecture = of_kernel(kernel)
    qemu.fetch(_step, architecture)
    kernels.build(kernel, _step)
    base = image.build(extras, _step, architecture)
    native = base if architecture == AMD64 else image.build(step=_step)
    client_library.build(native, _step, architecture)
    folder = str(base.folder)
    print_json({"image": folder, "kernel": kernel}) if as_json else print(folder)


@app.command()
def up(
    name: Annotated[str, argument("NAME", "Name of the new lab.")],
    shape: Annotated[
        str,
        option("SHAPE", "solo: one machine is client and server; pair: server and clients."),
    ] = "solo",
    kernel: Annotated[
        str,
        option(
            "VERSION",
            "6.12, 6.1, 7.2, 5.10, 6.12-arm64, 6.12-arm64-16k; debug, kcsan or 6.12-arm64-64k "
            "once built.",
        ),
    ] = "6.12",
    clock: Annotated[
        str,
        option(
            "CLOCK",
            "wall: time of the host; instructions: 1 ns per instruction; counted: CPU time "
            "only is 1 ns per instruction.",
        ),
    ] = "wall",
    link: Annotated[
        str,
        option(
            "LINK",
            "Network: RATE/ROUND-TRIP such as 10gbit/20us, or none (default: 1gbit/100us for "
            "solo, none for pair).",
        ),
    ] = "",
    clients: Annotated[int, option("N", "Number of clients (shape pair).")] = 1,
    memory: Annotated[int, option("MIB", "Memory of each machine.")] = 3072,
    nic: Annotated[
        str,
        option(
            "TYPE",
            "RDMA device: rxe (soft-RoCE), siw (soft-iWARP) or card (modelled card; shape solo).",
        ),
    ] = "rxe",
    cpus: Annotated[int, option("N", "CPUs of each machine (clock wall; else 1).")] = 2,
    extras: Annotated[
        bool, flag("Use the image with Kerberos, tshark and perftest.", "--extras")
    ] = False,
    kernel_args: Annotated[
        str,
        option(
            "ARGS",
            "Add ARGS to the kernel's command line, such as init_on_alloc=0 (default: none).",
        ),
    ] = "",
    dma: Annotated[
        str,
        option(
            "FORM",
            "Modelled cards access memory through a PCI function: direct, swiotlb for bounce "
            "buffers, or iommu in strict mode (default: virtual DMA).",
        ),
    ] = "",
    profile: Annotated[
        str,
        option(
            "NAME",
            "Driver whose limits and behaviours modelled cards have: mlx5, mlx4, irdma-roce, "
            "irdma-iwarp, bnxt or bnxt-p5 (default: none).",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Start a lab; it runs until `nfsrdma lab down`."""
    from nfsrdma_tools.lab import lab
    from nfsrdma_tools.lab.config import LabConfig, clock_name

    config = LabConfig(
        *(name, shape, kernel, clock, link, clients, memory, nic, cpus, extras, kernel_args),
        *(dma, profile),
    )
    state = lab.up(config, _step)
    if as_json:
        # as `lab status` prints it
        print_json({"name": name, **state})
        return
    how = f"{state['accel']}, {clock_name(clock)}"
    print(f"{name} is up ({how}); log in: nfsrdma lab ssh {name}")


# the command that runs in the node may have an option -h
@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
def ssh(
    name: Name,
    words: Annotated[
        list[str] | None, argument("[NODE] [-- COMMAND...]", "Node (default: client) and command.")
    ] = None,
) -> None:
    """Log in to a node, or run a command there.

    Exit status: that of the command.
    """
    from nfsrdma_tools.lab.nodes import interactive

    sys.exit(interactive(name, words or []))


@app.command()
def link(name: Name, link: Annotated[str, argument("LINK", "RATE/ROUND-TRIP, or none.")]) -> None:
    """Change rate and round trip of a running lab's network."""
    from nfsrdma_tools.lab.nodes import attach

    attach(name).set_link(link)


@app.command()
def refresh(name: Name) -> None:
    """Copy this working tree to the nodes of a running lab."""
    from nfsrdma_tools.lab.lab import refresh

    refresh(name, _step)


@app.command()
def inventory(name: Name) -> None:
    """Print a running lab as an Ansible inventory, in JSON."""
    from nfsrdma_tools.lab.nodes import attach, inventory

    print_inventory(inventory(attach(name)))


@app.command()
def status(as_json: Json = False) -> None:
    """List the running labs, and whether KVM works on this machine."""
    from nfsrdma_tools.lab.nodes import status, table

    print_json(status()) if as_json else print(table(status()))


@app.command()
def down(name: Name) -> None:
    """Stop and remove a lab; keep the cached image."""
    from nfsrdma_tools.lab import lab

    lab.down(name)


@app.command()
def clean(as_json: Json = False) -> None:
    """Remove outdated images and leftovers of killed labs."""
    from nfsrdma_tools.lab.lab import clean

    freed = clean()
    print_json({"freed_bytes": freed}) if as_json else print(f"freed {freed >> 20} MiB")


def _step(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr)
