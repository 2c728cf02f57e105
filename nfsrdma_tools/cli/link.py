# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma link``: RDMA links through RDMA netlink, with the words of rdma(8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import DryRun, Json, argument, option
from nfsrdma_tools.cli.output import print_changes, print_json, print_table
from nfsrdma_tools.errors import UsageError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.host.rdma.ports import Link

__all__ = ["app"]

app = typer.Typer(help="Show RDMA links; add and delete soft ones.", no_args_is_help=True)

_Device = Annotated[str, argument("DEV", "RDMA device, such as rxe0.")]


@app.command()
def show(
    device: Annotated[
        str, argument("DEV[/PORT]", "Restrict to this device or port (default: all).")
    ] = "",
    as_json: Json = False,
) -> None:
    """List RDMA links with state, driver and resources in use."""
    from nfsrdma_tools.host.rdma import nldev

    links = [link for link in nldev.links() if device in ("", link.device.name, link.name)]
    if device and not links:
        raise UserError(f"no RDMA link {device!r}", "`nfsrdma link show` lists them")
    uses = nldev.resources()
    if as_json:
        print_json({"links": [_json(link, uses, nldev.statistics(link)) for link in links]})
    else:
        print_table([_HEAD, *(_row(link, uses.get(link.device.name, {})) for link in links)])


@app.command()
def add(
    name: Annotated[str, argument("DEV", "Name of the new RDMA device.")],
    words: Annotated[
        list[str] | None,
        argument(
            "KEYWORD VALUE", "type TYPE or netdev NETDEV, as in rdma(8); default: the options."
        ),
    ] = None,
    netdev: Annotated[
        str, option("NETDEV", "Network device to add the link to; required, here or as a word.")
    ] = "",
    kind: Annotated[
        str,
        option("TYPE", "rxe (RoCE), siw (iWARP) or card (modelled card); default: rxe.", "--type"),
    ] = "",
    profile: Annotated[
        str,
        option(
            "NAME",
            "Driver whose limits and behaviours a modelled card has: mlx5, mlx4, irdma-roce, "
            "irdma-iwarp, bnxt or bnxt-p5 (default: none).",
        ),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Add a soft RDMA link to a network device.

    It lasts until a reboot. The first link of type card on a kernel builds the module
    nfsrdma_card.

    Example: nfsrdma link add rxe0 type rxe netdev eth0
    """
    from nfsrdma_tools.host.module import build
    from nfsrdma_tools.host.rdma import nldev
    from nfsrdma_tools.undo import journal

    keywords = _keywords(words or [], {"type": kind, "netdev": netdev})
    if not keywords["netdev"]:
        raise UsageError("the network device is missing", "add: netdev NETDEV")
    new = (keywords["type"] or "rxe", name, keywords["netdev"])
    _check_profile(keywords["type"], profile)
    if dry_run:
        nldev.check_link(*new)
        print_changes(_changes(*new, profile), as_json)
        return
    with journal() as changes:
        if keywords["type"] == "card":
            build.load_card(changes)
        with build.card_profile(profile, changes):
            link = nldev.add_link(*new, changes)
        changes.keep()
    if as_json:
        print_json(_json(link, nldev.resources(), nldev.statistics(link)))
        return
    print(f"{link.name} {link.state} {link.physical_state} on {link.netdev}")
    print(f"  lasts until a reboot; undo: nfsrdma link delete {link.device.name}")


def _check_profile(kind: str, profile: str) -> None:
    from nfsrdma_tools import module_source

    if profile and kind != "card":
        raise UsageError(f"profile {profile!r}: only modelled cards have one", "add: --type card")
    if profile and profile not in (known := module_source.card_profiles()):
        raise UsageError(f"profile {profile!r}: expected {', '.join(known)}")


def _changes(kind: str, name: str, netdev: str, profile: str) -> list[str]:
    """The changes of `add`; UserError if there is no such network device."""
    from pathlib import Path

    from nfsrdma_tools.host import kernel_modules
    from nfsrdma_tools.module_source import CARD

    if not Path("/sys/class/net", netdev).exists():
        raise UserError(f"there is no network device {netdev}", "see: ip link")
    missing = kind == "card" and CARD not in kernel_modules.loaded()
    module = [f"build and load the module {CARD}"] if missing else []
    limits = f" with the profile {profile}" if profile else ""
    return [*module, f"add the {kind} link {name} on {netdev}{limits}"]


def _keywords(words: Sequence[str], given: dict[str, str]) -> dict[str, str]:
    """Add rdma(8)'s pairs of a keyword and a value to ``given``; UsageError for other words."""
    pairs = [*zip(words[::2], words[1::2], strict=False)]
    if len(words) % 2 or any(name not in given for name, _ in pairs):
        raise UsageError(f"cannot parse {' '.join(words)!r}", "write: [type TYPE] [netdev NETDEV]")
    return {**given, **dict(pairs)}


@app.command()
def delete(name: _Device, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Delete a soft RDMA link.

    Mounts over it lose their connections.
    """
    from nfsrdma_tools.host.rdma import nldev
    from nfsrdma_tools.undo import journal

    if dry_run:
        link = nldev.soft_link(name)
        print_changes([f"delete the link {name} on {link.netdev}"], as_json)
        return
    with journal() as changes:
        link = nldev.remove_link(name, changes)
        changes.keep()
    if as_json:
        print_json({"deleted": link.device.name})


def _json(
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


def _row(link: Link, use: dict[str, int]) -> tuple[str, ...]:
    device = link.device
    cells = (link.state, link.physical_state, device.driver, device.protocol, link.netdev)
    used = " ".join(f"{kind} {count}" for kind, count in sorted(use.items()) if count)
    return (link.name, *(word or "-" for word in (*cells, device.firmware, used)))
