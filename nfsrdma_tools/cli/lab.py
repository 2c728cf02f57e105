# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma lab``: virtual machines with soft-RoCE."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

app = typer.Typer(help="Virtual machines with soft-RoCE, in which everything runs.")

Name = Annotated[str, typer.Argument(help="The lab's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def build(
    kernel: Annotated[
        str, typer.Option(help="6.12, 6.1, 7.2; debug (KASAN, lockdep) or kcsan: 15 minutes.")
    ] = "6.12",
    extras: Annotated[
        bool, typer.Option("--extras", help="Kerberos, tshark, perftest, firewalld and more.")
    ] = False,
) -> None:
    """Build a disk image and a kernel, if they are not there (about a minute, with extras two).

    On Debian 12 it puts a newer QEMU into the cache, too.
    """
    from nfsrdma_tools.lab import image, kernels, qemu_binary

    qemu_binary.fetch(_step)
    kernels.build(kernel, _step)
    print(image.build(extras, _step).folder)


@app.command()
def up(
    name: Name,
    shape: Annotated[
        str, typer.Option(help="solo: one kernel is both; pair: two machines.")
    ] = "solo",
    kernel: Annotated[
        str, typer.Option(help="6.12, 6.1, 7.2; debug, kcsan: built first.")
    ] = "6.12",
    clock: Annotated[
        str, typer.Option(help="wall; instructions: 1 ns each; counted: only CPU time is.")
    ] = "wall",
    link: Annotated[
        str, typer.Option(help="RATE/ROUND-TRIP, such as 10gbit/20us, or none. solo: 1gbit/100us.")
    ] = "",
    clients: Annotated[int, typer.Option(help="How many clients (shape pair).")] = 1,
    memory: Annotated[int, typer.Option(help="MiB for each machine.")] = 3072,
    nic: Annotated[str, typer.Option(help="rxe: soft RoCE; siw: soft iWARP.")] = "rxe",
    cpus: Annotated[int, typer.Option(help="Processors of each; the counted clocks have 1.")] = 2,
    extras: Annotated[
        bool, typer.Option("--extras", help="Nodes with Kerberos, tshark, perftest and more.")
    ] = False,
) -> None:
    """Bring a lab up; it stays until `lab down`."""
    from nfsrdma_tools.lab import supervisor
    from nfsrdma_tools.lab.config import LabConfig

    config = LabConfig(name, shape, kernel, clock, link, clients, memory, nic, cpus, extras)
    state = supervisor.up(config, _step)
    print(f"{name} is up ({state['accel']}, {clock} clock): nfsrdma lab ssh {name}")


@app.command(context_settings={"ignore_unknown_options": True})
def ssh(
    name: Name,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE] [-- COMMAND...]", help="client is the default node."),
    ] = None,
) -> None:
    """Run a command in a node, or log in.

    Ends with the command's status.
    """
    from nfsrdma_tools.lab.attach import interactive

    sys.exit(interactive(name, words or []))


@app.command()
def link(name: Name, link: Annotated[str, typer.Argument(help="10gbit/20us, none, ...")]) -> None:
    """Change the wire of a lab that is up."""
    from nfsrdma_tools.lab.attach import attach

    attach(name).set_link(link)


@app.command()
def refresh(name: Name) -> None:
    """Bring the toolkit of the working tree into the nodes again."""
    from nfsrdma_tools.lab.attach import attach

    attach(name).refresh()


@app.command()
def inventory(name: Name) -> None:
    """Print a lab that is up as an inventory for ansible-playbook."""
    import json

    from nfsrdma_tools.lab.attach import attach
    from nfsrdma_tools.lab.inventory import inventory

    print(json.dumps(inventory(attach(name)), indent=1))


@app.command()
def status(json_: Json = False) -> None:
    """List the labs that are up, and say whether KVM works here."""
    from nfsrdma_tools.lab.status import status, table

    if json_:
        import json

        print(json.dumps(status()))
    else:
        print(table(status()))


@app.command()
def down(name: Name) -> None:
    """Take a lab down; nothing of it stays."""
    from nfsrdma_tools.lab import supervisor

    supervisor.down(name)


@app.command()
def clean() -> None:
    """Remove what is of other recipes, or of labs whose owner was killed, from the cache."""
    from nfsrdma_tools.lab.cache import clean

    print(f"{clean() >> 20} MiB freed")


def _step(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr)
