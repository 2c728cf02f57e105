# SPDX-License-Identifier: Apache-2.0
"""Random sequences: a change, its failure or kill at any effect, changes of others, the undo.

After the undo, the machine is as before the change, with the changes of others; a second undo
changes nothing.  UNDO_SEQUENCES is the number of sequences of each command.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
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
from unit.playbooks.package_stand_in import ARCHIVE, Packages, Said, closure

from nfsrdma_tools import etab, udev, undo
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mount_state, mountinfo, mounting, mounts, mountstats, readahead
from nfsrdma_tools.host.nfs.mounting import MountRequest
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.nfsd import configuration, exports, nfsctl, serving
from nfsrdma_tools.host.nfsd.configuration import Requested
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.host.tune import definition, tuning
from nfsrdma_tools.host.tune.tuning import TuneRequest

COUNT = int(os.environ.get("UNDO_SEQUENCES", "25"))
# with those that failed once
seeds = pytest.mark.parametrize("seed", sorted({*range(COUNT), 44, 132, 158, 232}))


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path / "lib"))
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    counted = Steps(tmp_path / "run/refusal")
    patch_files(counted, monkeypatch)
    return counted


def kernel(folder: Path, links: dict[str, Path]) -> Machine:
    """A host whose kernel files are those of a stand-in; beside its folder, which tests compare."""
    host = Machine(folder.with_name(f"{folder.name}-kernel"))
    for name, target in links.items():
        host.path(name).parent.mkdir(parents=True, exist_ok=True)
        host.path(name).symlink_to(target)
    return host


@pytest.fixture
def server(tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> Server:
    machine = Server(tmp_path, steps)
    machine.patch(monkeypatch, etab, undo, serving)
    folder = tmp_path / "exports.d"
    for module in (etab, serving, exports):
        monkeypatch.setattr(module, "EXPORTS_D", folder)
    monkeypatch.setattr(etab, "ETAB", tmp_path / "etab")
    monkeypatch.setattr(etab, "EXPORTS", tmp_path / "exports")
    monkeypatch.setattr(serving, "_require_server", lambda: None)
    monkeypatch.setattr(serving, "CONF", tmp_path / "conf.d/nfsrdma.conf")
    host = kernel(tmp_path, {"proc/fs/nfsd": tmp_path / "nfsd"})
    for name in ("listeners", "versions", "threads"):
        monkeypatch.setattr(nfsctl, name, partial(getattr(nfsctl, name), host))

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
    change = dice.choice(["by hand", "file", "unexport", "nothing"])
    client = f"10.0.1.{dice.randrange(4)}"
    if change == "by hand":
        machine.exportfs(["-i", "-o", AGENT, f"{client}:/ha/{dice.randrange(3)}"])
    elif change == "file":
        line = f"{machine.root}/other {client}(ro)\n"
        machine.put("exports", machine.text("exports") + line)
        if machine.unit["active"]:
            machine.exportfs([f"{client}:{machine.root}/other"])
    elif change == "unexport" and (rows := [k for k in machine.table() if "/ha/" in k]):
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
    machine.patch(monkeypatch, undo, tuning, definition, udev, mounting)
    monkeypatch.setattr(tuning, "SLASH", tmp_path)
    monkeypatch.setattr(definition, "SYSTEMD", tmp_path)
    monkeypatch.setattr(mounting, "_require_root", lambda _: None)
    monkeypatch.setattr(undo, "_BDI", tmp_path / "bdi")
    host = kernel(tmp_path, {"proc/self": tmp_path, "sys/class": tmp_path})
    changed = (readahead.path_of, readahead.get_kb, readahead.set_kb, mountstats.read_at)
    for function in changed:
        monkeypatch.setattr(function, "__defaults__", (host,))
    entries = partial(mountinfo.read, host)
    monkeypatch.setattr(mountinfo, "read", lambda *_: entries())

    def find(directory: Path) -> Mount | None:
        matching = [e for e in mountinfo.read() if e.directory == directory and e.is_nfs]
        return Mount.of(matching[-1], "rpcrdma") if matching else None

    for module in (undo, tuning, mounting):
        monkeypatch.setattr(module, "mounts_on", machine.identities)
    monkeypatch.setattr(mounts, "find", find)
    monkeypatch.setattr(mount_state, "_read_ahead_kb", lambda device, _: readahead.get_kb(device))
    monkeypatch.setattr(mounts, "mounts", list)
    return machine


def apply_tuning(machine: Client, rsize: int | None, kb: int | None, remount: bool) -> None:
    request = TuneRequest(Path(DATA), rsize=rsize, read_ahead_kb=kb)
    tuning.apply(request, Machine(machine.root), remount=remount)


def others_of_client(machine: Client, dice: random.Random) -> None:
    """Somebody else changes fstab, or mounts and unmounts something else."""
    number = dice.randrange(100)
    change = dice.choice(["fstab", "fstab", "mount", "umount"])
    if change == "fstab":
        line = f"server:/{number} /mnt/{number} nfs ro 0 0\n"
        machine.put("etc/fstab", machine.text("etc/fstab") + line)
    elif change == "mount" and not machine.lines("/mnt/other"):
        machine.mount(["-t", "nfs4", "-o", "ro", "--", "server:/other", "/mnt/other"])
    elif machine.lines("/mnt/other"):
        machine.umount_nfs(["/mnt/other"])


def after_all_of(action: Callable[[], object], machine: Client, steps: Steps) -> dict[str, Any]:
    """The state after ``action`` without failure or kill; the machine is then as before."""
    saved = machine.root.with_name(f"{machine.root.name}.saved")
    shutil.copytree(machine.root, saved)
    in_child(action, steps)
    state = machine.state()
    shutil.rmtree(machine.root)
    saved.replace(machine.root)
    return state


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


@pytest.mark.parametrize("rsize", [131072, 1 << 20])
def test_what_others_mount_during_a_remount_stays(client: Client, steps: Steps, rsize: int) -> None:
    """Before each effect; the server refuses one of the sizes."""
    client.start(FSTAB)
    client.most_rsize = 131072
    words = ["-t", "nfs4", "-o", "ro", "--", "10.0.0.9:/other", DATA]
    meanwhile = partial(client.by_others, partial(client.mount, words))
    fstab = client.text("etc/fstab")
    # before that, tune waits for its lock, and finds their mount
    for at in range(4, 45):
        client.put_theirs([])
        client.mount(["-t", "nfs4", "-o", "rw,soft,vers=4.1", "--", "server:/export", DATA])
        action = partial(apply_tuning, client, rsize, 512, True)
        status = in_child(action, steps, 0, meanwhile, at)
        assert status != BROKEN, at
        assert client.made_by("others") == client.theirs(), at
        if status == REFUSED:
            assert client.text("etc/fstab") == fstab, at
        else:
            tuning.undo(None, Machine(client.root))
        while client.lines(DATA):
            client.umount([DATA])


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
        applied = after_all_of(action, client, steps)
        commands = ["mount --target", "udevadm control", "systemctl daemon"]
        client.fails = {dice.choice(commands)} if dice.random() < 0.3 else set()
        status = in_child(action, steps, dice.choice([0, dice.randint(1, 90)]))
        assert status != BROKEN, seed
        client.fails = set()
        journals = [each.read_text() for each in (client.root / "run").glob("*.undo")]
        was = before
        if status == 0 or (status == KILLED and journals in ([], ["[]"])):
            # a kill before the first record, or after keep() emptied the journal
            was = client.state()
            assert was in ([applied] if status == 0 else [before, applied]), seed
        expected = with_changes(client, was, partial(others_of_client, client, dice))
        assert not undo.recover(), seed
        assert client.state() == expected, seed
        assert not undo.recover()
    for _ in range(2):
        assert in_child(partial(tuning.undo, None, Machine(client.root)), steps) != BROKEN
    fstab = client.text("etc/fstab")
    assert fstab.startswith(FSTAB), seed
    assert set(client.state()["files"]) == {"etc/fstab", "usr/bin/python3"}


SOURCE = "10.0.0.1:/export"


def make_mount(directory: Path, rsize: int | None, kb: int | None) -> None:
    """`nfsrdma mount`."""
    target = Target.parse(SOURCE)
    request = MountRequest(target, directory, "tcp", rsize=rsize, read_ahead_kb=kb)
    with undo.journal() as changes:
        mounting.mount(request, changes)
        changes.keep()


def others_at(machine: Client, directory: Path, dice: random.Random, *sources: str) -> None:
    """Somebody else mounts over a mount point, unmounts what is there, or edits fstab."""
    change = dice.choice(["mount", "umount", "fstab", "nothing"])
    if change == "mount":
        source = dice.choice(["10.0.0.9:/other", "none", *sources])
        fstype = "tmpfs" if source == "none" else "nfs4"
        words = ["-t", fstype, "-o", "ro,soft", "--", source, str(directory)]
        machine.by_others(partial(machine.mount, words))
    elif change == "umount" and machine.lines(str(directory)):
        machine.by_others(partial(machine.umount, [str(directory)]))
    elif change == "fstab":
        line = f"server:/{dice.randrange(100)} {directory} nfs ro 0 0\n"
        machine.put("etc/fstab", machine.text("etc/fstab") + line)


@pytest.mark.parametrize("rsize", [65536, 1 << 20])
@pytest.mark.parametrize("source", ["10.0.0.9:/other", "none"])
def test_what_others_mount_over_a_new_mount_stays(
    client: Client, steps: Steps, rsize: int, source: str
) -> None:
    """Before each effect; the server refuses one of the sizes."""
    client.start(FSTAB)
    client.most_rsize = 131072
    directory = client.root / "mnt"
    directory.mkdir()
    words = [
        "-t", "tmpfs" if source == "none" else "nfs4", "-o", "ro", "--", source, str(directory),
    ]  # fmt: skip
    meanwhile = partial(client.by_others, partial(client.mount, words))
    at, covered = 0, 0
    while at < 12:
        at += 1
        client.put_theirs([])
        status = in_child(partial(make_mount, directory, rsize, 256), steps, 0, meanwhile, at)
        assert client.made_by("others") == client.theirs(), at
        ours, refusal = client.made_by("ours"), steps.refusal
        if status == REFUSED and ours:
            covered += 1
            assert f"a mount of {source} covers it" in refusal.read_text(), at
        while client.lines(str(directory)):
            client.umount([str(directory)])
    # below what is not NFS, the values in effect are those of the request
    assert covered or (source, rsize) == ("none", 65536)


@seeds
def test_a_mount_that_fails_or_is_killed_is_unmounted_and_no_other(
    client: Client, steps: Steps, seed: int
) -> None:
    dice = random.Random(f"mount {seed}")  # noqa: S311
    client.start(FSTAB)
    client.has_unique_ids = dice.random() < 0.7
    client.most_rsize = 131072
    directory = client.root / "mnt"
    directory.mkdir()
    # kept mounts, and those whose undo failed with a message, as others cover them
    known: set[int] = set()
    for _ in range(dice.randint(1, 4)):
        verb = dice.choice(["mount", "mount", "umount"])
        rsize, kb = dice.choice([None, 65536, 1 << 20]), dice.choice([None, 256])
        mount = partial(make_mount, directory, rsize, kb)
        action = mount if verb == "mount" else partial(mounting.unmount, directory)
        refusals = ["setpriv", "umount.nfs"]
        client.fails = {dice.choice(refusals)} if dice.random() < 0.3 else set()
        # nothing in the kernel unmounts one mount of several by its id
        others = partial(others_at, client, directory, dice)
        meanwhile = others if verb == "mount" and dice.random() < 0.5 else None
        top = client.mounted(str(directory))[-1:]
        kill_at, at = dice.choice([0, dice.randint(1, 15)]), dice.randint(1, 12)
        status = in_child(action, steps, kill_at, meanwhile, at)
        assert status != BROKEN, seed
        client.fails = set()
        text = "".join(each.read_text() for each in (client.root / "run").glob("*.undo"))
        # until mount.nfs returns, the journal has the source of our mount alone
        others_at(client, directory, dice, *([] if '"line": ""' in text else [SOURCE]))
        failures = undo.recover()
        if status == REFUSED and "cannot undo" in steps.refusal.read_text():
            failures.append(steps.refusal.read_text())
        gone = [row[1] for row in top if row[1] not in [r[1] for r in client.mounted()]]
        if verb == "umount":
            # the request names the directory alone
            client.put_theirs([number for number in client.theirs() if number not in gone])
        assert client.made_by("others") == client.theirs(), seed
        made = {*client.made_by("ours")} - known
        if status == 0 and verb == "umount":
            assert gone == [row[1] for row in top], seed
        if status == 0 or (status == KILLED and text in ("", "[]")) or failures:
            known |= made
            made = set()
        assert not made, (seed, failures, status)
        assert not undo.recover(), seed
    assert client.text("etc/fstab").startswith(FSTAB)
    assert set(client.state()["files"]) == {"etc/fstab", "usr/bin/python3"}, seed


class Module:
    """AnsibleModule as the collection uses it, without a process and its import for each run."""

    check_mode = False

    def __init__(self, folder: Path, **params: object) -> None:
        self.params, self.tmpdir = params, str(folder)

    def atomic_move(self, source: str, path: str) -> None:
        Path(source).replace(path)

    def fail_json(self, **result: object) -> Said:
        raise UserError(str(result["msg"]))

    def exit_json(self, **_: object) -> None: ...

    def warn(self, _: str) -> None: ...


class MountModule(Module):
    """It runs `nfsrdma` and mount(8) of a machine; an effect is also what Python does to files."""

    def __init__(self, machine: Client, **params: object) -> None:
        given: dict[str, object]
        given = {"transport": "tcp", "vers": "4.2", "nconnect": None, "port": None, "wsize": None,
                 "rsize": None, "opts": [], "remove_directory": "", "timeout": 60,
                 "command": "/bin/sh"}  # fmt: skip
        super().__init__(machine.root, **{**given, **params})
        self.machine = machine

    def run_command(self, argv: list[str], check_rc: bool = False, **_: object) -> Said:
        self.machine.steps()
        if argv[0] == "mount":
            done = self.machine.run(*argv, check=False)
            return Said(done.returncode, done.stdout, done.stderr)
        if argv[0] == "systemctl":
            return Said()
        try:
            return Said(out=self._nfsrdma(argv[1:]))
        except UserError as error:
            return Said(1, err=f"nfsrdma: {error}\n")

    def _nfsrdma(self, words: list[str]) -> str:
        rows: list[object] = []
        if words[0] == "mount":
            flags = dict(itertools.pairwise(words))
            assert flags["--transport"] == "tcp"
            make_mount(Path(words[-1]), int(flags["--rsize"]), None)
        elif words[0] == "umount":
            mounting.unmount(Path(words[-1]))
        elif words[0] == "mounts":
            for each in mounts.nfs_mounts(mountinfo.read()):
                counters = mountstats.read_at(each.directory)
                rows.append(mount_state.state(each, counters, []).facts())
        return json.dumps({"schema_version": 1, "mounts": rows})


def edited(machine: Client, path: str, expected: str, dice: random.Random) -> str:
    """Somebody adds an option to the line of a mount, and a line of another one.

    Returns the expected text of fstab; a line that somebody has edited stays.
    """
    number, old = dice.randrange(100), machine.text("etc/fstab")
    lines, is_edited = old.splitlines(), dice.random() < 0.5 and path in old
    if is_edited:
        lines = [x.replace(" 0 0", ",noatime 0 0") if path in x else x for x in lines]
    line = f"server:/{number} /mnt/{number} nfs ro 0 0\n"
    machine.put("etc/fstab", "\n".join([*lines, line]))
    return machine.text("etc/fstab") if is_edited else expected + line


Play = Callable[[str, int | None, bool], None]


@pytest.fixture
def play(client: Client, monkeypatch: pytest.MonkeyPatch) -> Play:
    """The module nfsrdma_mount; whether it removes what it made."""
    pytest.importorskip("ansible", reason="ansible-core is not installed")
    from unit.playbooks.ansible_modules import imported

    module, root = imported("modules.nfsrdma_mount"), client.root
    monkeypatch.setattr(imported("module_utils.place"), "FSTAB", str(root / "etc/fstab"))
    monkeypatch.setattr(imported("module_utils.records"), "FOLDER", str(root / "records"))
    monkeypatch.setattr(module, "BDI", str(root / "bdi"))
    device = lambda path: tuple(map(int, client.lines(path)[-1].split()[2].split(":")))  # noqa: E731
    monkeypatch.setattr(module, "_device", device)
    client.start(FSTAB)
    client.most_rsize = 131072

    def play(boot: str, rsize: int | None, removes: bool = False) -> None:
        state = "mounted" if rsize else "absent"
        top = str(root / "mnt") if removes else ""
        it = MountModule(client, src=SOURCE, path=str(root / "mnt/data"), boot=boot, rsize=rsize,
                         state=state, remove_directory=top)  # fmt: skip
        monkeypatch.setattr(module, "AnsibleModule", lambda **_: it)
        module.main()

    return play


def mount_by_hand(machine: Client, path: str, has_line: bool) -> None:
    """Somebody else has mounted there, with a line of fstab or without."""
    os.makedirs(path)  # noqa: PTH103 -- Path.mkdir is counted
    machine.mount(["-t", "nfs4", "-o", "ro,vers=4.1,rsize=32768,soft", "--", SOURCE, path])
    if has_line:
        line = f"{SOURCE} {path} nfs4 vers=4.1,soft 0 0\n"
        machine.put("etc/fstab", machine.text("etc/fstab") + line)


@seeds
def test_a_play_that_fails_or_is_killed_restores_the_mount(
    client: Client, steps: Steps, play: Play, seed: int
) -> None:
    """The module is killed, fails, or is killed and then fails; at last a rollback."""
    dice, path = random.Random(f"play {seed}"), str(client.root / "mnt/data")  # noqa: S311
    is_theirs, boot = dice.random() < 0.5, dice.choice(["fstab", "none"])
    if is_theirs:
        mount_by_hand(client, path, dice.random() < 0.5)

    def mounted() -> dict[str, Any]:
        return {part: client.state()[part] for part in ("mounts", "read-ahead")}

    was, fstab = mounted(), client.text("etc/fstab")
    for _ in range(dice.randint(1, 4)):
        rsize = dice.choice([65536, 131072, 1 << 20])
        client.fails = {dice.choice(["setpriv", "umount.nfs"])} if dice.random() < 0.5 else set()
        action = partial(play, boot, rsize)
        status = in_child(action, steps, dice.choice([0, dice.randint(1, 30)]))
        assert status != BROKEN, seed
        client.fails = set()
        # nfsrdma, which is killed with the module, undoes what it did at its next start
        assert not undo.recover(), seed
        refusal = steps.refusal.read_text() if status == REFUSED else ""
        has_size = f"rsize={rsize}," in "".join(client.lines(path)[-1:])
        assert status or has_size, seed
        if (has_size and status != REFUSED) or "cannot undo" in refusal:
            # done, maybe killed after that; or what is to be done by hand is in the message
            was, fstab = mounted(), client.text("etc/fstab")
        if status == REFUSED:
            # as before the first of the runs that did not end
            assert (mounted(), client.text("etc/fstab")) == (was, fstab), (seed, refusal)
        if dice.random() < 0.5:
            fstab = edited(client, path, fstab, dice)
    for _ in range(2):
        assert in_child(partial(play, boot, None, not is_theirs), steps) == 0, seed
    assert not client.lines(path), seed
    rest = [line for line in fstab.splitlines() if path not in line or boot == "none"]
    assert client.text("etc/fstab").splitlines() == rest, seed
    assert Path(path).exists() == is_theirs, seed
    assert not (client.root / "records").exists(), seed


class PackagesModule(Module):
    """It runs the package manager of a machine."""

    def __init__(self, machine: Packages, role: str, names: list[str]) -> None:
        super().__init__(machine.file.parent, role=role, names=names)
        self.machine = machine

    def run_command(self, argv: list[str], check_rc: bool = False, **_: object) -> Said:
        if argv[0] == "systemctl":
            return Said()
        done = self.machine.run(argv)
        return self.fail_json(msg=done.err) if done.status and check_rc else done

    def get_bin_path(self, name: str) -> str:
        return "/usr/bin/apt-get" if name == "apt-get" else ""


@seeds
def test_the_rollback_of_packages_removes_what_roles_brought_alone(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    pytest.importorskip("ansible", reason="ansible-core is not installed")
    from unit.playbooks.ansible_modules import imported

    module = imported("modules.nfsrdma_packages")
    monkeypatch.setattr(imported("module_utils.records"), "FOLDER", str(tmp_path / "records"))
    dice, machine = random.Random(f"packages {seed}"), Packages(tmp_path, steps)  # noqa: S311
    machine.put(there=["python3", *dice.sample(["keyutils", "rpcbind"], dice.randint(0, 2))])
    wanted = {"client": ["nfs-common"], "server": ["nfs-kernel-server"], "link": ["rdma-core"]}
    by_hand = set(machine.host["there"])

    def bring(state: str, role: str) -> None:
        record = module.records.one("packages") or {"wanted": {}, "added": []}
        names = wanted[role] if state == "present" else []
        getattr(module, f"_{state}")(PackagesModule(machine, role, names), record)

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
