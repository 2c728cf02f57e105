# SPDX-License-Identifier: Apache-2.0
"""Optimistic DAFS: optimistic.py's cells by libnfsrdma: ``make optimistic-user``.

What the papers measured in user space, after section 5.2 of the FAST paper: a 4 KiB read
(table 3), small files with hits in the client's cache (figure 6), two clients that stream
(figure 7).  One lab with the modelled card on the instruction clock, where a microsecond is a
thousand instructions.  Prints the tables, and writes out/optimistic-user.json.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from cards import install_provider
from carriers import OURS, serve
from client_library import place_program

from bench import node, page
from bench.cells import KIB, OUT, Found
from bench.optimistic import (
    BLOCKS,
    DATA,
    FILE,
    FILE_SIZE,
    HITS,
    NEAR,
    NONE,
    NUMBER,
    PARAMETERS,
    RECORD,
    SECOND,
    SERVERS,
    SETS,
)
from bench.solo import sh
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

WAYS = ("inline", "direct", "optimistic")
STREAMED = ("inline", "optimistic")
READER, STREAMER = (f"{node.FOLDER}/{name}" for name in ("optimistic_user", "library_reader"))
DEPTH = 8
# reads of a difference: the start of the programs does not count
SHORT, LONG = 300, 1800


def prepare(lab: Lab) -> None:
    """Put the files to read and the readers into the node; the server accepts optimistic reads."""
    sh(lab, f"mkdir -p {node.FOLDER}\n{SECOND}")
    sets = [f"/export/{name}:{least}:{most}" for name, (least, most) in SETS.items()]
    argv = ("python3", "-", f"/export/{FILE}", str(FILE_SIZE), str(NUMBER), *sets)
    lab.run("solo", *argv, stdin=DATA.encode(), timeout=1200)
    install_provider(lab, "solo")
    for source, path in (("optimistic_user_reader", READER), ("library_reader", STREAMER)):
        place_program(lab, "solo", node.HERE / f"{source}.c", path)
    # writeback would take time of the CPU
    sh(lab, "sync")
    serve(lab, "solo", OURS)
    node.set_parameters(lab, ("server_personalities=optimistic", *PARAMETERS))


def run(lab: Lab, *argv: object) -> Found:
    found: Found = json.loads(lab.run("solo", *map(str, argv), timeout=3600).stdout)
    return found


def difference(few: Found, many: Found) -> Found:
    """Microseconds, bytes and counts of an operation."""
    operations = many["operations"] - few["operations"]
    found = {name: (many[name] - few[name]) / operations for name in many if name != "ns"}
    return found | {"us": (many["ns"] - few["ns"]) / operations / 1e3}


def response(lab: Lab, way: str, memory: str) -> Found:
    """A read of 4 KiB, after all of the file was read."""

    def reads(count: int) -> Found:
        words = ("random", f"{SERVERS[0]}:/export", FILE, memory, RECORD, count, 0, way)
        return run(lab, READER, *words)

    return difference(reads(SHORT), reads(LONG))


def files(lab: Lab, way: str, name: str, hits: int) -> Found:
    """A transaction with a small file."""

    def transactions(count: int) -> Found:
        words = ("files", f"{SERVERS[0]}:/export", name, NUMBER, count, hits, 0, way)
        return run(lab, READER, *words)

    return difference(transactions(NUMBER), transactions(6 * NUMBER))


STREAMS = """
for server in $1; do
	$2 $server:/export $3 $4 $5 $6 0 $7 > /run/bench/stream.$server &
