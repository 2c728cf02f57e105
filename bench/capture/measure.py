# SPDX-License-Identifier: Apache-2.0
"""The cost of a capture, on the instruction clock.

In one boot and in turns, it makes 4 KiB reads by O_DIRECT over the modelled card, with the probes
of ``nfsrdma capture`` attached and without.  Client and server are one machine here, so that a read
is four messages: both ends have the Call and the Reply.  The reader takes them out of the ring and
writes them between two turns, and its own CPU time is counted apart.

Two other tools have to agree: the kernel's own count of its BPF programs, and Valgrind, which
counts the instructions of the reader on this host, with the records of a turn.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import zlib

from bench import markdown
from bench.capture.reads import Costs, costs
from bench.solo import PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, serve

PAIRS, READS = 6, 400
PAGE = markdown.PAGE.with_name("cost-of-observation.md")
MODULES = {"kernel's": THEIRS, "nfsrdma": OURS}
HEADS = (
    "", "messages", "bytes in the ring", "a read without probes", "the probes", "more",
    "the programs, by the kernel's count", "their runs", "to write a message",
    "by Valgrind's count", "a read with its messages", "reads a second",
)  # fmt: skip
# the difference between two runs is that of some passes: imports and preparations are in both
PASSES = (1, 3)
REPLAY = """
import io, sys
from pathlib import Path
from nfsrdma_tools.capture.conversation import Conversations
from nfsrdma_tools.capture.files import Writer
from nfsrdma_tools.capture.messages import Assembler, part
from nfsrdma_tools.capture.ring import records
taken = Path(sys.argv[1]).read_bytes()
for _ in range(int(sys.argv[2])):
    conversations, assembler = Conversations(Writer(io.BytesIO(), "", "")), Assembler(0, False)
    for record in records(taken):
        for message in assembler.feed(part(record)):
            conversations.write(message)
print(conversations.written)
"""


def replayed(taken: bytes) -> float:
    """Thousands of instructions to write a message, on this host's processor, by Valgrind."""
    tool = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
    counts, messages = [], 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(taken)
        file.flush()
        for passes in PASSES:
            argv = (*tool, sys.executable, "-c", REPLAY, file.name, str(passes))
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            (count,) = re.findall(r"I +refs: +([0-9,]+)", done.stderr)
            counts.append(int(count.replace(",", "")))
            messages = int(done.stdout)
    return (counts[1] - counts[0]) / (PASSES[1] - PASSES[0]) / messages / 1e3


def row(name: str, result: Costs) -> list[str]:
    """The row of a module.  This CPU executes a thousand million instructions a second."""
    without = statistics.median(alone for alone, _ in result.pairs)
    more = statistics.median(during - alone for alone, during in result.pairs)
    programs, runs = result.programs
    whole = without + more + result.messages * result.written
    taken = zlib.decompress(result.sample)
    return [
        name, f"{result.messages:.1f}", f"{result.ring:,.0f}", f"{without:.1f}", f"{more:.1f}",
        f"{more / without:+.1%}", f"{programs:.1f}", f"{runs:.1f}", f"{result.written:.0f}",
        f"{replayed(taken):.0f}", f"{whole:,.0f}", f"{1e6 / whole:,.0f}",
    ]  # fmt: skip


def main(kernel: str = KERNELS[0], only: str = "") -> None:
    """Measure reads with a capture; ``only``: rpcrdma or nfsrdma."""
    rows: list[list[str]] = [list(HEADS)]
    config = LabConfig(
        "bench-capture", clock="instructions", link="none", kernel=kernel, extras=True, nic="card"
    )
    with Lab(config) as lab:
        about = markdown.conditions(
            lab, "card", f'make bench NAME=capture ARGS="--kernel {kernel}"'
        )
        sh(lab, PREPARE)
        for name, module in MODULES.items():
            if only and name != only:
                continue
            serve(lab, "solo", module)
            mount(lab, f"{RDMA},noac")
            rows.append(row(name, costs(lab, PAIRS, READS)))
            print(*rows[-1], flush=True)
            markdown.write(f"capture, Linux {kernel}", [about, "", *markdown.table(rows)], PAGE)
            unmount(lab)
        lab.check()
