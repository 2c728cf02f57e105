# SPDX-License-Identifier: Apache-2.0
"""Instructions of a read by reference without a mount.

A plugin of QEMU counts each instruction by its address, in user space, too. The
reader runs twice, with few and with many reads; the difference belongs to the additional reads.
"""

from __future__ import annotations

import base64
import bisect
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench import markdown
from bench.client import reader as client_reader
from bench.instruction_count import CARD, COPY, Plugin, Symbols, plugged
from bench.library.measure import SHAPES as NAMES
from bench.solo import PREPARE, sh
from nfsrdma_tools.command import run
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import built_library
from testbed.labs import OURS, serve
from testbed.mounts import set_to

# reads that leave by one doorbell, and the most that one of them may execute, in thousands
SHAPES = {1: 6, 16: 4}
# the reads of the two runs: both read from each extent of the file; each run reads everything once
# before it reads it again
RUNS = (8000, 16000)
PASSES = 2
# the share of reads that may go by RPC, and of doorbells that may be for them and for credits
OTHERS = 0.01

LIBRARY, APPLICATION = "libnfsrdma", "the reader itself"
PROVIDER, VERBS, LIBC = "provider of the modelled card", "libibverbs", "libc and vDSO"
UVERBS, CALLS = "`ib_uverbs` and `ib_core`", "kernel, for system calls and `ib_uverbs`"
MODEL, MOVED = "model of the card, without the copy", "copy of the data"
OTHER = "other modules"
# the library, the way to the card, the model of the card
PARTS = (LIBRARY, APPLICATION, LIBC, VERBS, PROVIDER, UVERBS, CALLS, MODEL, MOVED, OTHER)
OF_CARD = (VERBS, PROVIDER, UVERBS, CALLS, MODEL, MOVED)
# thousands of instructions of a read, by part and function
Costs = dict[str, dict[str, float]]


class Mapping(NamedTuple):
    """Code in the reader's memory: addresses, position in the file, and the file."""

    start: int
    end: int
    offset: int
    file: str


def mappings(lines: Iterable[str]) -> list[Mapping]:
    """The mappings that the reader has printed."""
    maps = []
    for words in (line.split() for line in lines):
        start, end = (int(each, 16) for each in words[0].split("-"))
        maps.append(Mapping(start, end, int(words[2], 16), words[5] if len(words) > 5 else ""))
    return maps


