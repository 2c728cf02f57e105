# SPDX-License-Identifier: Apache-2.0
"""Test suites that others wrote: how each is built, which tests it has, and what a result means.

A suite's source is the user's own clone.  ``tests`` finds the names of tests there, ``script`` is
the shell script of a batch of tests in a node, with the built suite in /opt/suite, an empty
directory of the mount in $WORK, and $PROTO, $PORT, $VERS and $OPTIONS as mounted.  ``split`` finds
each test in the output of the batch, ``judge`` reads it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.suites.batches import Ended

__all__ = ["FAILED", "HUNG", "OUTCOMES", "PASSED", "PLACE", "SKIPPED", "SLOW", "SUITES", "Suite",
           "Verdict", "lists", "outcome", "outcomes"]  # fmt: skip

PLACE = "/opt/suite"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SLOW, HUNG = "too slow", "hung"
OUTCOMES = (PASSED, FAILED, SKIPPED, SLOW, HUNG)
LISTS = Path(__file__).with_name("suites.toml")
# lines of a failure that are kept
LINES = 12
# output and seconds of a test of a batch
Part = tuple[str, float]


class Verdict(NamedTuple):
    """The result of a test, as it is stored."""

    outcome: str
    lines: list[str]
    """Those that say what failed or why the test did not run."""
    seconds: float


@dataclass(frozen=True)
class Suite:
    """A suite.  ``limit``: seconds of a test under emulation, after which it is left to KVM."""

    name: str
    build: str
    tests: Callable[[Path], list[str]]
    script: Callable[[Sequence[str]], str]
    judge: Callable[[Ended], tuple[str, list[str]]]
    """Outcome and lines."""
    split: Callable[[str], dict[str, Part]] | None = None
    """Output and seconds of each test that began, in their order.  None: the batch is one test."""
    packages: tuple[str, ...] = ()
    """Debian's packages that a node needs."""
    folders: tuple[str, ...] = ()
    """Directories in $WORK, which a suite that mounts by itself mounts."""
    limit: int = 600
    at_once: int = 1
    """Tests that run at once.  One mount for all: 1 for a suite that mounts by itself."""
    batch: int = 1
    """Tests of one script: more for a suite that is slow at start."""


def lists(suite: str) -> dict[str, Any]:
    """What suites.toml says about a suite: patterns of tests, those left to KVM, reasons."""
    section: dict[str, Any] = tomllib.loads(LISTS.read_text())[suite]
    return section


def outcomes(suite: Suite, batch: Ended) -> Iterator[tuple[str, Verdict]]:
    """The results of the tests of a batch that began, at least of the first one.

    Status and hanging of the batch are those of the last test that began.
    """
    begun = suite.split(batch.output) if suite.split else {}
    begun = {test: part for test, part in begun.items() if test in batch.tests}
    begun = begun or {batch.tests[0]: (batch.output, batch.seconds)}
    *earlier, last = begun
    for test in earlier:
        yield test, outcome(suite, Ended([test], *begun[test]))
    output, seconds = begun[last]
    yield last, outcome(suite, batch._replace(output=output, seconds=seconds))


def outcome(suite: Suite, ended: Ended) -> Verdict:
    """Outcome, lines and seconds of a test."""
    if ended.stuck:
        verdict, lines = HUNG, [f"a process did not end after SIGKILL at {suite.limit} s"]
    elif ended.status is None:
        verdict, lines = SLOW, [f"no result after {suite.limit} s"]
    else:
        verdict, lines = suite.judge(ended)
    return Verdict(verdict, lines[:LINES], ended.seconds)


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


def _tap_script(tests: Sequence[str]) -> str:
    (test,) = tests
    return f"""cd "$WORK" && exec busybox sh -c '{_MD5}; . "$0"' {PLACE}/tests/{test}.t"""


def judge_tap(ended: Ended) -> tuple[str, list[str]]:
    """``not ok`` fails unless it has the mark TODO: a failure that the authors expect."""
    text = ended.output
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


def _cthon_script(tests: Sequence[str]) -> str:
    (test,) = tests
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


