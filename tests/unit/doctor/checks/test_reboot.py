# SPDX-License-Identifier: Apache-2.0
"""Whether a host is after a reboot as it is now: hosts below a folder that has all their files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.doctor.bundles_made import read_back
from unit.files_made import write

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.doctor import bundle as bundles
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.checks import AFTER_REBOOT, examine
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.doctor.vocabulary import WORDS
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host import boot_files
from nfsrdma_tools.host.boot_files import SYSCTLS, BootCommand, SoftLink
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.rdma.ports import Device, Link

SYSTEM = "etc/systemd/system"
WANTS = f"{SYSTEM}/multi-user.target.wants"
ADD = "/usr/sbin/rdma link add rxe4 type rxe netdev eth4"
MOUNT = (
    "71 25 0:61 / {} rw - nfs4 192.0.2.11:/a rw,vers=4.2,rsize=1048576,wsize=1048576,"
    "proto=rdma,port=20049,addr=192.0.2.11\n"
)


class Host:
    """A host below a folder: no recording, so a file that is missing does not exist."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine(root)
        self.links: list[Link] = []
        self.write("proc/modules", "")
        self.write("proc/self/mountinfo", "25 1 8:2 / / rw - ext4 /dev/sda2 rw\n")

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        write(self.machine.root, name, text).chmod(mode)

    def link(self, name: str, target: str) -> None:
        path = self.machine.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def soft(self, name: str = "rxe4", netdev: str = "eth4", driver: str = "rxe") -> None:
        device = Device(len(self.links), name, 1, "ca", "roce", driver, "", "")
        self.links.append(Link(device, 1, "ACTIVE", "LINK_UP", netdev))

    def findings(self) -> dict[str, Finding]:
        """The findings of the host, whose links are known as on a live one."""
        host = _Host(self.machine.root)
        host.known.extend(self.links)
        return {finding.name: finding for finding in examine(host, AFTER_REBOOT)}


class _Host(Machine):
    """A machine whose netlink is a list."""

    @property
    def known(self) -> list[Link]:
        links: list[Link] = self.__dict__.setdefault("_links", [])
        return links

    def once(self) -> Machine:
        return self

    def links(self) -> list[Link]:
        if not self.known:
            raise UserError("no RDMA link")
        return self.known


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# ---- soft links


def unit(host: Host, text: str, name: str = "rxe.service", *, wanted: str = "") -> None:
    host.write(f"{SYSTEM}/{name}", f"[Service]\nType=oneshot\n{text}\n")
    if wanted:
        host.link(f"{WANTS}/{wanted}", f"../{name}")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (f"ExecStart={ADD}", "ok"),
        (f"ExecStart={ADD}\nExecStart=\nExecStart=/usr/bin/true", "warning"),
        ("ExecStart=/usr/sbin/rdma link add \\\n  rxe4 type rxe netdev eth4", "ok"),
        ("ExecStart=/bin/sh -c 'for d in eth4; do rdma link add rxe4 netdev $d; done'", "ok"),
        ("ExecStart=nfsrdma link add rxe4 --type rxe --netdev=eth4", "ok"),
        ("ExecStart=nfsrdma link add rxe4 netdev eth4", "ok"),
        ("ExecStart=/usr/bin/rxe_cfg add eth4", "ok"),
        ("ExecStart=/usr/sbin/rdma link add rxe5 type rxe netdev eth5", "warning"),
        ("ExecStart=/usr/sbin/rdma link add rxe5 type rxe netdev eth4", "warning"),
        ("ExecStart=/usr/sbin/rdma link add $NAME type rxe netdev $DEVICE", "unknown"),
        ("ExecStart=/usr/sbin/rdma link add rxe4 type siw netdev eth4", "warning"),
        ("ExecStart=/usr/sbin/ip link add rxe4 type dummy", "warning"),
        (f"# ExecStart={ADD}", "warning"),
        (f"ExecStop={ADD}", "warning"),
    ],
)
def test_a_link_is_compared_with_the_commands_of_units(host: Host, text: str, status: str) -> None:
    host.soft()
    unit(host, text, wanted="rxe.service")
    finding = host.findings()["reboot link rxe4"]
    assert finding.status == status, finding
    assert ("gone after a reboot" in finding.found) == (status == "warning")
    assert finding.remedy or status == "ok"


