# SPDX-License-Identifier: Apache-2.0
"""A data loader over mounts and without one.

It reads the row groups of a Parquet file in random order, some at a time, by fsspec: of a mount
over TCP, of mounts over RDMA, and through the user-level client, over one wire.  On the
instruction clock; client and server are one machine with one processor, whose CPU time is that of
both ends, of the modelled card and of the loader itself.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench import markdown
from bench.cells import MIB, OUT
from bench.figures import picture
from bench.solo import PREPARE, RDMA, TCP, mount, sh, unmount
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, panels
from testbed.labs import OURS, THEIRS, serve
from testbed.remote import on

LINK = "10gbit/20us"
# row groups of the file, rows of each, bytes of a number; row groups of a batch
GROUPS, ROWS, ITEM, BATCH = 256, 32768, 8, 16
# the column that is read, and one that is not
COLUMNS = ("sample", "other")
SERVED = Path("/export/bench-loader.parquet")
FOLDERS = {"mount": "/mnt/bench", "local": "/export"}
# of the file's end, which has the places of all row groups
FOOTER = 64 << 10
SITE = "/var/tmp/bench-site"  # noqa: S108 - in a node
PACKAGES = ("pyarrow", "numpy", "fsspec")


@dataclass(frozen=True)
class Way:
    """How the loader reaches the file, and the module that the server has loaded."""

    name: str
    module: str
    color: str
    kind: str
    """local, mount or library"""
    options: str = ""


WAYS = (
    # what the loader itself costs
    Way("a local file", THEIRS, canvas.transport_colour("other"), "local"),
    Way("mount, TCP", THEIRS, canvas.transport_colour("tcp"), "mount", TCP),
    Way("mount, RDMA", THEIRS, canvas.transport_colour("rdma"), "mount", RDMA),
    Way("mount, nfsrdma", OURS, canvas.transport_colour("nfsrdma"), "mount", RDMA),
    Way("libnfsrdma", THEIRS, canvas.transport_colour("rdma"), "library"),
    Way("libnfsrdma, server nfsrdma", OURS, canvas.transport_colour("nfsrdma"), "library"),
)
# seconds, CPU seconds, for each GiB that the loader gets
Result = tuple[float, float]


# --- in the node ---


@on("solo", timeout=3600)
def write() -> int:
    """Write random numbers, as they are in memory; the first of a row group is its number.

    Returns the bytes of the file.
    """
    sys.path.insert(0, SITE)
    import numpy
    import pyarrow
    from pyarrow import parquet

    random_numbers = numpy.random.default_rng(2003)
    schema = pyarrow.schema([(name, pyarrow.int64()) for name in COLUMNS])
    with parquet.ParquetWriter(SERVED, schema, compression="none", use_dictionary=False) as file:
        for number in range(GROUPS):
            columns = [random_numbers.integers(1 << 62, size=ROWS) for _ in COLUMNS]
            columns[0][0] = number
            file.write_table(pyarrow.table(columns, schema=schema))
    return SERVED.stat().st_size


class Epoch(NamedTuple):
    """Nanoseconds, CPU nanoseconds of the machine, and bytes of the column."""

    ns: int
    busy_ns: int
    size: int


@on("solo", timeout=3600)
def load(kind: str) -> Epoch:
    """Read the file in a way of this kind."""
    sys.path.insert(0, SITE)
    # before the time of an epoch begins
    import fsspec.parquet
    import pyarrow.parquet  # noqa: F401

    if kind != "library":
        return epoch(fsspec.filesystem("file"), f"{FOLDERS[kind]}/{SERVED.name}")
    from nfsrdma_tools.client.fsspec import NfsRdmaFileSystem

    files = NfsRdmaFileSystem("server", export="/export", depth=BATCH)
    # as a mount, the connection is there before
    files.info(str(SERVED))
    result = epoch(files, str(SERVED))
    files.close()
    return result


def epoch(files: Any, path: str) -> Epoch:
    """Read each row group once, in random order."""
    order = list(range(GROUPS))
    random.Random(2003).shuffle(order)  # noqa: S311 - no secret
    size = 0
    before, begin = cpu_time.snapshot(), time.perf_counter_ns()
    for at in range(0, GROUPS, BATCH):
        size += read(files, path, sorted(order[at : at + BATCH]))
    ns = time.perf_counter_ns() - begin
    return Epoch(ns, cpu_time.difference(cpu_time.snapshot(), before).busy_ns, size)


def read(files: Any, path: str, groups: list[int]) -> int:
    """Read a column of some row groups; returns its bytes.  ValueError if they are not those."""
    from fsspec.parquet import open_parquet_file
    from pyarrow import parquet

    wanted = {"columns": [COLUMNS[0]], "row_groups": groups}
    with open_parquet_file(
        path, fs=files, engine="pyarrow", max_gap=0, footer_sample_size=FOOTER, **wanted
    ) as file:
        column = parquet.ParquetFile(file).read_row_groups(groups, columns=[COLUMNS[0]])[0]
    rows = len(column) // len(groups)
    firsts = [column[number * rows].as_py() for number in range(len(groups))]
    if firsts != groups:
        raise ValueError(f"found row groups {firsts}, expected {groups}")
    return len(column) * ITEM


# --- all ways ---


def wheels(version: str) -> Path:
    """The folder of the packages for a version of Python, downloaded once."""
    folder = OUT / "loader" / version
    if not folder.exists():
        draft = folder.with_suffix(".draft")
        tags = [f"--platform=manylinux{tag}_x86_64" for tag in ("2014", "_2_28")]
        words = ("--quiet", "--only-binary", ":all:", "--python-version", version, "--no-deps")
        argv = (sys.executable, "-m", "pip", "download", *words, *tags, "--dest", str(draft))
        subprocess.run((*argv, *PACKAGES), check=True)
        draft.rename(folder)
    return folder


def install(lab: Lab) -> None:
    """Put the packages into the node."""
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    folder = wheels(lab.run("solo", "python3", "-c", version).stdout.strip())
    for file in folder.glob("*.whl"):
        script = (
            f"mkdir -p {SITE}; cat > {SITE}/new.whl; cd {SITE}; python3 -m zipfile -e new.whl ."
        )
        lab.run("solo", "sh", "-ec", script, stdin=file.read_bytes(), timeout=900)


def measure(lab: Lab, way: Way) -> Result:
    """An epoch, with an empty cache of the client."""
    if way.kind == "mount":
        mount(lab, way.options)
    result = load(lab, way.kind)
    if way.kind == "mount":
        unmount(lab)
    expected = GROUPS * ROWS * ITEM
    if result.size != expected:
        raise SystemExit(f"{way.name}: found {result.size} bytes, expected {expected}")
    gib = result.size / (1 << 30)
    return result.ns / 1e9 / gib, result.busy_ns / 1e9 / gib


def middle(results: list[Result], which: int) -> float:
    return statistics.median(result[which] for result in results)


def draw(results: dict[str, list[Result]], about: str) -> Drawing:
    """Time and CPU time of an epoch, a bar for each way."""
    figure, axes = panels(["time of an epoch", "CPU time, both ends"], room=False)
    figure.subplots_adjust(left=0.26, wspace=0.18)
    # both panels have one scale
    axes[0].invert_yaxis()
    for which, ax in enumerate(axes):
        values = [middle(results[way.name], which) for way in WAYS]
        places = range(len(WAYS))
        bars = ax.barh(places, values, color=[way.color for way in WAYS], height=0.62)
        for bar, way in zip(bars, WAYS, strict=True):
            bar.set_hatch("///" if way.kind == "library" else "")
            bar.set_edgecolor(canvas.PAPER)
        ax.bar_label(bars, fmt="%.2f", padding=3)
        ax.set_yticks(places, [way.name for way in WAYS])
        ax.tick_params(length=0, labelleft=not which)
        ax.grid(visible=False)
        ax.set_xlim(0, 1.18 * max(values))
        ax.set_xlabel("seconds for each GiB")
    title = "A data loader"
    local, tcp, *_, last = (middle(results[way.name], 0) for way in WAYS)
    share = (last - local) / (tcp - local)
    who = "libnfsrdma, server nfsrdma,"
    finding = f"{who} adds {share:.0%} of what TCP adds to the time for a local file"
    describe(figure, title, finding, about.replace("`", ""))
    return Drawing("loader", title, "", "", figure)


def table(results: dict[str, list[Result]]) -> list[str]:
    rows = [["way to the file", "seconds for each GiB", "CPU seconds for each GiB, both ends"]]
    rows += [
        [way.name, *(f"{middle(results[way.name], which):.2f}" for which in (0, 1))] for way in WAYS
    ]
    return markdown.table(rows)


def main(rounds: int = 3, kernel: str = KERNELS[0]) -> None:
    """Load a table over mounts and without one."""
    config = LabConfig(
        "bench-loader", clock="instructions", link=LINK, kernel=kernel, memory=4608, nic="card",
        extras=True,
    )  # fmt: skip
    results: dict[str, list[Result]] = {way.name: [] for way in WAYS}
    with Lab(config) as lab:
        sh(lab, PREPARE)
        install(lab)
        print(f"a file of {write(lab) / MIB:.0f} MiB", flush=True)
        # the first turn of each is for warming up
        for number in range(rounds + 1):
            for way in WAYS:
                serve(lab, "solo", way.module)
                result = measure(lab, way)
                print(f"turn {number} of {rounds}: {way.name}: {result}", flush=True)
                results[way.name] += [result] * (number > 0)
        lab.check()
        about = markdown.conditions(lab, "card", f'make bench NAME=loader ARGS="--rounds {rounds}"')
    print(about, *table(results), sep="\n")
    OUT.mkdir(exist_ok=True)
    picture(lambda: draw(results, about), OUT)
    image = "![Time and CPU time of a data loader, over mounts and without one](../img/loader.png)"
    markdown.update(kernel, "loader", [image, "", about, "", *table(results)])