done
wait
cat /run/bench/stream.*
rm /run/bench/stream.*
"""


def streams(lab: Lab, way: str, block: int) -> Found:
    """Two processes that read the file from its begin, ``DEPTH`` blocks in flight each."""

    def total(blocks: int) -> Found:
        numbers = (block, blocks * block, DEPTH, int(way == "optimistic"))
        words = (" ".join(SERVERS), STREAMER, FILE, *map(str, numbers))
        text = lab.run("solo", "sh", "-ec", STREAMS, "sh", *words, timeout=3600).stdout
        rows = [json.loads(line) for line in text.splitlines()]
        if len(rows) != len(SERVERS):
            raise SystemExit(f"found results of {len(rows)} readers, expected {len(SERVERS)}")
        return {"ns": max(row["ns"] for row in rows), "bytes": sum(row["bytes"] for row in rows),
                "by_reference": sum(row["by_reference"] for row in rows)}  # fmt: skip

    few, many = total(128), total(640)
    size = many["bytes"] - few["bytes"]
    by_reference = (many["by_reference"] - few["by_reference"]) * block / size
    return {"mb_s": size / (many["ns"] - few["ns"]) * 1e3, "by_reference": by_reference}


def check(found: Found, way: str, what: str) -> Found:
    """SystemExit if optimistic reads went by RPC."""
    if way == "optimistic" and not found["by_reference"]:
        raise SystemExit(f"{what}: found no read by reference")
    return found


def cells(lab: Lab, link: str, way: str) -> Iterator[tuple[str, Found]]:
    """Table 3 and figure 6 over a wire."""
    lab.set_link(link)
    for memory in ("direct", "buffered"):
        yield f"response {link} {memory} {way}", response(lab, way, memory)
    for name, hits in itertools.product(SETS, HITS):
        yield f"files {link} {name} {hits} {way}", files(lab, way, name, hits)


def figure_7(lab: Lab, way: str) -> Iterator[tuple[str, Found]]:
    lab.set_link(NEAR)
    for block in BLOCKS:
        yield f"streams {block // KIB} {way}", streams(lab, way, block)


def measure(lab: Lab) -> dict[str, Found]:
    """All cells, by their names; the last word is the way."""
    found: dict[str, Found] = {}
    groups = [cells(lab, link, way) for link in (NONE, NEAR) for way in WAYS]
    groups += [figure_7(lab, way) for way in STREAMED]
    for name, one in itertools.chain.from_iterable(groups):
        found[name] = check(one, name.split()[-1], name)
        print(name, json.dumps(one), flush=True)
    return found


def tables(found: dict[str, Found]) -> list[str]:
    """Table 3, and the numbers of figures 6 and 7, for user-level clients."""

    def row(title: str, name: str) -> list[str]:
        return [title, *(f"{found[f'{name} {way}']['us']:.1f}" for way in WAYS)]

    rows: list[list[str]] = [["us, by libnfsrdma", *WAYS]]
    for link in (NONE, NEAR):
        for memory in ("direct", "buffered"):
            rows.append(row(f"4 KiB, {link}, {memory}", f"response {link} {memory}"))
        for name, hits in itertools.product(SETS, HITS):
            title = f"small files ({name}), {link}, {hits}% hits"
            rows.append(row(title, f"files {link} {name} {hits}"))
    speeds: list[list[str]] = [["MB/s of two streams", *STREAMED]]
    for block in BLOCKS:
        values = (found[f"streams {block // KIB} {way}"]["mb_s"] for way in STREAMED)
        speeds.append([f"{block // KIB} KiB", *(f"{each:.0f}" for each in values)])
    return [*page.table(rows), "", *page.table(speeds)]


def main(words: Sequence[str]) -> None:
    kernel = words[0]
    subprocess.run(("make", "-s", "-C", node.HERE.parent / "lib"), check=True)
    config = LabConfig(
        "optimistic-user", clock="instructions", link=NONE, kernel=kernel, memory=4608, nic="card",
        extras=True,
    )  # fmt: skip
    with Lab(config) as lab:
        prepare(lab)
        found = measure(lab)
        about = page.conditions(lab, "card", "make optimistic-user", link=False)
        lab.check()
    OUT.mkdir(exist_ok=True)
    (OUT / "optimistic-user.json").write_text(json.dumps({"about": about, "cells": found}))
    print(*tables(found), "", about, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
