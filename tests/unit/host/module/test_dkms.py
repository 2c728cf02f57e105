# SPDX-License-Identifier: Apache-2.0
"""DKMS' status of the module, and the list that reverts an installation."""

import json
import subprocess
from pathlib import Path

import pytest

from nfsrdma_tools import module_source, undo
from nfsrdma_tools.cli import module as module_cli
from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module import install as module_install
from nfsrdma_tools.host.module.build import Build
from nfsrdma_tools.host.module.install import Registered, installed, parse_dkms_status
from nfsrdma_tools.host.state import Installed, installed_state
from nfsrdma_tools.undo import journal

RELEASE = "6.12.1-x"


@pytest.fixture(autouse=True)
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path))
    return tmp_path


def test_both_forms_of_its_status_are_read() -> None:
    text = (
        "nfsrdma/0.1.0, 6.12.117+deb13-amd64, x86_64: installed\n"
        "nfsrdma, 0.0.9, 6.1.0-56-amd64, x86_64: built\n"
        "nfsrdma/0.2.0: added\n"
        "nfsrdma/0.1.0, 6.1.0, x86_64: installed (WARNING! Diff between built and installed!)\n"
        "zfs/2.3, 6.1.0, x86_64: installed\n"
    )
    assert parse_dkms_status(text) == [
        Registered("0.1.0", "6.12.117+deb13-amd64", "installed"),
        Registered("0.0.9", "6.1.0-56-amd64", "built"),
        Registered("0.2.0", "", "added"),
        Registered("0.1.0", "6.1.0", "installed (WARNING! Diff between built and installed!)"),
    ]


def test_without_dkms_nothing_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ProgramMissingError("dkms")

    monkeypatch.setattr(module_install, "run", missing)
    assert module_install.registered() is None
    assert not module_install._has_other_modules()


def test_what_was_installed_is_remembered(lib: Path) -> None:
    assert installed() is None
    (lib / "module.json").write_text(json.dumps({"version": "0.1.0", "made": ["/a", "/a/b"]}))
    assert installed() == Installed("0.1.0", ("/a", "/a/b"))
    (lib / "module.json").write_text("[]")
    with pytest.raises(UserError, match="is damaged"):
        installed()


def test_the_way_back_ends_where_the_way_in_began(monkeypatch: pytest.MonkeyPatch) -> None:
    key = tuple(map(str, module_install._DKMS_KEY))
    steps = [str(x) for x in module_install._way_back(Installed("0.1.0", ("/var/lib/x", *key)))]
    assert "/var/lib/x" in steps[0] and "modprobe.d/nfsrdma.conf" in steps[-1]
    kept = module_install._way_back(
        Installed("0.1.0", ("/var/lib/x", *key)), module_install._DKMS_KEY
    )
    assert len(kept) == len(steps) - 2
    assert not any("mok" in str(step) for step in kept)