def test_a_unit_that_nothing_starts_makes_no_link(host: Host) -> None:
    host.soft()
    unit(host, f"ExecStart={ADD}")
    finding = host.findings()["reboot link rxe4"]
    assert (finding.status, finding.remedy) == ("warning", "systemctl enable rxe.service")
    host.link(f"{WANTS}/rxe.service", "../rxe.service")
    assert host.findings()["reboot link rxe4"].status == "ok"


def test_a_masked_unit_makes_no_link(host: Host) -> None:
    host.soft()
    host.write("usr/lib/systemd/system/rxe.service", f"[Service]\nExecStart={ADD}\n")
    host.link(f"{WANTS}/rxe.service", "/usr/lib/systemd/system/rxe.service")
    assert host.findings()["reboot link rxe4"].status == "ok"
    host.link(f"{SYSTEM}/rxe.service", "/dev/null")
    assert host.findings()["reboot link rxe4"].status == "warning"


@pytest.mark.parametrize("how", ["timer", "Wants", "template"])
def test_a_unit_may_be_started_by_another_one(host: Host, how: str) -> None:
    host.soft()
    if how == "template":
        unit(host, "ExecStart=rdma link add rxe4 netdev %i", "rxe@.service")
        assert host.findings()["reboot link rxe4"].status == "warning"
        host.link(f"{WANTS}/rxe@eth4.service", "../rxe@.service")
    elif how == "timer":
        unit(host, f"ExecStart={ADD}")
        host.write(f"{SYSTEM}/rxe.timer", "[Timer]\nOnBootSec=1\n")
        host.link(f"{SYSTEM}/timers.target.wants/rxe.timer", "../rxe.timer")
    else:
        unit(host, f"ExecStart={ADD}")
        host.write(f"{SYSTEM}/first.service", "[Unit]\nWants=rxe.service\n[Service]\n")
        host.link(f"{WANTS}/first.service", "../first.service")
    assert host.findings()["reboot link rxe4"].status == "ok"


@pytest.mark.parametrize("line", ["/usr/local/sbin/links", "-/bin/bash /usr/local/sbin/links up"])
def test_a_script_of_a_unit_is_read(host: Host, tmp_path: Path, line: str) -> None:
    host.soft()
    unit(host, f"ExecStart={line}", wanted="rxe.service")
    script = "usr/local/sbin/links"
    host.write(script, f"#!/bin/bash\n# {ADD}\n/opt/private\n")
    assert host.findings()["reboot link rxe4"].status == "warning"
    host.write(script, f"#!/bin/bash\n/opt/private\n{ADD}\n")
    finding = host.findings()["reboot link rxe4"]
    assert (finding.status, "/usr/local/sbin/links adds it" in finding.found) == ("ok", True)
    made = bundles.collect(machine=Machine(host.machine.root))
    assert made.files[script].decode() == f"#!/bin/bash\n{ADD}\n"
    made.notes.links = host.links
    for bundle in (made, anonymized(made)):
        with read_back(bundle, tmp_path) as machine:
            (finding,) = (x for x in examine(machine, AFTER_REBOOT) if "reboot link" in x.name)
        assert finding.status == "ok", finding
    host.write(script, f"\x7fELF\n{ADD}\n")
    assert host.findings()["reboot link rxe4"].status == "warning"


def test_rc_local_runs_if_it_is_executable(host: Host) -> None:
    host.soft()
    host.write("etc/rc.local", f"#!/bin/sh\n{ADD}\n", 0o755)
    assert "/etc/rc.local adds it" in host.findings()["reboot link rxe4"].found
    host.write("etc/rc.local", f"#!/bin/sh\n{ADD}\n", 0o644)
    assert host.findings()["reboot link rxe4"].status == "warning"
    host.write("etc/rc.local", f"#!/bin/sh\n# {ADD}\n", 0o755)
    assert host.findings()["reboot link rxe4"].status == "warning"


def test_a_rule_of_udev_adds_a_link(host: Host) -> None:
    host.soft()
    rule = f'ACTION=="add", SUBSYSTEM=="net", KERNEL=="eth4", RUN+="{ADD}"\n'
    host.write("etc/udev/rules.d/70-rxe.rules", f"# {rule}")
    assert host.findings()["reboot link rxe4"].status == "warning"
    host.write("etc/udev/rules.d/70-rxe.rules", rule)
    assert "/etc/udev/rules.d/70-rxe.rules adds it" in host.findings()["reboot link rxe4"].found


