# SPDX-License-Identifier: Apache-2.0
"""Read throughput with and without clearing of new pages: ``make bench-clearing``.

Debian's kernels clear each page that they allocate (init_on_alloc); nfsd with this project's module
uses pages again, so that it needs fewer new ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import page
from nfsrdma_tools.report.study import Study, load
from nfsrdma_tools.sweep.store import Store

_COLUMNS = (
    "new pages",
    "TCP",
    "RDMA, kernel's module",
    "ratio",
    "RDMA, this project's module",
    "ratio",
)


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
        name,
        f"{tcp:.1f}",
        f"{rdma:.1f}",
        f"{rdma / tcp:.2f}",
        f"{ours:.1f}",
        f"{ours / tcp:.2f}",
    )


def main(cleared: str, kept: str) -> None:
    """Write the table from two stores; SystemExit if they differ in more than the clearing."""
    with Store(Path(cleared)) as one, Store(Path(kept)) as other:
        studies = load(one), load(other)
    facts = [dict(study.conditions) for study in studies]
    args = [each.pop("lab kernel_args", "") for each in facts]
    if args != ["", "init_on_alloc=0"]:
        raise SystemExit(f"found arguments of the kernel {args}, expected none and init_on_alloc=0")
    different = sorted(name for name in facts[0] if facts[0][name] != facts[1].get(name))
    if different:
        raise SystemExit(f"the stores differ in {', '.join(different)}: make sweep, and again")
    found = facts[0]
    where = (
        f"`make bench-clearing`, modelled card, Linux {found['kernel']}, instruction clock, link "
        f"{found['lab link']}, QEMU {found['lab qemu'].split()[0]}, {studies[1].date}."
    )
    rows = [
        _COLUMNS,
        _row("cleared (`init_on_alloc=1`, Debian's default)", studies[0]),
        _row("not cleared (`init_on_alloc=0`)", studies[1]),
    ]
    page.write("clearing", [where, "", *page.table(rows)])


if __name__ == "__main__":
    main(*sys.argv[1:])
