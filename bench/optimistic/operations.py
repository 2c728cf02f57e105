# SPDX-License-Identifier: Apache-2.0
"""Operations of readers over mounts in a node: time, counts, and CPU time by side and layer.

Those of an operation are the difference of a long and a short run: the start of the readers is in
both.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.cells import RATE
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.probes import cpu_layers
from testbed.node.files import drop_from_cache
from testbed.node.mounts import CLIENTS, SERVER, counters, mounted, parameters, personalities
from testbed.remote import on

__all__ = ["Command", "Division", "Measured", "Operation", "Request", "measured"]

# of /proc/net/rpc/nfsd: the number of procedures precedes their counts
READ = 1 + 6
# a real card does this work itself: the modelled card's, or soft-RoCE's
DEVICE = (cpu_layers.CARD, cpu_layers.EMULATED, cpu_layers.NIC, cpu_layers.TCP_IP)
SIDES = ("client", "server", "neither")
ENDS = {"v0": "client", "v1": "server"}
CARDS = Path("/sys/kernel/debug/nfsrdma_card")
Command = list[str]


@dataclass(frozen=True)
class Request:
    """The commands of a cell.

    Those of a list run at once.  Each prints JSON with ``ns``, ``bytes`` and, unless the cell has a
    ``record`` size, ``operations``.
    """

    long: list[Command]
    short: list[Command] = field(default_factory=list)
    """Without them, the start of the readers is in the result."""
    warm: list[Command] = field(default_factory=list)
    then: list[Command] = field(default_factory=list)
    drop: list[Path] = field(default_factory=list)
    """Files whose pages leave the page cache before each run."""
    card: dict[str, int | str] = field(default_factory=dict)
    """Settings of the server's card after the warm run."""
    record: int = 0


class Operation(NamedTuple):
    """The number of operations, and nanoseconds and counts of one by name."""

    operations: float
    counts: dict[str, float]


class Division(NamedTuple):
    """Nanoseconds of sampled time by side, the device's work apart, and by layer."""

    sides: dict[str, int]
    layers: dict[str, int]


class Measured(NamedTuple):
    """A cell; ``then`` is the operation of its last commands, if it has some."""

    operation: Operation
    then: Operation | None
    division: Division | None


@on("solo", timeout=7200)
def measured(
    mounts: list[tuple[str, Path]],
    options: str,
    sets: dict[str, str],
    requests: list[Request],
    samples: int,
) -> list[Measured]:
    """Mount servers with parameters of the module, and measure cells.

    All connections must have the personality.  ``samples`` is the number of samples that divide the
    CPU time of each cell between the ends; 0: it is not divided.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(parameters(**sets))
        for server, folder in mounts:
            stack.enter_context(mounted(options, folder, f"{server}:/export"))
        assert personalities() == {sets["personality"]}
        results = [measure(request) for request in requests]
        divisions = divide(requests, samples) if samples else [None] * len(requests)
    return [Measured(*result, each) for result, each in zip(results, divisions, strict=True)]


def cards() -> Counter[str]:
    """The counters of both cards, by end."""
    sums: Counter[str] = Counter()
    for port in Path("/sys/class/infiniband").glob("*/ports/1"):
        end = ENDS[(port / "gid_attrs/ndevs/0").read_text().strip()]
        for file in (port / "hw_counters").glob("*"):
            if file.name != "lifespan":
                sums[f"{end} card {file.name}"] += int(file.read_text())
    return sums


def nfsd() -> Counter[str]:
    """nfsd's RPCs, its READs, and the time that its threads ran."""
    lines = (line.split() for line in Path("/proc/net/rpc/nfsd").read_text().splitlines())
    known = {words[0]: [int(float(word)) for word in words[1:]] for words in lines}
    sums = Counter({"nfsd rpcs": known["rpc"][0], "nfsd reads": known["proc3"][READ]})
    sums["nfsd ns"] = sum(
        int((task / "schedstat").read_text().split()[0]) for task in nfsd_threads()
    )
    return sums


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


def state() -> Counter[str]:
    """All counters of devices, nfsd and the module, in nanoseconds and numbers."""
    ours = Counter(counters(CLIENTS)) + Counter(counters(SERVER))
    names = [name for name in ours if name.startswith(("optimistic", "grant"))]
    return cards() + nfsd() + Counter({name: ours[name] for name in names})


def set_card(values: dict[str, int | str]) -> None:
    """Write the files of the server's card in debugfs."""
    for folder in Path("/sys/class/infiniband").glob("*"):
        end = ENDS[(folder / "ports/1/gid_attrs/ndevs/0").read_text().strip()]
        for name, value in values.items() if end == "server" else ():
            (CARDS / folder.name / name).write_text(str(value))


def run(request: Request, commands: list[Command]) -> Counter[str]:
    """Time and counts of all readers together."""
    for path in request.drop:
        drop_from_cache(path)
    before, since = state(), cpu_time.snapshot()
    readers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for argv in commands]
    printed = [reader.communicate()[0] for reader in readers]
    spent = cpu_time.difference(cpu_time.snapshot(), since)
    if any(reader.returncode for reader in readers):
        raise SystemExit(f"{commands}: a reader failed")
    sums = state()
    sums.subtract(before)
    results = [json.loads(text) for text in printed]
    sums["ns"] = max((each.pop("ns") for each in results), default=0)
    for each in results:
        sums.update(each)
    sums["busy"] = spent.busy_ns
    return sums


def operation(request: Request, short: list[Command], long: list[Command]) -> Operation:
    few, many = run(request, short), run(request, long)
    many.subtract(few)
    # papers_reader prints bytes only
    operations = many.pop("operations", 0) or many["bytes"] / request.record
    return Operation(operations, {name: n / operations for name, n in sorted(many.items())})


def measure(request: Request) -> tuple[Operation, Operation | None]:
    run(request, request.warm)
    set_card(request.card)
    result = operation(request, request.short, request.long)
    then = operation(request, [], request.then) if request.then else None
    set_card(dict.fromkeys(request.card, 0))
    return result, then


def divided(rows: list[dict[str, Any]]) -> Division:
    """The sums of the rows of the probe set cpu."""
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
    return Division(dict.fromkeys(SIDES, 0) | sides, layers)


def divide(requests: list[Request], samples: int) -> list[Division]:
    """Sample stacks during runs of each cell until there are enough samples."""
    # loading bcc takes longer than a cell without samples
    from nfsrdma_tools.probes.probe_sets import attached, probe_set

    cpu, results = probe_set("cpu"), []
    with attached(["cpu"], rate=RATE) as session:
        for request in requests:
            run(request, request.long)
            before, division = cpu.read(session), divided([])
            while division.sides.get("samples", 0) < samples:
                run(request, request.long)
                division = divided(cpu.records(cpu.difference(cpu.read(session), before), {}))
            results.append(division)
    return results