def test_the_unit_of_the_playbooks_adds_its_link(host: Host) -> None:
    """The template of the role rdma_link, with the values of a link."""
    text = Path(__file__).parents[4].joinpath(
        "playbooks/roles/rdma_link/templates/link.service.j2"
    ).read_text()  # fmt: skip
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith("ExecStart=")]
    shown = [
        line.replace("{{ rdma_link_one.name }}", "rxe4")
        .replace("{{ rdma_link_one.netdev }}", "eth4")
        .replace("{{ rdma_link_one.type | default('rxe') }}", "rxe")
        for line in lines
    ]
    (made,) = (made for line in shown if (made := boot_files.soft_link(line)))
    assert made == SoftLink("rxe4", "rxe", "eth4")


def test_a_card_is_no_soft_link(host: Host) -> None:
    host.soft("mlx5_0", "eth4", "mlx5")
    assert not any("link" in name for name in host.findings())


# ---- modules

LOADED = "rdma_cm 1 1 {0}, Live 0x0\nsunrpc 1 1 {0}, Live 0x0\n{0} 1 0 - Live 0x0\n"


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ({}, "ok", "in no list: the first mount"),
        ({"etc/modules-load.d/a.conf": "svcrdma\n"}, "ok", "/etc/modules-load.d/a.conf lists it"),
        ({"etc/rdma/modules/rdma.conf": "# xprtrdma\n"}, "ok", "in no list"),
        ({"usr/lib/modules-load.d/a.conf": "xprtrdma\n", "etc/modules-load.d/a.conf": ""}, "ok",
         "in no list"),
        ({"etc/modprobe.d/no.conf": "blacklist rpcrdma\n"}, "warning", "blacklist rpcrdma"),
        ({"etc/modprobe.d/no.conf": "install rpcrdma /usr/bin/false\n"}, "warning", "may not load"),
        ({"etc/modprobe.d/x.conf": "alias rpcrdma nfsrdma\n"}, "warning", "maps mounts and nfsd"),
    ],
)  # fmt: skip
def test_the_kernels_module_is_loaded_on_request(
    host: Host, files: dict[str, str], status: str, words: str
) -> None:
    host.write("proc/modules", LOADED.format("rpcrdma"))
    for name, text in files.items():
        host.write(name, text)
    finding = host.findings()["reboot module rpcrdma"]
    assert (finding.status, words in finding.found) == (status, True), finding


def test_our_module_lasts_until_a_reboot_unless_it_is_installed(host: Host) -> None:
    host.write("proc/modules", LOADED.format("nfsrdma"))
    finding = host.findings()["reboot module nfsrdma"]
    assert (finding.status, finding.remedy) == ("warning", "nfsrdma module install")
    unit(host, "ExecStart=/usr/bin/nfsrdma module load", "ours.service", wanted="ours.service")
    assert host.findings()["reboot module nfsrdma"].status == "ok"
    (host.machine.root / WANTS / "ours.service").unlink()
    from nfsrdma_tools.host.module.install import _TEXT

    host.write("etc/modprobe.d/nfsrdma.conf", _TEXT)
    finding = host.findings()["reboot module nfsrdma"]
    assert (finding.status, "nfsrdma.conf maps mounts" in finding.found) == ("ok", True)


# ---- the server