def judge_status(ended: Ended) -> tuple[str, list[str]]:
    """A program that fails says why in its last lines."""
    if ended.status == 0:
        return PASSED, []
    return FAILED, [f"status {ended.status}", *ended.output.strip().splitlines()[-4:]]


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
# those of the group soak end after SOAK_DURATION
_GROUPS = {"quick", "soak"}
_FSTESTS_SOAK = 15
_NOT_RUN = re.compile(r"\[not run\] ?(.*)")
_EXPUNGED = "[expunged]"
_DIFFERENCE = re.compile(r"\s+[-+](?![-+]{2} )")
_FSTESTS_USERS = "fsgqa fsgqa2 123456-fsgqa"
# seconds of a test, of which the last are for its end
_FSTESTS_LIMIT, _FSTESTS_END = 300, 60
# check begins a line with a test's name, and ends it with the seconds of a test that passed
_FSTESTS_PART = re.compile(r"^((?:generic|nfs)/\d{3})\s(.*?)(?=^(?:generic|nfs)/\d{3}\s|^Ran: |\Z)",
                           re.DOTALL | re.MULTILINE)  # fmt: skip
_FSTESTS_TIME = re.compile(r"\[(\d+) s\]\n")
_FSTESTS_PASSED = re.compile(r"^\s*\d+s\s*$")
_FSTESTS_KILLED = "[failed, exit status 137]"
# check runs each test in a scope of systemd, which costs seconds under emulation; the stand-in has
# a limit, ends what the test leaves behind, and prints the test's seconds
_SCOPE = f"""
mkdir -p /run/suite
ln -sf /bin/true /run/suite/systemctl
ln -sf /bin/true /run/suite/systemd-escape
cat > /run/suite/systemd-run <<'END'
#!/bin/bash
while [ "$1" != --scope ]; do shift; done
shift
timeout -s KILL {_FSTESTS_LIMIT - _FSTESTS_END} "$@" &
wait $!
status=$?
kill -KILL -- -$! 2>/dev/null
[ "$seqnum" ] && echo "[$SECONDS s]" >&8
exit $status
END
chmod +x /run/suite/systemd-run
"""


def _fstests_tests(source: Path) -> list[str]:
    """Those of the groups that are for all file systems, and those for NFS."""
    tests = []
    for part in ("generic", "nfs"):
        for path in sorted((source / "tests" / part).glob("[0-9][0-9][0-9]")):
            groups = _BEGIN.search(path.read_text(errors="replace"))
            if groups and _GROUPS & set(groups[1].split()):
                tests.append(f"{part}/{path.name}")
    return tests


def _fstests_script(tests: Sequence[str]) -> str:
    return f"""
for user in {_FSTESTS_USERS}; do
	id -u $user >/dev/null 2>&1 || useradd --badname -m $user 2>/dev/null || useradd -m $user
done
mkdir -p /mnt/test /mnt/scratch
# of a test that was killed
umount /mnt/scratch /mnt/test 2>/dev/null
{_SCOPE}
cd {PLACE}
export HOST_OPTIONS= FSTYP=nfs TEST_DIR=/mnt/test SCRATCH_MNT=/mnt/scratch
export TEST_DEV=server:/export/work/test SCRATCH_DEV=server:/export/work/scratch
export NFS_MOUNT_OPTIONS="-o $OPTIONS" TEST_FS_MOUNT_OPTS="-o $OPTIONS"
export RESULT_BASE=/tmp/results SOAK_DURATION={_FSTESTS_SOAK} PATH=/run/suite:$PATH
rm -rf $RESULT_BASE
./check {" ".join(tests)} 8>&1
status=$?
umount /mnt/scratch /mnt/test 2>/dev/null
exit $status
"""


def _split_check(text: str) -> dict[str, Part]:
    results: dict[str, Part] = {}
    for test, part in _FSTESTS_PART.findall(text):
        seconds = _FSTESTS_TIME.search(part)
        rest = _FSTESTS_TIME.sub("", part).lstrip()
        results[test] = (rest, int(seconds[1]) if seconds else 0)
    return results


def judge_check(ended: Ended) -> tuple[str, list[str]]:
    """Parse what check prints for a test: seconds, [not run], or a difference of its output."""
    text = ended.output
    if skipped := _NOT_RUN.search(text):
        return SKIPPED, [skipped[1]]
    if _EXPUNGED in text:
        return SKIPPED, [_EXPUNGED]
    if _FSTESTS_PASSED.match(text):
        return PASSED, []
    if _FSTESTS_KILLED in text:
        return SLOW, [f"no result after {_FSTESTS_LIMIT - _FSTESTS_END} s"]
    # the lines of a difference begin with + and -
    lines = [x.strip() for x in text.splitlines() if _DIFFERENCE.match(x)]
    return FAILED, lines or text.strip().splitlines()[-4:]


