# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.probes.cpu_layers import Frame
from nfsrdma_tools.probes.sets.cpu import Symbols

MODULES = """rdma_rxe 192512 2 - Live 0xffffffffc0a00000
crc32_pclmul 12288 0 - Live 0xffffffffc08c0000
ata_piix 45056 0 - Live 0xffffffffc0937000 (E)
"""
NAMES = {
    0xFFFFFFFF81000010: b"vfs_read [kernel]",
    0xFFFFFFFFC0A00020: b"do_task [rdma_rxe]",
    # ata_piix was initialised here, and that code is gone
    0xFFFFFFFFC08C0010: b"piix_init [ata_piix]",
    0xFFFFFFFFC0C00000: b"bpf_prog_6deef7357e7b4530_x [bpf]",
    0x10: b"[unknown]",
}


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        (0xFFFFFFFF81000010, Frame("vfs_read")),
        (0xFFFFFFFFC0A00020, Frame("do_task", "rdma_rxe")),
        (0xFFFFFFFFC08C0010, Frame("(no name)", "crc32_pclmul")),
        (0xFFFFFFFFC0C00000, Frame("bpf_prog_6deef7357e7b4530_x", "bpf")),
        (0x10, Frame("[unknown]")),
    ],
)
def test_a_name_of_code_that_is_gone_is_not_believed(
    tmp_path: Path, address: int, wanted: Frame
) -> None:
    (tmp_path / "modules").write_text(MODULES)
    symbols = Symbols(lambda at, show_module: NAMES[at], Machine(procfs=tmp_path))
    assert symbols.frame(address) == wanted