def serve(host: Host, *, rdma: bool = True, threads: int = 8) -> None:
    text = "rdma 20049\ntcp 2049\n" if rdma else "tcp 2049\n"
    host.write("proc/fs/nfsd/portlist", text)
    host.write("proc/fs/nfsd/threads", f"{threads}\n")
    path = "usr/lib/systemd/system/nfs-server.service"
    host.write(path, "[Service]\nExecStart=/usr/sbin/rpc.nfsd\n")


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ({}, "warning", "gone after a reboot: nfsd's configuration does not request it"),
        ({"etc/nfs.conf": "[nfsd]\nrdma=y\n"}, "ok", "/etc/nfs.conf requests it"),
        ({"etc/nfs.conf.d/r.conf": "[nfsd]\nrdma=y\nrdma-port=20050\n"}, "warning",
         "/etc/nfs.conf.d/r.conf requests RDMA port 20050 in place of 20049"),
        ({"etc/default/nfs-kernel-server": 'RPCNFSDOPTS="--rdma"\n'}, "warning",
         "RPCNFSDOPTS of /etc/default/nfs-kernel-server is --rdma, which"),
        ({f"{SYSTEM}/a.service": "[Service]\nExecStart=nfsdctl listener +rdma:[::]:20049\n"},
         "warning", "/etc/systemd/system/a.service adds RDMA port 20049, and no unit starts"),
        ({f"{SYSTEM}/a.service": "[Service]\nExecStart=nfsdctl listener +rdma:[::]:20049\n",
          f"{WANTS}/a.service": ""}, "ok", "/etc/systemd/system/a.service adds RDMA port 20049"),
        ({f"{SYSTEM}/a.service": "[Service]\nExecStart=nfsdctl listener +rdma:[::]:20050\n",
          f"{WANTS}/a.service": ""}, "warning", "gone after a reboot"),
        ({f"{SYSTEM}/nfs-server.service.d/p.conf":
          "[Service]\nExecStartPost=/bin/sh -c 'echo rdma 20049 > /proc/fs/nfsd/portlist'\n"},
         "ok", "nfs-server.service.d/p.conf requests it"),
    ],
)  # fmt: skip
def test_a_listener_is_compared_with_what_a_boot_requests(
    host: Host, files: dict[str, str], status: str, words: str
) -> None:
    serve(host)
    for name, text in files.items():
        host.write(name, text)
    finding = host.findings()["reboot listener"]
    assert (finding.status, words in finding.found) == (status, True), finding
    assert finding.remedy or status == "ok"
    assert "rdma=n" not in finding.remedy


def test_a_server_without_rdma_may_get_it_at_boot(host: Host) -> None:
    serve(host, rdma=False)
    assert host.findings()["reboot listener"].status == "ok"
    host.write("etc/nfs.conf", "[nfsd]\nrdma=y\n")
    finding = host.findings()["reboot listener"]
    assert (finding.status, "requests RDMA port 20049 at boot" in finding.found) == (
        "warning",
        True,
    )


def test_a_unit_starts_the_server_that_runs(host: Host) -> None:
    serve(host)
    finding = host.findings()["reboot server"]
    assert (finding.status, "no unit starts" in finding.found) == ("warning", True)
    host.link(f"{WANTS}/nfs-server.service", "/usr/lib/systemd/system/nfs-server.service")
    assert host.findings()["reboot server"].status == "ok"
    host.write("proc/fs/nfsd/portlist", "")
    finding = host.findings()["reboot server"]
    assert (finding.status, "does not run now" in finding.found) == ("warning", True)


@pytest.mark.parametrize(
    ("now", "conf", "count", "expected"),
    [
        (8, "", "", {"reboot threads": "ok"}),
        (24, "", "", {"reboot threads": "warning"}),
        (24, "threads=24", "", {"reboot threads": "ok"}),
        (24, "threads=8", "", {"reboot threads": "warning"}),
        (8, "", "8", {"reboot threads": "ok"}),
        (8, "", "64", {"reboot threads": "ok", "unread file": "warning"}),
        (64, "", "64", {"reboot threads": "warning", "unread file": "warning"}),
        (64, "threads=64", "64", {"reboot threads": "ok"}),
        (64, "threads=64", "32", {"reboot threads": "ok", "unread file": "warning"}),
    ],
)
def test_threads_are_compared_with_what_a_boot_requests(
    host: Host, now: int, conf: str, count: str, expected: dict[str, str]
) -> None:
    serve(host, threads=now)
    host.write("etc/nfs.conf", f"[nfsd]\nrdma=y\n{conf}\n")
    host.write("etc/default/nfs-kernel-server", f"RPCNFSDCOUNT={count}\n")
    findings = host.findings()
    names = ("reboot threads", "unread file")
    assert {name: findings[name].status for name in names if name in findings} == expected


# ---- mounts and settings


