# SPDX-License-Identifier: Apache-2.0
"""Part of layers.py that runs in the node to find the modelled card's share of a load.

Runs as ``python3 profile_node.py RATE,RATE... LOAD=COUNT...`` beside loads_node.py, with the mount
in /mnt/bench.  Samples the stacks during each load, once at each RATE (Hz): on the instruction
clock equal operations take equal times, and samples at one rate may run in step with them.  Prints
JSON: for each load the number of samples of each layer while the CPU is busy; the layer "card
model" is split into the copy of the data and the rest.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import loads_node

from nfsrdma_tools.probes import cpu_layers
from nfsrdma_tools.probes.probe_sets import attached, probe_set

COPY = "card_dma"


def part(frames: tuple[tuple[str, str], ...], layer: str) -> str:
    """The layer of a sample; the card's copy is apart."""
    if layer == cpu_layers.CARD and frames[0][0] == COPY:
        return "copy"
    return layer


def profile(load: str, count: int, rate: int) -> Counter[str]:
    """The samples of each layer while a load runs."""
    (work,) = (each for each in loads_node.LOADS if each.__name__ == load)
    work(max(count // 10, 2))
    cpu = probe_set("cpu")
    with attached(["cpu"], rate=rate) as session:
        cpu.read(session)
        cpu.forget(session, cpu.read(session), 0.0)
        work(count)
        by_layer: Counter[str] = Counter()
        for seen, samples in cpu.read(session).stacks.items():
            by_layer[part(seen.stack, seen.where[0])] += samples
    for layer in (cpu_layers.IDLE, cpu_layers.TRACING):
        by_layer.pop(layer, None)
    return by_layer


def main() -> None:
    rates = [int(rate) for rate in sys.argv[1].split(",")]
    profiles = {}
    for word in sys.argv[2:]:
        name, count = word.split("=")
        profiles[name] = sum((profile(name, int(count), rate) for rate in rates), Counter())
    print(json.dumps(profiles))


main()
