# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
import re
import shutil
import stat
import tracemalloc
from pathlib import Path

import pytest
import typer
from unit.doctor.bundles_made import read_back
from unit.files_made import write, write_all

from nfsrdma_tools.cli import explain as command
from nfsrdma_tools.command import run
from nfsrdma_tools.doctor import bundle, kernel_changelog
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.checks.kernel import known_faults
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.doctor.kernel_changelog import CommitStatus, abridged, commit_of, has
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.kernel_faults import FAULTS
from nfsrdma_tools.host.kernel_release import kernel_of
from nfsrdma_tools.host.machine import Machine

RESET = "xprtrdma: Fix rpcrdma_reqs_reset()"
DEBIAN = """\
linux (6.1.147-1) bookworm-security; urgency=high

  * New upstream stable update:
    https://www.kernel.org/pub/linux/kernel/v6.x/ChangeLog-6.1.142
    - [arm64] RDMA/iwcm: Fix use-after-free of work objects after cm_id
      destruction (CVE-2025-38211)
    - svcrdma: some other change
    - SUNRPC: the change after it

  [ A Maintainer ]
  * [amd64] Enable something (Closes: #1012345)

 -- A Maintainer <someone@example.org>  Sat, 02 Aug 2025 10:00:00 +0200

linux (6.1.140-1) bookworm; urgency=medium

  * New upstream stable update:
    - net: a change that was wrong
    - Revert "svcrdma: Drop connection after an RDMA Read error"

 -- A Maintainer <someone@example.org>  Thu, 22 May 2025 10:00:00 +0200

linux (6.1.106-1) bookworm; urgency=medium

  * New upstream stable update:
    - xprtrdma: Fix rpcrdma_reqs_reset()
    - svcrdma: Drop connection after an RDMA Read error

 -- A Maintainer <someone@example.org>  Mon, 19 Aug 2024 10:00:00 +0200
"""
RELEASE = "6.1.0-37-amd64"
VERSION = (
    f"Linux version {RELEASE} (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0)"
    " #1 SMP PREEMPT_DYNAMIC Debian {} (2025-05-22)\n"
)


def host(
    root: Path, changelog: str | bytes = DEBIAN, version: str = "6.1.140-1", name: str = ""
) -> Machine:
    data = changelog if isinstance(changelog, bytes) else gzip.compress(changelog.encode())
    files = {
        "proc/sys/kernel/osrelease": f"{RELEASE}\n".encode(),
        "proc/version": VERSION.format(version).encode(),
        name or f"usr/share/doc/linux-image-{RELEASE}/changelog.Debian.gz": data,
    }
    write_all(root, files)
    return Machine(root)


def asked(root: Path, reference: str, **more: str) -> CommitStatus:
    return has(host(root, **more), commit_of(reference))


# ---- what is searched for


def test_a_commit_is_a_hash_a_cve_or_a_subject() -> None:
    for text in ("acd9f2dd23c6", "ACD9F2D", "acd9f2dd23c632568156217aac7a05f5a0313152", RESET):
        assert commit_of(text).subject == RESET
    assert commit_of(f"  {RESET.upper()} ").fault is commit_of("acd9f2dd23c6").fault
    of_cve = commit_of("cve-2026-89528")
    assert of_cve.fault
    assert (of_cve.subject, of_cve.cves) == ("", ("CVE-2026-89528",))
    assert commit_of("CVE-2020-12345") == (("", ("CVE-2020-12345",), None))
    assert commit_of("nfs: a change of its own") == ("nfs: a change of its own", (), None)


