# SPDX-License-Identifier: Apache-2.0
"""Hints name this distribution's packages and its package manager."""

from pathlib import Path

import pytest
from unit.files_made import write

from nfsrdma_tools.doctor.checks import kernel, nfs_mounts, probe_requirements
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.probes import session

RELEASE = "6.12.48+deb13-amd64"
SYSTEMS = {
    "ID=debian\n": (
        *(
            "apt install",
            f"linux-headers-{RELEASE}",
            "python3-bpfcc",
            "nfs-common",
            "nfs-kernel-server",
        ),
        f"linux-image-{RELEASE}, then boot it (cloud kernels lack rpcrdma)",
    ),
    'ID=ubuntu\nID_LIKE="debian"\n': (
        *(
            "apt install",
            f"linux-headers-{RELEASE}",
            "python3-bpfcc",
            "nfs-common",
            "nfs-kernel-server",
        ),
        f"linux-modules-extra-{RELEASE}",
    ),
    'ID="rocky"\nID_LIKE="rhel centos fedora"\n': (
        *("dnf install", f"kernel-devel-{RELEASE}", "python3-bcc", "nfs-utils", "nfs-utils"),
        f"kernel-modules-{RELEASE}",
    ),
    "ID=fedora\n": (
        *(
            "dnf install",
            f"kernel-devel-{RELEASE}",
            "python3-bcc",
            "nfs-utils",
            "nfs-utils",
            f"kernel-modules-{RELEASE}",
        ),
    ),
    'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n': (
        *(
            "zypper install",
            "kernel-default-devel",
            "python3-bcc",
            "nfs-client",
            "nfs-kernel-server",
        ),
        "kernel-default (kernel-default-base lacks it)",
    ),
    "ID=arch\n": ("pacman -S", "linux-headers", "python-bcc", "nfs-utils", "nfs-utils", "linux"),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Machine, tuple[str, ...]]:
    write(tmp_path, "etc/os-release", request.param)
    write(tmp_path, "proc/sys/kernel/osrelease", RELEASE)
    return Machine(tmp_path), SYSTEMS[request.param]


def test_each_distribution_has_its_own_names(system: tuple[Machine, tuple[str, ...]]) -> None:
    machine, (command, *names) = system
    wanted = ("headers", "bcc", "nfs-utils", "nfs-server", "rpcrdma")
    commands = [packages.install(name, RELEASE, Machine(machine.root)) for name in wanted]
    assert commands == [f"{command} {name}" for name in names]


def test_doctor_names_them(
    system: tuple[Machine, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, (command, headers, bcc, nfs, *_) = system
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert [each.remedy for each in kernel.headers(machine)] == [f"{command} {headers}"]
    assert [each.remedy for each in nfs_mounts.utils(machine)] == [f"{command} {nfs}"]
    remedy = probe_requirements.judge_bcc(
        1, "", "No module named 'bcc'", Machine(machine.root)
    ).remedy
    assert remedy.startswith(f"{command} {bcc}, and a venv with")
    remedy = probe_requirements.judge_bcc(1, "", "AttributeError", Machine(machine.root)).remedy
    assert remedy.startswith(f"pip uninstall bcc; {command} {bcc}")


def test_an_unknown_system_gets_a_remedy_without_package(tmp_path: Path) -> None:
    assert packages.install("headers", "R", Machine(tmp_path)) == "install the headers of kernel R"
    write(tmp_path, "etc/os-release", "ID=plan9\n")
    assert packages.install("bcc", machine=Machine(tmp_path)) == "install BCC's Python module"


@pytest.mark.parametrize(
    ("release", "by_debian"),
    [
        ("6.1.0-28-amd64", True),
        ("6.1.0-28-cloud-amd64", True),
        ("6.12.48+deb13-rt-arm64", True),
        ("6.12.9-686-pae", True),
        ("6.18.44-fc-v669", False),
        ("6.8.12-4-pve", False),
        ("6.12.0", False),
    ],
)
def test_no_package_of_a_kernel_that_debian_did_not_build(
    tmp_path: Path, release: str, by_debian: bool
) -> None:
    write(tmp_path, "etc/os-release", "ID=debian\n")
    for name in ("headers", "rpcrdma"):
        assert ("apt install" in packages.install(name, release, Machine(tmp_path))) == by_debian
    assert packages.install("nfs-utils", release, Machine(tmp_path)) == "apt install nfs-common"


def test_probes_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "install", lambda name, release="": f"get {name} {release}")
    monkeypatch.setitem(__import__("sys").modules, "bcc", None)
    with pytest.raises(UserError, match="get bcc"):
        session.bcc()
