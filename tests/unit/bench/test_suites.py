# SPDX-License-Identifier: Apache-2.0
"""Suites of others: their tests, what their output means, what is run again, and the tables."""

import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.suites import batches
from bench.suites import formats as suite
from bench.suites import measure as suites
from bench.suites import page as suites_page
from bench.suites.batches import Ended
from bench.suites.build import version
from bench.suites.formats import (
    FAILED,
    HUNG,
    PASSED,
    PLACE,
    SKIPPED,
    SLOW,
    SUITES,
    Verdict,
    outcome,
    outcomes,
)
from bench.suites.measure import TRANSPORTS, Store, chosen, differs, jobs, repeats
from nfsrdma_tools.personalities import PERSONALITIES

TESTS = ("chmod/00", "chmod/01", "link/00")


def ended(
    output: str, status: int | None = 0, *, stuck: bool = False, tests: str = "a test"
) -> Ended:
    return Ended(tests.split(), output, 1.5, status, stuck)


def result(verdict: str = PASSED, *lines: str) -> dict[str, Any]:
    """As a store has it."""
    return Verdict(verdict, list(lines), 1.0)._asdict()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    results = Store(tmp_path / "pjdfstest" / "6.12")
    results.describe("pjdfstest 1234567, made up.")
    return results


def fill(store: Store, number: int = 0, **others: dict[str, Any]) -> None:
    """Store results: each test passes over each transport, unless ``others`` has its result."""
    for transport in TRANSPORTS.values():
        for vers in transport.versions:
            for test in TESTS:
                other = others.get(transport.name.replace(" ", "_").replace("-", "_"))
                good = not other or test != "chmod/01"
                put = result() if good else other
                store.put(vers, transport.name, test, put or {}, number)


def test_every_personality_is_a_transport_and_tcp_is_the_first() -> None:
    assert [*TRANSPORTS] == ["tcp", "rdma", *(f"nfsrdma {name}" for name in PERSONALITIES)]
    assert TRANSPORTS["nfsrdma optimistic"].versions == ("3",)
    assert TRANSPORTS["nfsrdma cached"].versions == ("3", "4.2")


# --- what an output means ---


def judged(name: str, output: str, status: int | None = 0, *, stuck: bool = False) -> Any:
    """The outcome, and what the suite said of it."""
    return outcome(SUITES[name], ended(output, status, stuck=stuck))[:2]


EIO = "1..2\nok 1\nnot ok 2 - tried 'open pjdfstest_00ff12 x', expected 0, got EIO\n"


@pytest.mark.parametrize(
    ("output", "status", "verdict", "lines"),
    [
        ("1..2\nok 1\nok 2\n", 0, PASSED, []),
        # random names are left out
        (EIO, 0, FAILED, ["2 - tried 'open NAME x', expected 0, got EIO"]),
        # its authors expect this one to fail
        ("1..1\nnot ok 1 # TODO FreeBSD only\n", 0, PASSED, []),
        ("1..3\nok 1\n", 0, FAILED, ["planned 3, found 1 results"]),
        ("sh: not found\n", 127, FAILED, ["planned nothing, found 0 results"]),
        ("1..0 # SKIP no chflags\n", 0, SKIPPED, []),
    ],
    ids=["passes", "fails", "TODO", "too-few", "no-plan", "skipped"],
)
def test_tap_is_judged_by_its_plan_and_results(
    output: str, status: int, verdict: str, lines: list[str]
) -> None:
    assert judged("pjdfstest", output, status) == (verdict, lines)


def test_connectathon_is_judged_by_its_status() -> None:
    assert judged("cthon", "ok.\n")[0] == PASSED
    lines = ["status 1", "a", "can't chdir"]
    assert judged("cthon", "a\ncan't chdir\n", 1) == (FAILED, lines)


