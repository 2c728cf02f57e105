# SPDX-License-Identifier: Apache-2.0
"""Test suites that others wrote: how each is built, which tests it has, and what a result means.

A suite's source is the user's own clone.  ``tests`` finds the names of tests there, ``script`` is
the shell script of one test in a node, with the built suite in /opt/suite, an empty directory of
the mount in $WORK, and $TRANSPORT, $VERS and $OPTIONS as mounted.  ``judge`` reads the output.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cells import Found

__all__ = ["FAILED", "HUNG", "PASSED", "PLACE", "SKIPPED", "SLOW", "SUITES", "Suite", "lists"]

PLACE = "/opt/suite"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SLOW, HUNG = "too slow", "hung"
LISTS = Path(__file__).with_name("suites.toml")
# lines of a failure that are kept
LINES = 12


@dataclass(frozen=True)
class Suite:
    """A suite.  ``limit``: seconds of a test under emulation, after which it is left to KVM."""

    name: str
    build: str
    tests: Callable[[Path], list[str]]
    script: Callable[[str], str]
    judge: Callable[[Found], tuple[str, list[str]]]
    """Outcome, and the lines that say what failed or why the test did not run."""
    packages: tuple[str, ...] = ()
    """Debian's packages that a node needs."""
    folders: tuple[str, ...] = ()
    """Directories in $WORK, which a suite that mounts by itself mounts."""
    limit: int = 600
    at_once: int = 1
    """Tests that run at once.  One mount for all: 1 for a suite that mounts by itself."""


def lists(suite: str) -> dict[str, Any]:
    """What suites.toml says about a suite: patterns of tests, those left to KVM, reasons."""
    found: dict[str, Any] = tomllib.loads(LISTS.read_text())[suite]
    return found


def outcome(suite: Suite, found: Found) -> Found:
    """The result of a test as it is stored: outcome, lines that explain it, seconds."""
    if found["stuck"]:
        what, lines = HUNG, [f"a process did not end after SIGKILL at {suite.limit} s"]
    elif found["status"] is None:
        what, lines = SLOW, [f"no result after {suite.limit} s"]
    else:
        what, lines = suite.judge(found)
    return {"outcome": what, "lines": lines[:LINES], "seconds": found["seconds"]}


# --- pjdfstest: a file of tests prints TAP ---

_PLAN = re.compile(r"^1\.\.(\d+)", re.MULTILINE)
_TAP = re.compile(r"^(not )?ok (\d+)(.*)$", re.MULTILINE)
# names that the tests make from random bytes
_RANDOM = re.compile(r"pjdfstest_[0-9a-f]+|[0-9a-f]{32,}")


def _tap_tests(source: Path) -> list[str]:
    return sorted(
        str(path.relative_to(source / "tests").with_suffix(""))
        for path in (source / "tests").glob("*/*.t")
    )


# An assertion starts three programs, and a name two and openssl: those of busybox, in its own
# shell, take less of an emulated CPU.
_MD5 = 'openssl() { set -- $(md5sum); echo "$1"; }'


def _tap_script(test: str) -> str:
    return f"""cd "$WORK" && exec busybox sh -c '{_MD5}; . "$0"' {PLACE}/tests/{test}.t"""


def judge_tap(found: Found) -> tuple[str, list[str]]:
    """``not ok`` fails unless it has the mark TODO: a failure that the authors expect."""
    text = found["output"]
    plan = _PLAN.search(text)
    if plan and plan[1] == "0":
        return SKIPPED, []
    results = _TAP.findall(text)
    bad = [
        f"{number}{_RANDOM.sub('NAME', rest)}"
        for negative, number, rest in results
        if negative and "# TODO" not in rest
    ]
    if not plan or len(results) != int(plan[1]):
        bad.append(f"planned {plan[1] if plan else 'nothing'}, found {len(results)} results")
    return (FAILED, bad) if bad else (PASSED, [])


# --- Connectathon: programs that end with status 0 ---