def test_a_hash_agrees_in_all_digits_that_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fix of the same first nine digits, as `git log --oneline` may print them."""
    first = next(fault for fault in FAULTS if fault.subject == RESET)
    second = first._replace(commit="acd9f2dd2a11", subject="xprtrdma: some other fix")
    monkeypatch.setattr(kernel_changelog, "FAULTS", (*FAULTS, second))
    for digits in ("acd9f2d", "acd9f2dd2"):
        with pytest.raises(UserError, match="is ambiguous: acd9f2dd23c6, acd9f2dd2a11"):
            commit_of(digits)
    for digits in ("acd9f2dd2a", f"acd9f2dd2a11{'0' * 28}"):
        assert commit_of(digits).fault is second
    assert commit_of("acd9f2dd23").fault is first
    for digits in ("acd9f2dd2b", f"acd9f2dd2a12{'0' * 28}"):
        with pytest.raises(UserError, match="is no fix of a known fault"):
            commit_of(digits)
    with pytest.raises(UserError) as error:
        commit_of("acd9f2")
    assert "a hash of 7 digits or more" in error.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("deadbeef99", "give the subject"),
        ("0" * 40, "give the subject"),
        ("", "give a hash"),
        ("abc", "give a hash"),
        ("\x1b[31mx", "give a hash"),
    ],
)
def test_another_text_is_an_error_of_one_line(text: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        commit_of(text)
    assert hint in error.value.hint
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


# ---- what a changelog lists


@pytest.mark.parametrize(
    "line",
    [
        # Debian and Ubuntu, with architecture, CVE and bug
        "    - xprtrdma: Fix rpcrdma_reqs_reset()",
        "    - [x86] xprtrdma: Fix rpcrdma_reqs_reset() (CVE-2024-12345)",
        "  * xprtrdma: Fix rpcrdma_reqs_reset() (Closes: #1012345)",
        "    - xprtrdma: Fix\n      rpcrdma_reqs_reset()",
        # Red Hat: author, bugs, CVE; before 8.4 with the part of the kernel
        "- xprtrdma: Fix rpcrdma_reqs_reset() (Olga Kornievskaia) [RHEL-53004 RHEL-34875]",
        "- xprtrdma: Fix rpcrdma_reqs_reset() (A B) [2092253] {CVE-2024-12345}",
        "- [net] xprtrdma: Fix rpcrdma_reqs_reset() (Steve Dickson) [1227825 1111712]",
        # Oracle
        "- xprtrdma: Fix rpcrdma_reqs_reset() (Chuck Lever)  [Orabug: 22365704]",
        # SUSE
        "- xprtrdma: Fix rpcrdma_reqs_reset() (git-fixes).",
        "- xprtrdma: Fix rpcrdma_reqs_reset() (git-fixes bsc#1012628).\n- commit 1234567",
    ],
)
def test_an_entry_is_recognized_in_the_form_of_each_distribution(line: str, tmp_path: Path) -> None:
    text = f"linux (6.1.140-1) bookworm; urgency=medium\n\n{line}\n\n -- A <a@b>  Mon\n"
    answer = asked(tmp_path, RESET, changelog=text)
    assert (answer.status, answer.section) == ("has", "6.1.140-1"), answer
    shown = " ".join(answer.line.split())
    assert shown == " ".join(line.replace("\n- commit 1234567", "").split())[2:]
    assert answer.source.startswith("/usr/share/doc/linux-image-6.1.0-37-amd64/")


@pytest.mark.parametrize(
    "line",
    [
        # a part of a longer subject, a longer one, and the subject in a text
        "    - {subject} for real",
        "    - {shorter}",
        "    - another: fixes {subject}",
        "    - another: change (see {subject})",
        "  {subject}",
    ],
)
def test_another_entry_is_not_it(line: str, tmp_path: Path) -> None:
    subject = "xprtrdma: a change that no fault has"
    entry = line.format(subject=subject, shorter=subject[:-1])
    text = f"linux (6.1.140-1) bookworm; urgency=medium\n\n{entry}\n"
    assert asked(tmp_path, subject, changelog=text).status == "not listed"


def test_a_cve_in_an_entry_proves_its_fix(tmp_path: Path) -> None:
    answer = asked(tmp_path, "CVE-2025-38211", version="6.1.147-1")
    assert answer.status == "has"
    assert answer.line.endswith("after cm_id destruction (CVE-2025-38211)")
    assert asked(tmp_path, "CVE-2025-3821").status == "not listed"


def test_a_revert_is_no_fix(tmp_path: Path) -> None:
    answer = asked(tmp_path, "197115ebf358")
    assert (answer.status, answer.section) == ("unknown", "6.1.140-1")
    assert answer.line == 'Revert "svcrdma: Drop connection after an RDMA Read error"'
    # a fault whose fix is a revert itself
    subject = 'Revert "svcrdma: Use contiguous pages for RDMA Read sink buffers"'
    text = f"linux (6.1.140-1) x; urgency=low\n\n  * {subject}\n"
    assert asked(tmp_path, "a39f0ce0c9da", changelog=text).status == "has"


def test_a_later_package_than_the_running_kernel_proves_nothing(tmp_path: Path) -> None:
    answer = asked(tmp_path, "6883b680e703")
    assert (answer.status, answer.section) == ("not listed", "6.1.147-1")
    assert "reboot" in answer.text
    # the package that runs is not in the changelog
    assert asked(tmp_path, "6883b680e703", version="6.1.141-1").status == "not listed"
    assert asked(tmp_path, "6883b680e703", version="6.1.147-1").status == "has"
    # Debian's signed package has its own form of the version
    signed = DEBIAN.replace("linux (6.1.140-1)", "linux-signed-amd64 (6.1.140+1)")
    assert asked(tmp_path, "6883b680e703", changelog=signed).status == "not listed"


def test_the_release_answers_what_the_changelog_does_not(tmp_path: Path) -> None:
    assert asked(tmp_path, "4836da219781").status == "fixed upstream"
    answer = asked(tmp_path, "750037aa0a9f")
    assert (answer.status, answer.is_in) == ("not affected", True)
    answer = asked(tmp_path, "7b6275c80a0c")
    assert (answer.status, answer.is_in) == ("not listed", False)
    assert "lacks it, and Debian may have added it" in answer.text and "no proof" in answer.text


@pytest.mark.parametrize("name", ["changelog.gz", "changelog.Debian.gz"])
@pytest.mark.parametrize("package", ["linux-image-{}", "linux-modules-{}", "proxmox-kernel-{}"])
def test_changelogs_are_found_where_packages_have_them(
    package: str, name: str, tmp_path: Path
) -> None:
    file = f"usr/share/doc/{package.format(RELEASE)}/{name}"
    assert asked(tmp_path, RESET, name=file).source == f"/{file}"


def test_without_a_changelog_the_answer_is_unknown(tmp_path: Path) -> None:
    answer = asked(tmp_path, "7b6275c80a0c", name="usr/share/doc/other/changelog.gz")
    assert (answer.status, answer.is_in) == ("unknown", False)
    assert "no changelog" in answer.text


# ---- hostile files


def test_a_changelog_of_many_bytes_is_read_in_little_memory(tmp_path: Path) -> None:
    part = DEBIAN.replace(RESET, "xprtrdma: x" + "y" * 90_000) + "\xff\x1b[31m\0\r" * 900
    machine = host(tmp_path, (part * 80).encode())
    path = tmp_path / f"usr/share/doc/linux-image-{RELEASE}/changelog.Debian.gz"
    path.write_bytes(gzip.compress((part * 80).encode("latin-1"), 1))
    assert path.stat().st_size < len(part) * 80
    tracemalloc.start()
    answer = has(machine, commit_of("nfs: a change that is not there"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status == "not listed"
    assert peak < 2 << 20


@pytest.mark.parametrize(
    "filler", [b"\0", b"\n", b"- x\n", b"linux (6.1-1) x; urgency=low\n", b"  y\n"]
)
def test_a_small_file_that_unpacks_to_a_large_one_is_not_read(
    filler: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_changelog, "_MOST", 1 << 20)
    monkeypatch.setattr(kernel_changelog, "_MOST_LINES", 10_000)
    text = b"linux (6.1-1) x; urgency=low\n  * a\n" + filler * (2 << 20)
    machine = host(tmp_path, gzip.compress(text))
    tracemalloc.start()
    answer = has(machine, commit_of("nfs: a change that is not there")).text
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than 1 MiB or 10000 lines" in answer and "\n" not in answer
    assert peak < 2 << 20


# gzip writes the time: as the name of a test it would differ from one worker of pytest to another
@pytest.mark.parametrize(
    "data",
    [b"no gzip", b"\x1f\x8b\x08", gzip.compress(b"x" * 999)[:-9]],
    ids=["text", "header", "cut"],
)
def test_a_broken_file_is_named_and_the_release_answers(data: bytes, tmp_path: Path) -> None:
    machine = host(tmp_path, data)
    other = "nfs: a change that is not there"
    for reference, status in ((other, "unknown"), ("4836da219781", "fixed upstream")):
        answer = has(machine, commit_of(reference))
        assert answer.status == status
        # the name on that host: the file of a bundle is a copy
        assert re.search("; /usr/share/doc/[^ ]+ is no whole gzip file", answer.text)
        assert str(tmp_path) not in answer.text
        assert "no changelog of its package is installed" not in answer.text
        assert "\n" not in answer.text


@pytest.mark.parametrize("release", ["../../../etc", "a/b", "x" * 300, "", "6.1.0\0"])
def test_a_release_that_can_be_no_path_has_no_changelog(release: str, tmp_path: Path) -> None:
    machine = host(tmp_path)
    (tmp_path / "proc/sys/kernel/osrelease").write_text(release)
    answer = has(machine, commit_of(RESET))
    assert (answer.line, answer.source) == ("", "")


# ---- rpm

RPM = """\
* Wed Jul 16 2025 A Maintainer <someone@example.org> [5.14.0-570.26.1.el9_6]
- xprtrdma: Fix rpcrdma_reqs_reset() (Olga Kornievskaia) [RHEL-53004]
- another: change (Somebody Else) [RHEL-1]

