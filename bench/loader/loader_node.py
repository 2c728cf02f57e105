# SPDX-License-Identifier: Apache-2.0
"""Part of loader.py that runs in the node: an epoch of a data loader.

Runs as ``python3 loader_node.py REQUEST`` with JSON, and prints JSON.  With ``make`` it writes the
file; else it reads the file's row groups in random order by fsspec, and compares what it read.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy
import pyarrow
from fsspec.parquet import open_parquet_file
from pyarrow import parquet

from nfsrdma_tools.client.fsspec import NfsRdmaFileSystem
from nfsrdma_tools.host import cpu_time

# the column that is read, and one that is not
COLUMNS = ("sample", "other")
SERVED = Path("/export/bench-loader.parquet")
# bytes of a number
ITEM = 8
# of the file's end, which has the places of all row groups
FOOTER = 64 << 10


def write(groups: int, rows: int) -> None:
    """Random numbers, as they are in memory; the first of a row group is its number."""
    random_numbers = numpy.random.default_rng(2003)
    schema = pyarrow.schema([(name, pyarrow.int64()) for name in COLUMNS])
    with parquet.ParquetWriter(SERVED, schema, compression="none", use_dictionary=False) as file:
        for number in range(groups):
            columns = [random_numbers.integers(1 << 62, size=rows) for _ in COLUMNS]
            columns[0][0] = number
            file.write_table(pyarrow.table(columns, schema=schema))


def epoch(files: Any, path: str, groups: int, batch: int) -> dict[str, float]:
    """Read each row group once; nanoseconds, CPU time of the machine and bytes."""
    order = list(range(groups))
    random.Random(2003).shuffle(order)  # noqa: S311 - no secret
    size = 0
    before, begin = cpu_time.snapshot(), time.perf_counter_ns()
    for at in range(0, groups, batch):
        size += read(files, path, sorted(order[at : at + batch]))
    ns = time.perf_counter_ns() - begin
    spent = cpu_time.difference(cpu_time.snapshot(), before)
    return {"ns": ns, "busy_ns": spent.busy_ns, "bytes": size}


def read(files: Any, path: str, groups: list[int]) -> int:
    """Read a column of some row groups; returns its bytes.  ValueError if they are not those."""
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


def main() -> None:
    asked = json.loads(sys.argv[1])
    if asked["what"] == "make":
        write(asked["groups"], asked["rows"])
        result: dict[str, float] = {"bytes": SERVED.stat().st_size}
    elif asked["what"] == "library":
        files = NfsRdmaFileSystem("server", export="/export", depth=asked["batch"])
        # as a mount, the connection is there before
        begin = time.perf_counter_ns()
        files.info(str(SERVED))
        connected = time.perf_counter_ns() - begin
        result = epoch(files, str(SERVED), asked["groups"], asked["batch"])
        result["connect_ns"] = connected
        files.close()
    else:
        folder = {"mount": "/mnt/bench", "local": "/export"}[asked["what"]]
        path = f"{folder}/{SERVED.name}"
        result = epoch(fsspec.filesystem("file"), path, asked["groups"], asked["batch"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
