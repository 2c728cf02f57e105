# SPDX-License-Identifier: Apache-2.0
"""Commands in nodes, the toolkit that they get, and their inventory."""

import importlib.resources
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from nfsrdma_tools.lab import nodes
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.nodes import Nodes, Ssh, inventory, pack


def test_arguments_reach_a_node_as_they_are() -> None:
    ssh = Ssh(Path("/l"), "n", Path("/k"))
    assert ssh.argv("echo", "a b;$(reboot)")[-1] == "echo 'a b;$(reboot)'"


@pytest.mark.parametrize(
    ("stdin", "stdout", "terminal"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_ssh_gets_a_terminal_unless_its_input_or_output_is_a_file(
    stdin: bool, stdout: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal in the node would change each newline of a store that goes to a file."""

    def argv(*command: str, tty: bool = False) -> tuple[str, ...]:
        return ("sh", "-c", f"exit {int(tty)}")

    node = SimpleNamespace(argv=argv)
    lab = SimpleNamespace(config=LabConfig("demo"), ssh=lambda _: node, check=lambda: None)
    monkeypatch.setattr(nodes, "attach", lambda _: lab)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: stdin))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: stdout))
    assert nodes.interactive("demo", ["cat", "sweep.db"]) == int(terminal)


def test_a_report_of_a_kernel_ends_a_command_that_would_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check() -> None:
        raise KernelReportError("the kernel of solo reports: Kernel panic", "see the console")

    hung_up: list[bool] = []
    node = SimpleNamespace(
        argv=lambda *_, **__: ("sleep", "3600"), hang_up_if_dead=lambda: hung_up.append(True)
    )
    lab = SimpleNamespace(config=LabConfig("demo"), ssh=lambda _: node, check=check)
    monkeypatch.setattr(nodes, "attach", lambda _: lab)
    with pytest.raises(KernelReportError):
        nodes.interactive("demo", [])
    assert hung_up


def test_the_toolkit_is_packed_without_bytecode_and_with_the_labs_facts() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack({"clock": "wall"}))) as tar:
        names = tar.getnames()
        facts = tar.extractfile("etc/nfsrdma-lab.json")
        assert facts is not None
        assert facts.read() == b'{"clock": "wall"}'
    assert "opt/nfsrdma/src/nfsrdma_tools/cli/main.py" in names
    assert "opt/nfsrdma/src/nfsrdma_tools/data/kmod/Kbuild" in names
    assert "opt/nfsrdma/src/nfsrdma_tools/data/bpf/README.md" in names
    assert not [n for n in names if "__pycache__" in n]


def test_what_a_build_of_the_module_left_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, kmod = tmp_path / "nfsrdma_tools", tmp_path / "kmod"
    for folder in (package, kmod, tmp_path / "bpf", tmp_path / "lib"):
        folder.mkdir()
    for name in ("pyproject.toml", "lib/nfsrdma.h", "lib/load.h", "lib/session.c"):
        (tmp_path / name).touch()
    left = (
        *("nfsrdma.ko", "wire.o", "nfsrdma.mod", "nfsrdma.mod.c", ".wire.o.cmd"),
        *("Module.symvers", "modules.order", "features.h"),
    )
    for name in ("Kbuild", "wire.c", "wire.h", "features.sh", *left):
        (kmod / name).touch()
    monkeypatch.setattr(importlib.resources, "files", lambda _: package)
    with tarfile.open(fileobj=io.BytesIO(pack({}))) as tar:
        names = tar.getnames()
    headers = [Path(name).name for name in names if "/data/lib" in name]
    assert headers == ["nfsrdma.h", "load.h"]
    packed = {Path(name).name for name in names if "/data/kmod/" in name}
    assert packed == {"Kbuild", "wire.c", "wire.h", "features.sh"}


def test_nodes_get_the_builds_where_programs_look_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, client = tmp_path / "nfsrdma-0f.ko", tmp_path / "libnfsrdma-1"
    client.mkdir()
    for file in (build, client / "libnfsrdma.so.0", client / "librxe-rdmav34.so"):
        file.write_text(file.name)
    sent: list[bytes] = []
    monkeypatch.setattr(Nodes, "run", lambda *_, stdin, **__: sent.append(stdin))
    lab_nodes(shape="pair").refresh(build, client)
    assert len(sent) == 2
    with tarfile.open(fileobj=io.BytesIO(sent[0])) as tar:
        packed = {each.name: each for each in tar}
    assert "opt/nfsrdma/src/modules/0f/nfsrdma.ko" in packed
    # client/library.py looks there, as in a checkout
    entry = packed["opt/nfsrdma/src/lib/build/libnfsrdma.so.0"]
    assert (entry.uid, entry.gid) == (0, 0)
    assert "opt/nfsrdma/src/lib/build/librxe-rdmav34.so" in packed


def test_refresh_removes_a_driver_file_whose_provider_is_gone(tmp_path: Path) -> None:
    """libibverbs would warn of it on the standard error of each program."""
    build, drivers = tmp_path / "build", tmp_path / "libibverbs.d"
    for folder in (build, drivers):
        folder.mkdir()
    # Debian's package has rxe
    (drivers / "rxe.driver").write_text("driver rxe\n")
    for name in ("librxe", "libnfsrdma_card"):
        (build / f"{name}-rdmav34.so").touch()

    def refresh() -> dict[str, str]:
        argv = ("sh", "-ec", nodes._PROVIDERS, "sh", build, drivers)
        assert subprocess.run(argv, check=True, capture_output=True).stderr == b""
        return {file.name: file.read_text() for file in drivers.iterdir()}

    package = {"rxe.driver": "driver rxe\n"}
    both = package | {"nfsrdma_card.driver": f"driver {build}/libnfsrdma_card\n"}
    assert refresh() == both
    assert refresh() == both
    # a refresh without the client library
    shutil.rmtree(build)
    assert refresh() == package


def lab_nodes(**more: object) -> Nodes:
    return Nodes(LabConfig("demo", **more), "tcg", Path("/keys"))  # type: ignore[arg-type]


def test_inventory_has_a_server_and_its_clients_over_the_labs_own_connections() -> None:
    lab = lab_nodes(shape="pair", clients=2)
    groups = inventory(lab)
    assert list(groups["nfsrdma_servers"]["hosts"]) == ["server"]
    assert list(groups["nfsrdma_clients"]["hosts"]) == ["client1", "client2"]
    assert set(groups["all"]["hosts"]) == {"server", "client1", "client2"}
    for node, way in groups["all"]["hosts"].items():
        assert way["ansible_ssh_args"].endswith(f"-o ControlPath={lab.ssh(node).control}")
        assert "StrictHostKeyChecking=yes" in way["ansible_ssh_args"]
    assert json.loads(json.dumps(groups)) == groups


def test_one_machine_is_both_in_a_solo_lab() -> None:
    hosts = inventory(lab_nodes())
    groups = [list(hosts[name]["hosts"]) for name in ("nfsrdma_servers", "nfsrdma_clients")]
    assert groups == [["solo"], ["solo"]]