CHECK = """FSTYP         -- nfs

generic/001        [7 s]
 8s
generic/003        [2 s]
[not run] atime related mount options
generic/013        [3 s]
- output mismatch (see /tmp/results/generic/013.out.bad)
    --- tests/generic/013.out\t2026
    +++ /tmp/results/generic/013.out.bad\t2026
    @@ -1,2 +1,3 @@
    -Silence
    +fsstress: EIO
    ...
generic/014        [240 s]
[failed, exit status 137]- output mismatch (see /tmp/results/generic/014.out.bad)
    --- tests/generic/014.out\t2026
    -OK
"""


def batch(
    name: str, tests: str, output: str, status: int | None = 0, *, stuck: bool = False
) -> dict[str, Verdict]:
    return dict(outcomes(SUITES[name], ended(output, status, stuck=stuck, tests=tests)))


def test_fstests_is_judged_by_what_check_prints_of_each_test() -> None:
    names = "generic/001 generic/003 generic/013 generic/014"
    verdicts = batch("fstests", names, CHECK + "Ran: generic/001 ...\nFailed 2 of 3 tests\n", 1)
    assert verdicts == {
        "generic/001": (PASSED, [], 7),
        "generic/003": (SKIPPED, ["atime related mount options"], 2),
        "generic/013": (FAILED, ["-Silence", "+fsstress: EIO"], 3),
        "generic/014": (SLOW, ["no result after 240 s"], 240),
    }


def test_the_last_test_that_began_has_the_end_of_the_batch() -> None:
    output = "generic/001        [7 s]\n 8s\ngeneric/002       "
    names = "generic/001 generic/002 generic/003"
    for status, stuck, expected in ((None, False, SLOW), (None, True, HUNG), (1, False, FAILED)):
        verdicts = batch("fstests", names, output, status, stuck=stuck)
        found = {test: f.outcome for test, f in verdicts.items()}
        assert found == {"generic/001": PASSED, "generic/002": expected}


def test_a_batch_without_a_test_that_began_is_a_failure_of_the_first() -> None:
    verdicts = batch("fstests", "generic/001 generic/002", "check: no TEST_DEV\n", 1)
    assert {test: f.outcome for test, f in verdicts.items()} == {"generic/001": FAILED}


NFSTEST = """
*** Verify POSIX API chdir() on NFSv3
    TEST: Running test 'chdir'
    PASS: chdir - chdir() should succeed
    TIME: 0.047299s

*** Verify POSIX API chmod() on NFSv3
    TEST: Running test 'chmod'
    PASS: chmod - works
    FAIL: mode is 600
    TIME: 1m2.5s

*** Verify POSIX API link() on NFSv3
    TEST: Running test 'link'
    PASS: link - works
"""


def test_nfstest_fails_with_an_assertion_or_without_an_end() -> None:
    verdicts = batch("nfstest", "posix/chdir posix/chmod posix/link posix/read", NFSTEST, 1)
    assert verdicts["posix/chdir"] == (PASSED, [], 0.0)
    assert verdicts["posix/chmod"] == (FAILED, ["mode is N"], 62.5)
    assert verdicts["posix/link"].lines == ["status 1", "PASS: link - works"]
    assert "posix/read" not in verdicts


def test_nfstest_without_an_assertion_fails() -> None:
    verdicts = batch("nfstest", "posix/chdir", "Traceback\n", 1)
    assert verdicts["posix/chdir"].lines == ["status 1", "Traceback"]


@pytest.mark.parametrize("name", SUITES)
def test_a_script_of_tests_is_one_of_the_shell(name: str) -> None:
    every = {"pjdfstest": "chmod/00", "cthon": "special/rename", "fstests": "generic/001 nfs/001",
             "nfstest": "posix/read posix/write"}  # fmt: skip
    script = SUITES[name].script(every[name].split())
    subprocess.run(["bash", "-n", "-c", script], check=True, timeout=60)
    assert all(test.split("/")[-1] in script for test in every[name].split())


@pytest.mark.parametrize("name", SUITES)
def test_a_test_at_its_limit_is_too_slow_and_one_that_does_not_end_hangs(name: str) -> None:
    assert judged(name, "", None)[0] == SLOW
    assert judged(name, "", None, stuck=True)[0] == HUNG


# --- the end of a test in the node ---