@pytest.mark.parametrize(
    ("fstab", "status", "words"),
    [
        ("", "warning", "gone after a reboot: neither fstab nor a mount unit defines it"),
        ("192.0.2.11:/a /b nfs proto=rdma,port=20049 0 0", "ok", "fstab /b mounts it again"),
        ("192.0.2.11:/a /b nfs noauto,proto=rdma,port=20049 0 0", "warning", "noauto"),
        ("192.0.2.11:/a /b nfs noauto,x-systemd.automount,proto=rdma 0 0", "ok", "mounts it again"),
        ("192.0.2.11:/a /b nfs vers=3,proto=rdma 0 0", "warning", "now vers: 4.2"),
        ("192.0.2.11:/a /b nfs proto=tcp 0 0", "warning", "now mounted with rdma"),
        ("192.0.2.11:/other /b nfs proto=rdma 0 0", "warning", "now source: 192.0.2.11:/a"),
    ],
)
def test_a_mount_is_compared_with_its_definition(
    host: Host, fstab: str, status: str, words: str
) -> None:
    host.write("proc/self/mountinfo", MOUNT.format("/b"))
    host.write("etc/fstab", f"{fstab}\n")
    finding = host.findings()["reboot mount /b"]
    assert (finding.status, words in finding.found) == (status, True), finding


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("mount -t nfs -o rdma,port=20049 192.0.2.11:/a /srv/rdma", "ok"),
        ("/usr/bin/nfsrdma mount 192.0.2.11:/a /srv/rdma", "ok"),
        ("/usr/bin/nfsrdma umount /srv/rdma", "warning"),
        ("mount -t nfs -o rdma 192.0.2.11:/a /srv/rdma/b", "warning"),
        ("mount -t nfs 192.0.2.11:/a /srv/rdma", "warning"),
    ],
)
def test_a_script_may_mount(host: Host, tmp_path: Path, line: str, status: str) -> None:
    host.write("proc/self/mountinfo", MOUNT.format("/srv/rdma"))
    host.write("etc/rc.local", f"#!/bin/sh\n{line}\n", 0o755)
    assert host.findings()["reboot mount /srv/rdma"].status == status
    made = bundles.collect(machine=Machine(host.machine.root))
    with read_back(anonymized(made), tmp_path) as machine:
        (finding,) = (x for x in examine(machine, AFTER_REBOOT) if "reboot mount" in x.name)
    assert finding.status == status, finding


def test_mounts_of_kubelet_and_below_others_are_nobodys_definition(host: Host) -> None:
    pod = "/var/lib/kubelet/pods/0/volumes/kubernetes.io~nfs/a"
    below = MOUNT.format("/b/c").replace("71 25 0:61", "72 71 0:62")
    host.write("etc/fstab", "192.0.2.11:/a /b nfs proto=rdma 0 0\n")
    host.write("proc/self/mountinfo", MOUNT.format("/b") + below)
    assert [name for name in host.findings() if "mount" in name] == ["reboot mount /b"]
    host.write("proc/self/mountinfo", MOUNT.format(pod))
    finding = host.findings()[f"reboot mount {pod}"]
    assert (finding.status, "kubelet mounts it" in finding.found) == ("ok", True)


@pytest.mark.parametrize(
    ("kb", "rule", "status"),
    [
        (128, "", "ok"),
        (4096, "", "warning"),
        (4096, 'SUBSYSTEM=="bdi", ATTR{read_ahead_kb}="4096"\n', "ok"),
        (4096, 'SUBSYSTEM=="bdi", ATTR{read_ahead_kb}="512"\n', "warning"),
    ],
)
def test_the_read_ahead_is_compared_with_the_rules(
    host: Host, kb: int, rule: str, status: str
) -> None:
    host.write("proc/self/mountinfo", MOUNT.format("/b"))
    host.write("sys/class/bdi/0:61/read_ahead_kb", f"{kb}\n")
    host.write("etc/udev/rules.d/90-a.rules", rule)
    assert host.findings()["reboot read-ahead /b"].status == status


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, "warning"),
        ({"etc/sysctl.d/a.conf": "sunrpc.rdma_slot_table_entries=64\n"}, "ok"),
        ({"etc/sysctl.conf": "sunrpc/rdma_slot_table_entries = 64\n"}, "ok"),
        ({"usr/lib/sysctl.d/a.conf": "sunrpc.rdma_slot_table_entries=64\n",
          "etc/sysctl.d/a.conf": ""}, "warning"),
        ({"etc/sysctl.d/a.conf": "sunrpc.rdma_slot_table_entries=16\n"}, "warning"),
    ],
)  # fmt: skip
def test_a_sysctl_is_compared_with_its_files(
    host: Host, files: dict[str, str], status: str
) -> None:
    name = "reboot setting sunrpc.rdma_slot_table_entries"
    host.write("proc/sys/sunrpc/rdma_slot_table_entries", "128\n")
    assert name not in host.findings()
    host.write("proc/sys/sunrpc/rdma_slot_table_entries", "64\n")
    for file, text in files.items():
        host.write(file, text)
    assert host.findings()[name].status == status


