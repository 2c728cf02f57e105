# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import parse_loaded, parse_modinfo, transport_owners
from nfsrdma_tools.host.machine import Machine

RELEASE = "6.12.107+deb13-amd64"

# lines of a Debian 13 machine
PROC = """\
rpcrdma 339968 0 - Live 0x0000000000000000
sunrpc 839680 6 rpcrdma,nfsv4,nfs,lockd,auth_rpcgss,nfsd, Live 0x0000000000000000
rdma_cm 155648 2 rpcrdma,rdma_ucm, Live 0x0000000000000000
rdma_ucm 32768 0 - Live 0x0000000000000000
nvidia 62734336 0 [permanent], Live 0x0000000000000000 (POE)
"""

REAL = (
    f"filename:       /lib/modules/{RELEASE}/kernel/net/sunrpc/xprtrdma/rpcrdma.ko.xz\0"
    "alias:          rpcrdma6\0alias:          xprtrdma\0alias:          svcrdma\0"
    "license:        Dual BSD/GPL\0description:    RPC/RDMA Transport\0"
    "author:         Open Grid Computing and Network Appliance, Inc.\0"
    "srcversion:     0D5B9E2C\0depends:        sunrpc,ib_core,rdma_cm\0intree:         Y\0"
    f"name:           rpcrdma\0vermagic:       {RELEASE} SMP preempt mod_unload modversions \0"
)


def test_loaded_modules_are_read_with_their_users_and_taint() -> None:
    modules = parse_loaded(PROC)
    assert modules["sunrpc"].used_by == ("rpcrdma", "nfsv4", "nfs", "lockd", "auth_rpcgss", "nfsd")
    assert modules["rpcrdma"] == kernel_modules.Module("rpcrdma", 339968, 0, (), "")
    assert (modules["nvidia"].used_by, modules["nvidia"].taint) == ((), "POE")


def test_a_kernel_without_modules_has_none(tmp_path: Path) -> None:
    assert kernel_modules.loaded(Machine(procfs=tmp_path)) == {}


def test_modinfo_is_read() -> None:
    file = parse_modinfo(REAL)
    assert (file.name, file.path.endswith("xprtrdma/rpcrdma.ko.xz")) == ("rpcrdma", True), file
    assert file.aliases == ("rpcrdma6", "xprtrdma", "svcrdma")
    assert file.depends == ("sunrpc", "ib_core", "rdma_cm")
    assert (file.intree, file.builtin, file.srcversion) == (True, False, "0D5B9E2C")
    assert (file.built_for, file.has_symbol_versions) == (RELEASE, True)
    assert file.signer == ""


@pytest.mark.parametrize(
    ("rows", "signer"),
    [
        ("sig_id:         PKCS#7\0signer:         Vendor key\0", "Vendor key"),
        # without OpenSSL
        ("sig_id:         PKCS#7\0signer:         \0sig_hashalgo:   md4\0", "PKCS#7"),
    ],
)
def test_a_signature_is_seen(rows: str, signer: str) -> None:
    assert parse_modinfo(REAL + rows).signer == signer


@pytest.mark.parametrize(
    ("text", "owners"),
    [
        (PROC, ["rpcrdma"]),
        (PROC.replace("rpcrdma", "vendor_rdma"), ["vendor_rdma"]),
        (PROC.replace("rpcrdma,", ""), []),
        ("rpcrdma 1 0 - Live 0x0\nrdma_cm 1 1 rpcrdma, Live 0x0\n", ["rpcrdma"]),
        ("", []),
    ],
)
def test_the_owner_of_netid_rdma_uses_sunrpc_and_the_connection_manager(
    text: str, owners: list[str]
) -> None:
    assert transport_owners(parse_loaded(text)) == owners


def test_parameters_are_read_and_unreadable_ones_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "module/tcp_bbr/parameters"
    folder.mkdir(parents=True)
    (folder / "one").write_text("16\n")
    (folder / "a_directory_cannot_be_read").mkdir()
    assert kernel_modules.parameters("tcp-bbr", Machine(sysfs=tmp_path)) == {"one": "16"}


@pytest.mark.parametrize("name", ["", "-r", "a b", "a;b", "../x", "a\n", "x" * 60])
def test_a_hostile_module_name_reaches_no_program(name: str) -> None:
    with pytest.raises(UserError, match="module name"):
        kernel_modules.on_disk(name)
