# SPDX-License-Identifier: Apache-2.0
"""Several hosts: a table of each one's best cell, and their simultaneous throughput."""

from __future__ import annotations

from dataclasses import asdict

from nfsrdma_tools.report import canvas, captions
from nfsrdma_tools.report.canvas import Drawing, describe, label_ends, panels
from nfsrdma_tools.report.section import Section, Table
from nfsrdma_tools.report.study import Study
from nfsrdma_tools.sweep.fleet import GAIN, Fleet, Host, RoundMeans
from nfsrdma_tools.sweep.significance import Summary

__all__ = ["as_facts", "draw", "findings", "sections"]

NAMED = 4
"""The maximum of hosts that a row names with their results."""


def findings(study: Study) -> list[str]:
    """The aggregate by number of clients, a sentence for each transport."""
    return [_finding(study.fleet, line) for line in _lines(study)] if study.fleet else []


def sections(study: Study) -> list[Section]:
    """Each host by itself, and all at once; [] for a single host."""
    fleet = study.fleet
    if not fleet:
        return []
    heads = ("host", "", "best cell", "MB/s", "CPU %", "MB/s with common cell", "loss %")
    hosts = Table(heads, [_host(host) for host in fleet.hosts])
    return [Section("Hosts", [_scale(fleet)], [hosts]), _at_once(study, fleet)]


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
        mark, colour = canvas.marker_of(study.transports, name), canvas.transport_colour(name)
        ax.plot(xs, ys, marker=mark, color=colour, mec=canvas.PAPER, mew=0.7, zorder=3)
        ends.append((xs[-1], ys[-1], captions.transport(name), colour))
        dots = [(means.clients, rate) for means in line for rate in means.rates.values()]
        ax.plot(*zip(*dots, strict=True), ls="", marker="o", ms=3, color=colour, alpha=0.6)
    counts = sorted({means.clients for line in lines for means in line})
    ax.set_xticks(counts)
    ax.set(
        xlabel="simultaneous clients",
        ylabel="MB/s (line: all clients, dots: each)",
        xlim=(0.8, counts[-1] + 0.2),
    )
    ax.set_ylim(0, 1.12 * max(means.aggregate for line in lines for means in line))
    label_ends(ax, ends)
    finding = " ".join(findings(study))
    title = f"{study.plan.direction.capitalize()} throughput over simultaneous clients"
    describe(figure, title, f"{len(study.fleet.names)} hosts", captions.small_print(study))
    return Drawing("fleet-aggregate", title, finding, f"Line chart. {finding}", figure)


def _lines(study: Study) -> list[list[RoundMeans]]:
    """For each transport the fastest cell with the most clients, by number of clients."""
    fleet = study.fleet
    concurrent = [means for means in fleet.round_means if means.clients > 1] if fleet else []
    best = {
        name: max(mine, key=lambda means: (means.clients, means.aggregate)).cell
        for name in study.transports
        if (mine := [means for means in concurrent if means.cell.transport == name])
    }
    return [fleet.of(cell) for cell in best.values()] if fleet else []


def _finding(fleet: Fleet, line: list[RoundMeans]) -> str:
    cell = line[0].cell
    got = ", ".join(f"{means.clients}: {captions.figure(means.aggregate)}" for means in line)
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


def _scale(fleet: Fleet) -> str:
    """How cells of several hosts are compared, and whether the hosts agree."""
    text = (
        "Each host's cells are compared with each other: the figures of the cells above are on the "
        "scale of the host of the newest sweep, by the cells that all hosts measured."
    )
    different = {
        name: len({host.best.cell for host in fleet.hosts if host.transport == name})
        for name in dict.fromkeys(host.transport for host in fleet.hosts)
    }
    differ = [captions.transport(name) for name, count in different.items() if count > 1]
    return f"{text} Hosts have different best cells: {', '.join(differ)}." if differ else text


def _at_once(study: Study, fleet: Fleet) -> Section:
    title = "Simultaneous clients"
    if not any(means.clients > 1 for means in fleet.round_means):
        none = "No two hosts provably measured the same cell at the same time."
        return Section(title, [none])
    heads = ("cell", "clients", "rounds", "aggregate MB/s", "at least", "MB/s each", "fairness",
             "server CPUs busy", "per client")  # fmt: skip
    table = Table(heads, [_row(means) for means in fleet.round_means])
    return Section(title, [_legend(fleet), *findings(study)], [table])


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


def _rates(means: RoundMeans) -> str:
    """The rate of each host; for many hosts only the lowest and the highest."""
    if len(means.rates) <= NAMED:
        return ", ".join(f"{host} {captions.figure(rate)}" for host, rate in means.rates.items())
    low, high = min(means.rates.values()), max(means.rates.values())
    return f"{captions.figure(low)} to {captions.figure(high)}"


def _row(means: RoundMeans) -> tuple[str, ...]:
    share = means.server_per_client
    return (
        str(means.cell),
        str(means.clients),
        str(means.rounds),
        captions.figure(means.aggregate),
        captions.figure(means.least),
        _rates(means),
        f"{means.fairness:.3f}",
        "" if means.server is None else f"{means.server:.2f}",
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
            {**asdict(means), "cell": str(means.cell), "server_per_client": means.server_per_client}
            for means in fleet.round_means
        ],
        "enough_clients": {str(cell): count for cell, count in fleet.enough.items()},
        "clocks_not_synchronised": list(fleet.unsynchronised),
    }


def _flat(best: Summary) -> dict[str, object]:
    return {"best": str(best.cell), "mb_per_s": best.throughput, "cpu_share": best.cpu_share}
