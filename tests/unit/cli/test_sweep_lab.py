# SPDX-License-Identifier: Apache-2.0
"""What a sweep does otherwise on a lab's node."""

import json
from pathlib import Path

import pytest

from nfsrdma_tools.cli import sweep_lab
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.module import swap
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.runner import Options

PLAN = Plan("server:/export", transports=("tcp", "rdma", "nfsrdma"),
            axes=(("personality", ("read-write", "padded", "cached")),))  # fmt: skip
HOST = Options()
SYSTEMCTL = '#!/bin/sh\necho "$@" >> "$LOG"\n'


def node(root: Path, **facts: str) -> Path:
    (root / "etc").mkdir()
    (root / "etc/nfsrdma-lab.json").write_text(json.dumps(facts))
    return root


@pytest.mark.parametrize(("clock", "waits"), [("instructions", True), ("wall", False)])
def test_only_where_waiting_takes_no_time_a_reader_waits_for_a_pause(
    tmp_path: Path, clock: str, waits: bool
) -> None:
    options = sweep_lab.of_this_host(HOST, Machine(node(tmp_path, clock=clock, shape="pair")))
    assert (options.pause > 1) == waits
    assert options.modules == HOST.modules


def test_a_host_that_is_no_node_sweeps_as_hosts_do(tmp_path: Path) -> None:
    assert sweep_lab.of_this_host(HOST, Machine(tmp_path)) == HOST


class Node:
    """Modules and nfsd of a node, and the order of what happens to them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.accepted = folder / "accepted"
        self.loaded = "rdma"
        (folder / "systemctl").write_text(SYSTEMCTL)
        (folder / "systemctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("LOG", str(self.log))
        monkeypatch.setattr(sweep_lab, "_ACCEPTED", self.accepted)
        monkeypatch.setattr(sweep_lab, "_END_GRACE", folder / "none" / "grace")
        monkeypatch.setattr(sweep_lab, "owner", lambda: self.loaded)
        monkeypatch.setattr(swap, "is_ready", lambda name: name in ("tcp", self.loaded))
        monkeypatch.setattr(swap, "ready", self.ready)

    def ready(self, transport: str) -> None:
        with self.log.open("a") as log:
            print(f"load {transport}", file=log)
        if transport == "broken":
            raise UserError("it is in use")
        self.loaded = transport

    def events(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines


STOP, START = "stop nfs-server", "start nfs-server"


def test_nfsd_of_a_solo_node_is_stopped_while_modules_are_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Node(tmp_path, monkeypatch)
    options = sweep_lab.of_this_host(HOST, Machine(node(tmp_path, shape="solo")))
    with options.modules(PLAN) as load:
        load("nfsrdma")
        assert machine.events() == [STOP, "load nfsrdma", START]
        assert machine.accepted.read_text() == "padded,cached"
        load("nfsrdma")
        load("tcp")
        assert machine.events() == []
        with pytest.raises(UserError, match="in use"):
            load("broken")
        assert machine.events() == [STOP, "load broken", START]
    assert machine.events() == [STOP, "load rdma", START]
