# SPDX-License-Identifier: Apache-2.0
"""The layers that reads spend their time in: ``make bench``.

Samples of stacks in one machine on the instruction clock, without a wire.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import page
from bench.solo import COLUMNS, LOADS, PREPARE, Column, loads, mount, sh, unmount
from nfsrdma_tools.lab.config import LabConfig
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
        self.costs = {name: one["us"] for name, one in loads(lab, list(PROFILED)).items()}
        unmount(lab)
        sh(lab, column.after)

    def share(self, load: str, layer: str) -> float:
        return float(self.samples[load].get(layer, 0) / sum(self.samples[load].values()))

    def cost(self, load: str, layer: str) -> float:
        return self.share(load, layer) * float(self.costs[load])


def layers(profiles: list[Profile], load: str) -> list[str]:
    """The table of all layers of a load, the most expensive first."""
    heads = [LOADS[load][0], *(one.name for one in profiles)]
    lines = page.head(heads)
    known = {layer for one in profiles for layer in one.samples[load]}
    for layer in sorted(known, key=lambda name: -max(one.cost(load, name) for one in profiles)):
        lines.append(page.row([layer, *(f"{one.cost(load, layer):,.1f}" for one in profiles)]))
    return lines


def main() -> None:
    config = LabConfig(
        "bench-layers",
        clock="instructions",
        link="none",
        kernel=sys.argv[1],
        memory=4608,
        nic="card",
    )
    with Lab(config) as lab:
        sh(lab, PREPARE)
        for name in ("module_node.py", "profile_node.py"):
            lab.run("solo", "tee", f"/run/bench/{name}", stdin=(HERE / name).read_bytes())
        profiles = []
        for column in (next(each for each in COLUMNS if each.name == name) for name in NAMES):
            profiles.append(Profile(lab, column))
            print(profiles[-1].name, profiles[-1].costs, profiles[-1].samples, flush=True)
        lab.check()
        about = page.conditions(lab, "card", "make bench")
    lines = [line for load in PROFILED for line in ("", *layers(profiles, load))]
    page.update(sys.argv[1], "card layers", [about, *lines])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
