# SPDX-License-Identifier: Apache-2.0
"""Several hosts: a table of each one's best cell, and their simultaneous throughput."""

from __future__ import annotations

from dataclasses import asdict

from nfsrdma_tools.report import captions, style
from nfsrdma_tools.report.canvas import Drawing, describe, label_ends, panels
from nfsrdma_tools.report.markup import Markup, table, tag
from nfsrdma_tools.report.study import Study
from nfsrdma_tools.sweep.fleet import GAIN, Crowd, Fleet, Host
from nfsrdma_tools.sweep.significance import Summary

__all__ = ["as_facts", "draw", "findings", "section"]

NAMED = 4
"""The maximum of hosts that a row names with their results."""


def findings(study: Study) -> list[str]:
    """The aggregate by number of clients, a sentence for each transport."""
    return [_finding(study.fleet, line) for line in _lines(study)] if study.fleet else []


def section(study: Study) -> list[Markup]:
    """Each host by itself, and all at once; [] for a single host."""
    fleet = study.fleet
    if not fleet:
        return []
    heads = ("host", "", "best cell", "MB/s", "CPU %", "MB/s with common cell", "loss %")
    return [
        tag("h2", "Hosts"),
        table(heads, [_host(host) for host in fleet.hosts]),
        *_at_once(study, fleet),
    ]


def draw(study: Study) -> Drawing | None:
    """The aggregate over the number of clients, or None if it was not measured."""
    lines = _lines(study)
    if not study.fleet or not lines:
        return None
    figure, (ax,) = panels([""])
    ends = []
    for line in lines:
        name = line[0].cell.transport
        xs, ys = [c.clients for c in line], [c.aggregate for c in line]
        mark, colour = style.marker(study.transports, name), style.transport(name)
        ax.plot(xs, ys, marker=mark, color=colour, mec=style.PAPER, mew=0.7, zorder=3)
        ends.append((xs[-1], ys[-1], captions.transport(name), colour))
        dots = [(crowd.clients, rate) for crowd in line for rate in crowd.each.values()]
        ax.plot(*zip(*dots, strict=True), ls="", marker="o", ms=3, color=colour, alpha=0.6)
    counts = sorted({crowd.clients for line in lines for crowd in line})
    ax.set_xticks(counts)
    ax.set(
        xlabel="simultaneous clients",
        ylabel="MB/s (line: all clients, dots: each)",
        xlim=(0.8, counts[-1] + 0.2),
    )
    ax.set_ylim(0, 1.12 * max(crowd.aggregate for line in lines for crowd in line))
    label_ends(ax, ends)
    said = " ".join(findings(study))
    title = f"{study.plan.direction.capitalize()} throughput over simultaneous clients"
    describe(figure, title, f"{len(study.fleet.names)} hosts", captions.small_print(study))
    return Drawing("fleet-aggregate", title, said, f"Line chart. {said}", figure)


def _lines(study: Study) -> list[list[Crowd]]:
    """For each transport the fastest cell with the most clients, by number of clients."""
    fleet = study.fleet
    found = [crowd for crowd in fleet.crowds if crowd.clients > 1] if fleet else []
    best = {
        name: max(mine, key=lambda crowd: (crowd.clients, crowd.aggregate)).cell
        for name in study.transports
        if (mine := [crowd for crowd in found if crowd.cell.transport == name])
    }
    return [fleet.of(cell) for cell in best.values()] if fleet else []


def _finding(fleet: Fleet, line: list[Crowd]) -> str:
    cell = line[0].cell
    got = ", ".join(f"{crowd.clients}: {captions.figure(crowd.aggregate)}" for crowd in line)
    text = f"{cell}, aggregate MB/s by clients: {got} (fairness {line[-1].fairness:.2f})."
    if cell in fleet.enough:
        most = fleet.enough[cell]
        clients = f"{most} client{'s' * (most > 1)}"
        return f"{text} With more than {clients}, each further client adds less than {GAIN:.0%}."
    return text if len(line) == 1 else f"{text} Each further client added {GAIN:.0%} or more."


def _host(host: Host) -> tuple[str, ...]:
    best, common, loss = host.best, host.common, host.loss
    return (
        host.name,
        captions.transport(host.transport),
        str(best.cell),
        captions.figure(best.throughput),
        f"{100 * best.cpu_share:.1f}",
        captions.figure(common.throughput) if common else "",
        f"{100 * loss:.1f}" if loss is not None else "",
    )


def _at_once(study: Study, fleet: Fleet) -> list[Markup]:
    if not any(crowd.clients > 1 for crowd in fleet.crowds):
        return [tag("p", "No two hosts provably measured the same cell at the same time.")]
    heads = ("cell", "clients", "rounds", "aggregate MB/s", "at least", "MB/s each", "fairness",
             "server CPUs busy", "per client")  # fmt: skip
    return [
        tag("h2", "Simultaneous clients"),
        tag("p", _legend(fleet)),
        *(tag("p", said) for said in findings(study)),
        table(heads, [_row(crowd) for crowd in fleet.crowds]),
    ]


def _legend(fleet: Fleet) -> str:
    text = (
        "Round: this number of hosts read the same cell for at least half of each one's time, and "
        "no host measured another cell; with one client no other host was active. Aggregate: the "
        "sum of each host's rate over its own run. At least: all bytes over the time from the "
        "first possible start to the last possible end. Fairness: Jain's index, 1 if all hosts got "
        "the same, 1/n if one host got everything."
    )
    if not fleet.unsynchronised:
        return text
    return (
        f"{text} Times are from the hosts' clocks; these hosts do not report a synchronised "
        f"clock: {', '.join(fleet.unsynchronised)}."
    )


def _each(crowd: Crowd) -> str:
    """The rate of each host; for many hosts only the lowest and the highest."""
    if len(crowd.each) <= NAMED:
        return ", ".join(f"{host} {captions.figure(rate)}" for host, rate in crowd.each.items())
    low, high = min(crowd.each.values()), max(crowd.each.values())
    return f"{captions.figure(low)} to {captions.figure(high)}"


def _row(crowd: Crowd) -> tuple[str, ...]:
    share = crowd.server_per_client
    return (
        str(crowd.cell),
        str(crowd.clients),
        str(crowd.rounds),
        captions.figure(crowd.aggregate),
        captions.figure(crowd.least),
        _each(crowd),
        f"{crowd.fairness:.3f}",
        "" if crowd.server is None else f"{crowd.server:.2f}",
        "" if share is None else f"{share:.2f}",
    )


def as_facts(fleet: Fleet) -> dict[str, object]:
    """The fleet as plain data; rates in MB/s, the server's CPU as the number of busy CPUs."""
    return {
        "hosts": [
            {**_flat(host.best), "host": host.name, "transport": host.transport, "loss": host.loss}
            for host in fleet.hosts
        ],
        "at_once": [
            {**asdict(crowd), "cell": str(crowd.cell), "server_per_client": crowd.server_per_client}
            for crowd in fleet.crowds
        ],
        "enough_clients": {str(cell): count for cell, count in fleet.enough.items()},
        "clocks_not_synchronised": list(fleet.unsynchronised),
    }


def _flat(best: Summary) -> dict[str, object]:
    return {"best": str(best.cell), "mb_per_s": best.throughput, "cpu_share": best.cpu_share}
