# SPDX-License-Identifier: Apache-2.0
"""The modules of the collection, run as Ansible runs them, with a stand-in for nfsrdma."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

from unit.playbooks.ansible_modules import imported, program, run_module

from nfsrdma_tools.host.nfs import mountinfo, mounting
from nfsrdma_tools.host.nfs.mount_state import MountState
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.readahead import kb_for

Run = Callable[..., dict[str, Any]]
SRC, PATH = "server:/export", "/mnt/nfsrdma-test-of-modules"
LINE = f"{SRC} {PATH} nfs vers=4.2,proto=rdma,port=20049,rsize=262144,_netdev 0 0\n"
FSTAB = "# mine\n/dev/vda / ext4 rw 0 0\n"
HOSTILE = [
    "$(reboot)",
    "`reboot`",
    "a;reboot",
    "-rf",
    "--help",
    "%s%n",
    "${HOME}",
    "~root",
    "{{x}}",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A target: its fstab and its units, with stand-ins for nfsrdma, mount and systemd."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "units").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "etc/fstab").write_text(FSTAB)
    program(tmp_path, "nfsrdma", Path(__file__).with_name("nfsrdma_stand_in.py").read_text())
    for name in ("systemctl", "mount"):
        program(tmp_path, name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/ran\n')
    program(tmp_path, "systemd-escape", "#!/bin/sh\necho mnt-data.mount\n")
    server = {"own": [], "listeners": [], "exports": [], "versions": ["4.2"]}
    status = {"owner": "rpcrdma", "ours": "", "installed": "", "users": []}
    empty: dict[str, list[object]] = {"calls": [], "mounts": [], "tuned": [], "links": []}
    put(tmp_path, refuse={}, findings=[], server=server, module=status, **empty)
    return tmp_path


def put(root: Path, **changes: Any) -> None:
    """Change the state of the stand-in for nfsrdma."""
    file = root / "bin/state.json"
    state = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**state, **changes}))


def current(root: Path, name: str) -> Any:
    """A part of the state of the stand-in for nfsrdma."""
    return json.loads((root / "bin/state.json").read_text())[name]


def changes(root: Path) -> list[list[str]]:
    return [words for words in current(root, "calls") if "--json" not in words]


@pytest.fixture
def run(root: Path) -> Run:
    def run(name: str, check: bool = False, **args: Any) -> dict[str, Any]:
        return run_module(root, name, check, command=f"{root}/bin/nfsrdma", **args)

    return run


@pytest.fixture
def mount(root: Path, run: Run) -> Run:
    def mount(check: bool = False, **more: Any) -> dict[str, Any]:
        # the module creates the mount point below the scratch root
        args = {"src": SRC, "path": str(root / "data"), "rsize": 262144, **more}
        return run("nfsrdma_mount", check, **args)

    return mount


def line(root: Path, rsize: int = 262144) -> str:
    return LINE.replace(PATH, str(root / "data")).replace("262144", str(rsize))


def fstab(root: Path) -> str:
    return (root / "etc/fstab").read_text()


def test_mounting_is_idempotent(root: Path, mount: Run) -> None:
    first = mount()
    assert (first["changed"], first["actions"]) == (True, ["define", "mount"])
    assert fstab(root) == FSTAB + line(root)
    assert first["mount"]["rsize"] == 262144
    again = mount()
    assert (again["changed"], again["actions"]) == (False, [])
    assert fstab(root) == FSTAB + line(root)


def test_check_mode_reports_the_same_and_changes_nothing(root: Path, mount: Run) -> None:
    checked = mount(check=True)
    assert (checked["changed"], checked["actions"]) == (True, ["define", "mount"])
    assert checked["diff"]["before"].startswith("(no definition)\nnot mounted")
    assert checked["diff"]["after"].startswith(line(root))
    assert fstab(root) == FSTAB
    assert changes(root) == []
    assert not (root / "data").exists()


def test_another_rsize_unmounts_and_mounts(root: Path, mount: Run) -> None:
    mount()
    checked = mount(check=True, rsize=65536)
    done = mount(rsize=65536)
    assert checked["actions"] == done["actions"] == ["unmount", "define", "mount"]
    assert checked["diff"] == done["diff"]
    assert fstab(root) == FSTAB + line(root, 65536)
    assert current(root, "mounts")[0]["rsize"] == 65536
    assert [words[0] for words in changes(root)] == ["mount", "umount", "mount"]


def test_another_option_unmounts_and_mounts(root: Path, mount: Run) -> None:
    mount()
    assert mount(opts=["ro"])["actions"] == ["unmount", "define", "mount"]
    assert mount(opts=["ro"])["changed"] is False


def test_ipv6_is_required_by_a_6(root: Path, mount: Run) -> None:
    mount(transport="rdma6")
    assert "proto=rdma6,port=20049" in fstab(root)
    assert "rdma6" in changes(root)[-1]
    row = {**current(root, "mounts")[0], "transport": "rdma"}
    put(root, mounts=[{**row, "proto": "rdma6"}])
    assert mount(transport="rdma6")["changed"] is False
    put(root, mounts=[{**row, "proto": "rdma"}])
    assert mount(True, transport="rdma6")["actions"] == ["unmount", "mount"]


def test_without_a_6_either_family_will_do(root: Path, mount: Run) -> None:
    mount()
    put(root, mounts=[{**current(root, "mounts")[0], "proto": "rdma6"}])
    assert mount()["changed"] is False


def test_a_busy_mount_is_reported_and_kept(root: Path, mount: Run) -> None:
    mount()
    put(root, refuse={"umount": "/mnt is in use by pid 7 (sh, working folder)"})
    failed = mount(rsize=65536)
    assert failed["failed"]
    assert failed["msg"] == "/mnt is in use by pid 7 (sh, working folder)"
    assert fstab(root) == FSTAB + line(root)
    assert current(root, "mounts")[0]["rsize"] == 262144


def test_a_failed_mount_restores_the_previous_state(root: Path, mount: Run) -> None:
    put(root, refuse={"mount": "rsize: requested 262144, got 131072"})
    failed = mount()
    assert failed["msg"] == "rsize: requested 262144, got 131072"
    assert failed["restored"] == "restored the previous state: not mounted"
    assert fstab(root) == FSTAB
    assert not (root / "data").exists()


def test_a_refused_size_restores_the_previous_mount(root: Path, mount: Run) -> None:
    mount()
    put(root, refuse={"mount": "rsize: requested 1048576, got 524288"})
    failed = mount(rsize=1048576)
    assert failed["restored"] == "restored the previous mount"
    assert fstab(root) == FSTAB + line(root)
    restored = f"mount -t nfs4 -o rw,relatime,hard,vers=4.2 -- {SRC} {root}/data"
    assert (root / "ran").read_text().splitlines()[-1] == restored


@pytest.mark.parametrize("boot", ["none", "fstab"])
def test_a_failed_mount_restores_the_options_that_were_in_effect(
    root: Path, mount: Run, boot: str
) -> None:
    """Not those of the new request, nor those of a definition."""
    in_effect = {"vers": "3", "proto": "tcp", "nconnect": "2", "soft": "", "addr": "10.0.0.1"}
    (root / "data").mkdir()
    old = {"target": "old:/x", "directory": str(root / "data"), "transport": "tcp", "vers": "3",
           "rsize": 8192, "wsize": 8192, "nconnect": 2, "read_ahead_kb": 15, "fstype": "nfs",
           "flags": ["ro", "nosuid"], "options": in_effect}  # fmt: skip
    put(root, mounts=[old], refuse={"mount": "rsize: requested 262144, got 131072"})
    failed = mount(boot=boot, nconnect=16, port=20050, opts=["hard"])
    assert failed["restored"] == "restored the previous mount"
    words = f"mount -t nfs -o ro,nosuid,nconnect=2,proto=tcp,soft,vers=3 -- old:/x {root}/data"
    assert (root / "ran").read_text().splitlines()[-1] == words


@pytest.mark.parametrize("kernel", ["6.1", "6.12", "7.2"])
def test_a_mount_is_restored_with_the_options_that_tune_restores(kernel: str) -> None:
    """The module cannot import the package: it has the options from `nfsrdma mounts --json`."""
    module = imported("modules.nfsrdma_mount")
    text = mountinfo.read_text(Path(__file__).parents[1] / "data" / f"mountinfo-{kernel}.txt")
    mounts = [Mount.of(entry, "rpcrdma") for entry in mountinfo.parse(text) if entry.is_nfs]
    assert mounts
    for mount in mounts:
        rows = json.loads(json.dumps(MountState(mount, (), 128, ()).facts()))
        words = module._as_mounted(rows)
        assert words[-2:] == [str(mount.target), str(mount.directory)]
        assert words[:4] == ["mount", "-t", mount.fstype, "-o"]
        assert sorted(words[4].split(",")) == sorted(mounting.as_mounted(mount).split(","))


def test_absent_unmounts_and_removes_the_definition(root: Path, mount: Run) -> None:
    mount()
    assert mount(state="absent")["actions"] == ["unmount", "remove the definition"]
    assert fstab(root) == FSTAB
    assert current(root, "mounts") == []
    assert mount(state="absent")["changed"] is False


def test_unmounted_keeps_the_definition(root: Path, mount: Run) -> None:
    mount()
    assert mount(state="unmounted")["actions"] == ["unmount"]
    assert fstab(root) == FSTAB + line(root)


def test_a_line_that_tune_changed_is_kept(root: Path, mount: Run) -> None:
    mount()
    tuned = {"directory": str(root / "data"), "rsize": 65536, "wsize": None,
             "before": line(root).rstrip(), "after": line(root, 65536).rstrip()}  # fmt: skip
    mounted = {**current(root, "mounts")[0], "rsize": 65536}
    (root / "etc/fstab").write_text(FSTAB + line(root, 65536))
    put(root, tuned=[tuned], mounts=[mounted])
    assert mount()["changed"] is False


def test_absent_removes_only_the_directories_that_were_created(root: Path, mount: Run) -> None:
    (root / "mnt").mkdir()
    path, made = str(root / "mnt/fleet/data"), str(root / "mnt/fleet")
    facts = run_module(root, "nfsrdma_facts", command="", paths=[path, str(root)])
    missing = facts["ansible_facts"]["nfsrdma"]["missing"]
    assert missing == {path: made, str(root): ""}
    mount(path=path)
    gone = mount(path=path, state="absent", remove_directory=made)
    assert gone["actions"] == ["unmount", "remove the definition", "remove the directory"]
    assert list((root / "mnt").iterdir()) == []
    mount(path=path)
    (root / "mnt/fleet/theirs").touch()
    mount(path=path, state="absent", remove_directory=made)
    assert [each.name for each in (root / "mnt/fleet").iterdir()] == ["theirs"]


def test_a_mount_unit_is_written_enabled_and_removed(root: Path, mount: Run) -> None:
    assert mount(boot="unit", opts=["x-a=50%"])["actions"] == ["define", "mount"]
    text = (root / "units/mnt-data.mount").read_text()
    assert f"Where={root}/data\nType=nfs\nOptions=vers=4.2,proto=rdma" in text
    assert "x-a=50%%,_netdev\n" in text
    assert "systemctl enable -- mnt-data.mount" in (root / "ran").read_text()
    assert mount(boot="unit", opts=["x-a=50%"])["changed"] is False
    assert mount(boot="unit", state="absent")["changed"]
    assert not (root / "units/mnt-data.mount").exists()
    assert fstab(root) == FSTAB


@pytest.mark.parametrize("value", ["a\nb", "a\tb", 'a"b', "a\\b", "", "\x1b[31m", "\u2028"])
def test_values_that_no_definition_can_express_are_refused(
    mount: Run, root: Path, value: str
) -> None:
    for args in ({"src": f"server:/{value}" if value else value}, {"opts": [value]}):
        assert mount(**args)["failed"]
    assert fstab(root) == FSTAB
    assert changes(root) == []


@pytest.mark.parametrize("path", ["mnt", "/", "/mnt/../etc", "/mnt//x", "/mnt/"])
def test_paths_that_are_not_normalized_are_refused(mount: Run, path: str) -> None:
    assert "not a normalized absolute path" in mount(path=path)["msg"]


@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_reaches_a_shell(root: Path, run: Run, value: str) -> None:
    folder = str(root / value)
    done = run("nfsrdma_mount", src=f"server:/{value}", path=folder, opts=[f"x={value}"])
    assert done["changed"], done
    (words,) = changes(root)
    assert words[-2:] == [f"server:/{value}", folder]
    assert f"--options=x={value}" in words
    assert fstab(root).splitlines()[-1].split()[0] == f"server:/{value}"


def test_blanks_and_hashes_in_paths_are_escaped(root: Path, run: Run) -> None:
    path = str(root / "my data#1")
    assert run("nfsrdma_mount", src="server:/a b", path=path)["changed"]
    assert fstab(root).splitlines()[-1].startswith(f"server:/a\\040b {root}/my\\040data\\0431 nfs ")
    assert run("nfsrdma_mount", src="server:/a b", path=path)["changed"] is False


def test_two_lines_for_one_mount_point_are_refused(root: Path, mount: Run) -> None:
    (root / "etc/fstab").write_text(line(root) * 2)
    assert "2 lines of fstab" in mount()["msg"]


def test_exporting_is_idempotent(root: Path, run: Run) -> None:
    args = {"path": "/srv/a b", "clients": ["10.0.0.0/8", "*.lab"]}
    checked = run("nfsrdma_export", check=True, **args)
    assert checked["changed"]
    assert "/srv/a b to *.lab (rw,insecure)" in checked["diff"]["after"]
    assert changes(root) == []
    assert run("nfsrdma_export", **args)["changed"]
    assert changes(root)[0] == [
        "server", "enable", "--client=10.0.0.0/8", "--client=*.lab", "--", "/srv/a b",
    ]  # fmt: skip
    assert run("nfsrdma_export", **args)["changed"] is False
    assert run("nfsrdma_export", **{**args, "read_only": True}, check=True)["changed"]
    assert run("nfsrdma_export", **{**args, "path": "/srv/a b/"})["changed"] is False
    assert run("nfsrdma_export", path="/srv/a b/", state="absent")["changed"]
    assert run("nfsrdma_export", path="/srv/a b", state="absent")["changed"] is False
    assert "clients" in run("nfsrdma_export", path="/srv")["msg"]


def test_an_export_keeps_the_port_that_nfsd_has(root: Path, run: Run) -> None:
    args = {"path": "/srv", "clients": ["*"]}
    run("nfsrdma_export", **args)
    # as where nfs.conf requests another port, and another transport module serves it
    listeners = [{"transport": "tcp", "port": 2049}, {"transport": "nfsrdma", "port": 20050}]
    put(root, server={**current(root, "server"), "listeners": listeners})
    assert run("nfsrdma_export", **args)["changed"] is False
    assert run("nfsrdma_export", **args, rdma_port=20050)["changed"] is False
    assert run("nfsrdma_export", **args, rdma_port=20049)["changed"]
    assert changes(root)[-1][:3] == ["server", "enable", "--rdma-port=20049"]
    put(root, server={**current(root, "server"), "listeners": listeners[:1]})
    assert run("nfsrdma_export", check=True, **args)["changed"]


def test_tuning_is_idempotent(root: Path, run: Run) -> None:
    args = {"path": "/mnt", "rsize": 131072, "read_ahead": 4}
    assert run("nfsrdma_tune", check=True, **args)["changed"]
    assert run("nfsrdma_tune", **args)["tuned"]["read_ahead_kb"] == 512
    assert changes(root)[-1] == [
        "tune", "apply", "--mount", "/mnt", "--rsize", "131072", "--read-ahead", "4", "--remount",
    ]  # fmt: skip
    assert run("nfsrdma_tune", **args)["changed"] is False
    assert run("nfsrdma_tune", **{**args, "path": "/mnt/"})["changed"] is False
    assert run("nfsrdma_tune", **{**args, "rsize": 65536}, check=True)["changed"]
    assert run("nfsrdma_tune", path="/mnt", state="absent")["changed"]
    # only a new mount has the previous size
    assert [words[0] for words in changes(root)] == ["tune", "umount", "tune"]
    assert (root / "ran").read_text() == "mount --target /mnt\n"
    assert run("nfsrdma_tune", path="/mnt", state="absent")["changed"] is False
    assert "nothing to tune" in run("nfsrdma_tune", path="/mnt")["msg"]


@pytest.mark.parametrize("kib", [4, 16, 64])
def test_tuning_is_idempotent_with_any_page_size(
    root: Path, run: Run, kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.sysconf
    pages = {"SC_PAGE_SIZE": kib << 10}
    monkeypatch.setattr("os.sysconf", lambda name: pages.get(name) or real(name))
    row = {"directory": "/mnt", "rsize": None, "wsize": None, "read_ahead_kb": kb_for(1, 8192)}
    put(root, tuned=[{**row, "in_effect": row, "pending": []}], mounts=[row | {"rsize": 8192}])
    assert run("nfsrdma_tune", path="/mnt", read_ahead=1)["changed"] is False


def test_a_busy_mount_keeps_its_tuning(root: Path, run: Run) -> None:
    run("nfsrdma_tune", path="/mnt", rsize=131072)
    before = current(root, "tuned")
    put(root, refuse={"umount": "/mnt is in use by pid 7 (sh, working folder)"})
    assert run("nfsrdma_tune", path="/mnt", state="absent")["failed"]
    assert current(root, "tuned") == before


def test_the_module_is_installed_loaded_and_removed(root: Path, run: Run) -> None:
    assert run("nfsrdma_module", check=True)["steps"] == ["install", "load"]
    assert changes(root) == []
    assert run("nfsrdma_module")["module"]["owner"] == "nfsrdma"
    assert run("nfsrdma_module")["changed"] is False
    assert run("nfsrdma_module", state="absent")["steps"] == ["unload", "uninstall"]
    assert run("nfsrdma_module", state="absent")["changed"] is False


def test_a_host_that_uses_the_module_is_skipped(root: Path, run: Run) -> None:
    put(root, module={**current(root, "module"), "users": ["mount /mnt of server:/export"]})
    skipped = run("nfsrdma_module")
    assert skipped["changed"] is False
    assert skipped["skipped_because"] == "mount /mnt of server:/export"
    # to install does not disturb the users
    assert run("nfsrdma_module", state="installed")["steps"] == ["install"]


def test_facts_include_findings_on_request(root: Path, run: Run) -> None:
    facts = run("nfsrdma_facts")["ansible_facts"]["nfsrdma"]
    assert facts["toolkit"] is True
    assert facts["server"]["versions"] == ["4.2"]
    put(root, findings=[{"status": "error", "found": "no RDMA device"}])
    with_doctor = run("nfsrdma_facts", doctor=True, server="server")["ansible_facts"]["nfsrdma"]
    assert with_doctor["findings"][0]["found"] == "no RDMA device"
    assert current(root, "calls")[-1] == ["doctor", "--json", "--", "server"]
    assert run_module(root, "nfsrdma_facts", command="/nope")["ansible_facts"]["nfsrdma"][
        "toolkit"
    ] is False  # fmt: skip


@pytest.mark.parametrize(("threads", "serves"), [("8\n", True), ("0\n", False)])
def test_the_file_system_of_running_nfsd_threads_is_in_use(
    root: Path, run: Run, threads: str, serves: bool
) -> None:
    (root / "proc/fs/nfsd").mkdir(parents=True)
    (root / "proc/fs/nfsd/threads").write_text(threads)
    mounts = "nfsd /proc/fs/nfsd nfsd rw 0 0\nsunrpc /run/rpc_pipefs rpc_pipefs rw 0 0\n"
    (root / "proc/mounts").write_text(mounts + "/dev/vda / ext4 rw 0 0\n")
    filesystems = run("nfsrdma_facts")["ansible_facts"]["nfsrdma"]["filesystems"]
    assert filesystems == {"/proc/fs/nfsd": serves, "/run/rpc_pipefs": False}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("nfsrdma_mount", {"src": SRC, "path": "/mnt/x"}),
        ("nfsrdma_export", {"path": "/srv", "clients": ["*"]}),
        ("nfsrdma_tune", {"path": "/mnt/x", "rsize": 65536}),
        ("nfsrdma_module", {}),
    ],
)
def test_without_the_toolkit(root: Path, name: str, args: dict[str, Any]) -> None:
    # in check mode, role toolkit has not installed it yet
    assert run_module(root, name, True, command="/nope", **args)["changed"] is True
    assert "is not installed" in run_module(root, name, command="/nope", **args)["msg"]
    absent = run_module(root, name, command="/nope", **{**args, "state": "absent"})
    assert absent.get("changed") is False or "is not installed" in absent["msg"]
