# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.files_made import write_all

from nfsrdma_tools.cli import explain as command
from nfsrdma_tools.doctor import checks
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_release
from nfsrdma_tools.host.kernel_faults import (
    FAULTS,
    OLDEST_SERIES,
    Fault,
    is_fixed,
    may_have,
    possible,
)
from nfsrdma_tools.host.kernel_release import KernelVersion, kernel_named, kernel_of
from nfsrdma_tools.host.machine import Machine

BY_COMMIT = {fault.commit: fault for fault in FAULTS}


def host(root: Path, release: str, **files: str) -> Path:
    named = {"proc/sys/kernel/osrelease": f"{release}\n"}
    named |= {f"proc/{name}": text for name, text in files.items()}
    write_all(root, named)
    return root


def commits(release: str) -> set[str]:
    number = tuple(map(int, release.split(".")))
    assert len(number) == 3
    return {fault.commit for fault in possible(KernelVersion(release, number, ""))}


def series(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


# ---- the table


def test_each_line_has_its_source_and_a_sensible_range() -> None:
    assert len(FAULTS) == len(BY_COMMIT) >= 10
    for fault in FAULTS:
        assert re.fullmatch(r"[0-9a-f]{12}", fault.commit)
        assert fault.subject, fault
        assert fault.seen, fault
        assert fault.source, fault
        assert series(fault.fixed) > (5, 15), fault
        names = [name for name, _ in fault.stable]
        assert names == sorted(names, key=series), fault
        assert all(patch > 0 for _, patch in fault.stable), fault
        assert all(series(name) < series(fault.fixed) for name in names), fault
        if fault.first:
            assert all(series(name) >= series(fault.first) for name in names), fault
            assert series(fault.first) < series(fault.fixed), fault
        assert not set(names) & set(fault.unverified), fault
    assert list(FAULTS) == sorted(FAULTS, key=lambda fault: series(fault.fixed))


# ---- which kernels have which fault


@pytest.mark.parametrize("release", ["6.12.118", "6.12.117", "6.18.51", "7.2.5", "7.2.13", "7.3.0"])
def test_a_release_after_all_fixes_has_none(release: str) -> None:
    assert commits(release) == set()


@pytest.mark.parametrize("release", ["5.14.21", "5.15.0", "6.1.10", "6.12.5", "7.1.2"])
def test_a_release_before_a_fix_has_some(release: str) -> None:
    assert commits(release)


@pytest.mark.parametrize(
    ("release", "commit", "expected"),
    [
        # the last release of a stable series without the fix, and the first with it
        ("6.12.77", "7b6275c80a0c", True), ("6.12.78", "7b6275c80a0c", False),
        ("5.15.202", "7b6275c80a0c", True), ("5.15.203", "7b6275c80a0c", False),
        ("6.19.8", "7b6275c80a0c", True), ("6.19.9", "7b6275c80a0c", False),
        ("7.0.0", "7b6275c80a0c", False),
        # a series that ended before the fix
        ("6.17.13", "7b6275c80a0c", True), ("6.8.12", "4836da219781", True),
        # a series of which it is not known
        ("6.9.1", "4836da219781", False),
        # before the fault
        ("6.6.20", "750037aa0a9f", False), ("6.11.4", "750037aa0a9f", True),
        ("7.0.9", "e5248a742603", False), ("7.1.3", "e5248a742603", True),
        ("7.1.4", "e5248a742603", False),
        # two digits compare as numbers
        ("6.2.9", "895cedc17919", True), ("6.10.2", "acd9f2dd23c6", True),
        ("6.10.3", "acd9f2dd23c6", False),
    ],
)  # fmt: skip
def test_a_fault_ends_where_its_fix_begins(release: str, commit: str, expected: bool) -> None:
    number = tuple(map(int, release.split(".")))
    assert len(number) == 3
    assert may_have(number, BY_COMMIT[commit]) is expected


def test_texts_name_the_first_series_that_the_table_judges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The series before has no faults listed; this one has; command, check and page name it."""
    major, minor = series(OLDEST_SERIES)
    before = f"{major}.{minor - 1}"
    assert commits(f"{OLDEST_SERIES}.0")
    assert not commits(f"{before}.99")
    named = f"begins with Linux {OLDEST_SERIES}"
    command.explain(kernel=True, sources=[f"{before}.99", f"{OLDEST_SERIES}.1"])
    earlier, first = capsys.readouterr().out.split(f"\n{OLDEST_SERIES}.1: ")
    assert named in earlier
    assert "the table of faults" not in first
    for release, is_named in ((f"{before}.99", True), (f"{OLDEST_SERIES}.1", False)):
        root = host(tmp_path / release, release, modules=MODULES)
        (finding,) = checks.kernel.known_faults(Machine(root=root))
        assert (named in finding.found) == is_named
    pages = Path(__file__).parents[3] / "docs"
    page = (pages / "how-to/explain.md").read_text()
    assert f"NFS over RDMA since Linux {OLDEST_SERIES}," in page
    table = (pages / "reference/kernel-messages.md").read_text()
    assert set(re.findall(r"\| (\d+\.\d+) or older \|", table)) == {OLDEST_SERIES}


def test_a_kernel_older_than_the_table_has_none_listed() -> None:
    assert possible(KernelVersion("4.18.0-553.el8", (4, 18, 0), "-553.el8")) == []
    assert possible(KernelVersion("strange", (0, 0, 0), "strange")) == []


# ---- the running kernel


@pytest.mark.parametrize(
    ("release", "files", "number", "suffix"),
    [
        ("6.12.30", {}, (6, 12, 30), ""),
        ("7.2.0", {}, (7, 2, 0), ""),
        ("6.12.118+deb13-amd64", {}, (6, 12, 118), "+deb13-amd64"),
        # Debian 12 and Ubuntu have the upstream release in another file
        ("6.1.0-37-amd64",
         {"version": "Linux version 6.1.0-37-amd64 (x@y) (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld"
          " (GNU Binutils for Debian) 2.40) #1 SMP Debian 6.1.140-1 (2025-05-22)\n"},
         (6, 1, 140), "-37-amd64"),
        ("6.8.0-60-generic", {"version_signature": "Ubuntu 6.8.0-60.63-generic 6.8.12\n"},
         (6, 8, 12), "-60-generic"),
        ("5.14.0-570.12.1.el9_6.x86_64", {"version": "Linux version 5.14.0-570.12.1.el9_6\n"},
         (5, 14, 0), "-570.12.1.el9_6.x86_64"),
        # the compiler is Debian's, the kernel is not
        ("6.12.118", {"version": "Linux version 6.12.118 (x@y) (gcc (Debian 14.2.0-19) 14.2.0)"
                      " #2 SMP Tue Mar  3 07:05:09 UTC 2026\n"}, (6, 12, 118), ""),
        ("6.12.118", {"version": "x #1 SMP Debian 6.1.140-1"}, (6, 12, 118), ""),
        ("7.1-rc3", {}, (7, 1, 0), "-rc3"),
        ("6.1.0-37-amd64", {"version": "x #1 Debian 6.1.99999999-1 \xff"}, (6, 1, 0),
         "-37-amd64"),
        ("no release", {}, (0, 0, 0), "no release"),
        ("", {}, (0, 0, 0), ""),
    ],
)  # fmt: skip
def test_the_upstream_release_of_a_kernel(
    release: str, files: dict[str, str], number: object, suffix: str, tmp_path: Path
) -> None:
    kernel = kernel_of(Machine(host(tmp_path, release, **files)))
    assert (kernel.release, kernel.number, kernel.suffix) == (release, number, suffix)


def test_a_tree_without_proc_has_no_release(tmp_path: Path) -> None:
    kernel = kernel_of(Machine(tmp_path))
    assert (kernel.release, kernel.number, kernel.suffix) == ("", (0, 0, 0), "")
    assert not kernel.certain


# ---- the check of doctor

MODULES = "rpcrdma 98304 1 - Live 0x0\nnfsd 921600 1 - Live 0x0\n"


def test_doctor_is_silent_on_debian_s_kernel(tmp_path: Path) -> None:
    root = host(tmp_path, "6.12.118+deb13-amd64", modules=MODULES)
    (finding,) = checks.kernel.known_faults(Machine(root=root))
    assert (finding.name, finding.status) == ("known faults", "ok")


@pytest.mark.parametrize("release", ["4.18.0-553.el8_10.x86_64", "5.4.0-150-generic"])
def test_a_kernel_older_than_the_table_is_unknown(release: str, tmp_path: Path) -> None:
    (finding,) = checks.kernel.known_faults(Machine(root=host(tmp_path, release, modules=MODULES)))
    assert (finding.status, "older than the table" in finding.found) == ("unknown", True)
    root = host(tmp_path / "idle", release, modules="ext4 1 0 - Live 0x0\n")
    (finding,) = checks.kernel.known_faults(Machine(root=root))
    assert finding.status == "ok"


def test_doctor_has_one_line_for_what_is_possible(tmp_path: Path) -> None:
    root = host(tmp_path, "6.12.105", modules=MODULES)
    (finding,) = checks.kernel.known_faults(Machine(root=root))
    newest = BY_COMMIT["0ca487abb3bd"]
    assert (finding.status, finding.remedy) == ("warning", "nfsrdma explain --faults")
    assert finding.found == f"2 known faults in Linux 6.12.105; the newest: {newest.seen}"
    assert finding.expected == f"Linux {newest.fixes} or later"


def test_a_kernel_of_a_distribution_has_no_warning_by_its_version(tmp_path: Path) -> None:
    root = host(tmp_path, "6.12.105-custom", modules=MODULES)
    (finding,) = checks.kernel.known_faults(Machine(root=root))
    assert (finding.status, finding.remedy) == ("ok", "nfsrdma explain --faults")
    assert finding.found.startswith("2 known faults possible in Linux 6.12.105")


@pytest.mark.parametrize(
    ("modules", "parts"),
    [
        ("", set()),
        ("nfsd 1 0 - Live 0x0\n", set()),
        ("rpcrdma 1 0 - Live 0x0\n", {"client"}),
        (MODULES, {"client", "server"}),
        ("rdma_rxe 1 0 - Live 0x0\n", {"rxe"}),
        ("siw 1 0 - Live 0x0\niw_cm 1 0 - Live 0x0\n", {"siw", "iwarp"}),
    ],
)
def test_doctor_looks_at_loaded_modules_only(
    modules: str, parts: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Fault] = []

    def judge(_kernel: KernelVersion, faults: list[Fault], _fixed: int) -> Iterator[Finding]:
        judged.extend(faults)
        return iter(())

    monkeypatch.setattr(checks.kernel, "judge_known_faults", judge)
    list(checks.kernel.known_faults(Machine(root=host(tmp_path, "6.1.20", modules=modules))))
    assert {fault.part for fault in judged} == parts


@pytest.mark.parametrize(
    ("release", "status", "text", "expected"),
    [
        # fixed in a later release of the series: the distribution has it after its next update
        ("6.12.105+deb13-amd64", "ok",
         "2 known faults possible in Linux 6.12.105 by its version, see the kernel log; "
         "the newest fix is in Linux 6.12.114", ""),
        ("6.12.105-106.156.amzn2023.x86_64", "ok", "the newest fix is in Linux 6.12.114", ""),
        # kernel.org's as it is
        ("6.12.105-arch1-1", "warning", "2 known faults in Linux 6.12.105; the newest", "7.3"),
        # no release of the series has the fix: nothing can be done
        ("6.1.187-200.fc40.x86_64", "ok", "possible in Linux 6.1.187 by its version", ""),
        # the number says nothing about fixes
        ("5.14.0-570.el9.x86_64", "unknown", "possible by version", ""),
        ("6.4.0-150600.23.47-default", "unknown", "possible by version", ""),
        ("5.15.0-91-generic", "unknown", "possible by version; its number is that of the ABI", ""),
        ("6.12.105-custom", "ok", "possible in Linux 6.12.105 by its version", ""),
    ],
)  # fmt: skip
def test_a_verdict_is_as_certain_as_the_release(
    release: str, status: str, text: str, expected: str, tmp_path: Path
) -> None:
    root = host(tmp_path, release, modules=MODULES)
    (finding,) = checks.kernel.known_faults(Machine(root=root))
    assert finding.status == status, finding
    assert text in finding.found and expected in finding.expected


@pytest.mark.parametrize(
    ("release", "commit", "fixed"),
    [
        ("6.12.78", "7b6275c80a0c", True), ("6.12.77", "7b6275c80a0c", False),
        ("6.12.78+deb13-amd64", "7b6275c80a0c", True),
        # the series alone says that all of the earlier releases is in
        ("6.4.0-150600.23.47-default", "a9c10b5b3b67", True),
        ("6.4.0-150600.23.47-default", "895cedc17919", False),
        ("5.14.0-570.el9.x86_64", "a9c10b5b3b67", False),
        ("6.1.0-37-amd64", "773f91b2cf3f", True), ("6.1.0-37-amd64", "acd9f2dd23c6", False),
        # a release candidate has all of the release before, and not for certain of its own
        ("7.0.0-rc3", "d1bea0ce35b6", True), ("7.0.0-rc3", "7b6275c80a0c", False),
        # so may be a kernel whose name has the series only: Ubuntu-7.0.0-7.7 is based on 7.0-rc3
        ("7.0.0-7-generic", "d1bea0ce35b6", True), ("7.0.0-7-generic", "7b6275c80a0c", False),
        ("7.0.0-1-pve", "7b6275c80a0c", False), ("7.0.2-7-pve", "7b6275c80a0c", True),
        ("6.12.0-55.9.1.el10_0.x86_64", "acd9f2dd23c6", True),
        # who built it may have taken the fix out
        ("6.12.118-custom", "7b6275c80a0c", False), ("no release", "7b6275c80a0c", False),
    ],
)  # fmt: skip
def test_a_fix_is_certain_only_by_a_release_that_is(release: str, commit: str, fixed: bool) -> None:
    kernel = (
        kernel_named(release)
        if release[0].isdigit()
        else KernelVersion(release, (0, 0, 0), release)
    )
    assert is_fixed(kernel, BY_COMMIT[commit]) is fixed


def test_a_kernel_with_backports_may_have_faults_of_later_releases() -> None:
    # svcrdma of 6.11 is in 5.14.0-570.el9, with its faults
    late = BY_COMMIT["750037aa0a9f"]
    assert late not in possible(kernel_named("5.15.40"))
    assert late in possible(kernel_named("5.14.0-570.el9.x86_64"))
    # and a candidate those that its own release ends
    assert BY_COMMIT["7b6275c80a0c"] in possible(kernel_named("7.0.0-rc3"))
    assert BY_COMMIT["7b6275c80a0c"] not in possible(kernel_named("7.0.0"))


def test_a_distribution_s_backports_are_unknown(tmp_path: Path) -> None:
    root = host(tmp_path, "5.14.0-570.el9.x86_64", modules=MODULES)
    (finding,) = checks.kernel.known_faults(Machine(root=root))
    assert (finding.status, "distribution decides" in finding.found) == ("unknown", True), finding


def test_a_strange_release_is_unknown() -> None:
    with pytest.raises(UserError):
        next(checks.kernel.judge_known_faults(KernelVersion("x", (0, 0, 0), "x"), []))


# ---- nfsrdma explain --faults


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    running = kernel_named("6.12.112+deb13-amd64")
    monkeypatch.setattr(kernel_release, "kernel_of", lambda _machine: running)


@pytest.mark.usefixtures("kernel")
def test_the_command_lists_the_faults(capsys: pytest.CaptureFixture[str]) -> None:
    command.explain(faults=True)
    assert capsys.readouterr().out.splitlines() == [
        "see CVE-2026-89528 (commit 0ca487abb3bd)",
        "    seen: a client that breaks the protocol can crash the server",
        "    fixed: 6.12.114, 6.18.51, 7.2.4, 7.3",
        "1 known fault is possible in Linux 6.12.112, unless the distribution has added the fixes",
    ]


@pytest.mark.usefixtures("kernel")
def test_the_list_as_json_has_these_fields(capsys: pytest.CaptureFixture[str]) -> None:
    command.explain(faults=True, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1,
        "release": "6.12.112+deb13-amd64",
        "version": "6.12.112",
        "faults": [
            {
                "commit": "0ca487abb3bd",
                "subject": "see CVE-2026-89528",
                "seen": "a client that breaks the protocol can crash the server",
                "part": "server",
                "first": "4.13",
                "fixed": "7.3",
                "source": "CVE-2026-89528; 6.12.114: changelog of Debian's linux 6.12.118-1",
                "stable": {"6.12": 114, "6.18": 51, "7.2": 4},
            }
        ],
    }
