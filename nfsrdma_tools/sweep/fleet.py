# SPDX-License-Identifier: Apache-2.0
"""Several hosts against one server: concurrent trials, aggregate throughput, fairness, best cells.

The hosts share only the time of day.  A trial's reader ran for ``duration_ns`` somewhere within
``wall_ns`` from ``began`` on, so it certainly ran between the latest start and the earliest end
that leave room for its duration.  Only these certain parts count as concurrent.  The result is as
good as the hosts' clocks agree.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from nfsrdma_tools.sweep.choice import choose
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.server_cpu import Sample, busy
from nfsrdma_tools.sweep.significance import Summary, summaries
from nfsrdma_tools.sweep.store import Store, Trial

__all__ = [
    "Fleet", "Host", "Round", "RoundMeans", "comparable", "enough", "is_same_grid", "jain", "load",
    "pooled", "round_means", "rounds",
]  # fmt: skip

SHARE = 0.5
"""Least share of each reader's time that all readers of a round have in common."""
GAIN = 0.05
"""Least relative gain of the aggregate that makes one more client worthwhile."""


@dataclass(frozen=True)
class Round:
    """One cell, measured on one host or on several at once.

    ``rates`` are in MB/s by host, each over its own duration.  ``least`` is a lower bound of the
    aggregate in MB/s: all bytes over the time from the first possible start to the last possible
    end.  ``server`` is the number of busy CPUs of the server in the common part, if known.
    """

    cell: Cell
    rates: Mapping[str, float]
    least: float
    server: float | None = None

    @property
    def clients(self) -> int:
        """Number of hosts."""
        return len(self.rates)

    @property
    def aggregate(self) -> float:
        """Sum of the hosts' rates, in MB/s."""
        return sum(self.rates.values())

    @property
    def fairness(self) -> float:
        """Jain's index of the hosts' rates."""
        return jain(list(self.rates.values()))


@dataclass(frozen=True)
class RoundMeans:
    """All rounds of one cell with the same number of clients, as means."""

    cell: Cell
    clients: int
    rounds: int
    aggregate: float
    least: float
    fairness: float
    server: float | None
    """Busy CPUs of the server."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Mean rate of each host, in MB/s."""

    @property
    def server_per_client(self) -> float | None:
        """Busy CPUs of the server per client."""
        return None if self.server is None else self.server / self.clients


def jain(rates: Sequence[float]) -> float:
    """Jain's fairness index, from 1/n (one host has all) to 1 (all hosts have the same).

    R. Jain, D. Chiu, W. Hawe: "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984.
    """
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


def is_same_grid(plan: Plan, other: Plan) -> bool:
    """Whether two plans measure the same grid against the same target."""
    return _without_names(plan) == _without_names(other)


def _without_names(plan: Plan) -> Plan:
    return replace(plan, uid="any", directory="", seed=0, preset="", existing=None)


@dataclass(frozen=True, eq=False)
class _Span:
    """When a trial may have been reading (low to high) and when it certainly was, in seconds."""

    trial: Trial
    host: str
    low: float
    high: float

    @property
    def since(self) -> float:
        return self.high - self.trial.transfer.duration_ns / 1e9

    @property
    def until(self) -> float:
        return self.low + self.trial.transfer.duration_ns / 1e9


def rounds(
    trials: Iterable[Trial],
    hosts: Mapping[str, str],
    load: Sequence[Sample] = (),
) -> list[Round]:
    """The rounds of these trials; ``hosts`` names the host of each environment.

    Trials that overlap another host's trial of another cell, or overlap too little, are left out.
    """
    spans = [span for trial in trials if (span := _span(trial, hosts))]
    spans.sort(key=lambda span: span.low)
    groups = [_group(span, near) for span, near in zip(spans, _near(spans), strict=True)]
    # each of its members finds the same round
    different = {frozenset(map(id, group)): group for group in groups if group}
    return [_round(group, load) for group in different.values()]


def round_means(all_rounds: Iterable[Round]) -> list[RoundMeans]:
    """Rounds grouped by cell and number of clients, in that order."""
    ordered = sorted(all_rounds, key=_cell_and_clients)
    return [
        _means(*key, list(group))
        for key, group in itertools.groupby(ordered, key=_cell_and_clients)
    ]


def enough(all_means: Sequence[RoundMeans]) -> int | None:
    """The number of clients beyond which one more gains less than GAIN, for the means of one cell.

    None when every measured number still gained more, or only one was measured.
    """
    for fewer, more in itertools.pairwise(sorted(all_means, key=lambda means: means.clients)):
        steps = more.clients - fewer.clients
        if fewer.aggregate and more.aggregate / fewer.aggregate - 1 < GAIN * steps:
            return fewer.clients
    return None


