# SPDX-License-Identifier: Apache-2.0
"""Instructions of libnfsrdma alone for a read by reference: ``make bench-library``.

Valgrind counts them on this host, while the library reads over the device that the unit tests stand
in: no kernel, no card, no model of one.  The program runs twice, with few and with many reads; the
difference belongs to the additional reads.  With a commit, its library is counted, too.
"""

from __future__ import annotations

import datetime
import platform
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench import page
from bench.commits import ROOT, program, unpack

SHAPES = {1: "one at a time", 16: "16 by one doorbell"}
RUNS = (1600, 9600)
# the library's own objects call these in the place of the system's
STANDING_IN = ("-Dclock_gettime=fuzz_clock", "-Depoll_wait=fuzz_epoll", "-D_GNU_SOURCE")
LINKED = ("-ltirpc", "-lrdmacm", "-libverbs", "-lpthread")
SYSTEM = "libc: `memcmp`, the clock"
# instructions of a read, by source file and function
Costs = dict[tuple[str, str], float]


def build(tree: Path, folder: Path) -> tuple[Path, set[str]]:
    """The program with the library of a tree, and the names of the library's source files."""
    library = tree / "lib"
    program("make", "-s", "-C", library)
    tirpc = program("pkg-config", "--cflags", "libtirpc").split()
    include = (*STANDING_IN, f"-I{library}", f"-I{library}/build", f"-I{tree}/kmod", *tirpc)
    sources = sorted(library.glob("*.c"))
    wire = sorted(library.glob("build/wire_*.o"))
    # with the device of the same commit, which knows the library from the inside
    source = tree / "bench" / "library_count.c"
    path = folder / "library_count"
    program("gcc", "-std=gnu11", "-O2", "-g", "-w", "-Wl,--wrap=calloc", *include, source, *sources,
            library / "build" / "nfs3_xdr.o", *wire, "-o", path, *LINKED)  # fmt: skip
    return path, {each.name for each in library.glob("*.[ch]")}


def executed(path: Path, depth: int, count: int) -> Counter[tuple[str, str]]:
    """The instructions of a run by source file and function."""
    out = path.with_name("callgrind.out")
    program("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", path,
            str(depth), str(count))  # fmt: skip
    found: Counter[tuple[str, str]] = Counter()
    for line in program("callgrind_annotate", "--threshold=100", out).splitlines():
        match = re.match(r" *([\d,]+) \([^)]*\) +(\S+?):([\w.@]+)", line)
        if match:
            name = match[3].split(".")[0].split("@")[0]
            found[Path(match[2]).name, name] += int(match[1].replace(",", ""))
    return found


def measure(tree: Path) -> dict[int, Costs]:
    """The instructions of a read, by number of reads that leave together."""
    with tempfile.TemporaryDirectory() as name:
        path, own = build(tree, Path(name))
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


def trees(commit: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The library at a commit, and in the working tree."""
    if commit:
        unpack(commit, folder, "lib", "kmod/wire", "bench", "tests/wire")
        yield commit, folder
    yield "today", ROOT


def tables(found: dict[str, dict[int, Costs]]) -> list[str]:
    columns = [(name, depth) for depth in SHAPES for name in found]
    heads = [f"{SHAPES[depth]}, {name}" for name, depth in columns]
    files = {file for costs in found.values() for each in costs.values() for file, _ in each}
    rows: list[list[str]] = [["instructions of a read", *heads]]
    for file in sorted(files, key=lambda each: (each == SYSTEM, each)):
        sums = (sum(count for (at, _), count in found[name][depth].items() if at == file)
                for name, depth in columns)  # fmt: skip
        label = file if file == SYSTEM else f"`lib/{file}`"
        rows.append([label, *(f"{each:,.0f}" for each in sums)])
    totals = (sum(found[name][depth].values()) for name, depth in columns)
    rows.append(["all", *(f"{each:,.0f}" for each in totals)])
    lines = page.table(rows)
    for depth, text in SHAPES.items():
        most = sorted(found["today"][depth].items(), key=lambda each: -each[1])[:12]
        names = ", ".join(f"`{function}` {count:.0f}" for (_, function), count in most)
        lines += ["", f"Today's largest functions, {text}: {names}."]
    return lines


def main() -> None:
    commit = sys.argv[1]
    if not shutil.which("valgrind"):
        raise SystemExit("the count needs valgrind: apt install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(tree) for name, tree in trees(commit, Path(folder))}
    compiler = program("gcc", "--version").splitlines()[0]
    command = f"make bench-library COMMIT={commit}".removesuffix(" COMMIT=")
    day = datetime.datetime.now(datetime.UTC).date()
    version = program("valgrind", "--version").strip()
    about = f"`{command}`, {version}, {compiler}, {platform.machine()}, {day}."
    lines = tables(found)
    print(about, *lines, sep="\n")
    page.write("library count", [about, "", *lines])


if __name__ == "__main__":
    main()
