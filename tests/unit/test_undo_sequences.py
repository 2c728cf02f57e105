# SPDX-License-Identifier: Apache-2.0
"""Random sequences: a change, its failure or kill at any effect, changes of others, the undo.

After the undo, the machine is as before the change, with the changes of others; a second undo
changes nothing.  UNDO_SEQUENCES is the number of sequences of each command.
"""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from unit.machine_stand_in import BROKEN, Server, Steps, in_child, patch_files

from nfsrdma_tools import etab, undo
from nfsrdma_tools.host.nfsd import configuration, exports, nfsctl, serving
from nfsrdma_tools.host.nfsd.configuration import Requested
from nfsrdma_tools.host.nfsd.exports import Export

COUNT = int(os.environ.get("UNDO_SEQUENCES", "25"))
seeds = pytest.mark.parametrize("seed", range(COUNT))


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path / "lib"))
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    counted = Steps()
    patch_files(counted, monkeypatch)
    return counted


@pytest.fixture
def server(tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> Server:
    machine = Server(tmp_path, steps)
    machine.patch(monkeypatch, etab, undo, serving)
    folder, nfsd = tmp_path / "exports.d", tmp_path / "nfsd"
    for module in (etab, serving, exports):
        monkeypatch.setattr(module, "EXPORTS_D", folder)
    monkeypatch.setattr(etab, "ETAB", tmp_path / "etab")
    monkeypatch.setattr(etab, "EXPORTS", tmp_path / "exports")
    monkeypatch.setattr(serving, "CONF", tmp_path / "conf.d/nfsrdma.conf")
    for name in ("listeners", "versions", "threads"):
        monkeypatch.setattr(nfsctl, name, partial(getattr(nfsctl, name), nfsd))

    def listen(transport: str, port: int) -> None:
        machine.put("nfsd/portlist", machine.text("nfsd/portlist") + f"{transport} {port}\n")

    monkeypatch.setattr(nfsctl, "listen", listen)
    requested = lambda: Requested(20049 if serving.CONF.exists() else 0)  # noqa: E731
    monkeypatch.setattr(configuration, "requested", requested)
    monkeypatch.setattr(serving, "_is_disabled", lambda _: False)
    for name in ("a", "b", "other"):
        (tmp_path / name).mkdir()
    return machine


def enable(machine: Server, name: str, *clients: str) -> None:
    export = Export(machine.root / name, clients)
    with undo.journal() as changes:
        serving.enable(export, changes)
        changes.keep()


def disable(machine: Server, name: str) -> None:
    for failure in undo.recover():
        raise AssertionError(failure)
    serving.disable(str(machine.root / name))


AGENT = "rw,sync,no_root_squash,secure"


def test_an_export_that_no_file_has_survives_enable_and_disable(server: Server) -> None:
    server.start(active=True, enabled=True)
    server.exportfs(["-i", "-o", AGENT, "10.0.0.9:/ha/data"])
    before = server.state()
    enable(server, "a", "10.0.0.0/24", "host")
    assert len(server.table()) == 3
    enable(server, "a", "host")
    assert set(server.table()) == {"10.0.0.9:/ha/data", f"host:{server.root}/a"}
    disable(server, "a")
    after = server.state()
    assert after["etab"] == before["etab"]


def others(machine: Server, dice: random.Random) -> None:
    """Somebody else changes exports; the files and etab agree or not."""
    what = dice.choice(["by hand", "file", "unexport", "nothing"])
    client = f"10.0.1.{dice.randrange(4)}"
    if what == "by hand":
        machine.exportfs(["-i", "-o", AGENT, f"{client}:/ha/{dice.randrange(3)}"])
    elif what == "file":
        line = f"{machine.root}/other {client}(ro)\n"
        machine.put("exports", machine.text("exports") + line)
        if machine.unit["active"]:
            machine.exportfs([f"{client}:{machine.root}/other"])
    elif what == "unexport" and (rows := [k for k in machine.table() if "/ha/" in k]):
        machine.exportfs(["-u", dice.choice(rows)])


@seeds
def test_the_undo_of_server_keeps_what_others_export(
    server: Server, steps: Steps, seed: int
) -> None:
    dice = random.Random(f"server {seed}")  # noqa: S311
    server.start(active=dice.random() < 0.7, enabled=dice.random() < 0.7)
    others(server, dice)
    kept = {name: server.unit[name] for name in ("active", "enabled")}
    for _ in range(dice.randint(1, 3)):
        verb = dice.choice(["enable", "enable", "disable"])
        name = dice.choice("ab")
        server.fails = {dice.choice(["exportfs -i", "systemctl start", "systemctl enable"])} \
            if dice.random() < 0.3 else set()  # fmt: skip
        clients = dice.sample(["host", "10.0.0.0/24", "*"], dice.randint(1, 2))
        action = partial(enable, server, name, *clients) if verb == "enable" else \
            partial(disable, server, name)  # fmt: skip
        table = foreign_only(server)
        status = in_child(action, steps, dice.choice([0, dice.randint(1, 60)]))
        assert status != BROKEN, (seed, verb)
        server.fails = set()
        assert not undo.recover(), seed
        assert foreign_only(server) == table, (seed, verb, name)
        others(server, dice)
    table, files = foreign_only(server), server.text("exports")
    for name in "ab":
        for _ in range(2):
            # a second undo has nothing to do
            if in_child(partial(disable, server, name), steps) == BROKEN:
                pytest.fail(str(seed))
            state = server.state()
    after = server.state()
    assert after == state
    assert foreign_only(server) == table, seed
    assert not [key for key in server.table() if key.endswith(("/a", "/b"))], (seed, after)
    assert (after["files"], after["exports"]) == ({}, files), seed
    assert {name: server.unit[name] for name in kept} == kept, seed


def foreign_only(machine: Server) -> dict[str, str]:
    return {k: v for k, v in machine.table().items() if "/ha/" in k}
