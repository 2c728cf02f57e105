# SPDX-License-Identifier: Apache-2.0
"""The host: CPU by layer, RDMA ports, and the phases of the server's Calls."""

from __future__ import annotations

from rich.text import Text

from nfsrdma_tools.live.snapshot import Client, Processors, Server, Snapshot
from nfsrdma_tools.live.top.number_format import number, rate, span, text
from nfsrdma_tools.live.top.text_screen import TextScreen

__all__ = ["Host", "body"]

_BAR = 40


class Host(TextScreen):
    """The host screen: CPU, ports and nfsd."""

    def show(self, taken: Snapshot) -> None:
        """Show a new snapshot."""
        self.set_text(body(taken))


def body(taken: Snapshot) -> Text:
    """The text of the screen."""
    ports = [text(f"port {p.name} on {p.netdev}: {p.state}, {p.physical}") for p in taken.ports]
    parts = [_processors(taken.processors), ports]
    if taken.server:
        parts.append(_server(taken.server, taken.seconds))
    return Text("\n\n").join(Text("\n").join(part) for part in parts if part)


def _processors(cpu: Processors) -> list[Text]:
    head = Text(f"CPU: {cpu.share:.0%} of {cpu.cpus} busy", "bold")
    if not cpu.layers:
        return [head + Text("; attach probes for CPU time by layer", "")]
    whole = cpu.layers_ns * cpu.cpus
    return [head, *(_layer(each.name, each.ns / whole) for each in cpu.layers if whole)]


def _layer(name: str, share: float) -> Text:
    return Text(f"  {name:20}{share:>7.1%} ") + Text("#" * round(share * _BAR), "cyan")


def _server(server: Server, seconds: float) -> list[Text]:
    head = text(
        f"nfsd: {server.threads} threads on {', '.join(server.listeners)}; "
        f"{rate(server.calls, seconds) or 0} Calls/s, reads {rate(server.read, seconds) or 0}B/s, "
        f"writes {rate(server.written, seconds) or 0}B/s",
        "bold",
    )
    head.no_wrap = False
    return [head, *_exposed(server), *(_client(each, seconds) for each in server.clients)]


def _exposed(server: Server) -> list[Text]:
    """A line of what personalities other than read-write have in use, if anything."""
    figures = (
        (server.exposed, "B exposed"),
        (server.dones_outstanding, " RDMA_DONEs outstanding"),
        (server.lanes, " lanes"),
        (server.granted, "B granted"),
    )
    said = [f"{number(value)}{what}" for value, what in figures if value]
    return [text(f"  {', '.join(said)}")] if said else []


def _client(client: Client, seconds: float) -> Text:
    calls = client.counts.get("calls", 0)
    phases = [f"{name} {span(ns / 1e6)}" for name, ns in client.means.items()]
    head = f"  {client.peer} {client.procedure}: {rate(calls, seconds)}/s, "
    said = text(head + f"{span(client.ns / calls / 1e6) if calls else number(0)}: ")
    return said + Text(", ".join(phases))