* Tue Jul 15 2025 A Maintainer <someone@example.org> [5.14.0-570.25.1.el9_6]
- svcrdma: fix miss destroy percpu_counter in svc_rdma_proc_init() (A B) [RHEL-2]
"""
RED_HAT = "5.14.0-570.26.1.el9_6.x86_64"


def red_hat(root: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host of Red Hat that passes for this one."""
    write(root, "proc/sys/kernel/osrelease", f"{RED_HAT}\n")
    write(root, f"lib/modules/{RED_HAT}/vmlinuz", "")
    monkeypatch.setattr(Machine, "live", True)
    return Machine(root)


@pytest.fixture
def rpm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program rpm that runs what a test writes into it, on a host of Red Hat."""
    program = tmp_path / "bin/rpm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{RPM}END\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    red_hat(tmp_path / "root", monkeypatch)
    return program


def of_red_hat(program: Path) -> Machine:
    return Machine(program.parent.parent / "root")


def test_the_changelog_of_rpm_is_asked_for_the_kernel_s_file(rpm: Path) -> None:
    answer = has(of_red_hat(rpm), commit_of(RESET))
    assert (answer.status, answer.section) == ("has", "5.14.0-570.26.1.el9_6")
    assert answer.line == "xprtrdma: Fix rpcrdma_reqs_reset() (Olga Kornievskaia) [RHEL-53004]"
    assert answer.source == f"rpm -qf --changelog /lib/modules/{RED_HAT}/vmlinuz"
    answer = has(of_red_hat(rpm), commit_of("7b6275c80a0c"))
    assert (answer.status, "backports" in answer.text) == ("not listed", True), answer


@pytest.mark.parametrize(
    "script",
    ["echo file is not owned by any package; exit 1", "echo error: rpmdb open failed >&2; exit 1"],
)
def test_a_kernel_that_no_package_owns_has_no_changelog(script: str, rpm: Path) -> None:
    rpm.write_text(f"#!/bin/sh\n{script}\n")
    assert has(of_red_hat(rpm), commit_of(RESET)).status == "unknown"


@pytest.mark.parametrize(
    ("script", "limit", "text"),
    [
        ("exec yes ' - another: change'", ("_MOST", 1 << 20), "more than 1 MiB"),
        ("exec tr '\\0' x < /dev/zero", ("_MOST", 4 << 20), "more than 4 MiB"),
        ("exec sleep 600", ("_SECONDS", 1), "within 1 s"),
    ],
)
def test_what_rpm_prints_is_bounded(
    script: str, limit: tuple[str, int], text: str, rpm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_changelog, *limit)
    rpm.write_text(f"#!/bin/sh\n{script}\n")
    answer = has(of_red_hat(rpm), commit_of("nfs: a change that is not there"))
    assert text in answer.text and "\n" not in answer.text


SPEC = """\
Name: kernel-core
Version: 5.14.0
Release: 570.26.1.el9_6
Summary: A kernel of no content
License: GPL-2.0-only
BuildArch: noarch
%description
The file that has a kernel, and a changelog in Red Hat's form.
%install
mkdir -p %{{buildroot}}/lib/modules/{release}
: > %{{buildroot}}/lib/modules/{release}/vmlinuz
%files
/lib/modules/{release}/vmlinuz
%changelog
{changelog}"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host of Red Hat with a package that rpmbuild built, in a database of its own."""
    lacks = [name for name in ("rpm", "rpmbuild") if not shutil.which(name)]
    if lacks:
        pytest.skip(f"the changelog of a real package is not read: no {' and no '.join(lacks)}")
    macros = f"%_topdir {tmp_path}/build\n%_dbpath {tmp_path}/database\n"
    (tmp_path / ".rpmmacros").write_text(macros)
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = tmp_path / "kernel-core.spec"
    spec.write_text(SPEC.format(release=RED_HAT, changelog=RPM))
    run("rpmbuild", "-bb", "--quiet", str(spec))
    (package,) = (tmp_path / "build/RPMS").rglob("kernel-core-*.rpm")
    run("rpm", "-i", "--justdb", "--nodeps", str(package))
    return red_hat(tmp_path / "root", monkeypatch)


