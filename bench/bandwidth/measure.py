# SPDX-License-Identifier: Apache-2.0
"""How much of the wire NFS reads get, with our module and with the kernel's.

One kernel is client and server, its clock goes a nanosecond per instruction, so bytes per second
are those of a CPU of 1 GHz.  Without a limit of the link 1 MiB reads stand beside perftest's
ib_read_bw of 1 MiB messages with events; on a wire of 1 Gb/s and 100 us stand reads of 32 KiB
with one of them ahead.
"""

from __future__ import annotations

import json
import re
import statistics

from bench.loads import measured
from bench.solo import MOUNT, PREPARE, sh
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, serve

COUNT = 96
# in MB
MIB = 1.048576
PERFTEST = """
{program} -s 1048576 -n {count} -F -R -p 18600 >/run/perftest 2>&1 &
until rdma resource show cm_id | grep -q :18600; do sleep 0.1; done
{program} -s 1048576 -n {count} -F -R -p 18600 server
wait
"""
# an NFS read is an RDMA Write of the server's; perftest waits for no event there
PROGRAMS = ("ib_read_bw -e", "ib_write_bw")
# size, iterations, peak and average rate in MiB/s
ROW = re.compile(r"^ *1048576 +\d+ +[\d.]+ +([\d.]+)", re.MULTILINE)
STORE = "/root/wire.db"


def perftest(lab: Lab, program: str) -> float:
    """MB/s of RDMA operations of 1 MiB, and nothing else."""
    output = sh(lab, PERFTEST.format(program=program, count=COUNT))
    match = ROW.search(output)
    if not match:
        raise SystemExit(f"{program} printed no rate: {output}")
    return float(match[1]) * MIB


def reads(lab: Lab) -> float:
    """MB/s of 1 MiB O_DIRECT reads of one process, one after the other."""
    sh(lab, f"mount -t nfs -o {MOUNT} server:/export /mnt/bench")
    results = measured(lab, {"sequential": COUNT})
    sh(lab, "umount /mnt/bench")
    return results["sequential"]["per_second"] * MIB


def ahead(lab: Lab, which: str) -> str:
    """Sequential reads through the cache, rsize 32 KiB, one ahead: what a sweep's trials found."""
    transport = "nfsrdma" if which == OURS else "rdma"
    words = (
        "--vers=3", "--transport", transport, "--rsize", "32k", "--read-ahead", "1", "--runs",
        "3", "--exhaustive",
    )  # fmt: skip
    argv = ("nfsrdma", "sweep", "server:/export", *words, "--no-probes", "--output", STORE)
    lab.run("solo", "rm", "-f", STORE)
    lab.run("solo", *argv, timeout=3600)
    exported = lab.run("solo", "nfsrdma", "results", "export", STORE, "--format", "json").stdout
    trials = json.loads(exported)["trials"]
    return ", ".join(
        f"{trial['throughput']:.1f} MB/s ({trial['cpu_share']:.0%} CPU, {trial['rtt_ms']:.2f} ms)"
        for trial in trials
    )


def main(rounds: int = 2, kernel: str = KERNELS[0]) -> None:
    """Measure messages of perftest, and reads with both modules."""
    config = LabConfig(
        "bench", clock="instructions", link="none", kernel=kernel, memory=4608, extras=True
    )
    with Lab(config) as lab:
        sh(lab, PREPARE)
        print("MB/s on an instruction clock; no limit of the link, 1 MiB", flush=True)
        rates: dict[str, list[float]] = {name: [] for name in (*PROGRAMS, THEIRS, OURS)}
        for _ in range(rounds):
            for program in PROGRAMS:
                rates[program].append(perftest(lab, program))
            for which in (THEIRS, OURS):
                serve(lab, "solo", which)
                rates[which].append(reads(lab))
        bare = statistics.median(rates[PROGRAMS[0]])
        for name, values in rates.items():
            middle = statistics.median(values)
            print(f"{name:20}{middle:8.1f}  {middle / bare:5.1%}  {values}", flush=True)
        lab.set_link("1gbit/100us")
        print("1 Gb/s, 100 us, rsize 32 KiB, one ahead", flush=True)
        for which in (THEIRS, OURS):
            serve(lab, "solo", which)
            print(f"{which:20}  {ahead(lab, which)}", flush=True)
        lab.check()
