# SPDX-License-Identifier: Apache-2.0
"""The layers that reads spend their time in.

Samples of stacks in one machine on the instruction clock, without a wire.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench import markdown
from bench.costs.measure import COLUMNS, Column
from bench.solo import LOADS, PREPARE, loads, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import serve

HERE = Path(__file__).parent
# samples per second of the instruction clock, and loads of about a quarter of a second for each
RATES = "1009,1499,1999,2503"
PROFILED = {"scattered": 2500, "sequential": 150}
NAMES = ("TCP as in 2003", "TCP", "kernel's", "nfsrdma")


class Profile:
    """The samples of each layer and the thousands of instructions of an operation, by load."""

    def __init__(self, lab: Lab, column: Column) -> None:
        self.name = column.name
        serve(lab, "solo", column.module)
        sh(lab, column.before)
        mount(lab, f"{column.options},noac")
        counts = [f"{name}={count}" for name, count in PROFILED.items()]
        argv = ("python3", "/run/bench/profile_node.py", RATES, *counts)
        self.samples = json.loads(lab.run("solo", *argv, timeout=3600).stdout)
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
        "bench-layers",
        clock="instructions",
        link="none",
        kernel=kernel,
        memory=4608,
        nic="card",
    )
    with Lab(config) as lab:
        sh(lab, PREPARE)
        for path in (HERE.parent / "loads_node.py", HERE / "profile_node.py"):
            lab.run("solo", "tee", f"/run/bench/{path.name}", stdin=path.read_bytes())
        profiles = []
        for column in (next(each for each in COLUMNS if each.name == name) for name in NAMES):
            profiles.append(Profile(lab, column))
            print(profiles[-1].name, profiles[-1].costs, profiles[-1].samples, flush=True)
        lab.check()
        about = markdown.conditions(lab, "card", "make bench NAME=layers")
    lines = [line for load in PROFILED for line in ("", *layers(profiles, load))]
    markdown.update(kernel, "card layers", [about, *lines])
    print("\n".join(lines))
