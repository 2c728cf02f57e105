# SPDX-License-Identifier: Apache-2.0
"""Part of test_trace_filters.py that runs in a client: two processes read, a trace counts one."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MOUNT, SIZE = Path("/mnt"), 65536
MINE, OTHERS = map(int, sys.argv[1:])
OPTIONS = f"vers=3,rsize={SIZE},wsize={SIZE},nolock"
# reads blocks with O_DIRECT once it gets a line
READER = """
import mmap, os, sys
room = mmap.mmap(-1, 65536)
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(int(sys.argv[2])):
    assert os.preadv(file, [room], turn * 65536) == 65536
print("done", flush=True)
"""


def mounted(options: str) -> None:
    argv = ("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", MOUNT)
    subprocess.run(argv, check=True)


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline()


def reader(blocks: int) -> "subprocess.Popen[str]":
    argv = (sys.executable, "-c", READER, str(MOUNT / "filtered"), str(blocks))
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
    assert answer(process) == "ready\n"
    return process


def traced(name: str, mine: "subprocess.Popen[str]", *words: str) -> list[dict[str, Any]]:
    """The rows of a trace while this process and another one read."""
    other = reader(OTHERS)
    argv = (
        "nfsrdma",
        "trace",
        name,
        "--interval",
        "1",
        "--mount",
        str(MOUNT),
        "--procedure",
        "READ",
        "-j",
    )
    trace = subprocess.Popen((*argv, *words), stdout=subprocess.PIPE, text=True)
    try:
        assert "missing" in answer(trace)
        for process in (other, mine):
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
            assert answer(process) == "done\n"
        return counted(trace, MINE if "--pid" in words else MINE + OTHERS)
    finally:
        trace.terminate()
        trace.wait()
        other.wait()
        mine.wait()


def counted(trace: "subprocess.Popen[str]", least: int) -> list[dict[str, Any]]:
    """All rows until three intervals in a row have none, and the rows count ``least`` RPCs.

    An RPC's end is counted later than its data arrives: by how much depends on the machine's load.
    """
    found: list[dict[str, Any]] = []
    empty = 0
    while empty < 60 and (empty < 3 or total(found) < least):
        rows = json.loads(answer(trace))["rows"]
        empty = 0 if rows else empty + 1
        found += rows
    return found


def total(rows: list[dict[str, Any]]) -> int:
    """RPCs by the rows of chunks or latency; the slowest RPCs have rows of their own."""
    return sum(row.get("rpcs", row.get("count", 0)) for row in rows if not row.get("slowest"))


def lines(*argv: str) -> list[str]:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> None:
    found: dict[str, object] = {}
    mounted(f"{OPTIONS},proto=rdma,port=20049")
    try:
        for name in ("chunks", "latency"):
            mine = reader(MINE)
            found[name] = traced(name, mine, "--pid", str(mine.pid))
        found["everybody"] = traced("chunks", reader(MINE))
    finally:
        subprocess.run(("umount", MOUNT), check=True)
    mounted(f"{OPTIONS},proto=tcp")
    try:
        one = reader(MINE)
        one.communicate("go\n")
        time.sleep(1)
        found["nfsiostat"] = [
            lines("nfsrdma", "trace", "nfsiostat", "--mount", str(MOUNT)),
            lines("nfsiostat", str(MOUNT)),
        ]
    finally:
        subprocess.run(("umount", MOUNT), check=True)
    print(json.dumps(found))


main()
