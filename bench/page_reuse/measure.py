# SPDX-License-Identifier: Apache-2.0
"""Instructions that rpcrdma's server saves if threads of nfsd get their pages back.

Three forms of rpcrdma run in one lab: Debian's, the same source compiled here, and that with the
patch. The second shows that compiling it here makes no difference. QEMU counts instructions by
address; the guest's clock counts them by other means. Client and server share the machine and the
module; the patch changes the server only.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import sub
from pathlib import Path

from bench import markdown
from bench.instruction_count import plugged
from bench.instructions.measure import Costs, operation
from bench.solo import LOADS, PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.kernel_modules import XPRTRDMA, serve_rebuilt
from testbed.labs import THEIRS, serve

PROPOSAL = Path(__file__).parents[2] / "docs/dev/proposals/svcrdma-page-reuse"
SECTION = "page reuse"
DEBIAN, REBUILT, PATCHED = "Debian's", "rebuilt", "patched"
FORMS = (DEBIAN, REBUILT, PATCHED)
# operations of the two runs; the last load has Replies of one page, which nothing replaces
RUNS = {"sequential": (40, 200), "scattered": (400, 2400), "attributes": (400, 2400)}
# what clears a page, by processor
CLEARS = ("clear_page_erms", "clear_page_rep", "clear_page_orig")
RATIO = f"{PATCHED} : {REBUILT}"
HEADS = (
    "thousands of instructions", *FORMS, RATIO, f"clearing pages, {REBUILT}",
    f"clearing pages, {PATCHED}", f"{RATIO}, without clearing", f"guest's clock, {REBUILT}",
    f"guest's clock, {PATCHED}", f"{RATIO} by the clock",
)  # fmt: skip
# by load and form, for each round the guest's thousands of instructions, and QEMU's by function
Rounds = dict[tuple[str, str], list[tuple[float, Costs]]]


def carry(lab: Lab, form: str) -> None:
    """Have nfsd listen by a form of rpcrdma; clients must have unmounted."""
    if form == DEBIAN:
        sh(lab, "systemctl stop nfs-server; modprobe -r rpcrdma")
        serve(lab, "solo", THEIRS)
    else:
        serve_rebuilt(lab, "solo", PROPOSAL if form == PATCHED else None, XPRTRDMA)


def clearing(costs: Costs) -> float:
    return sum(costs.get((name, ""), 0.0) for name in CLEARS)


def median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.1f}"


def ratio(values: dict[str, list[float]]) -> str:
    """The patched form to the rebuilt one."""
    pairs = zip(values[PATCHED], values[REBUILT], strict=True)
    return markdown.ratio([patched / rebuilt for patched, rebuilt in pairs])


def table(rounds: Rounds) -> Iterator[str]:
    """A row for each load: medians of the rounds, and ratios within a round with their range."""
    yield from markdown.head(HEADS)
    for load in RUNS:
        counts = {form: [sum(costs.values()) for _, costs in rounds[load, form]] for form in FORMS}
        clears = {form: [clearing(costs) for _, costs in rounds[load, form]] for form in FORMS}
        clock = {form: [us for us, _ in rounds[load, form]] for form in FORMS}
        others = {form: list(map(sub, counts[form], clears[form])) for form in FORMS}
        yield markdown.row((
            LOADS[load][0], *(median(counts[form]) for form in FORMS), ratio(counts),
            median(clears[REBUILT]), median(clears[PATCHED]), ratio(others),
            median(clock[REBUILT]), median(clock[PATCHED]), ratio(clock),
        ))  # fmt: skip


def differences(rounds: Rounds, load: str) -> str:
    """The functions that the patch changes most, in thousands of instructions."""
    change: dict[str, float] = defaultdict(float)
    for form, sign in ((PATCHED, 1), (REBUILT, -1)):
        for _, costs in rounds[load, form]:
            for (name, _module), count in costs.items():
                change[name] += sign * count / len(rounds[load, form])
    largest = sorted(change.items(), key=lambda item: -abs(item[1]))[:10]
    return ", ".join(f"`{name}` {count:+,.1f}" for name, count in largest)


def main(rounds: int = 3, kernel: str = KERNELS[0]) -> None:
    """Count what reuse of nfsd's pages by the kernel's server saves, by a patch of it."""
    measured: Rounds = defaultdict(list)
    config = LabConfig(
        "bench-page-reuse", clock="instructions", link="none", kernel=kernel, memory=4608,
        nic="card", extras=True,
    )  # fmt: skip
    with plugged() as plugin, Lab(config) as lab:
        sh(lab, PREPARE)
        for number in range(rounds):
            for form in FORMS:
                carry(lab, form)
                mount(lab, f"{RDMA},noac")
                for load, runs in RUNS.items():
                    us, costs = operation(lab, plugin, load, runs)
                    measured[load, form].append((us, costs))
                    print(f"round {number}: {form}, {load}: {us:,.1f} by the clock, "
                          f"{sum(costs.values()):,.1f} by QEMU, of which clearing pages "
                          f"{clearing(costs):,.1f}", flush=True)  # fmt: skip
                unmount(lab)
        lab.check()
        command = f'make bench NAME=page-reuse ARGS="--kernel {kernel} --rounds {rounds}"'
        about = markdown.conditions(lab, "card", command)
    lines = [*table(measured), "", *(
        f"* {LOADS[load][0]}, patched less rebuilt: {differences(measured, load)}" for load in RUNS
    )]  # fmt: skip
    print("\n".join(lines))
    if kernel == KERNELS[0]:
        markdown.write(SECTION, [about, "", *lines], PROPOSAL / "README.md")
    else:
        print(f"not written, because the page has {KERNELS[0]} only. {about}")
