# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma link``: RDMA links, read and made through RDMA netlink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.host.rdma.nldev import Link

__all__ = ["app"]

app = typer.Typer(help="RDMA links: the list, and soft ones made and removed.")

_JSON = typer.Option("--json", help="Print JSON.")


@app.command("list")
def show(as_json: Annotated[bool, _JSON] = False) -> None:
    """List RDMA links with their state, device and use."""
    import json

    from nfsrdma_tools.host.rdma import nldev

    links, uses = nldev.links(), nldev.resources()
    if as_json:
        facts = [_facts(link, uses, nldev.statistics(link)) for link in links]
        print(json.dumps(facts, indent=2))
    else:
        _table(links, uses)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Of the new RDMA device, such as rxe0.")],
    netdev: Annotated[str, typer.Option(help="The network device it goes on.")],
    kind: Annotated[str, typer.Option("--type", help="rxe (RoCE) or siw (iWARP).")] = "rxe",
) -> None:
    """Make a soft RDMA link on a network device.

    It lasts until it is removed, or a reboot.
    """
    from nfsrdma_tools.host.rdma import nldev
    from nfsrdma_tools.undo import journal

    with journal() as book:
        link = nldev.add_link(kind, name, netdev, book)
        book.keep()
    print(f"{link.name} {link.state} {link.physical_state} on {link.netdev}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The RDMA device, such as rxe0.")]) -> None:
    """Remove a soft RDMA link.

    What is mounted over it loses its connection.
    """
    from nfsrdma_tools.host.rdma import nldev
    from nfsrdma_tools.undo import journal

    with journal() as book:
        nldev.remove_link(name, book)
        book.keep()


def _facts(
    link: Link, uses: dict[str, dict[str, int]], statistics: dict[str, int]
) -> dict[str, object]:
    device = link.device
    return {
        "name": device.name,
        "index": device.index,
        "port": link.port,
        "state": link.state,
        "physical_state": link.physical_state,
        "netdev": link.netdev,
        "driver": device.driver,
        "protocol": device.protocol,
        "node_type": device.node_type,
        "node_guid": device.node_guid,
        "firmware": device.firmware,
        "resources": uses.get(device.name, {}),
        "statistics": statistics,
    }


_HEAD = ("LINK", "STATE", "PHYSICAL", "DRIVER", "PROTOCOL", "NETDEV", "FIRMWARE", "IN USE")


def _table(links: Sequence[Link], uses: dict[str, dict[str, int]]) -> None:
    rows = [_HEAD, *(_row(link, uses.get(link.device.name, {})) for link in links)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _row(link: Link, use: dict[str, int]) -> tuple[str, ...]:
    device = link.device
    known = (link.state, link.physical_state, device.driver, device.protocol, link.netdev)
    used = " ".join(f"{kind} {count}" for kind, count in sorted(use.items()) if count)
    return (link.name, *(word or "-" for word in (*known, device.firmware, used)))