def started(script: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(("bash", "-c", script), stdout=file, start_new_session=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "POLL", 0.1)


def test_the_limit_ends_all_processes_of_a_test(tmp_path: Path) -> None:
    # a group of its own, as that of timeout(1)
    process = started("set -m; sleep 600 & wait", tmp_path / "output")
    assert batches.wait(process, 0.5, None) == (None, False)
    assert batches.session(process.pid) == []


def test_a_test_that_ends_has_its_status(tmp_path: Path) -> None:
    assert batches.wait(started("exit 3", tmp_path / "output"), 60, None) == (3, False)


def test_the_limit_of_a_batch_begins_anew_with_each_output(tmp_path: Path) -> None:
    script = "for n in 1 2 3 4 5; do sleep 0.6; echo; done"
    for name, expected in (("one", None), ("several", 0)):
        process = started(script, tmp_path / name)
        with (tmp_path / name).open() as file:
            several = file.fileno() if name == "several" else None
            assert batches.wait(process, 2, several) == (expected, False)


def test_a_process_that_does_not_end_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "DEATH", 0.5)
    process = started("sleep 600", tmp_path / "output")
    with monkeypatch.context() as unkillable:
        unkillable.setattr("os.kill", lambda _pid, _signal: None)
        assert batches.wait(process, 0.1, None) == (None, True)
    assert batches.killed(process)


# --- which tests there are ---