def test_the_changelog_of_a_real_package_is_read(installed: Machine) -> None:
    answer = has(installed, commit_of(RESET))
    assert (answer.status, answer.section) == ("has", "5.14.0-570.26.1.el9_6")
    assert answer.line == "xprtrdma: Fix rpcrdma_reqs_reset() (Olga Kornievskaia) [RHEL-53004]"
    assert answer.source == f"rpm -qf --changelog /lib/modules/{RED_HAT}/vmlinuz"
    later = has(
        installed, commit_of("svcrdma: fix miss destroy percpu_counter in svc_rdma_proc_init()")
    )
    assert (later.status, later.section) == ("has", "5.14.0-570.25.1.el9_6")
    assert has(installed, commit_of("7b6275c80a0c")).status == "not listed"
    kept = kernel_changelog.recorded_rpm(installed)
    assert kept
    assert kept[1].stdout == (
        "linux (5.14.0-570.26.1.el9_6) recorded; urgency=none\n"
        f"  * {answer.line}\n"
        "linux (5.14.0-570.25.1.el9_6) recorded; urgency=none\n"
    )


def test_a_file_of_no_real_package_has_no_changelog(installed: Machine) -> None:
    run("rpm", "-e", "--justdb", "kernel-core")
    assert has(installed, commit_of(RESET)).status == "unknown"