@pytest.mark.parametrize(("now", "status"), [("16\n", "ok"), ("8\n", "warning")])
def test_a_module_parameter_is_compared_with_modprobe_d(host: Host, now: str, status: str) -> None:
    host.write("etc/modprobe.d/nfs.conf", "options nfs max_session_slots=16\n")
    host.write("sys/module/nfs/parameters/max_session_slots", now)
    assert host.findings()["reboot setting nfs.max_session_slots"].status == status


# ---- what would end


def test_the_users_of_module_and_driver_are_named(host: Host) -> None:
    host.soft("mlx5_0", "eth4", "mlx5")
    loaded = LOADED.format("rpcrdma").replace("rpcrdma 1 0 -", "rpcrdma 1 7 other,")
    host.write("proc/modules", f"{loaded}mlx5_ib 1 1 mlx5_vfio, Live 0x0\nsmc 1 0 - Live 0x0\n")
    host.write("proc/self/mountinfo", MOUNT.format("/b") + MOUNT.format("/c"))
    serve(host)
    host.write("proc/fs/nfsd/clients/4/info", "")
    findings = host.findings()
    assert findings["replace rpcrdma"].found == (
        "would end: mount /b of 192.0.2.11:/a, mount /c of 192.0.2.11:/a, nfsd listening on rdma "
        "20049, module other; 7 references; 1 NFSv4 client of nfsd, over any transport"
    )
    assert findings["replace rpcrdma"].remedy == "first: unmount, then systemctl stop nfs-server"
    assert (
        "would take mlx5_0 from mount /b, mount /c, connections of clients to nfsd's rdma 20049, "
        "module mlx5_vfio, module smc" in findings["reload mlx5_ib"].found
    )


def test_references_that_nothing_explains_are_a_doubt(host: Host) -> None:
    host.write("proc/modules", LOADED.format("rpcrdma"))
    assert host.findings()["replace rpcrdma"].found == "nothing uses it"
    host.write("proc/modules", LOADED.format("rpcrdma").replace("rpcrdma 1 0", "rpcrdma 1 3"))
    finding = host.findings()["replace rpcrdma"]
    assert (finding.status, finding.found[:13]) == ("unknown", "3 references:")


def test_a_loss_of_gpudirect_is_a_warning(host: Host) -> None:
    host.write("proc/modules", LOADED.format("rpcrdma"))
    host.write("proc/driver/nvidia-fs/modules", "rpcrdma: 1\n")
    assert host.findings()["replace rpcrdma"].status == "warning"


def test_contexts_of_programs_are_a_fact_of_a_bundle(tmp_path: Path) -> None:
    device = Device(0, "mlx5_0", 1, "ca", "roce", "mlx5", "", "")
    notes = Recording(
        links=[Link(device, 1, "ACTIVE", "LINK_UP", "eth4")],
        facts={"user contexts": "mlx5_0 3\nrxe0 1", "boot files": "read"},
    )
    Host(tmp_path)
    machine = Machine(tmp_path, recording=notes)
    reload = {finding.name: finding for finding in examine(machine, AFTER_REBOOT)}["reload mlx5"]
    assert (reload.status, reload.found) == ("ok", "would take mlx5_0 from 3 contexts of programs")
    notes.facts.pop("user contexts")
    reload = {finding.name: finding for finding in examine(machine, AFTER_REBOOT)}["reload mlx5"]
    assert (reload.status, "were not recorded" in reload.found) == ("unknown", True)


# ---- bundles