def _span(trial: Trial, hosts: Mapping[str, str]) -> _Span | None:
    host = hosts.get(trial.environment, "")
    if not (trial.ok and host and trial.began and trial.transfer.duration_ns):
        return None
    low = datetime.fromisoformat(trial.began).timestamp()
    span = _Span(trial, host, low, low + max(trial.cpu.wall_ns, trial.transfer.duration_ns) / 1e9)
    return span if span.until > span.since else None


def _near(spans: Sequence[_Span]) -> Iterator[list[_Span]]:
    """For each span, in order of start, the spans of other hosts that overlap it."""
    lows = [s.low for s in spans]
    longest = max((s.high - s.low for s in spans), default=0.0)
    for span in spans:
        first, last = bisect_left(lows, span.low - longest), bisect_right(lows, span.high)
        yield [s for s in spans[first:last] if s.host != span.host and _common(span, s)]


def _group(span: _Span, near: Sequence[_Span]) -> list[_Span]:
    """The round of ``span``; empty when a trial of another cell overlaps it."""
    group = [span, *(s for s in near if s.trial.cell == span.trial.cell and _together([span, s]))]
    hosts = [s.host for s in group]
    strangers = [s for s in near if s not in group and _common(span, s) > _slack(span)]
    whole = len(set(hosts)) == len(hosts) and not strangers and _together(group)
    return sorted(group, key=lambda s: s.host) if whole else []


def _common(span: _Span, other: _Span) -> float:
    return max(min(span.high, other.high) - max(span.low, other.low), 0.0)


def _slack(span: _Span) -> float:
    return (1 - SHARE) * span.trial.transfer.duration_ns / 1e9


def _together(group: Sequence[_Span]) -> bool:
    since, until = _proven(group)
    longest = max(span.trial.transfer.duration_ns for span in group) / 1e9
    return len(group) == 1 or until - since >= SHARE * longest


def _proven(group: Sequence[_Span]) -> tuple[float, float]:
    return max(span.since for span in group), min(span.until for span in group)


def _round(group: Sequence[_Span], load: Sequence[Sample]) -> Round:
    total = sum(span.trial.transfer.bytes for span in group)
    longest = max(span.high for span in group) - min(span.low for span in group)
    return Round(
        cell=group[0].trial.cell,
        rates={span.host: span.trial.transfer.throughput for span in group},
        least=total / longest / 1e6,
        server=busy(load, *_proven(group)),
    )


def _cell_and_clients(fleet_round: Round) -> tuple[Cell, int]:
    return fleet_round.cell, fleet_round.clients


def _means(cell: Cell, clients: int, group: list[Round]) -> RoundMeans:
    known = [r.server for r in group if r.server is not None]
    return RoundMeans(
        cell=cell,
        clients=clients,
        rounds=len(group),
        aggregate=statistics.fmean(r.aggregate for r in group),
        least=statistics.fmean(r.least for r in group),
        fairness=statistics.fmean(r.fairness for r in group),
        server=statistics.fmean(known) if known else None,
        rates=_mean_rates(group),
    )


def _mean_rates(group: Sequence[Round]) -> dict[str, float]:
    hosts = sorted({host for r in group for host in r.rates})
    return {
        host: statistics.fmean(r.rates[host] for r in group if host in r.rates) for host in hosts
    }


@dataclass(frozen=True)
class Host:
    """One host with one transport: its own best cell, and its result with the cell best for all."""

    name: str
    transport: str
    best: Summary
    common: Summary | None
    """The cell that is best for all hosts together; None if this host did not measure it."""

    @property
    def loss(self) -> float | None:
        """How much slower this host is with the common cell than with its best, 0 to 1."""
        return 1 - self.common.throughput / self.best.throughput if self.common else None


@dataclass(frozen=True)
class Fleet:
    """The results of several hosts for one plan.

    ``enough`` is the number of clients beyond which more add little, for the cells for which it is
    known; ``unsynchronised`` are hosts whose clocks, and so the times of rounds, may be off.
    """

    hosts: tuple[Host, ...]
    round_means: tuple[RoundMeans, ...]
    enough: Mapping[Cell, int]
    unsynchronised: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        return list(dict.fromkeys(host.name for host in self.hosts))

    def of(self, cell: Cell) -> list[RoundMeans]:
        """The rounds of a cell, by number of clients."""
        return [means for means in self.round_means if means.cell == cell]