# ---- bundles


@pytest.mark.parametrize("withheld", [False, True], ids=["plain", "anonymous"])
def test_a_bundle_answers_as_its_host_does(withheld: bool, tmp_path: Path) -> None:
    machine = host(tmp_path / "host")
    made = bundle.collect(machine=Machine(machine.root))
    (name,) = (name for name in made.files if "changelog" in name)
    kept = gzip.decompress(made.files[name]).decode()
    assert "example.org" not in kept and "some other change" not in kept
    if withheld:
        made = anonymized(made)
    with read_back(made, tmp_path) as other:
        for fault in FAULTS:
            commit = commit_of(fault.commit)
            here, there = has(machine, commit), has(other, commit)
            assert (here.status, here.section) == (there.status, there.section), fault
        assert has(other, commit_of("svcrdma: some other change")).status == "unknown"
    assert has(machine, commit_of("svcrdma: some other change")).status == "not listed"


@pytest.mark.parametrize("withheld", [False, True], ids=["plain", "anonymous"])
def test_a_bundle_has_what_rpm_prints_about_known_faults(
    withheld: bool, rpm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = of_red_hat(rpm)
    made = bundle.Bundle()
    bundle._add_changelog(made, machine)
    (result,) = made.notes.programs.values()
    assert result
    assert "another: change" not in result.stdout and "example.org" not in result.stdout
    made.files["proc/sys/kernel/osrelease"] = f"{RED_HAT}\n".encode()
    here = has(machine, commit_of(RESET))
    monkeypatch.undo()
    with read_back(anonymized(made) if withheld else made, tmp_path) as other:
        there = has(other, commit_of(RESET))
        assert has(other, commit_of("7b6275c80a0c")).status == "not listed"
    assert (here.status, here.source) == (there.status, there.source) == ("has", here.source)
    assert there.line == (RESET if withheld else here.line)


MODULES = "rpcrdma 98304 1 - Live 0x0\nnfsd 921600 1 - Live 0x0\niw_cm 9 1 - Live 0x0\n"


def judged(machine: Machine) -> Finding:
    (finding,) = known_faults(machine)
    return finding


def test_doctor_lists_no_fault_whose_fix_the_changelog_has(tmp_path: Path) -> None:
    """The second fix is in a later package, the revert of a third one in this."""
    machine = host(tmp_path)
    (tmp_path / "proc/modules").write_text(MODULES)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1.0-37-amd64\n")
    changelog = tmp_path / f"usr/share/doc/linux-image-{RELEASE}/changelog.Debian.gz"
    text = DEBIAN.replace("6.1.106-1", "6.1.90-1").replace("6.1.140-1", "6.1.100-1")
    version = tmp_path / "proc/version"
    version.write_text(VERSION.format("6.1.100-1"))
    changelog.write_bytes(gzip.compress(b""))
    before = judged(machine).found
    count = int(before.split()[0])
    changelog.write_bytes(gzip.compress(text.encode()))
    finding = judged(machine)
    assert finding.status == "ok"
    assert finding.found.startswith(f"{count - 1} known faults possible in Linux 6.1.100 ")
    assert finding.found.endswith("; the changelog of its package lists the fixes of 1 more")

    # a bundle has these entries
    kept = bundle.collect(machine=Machine(tmp_path))
    for known in (kept, anonymized(kept)):
        with read_back(known, tmp_path) as other:
            assert judged(other).found == finding.found

    # each fault: none is left
    entries = "".join(f"  * {fault.subject} ({fault.source})\n" for fault in FAULTS)
    changelog.write_bytes(gzip.compress(f"linux (6.1.100-1) x; urgency=low\n{entries}".encode()))
    assert judged(machine).found == (
        "none known in the loaded modules of Linux 6.1.100; the changelog of its package lists "
        f"the fixes of {count} that are possible"
    )


@pytest.mark.parametrize(
    "data", [b"no gzip", gzip.compress(b"x" * (1 << 20))[:-9]], ids=["text", "cut"]
)
def test_doctor_judges_by_version_if_the_changelog_is_no_whole_one(
    data: bytes, tmp_path: Path
) -> None:
    machine = host(tmp_path, b"")
    (tmp_path / "proc/modules").write_text(MODULES)
    (tmp_path / "proc/version").write_text(VERSION.format("6.1.100-1"))
    changelog = tmp_path / f"usr/share/doc/linux-image-{RELEASE}/changelog.Debian.gz"
    changelog.unlink()
    before = judged(machine)
    changelog.write_bytes(data)
    assert judged(machine) == before


def test_doctor_reads_a_part_of_what_explain_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = host(tmp_path)
    faults = [*FAULTS]
    kernel = kernel_of(machine)
    assert kernel_changelog.listed(machine, kernel, faults)
    monkeypatch.setattr(kernel_changelog, "_FEW_BYTES", 100)
    with pytest.raises(UserError, match="has more than"):
        kernel_changelog.listed(machine, kernel, faults)


def test_the_abridged_changelog_of_another_text_is_left_out() -> None:
    assert abridged("a text\n- xprtrdma: x\n") is None
    assert abridged("") is None


# ---- the command


def test_the_command_quotes_the_changelog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host(tmp_path)
    command.explain(commit="acd9f2dd23c6", sources=[str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == [
        f"has  {RELEASE}  {RESET}",
        "    why: the changelog of the package lists it",
        f"    line: {RESET}",
        "    of: 6.1.106-1",
        f"    read from: /usr/share/doc/linux-image-{RELEASE}/changelog.Debian.gz",
    ]


def test_the_exit_status_says_whether_all_kernels_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host(tmp_path)
    command.explain(commit="4836da219781", sources=[str(tmp_path), "6.12.1", "6.10.1"])
    with pytest.raises(typer.Exit) as ended:
        command.explain(commit="4836da219781", sources=["6.12.1", "6.1.5"], as_json=True)
    assert ended.value.exit_code == 1
    out = capsys.readouterr().out
    rows = json.loads(out[out.index("{") :])["answers"]
    assert [row["status"] for row in rows] == ["fixed upstream", "lacks"]