def test_a_bundle_has_what_a_boot_reads(host: Host, tmp_path: Path) -> None:
    host.write("proc/modules", LOADED.format("rpcrdma"))
    serve(host)
    unit(host, f"ExecStart={ADD}\nExecStart=/opt/program --password abc\nEnvironment=A=secret",
         wanted="rxe.service")  # fmt: skip
    unit(host, "ExecStart=/opt/another", "other.service", wanted="other.service")
    host.write(f"{SYSTEM}/rxe.timer", "[Timer]\n")
    host.write("etc/rc.local", f"#!/bin/sh\n/opt/private --word\n{ADD}\n", 0o755)
    host.write("etc/init.d/boot.local", ADD, 0o644)
    host.write("etc/modules", "# text\nsvcrdma\nprivate\n")
    host.link("etc/modules-load.d/modules.conf", "../modules")
    host.write("etc/sysctl.d/a.conf", "kernel.hostname=private\nsunrpc/rdma_max_inline_read=1024\n")
    host.write("proc/sys/sunrpc/rdma_max_inline_read", "1024\n")
    host.write("etc/udev/rules.d/9.rules", f'# a\nRUN+="{ADD}"\nNAME="private"\n')
    made = bundles.collect(machine=Machine(host.machine.root))
    assert made.files[f"{SYSTEM}/rxe.service"].decode() == f"[Service]\nExecStart={ADD}\n"
    assert f"{SYSTEM}/other.service" not in made.files
    assert f"{WANTS}/other.service" not in made.links and f"{WANTS}/rxe.service" in made.links
    assert made.files["etc/rc.local"].decode() == f"{ADD}\n"
    assert "etc/init.d/boot.local" not in made.files
    assert made.files["etc/modules"] == b"svcrdma\n"
    assert made.files["etc/sysctl.d/a.conf"] == b"sunrpc/rdma_max_inline_read = 1024\n"
    assert made.files["etc/udev/rules.d/9.rules"].decode() == f'RUN+="{ADD}"\n'
    assert made.notes.facts[boot_files.FACT] == boot_files.READ
    text = b"".join(made.files.values())
    assert not any(word in text for word in (b"private", b"secret", b"/opt"))
    host.soft()
    made.notes.links = host.links
    expected = [(finding.name, finding.status) for finding in host.findings().values()
                if not finding.name.startswith("reload")]  # fmt: skip
    for bundle in (made, anonymized(made)):
        with read_back(bundle, tmp_path) as machine:
            assert "svcrdma" in boot_files.module_lists(machine)
            verdicts = [
                (finding.name, finding.status) for finding in examine(machine, AFTER_REBOOT)
            ]
        assert [verdict for verdict in verdicts if not verdict[0].startswith("reload")] == expected


def test_a_link_keeps_its_name_in_commands_and_lists(host: Host, tmp_path: Path) -> None:
    """A name that is private has one placeholder in the list of links and in the unit."""
    host.soft("backbone", "uplink")
    command = "ExecStart=/usr/sbin/rdma link add backbone type rxe netdev uplink"
    unit(host, command, "site-storage.service", wanted="site-storage.service")
    made = bundles.collect(machine=Machine(host.machine.root))
    made.notes.links = host.links
    changed = anonymized(made)
    text = repr((changed.files, changed.links, changed.notes))
    assert not any(word in text for word in ("backbone", "uplink", "site"))
    with read_back(changed, tmp_path) as machine:
        (link,) = (finding for finding in examine(machine, AFTER_REBOOT) if "link" in finding.name)
    assert link.status == "ok", link


