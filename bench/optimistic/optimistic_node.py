# SPDX-License-Identifier: Apache-2.0
"""Part of bench/optimistic that runs in the node: some cells, over mounts that exist.

Runs as ``python3 optimistic_node.py REQUEST`` with JSON.  ``samples`` is the number of samples that
divide the CPU time between the ends, or 0.  ``cells`` are the cells.  Their ``warm``, ``short``,
``long`` and ``then`` are lists of commands that run at once; each command prints JSON with ``ns``,
``bytes`` and, unless a cell has a ``record`` size, ``operations``.  ``drop``: files whose pages
leave the page cache before each run.  ``card``: settings of the server's card after the warm run.

Prints JSON: time and counts of an operation of each cell, as the difference of the long and the
short run.  The start of the readers is in both.  Without a short run, it is in the result.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.probes import cpu_layers

# samples per second: a prime, so that operations do not run in step with them
RATE = 3989
# of /proc/net/rpc/nfsd: the number of procedures precedes their counts
READ = 1 + 6
# a real card does this work itself: the modelled card's, or soft-RoCE's
DEVICE = (cpu_layers.CARD, cpu_layers.EMULATED, cpu_layers.NIC, cpu_layers.TCP_IP)
SIDES = ("client", "server", "neither")
ENDS = {"v0": "client", "v1": "server"}
DEBUG = Path("/sys/kernel/debug")
Commands = list[list[str]]
Cell = dict[str, Any]


def cards() -> Counter[str]:
    """The counters of both cards, by end."""
    counters: Counter[str] = Counter()
    for port in Path("/sys/class/infiniband").glob("*/ports/1"):
        end = ENDS[(port / "gid_attrs/ndevs/0").read_text().strip()]
        for file in (port / "hw_counters").glob("*"):
            if file.name != "lifespan":
                counters[f"{end} card {file.name}"] += int(file.read_text())
    return counters


def nfsd() -> Counter[str]:
    """nfsd's RPCs, its READs, and the time that its threads ran."""
    lines = (line.split() for line in Path("/proc/net/rpc/nfsd").read_text().splitlines())
    known = {words[0]: [int(float(word)) for word in words[1:]] for words in lines}
    counters = Counter({"nfsd rpcs": known["rpc"][0], "nfsd reads": known["proc3"][READ]})
    counters["nfsd ns"] = sum(
        int((task / "schedstat").read_text().split()[0]) for task in nfsd_threads()
    )
    return counters


@functools.cache
def nfsd_threads() -> list[Path]:
    """The folders of nfsd's threads, whose number does not change."""
    folders = []
    for task in Path("/proc").glob("[0-9]*"):
        # other processes end meanwhile
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text() == "nfsd\n":
                folders.append(task)
    return folders


def module() -> Counter[str]:
    """The counters of the module, of all its transports and connections."""
    counters: Counter[str] = Counter()
    for end in ("nfsrdma", "nfsrdma-server"):
        for file in (DEBUG / end).glob("[0-9]*/counters"):
            for name, value in (line.split() for line in file.read_text().splitlines()):
                if name.startswith(("optimistic", "grant")):
                    counters[name] += int(value)
    return counters


def state() -> Counter[str]:
    """All counters, in nanoseconds and numbers."""
    return cards() + nfsd() + module()


def set_card(values: dict[str, Any]) -> None:
    """Write the files of the server's card in debugfs."""
    for folder in Path("/sys/class/infiniband").glob("*"):
        end = ENDS[(folder / "ports/1/gid_attrs/ndevs/0").read_text().strip()]
        for name, value in values.items() if end == "server" else ():
            (DEBUG / "nfsrdma_card" / folder.name / name).write_text(str(value))


def drop(paths: list[str]) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run(cell: Cell, commands: Commands) -> Counter[str]:
    """Time and counts of all readers together."""
    drop(cell["drop"])
    before, since = state(), cpu_time.snapshot()
    readers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for argv in commands]
    printed = [reader.communicate()[0] for reader in readers]
    spent = cpu_time.difference(cpu_time.snapshot(), since)
    if any(reader.returncode for reader in readers):
        raise SystemExit(f"{commands}: a reader failed")
    counters = state()
    counters.subtract(before)
    results = [json.loads(text) for text in printed]
    counters["ns"] = max((each.pop("ns") for each in results), default=0)
    for each in results:
        counters.update(each)
    counters["busy"] = spent.busy_ns
    return counters


def operation(cell: Cell, short: Commands, long: Commands) -> dict[str, float]:
    """Time and counts of an operation."""
    few, many = run(cell, short), run(cell, long)
    many.subtract(few)
    # papers_reader prints bytes only
    operations = many.pop("operations", 0) or many["bytes"] / cell["record"]
    return {"operations": operations} | {
        name: count / operations for name, count in sorted(many.items())
    }


def measure(cell: Cell) -> dict[str, Any]:
    run(cell, cell["warm"])
    set_card(cell["card"])
    result: dict[str, Any] = operation(cell, cell["short"], cell["long"])
    if cell.get("then"):
        result["then"] = operation(cell, [], cell["then"])
    set_card(dict.fromkeys(cell["card"], 0))
    return result


def divided(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Nanoseconds of sampled time by side, the device's work apart, and by layer."""
    sides: Counter[str] = Counter()
    layers = {}
    for row in rows:
        if row["layer"] == "busy":
            sides["samples"] += row["samples"]
        elif row["layer"] not in (cpu_layers.TRACING, cpu_layers.IDLE):
            layers[row["layer"]] = row["ns"]
            if row["layer"] in DEVICE:
                sides["card"] += row["ns"]
            else:
                sides.update({side: row[f"{side}_ns"] for side in SIDES})
    return {"sides": dict.fromkeys(SIDES, 0) | sides, "layers": layers}


def divide(cells: list[Cell], samples: int) -> list[dict[str, Any]]:
    """Sample stacks during runs of each cell until there are enough samples."""
    # loading bcc takes longer than a cell without samples
    from nfsrdma_tools.probes.probe_sets import attached, probe_set

    cpu, results = probe_set("cpu"), []
    with attached(["cpu"], rate=RATE) as session:
        for cell in cells:
            run(cell, cell["long"])
            before, division = cpu.read(session), divided([])
            while division["sides"].get("samples", 0) < samples:
                run(cell, cell["long"])
                division = divided(cpu.records(cpu.difference(cpu.read(session), before), {}))
            results.append(division)
    return results


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    cells: list[Cell] = asked["cells"]
    results = [measure(cell) for cell in cells]
    if asked["samples"]:
        divides = divide(cells, asked["samples"])
        results = [result | more for result, more in zip(results, divides, strict=True)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