def test_the_tests_of_pjdfstest_are_its_files(tmp_path: Path) -> None:
    for name in ("tests/link/00.t", "tests/chmod/01.t", "tests/conf", "tests/chmod/x.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert SUITES["pjdfstest"].tests(tmp_path) == ["chmod/01", "link/00"]


def test_the_tests_of_fstests_are_those_of_the_groups_quick_and_soak(tmp_path: Path) -> None:
    for part, number, groups in (
        ("generic", "001", "rw dir udf auto quick"),
        ("generic", "002", "metadata auto"),
        ("generic", "521", "soak long_rw smoketest"),
        ("nfs", "001", "auto quick nfs4_acl acl"),
        ("xfs", "001", "auto quick"),
    ):
        file = tmp_path / "tests" / part / number
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n. ./common/preamble\n_begin_fstest {groups}\n")
        file.with_suffix(".out").touch()
    assert SUITES["fstests"].tests(tmp_path) == ["generic/001", "generic/521", "nfs/001"]


def test_a_folder_without_connectathons_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected Connectathon's tests"):
        SUITES["cthon"].tests(tmp_path)


def test_suites_that_mount_by_themselves_run_one_test_at_a_time() -> None:
    assert {s.name: s.at_once for s in SUITES.values() if s.folders} == {"fstests": 1, "nfstest": 1}
    assert all(s.at_once > 1 for s in SUITES.values() if not s.folders)


def test_names_of_pjdfstest_are_those_that_openssl_would_make(tmp_path: Path) -> None:
    """Its namegen() takes the last field of what openssl prints."""
    (tmp_path / "name.t").write_text("echo a | openssl md5 | awk '{print $NF}'\necho \"$0\"\n")
    file = str(tmp_path / "name.t")
    script = SUITES["pjdfstest"].script(["x"]).split("&& ", 1)[1]
    for old, new in (("exec busybox ", ""), (f"{PLACE}/tests/x.t", file)):
        assert old in script
        script = script.replace(old, new)
    done = subprocess.run(("bash", "-c", script), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["60b725f10c9c85c70d97880dfe8191b3", file]


def test_a_suite_with_batches_finds_each_test_in_the_output() -> None:
    assert {s.name for s in SUITES.values() if s.batch > 1} == {"fstests", "nfstest"}
    assert all(s.split for s in SUITES.values() if s.batch > 1)


def test_tests_that_are_left_to_kvm_are_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TESTS:
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / f"{name}.t").touch()
    about: dict[str, Any] = {"short": ["*/00"], "kvm": {"link/*": "900 s"}}
    monkeypatch.setattr(suites, "lists", lambda _: about)
    assert chosen(SUITES["pjdfstest"], tmp_path, "6.12") == ["chmod/00", "chmod/01"]
    assert chosen(SUITES["pjdfstest"], tmp_path, "6.1") == ["chmod/00"]
    assert chosen(SUITES["pjdfstest"], tmp_path, "6.1", ["chmod/*"]) == ["chmod/00", "chmod/01"]
    assert chosen(SUITES["pjdfstest"], tmp_path, "6.12", ["link/00"]) == ["link/00"]
    about["chosen"] = ["*/01"]
    assert chosen(SUITES["pjdfstest"], tmp_path, "6.12") == ["chmod/01"]
    assert chosen(SUITES["pjdfstest"], tmp_path, "6.1") == ["chmod/00", "link/00"]


def test_suites_toml_has_a_table_for_each_suite_with_what_the_code_reads() -> None:
    tables = tomllib.loads(suite.LISTS.read_text())
    assert set(tables) == set(SUITES)
    for about in tables.values():
        assert set(about) <= {"short", "chosen", "kvm", "reason"}
        assert about["short"]
        for reason in about.get("reason", []):
            assert {"test", "why"} <= set(reason) <= {"test", "why", "transport", "vers"}


# --- what is run ---


def test_the_first_round_has_all_tests_over_all_transports_by_module(store: Store) -> None:
    first_round = jobs(store, TESTS, [*TRANSPORTS])
    assert len(first_round) == 15
    assert {job.number for job in first_round} == {0}
    modules = [job.transport.module for job in first_round]
    assert sum(a != b for a, b in pairwise(modules)) == 1


def test_an_interrupted_run_continues(store: Store) -> None:
    store.put("3", "rdma", "chmod/01", result())
    (job,) = (j for j in jobs(store, TESTS, ["rdma"]) if j.vers == "3")
    assert job.tests == ["chmod/00", "link/00"]


def test_equal_results_are_not_run_again(store: Store) -> None:
    fill(store)
    assert jobs(store, TESTS, [*TRANSPORTS]) == []
    assert repeats(store, TESTS, [*TRANSPORTS]) == []


def test_a_difference_is_run_twice_more_over_both(store: Store) -> None:
    fill(store, nfsrdma_cached=result(FAILED, "status 1"))
    repeated = repeats(store, TESTS, [*TRANSPORTS])
    assert {(j.transport.name, j.vers, j.number) for j in repeated} == {
        (name, vers, number)
        for name in ("tcp", "nfsrdma cached")
        for vers in ("3", "4.2")
        for number in (1, 2)
    }
    assert all(job.tests == ["chmod/01"] for job in repeated)


def test_failures_are_compared_without_their_numbers(store: Store) -> None:
    fill(store, tcp=result(FAILED, "got 17 at 0xff"), rdma=result(FAILED, "got 18 at 0xfe"))
    assert not differs(store, "3", "rdma", "chmod/01")
    fill(store, tcp=result(FAILED, "got EIO"), rdma=result(FAILED, "got EPERM"))
    assert differs(store, "3", "rdma", "chmod/01")


def test_a_test_that_is_skipped_over_tcp_runs_over_nothing_else(store: Store) -> None:
    store.put("3", "tcp", "chmod/01", result(SKIPPED, "no xattr"))
    tests = {(j.transport.name, j.vers): j.tests for j in jobs(store, TESTS, ["tcp", "rdma"])}
    assert tests["rdma", "3"] == ["chmod/00", "link/00"]
    assert tests["rdma", "4.2"] == tests["tcp", "4.2"] == [*TESTS]
    assert tests["tcp", "3"] == ["chmod/00", "link/00"]
    store.put("3", "rdma", "chmod/00", result())
    rows = suites_page.numbers(store, TESTS)
    assert rows[1] == ("3", "rdma", 1, 0, 0, 0, 0, 0, 1)


# --- the tables ---


def test_a_difference_without_a_reason_is_not_explained(store: Store) -> None:
    fill(store, nfsrdma_cached=result(FAILED, "status 1"), rdma=result(FAILED, "status 1"))
    rows = suites_page.differences(store, "pjdfstest", TESTS)
    assert [row[:4] for row in rows] == [
        ("chmod/01", "NFSv3, rdma, nfsrdma cached", "passed", "failed: `status 1`"),
        ("chmod/01", "NFSv4.2, rdma, nfsrdma cached", "passed", "failed: `status 1`"),
    ]
    assert {row[4] for row in rows} == {"not explained"}


def test_a_reason_is_that_of_the_first_patterns_that_match(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"test": "chmod/*", "transport": "nfsrdma *", "vers": "3", "why": "ours"}
    reasons = [ours, {"test": "chmod/01", "why": "all"}]
    monkeypatch.setattr(suites_page, "lists", lambda _: {"reason": reasons})
    assert suites_page.reason("x", "nfsrdma cached", "3", "chmod/01") == "ours"
    assert suites_page.reason("x", "rdma", "3", "chmod/01") == "all"
    assert suites_page.reason("x", "rdma", "3", "link/00") == "not explained"


def test_a_test_that_fails_now_and_then_says_how_often(store: Store) -> None:
    fill(store, rdma=result(FAILED, "status 1"))
    fill(store, 1)
    fill(store, 2)
    row = suites_page.differences(store, "pjdfstest", TESTS)[0]
    assert row[2:4] == ("passed (3 runs)", "failed 1 of 3, passed 2 of 3: `status 1`")


def test_failures_over_tcp_are_named_with_their_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    monkeypatch.setattr(suites_page, "lists", lambda _: {})
    assert suites_page.failures(store, "pjdfstest", TESTS) == []
    fill(store, tcp=result(FAILED, "status 1"))
    assert suites_page.failures(store, "pjdfstest", TESTS) == [
        ("chmod/01", "NFSv3, NFSv4.2", "failed: `status 1`", "not explained")
    ]
    fill(store, 1)
    assert suites_page.failures(store, "pjdfstest", TESTS) == []


def test_the_numbers_count_outcomes_differences_and_missing_results(store: Store) -> None:
    fill(store, rdma=result(SLOW, "no result"))
    rows = suites_page.numbers(store, (*TESTS, "open/00"))
    assert rows[0] == ("3", "tcp", 3, 0, 0, 0, 0, "-", 1)
    assert rows[1] == ("3", "rdma", 2, 0, 0, 1, 0, 1, 1)
    assert len(rows) == 15


def test_transports_without_results_have_no_row(store: Store) -> None:
    store.put("3", "tcp", "chmod/00", result())
    assert [row[:2] for row in suites_page.numbers(store, TESTS)] == [("3", "tcp")]


def test_results_over_tcp_alone_show_no_agreement(store: Store) -> None:
    store.put("3", "tcp", "chmod/00", result())
    assert "No test ran over RDMA yet." in suites_page.lines(store, "pjdfstest", TESTS)
    store.put("3", "rdma", "chmod/00", result())
    assert "No test ran over RDMA yet." not in suites_page.lines(store, "pjdfstest", TESTS)


def test_the_page_has_a_section_of_each_suite_for_the_first_kernel() -> None:
    text = suites_page.PAGE.read_text()
    for name in SUITES:
        assert f"<!-- begin: {name}, Linux 6.12 -->" in text


def test_the_section_names_tests_that_are_left_to_kvm(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    kvm = {"link/00": "900 s", "open/*": "many", "link/01": "900 s"}
    monkeypatch.setattr(suites_page, "lists", lambda _: {"kvm": kvm})
    text = "\n".join(suites_page.lines(store, "pjdfstest", TESTS))
    assert "No test that ran over both differs from TCP." in text
    assert "Left to KVM: `link/00`, `link/01` (900 s); `open/*` (many)." in text


def test_the_version_of_a_folder_without_git_changes_with_its_files(tmp_path: Path) -> None:
    versions = set()
    for text in ("1", "2"):
        (tmp_path / "a").write_text(text)
        versions.add(version(tmp_path))
    assert len(versions) == 2
