# SPDX-License-Identifier: Apache-2.0
"""Instructions of libnfsrdma alone for a read by reference.

Valgrind counts them on this host, while the library reads over the device that the unit tests stand
in: no kernel, no card, no model of one.  The program runs twice, with few and with many reads; the
difference belongs to the additional reads.
"""

from __future__ import annotations

import datetime
import platform
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from bench import markdown
from nfsrdma_tools.command import run

ROOT = Path(__file__).parents[2]
SHAPES = {1: "one at a time", 16: "16 by one doorbell"}
RUNS = (1600, 9600)
# the library's own objects call these in the place of the system's
STANDING_IN = ("-Dclock_gettime=fuzz_clock", "-Depoll_wait=fuzz_epoll", "-D_GNU_SOURCE")
LINKED = ("-ltirpc", "-lrdmacm", "-libverbs", "-lpthread", "-lm")
SYSTEM = "libc: `memcmp`, the clock"
# instructions of a read, by source file and function
Costs = dict[tuple[str, str], float]


def build(folder: Path) -> tuple[Path, set[str]]:
    """The program with the library inside, and the names of the library's source files."""
    library = ROOT / "lib"
    run("make", "-s", "-C", library)
    tirpc = run("pkg-config", "--cflags", "libtirpc").stdout.split()
    include = (*STANDING_IN, f"-I{library}", f"-I{library}/build", f"-I{ROOT}/kmod", *tirpc)
    sources = sorted(library.glob("*.c"))
    wire = sorted(library.glob("build/wire_*.o"))
    source = Path(__file__).with_name("library_count.c")
    path = folder / "library_count"
    run("gcc", "-std=gnu11", "-O2", "-g", "-w", "-Wl,--wrap=calloc", *include, source, *sources,
            library / "build" / "nfs3_xdr.o", *wire, "-o", path, *LINKED)  # fmt: skip
    return path, {each.name for each in library.glob("*.[ch]")}


def executed(path: Path, depth: int, count: int) -> Counter[tuple[str, str]]:
    """The instructions of a run by source file and function."""
    out = path.with_name("callgrind.out")
    run("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", path,
            str(depth), str(count), timeout=3600)  # fmt: skip
    counts: Counter[tuple[str, str]] = Counter()
    for line in run("callgrind_annotate", "--threshold=100", out).stdout.splitlines():
        match = re.match(r" *([\d,]+) \([^)]*\) +(\S+?):([\w.@]+)", line)
        if match:
            name = match[3].split(".")[0].split("@")[0]
            counts[Path(match[2]).name, name] += int(match[1].replace(",", ""))
    return counts


def measure() -> dict[int, Costs]:
    """The instructions of a read, by number of reads that leave together."""
    with tempfile.TemporaryDirectory() as name:
        path, own = build(Path(name))
        costs: dict[int, Costs] = {}
        for depth in SHAPES:
            few, many = (executed(path, depth, count) for count in RUNS)
            costs[depth] = {}
            for (file, function), count in many.items():
                # the device's copy of the data, and the rest of the program
                if file in ("library_count.c", "check_client.c") or "memset" in function:
                    continue
                each = (count - few[file, function]) / (RUNS[1] - RUNS[0])
                if each > 0.5:
                    costs[depth][file if file in own else SYSTEM, function] = each
        return costs


def tables(costs: dict[int, Costs]) -> list[str]:
    files = {file for each in costs.values() for file, _ in each}
    rows: list[list[str]] = [["instructions of a read", *SHAPES.values()]]
    for file in sorted(files, key=lambda each: (each == SYSTEM, each)):
        sums = (sum(count for (at, _), count in costs[depth].items() if at == file)
                for depth in SHAPES)  # fmt: skip
        label = file if file == SYSTEM else f"`lib/{file}`"
        rows.append([label, *(f"{each:,.0f}" for each in sums)])
    rows.append(["all", *(f"{sum(costs[depth].values()):,.0f}" for depth in SHAPES)])
    lines = markdown.table(rows)
    for depth, text in SHAPES.items():
        most = sorted(costs[depth].items(), key=lambda each: -each[1])[:12]
        names = ", ".join(f"`{function}` {count:.0f}" for (_, function), count in most)
        lines += ["", f"Largest functions, {text}: {names}."]
    return lines


def main() -> None:
    """Count the library's instructions; needs Valgrind, and no lab."""
    if not shutil.which("valgrind"):
        raise SystemExit("the count needs valgrind: apt install valgrind")
    lines = tables(measure())
    compiler = run("gcc", "--version").stdout.splitlines()[0]
    version = run("valgrind", "--version").stdout.strip()
    day = datetime.datetime.now(datetime.UTC).date()
    about = f"`make bench NAME=library`, {version}, {compiler}, {platform.machine()}, {day}."
    print(about, *lines, sep="\n")
    markdown.write("library count", [about, "", *lines])
