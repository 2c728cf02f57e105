# SPDX-License-Identifier: Apache-2.0
"""docs/dev/paths.md describes the paths through the package as they are."""

import ast
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from nfsrdma_tools.cli import mount as mount_command
from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import (
    mount_state,
    mountinfo,
    mounts,
    mountstats,
    personality,
    readahead,
    sharing,
)
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.live.collect.client_finder import ClientFinder, RpcClients
from nfsrdma_tools.live.collect.sampler import Sampler
from nfsrdma_tools.live.feed import FeedOptions
from nfsrdma_tools.live.web import server
from nfsrdma_tools.live.web.broadcast import Hub
from nfsrdma_tools.sweep import trial, workload
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.progress import TrialDone
from nfsrdma_tools.sweep.runner import Options, sweep
from nfsrdma_tools.sweep.store import Store

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "nfsrdma_tools"
DATA = Path(__file__).parents[1] / "data"
LONGEST = {"A mount": 10, "A sample of the dashboard": 12, "A trial": 10}
"""The most files that each path may cross."""


class Section:
    """A section of the page: the files of its table with their functions, and its leaves."""

    def __init__(self, text: str) -> None:
        self.name = text.partition("\n")[0].strip()
        rows = re.findall(r"^\| `([^`]+\.py)` \| (.+) \|$", text, re.MULTILINE)
        self.functions = {file: re.findall(r"`([\w.]+)\(\)`", what) for file, what in rows}
        leaves = re.search(r"^Leaves: (.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        self.leaves = re.findall(r"`([^`]+\.py)`", leaves[1]) if leaves else []

    @property
    def files(self) -> list[str]:
        return list(self.functions)


def sections() -> dict[str, Section]:
    page = (ROOT / "docs/dev/paths.md").read_text()
    found = map(Section, re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    return {section.name: section for section in found}


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def defined(file: str) -> set[str]:
    """The functions of a file: "function", "Class.method", and functions within functions."""
    names = set[str]()
    for node in ast.walk(tree(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if hasattr(part, "name"))
            names.update(f"{node.name}.{method.name}" for method in methods)
    return names


def imported(file: str) -> set[str]:
    """The files of the package that a file imports, within functions too."""
    names = set[str]()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            names.update(part.replace(".", "/") + ".py" for part in parts)
    return {name.removeprefix("nfsrdma_tools/") for name in names}


def test_each_path_is_described() -> None:
    assert set(sections()) == set(LONGEST)


@pytest.mark.parametrize("name", LONGEST)
def test_a_path_names_files_and_functions_that_exist(name: str) -> None:
    section = sections()[name]
    assert 1 < len(section.files) <= LONGEST[name]
    for file, functions in section.functions.items():
        assert (PACKAGE / file).is_file(), file
        assert functions, file
        assert set(functions) <= defined(file), file


@pytest.mark.parametrize("name", LONGEST)
def test_an_earlier_file_of_a_path_imports_each_file(name: str) -> None:
    section = sections()[name]
    for index, file in enumerate(section.files[1:], start=1):
        assert any(file in imported(earlier) for earlier in section.files[:index]), file
    leaves = set().union(*map(imported, (*section.files, *section.leaves)))
    assert set(section.leaves) <= leaves


def test_the_files_of_each_path_are_counted() -> None:
    argv = (sys.executable, str(ROOT / "tools/rooms"))
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    counts = dict(re.split(r"  +", line, maxsplit=1) for line in lines)
    assert int(counts["files of the package"]) == len(list(PACKAGE.rglob("*.py")))
    for name, section in sections().items():
        files, modules = map(int, re.findall(r"\d+", counts[name]))
        assert files == len(section.files)
        assert files < modules < int(counts["files of the package"])


def test_lines_are_counted_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "nfsrdma_tools").mkdir()
    (tmp_path / "nfsrdma_tools/a.py").write_text(
        '# SPDX-License-Identifier: X\n"""Doc\nstring."""\n\nimport os\n\n'
        '__all__ = [\n    "f",\n]\n'
        '# why\ndef f():\n    """Doc."""\n    return os.x  # noqa: X\n'
    )
    argv = (sys.executable, str(ROOT / "tools/rooms"), str(tmp_path))
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"\S+(?= of lines|$)", text, re.MULTILINE)[:3] == ["1", "13", "13"]
    assert re.findall(r"(\S+) of lines", text) == [f"{7 / 13:.1%}", f"{1 / 13:.1%}"]


@pytest.mark.parametrize(
    ("room", "above"),
    [
        ("live/collect", ("analyze", "feed", "prometheus", "top", "web")),
        ("live/analyze", ("collect", "feed", "prometheus", "top", "web")),
    ],
)
def test_a_room_does_not_import_what_uses_its_snapshots(room: str, above: tuple[str, ...]) -> None:
    files = [path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / room).glob("*.py")]
    forbidden = tuple(f"live/{name}{end}" for name in above for end in ("/", ".py"))
    assert len(files) > 1
    assert not [(file, name) for file in files for name in imported(file)
                if name.startswith(forbidden)]  # fmt: skip


class Trace:
    """A profiler (sys.setprofile): how often each function of the package runs."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    @property
    def files(self) -> set[str]:
        """The files of folders with functions that ran, without ``__init__.py``."""
        return {file for file, _ in self.calls if "/" in file and not file.endswith("__init__.py")}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/"):
            self.calls[path.removeprefix(f"{PACKAGE}/"), frame.f_code.co_name] += 1


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A host with recorded mounts, a busy connection, and nfsd."""
    monkeypatch.setattr(
        ClientFinder,
        "look_up",
        lambda self: setattr(self, "known", RpcClients({"/mnt/a": 3}, {"/mnt/a": (7,)})),
    )
    xprt = "sys/kernel/sunrpc/xprt-switches/switch-0/xprt-7-rdma"
    files = {
        "proc/self/mountinfo": (DATA / "mountinfo-6.12.txt").read_text(),
        "proc/self/mountstats": (DATA / "mountstats-6.12.txt").read_text(),
        f"{xprt}/xprt_state": "state=CONNECTED BOUND\n",
        f"{xprt}/xprt_info": "cong_win=16384\npending_q_len=2\n",
        "sys/kernel/debug/sunrpc/rpc_clnt/3/tasks": " 9 1 0 0x3 0x5 1 nfs_ops nfsv4 READ a:x "
        "q:xprt_pending\n",
        "proc/fs/nfsd/threads": "8\n",
        "proc/fs/nfsd/portlist": "rdma 20049\n",
        "proc/self/net/rpc/nfsd": "io 4096 77\nrpc 12 1 1 0 0\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(tmp_path)


def test_a_sample_crosses_the_files_of_its_path(
    host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dashboard's third sample: the first ones find mounts, and have no counts."""
    samples: list[Trace] = []
    delivered, deliver, take = threading.Event(), Hub.deliver, Sampler.take

    def traced_take(sampler: Sampler) -> object:
        # a new count of calls for each sample
        if samples:
            sys.setprofile(None)
        stats = host.of_process("mountstats")
        stats.write_text(re.sub(r"READ: \d+ \d+", f"READ: {99 + len(samples)} 999",
                                stats.read_text(), count=1))  # fmt: skip
        samples.append(Trace())
        sys.setprofile(samples[-1])
        return take(sampler)

    def counted_deliver(hub: Hub, snapshot: Any) -> None:
        deliver(hub, snapshot)
        if snapshot.number == 3:
            sys.setprofile(None)
            delivered.set()

    web = SimpleNamespace(run=lambda sockets: delivered.wait(60))
    monkeypatch.setattr(server, "WebServer", lambda *_: web)
    monkeypatch.setattr(Sampler, "take", traced_take)
    monkeypatch.setattr(Hub, "deliver", counted_deliver)
    service = server.Service([server.parse_address("127.0.0.1:0")])
    options = FeedOptions(interval=0.01, probes=False, machine=host)
    server.serve(options, service, lambda line: None)
    assert delivered.is_set()
    section, third = sections()["A sample of the dashboard"], samples[2]
    assert third.files <= {*section.files, *section.leaves}
    # all that the table lists runs, and the kernel's files are read once
    assert set(section.files) <= third.files
    assert third.calls["host/nfs/mountstats.py", "read"] == 1
    assert third.calls["host/nfs/mountinfo.py", "read"] == 0


# stands in for mount.nfs: the kernel's files as they are after the mount
MOUNT_NFS = """#!/bin/sh -e
cd '{root}'
echo "60 1 0:77 / {directory} rw - nfs4 localhost:/export rw,vers=4.2,rsize=65536,\\
proto=rdma,addr=127.0.0.1" >> mountinfo
printf 'device %s mounted on %s with fstype nfs4 statvers=1.1\\n\\txprt:\\trdma 0\\n' \\
    localhost:/export '{directory}' > mountstats
printf 'NV SERVER PORT DEV\\nv4 7f000001 4e51 0:77 0:0 no\\n' > volumes
mkdir debug/0
printf 'peer 127.0.0.1 port 20049\\npersonality_wanted cached\\npersonality cached\\n' \\
    > debug/0/connection
"""


def test_a_mount_crosses_the_files_of_its_path(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The command itself, with stand-ins for mount.nfs, udevadm and the kernel's files."""
    directory = tmp_path / "mnt"
    for folder in ("mnt", "debug", "bdi/0:77"):
        (tmp_path / folder).mkdir(parents=True)
    stand_in.write_text(MOUNT_NFS.format(root=tmp_path, directory=directory))
    (tmp_path / "udevadm").write_text("#!/bin/sh\n")
    (tmp_path / "udevadm").chmod(0o755)
    used_by = "1 1 nfsrdma, Live 0x0\n"
    files = {"mountinfo": "", "table": "\n", "bdi/0:77/read_ahead_kb": "128",
             "modules": f"nfsrdma 1 0 - Live 0x0\nsunrpc {used_by}rdma_cm {used_by}"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    kernel = Machine(tmp_path / "root")
    for name, target in {
        "proc/self/mountinfo": "mountinfo", "proc/self/mountstats": "mountstats",
        "proc/modules": "modules", "proc/fs/nfsfs/volumes": "volumes", "sys/class/bdi": "bdi",
        "sys/kernel/debug/nfsrdma": "debug",
    }.items():  # fmt: skip
        kernel.path(name).parent.mkdir(parents=True, exist_ok=True)
        kernel.path(name).symlink_to(tmp_path / target)
    reading = (
        mounts.find, mounts.mounts, mounts.nfs_mounts, mount_state.state, sharing.client_transports,
        sharing.connection, sharing.server, sharing.sharing, sharing.switch,
        sharing.transport_numbers, transports.owner,
    )  # fmt: skip
    defaults: dict[Any, tuple[Path | Machine, ...]] = {
        mountinfo.read: (tmp_path / "mountinfo",),
        mountstats.read_at: (tmp_path / "mountstats",),
        mountstats.read_all: (tmp_path / "mountstats",),
        kernel_modules.loaded: (tmp_path,),
        kernel_modules.parameters: (tmp_path,),
        **dict.fromkeys(reading, (kernel,)),
        personality.client_transports: (tmp_path / "debug",),
        personality.require_module: (tmp_path / "table",),
        personality.table_entries: (tmp_path / "table",),
        readahead.get_kb: (tmp_path / "bdi",),
        readahead.set_kb: (tmp_path / "bdi",),
        readahead.verify: (tmp_path / "bdi",),
    }
    for function, paths in defaults.items():
        monkeypatch.setattr(function, "__defaults__", paths)
    requested_for = personality.requested_for.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(requested_for, "__defaults__", (tmp_path / "table",))
    monkeypatch.setattr(personality, "DEBUG", tmp_path / "debug")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    trace = Trace()

    sys.setprofile(trace)
    try:
        mount_command.mount("127.0.0.1:/export", str(directory), ["ro"], personality="cached",
                            rsize="64k", read_ahead=4)  # fmt: skip
    finally:
        sys.setprofile(None)
    _, row = capsys.readouterr().out.splitlines()
    assert row.split()[1:] == [
        *("localhost:/export", "nfsrdma", "4.2", "65536", "0", "1", "to", "127.0.0.1"),
        *("256", "KiB", "=", "4", "blocks", "cached", "-"),
    ]  # fmt: skip
    section = sections()["A mount"]
    assert trace.files == {*section.files, *section.leaves}
    # before the lock, with the lock, after mount.nfs, and to check mountstats
    assert trace.calls["host/nfs/mountinfo.py", "parse"] == 4
    assert trace.calls["host/nfs/mountstats.py", "read_all"] == 1
    functions = {(file, name) for file, names in section.functions.items() for name in names}
    assert functions <= trace.calls.keys()


def test_a_trial_crosses_the_files_of_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second trial of a sweep; the mount itself is a stand-in, as mounting needs root."""
    target = Target.parse("server:/export")
    made = Mount(target, tmp_path, "0:77", "nfs", "tcp", "3", 32768, 32768, 1, {})
    recorded = (DATA / "mountstats-6.12.txt").read_text()
    directory = mountstats.parse(recorded)[0].directory
    (tmp_path / "mountstats").write_text(recorded.replace(f" {directory} ", f" {tmp_path} "))
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(trial, "mount", lambda *_: SimpleNamespace(mount=made))
    monkeypatch.setattr(trial, "unmount", lambda *_, **__: None)
    monkeypatch.setattr(mountstats.read, "__defaults__", (tmp_path / "mountstats",))
    monkeypatch.setattr(readahead, "get_kb", lambda *_: 0)
    monkeypatch.setattr(readahead, "verify", lambda *_: 0)
    plan = Plan("server:/export", uid="p", file_size=1 << 20, directory=str(tmp_path), verify=False)
    (tmp_path / workload.file_name(plan)).write_bytes(bytes(plan.file_size))
    trace = Trace()

    options = Options(probes=False, prepare=lambda *_: nullcontext())
    with Store(tmp_path / "s.db") as store:
        for event in sweep(plan, store, options):
            if isinstance(event, TrialDone) and event.done == 2:
                sys.setprofile(None)
                break
            if isinstance(event, TrialDone):
                sys.setprofile(trace)
        records = store.trials()
    assert [record.reason for record in records] == ["", ""]
    section = sections()["A trial"]
    assert trace.files <= {*section.files, *section.leaves}
    mounting = {file for file in section.files if file.startswith("host/nfs/mount")}
    assert set(section.files) - mounting <= trace.files