def test_a_bundle_of_a_user_who_may_not_read_them_does_not_claim_them(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write("etc/rc.local", ADD, 0o755)
    whole = bundles._beginning

    def refused(path: str) -> tuple[bytes, bool]:
        if path.endswith("rc.local"):
            raise PermissionError(13, "Permission denied", path)
        return whole(path)

    monkeypatch.setattr(bundles, "_beginning", refused)
    assert boot_files.FACT not in bundles.collect(machine=Machine(host.machine.root)).notes.facts


def test_names_of_sysctls_stay_in_an_anonymized_bundle() -> None:
    assert {part for name in SYSCTLS for part in name.split(".")} <= WORDS


def test_a_container_does_not_have_the_files_of_its_host(host: Host) -> None:
    host.soft()
    serve(host)
    host.write("proc/self/mountinfo", MOUNT.format("/b"))
    host.write("sys/class/bdi/0:61/read_ahead_kb", "4096\n")
    names = ("link rxe4", "listener", "server", "mount /b", "read-ahead /b")
    findings = host.findings()
    assert {findings[f"reboot {name}"].status for name in names} == {"warning"}
    host.write(".dockerenv", "")
    findings = host.findings()
    assert {findings[f"reboot {name}"].status for name in names} == {"unknown"}


def test_an_older_bundle_has_fstab_and_rules(host: Host) -> None:
    """What it has is judged, and what it lacks is unknown: units, rc.local, sysctl.d."""
    host.soft()
    serve(host)
    host.write("proc/self/mountinfo", MOUNT.format("/b"))
    host.write("sys/class/bdi/0:61/read_ahead_kb", "4096\n")
    host.write("proc/sys/sunrpc/rdma_slot_table_entries", "64\n")
    old = replace(host.machine, recording=Recording(links=host.links))
    statuses = {finding.name: finding.status for finding in examine(old, AFTER_REBOOT)}
    assert (
        statuses.items()
        >= {
            "reboot mount /b": "warning",
            "reboot read-ahead /b": "warning",
            "reboot link rxe4": "unknown",
            "reboot listener": "unknown",
            "reboot server": "unknown",
            "reboot setting sunrpc.rdma_slot_table_entries": "unknown",
        }.items()
    )


# ---- hostile files, and the command


@pytest.mark.parametrize(
    "text",
    [
        "rdma link add", "rdma link add dev", "rxe_cfg add", "rdma link add \0 type", "link add a",
        "rdma " + "x" * 100_000 + " link add a netdev b", "rdma link add " + "( " * 50_000,
        "rdma link add $(" + "`" * 50_000, "rdma link add " + "$(" * 50_000,
        "rdma link add " + "$a" * 50_000 + "b netdev $c",
    ],
)  # fmt: skip
def test_any_command_is_read(text: str) -> None:
    link = boot_files.soft_link(text)
    for name in ("rxe0", "a" * 10_000):
        assert link is None or link.makes(name, "rxe", "eth0") in (True, False, None)


def test_many_lines_that_reset_others_are_read(host: Host) -> None:
    host.soft()
    many = 100_000
    unit(host, f"ExecStartPre={ADD}\n" + "ExecStartPre=x\n" * many + "ExecStart=\n" * many,
         wanted="rxe.service")  # fmt: skip
    assert host.findings()["reboot link rxe4"].status == "ok"


def test_garbage_in_every_file_crashes_no_check(host: Host) -> None:
    serve(host)
    host.soft()
    names = [*boot_files.RC_LOCAL, "etc/sysctl.conf", "etc/modprobe.d/a.conf", "etc/fstab"]
    names += ["etc/modules-load.d/a.conf", f"{SYSTEM}/a.service", f"{SYSTEM}/b.service.d/c.conf"]
    for name in names:
        host.write(name, "")
        (host.machine.root / name).write_bytes(
            b"\xff\0[Service]\nExecStart=rdma link add\n=\n %i\n"
        )
    assert all(finding.status for finding in host.findings().values())


def test_the_command_prints_these_findings_alone(host: Host) -> None:
    host.write("manifest.json", json.dumps({"format": 1, "facts": {"boot files": "read"}}))
    host.soft()
    host.write("netlink.json", json.dumps({"rdma_links": [asdict(link) for link in host.links]}))
    words = ["doctor", "--after-reboot", "--from", str(host.machine.root), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["findings"]
    assert [row["name"] for row in rows] == ["reboot link rxe4", "replace", "reload rxe"]
    assert rows[0].keys() == set(Finding._fields)
    assert CliRunner().invoke(app, [*words, "--strict"]).exit_code == 1
    for more in (["server"], ["--capture", "x"]):
        refused = CliRunner().invoke(app, ["doctor", "--after-reboot", *more])
        assert isinstance(refused.exception, UsageError)


def test_a_command_of_an_older_bundle_is_in_doubt(host: Host) -> None:
    unit(host, f"ExecStart={ADD}")
    old = replace(host.machine, recording=Recording())
    (command,) = boot_files.commands(old)
    name = "/etc/systemd/system/rxe.service"
    assert command == BootCommand(ADD, name, None, "rxe.service")
