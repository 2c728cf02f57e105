# SPDX-License-Identifier: Apache-2.0
"""The port numbers of NFS stand once in the package, and the copies outside of it are equal."""

import ast
import re
from pathlib import Path

from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT, ROCE_PORT

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "nfsrdma_tools"
HOME = PACKAGE / "nfs_ports.py"


def numbers(path: Path) -> set[object]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def test_no_other_file_of_the_package_has_the_numbers() -> None:
    ports = {NFS_PORT, RDMA_PORT, ROCE_PORT}
    ports_or_texts = ports | {str(port) for port in ports}
    assert numbers(HOME) >= ports
    assert [path for path in PACKAGE.rglob("*.py") if numbers(path) & ports_or_texts] == [HOME]


def test_help_texts_name_the_port() -> None:
    for name in ("mount", "ping", "server"):
        ports = re.findall(r"\b20\d{3}\b", (PACKAGE / f"cli/{name}.py").read_text())
        assert ports == [str(RDMA_PORT)]


def test_the_copies_outside_of_the_package_are_equal() -> None:
    library = (ROOT / "lib/session.c").read_text()
    assert re.findall(r"^#define PORT_DEFAULT\s+(\d+)$", library, re.M) == [str(RDMA_PORT)]
    definition = (ROOT / "playbooks/plugins/module_utils/definition.py").read_text()
    assert re.findall(r"\((\d+) if proto == .rdma.", definition) == [str(RDMA_PORT)]