def pooled(store: Store, plan: Plan) -> list[Trial]:
    """The trials of a plan, and of each other host's newest equal plan."""
    names = _names(store)
    trials_of_host: dict[str, list[Trial]] = {}
    for equal_plan in [p for p in store.plans() if is_same_grid(p, plan)]:
        by_host: dict[str, list[Trial]] = {}
        for trial in store.trials(equal_plan):
            by_host.setdefault(names.get(trial.environment, ""), []).append(trial)
        trials_of_host.update(by_host)
    own = store.trials(plan)
    mine = {names.get(trial.environment, "") for trial in own}
    # a trial without an environment of its own belongs to its plan's host
    others = [trial for host, trials in trials_of_host.items() if host and host not in mine
              for trial in trials]  # fmt: skip
    return own + others


def comparable(store: Store, plan: Plan, trials: Sequence[Trial]) -> list[Trial]:
    """These (pooled) trials on the scale of the plan's host; those of one host are unchanged.

    A host may be ten times as fast as another, and each race measures other cells more often: a
    mean over hosts would compare hosts, not cells.  The throughput of a host is multiplied so that
    its mean over the cells that all hosts measured (geometric, each cell once) equals that of the
    plan's host.  Where the hosts have no cell in common, only the trials of the plan's host remain.
    """
    names = _names(store)
    blocks: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.ok:
            blocks.setdefault(names.get(trial.environment, ""), []).append(trial)
    if len(blocks) < 2:
        return list(trials)
    means = {name: {s.cell: s.throughput for s in summaries(mine)} for name, mine in blocks.items()}
    shared = set.intersection(*(set(cells) for cells in means.values()))
    own = next(
        (names.get(t.environment, "") for t in trials if t.ok and t.plan == plan.uid),
        next(iter(blocks)),
    )
    if not shared:
        return blocks[own]
    level = {
        name: statistics.geometric_mean(cells[cell] for cell in shared)
        for name, cells in means.items()
    }
    return [
        _scaled(trial, level[own] / level[name]) for name, mine in blocks.items() for trial in mine
    ]


def _scaled(trial: Trial, factor: float) -> Trial:
    throughput = trial.transfer.throughput * factor
    return replace(trial, transfer=replace(trial.transfer, throughput=throughput))


def load(store: Store, plan: Plan, trials: Sequence[Trial]) -> Fleet | None:
    """The fleet of these (pooled) trials; None if they are of one host."""
    names = _names(store)
    hosts = {names[t.environment] for t in trials if names.get(t.environment)}
    if len(hosts) < 2:
        return None
    everything = [t for p in store.plans() if is_same_grid(p, plan) for t in store.trials(p)]
    all_means = round_means(rounds(everything, names, _of_server(store, plan)))
    cells = dict.fromkeys(means.cell for means in all_means)
    known = {cell: enough([means for means in all_means if means.cell == cell]) for cell in cells}
    return Fleet(
        hosts=tuple(_hosts(plan, trials, comparable(store, plan, trials), names)),
        round_means=tuple(all_means),
        enough={cell: count for cell, count in known.items() if count},
        unsynchronised=_unsynchronised(store, hosts),
    )


def _names(store: Store) -> dict[str, str]:
    return {uid: facts.get("host", "") for uid, facts in store.environments().items()}


def _unsynchronised(store: Store, hosts: Iterable[str]) -> tuple[str, ...]:
    facts = store.environments().values()
    good = {f.get("host", "") for f in facts if f.get("clock synchronised") == "yes"}
    return tuple(sorted(set(hosts) - good))


def _of_server(store: Store, plan: Plan) -> Sequence[Sample]:
    """The samples of the plan's server: by its name, or of the only server in the store."""
    loads = store.loads()
    alone = next(iter(loads.values())) if len(loads) == 1 else ()
    return loads.get(plan.server, alone)


def _hosts(
    plan: Plan, trials: Sequence[Trial], scaled: Sequence[Trial], names: Mapping[str, str]
) -> Iterable[Host]:
    by_host: dict[str, list[Trial]] = {}
    for trial in trials:
        by_host.setdefault(names.get(trial.environment, ""), []).append(trial)
    for transport in plan.transports:
        common = choose(scaled, transport)
        for name, mine in sorted(by_host.items()):
            best = choose(mine, transport)
            if best and common:
                at = {s.cell: s for s in summaries(mine)}.get(common.winner.cell)
                yield Host(name, transport, best.winner, at)