class Image:
    """The functions of an ELF file of the node, by position in the file."""

    def __init__(self, lab: Lab, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "image"
            file.write_bytes(base64.b64decode(sh(lab, f"base64 {name}")))
            self._segments = list(self._code(run("readelf", "-lW", file).stdout))
            # those of a file whose local symbols are gone, too
            text = run("readelf", "-sW", file).stdout
        symbols = sorted(set(self._symbols(text)))
        self._starts = [start for start, *_ in symbols]
        self._found = symbols

    @staticmethod
    def _code(text: str) -> Iterator[tuple[int, int, int]]:
        """Position in the file, address and size of each segment that has code."""
        for words in (line.split() for line in text.splitlines()):
            if words[:1] == ["LOAD"] and "E" in words[6:-1]:
                yield int(words[1], 16), int(words[2], 16), int(words[4], 16)

    @staticmethod
    def _symbols(text: str) -> Iterator[tuple[int, int, str, str]]:
        """Start, size, name and source file of each function; global ones have no source file."""
        source = ""
        for words in (line.split() for line in text.splitlines()):
            if len(words) < 8:
                continue
            size, kind, bind, name = words[2], words[3], words[4], words[7]
            if kind == "FILE":
                source = name
            elif kind in ("FUNC", "IFUNC") and words[6] != "UND":
                local = source if bind == "LOCAL" else ""
                yield int(words[1], 16), int(size, 0), name.split(".")[0].split("@")[0], local

    def find(self, position: int) -> tuple[str, str]:
        """The function that has the byte at a position, and its source file."""
        for at, address, size in self._segments:
            if at <= position < at + size:
                # a counter has 16 bytes
                i = bisect.bisect_right(self._starts, position - at + address + 15) - 1
                if i >= 0:
                    return self._found[i][2:]
        return "?", ""


class Program:
    """The functions of the reader: those of the library, and its own."""

    def __init__(self, lab: Lab, maps: list[Mapping]) -> None:
        self._maps = maps
        own = {each.file for each in maps
               if each.file == client_reader.PATH or "nfsrdma_card" in each.file}  # fmt: skip
        verbs = {each.file for each in maps if "libibverbs.so" in each.file}
        self._images = {name: Image(lab, name) for name in own | verbs}
        library = run("nm", "--defined-only", built_library().with_name("libnfsrdma.a")).stdout
        self._library = {line.split()[-1] for line in library.splitlines() if " T " in line}

    def find(self, address: int) -> tuple[str, str]:
        """The part and the function of a counter of user space."""
        for each in self._maps:
            if each.start <= address < each.end:
                break
        else:
            return LIBC, "without a name"
        if each.file not in self._images:
            return LIBC, "without a name"
        name, source = self._images[each.file].find(address - each.start + each.offset)
        if each.file != client_reader.PATH:
            return PROVIDER if "nfsrdma_card" in each.file else VERBS, name
        ours = name in self._library if not source else source != client_reader.SOURCE.name
        return LIBRARY if ours else APPLICATION, name


def kernels(function: str, module: str) -> str:
    """The part that a function of the kernel belongs to."""
    if module == CARD:
        return MOVED if function == COPY else MODEL
    if module in ("ib_uverbs", "ib_core"):
        return UVERBS
    return OTHER if module else CALLS


def read(lab: Lab, depth: int, count: int) -> tuple[dict[str, int], list[Mapping]]:
    """Run the reader; SystemExit unless its reads went by reference and left together."""
    first, *rest = client_reader.run(lab, count, depth, connections=1, optimistic=True)
    counters: dict[str, int] = json.loads(first)
    least, most = (1 - OTHERS) * count, (1 + OTHERS) * count / depth
    if counters["by_reference"] < least or counters["doorbells"] > most:
        raise SystemExit(f"{count} reads, {depth} by a doorbell: found {counters}")
    return counters, mappings(rest)


def shape(lab: Lab, plugin: Plugin, depth: int) -> tuple[float, Costs]:
    """The guest's thousands of instructions of a read, and QEMU's by part and function."""
    few, many = RUNS
    read(lab, depth, few)
    known = [plugin.counts()]
    for count in RUNS:
        counters, maps = read(lab, depth, count)
        known.append(plugin.counts())
    symbols, reader = Symbols(lab), Program(lab, maps)
    costs: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    for address, count in known[2].items():
        start, middle = (each.get(address, 0) for each in known[:2])
        if address >> 63:
            name, module = symbols.find(address)
            part = kernels(name, module)
        else:
            part, name = reader.find(address)
        costs[part][name] += (count - middle) - (middle - start)
    reads = PASSES * (many - few) * 1e3
    return counters["ns"] / counters["reads"] / 1e3, {
        part: {name: count / reads for name, count in functions.items() if count}
        for part, functions in costs.items()
    }


def measure(kernel: str) -> tuple[str, dict[int, Costs]]:
    """The conditions, and the costs by number of reads that leave together."""
    config = LabConfig(
        "bench-client-count", clock="instructions", link="none", kernel=kernel, memory=4608,
        nic="card", extras=True,
    )  # fmt: skip
    with plugged(user=True) as plugin, Lab(config) as lab:
        # before the first program has the verbs: the counters have addresses of one process
        sh(lab, f"sysctl -qw kernel.randomize_va_space=0\n{PREPARE}")
        client_reader.install(lab)
        serve(lab, "solo", OURS)
        sets = {"server_personalities": "optimistic", **client_reader.OPTIMISTIC}
        for name, value in sets.items():
            set_to(lab, "solo", name, value)
        costs: dict[int, Costs] = {}
        for depth in SHAPES:
            clock, costs[depth] = shape(lab, plugin, depth)
            print(depth, f"guest's clock {clock:.2f}", flush=True)
            print(*details(costs[depth]), sep="\n", flush=True)
        lab.check()
        about = markdown.conditions(lab, "card", "make bench NAME=client-instructions")
    return about, costs


def all_of(costs: Costs, parts: Iterable[str] = PARTS) -> float:
    # a difference of two runs may be a little less than nothing
    return max(0.0, sum(sum(costs[part].values()) for part in parts))


def details(costs: Costs) -> Iterator[str]:
    """The largest functions of each part, in instructions, if one takes an instruction."""
    for part in PARTS:
        most = sorted(costs[part].items(), key=lambda each: -each[1])[:10]
        names = ", ".join(f"`{name}` {count * 1e3:.0f}" for name, count in most if count > 0.0005)
        if names:
            yield f"* {part}, {all_of(costs, [part]) * 1e3:,.0f}: {names}"


def tables(costs: dict[int, Costs]) -> list[str]:
    """The instructions of a read by part, a column for each shape."""
    rows: list[list[str]] = [["thousands of instructions, 4 KiB by reference",
                              *(NAMES[depth] for depth in SHAPES)]]  # fmt: skip
    own = [part for part in PARTS if part not in OF_CARD]
    for text, parts in (
        *((part, [part]) for part in PARTS),
        ("without the card, its model and the way to it", own),
        ("all", PARTS),
    ):
        rows.append([text, *(f"{all_of(costs[depth], parts):.2f}" for depth in SHAPES)])
    rows.append(["goal", *map(str, SHAPES.values())])
    lines = markdown.table(rows)
    for depth in SHAPES:
        lines += ["", f"Instructions of each part, {NAMES[depth]}:", "", *details(costs[depth])]
    return lines


def main(kernel: str = KERNELS[0]) -> None:
    """Count the instructions of a read by reference, by part and function."""
    about, costs = measure(kernel)
    lines = tables(costs)
    print("\n".join(lines))
    markdown.update(kernel, "client count", [about, "", *lines])
