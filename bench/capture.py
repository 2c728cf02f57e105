# SPDX-License-Identifier: Apache-2.0
"""The cost of a capture, on the instruction clock: ``make capture-bench``.

In one boot and in turns, it makes 4 KiB reads by O_DIRECT over the modelled card, with the probes
of ``nfsrdma capture`` attached and without.  Client and server are one machine here, so that a read
is four messages: both ends have the Call and the Reply.  The reader takes them out of the ring and
writes them between two turns, and its own CPU time is counted apart.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from carriers import OURS, THEIRS, serve

from bench import page
from bench.solo import PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

PAIRS, READS = 6, 400
MODULES = {"kernel's": THEIRS, "nfsrdma": OURS}
HEADS = (
    "module",
    "messages of a read",
    "a read without probes",
    "probes",
    "",
    "to write a message",
)


def turn(lab: Lab, data: str) -> list[str]:
    script = Path(__file__).with_name("capture_node.py").read_bytes()
    argv = ("solo", "python3", "-", str(PAIRS), str(READS), data)
    found = json.loads(lab.run(*argv, stdin=script, timeout=7200).stdout)
    if found["lost"]:
        raise SystemExit(f"{found['lost']} messages were lost")
    without = statistics.median(one for one, _ in found["pairs"])
    more = statistics.median(during - one for one, during in found["pairs"])
    share = f"{more / without:+.1%}"
    return [f"{found['messages']:.1f}", f"{without:.1f}", f"{more:.2f}", share,
            f"{found['written']:.0f}"]  # fmt: skip


def main() -> None:
    kernel, only = sys.argv[1], sys.argv[2:]
    rows: list[list[str]] = [list(HEADS)]
    config = LabConfig(
        "bench-capture", clock="instructions", link="none", kernel=kernel, extras=True, nic="card"
    )
    with Lab(config) as lab:
        about = page.conditions(lab, "card", f"make capture-bench KERNEL={kernel}")
        sh(lab, PREPARE)
        for name, module in MODULES.items():
            if only and name not in only:
                continue
            serve(lab, "solo", module)
            mount(lab, f"{RDMA},noac")
            rows.append([name, *turn(lab, "zero")])
            print(*rows[-1], flush=True)
            unmount(lab)
        lab.check()
    lines = [about, "", "In thousands of instructions:", "", *page.table(rows)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
