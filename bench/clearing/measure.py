# SPDX-License-Identifier: Apache-2.0
"""Read throughput with and without clearing of new pages.

Debian's kernels clear each page that they allocate (init_on_alloc); nfsd with this project's module
uses pages again, so that it needs fewer new ones.
"""

from __future__ import annotations

import subprocess
import sys

from bench import markdown
from bench.cells import OUT
from nfsrdma_tools.report.study import Study, load
from nfsrdma_tools.sweep.store import Store

SWEEP = (
    *("--lab", "--lab-nic", "card", "--preset", "quick", "--transport", "tcp,rdma,nfsrdma"),
    *("--vers", "3", "--lab-kernel-args", "init_on_alloc=0"),
)
_COLUMNS = (
    "new pages", "TCP", "RDMA, kernel's module", "ratio", "RDMA, this project's module", "ratio",
)  # fmt: skip


def _rates(study: Study) -> dict[str, float]:
    """The best MB/s of each transport."""
    rates: dict[str, float] = {}
    for point in study.points:
        name, rate = point.cell.transport, point.throughput.mean
        rates[name] = max(rates.get(name, 0), rate)
    return rates


def _row(name: str, study: Study) -> tuple[object, ...]:
    rates = _rates(study)
    tcp, rdma, ours = (rates[transport] for transport in ("tcp", "rdma", "nfsrdma"))
    return (
        name, f"{tcp:.1f}", f"{rdma:.1f}", f"{rdma / tcp:.2f}", f"{ours:.1f}",
        f"{ours / tcp:.2f}",
    )  # fmt: skip


def main() -> None:
    """Sweep without clearing, and compare with out/sweep.db of ``make sweep``.

    SystemExit if the stores differ in more than the clearing.
    """
    cleared, kept = OUT / "sweep.db", OUT / "not-cleared.db"
    subprocess.run((sys.executable, "-m", "nfsrdma_tools", "sweep", *SWEEP, "--output", kept),
                   check=True)  # fmt: skip
    with Store(cleared) as first, Store(kept) as second:
        studies = load(first), load(second)
    facts = [dict(study.conditions) for study in studies]
    args = [each.pop("lab kernel_args", "") for each in facts]
    if args != ["", "init_on_alloc=0"]:
        raise SystemExit(f"found arguments of the kernel {args}, expected none and init_on_alloc=0")
    different = sorted(name for name in facts[0] if facts[0][name] != facts[1].get(name))
    if different:
        raise SystemExit(f"the stores differ in {', '.join(different)}: make sweep, and again")
    conditions = facts[0]
    where = (
        f"`make bench NAME=clearing`, modelled card, Linux {conditions['kernel']}, "
        f"instruction clock, link {conditions['lab link']}, "
        f"QEMU {conditions['lab qemu'].split()[0]}, {studies[1].date}."
    )
    rows = [
        _COLUMNS,
        _row("cleared (`init_on_alloc=1`, Debian's default)", studies[0]),
        _row("not cleared (`init_on_alloc=0`)", studies[1]),
    ]
    markdown.write("clearing", [where, "", *markdown.table(rows)])