class Machine:
    """Programs that DKMS and modprobe are, and the files of an installation below ``root``."""

    def __init__(self, root: Path, file: ModuleFile) -> None:
        self.root, self.file, self.calls = root, file, list[str]()

    def run(self, *argv: str, **_: object) -> Result:
        if argv[:2] == ("dkms", "status"):
            version = module_source.find().version
            done = any(call.startswith("dkms install") for call in self.calls)
            return Result(argv, f"nfsrdma/{version}, {RELEASE}, x86_64: installed\n" * done, "", 0)
        if argv[0] == "modprobe":
            return Result(argv, f"insmod {self.file.path}", "", 0)
        self.calls.append(" ".join(argv))
        return Result(argv, "", "", 0)

    def files(self) -> set[Path]:
        return {path for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    file = ModuleFile("nfsrdma", "/lib/nfsrdma.ko", srcversion="NEW")
    machine = Machine(tmp_path / "root", file)
    monkeypatch.setenv("NFSRDMA_LIB", str(machine.root / "lib"))
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NFSRDMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.uname", lambda: type("U", (), {"release": RELEASE}))
    monkeypatch.setattr(module_install, "CONF", machine.root / "modprobe.d/nfsrdma.conf")
    monkeypatch.setattr(module_install, "_DKMS", machine.root / "dkms")
    monkeypatch.setattr(module_install, "_DKMS_KEY", ())
    monkeypatch.setattr(
        module_install, "source_folder", lambda version: machine.root / f"src-{version}"
    )
    monkeypatch.setattr(kernel_modules, "in_file", lambda _: file)
    monkeypatch.setattr(kernel_modules, "on_disk", lambda _: file)
    monkeypatch.setattr(module_install, "run", machine.run)
    return machine


def test_dry_run_prints_the_steps_that_install_makes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = module_source.find()
    built = module_build.path_of(RELEASE, source)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(undo, "journal", pytest.fail)
    monkeypatch.setattr(module_build, "build", pytest.fail)
    module_cli.install(dry_run=True)
    steps = [line.removeprefix("would ") for line in capsys.readouterr().out.splitlines()]
    assert machine.calls == []
    assert not machine.files() and not Path(machine.root.parent / "state").exists()
    assert steps[0] == f"build nfsrdma {source.version} for {RELEASE}"
    built.parent.mkdir(parents=True)
    built.touch()
    assert module_install.installing() == steps[1:]

    monkeypatch.setattr("os.geteuid", lambda: 0)
    folder = module_install.source_folder(source.version)
    with journal() as changes:
        module_install.install(Build(RELEASE, built, fresh=False), changes)
        changes.keep()
    assert [x for x in steps if x.startswith("run ")] == [f"run {call}" for call in machine.calls]
    assert steps[1] == f"copy {source.folder} to {folder}"
    assert steps[-1] == f"write {module_install.CONF}"
    others = {path for path in machine.files() if folder not in path.parents}
    assert others == {module_install.CONF, machine.root / "lib/module.json"}
    assert module_install.installing() == []


def test_dry_run_of_a_new_version_removes_the_old_one(machine: Machine) -> None:
    installed_state.save(Installed("0.0.1", ()))
    module_install.source_folder("0.0.1").mkdir(parents=True)
    module_install.CONF.parent.mkdir()
    module_install.CONF.write_text("old")
    assert module_install.installing()[1:4] == [
        f"remove {module_install.CONF}",
        f"run rm -r -- {module_install.source_folder('0.0.1')}",
        f"remove {installed_state.path()}",
    ]


def test_dry_run_has_the_errors_of_install(machine: Machine) -> None:
    module_install.CONF.parent.mkdir(parents=True)
    module_install.CONF.touch()
    with pytest.raises(UserError, match="nfsrdma module install did not make it"):
        module_install.installing()


def test_mounts_and_nfsd_are_led_to_ours_and_one_way_is_left_to_the_kernels() -> None:
    lines = [x.split() for x in module_install._TEXT.splitlines() if x.startswith("alias ")]
    leads = {word: to for _, word, to in lines}
    assert leads.pop("kernels-rpcrdma") == "rpcrdma"
    assert leads == dict.fromkeys(("rpcrdma", "rpcrdma6", "svcrdma", "xprtrdma"), "nfsrdma")


@pytest.mark.parametrize("built", [True, False])
def test_the_kernels_module_is_loaded_where_ours_is_not_built(tmp_path: Path, built: bool) -> None:
    (line,) = (x for x in module_install._TEXT.splitlines() if x.startswith("install "))
    name, command = line.split(" ", 2)[1:]
    calls, program = tmp_path / "calls", tmp_path / "modprobe"
    program.write_text(
        f"#!/bin/sh\necho $* >> {calls}\n"
        f"case $* in *kernels-rpcrdma*) exit 0;; *) exit {int(not built)};; esac\n"
    )
    program.chmod(0o755)
    shell = ("sh", "-c", command.replace("/sbin/modprobe", str(program)))
    done = subprocess.run(shell, check=False)
    assert (name, done.returncode) == ("nfsrdma", 0)
    # -i: without it, modprobe would run this command again
    ours, kernels = "-q -i nfsrdma", "kernels-rpcrdma"
    assert calls.read_text().splitlines() == ([ours] if built else [ours, kernels])