# as in the suite's own runtests and runtests.wrk
_BASIC = tuple(f"test{number}" for number in range(1, 10))
_SPECIAL = {
    **{name: f"./{name}" for name in ("op_unlk", "op_ren", "op_chmod", "excltest")},
    "dupreq": "./dupreq 100 testfile",
    "negseek": "./negseek testfile",
    "rename": "./rename 100",
    "nfsidem": "./nfsidem 50 testdir",
    "bigfile": "./bigfile -s 30 testfile",
    "bigfile2": "./bigfile2 testfile",
    **{name: f"./{name}" for name in ("truncate", "holey", "rewind", "telldir", "freesp")},
}
_LOCK = ("tlocklfs", "tlock64")
# K&R C; both make and sh read this line
_CTHON = r"""
echo 'CC=`echo cc -std=gnu89 -w`' >> tests.init
for part in basic special lock; do make -s -C $part LIBS=-lm; done
cp -R . $SUITE
"""


def _cthon_tests(source: Path) -> list[str]:
    parts = {"basic": _BASIC, "special": _SPECIAL, "lock": ("tlock",)}
    missing = [
        f"{part}/{name}.c"
        for part, names in parts.items()
        for name in names
        if not (source / part / f"{name}.c").exists()
    ]
    if missing:
        raise SystemExit(f"SOURCE: expected Connectathon's tests, found no {', '.join(missing)}")
    every = [("basic", _BASIC), ("special", _SPECIAL), ("general", ("all",)), ("lock", _LOCK)]
    return [f"{part}/{name}" for part, names in every for name in names]


def _cthon_script(test: str) -> str:
    part, name = test.split("/")
    # the programs of the basic tests start each other
    go = f'export NFSTESTDIR="$WORK/dir" MNTOPTIONS="$OPTIONS" PATH="$PATH:."; cd {PLACE}/{part}'
    if part == "general":
        return f"{go} && exec sh runtests"
    if part == "lock":
        return f'{go} && mkdir "$NFSTESTDIR" && exec ./{name} "$NFSTESTDIR"'
    if part == "special":
        return f'cp {PLACE}/special/{name} "$WORK" && cd "$WORK" && TMPDIR= exec {_SPECIAL[name]}'
    return f"{go} && exec ./{name} -t"


def judge_status(found: Found) -> tuple[str, list[str]]:
    """A program that fails says why in its last lines."""
    if found["status"] == 0:
        return PASSED, []
    return FAILED, [f"status {found['status']}", *found["output"].strip().splitlines()[-4:]]


# --- fstests: its own driver, check, mounts and judges ---

_FSTESTS = """
make -s -j2 >build.log 2>&1 || { tail -n 40 build.log >&2; exit 1; }
make -s install >install.log 2>&1 || { tail -n 40 install.log >&2; exit 1; }
mv /var/lib/xfstests/* $SUITE
"""
_FSTESTS_PACKAGES = (
    *("attr", "acl", "bc", "gawk", "libaio1t64", "libgdbm6t64", "liburing2", "libcap2-bin"),
    *("bsdextrautils", "perl", "psmisc", "quota", "uuid-runtime", "xfsprogs"),
)
_BEGIN = re.compile(r"^_begin_fstest (.*)$", re.MULTILINE)
_GROUP = "quick"
_NOT_RUN = re.compile(r"\[not run\] ?(.*)")
_EXPUNGED = "[expunged]"
_DIFFERENCE = re.compile(r"\s+[-+](?![-+]{2} )")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_FSTESTS_USERS = "fsgqa fsgqa2 123456-fsgqa"


def _fstests_tests(source: Path) -> list[str]:
    """Those of the group quick that are for all file systems, and those for NFS."""
    found = []
    for part in ("generic", "nfs"):
        for path in sorted((source / "tests" / part).glob("[0-9][0-9][0-9]")):
            groups = _BEGIN.search(path.read_text(errors="replace"))
            if groups and _GROUP in groups[1].split():
                found.append(f"{part}/{path.name}")
    return found