# --- nfstest: scripts in Python that mount, and print PASS or FAIL of each assertion ---

_NFSTEST_LINE = re.compile(r"^\s*(?:\x1b\[[0-9;]*m)*(PASS|FAIL|BUG|WARN)(?:\x1b\[[0-9;]*m)*: (.*)$",
                           re.MULTILINE)  # fmt: skip
_NAME = re.compile(r"^\s+['\"](\w+)['\"],", re.MULTILINE)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_NFSTEST_PART = re.compile(r"^\s*TEST: Running test '(\w+)'\n(.*?)(?=^\s*TEST: Running test '|\Z)",
                           re.DOTALL | re.MULTILINE)  # fmt: skip
_NFSTEST_TIME = re.compile(r"^\s*TIME: (?:(\d+)m)?([\d.]+)s", re.MULTILINE)
# nfstest_posix captures packets, and checks none of them
_NO_CAPTURE = """
cat > /run/no-capture <<'END'
#!/bin/sh
echo "listening on nothing" >&2
exec sleep 3600
END
chmod +x /run/no-capture
"""


def _nfstest_tests(source: Path) -> list[str]:
    text = (source / "test" / "nfstest_posix").read_text()
    names = text.split("TESTNAMES = [", 1)[1].split("]", 1)[0]
    return [f"posix/{name}" for name in _NAME.findall(names)]


def _nfstest_script(tests: Sequence[str]) -> str:
    (part,) = {test.split("/")[0] for test in tests}
    names = ",".join(test.split("/")[1] for test in tests)
    options = (
        "--server server --export /export/work/export --mtpoint /mnt/nfstest --notty --verbose none"
        f' --nfsversion "$VERS" --proto "$PROTO" --port "$PORT" --runtest {names} --tmpdir /tmp'
        " --tcpdump /run/no-capture"
    )
    # it finds the address of the client by the name, because the node has no route to the Internet
    return f"""
mkdir -p /mnt/nfstest
umount /mnt/nfstest 2>/dev/null
{_NO_CAPTURE}
cd /tmp
export PYTHONPATH={PLACE} PYTHONPYCACHEPREFIX=/tmp/pycache HOSTNAME=client
python3 -W ignore {PLACE}/test/nfstest_{part} {options}
status=$?
umount /mnt/nfstest 2>/dev/null
exit $status
"""


def _split_assertions(text: str) -> dict[str, Part]:
    results = {}
    for name, part in _NFSTEST_PART.findall(text):
        time = _NFSTEST_TIME.search(part)
        seconds = 60 * int(time[1] or 0) + float(time[2]) if time else 0
        results[f"posix/{name}"] = (part, round(seconds, 1))
    return results


def judge_assertions(ended: Ended) -> tuple[str, list[str]]:
    """Each assertion is a line; one that fails fails the test.  The last line is the time."""
    text = ended.output
    lines = _NFSTEST_LINE.findall(text)
    bad = [_NUMBERS.sub("N", about) for word, about in lines if word == "FAIL"]
    if bad:
        return FAILED, bad
    if not _NFSTEST_TIME.search(text):
        return FAILED, [f"status {ended.status}", *text.strip().splitlines()[-4:]]
    return PASSED, []


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "pjdfstest",
            "autoreconf -ifs\n./configure >/dev/null\nmake -s LDFLAGS=-static\ncp -R . $SUITE",
            _tap_tests, _tap_script, judge_tap, packages=("busybox-static",), at_once=4,
        ),
        Suite(
            "cthon", _CTHON, _cthon_tests, _cthon_script, judge_status,
            packages=("groff-base", "time"), limit=1800, at_once=4,
        ),
        Suite(
            "fstests", _FSTESTS, _fstests_tests, _fstests_script, judge_check, _split_check,
            _FSTESTS_PACKAGES, ("test", "scratch"), limit=_FSTESTS_LIMIT, batch=15,
        ),
        Suite(
            "nfstest", "cp -R . $SUITE", _nfstest_tests, _nfstest_script, judge_assertions,
            _split_assertions, folders=("export",), batch=40,
        ),
    )
}  # fmt: skip
