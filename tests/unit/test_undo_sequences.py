# SPDX-License-Identifier: Apache-2.0
"""Random sequences: a change, its failure or kill at any effect, changes of others, the undo.

After the undo, the machine is as before the change, with the changes of others; a second undo
changes nothing.  UNDO_SEQUENCES is the number of sequences of each command.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from unit.machine_stand_in import (
    BROKEN,
    KILLED,
    REFUSED,
    Client,
    Server,
    Steps,
    in_child,
    patch_files,
)
from unit.package_stand_in import ARCHIVE, Packages, Said, closure

from nfsrdma_tools import etab, undo
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs import mountinfo, mounting, mounts, readahead
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfsd import configuration, exports, nfsctl, serving
from nfsrdma_tools.host.nfsd.configuration import Requested
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.host.tune import definition, tuning
from nfsrdma_tools.host.tune.tuning import TuneRequest
from nfsrdma_tools.identity import MountIdentity

COUNT = int(os.environ.get("UNDO_SEQUENCES", "25"))
# with those that failed once
seeds = pytest.mark.parametrize("seed", sorted({*range(COUNT), 44, 158}))


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
    monkeypatch.setattr(serving, "_require_server", lambda: None)
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


# what exportfs refuses is our own export, not those of others
OURS = "rw,sync,root_squash"
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
        refusals = [f"exportfs -i -o {OURS}", "systemctl start", "systemctl enable"]
        server.fails = {dice.choice(refusals)} if dice.random() < 0.3 else set()
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


DATA = "/mnt/data"
FSTAB = f"""\
/dev/vda / ext4 rw 0 0
server:/export {DATA} nfs4 vers=4.2,proto=rdma,rsize=65536,hard 0 0
"""


@pytest.fixture
def client(tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> Client:
    machine = Client(tmp_path, steps)
    machine.patch(monkeypatch, undo, tuning, definition, readahead, mounting)
    monkeypatch.setattr(tuning, "SLASH", tmp_path)
    monkeypatch.setattr(definition, "SYSTEMD", tmp_path)
    monkeypatch.setattr(mounting, "_require_root", lambda _: None)
    monkeypatch.setattr(undo, "_BDI", tmp_path / "bdi")
    bdi = tmp_path / "bdi"
    monkeypatch.setattr(readahead, "path_of", lambda device: bdi / device / "read_ahead_kb")
    for function in (readahead.get_kb, readahead.set_kb):
        monkeypatch.setattr(function, "__defaults__", (bdi,))
    entries = partial(mountinfo.read, tmp_path / "mountinfo")
    monkeypatch.setattr(mountinfo, "read", lambda *_: entries())

    def mounts_on(directory: str) -> list[MountIdentity]:
        return [MountIdentity(line, int(line.split()[0])) for line in machine.lines(directory)]

    def find(directory: Path) -> Mount | None:
        found = [e for e in mountinfo.read() if e.directory == directory and e.is_nfs]
        return Mount.of(found[-1], "rpcrdma") if found else None

    for module in (undo, tuning):
        monkeypatch.setattr(module, "mounts_on", mounts_on)
    monkeypatch.setattr(mounts, "find", find)
    monkeypatch.setattr(mounts, "mounts", list)
    return machine


def apply_tuning(machine: Client, rsize: int | None, kb: int | None, remount: bool) -> None:
    request = TuneRequest(Path(DATA), rsize=rsize, read_ahead_kb=kb)
    tuning.apply(request, machine.root, remount=remount)


def others_of_client(machine: Client, dice: random.Random) -> None:
    """Somebody else changes fstab, or mounts and unmounts something else."""
    number = dice.randrange(100)
    what = dice.choice(["fstab", "fstab", "mount", "umount"])
    if what == "fstab":
        line = f"server:/{number} /mnt/{number} nfs ro 0 0\n"
        machine.put("etc/fstab", machine.text("etc/fstab") + line)
    elif what == "mount" and not machine.lines("/mnt/other"):
        machine.mount(["-t", "nfs4", "-o", "ro", "--", "server:/other", "/mnt/other"])
    elif machine.lines("/mnt/other"):
        machine.umount_nfs(["/mnt/other"])


def with_changes(
    machine: Client, before: dict[str, Any], change: Callable[[], None]
) -> dict[str, Any]:
    """The expected state: ``before``, with what ``change`` does to fstab and to other mounts."""
    old = machine.text("etc/fstab")
    change()
    added = machine.text("etc/fstab").removeprefix(old)
    files = {**before["files"], "etc/fstab": before["files"]["etc/fstab"] + added}
    here, now = {}, machine.state()
    for part in ("mounts", "read-ahead"):
        here[part] = {k: v for k, v in now[part].items() if k != DATA}
        here[part] |= {k: v for k, v in before[part].items() if k == DATA}
    return {"files": files, **here}


def test_the_undo_of_a_remount_may_be_killed_at_any_effect(client: Client, steps: Steps) -> None:
    client.start(FSTAB)
    options = "rw,relatime,vers=4.1,proto=tcp,rsize=32768,soft,timeo=50"
    client.mount(["-t", "nfs4", "-o", options, "--", "server:/export", DATA])
    before, kill_at, status = client.state(), 0, KILLED
    while status == KILLED:
        kill_at += 1
        client.fails = {"mount --target"}
        status = in_child(partial(apply_tuning, client, 131072, 512, True), steps, kill_at)
        client.fails = set()
        assert not undo.recover(), kill_at
        assert client.state() == before, kill_at
    assert status == REFUSED
    assert kill_at > 20


@seeds
def test_a_tuning_that_fails_or_is_killed_leaves_the_mount_as_it_was(
    client: Client, steps: Steps, seed: int
) -> None:
    dice = random.Random(f"tune {seed}")  # noqa: S311
    client.start(FSTAB)
    if dice.random() < 0.7:
        # by hand, with other options than fstab has
        options = "rw,relatime,vers=4.1,proto=tcp,rsize=32768,soft,timeo=50"
        client.mount(["-t", "nfs4", "-o", options, "--", "server:/export", DATA])
    for _ in range(dice.randint(1, 3)):
        before = client.state()
        values = dice.choice([(131072, None), (None, 256), (131072, 512)])
        action = partial(apply_tuning, client, *values, remount=dice.random() < 0.6)
        commands = ["mount --target", "udevadm control", "systemctl daemon"]
        client.fails = {dice.choice(commands)} if dice.random() < 0.3 else set()
        status = in_child(action, steps, dice.choice([0, dice.randint(1, 90)]))
        assert status != BROKEN, seed
        client.fails = set()
        journals = [each.read_text() for each in (client.root / "run").glob("*.undo")]
        is_kept = journals in ([], ["[]"]) and '"mounts"' in client.text("lib/tune.json")
        expected = with_changes(client, before, partial(others_of_client, client, dice))
        assert not undo.recover(), seed
        # a kill after keep() emptied the journal is one after the change
        if status and not (status == KILLED and is_kept):
            assert client.state() == expected, seed
        assert not undo.recover()
    for _ in range(2):
        assert in_child(partial(tuning.undo, None, client.root), steps) != BROKEN
    fstab = client.text("etc/fstab")
    assert fstab.startswith(FSTAB), seed
    assert set(client.state()["files"]) == {"etc/fstab", "usr/bin/python3"}


class Module:
    """AnsibleModule as nfsrdma_packages uses it, without a process and its import for each run."""

    check_mode = False

    def __init__(self, machine: Packages, role: str, names: list[str]) -> None:
        self.machine, self.params = machine, {"role": role, "names": names}
        self.tmpdir = str(machine.file.parent)

    def run_command(self, argv: list[str], check_rc: bool = False, **_: object) -> Said:
        if argv[0] == "systemctl":
            return Said()
        said = self.machine.run(argv)
        return self.fail_json(msg=said.err) if said.status and check_rc else said

    def get_bin_path(self, name: str) -> str:
        return "/usr/bin/apt-get" if name == "apt-get" else ""

    def atomic_move(self, source: str, path: str) -> None:
        Path(source).replace(path)

    def fail_json(self, **result: object) -> Said:
        raise UserError(str(result["msg"]))

    def warn(self, _: str) -> None: ...


@seeds
def test_the_rollback_of_packages_removes_what_roles_brought_alone(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    pytest.importorskip("ansible", reason="ansible-core is not installed")
    from unit.ansible_modules import imported

    module = imported("modules.nfsrdma_packages")
    monkeypatch.setattr(imported("module_utils.records"), "FOLDER", str(tmp_path / "records"))
    dice, machine = random.Random(f"packages {seed}"), Packages(tmp_path, steps)  # noqa: S311
    machine.put(there=["python3", *dice.sample(["keyutils", "rpcbind"], dice.randint(0, 2))])
    wanted = {"client": ["nfs-common"], "server": ["nfs-kernel-server"], "link": ["rdma-core"]}
    by_hand = set(machine.host["there"])

    def bring(state: str, role: str) -> None:
        record = module.records.one("packages") or {"wanted": {}, "added": []}
        names = wanted[role] if state == "present" else []
        getattr(module, f"_{state}")(Module(machine, role, names), record)

    for _ in range(dice.randint(1, 5)):
        role = dice.choice([*wanted])
        machine.put(breaks=dice.random() < 0.2, absent=dice.choice(["", "", "rpcbind"]))
        action = partial(bring, dice.choice(["present", "present", "absent"]), role)
        status = in_child(action, steps, dice.choice([0, dice.randint(1, 25)]))
        assert status != BROKEN, seed
        machine.put(breaks=False, absent="")
        name = dice.choice(["postgresql", "quota", "autofs", "", ""])
        if name and name not in machine.host["there"]:
            assert machine.run(["apt-get", "install", "-y", "--", name]).status == 0
            by_hand.add(name)
    for _ in range(2):
        for role in wanted:
            assert in_child(partial(bring, "absent", role), steps) == 0, (seed, role)
    expected = {*closure(sorted(by_hand), lambda name: ARCHIVE.get(name, []))}
    assert set(machine.host["there"]) == expected, seed
    assert not (tmp_path / "records").exists(), seed