def _fstests_script(test: str) -> str:
    return f"""
for user in {_FSTESTS_USERS}; do
	id -u $user >/dev/null 2>&1 || useradd --badname -m $user 2>/dev/null || useradd -m $user
done
mkdir -p /mnt/test /mnt/scratch
# of a test that was killed
umount /mnt/scratch /mnt/test 2>/dev/null
cd {PLACE}
export HOST_OPTIONS= FSTYP=nfs TEST_DIR=/mnt/test SCRATCH_MNT=/mnt/scratch
export TEST_DEV=server:/export/work/test SCRATCH_DEV=server:/export/work/scratch
export NFS_MOUNT_OPTIONS="-o $OPTIONS" TEST_FS_MOUNT_OPTS="-o $OPTIONS"
./check {test}
status=$?
umount /mnt/scratch /mnt/test 2>/dev/null
exit $status
"""


def judge_check(found: Found) -> tuple[str, list[str]]:
    """Parse the lines that check prints for a test: seconds, [not run], or another output."""
    text = found["output"]
    if skipped := _NOT_RUN.search(text):
        return SKIPPED, [skipped[1]]
    if _EXPUNGED in text:
        return SKIPPED, [_EXPUNGED]
    if found["status"] == 0 and "Passed all 1 tests" in text:
        return PASSED, []
    # the lines of a difference begin with + and -
    lines = [x.strip() for x in text.splitlines() if _DIFFERENCE.match(x)]
    return FAILED, lines or text.strip().splitlines()[-4:]


# --- nfstest: scripts in Python that mount, and print PASS or FAIL of each assertion ---

_NFSTEST_LINE = re.compile(r"^\s*(?:\x1b\[[0-9;]*m)*(PASS|FAIL|BUG|WARN)(?:\x1b\[[0-9;]*m)*: (.*)$",
                           re.MULTILINE)  # fmt: skip
_NAME = re.compile(r"^\s+['\"](\w+)['\"],", re.MULTILINE)


def _nfstest_tests(source: Path) -> list[str]:
    text = (source / "test" / "nfstest_posix").read_text()
    names = text.split("TESTNAMES = [", 1)[1].split("]", 1)[0]
    return [f"posix/{name}" for name in _NAME.findall(names)]


def _nfstest_script(test: str) -> str:
    part, name = test.split("/")
    options = (
        "--server server --export /export/work/export --mtpoint /mnt/nfstest --notty --verbose none"
        f' --nfsversion "$VERS" --proto "$PROTO" --port "$PORT" --runtest {name} --tmpdir /tmp'
    )
    return f"""
mkdir -p /mnt/nfstest
cd /tmp
export PYTHONPATH={PLACE}
exec python3 {PLACE}/test/nfstest_{part} {options}
"""


def judge_assertions(found: Found) -> tuple[str, list[str]]:
    """Each assertion is a line; one that fails fails the test."""
    lines = _NFSTEST_LINE.findall(found["output"])
    bad = [_NUMBERS.sub("N", text) for word, text in lines if word == "FAIL"]
    if bad:
        return FAILED, bad
    if found["status"] or not lines:
        return FAILED, [f"status {found['status']}", *found["output"].strip().splitlines()[-4:]]
    return PASSED, []


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "pjdfstest",
            "autoreconf -ifs\n./configure >/dev/null\nmake -s LDFLAGS=-static\ncp -R . $SUITE",
            _tap_tests,
            _tap_script,
            judge_tap,
            ("busybox-static",),
            at_once=4,
        ),
        Suite(
            "cthon",
            _CTHON,
            _cthon_tests,
            _cthon_script,
            judge_status,
            ("groff-base", "time"),
            limit=1800,
            at_once=4,
        ),
        Suite(
            "fstests",
            _FSTESTS,
            _fstests_tests,
            _fstests_script,
            judge_check,
            _FSTESTS_PACKAGES,
            ("test", "scratch"),
        ),
        Suite(
            "nfstest",
            "cp -R . $SUITE",
            _nfstest_tests,
            _nfstest_script,
            judge_assertions,
            folders=("export",),
        ),
    )
}
