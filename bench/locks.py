# SPDX-License-Identifier: Apache-2.0
"""Where threads wait for locks: ``make bench-locks``.

16 processes read 4 KiB at a time past the cache over the modelled card, in a machine with 2 and
with 4 processors on the wall clock, over one connection and over four.  Waits of any kind count,
spinning or asleep.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from carriers import OURS, THEIRS, serve

from bench import page
from bench.solo import PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

HERE = Path(__file__).parent
NAMES = {"kernel's": THEIRS, "nfsrdma": OURS}
CPUS, CONNECTIONS = (2, 4), (1, 4)
READS, TURNS = 8000, 3
Found = dict[str, Any]


def turn(lab: Lab, module: str, connections: int) -> Found:
    serve(lab, "solo", module)
    mount(lab, f"{RDMA},noac,nconnect={connections}")
    argv = ("python3", "/run/bench/locks_node.py", str(READS))
    found: Found = json.loads(lab.run("solo", *argv, timeout=3600).stdout)
    unmount(lab)
    return found


def middle(turns: list[Found], key: str) -> str:
    """Median and range of what each read waits for locks."""
    values = sorted(sum(one[key].values()) / READS for one in turns)
    scale = 1e3 if key == "ns" else 1.0
    low, mid, high = (each / scale for each in (values[0], statistics.median(values), values[-1]))
    return f"{mid:.2f} ({low:.2f} to {high:.2f})"


def places(turns: list[Found]) -> str:
    """The places with the most waits, in waits for each thousand reads."""
    total: Counter[str] = Counter()
    for one in turns:
        total.update(one["waits"])
    reads = len(turns) * READS / 1e3
    return ", ".join(f"`{name}` {count / reads:.1f}" for name, count in total.most_common(6))


def main() -> None:
    heads = ("processors", "connections", "transport", "waits for each read",
             "microseconds of waiting for each read", "reads per second")  # fmt: skip
    lines, details, about = page.head(heads), [], ""
    for cpus in CPUS:
        config = LabConfig(
            "bench-locks", link="none", kernel=sys.argv[1], memory=4608, nic="card", cpus=cpus,
            extras=True,
        )  # fmt: skip
        with Lab(config) as lab:
            sh(lab, PREPARE)
            for name in ("module_node.py", "locks_node.py"):
                lab.run("solo", "tee", f"/run/bench/{name}", stdin=(HERE / name).read_bytes())
            for connections in CONNECTIONS:
                found: dict[str, list[Found]] = {name: [] for name in NAMES}
                for _ in range(TURNS):
                    for name, module in NAMES.items():
                        found[name].append(turn(lab, module, connections))
                        print(cpus, connections, name, found[name][-1], flush=True)
                for name, turns in found.items():
                    rate = statistics.median(one["per_second"] for one in turns)
                    cells = (middle(turns, "waits"), middle(turns, "ns"), f"{rate:,.0f}")
                    lines.append(page.row((cpus, connections, name, *cells)))
                    details.append(f"* {cpus} processors, {connections}, {name}: {places(turns)}")
            lab.check()
            about = page.conditions(lab, "card", "make bench-locks")
    page.update(sys.argv[1], "locks", [about, "", *lines, "", *details])
    print(*lines, *details, sep="\n")


if __name__ == "__main__":
    main()
