# SPDX-License-Identifier: Apache-2.0
"""Which module a transport takes, and what a mount with proto=rdma is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.files_made import write
from unit.host.nfs.requests_made import asks

from nfsrdma_tools.cli import module as command
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor.checks import kernel
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.kernel_modules import ModuleFile, parse_loaded
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.module import install, swap
from nfsrdma_tools.host.nfs.mountinfo import parse
from nfsrdma_tools.host.nfs.mounts import nfs_mounts
from nfsrdma_tools.host.transports import (
    Circumstances,
    Origin,
    check_transport_module,
    family,
    named,
    owner,
)

LINE = "58 1 0:45 / /mnt rw shared:1 - nfs4 server:/export rw,vers=4.2,proto={proto},rsize=65536"


@pytest.fixture
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    users = f"{name}," if name else "-"
    text = f"sunrpc 1 1 {users} Live 0x0\nrdma_cm 1 1 {users} Live 0x0\n"
    monkeypatch.setattr(kernel_modules, "loaded", lambda *_: parse_loaded(text))
    return name


@pytest.mark.parametrize(
    ("carrier", "proto", "transport"),
    [
        ("nfsrdma", "rdma", "nfsrdma"),
        ("nfsrdma", "rdma6", "nfsrdma"),
        ("nfsrdma", "tcp6", "tcp"),
        ("rpcrdma", "rdma6", "rdma"),
        ("", "rdma", "rdma"),
    ],
    indirect=["carrier"],
)
def test_a_mount_is_named_after_the_module_that_carries_it(
    carrier: str, proto: str, transport: str
) -> None:
    assert named(proto, owner()) == transport
    (entry,) = parse(LINE.format(proto=proto))
    assert [mount.transport for mount in nfs_mounts([entry])] == [transport]


@pytest.mark.parametrize(
    ("carrier", "transport", "words"),
    [
        ("rpcrdma", "nfsrdma", "requested nfsrdma, got rpcrdma (nfsrdma module load)"),
        ("nfsrdma", "rdma", "requested rpcrdma, got nfsrdma (nfsrdma module unload,"),
        ("nfsrdma", "nfsrdma", ""),
        ("rpcrdma", "rdma", ""),
        ("vendor_rdma", "rdma", ""),
        ("nfsrdma", "tcp", ""),
        ("rpcrdma", "tcp", ""),
    ],
    indirect=["carrier"],
)
def test_a_mount_that_would_get_another_module_is_refused(
    carrier: str, transport: str, words: str
) -> None:
    if words:
        with pytest.raises(MismatchError) as error:
            check_transport_module(transport)
        assert words in str(error.value)
    else:
        check_transport_module(transport)


@pytest.mark.parametrize("carrier", [""], indirect=True)
@pytest.mark.parametrize("would", ["rpcrdma", "nfsrdma"])
def test_with_none_loaded_it_counts_what_would_be(
    carrier: str, would: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "would_load", lambda: would)
    right, wrong = ("nfsrdma", "rdma") if would == "nfsrdma" else ("rdma", "nfsrdma")
    check_transport_module(right)
    with pytest.raises(MismatchError):
        check_transport_module(wrong)


@pytest.mark.parametrize(
    ("alias", "built", "loads"),
    [("rpcrdma", True, "rpcrdma"), ("nfsrdma", True, "nfsrdma"), ("nfsrdma", False, "rpcrdma")],
)
def test_ours_is_loaded_only_where_it_is_built(
    alias: str, built: bool, loads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ModuleFile("nfsrdma", "/lib/nfsrdma.ko") if built else None
    monkeypatch.setattr(transports, "alias_target", lambda: alias)
    monkeypatch.setattr(kernel_modules, "on_disk", lambda _: file)
    assert transports.would_load() == loads


def test_ours_is_asked_for_as_rdma() -> None:
    assert [family(name) for name in ("tcp", "rdma", "nfsrdma")] == ["tcp", "rdma", "rdma"]
    request = asks(transport="nfsrdma")
    assert "proto=rdma,port=20049" in request.mount_options(request.target.netid(request.family))
    with pytest.raises(UserError, match="transport is 'ours'"):
        asks(transport="ours")


RELEASE = "5.14.0-503.11.1.el9_5.x86_64"
OLDER = "5.14.0-427.13.1.el9_4.x86_64"
BELOW = f"/lib/modules/{RELEASE}"
KERNELS = ModuleFile(
    name="rpcrdma",
    path=f"{BELOW}/kernel/net/sunrpc/xprtrdma/rpcrdma.ko.xz",
    description="RPC/RDMA Transport",
    vermagic=f"{RELEASE} SMP preempt mod_unload modversions",
    srcversion="AAAA",
    intree=True,
    aliases=("svcrdma", "xprtrdma", "rpcrdma6"),
    depends=("sunrpc", "ib_core", "rdma_cm"),
    signer="Distribution kernel signing key",
)
VENDORS = KERNELS._replace(
    path=f"{BELOW}/weak-updates/mlnx-nfsrdma/rpcrdma.ko",
    vermagic=f"{OLDER} SMP preempt mod_unload modversions",
    intree=False,
    depends=("ib_core", "rdma_cm", "sunrpc", "mlx_compat"),
)
VASTS = KERNELS._replace(
    path=f"{BELOW}/extra/vastnfs/bundle/net/sunrpc/xprtrdma/rpcrdma.ko", intree=False
)
DUMMY = ModuleFile(
    name="rpcrdma",
    path=f"{BELOW}/extra/mlnx-ofa_kernel/net/sunrpc/xprtrdma/rpcrdma.ko",
    description="rpcrdma dummy kernel module",
    version="24.10-1.1.4",
    vermagic=f"{RELEASE} SMP preempt mod_unload modversions",
)
IDLE = Circumstances(RELEASE, loaded=False)
LOADED = Circumstances(RELEASE, loaded=True, srcversion="AAAA")


def machine(root: Path, **outputs: str) -> Machine:
    """A host with these files, and with the output of programs by name."""
    write(root, "proc/sys/kernel/osrelease", f"{RELEASE}\n")
    argvs = {"dmesg": ("dmesg",), "modinfo": ("modinfo", "-0", "--", "rpcrdma")}
    programs = {argvs[name]: Result(argvs[name], text, "", 0) for name, text in outputs.items()}
    return Machine(root, recording=Recording(programs={**programs}))


def module(host: Machine) -> Finding:
    (only,) = kernel.module(host)
    return only


@pytest.mark.parametrize(
    ("file", "kind", "label"),
    [
        (KERNELS, "kernel", "of the kernel"),
        (ModuleFile("rpcrdma", ""), "kernel", "of the kernel"),
        (VENDORS, "rdma stack", "of MLNX_OFED or DOCA"),
        (VENDORS._replace(depends=(), version="26.01"), "rdma stack", "of MLNX_OFED or DOCA 26.01"),
        (VASTS, "nfs stack", "of vastnfs"),
        (VASTS._replace(path=VASTS.path.replace("vast", "dell")), "nfs stack", "of dellnfs"),
        (
            VASTS._replace(path=f"{BELOW}/updates/dkms/rpcrdma.ko", version="2.0"),
            *("dkms", "built by DKMS, version 2.0"),
        ),
        (VASTS._replace(path=f"{BELOW}/extra/rpcrdma.ko"), "other", "of a vendor"),
        (DUMMY, "dummy", "an empty module"),
    ],
)
def test_the_origin_is_named(tmp_path: Path, file: ModuleFile, kind: str, label: str) -> None:
    origin = transports.origin(file, machine(tmp_path))
    assert (origin.kind, origin.label) == (kind, label)


def test_a_bundle_of_dkms_is_known_by_the_loaded_sunrpc(tmp_path: Path) -> None:
    file = VASTS._replace(path=f"{BELOW}/updates/dkms/rpcrdma.ko")
    write(tmp_path, "sys/module/sunrpc/parameters/nfs_bundle_version", "4.0.34-vastdata\n")
    origin = transports.origin(file, machine(tmp_path))
    assert origin == Origin("nfs stack", "of vastnfs 4.0.34-vastdata")


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 2),
        ({"description": ""}, 1),
        ({"description": "", "depends": ("rdma_cm",)}, 0),
        # rdma_cm may be built in
        ({"description": "", "aliases": ("svcrdma",)}, 0),
        ({"path": ""}, 0),
    ],
)
def test_a_dummy_is_known_by_what_it_lacks(changes: dict[str, Any], count: int) -> None:
    assert len(transports.dummy_marks(DUMMY._replace(**changes))) == count


@pytest.mark.parametrize(
    ("file", "known", "status", "words"),
    [
        (KERNELS, LOADED, "ok", "of the kernel, for client and server"),
        (KERNELS, IDLE, "ok", "not loaded; for client and server"),
        (ModuleFile("rpcrdma", ""), IDLE, "ok", "built in"),
        (KERNELS, LOADED._replace(srcversion="BBBB"), "warning", "loaded module has srcversion"),
        (DUMMY, IDLE, "error", "not the real module"),
        # also loaded it does nothing
        (DUMMY, LOADED, "error", "dummy kernel module"),
        # weak-updates: of an older kernel of the release
        (VENDORS, LOADED, "ok", f"built for kernel {OLDER}, which this kernel has accepted"),
        (VENDORS, IDLE, "warning", "and it is not loaded"),
        (VENDORS, IDLE._replace(loaded=None), "warning", "it may not be loaded"),
        (
            VENDORS,
            IDLE._replace(refused="rpcrdma: Unknown symbol ib_alloc_mr (err -22)"),
            *("error", "the kernel refused it: rpcrdma: Unknown symbol"),
        ),
        (KERNELS._replace(vermagic=f"{OLDER} SMP"), IDLE, "error", "without symbol versions"),
        (KERNELS._replace(vermagic=f"{OLDER} SMP"), LOADED, "ok", "has accepted"),
        (
            VASTS._replace(signer=""),
            IDLE._replace(signed_only="lockdown is integrity"),
            *("error", "is not signed, and lockdown is integrity"),
        ),
        (
            VASTS,
            IDLE._replace(signed_only="lockdown is integrity"),
            *("ok", "not loaded; for client and server, with remoteports="),
        ),
        (KERNELS, IDLE._replace(foreign=("rdma_cm",)), "warning", "rdma_cm is of another origin"),
        (
            VENDORS._replace(aliases=(), vermagic=KERNELS.vermagic),
            *(IDLE, "warning", "no alias by which nfsd"),
        ),
    ],
)
def test_a_file_is_judged(
    tmp_path: Path, file: ModuleFile, known: Circumstances, status: str, words: str
) -> None:
    finding = kernel.judge_module(file, transports.origin(file, machine(tmp_path)), known)
    assert (finding.status, words in finding.found) == (status, True), finding
    assert bool(finding.remedy) == (status != "ok")


def test_no_module_is_an_error_unless_one_is_loaded() -> None:
    assert kernel.judge_no_module(IDLE, "get it").status == "error"
    assert kernel.judge_no_module(LOADED, "get it").status == "warning"


MODULES = """\
ib_core 475136 2 rdma_cm,mlx5_ib, Live 0x0 (OE)
rdma_cm 155648 0 - Live 0x0 (OE)
sunrpc 839680 1 nfs, Live 0x0
"""


@pytest.mark.parametrize(
    ("file", "foreign"),
    [
        (KERNELS, ("ib_core", "rdma_cm")),
        (VENDORS, ()),
        (VASTS, ("sunrpc",)),
        (KERNELS._replace(intree=False), ()),
    ],
)
def test_loaded_modules_of_another_origin_are_named(
    tmp_path: Path, file: ModuleFile, foreign: tuple[str, ...]
) -> None:
    write(tmp_path, "proc/modules", MODULES)
    assert transports.circumstances(file, machine(tmp_path)).foreign == foreign


def test_the_kernels_refusal_is_found_in_its_log(tmp_path: Path) -> None:
    write(tmp_path, "proc/modules", "")
    lines = (
        "[    9.1] mlx5_ib: loading out-of-tree module taints kernel.\n"
        "[   11.2] rpcrdma: disagrees about version of symbol ib_map_mr_sg\n"
    )
    circumstances = transports.circumstances(KERNELS, machine(tmp_path, dmesg=lines))
    assert circumstances.refused == "rpcrdma: disagrees about version of symbol ib_map_mr_sg"
    # a module that is loaded now has been accepted since
    write(tmp_path, "proc/modules", "rpcrdma 1 0 - Live 0x0\n")
    assert transports.circumstances(KERNELS, machine(tmp_path, dmesg=lines)).refused == ""


@pytest.mark.parametrize(
    ("enforce", "lockdown", "rule"),
    [
        ("N\n", "[none] integrity confidentiality\n", ""),
        ("Y\n", "", "module.sig_enforce is on"),
        ("N\n", "none [integrity] confidentiality\n", "lockdown is integrity"),
        ("", "", ""),
    ],
)
def test_the_rule_of_signatures_is_read(
    tmp_path: Path, enforce: str, lockdown: str, rule: str
) -> None:
    write(tmp_path, "sys/module/module/parameters/sig_enforce", enforce)
    write(tmp_path, "sys/kernel/security/lockdown", lockdown)
    assert transports.signature_rule(machine(tmp_path)) == rule


INFO = (
    f"filename:       {VASTS.path}\0alias: svcrdma\0alias: xprtrdma\0name: rpcrdma\0"
    f"depends: sunrpc,rdma_cm,ib_core\0vermagic: {VASTS.vermagic}\0"
)


@pytest.mark.parametrize(
    ("files", "info", "words"),
    [
        ({"proc/driver/nvidia-fs/modules": "nvme: 1\nrpcrdma: 1\n"}, INFO, "Storage uses this"),
        ({"proc/driver/nvidia-fs/modules": "nvme: 1\n"}, INFO, ""),
        ({"proc/modules": "nvidia_fs 1 0 - Live 0x0 (OE)\n"}, INFO, "may use this rpcrdma"),
        ({"proc/modules": "nvidia_fs 1 0 - Live 0x0 (OE)\n"}, f"{INFO}intree: Y\0", ""),
        ({"proc/modules": "nvme 1 0 - Live 0x0\n"}, INFO, ""),
    ],
)
def test_what_gpudirect_storage_would_lose_is_told(
    tmp_path: Path, files: dict[str, str], info: str, words: str
) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    loss = transports.gpudirect_loss(machine(tmp_path, modinfo=info))
    assert words in loss if words else loss == ""


def test_load_and_install_warn_of_the_loss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transports, "gpudirect_loss", lambda: "GPUDirect Storage uses it")
    monkeypatch.setattr(swap, "loading", lambda *_: [])
    monkeypatch.setattr(install, "installing", list)
    warning = "nfsrdma: warning: GPUDirect Storage uses it\n"
    command.load(dry_run=True)
    command.install(dry_run=True, as_json=True)
    assert capsys.readouterr().err == 2 * warning
    # beside rpcrdma, which keeps its users
    command.load(setting=["client=N", "server_name=nfr"], dry_run=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("module", "running", "whose"),
    [
        ("", "", ""),
        ("nfsrdma", "AAAA", "of this project"),
        ("rpcrdma", "AAAA", "of vastnfs"),
        ("rpcrdma", "", "of vastnfs"),
        # replaced since it was loaded
        ("rpcrdma", "BBBB", "of unknown origin"),
    ],
)
def test_the_origin_of_the_loaded_module(
    monkeypatch: pytest.MonkeyPatch, module: str, running: str, whose: str
) -> None:
    monkeypatch.setattr(kernel_modules, "on_disk", lambda *_: VASTS)
    monkeypatch.setattr(kernel_modules, "srcversion", lambda *_: running)
    assert transports.loaded_origin(module) == whose


def test_an_error_is_a_warning_as_long_as_ours_is_loaded(tmp_path: Path) -> None:
    info = "filename: /x.ko\0description: rpcrdma dummy kernel module\0name: rpcrdma\0"
    assert module(machine(tmp_path, modinfo=info)).status == "error"
    write(tmp_path, "proc/modules", "nfsrdma 1 0 - Live 0x0 (OE)\n")
    finding = module(machine(tmp_path, modinfo=info))
    assert (finding.status, "nfsrdma is loaded instead" in finding.found) == ("warning", True)
