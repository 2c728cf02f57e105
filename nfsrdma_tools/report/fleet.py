# SPDX-License-Identifier: Apache-2.0
"""The results of several hosts in a store: each host by itself, and all against a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from nfsrdma_tools.sweep.choice import choose
from nfsrdma_tools.sweep.fleet import Crowd, alike, crowds, enough, rounds
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.server_cpu import Sample
from nfsrdma_tools.sweep.significance import Summary, summaries
from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["Fleet", "Host", "as_facts", "load", "pooled"]


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
    crowds: tuple[Crowd, ...]
    enough: Mapping[Cell, int]
    unsynchronised: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        return list(dict.fromkeys(host.name for host in self.hosts))

    def of(self, cell: Cell) -> list[Crowd]:
        """The rounds of a cell, by number of clients."""
        return [crowd for crowd in self.crowds if crowd.cell == cell]


def pooled(store: Store, plan: Plan) -> list[Trial]:
    """The trials of a plan, and of each other host's newest equal plan."""
    names = _names(store)
    found: dict[str, list[Trial]] = {}
    for one in [p for p in store.plans() if alike(p, plan)]:
        by_host: dict[str, list[Trial]] = {}
        for trial in store.trials(one):
            by_host.setdefault(names.get(trial.environment, ""), []).append(trial)
        found.update(by_host)
    own = store.trials(plan)
    mine = {names.get(trial.environment, "") for trial in own}
    # a trial without an environment of its own belongs to its plan's host
    others = [trial for host, trials in found.items() if host and host not in mine
              for trial in trials]  # fmt: skip
    return own + others


def load(store: Store, plan: Plan, trials: Sequence[Trial]) -> Fleet | None:
    """The fleet of these (pooled) trials; None if they are of one host."""
    names = _names(store)
    hosts = {names[t.environment] for t in trials if names.get(t.environment)}
    if len(hosts) < 2:
        return None
    everything = [t for p in store.plans() if alike(p, plan) for t in store.trials(p)]
    found = crowds(rounds(everything, names, _of_server(store, plan)))
    cells = dict.fromkeys(crowd.cell for crowd in found)
    known = {cell: enough([c for c in found if c.cell == cell]) for cell in cells}
    return Fleet(
        hosts=tuple(_hosts(plan, trials, names)),
        crowds=tuple(found),
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


def _hosts(plan: Plan, trials: Sequence[Trial], names: Mapping[str, str]) -> Iterable[Host]:
    by_host: dict[str, list[Trial]] = {}
    for trial in trials:
        by_host.setdefault(names.get(trial.environment, ""), []).append(trial)
    for transport in plan.transports:
        common = choose(trials, transport)
        for name, mine in sorted(by_host.items()):
            best = choose(mine, transport)
            if best and common:
                at = {s.cell: s for s in summaries(mine)}.get(common.winner.cell)
                yield Host(name, transport, best.winner, at)


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
