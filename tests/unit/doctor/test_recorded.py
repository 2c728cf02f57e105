# SPDX-License-Identifier: Apache-2.0
"""The files of other hosts, and the answers that are right for them: tests/field/README.md."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sys
import tarfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from field_archive import CASES, FIELD, Unpacked, expected_of
from unit.files_made import write, write_all

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.doctor import recorded
from nfsrdma_tools.doctor.bundle_documents import to_facts
from nfsrdma_tools.doctor.checks import (
    AFTER_REBOOT,
    examine,
    mount_definitions,
    rdma_links,
    reboot_mounts,
)
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.host import kernel_config
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError, Recording
from nfsrdma_tools.host.nfs import fstab
from nfsrdma_tools.host.nfs.mount_state import states
from nfsrdma_tools.host.nfsd.serving import serving
from nfsrdma_tools.host.rdma.ports import Device, Link

KEYS = {
    "about", "well", "server", "errors", "warnings", "findings", "absent", "mounts",
    "server_status", "after_reboot",
}  # fmt: skip


LINK: dict[str, Any] = {
    "device": asdict(Device(0, "mlx5_0", 1, "ca", "roce", "mlx5", "", "")),
    "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", "netdev": "e0",
}  # fmt: skip
RESULT = {"argv": ["dmesg"], "status": 0, "stdout": "", "stderr": ""}


def names(findings: list[Finding], status: str) -> list[str]:
    return sorted(finding.name for finding in findings if finding.status == status)


def matches(finding: Finding, wanted: dict[str, str]) -> bool:
    return all(
        getattr(finding, key) == value
        if key in ("name", "status")
        else re.search(value, getattr(finding, key))
        for key, value in wanted.items()
    )


@pytest.mark.parametrize("case", CASES)
def test_a_host_of_the_field(case: str, field: Unpacked) -> None:
    expected = expected_of(case)
    assert expected.keys() <= KEYS
    assert expected["about"]
    with recorded.opened(field(case), expected.get("server", "")) as machine:
        findings = examine(machine)
        shown = "\n".join(map(str, findings))
        assert names(findings, "error") == sorted(expected["errors"]), shown
        if "warnings" in expected:
            assert names(findings, "warning") == sorted(expected["warnings"]), shown
        for wanted in expected.get("findings", ()):
            assert wanted.keys() <= set(Finding._fields)
            assert any(matches(finding, wanted) for finding in findings), (wanted, shown)
        if "after_reboot" in expected:
            compare(expected["after_reboot"], examine(machine, AFTER_REBOOT))
        for pattern in expected.get("absent", ()):
            assert not [f for f in findings if re.fullmatch(pattern, f.name)], shown
        if "mounts" in expected:
            mounts = {str(state.mount.directory): state.facts() for state in states(machine)}
            for directory, values in expected["mounts"].items():
                assert mounts[directory].items() >= values.items()
        if "server_status" in expected:
            facts = json.loads(json.dumps(asdict(serving(machine))))
            assert facts.items() >= expected["server_status"].items()


def compare(expected: dict[str, Any], findings: list[Finding]) -> None:
    assert expected.keys() == {"warnings", "unknown", "findings"}
    shown = "\n".join(map(str, findings))
    assert names(findings, "error") == []
    for key, status in (("warnings", "warning"), ("unknown", "unknown")):
        assert names(findings, status) == sorted(expected[key]), shown
    for wanted in expected["findings"]:
        assert any(matches(finding, wanted) for finding in findings), (wanted, shown)


@pytest.mark.parametrize("case", [case for case in CASES if "after_reboot" in expected_of(case)])
def test_without_the_fact_that_files_were_read_none_is_missing(case: str, field: Unpacked) -> None:
    """An older bundle lacks it: what its files do not say is unknown."""
    with recorded.opened(field(case)) as machine:
        assert machine.recording
        known = {f.name: f for f in examine(machine, AFTER_REBOOT)}
        machine.recording.facts.pop("boot files")
        for finding in examine(machine, AFTER_REBOOT):
            by_unit = finding.found.startswith(("nfsd listens", "loaded;"))
            assert "no unit" not in finding.found or finding.status == "unknown" or by_unit, finding
            if finding.status == "warning":
                assert known[finding.name].status == "warning"


def is_well(case: str) -> bool:
    return bool(expected_of(case).get("well"))


@pytest.mark.parametrize("case", [*filter(is_well, CASES)])
def test_a_host_with_nothing_wrong_has_no_warning(case: str, field: Unpacked) -> None:
    expected = expected_of(case)
    with recorded.opened(field(case), expected.get("server", "")) as machine:
        findings = examine(machine)
    assert names(findings, "error") + names(findings, "warning") == []
    # one line for all that a check does not judge, beside the histories of several servers
    silent = [finding.name for finding in findings if "not judged" in finding.found]
    assert len(silent) == len(set(silent)) <= 3, silent


@pytest.mark.parametrize("dropped", ["", "sysfs", "ip-link.txt"])
def test_the_mtu_has_two_sources(dropped: str, field: Unpacked, tmp_path: Path) -> None:
    shutil.copytree(field("pasted-roce-mtu"), tmp_path, dirs_exist_ok=True)
    before = findings_of(tmp_path, "mtu .*")
    assert before
    for name in re.findall(r"\d+: (\w+): .* mtu (\d+)", (tmp_path / "ip-link.txt").read_text()):
        folder = tmp_path / "sys/class/net" / name[0]
        folder.mkdir(parents=True)
        (folder / "mtu").write_text(f"{name[1]}\n")
    assert findings_of(tmp_path, "mtu .*") == before
    if dropped == "sysfs":
        shutil.rmtree(tmp_path / "sys")
    elif dropped:
        (tmp_path / dropped).unlink()
    assert findings_of(tmp_path, "mtu .*") == before


def test_the_release_has_two_sources(field: Unpacked, tmp_path: Path) -> None:
    shutil.copytree(field("debian12-no-card"), tmp_path, dirs_exist_ok=True)
    before = findings_of(tmp_path, ".*")
    (release,) = tmp_path.rglob("osrelease")
    kernel = release.read_text().strip()
    assert kernel in (tmp_path / "proc/version").read_text()
    release.unlink()
    assert findings_of(tmp_path, ".*") == before


def findings_of(folder: Path, pattern: str) -> list[Finding]:
    with recorded.opened(folder) as machine:
        return [finding for finding in examine(machine) if re.fullmatch(pattern, finding.name)]


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize(
    "target",
    ["/etc/hostname", "../../../../../../etc/hostname", "up/../../../../../../etc/hostname"],
)
def test_no_file_of_this_host_is_read_through_a_link(
    tmp_path: Path, form: str, target: str
) -> None:
    if form == "folder":
        source = tmp_path / "source"
        write(source, "etc/hosts", "")
        (source / "etc/up").symlink_to(".")
        (source / "etc/fstab").symlink_to(target)
    else:
        source = archive(
            tmp_path / "bundle.tar.gz",
            (member("etc/up", tarfile.SYMTYPE, "."), b""),
            (member("etc/fstab", tarfile.SYMTYPE, target), b""),
            (member("etc/hosts"), b"# text\n"),
        )
    with recorded.opened(source) as machine:
        assert machine.text("etc/fstab") == ""
        assert not machine.path("etc/hostname").exists()


def test_no_member_of_an_archive_is_written_elsewhere(tmp_path: Path) -> None:
    source = archive(
        tmp_path / "bundle.tar.gz",
        (member("../outside"), b"x"),
        (member(str(tmp_path / "absolute")), b"x"),
        (member("etc", tarfile.SYMTYPE, str(tmp_path)), b""),
        (member("etc/through"), b"x"),
        (member("fifo", tarfile.FIFOTYPE), b""),
        (member("hard", tarfile.LNKTYPE, "/etc/hostname"), b""),
    )
    with recorded.opened(source) as machine:
        # the file comes first: a link of the same name is not made
        assert machine.read("etc/through") == "x"
        assert sorted(path.name for path in machine.root.iterdir()) == ["etc"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle.tar.gz"]


def test_a_link_within_the_files_leads_where_it_led(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/0/net/e0/mtu", "9000\n")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/e0").symlink_to("../../devices/0/net/e0")
    (tmp_path / "lib").symlink_to("/usr/lib")
    write(tmp_path, "usr/lib/os-release", "ID=x\n")
    os.mkfifo(tmp_path / "fifo")
    with recorded.opened(tmp_path) as machine:
        assert machine.read("sys/class/net/e0/mtu") == "9000\n"
        assert machine.read("lib/os-release") == "ID=x\n"
        assert not machine.path("fifo").exists()


def test_what_is_no_bundle_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tar")
    for path in (tmp_path / "text", tmp_path / "none"):
        text = error_of(path)
        assert str(path) in text and "\n" not in text
    (tmp_path / "manifest.json").write_text('{"format": 9}')
    assert error_of(tmp_path).startswith("the bundle has format 9, expected 1 (")


def test_bundle_documents_are_read_as_they_were_written(tmp_path: Path) -> None:
    device = Device(3, "rxe0", 1, "ca", "roce", "rxe", "", "0000:0000:0000:0000")
    argv = ("modinfo", "-0", "--", "rpcrdma")
    notes = Recording(
        programs={argv: Result(argv, "filename: x\0", "", 0), ("fio",): None},
        links=[Link(device, 1, "ACTIVE", "LINK_UP", "eth0")],
        addresses={"server": ["192.0.2.1"], "none": []},
        facts={"module build": "/x"},
        root_user=False,
    )
    for name, document in to_facts(notes).items():
        (tmp_path / name).write_text(json.dumps(document))
    with recorded.opened(tmp_path) as machine:
        assert machine.recording == notes
        assert machine.run(*argv).stdout == "filename: x\0"
        with pytest.raises(ProgramMissingError):
            machine.run("fio")
        with pytest.raises(NotRecordedError):
            machine.run("ls")
        assert machine.links()[0].name == "rxe0/1"
        assert machine.addresses("server") == ["192.0.2.1"]
        assert machine.addresses("2001:db8::1") == ["2001:db8::1"]
        assert not machine.root_user
        assert not machine.live


def test_pasted_files_are_where_the_host_had_them(tmp_path: Path) -> None:
    (tmp_path / "fstab.txt").write_text("a:/b /c nfs proto=rdma 0 0\n")
    (tmp_path / "rdma-link.txt").write_text(
        "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 state ACTIVE physical_state LINK_UP\n"
        "link mlx5_4/1 state DOWN physical_state POLLING netdev e0\n"
        "0/1: siw0/1: state ACTIVE physical_state LINK_UP netdev e1\n"
        "anything else\n"
    )
    (tmp_path / "modinfo-rpcrdma.txt").write_text(
        "filename:       /x.ko\nname:           rpcrdma\n"
    )
    (tmp_path / "dmesg.txt").write_text("[1.0] text\n")
    for name in ("90-a.rules", "usr-lib-udev-99-b.rules.txt", "run-udev-c.rules", "srv-x.mount"):
        (tmp_path / name).write_text(f"# {name}\n")
    with recorded.opened(tmp_path) as machine:
        assert "proto=rdma" in machine.read("etc/fstab")
        assert [(x.name, x.active, x.netdev, x.device.protocol) for x in machine.links()] == [
            ("mlx5_0/1", True, "", "ib"),
            ("mlx5_4/1", False, "e0", ""),
            ("siw0/1", True, "e1", ""),
        ]
        assert machine.run("modinfo", "-0", "--", "rpcrdma").stdout.startswith("filename:")
        assert machine.run("dmesg").stdout == "[1.0] text\n"
        assert machine.read("etc/udev/rules.d/90-a.rules")
        assert machine.read("usr/lib/udev/rules.d/99-b.rules")
        assert machine.read("run/udev/rules.d/c.rules")
        assert machine.read("etc/systemd/system/srv-x.mount")
        with pytest.raises(NotRecordedError):
            machine.require("proc/modules")


def test_pasted_files_have_lines_of_the_shell_and_other_newlines(tmp_path: Path) -> None:
    mount = "61 1 0:52 / /srv rw - nfs4 a:/b rw,vers=4.2,proto=rdma,addr=192.0.2.1"
    (tmp_path / "mountinfo.txt").write_bytes(
        f"[root@node ~]# cat /proc/self/mountinfo\r\n{mount}\r\n[root@node ~]# ".encode()
    )
    (tmp_path / "osrelease").write_bytes(b"6.1.0-18-amd64")
    (tmp_path / "fstab").write_bytes(b"$ sudo cat /etc/fstab\n# $ of a comment\na:/b /srv nfs\n")
    with recorded.opened(tmp_path) as machine:
        assert machine.read("proc/self/mountinfo") == f"{mount}\n"
        assert machine.release == "6.1.0-18-amd64"
        assert machine.read("etc/fstab") == "# $ of a comment\na:/b /srv nfs\n"


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    mount = "61 1 0:52 / /srv rw - nfs4 a:/b rw,vers=4.2,proto=rdma,addr=192.0.2.1\n"
    link = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev e0\n"
    texts = {
        "mountinfo": mount, "portlist": "rdma 20049\n", "rdma-link.txt": link,
        "fstab": "$ cat /etc/fstab\na:/b /srv nfs\n", "dmesg.txt": "[1.0] text\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    with recorded.opened(tmp_path) as machine:
        assert machine.read("proc/self/mountinfo") == mount
        assert machine.read("proc/fs/nfsd/portlist") == "rdma 20049\n"
        assert machine.read("etc/fstab") == "a:/b /srv nfs\n"
        assert machine.run("dmesg").stdout == "[1.0] text\n"
        assert [link.name for link in machine.links()] == ["mlx5_0/1"]


_UP = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev e0\n"
_DOWN = "link mlx5_0/1 state DOWN physical_state DISABLED netdev e0\n"


@pytest.mark.parametrize(
    "cut",
    [
        "link siw0/1", "link siw0/1 sta", "link siw0/1 state", "link siw0/1 state ACTI",
        "link siw0/1 state ACTIVE", "link siw0/1 state ACTIVE physical_st",
        "link siw0/1 state ACTIVE physical_state", "link siw0/1 state ACTIVE physical_state LINK_U",
        "link siw0/1 state ACTIVE physical_state LINK_UP net",
        "link siw0/1 state ACTIVE physical_state LINK_UP netdev",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", _UP, _DOWN])
def test_a_cut_line_of_a_link_says_nothing_about_the_cable(
    before: str, cut: str, tmp_path: Path
) -> None:
    (tmp_path / "rdma-link.txt").write_text(before + cut)
    with recorded.opened(tmp_path) as machine:
        findings = list(rdma_links.links(machine))
        assert not rdma_links.fault(machine)
    assert not [finding for finding in findings if finding.status in ("error", "warning")]
    (doubt,) = (finding for finding in findings if finding.status == "unknown")
    assert (doubt.name, "the line of siw0/1" in doubt.found) == ("link siw0/1", True), doubt


def test_a_route_is_not_wrong_because_the_line_of_its_link_is_cut(tmp_path: Path) -> None:
    (tmp_path / "rdma-link.txt").write_text(f"{_UP}link siw0/1 state ACTI")
    (tmp_path / "fstab").write_text("192.0.2.1:/b /srv nfs proto=rdma 0 0\n")
    (tmp_path / "ip-route-get.txt").write_text("192.0.2.1 dev e1 src 192.0.2.9 uid 0\n")
    (tmp_path / "ip-link.txt").write_text('[{"ifname":"e1","link_type":"ether","mtu":1500}]')
    with recorded.opened(tmp_path) as machine:
        (route,) = (finding for finding in examine(machine) if finding.name.startswith("route"))
    assert (route.status, "the line of siw0/1" in route.found) == ("unknown", True), route


def test_a_large_fstab_is_judged_in_part_and_says_so(tmp_path: Path) -> None:
    line = "a:/b /srv/{} nfs proto=rdma 0 0\n"
    (tmp_path / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    for text in (
        "".join(line.format(number) for number in range(10_001)),
        line.format(0) + "#" * (1 << 20) + "\n" + line.format(1),
    ):
        (tmp_path / "fstab").write_text(text)
        with recorded.opened(tmp_path) as machine:
            findings = list(mount_definitions.requested(machine))
        assert (findings[0].name, findings[0].status) == ("fstab", "unknown")
        assert "the end of /etc/fstab is not judged: it has more than 10000" in findings[0].found
        assert findings[1].name == "fstab /srv/0"
        assert len(findings) <= 10_001
        with pytest.raises(UserError, match="fstab is not searched"):
            fstab.find(text, Path("/srv/0"))


def test_an_fstab_of_10000_lines_is_judged_as_a_whole() -> None:
    text = "# comment\n" * 9_999 + "a:/b /srv nfs proto=rdma 0 0"
    for whole in (text, f"{text}\n"):
        assert not fstab.is_cut(whole)
        assert [str(line.directory) for line in fstab.nfs_lines(whole)] == ["/srv"]


def test_the_page_names_the_limit_of_fstab() -> None:
    page = (FIELD.parents[1] / "docs/how-to/doctor.md").read_text()
    limit = fstab.LIMIT.removeprefix("it has more than ")
    assert f"reads the first {limit}, whichever ends first" in page


def test_a_mount_is_not_undefined_because_fstab_is_large(tmp_path: Path) -> None:
    mount = "61 22 0:52 / /srv rw - nfs4 a:/b rw,vers=4.2,proto=rdma,addr=192.0.2.1\n"
    texts = {
        "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mount,
        "etc/fstab": "#\n" * 10_000 + "a:/b /srv nfs proto=rdma 0 0\n",
    }
    write_all(tmp_path, texts)
    (finding,) = reboot_mounts.mounts(Machine(tmp_path))
    assert finding.status == "unknown"
    assert "the end of /etc/fstab is not judged" in finding.found


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("rdma-link.txt", "bash: rdma: command not found\n", "cannot read rdma-link.txt: no line"),
        ("modinfo-rpcrdma.txt", "bash: modinfo: command not", "no output of modinfo"),
        ("modinfo-rpcrdma.txt", "", "no output of modinfo"),
    ],
)
def test_the_error_of_a_shell_is_no_output(
    name: str, text: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with recorded.opened(tmp_path) as machine:
        findings = [finding for finding in examine(machine) if expected in finding.found]
    assert [finding.status for finding in findings] == ["unknown"]


_UNREADABLE = {
    "modules": "proc/modules",
    "fstab.txt": "etc/fstab",
    "mountinfo": "proc/self/mountinfo",
    "dmesg.txt": "",
    "rdma-link.txt": "",
    "ip-route-get.json": "",
    "modinfo-rpcrdma": "",
}
"""Pasted files, and the files of the host that they are."""


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("name", _UNREADABLE)
@pytest.mark.parametrize("kind", ["FIFO", "folder", "link", "NUL"])
def test_a_pasted_file_that_cannot_be_read_is_named(
    kind: str, name: str, packed: bool, tmp_path: Path
) -> None:
    if kind == "NUL" and name in ("modinfo-rpcrdma", "dmesg.txt"):
        pytest.skip("modinfo -0 prints NUL, and a crash leaves some in a log")
    folder = tmp_path / "given"
    folder.mkdir()
    path = folder / name
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("/nowhere/else")
        case "NUL":
            path.write_bytes(b"text\n\0\xfe\n")
    if packed:
        with tarfile.open(tmp_path / "given.tar", "w") as tar:
            tar.add(path, arcname=name)
    with recorded.opened(tmp_path / "given.tar" if packed else folder) as machine:
        texts = [finding.found for finding in examine(machine)]
    assert any(f"cannot read {name}: it " in text and kind in text for text in texts), texts
    missing = f"/{_UNREADABLE[name]} was not recorded"
    assert not any(missing in text for text in texts)


def test_a_pasted_file_behind_the_given_one_is_not_missed(tmp_path: Path) -> None:
    write(tmp_path, "etc/fstab", "")
    os.mkfifo(tmp_path / "fstab")
    with recorded.opened(tmp_path) as machine:
        assert not any("FIFO" in finding.found for finding in examine(machine))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_pasted_file_may_be_in_another_encoding(encoding: str, tmp_path: Path) -> None:
    link = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0 \r\n"
    (tmp_path / "rdma-link.txt").write_bytes(link.encode(encoding))
    fstab = "server:/größe /mnt nfs proto=rdma 0 0\r\n"
    (tmp_path / "fstab").write_bytes(fstab.encode(encoding))
    with recorded.opened(tmp_path) as machine:
        (parsed,) = machine.links()
        assert (parsed.device.name, parsed.state, parsed.netdev) == ("rxe0", "ACTIVE", "eth0")
        assert machine.read("etc/fstab") == fstab.replace("\r", "")


@pytest.mark.parametrize(
    ("name", "document", "reason"),
    [
        ("commands.json", [{**RESULT, "status": "x"}], "status 'x' of ['dmesg']"),
        ("commands.json", [{**RESULT, "status": 1e999}], "status inf of ['dmesg']"),
        ("commands.json", [{**RESULT, "stdout": []}], "an output of ['dmesg'] is no text"),
        ("commands.json", [{**RESULT, "argv": "dmesg"}], "status 0 of 'dmesg'"),
        ("commands.json", [{**RESULT, "argv": 1}], "another type"),
        ("commands.json", [{"argv": ["dmesg"], "status": 0, "stdout": ""}], "'stderr' is missing"),
        ("commands.json", [3], "another type"),
        ("commands.json", {}, "expected a JSON array"),
        ("manifest.json", [], "expected a JSON object"),
        ("manifest.json", {"facts": []}, "another type"),
        ("manifest.json", {"addresses": {"a": 3}}, "another type"),
        ("manifest.json", {"left_out": [3]}, "another type"),
        ("netlink.json", {"rdma_error": ["a"]}, "rdma_error is ['a'], expected a message"),
        ("netlink.json", {"rdma_links": [{**LINK, "port": "1/.."}]}, "port of an RDMA link"),
        ("netlink.json", {"rdma_links": [{**LINK, "state": ["ACTIVE"]}]}, "state of an RDMA link"),
        (
            "netlink.json",
            {"rdma_links": [{**LINK, "device": {**LINK["device"], "name": 5}}]},
            "name of an RDMA link",
        ),
        ("netlink.json", {"rdma_links": [{**LINK, "x": 1}]}, "unknown key 'x'"),
        ("netlink.json", {"rdma_links": [3]}, "another type"),
        ("netlink.json", {"rdma_links": [{"device": {}}]}, "'index' is missing"),
    ],
)
def test_a_document_of_another_form_is_named_in_plain_words(
    name: str, document: object, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(document))
    text = error_of(tmp_path)
    assert text.startswith(f"{name} of the bundle is invalid: ") and reason in text
    assert not any(word in text for word in ("Error", "NoneType", "iterable", "codec", "\n"))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not JSON at line 1, column 1"),
        (b"{", "not JSON at line 1, column 2"),
        (b"\xff\xfe\0", "not a text in UTF-8"),
        pytest.param(b"[" * 100_000, "JSON is nested too deeply", id="deep"),
    ],
)
@pytest.mark.parametrize("name", ["commands.json", "manifest.json", "netlink.json"])
def test_a_document_that_is_no_json_is_named_in_plain_words(
    name: str, document: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(document)
    assert error_of(tmp_path).startswith(f"{name} of the bundle is invalid: {reason}")


def error_of(bundle: Path) -> str:
    with pytest.raises(UserError) as error, recorded.opened(bundle):
        pass
    return str(error.value)


def test_no_text_of_a_bundle_leads_out_of_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "bundle", tmp_path / "outside"
    write(outside, "build/Makefile", "")
    (outside / "read_ahead_kb").write_text("128\n")
    up = f"{'../' * 20}{outside.relative_to('/')}"
    entry = f"61 1 {up} / /srv rw - nfs4 a:/b rw,vers=4.2,rsize=4096,proto=rdma"
    files = {
        "manifest.json": "{}",
        "proc/sys/kernel/osrelease": f"{up}\n",
        "proc/self/mountinfo": f"{entry}\n",
        "lib/modules/x": "",
        "sys/class/bdi/x": "",
    }
    write_all(inside, files)
    with recorded.opened(inside) as machine:
        findings = {finding.name: finding for finding in examine(machine)}
    for name in ("headers", "read-ahead"):
        assert findings[name].status == "unknown", findings[name]
    assert "no release of a kernel" in findings["headers"].found
    assert findings["read-ahead"].found.startswith("invalid line in mountinfo")


def test_a_packed_configuration_is_not_unpacked_without_end(tmp_path: Path) -> None:
    write(tmp_path, "proc/sys/kernel/osrelease", "6.12.0\n")
    config = b"CONFIG_SUNRPC_XPRT_RDMA=m\n" + bytes(64 << 20)
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(config, 1))
    machine = Machine(tmp_path, recording=Recording())
    assert len(kernel_config.config(machine) or "") == 4 << 20
    (tmp_path / "proc/config.gz").write_bytes(b"not packed")
    with pytest.raises(UserError, match=r"cannot read /proc/config\.gz"):
        kernel_config.config(machine)


def test_the_output_of_lsmod_is_no_list_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "modules").write_bytes(b"Module      Size  Used by\nrpcrdma 458752  0 \xff\n")
    with recorded.opened(tmp_path) as machine:
        netid = {finding.name: finding for finding in examine(machine)}["netid rdma"]
    assert (netid.status, "invalid line in /proc/modules" in netid.found) == ("unknown", True)


def test_modinfo_that_finds_no_module_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "modinfo-rpcrdma.txt").write_text("modinfo: ERROR: Module rpcrdma not found.\n")
    (tmp_path / "osrelease").write_text("6.12.0\n")
    with recorded.opened(tmp_path) as machine:
        module = {finding.name: finding for finding in examine(machine)}["rpcrdma"]
    assert (module.status, module.found) == ("error", "no module for kernel 6.12.0")


def test_this_host_is_read_by_default() -> None:
    assert LIVE.live
    assert Machine(server="x").live
    assert LIVE.release


@functools.cache
def bombs() -> dict[str, bytes]:
    """Archives of at most 1 MiB that expand, by what they are."""
    zeros = io.BytesIO()
    with tarfile.open(fileobj=zeros, mode="w") as tar:
        info = member("etc/fstab")
        info.size = 64 << 20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    plain = zeros.getvalue()
    header = member("x", tarfile.XHDTYPE)
    header.size = 600 << 20
    long = member("x", tarfile.GNUTYPE_LONGNAME)
    long.size = 600 << 20
    many = b"".join(member(f"etc/{at}").tobuf() for at in range(60_000))
    # each describes the next one
    chain = b"".join(member("x", tarfile.GNUTYPE_LONGNAME).tobuf() for _ in range(5_000))
    huge = member("etc/fstab")
    huge.size = 8 << 30
    packed = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)
    block = bytes(1 << 20)
    endless = packed.compress(huge.tobuf()) + b"".join(packed.compress(block) for _ in range(900))
    return {
        "bzip2": bz2.compress(plain, 1),
        "xz": lzma.compress(plain, preset=0),
        "pax header": gzip.compress(header.tobuf() + bytes(1 << 20), 1),
        "plain pax header": header.tobuf() + bytes(1 << 16),
        "long name": gzip.compress(long.tobuf() + bytes(1 << 20)),
        "many members": gzip.compress(many),
        "many headers": gzip.compress(chain),
        "gzip of zeros": endless + packed.flush(),
        "random": os.urandom(5000),
    }


@pytest.mark.parametrize("kind", (
    "bzip2", "xz", "pax header", "plain pax header", "long name", "many members", "many headers",
    "gzip of zeros", "random",
))  # fmt: skip
def test_an_archive_that_expands_is_one_line(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "bundle"
    file.write_bytes(bombs()[kind])
    assert file.stat().st_size <= 1 << 20
    program = (
        "import re, resource, sys, pathlib\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "from nfsrdma_tools.errors import UserError\n"
        "from nfsrdma_tools.doctor import recorded\n"
        "try:\n"
        "    with recorded.opened(pathlib.Path(sys.argv[1])):\n"
        "        print('opened')\n"
        "except UserError as error:\n"
        "    print(error.message)\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1], file=sys.stderr)\n"
    )
    done = run(sys.executable, "-c", program, str(file))
    assert done.stdout.count("\n") == 1
    assert "neither a folder nor a bundle" in done.stdout or "more than" in done.stdout
    # KiB of this program: ru_maxrss is its parent's if that is larger
    assert int(done.stderr) < 256 << 10


def plain_archive() -> bytes:
    """Three members, the first with a long name, and the end that GNU tar and Python write."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in (f"etc/{'x' * 200}", "etc/fstab", "etc/hosts"):
            info = member(name)
            info.size = 700
            tar.addfile(info, io.BytesIO(b"#" * info.size))
    return buffer.getvalue()


