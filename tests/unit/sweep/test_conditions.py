# SPDX-License-Identifier: Apache-2.0
import json
import platform
from pathlib import Path

from unit.files_made import write_all

from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.sweep.conditions import conditions


def test_facts_of_a_machine(tmp_path: Path) -> None:
    card = (
        *("rate", "latency", "message", "units", "cache_entries", "cache_miss", "moderation"),
        *("qp_cache_entries", "qp_cache_miss", "profile"),
    )
    lab = {"clock": "instructions", "accel": "tcg", "shape": "solo", "link": "1gbit/100us"}
    write_all(tmp_path, {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU\n",
        "proc/meminfo": "MemTotal:        3145728 kB\n", "etc/nfsrdma-lab.json": json.dumps(lab),
        "sys/module/sunrpc/srcversion": "ABC123\n", "sys/module/rpcrdma/parameters/x": "1",
        "sys/module/nfsd/initstate": "live\n", "sys/class/infiniband/rxe0/parent": "v0\n",
        "sys/class/infiniband/rxe0/ports/1/rate": "2.5 Gb/sec\n",
        "sys/class/infiniband/card0/ports/1/rate": "100 Gb/sec\n",
        **{f"sys/kernel/debug/nfsrdma_card/card0/{name}": "7\n" for name in card},
    })  # fmt: skip
    facts = conditions(Machine(tmp_path))
    expected = {
        "host": platform.node(), "cpu model": "Some CPU", "memory": "3072 MiB",
        "module sunrpc": "ABC123", "module rpcrdma": "built in", "module nfsd": "loaded",
        "rdma rxe0": "on v0, 2.5 Gb/sec", "lab clock": "instructions",
        "rdma card0": ", ".join(["modelled card", *(f"{name} 7" for name in card)]),
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
    assert "governor" not in facts


def test_a_machine_that_tells_nothing_still_has_a_kernel(tmp_path: Path) -> None:
    write_all(tmp_path, {"etc/nfsrdma-lab.json": "not json"})
    facts = conditions(Machine(tmp_path))
    assert facts["kernel"]
    assert all(isinstance(value, str) and value for value in facts.values())
