# SPDX-License-Identifier: Apache-2.0
"""The layers that reads spend their time in.

Samples of stacks in one machine on the instruction clock, without a wire.
"""

from __future__ import annotations

from collections import Counter

from bench import markdown
from bench.costs.measure import COLUMNS, Column
from bench.loads import WORKS
from bench.solo import LOADS, PREPARE, loads, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes import cpu_layers
from nfsrdma_tools.probes.probe_sets import attached, probe_set
from testbed.labs import serve
from testbed.remote import on

# samples per second of the instruction clock, and loads of about a quarter of a second for each:
# on that clock equal operations take equal times, and samples at one rate may run in step with them
RATES = (1009, 1499, 1999, 2503)
PROFILED = {"scattered": 2500, "sequential": 150}
NAMES = ("TCP as in 2003", "TCP", "kernel's", "nfsrdma")


# of the modelled card
COPY = "card_dma"


def part(frames: tuple[tuple[str, str], ...], layer: str) -> str:
    """The layer of a sample; the card's copy is apart."""
    if layer == cpu_layers.CARD and frames[0][0] == COPY:
        return "copy"
    return layer


@on("solo", timeout=3600)
def profile(load: str, count: int) -> dict[str, int]:
    """The samples of the stacks of each layer during a load, once at each of RATES.

    While the CPU is busy; the layer "card model" is split into the copy of the data and the rest.
    """
    by_layer = Counter[str]()
    for rate in RATES:
        WORKS[load](max(count // 10, 2))
        cpu = probe_set("cpu")
        with attached(["cpu"], rate=rate) as session:
            cpu.read(session)
            cpu.forget(session, cpu.read(session), 0.0)
            WORKS[load](count)
            for seen, samples in cpu.read(session).stacks.items():
                by_layer[part(seen.stack, seen.where[0])] += samples
    for layer in (cpu_layers.IDLE, cpu_layers.TRACING):
        by_layer.pop(layer, None)
    return dict(by_layer)


class Profile:
    """The samples of each layer and the thousands of instructions of an operation, by load."""

    def __init__(self, lab: Lab, column: Column) -> None:
        self.name = column.name
        serve(lab, "solo", column.module)
        sh(lab, column.before)
        mount(lab, f"{column.options},noac")
        self.samples = {name: profile(lab, name, count) for name, count in PROFILED.items()}
        self.costs = {name: result["us"] for name, result in loads(lab, list(PROFILED)).items()}
        unmount(lab)
        sh(lab, column.after)

    def share(self, load: str, layer: str) -> float:
        return float(self.samples[load].get(layer, 0) / sum(self.samples[load].values()))

    def cost(self, load: str, layer: str) -> float:
        return self.share(load, layer) * float(self.costs[load])


def layers(profiles: list[Profile], load: str) -> list[str]:
    """The table of all layers of a load, the most expensive first."""
    heads = [LOADS[load][0], *(profile.name for profile in profiles)]
    lines = markdown.head(heads)
    known = {layer for profile in profiles for layer in profile.samples[load]}
    for layer in sorted(known, key=lambda name: -max(p.cost(load, name) for p in profiles)):
        lines.append(markdown.row([layer, *(f"{p.cost(load, layer):,.1f}" for p in profiles)]))
    return lines


def main(kernel: str = KERNELS[0]) -> None:
    """Sample stacks of all transports."""
    config = LabConfig(
        "bench-layers", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    with Lab(config) as lab:
        sh(lab, PREPARE)
        profiles = []
        for column in (next(each for each in COLUMNS if each.name == name) for name in NAMES):
            profiles.append(Profile(lab, column))
            print(profiles[-1].name, profiles[-1].costs, profiles[-1].samples, flush=True)
        lab.check()
        about = markdown.conditions(lab, "card", "make bench NAME=layers")
    lines = [line for load in PROFILED for line in ("", *layers(profiles, load))]
    markdown.update(kernel, "card layers", [about, *lines])
    print("\n".join(lines))