@pytest.mark.parametrize("size", range(0, len(plain_archive().rstrip(b"\0")) + 400, 256))
def test_an_archive_that_was_cut_is_no_bundle(size: int, tmp_path: Path) -> None:
    """An archive that ends between two members was cut, too: its end is a block of zeros."""
    file = tmp_path / "bundle.tar"
    file.write_bytes(plain_archive()[:size])
    with pytest.raises(UserError) as error, recorded.opened(file):
        pass
    expected = ("it ends in the middle", "unexpected end of data") if size else "it is empty"
    assert error.value.message.endswith(expected)


def test_an_archive_with_a_damaged_header_is_no_bundle(tmp_path: Path) -> None:
    whole = plain_archive()
    file = tmp_path / "bundle.tar"
    at = whole.index(b"etc/hosts")
    file.write_bytes(whole[:at] + b"ETC" + whole[at + 3 :])
    with pytest.raises(UserError, match="a header is invalid"), recorded.opened(file):
        pass
    file.write_bytes(whole)
    with recorded.opened(file) as machine:
        assert len(machine.read("etc/hosts")) == 700


@pytest.mark.parametrize("kind", ["empty folder", "folder of folders", "zeros", "empty archive"])
def test_no_files_are_no_bundle(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    if "folder" in kind:
        (path / "etc" if "folders" in kind else path).mkdir(parents=True)
    elif kind == "zeros":
        path.write_bytes(bytes(1 << 17))
    else:
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(member("../fstab"))
    with pytest.raises(UserError) as error, recorded.opened(path):
        pass
    assert error.value.message == f"{path} is no bundle: it has no files"


def test_a_member_of_negative_size_is_one_line(tmp_path: Path) -> None:
    info = member("etc/fstab")
    info.size = -5
    path = tmp_path / "bundle"
    path.write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(UserError, match="a member has -5 bytes"), recorded.opened(path):
        pass
