# SPDX-License-Identifier: Apache-2.0
import json
import platform
from pathlib import Path

from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.sweep.conditions import conditions


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_facts_of_a_machine(tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\n")
    write(tmp_path / "proc/meminfo", "MemTotal:        3145728 kB\n")
    write(tmp_path / "sys/module/sunrpc/srcversion", "ABC123\n")
    write(tmp_path / "sys/module/rpcrdma/parameters/x", "1")
    write(tmp_path / "sys/module/nfsd/initstate", "live\n")
    write(tmp_path / "sys/class/infiniband/rxe0/parent", "v0\n")
    write(tmp_path / "sys/class/infiniband/rxe0/ports/1/rate", "2.5 Gb/sec\n")
    write(tmp_path / "sys/class/infiniband/card0/ports/1/rate", "100 Gb/sec\n")
    for name in (
        "rate",
        "latency",
        "message",
        "units",
        "cache_entries",
        "cache_miss",
        "moderation",
    ):
        write(tmp_path / f"sys/kernel/debug/nfsrdma_card/card0/{name}", "7\n")
    lab = {"clock": "instructions", "accel": "tcg", "shape": "solo", "link": "1gbit/100us"}
    write(tmp_path / "etc/nfsrdma-lab.json", json.dumps(lab))
    facts = conditions(Machine(tmp_path))
    assert facts["host"] == platform.node()
    assert facts["cpu model"] == "Some CPU"
    assert facts["memory"] == "3072 MiB"
    assert facts["module sunrpc"] == "ABC123"
    assert facts["module rpcrdma"] == "built in"
    assert facts["module nfsd"] == "loaded"
    assert facts["rdma rxe0"] == "on v0, 2.5 Gb/sec"
    assert facts["rdma card0"] == (
        "modelled card, rate 7, latency 7, message 7, units 7, cache_entries 7, cache_miss 7, "
        "moderation 7"
    )
    assert facts["lab clock"] == "instructions"
    assert "governor" not in facts


def test_a_machine_that_tells_nothing_still_has_a_kernel(tmp_path: Path) -> None:
    write(tmp_path / "etc/nfsrdma-lab.json", "not json")
    facts = conditions(Machine(tmp_path))
    assert facts["kernel"]
    assert all(isinstance(value, str) and value for value in facts.values())
