# SPDX-License-Identifier: Apache-2.0
"""Allocations of our module fail, while it is loaded, listens, mounts, works, reconnects, ends."""

import ctypes
import errno
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from typing import NamedTuple

import pytest
from lab.module.held_memory import totals
from lab.module.stress import storm

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import FAULTS, Fault
from testbed.module import taken_out
from testbed.mounts import HERE, mounted, nothing_lost, set_parameters
from testbed.personalities import agreed
from testbed.remote import on

pytestmark = pytest.mark.checking

Record = Callable[[str, object], None]
# all of them are one more than what goes on in a row may take, up to all of a connection
EVERY = (1, 3, 7, 11, 17, 23, 31, 43, 61)
MOUNT = f"""
mkdir -p {HERE}
mount -t nfs -o $0,proto=rdma,port=20049,retry=0 server:/export {HERE}
"""
WORK = f"""
head -c 300000 /dev/urandom > {HERE}/failing
md5sum < {HERE}/failing
echo 3 > /proc/sys/vm/drop_caches
md5sum < {HERE}/failing
rm {HERE}/failing
umount {HERE}
"""
# more READs at a time than before: the server needs more requests
READ = f"""
head -c 65536 {HERE}/threadless | md5sum
for n in $(seq 24); do
	for m in $(seq 5); do
		dd if={HERE}/threadless bs=4k iflag=direct status=none | md5sum
	done &
done
wait
"""
# which allocations fail, how many, and under which function: all of the completion handler, which
# leaves the Call to a worker then; elsewhere few, because a connection is accepted if some tens of
# allocations succeed in a row, and the client waits longer before each attempt
ROUNDS = (
    (1, 1_000_000, "nfr_svc_receive"), (2, 1_000_000, "nfr_svc_receive"),
    (1, 4, ""), (3, 12, ""), (7, 12, ""), (17, 12, ""),
)  # fmt: skip
# net/sunrpc/fail.h: connections end that nothing is wrong with, here five of them
_LOSE = """
cd /sys/kernel/debug/fail_sunrpc
for name in verbose task-filter ignore-*-disconnect; do echo 0 > $name; done
echo 20 > interval
echo 5 > times
echo 100 > probability
"""
LOST = tuple(Fault(f"{node}'s connections lost", node, _LOSE) for node in ("client", "server"))
# Documentation/fault-injection
KINDS = {name: Path("/sys/kernel/debug") / name for name in ("failslab", "fail_page_alloc")}
OFF = "cd /sys/kernel/debug && echo 0 | tee {failslab,fail_page_alloc,fail_sunrpc}/probability"
LOG, STATE = Path("/run/failures.log"), Path("/run/failures.json")
MODULE = Path("/sys/module/nfsrdma")
# where modules are, on x86-64: the beginning of one that is being loaded is in no table yet
MODULES = (0xFFFFFFFFA0000000, 0xFFFFFFFFFF000000)
LIBC = ctypes.CDLL(None, use_errno=True)
NR_FINIT_MODULE, NR_DELETE_MODULE = 313, 176
PLACE = re.compile(r"\]  (nfr_\w+)(?:\.\w+)*\+0x\w+/0x\w+ \[nfsrdma\]")
RESTART = "systemctl reset-failed nfs-server; systemctl restart nfs-server"


@pytest.fixture
def both(ours: Lab, pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A server and a client, with our module each; nothing of what failed stays."""
    if pytestconfig.getoption("--server") != "ours":
        pytest.skip("it is for --server ours")
    with nothing_lost(ours, "server", "client"):
        yield ours


# --- in a node ---


def functions(name: str = "") -> tuple[int, int]:
    """Where the module's functions are, or one of them."""
    with Path("/proc/kallsyms").open() as file:
        rows = [line.split() for line in file if "[nfsrdma]" in line]
    known = sorted((int(row[0], 16), row[2]) for row in rows if row[1] in "tT")
    start, end = known[0][0], known[-1][0] + 4096
    assert 0 < start <= int((MODULE / "sections/.text").read_text(), 16) <= known[-1][0]
    if name:
        start = next(address for address, function in known if function == name)
        end = min((address for address, _ in known if address > start), default=end)
    return start, end


def leak_finder() -> tuple[int, int]:
    """First and last address of kmemleak, whose own allocations must not fail.

    kmemleak allocates a record during each allocation of our module.
    """
    with Path("/proc/kallsyms").open() as file:
        known = {row[2]: int(row[0], 16) for row in map(str.split, file) if "kmemleak" in row[2]}
    return known.get("kmemleak_free", 0), known.get("kmemleak_ignore_phys", 0)


def put(kind: str, **values: object) -> None:
    for name, value in values.items():
        (KINDS[kind] / name.replace("_", "-")).write_text(str(value))


def prepare(where: tuple[int, int]) -> None:
    """All but the probability. Allocations that may sleep fail too, of any size."""
    start, end = where
    no_start, no_end = leak_finder()
    for kind in KINDS:
        put(kind, probability=0, task_filter="N", times=-1, verbose=2, ignore_gfp_wait="N")
        put(kind, require_start=start, require_end=end, stacktrace_depth=32)
        put(kind, reject_start=no_start, reject_end=no_end)
    put("fail_page_alloc", min_order=0, ignore_gfp_highmem="N")


@on("client")
def begin(every: int, times: int, under: str) -> None:
    """Each ``every``-th allocation fails, until ``times`` have; if any do already, they go on."""
    if STATE.exists():
        return
    prepare(functions(under))
    # the kernel keeps little of its log: a process, which outlives this one, copies it as it grows
    argv, no = ("dmesg", "--follow-new"), subprocess.DEVNULL
    with LOG.open("wb") as log:
        reader = subprocess.Popen(argv, stdin=no, stdout=log, stderr=no)
    STATE.write_text(json.dumps([reader.pid, times]))
    for kind in KINDS:
        put(kind, interval=every, times=times, probability=100)


def put_back() -> None:
    for kind in KINDS:
        put(kind, require_start=0, require_end=(1 << 64) - 1)


@on("client")
def end() -> tuple[int, dict[str, int]]:
    """How many allocations failed until OFF, and how many by the innermost function of ours."""
    put_back()
    if not STATE.exists():
        return 0, {}
    reader, times = json.loads(STATE.read_text())
    STATE.unlink()
    left = [int((folder / "times").read_text()) for folder in KINDS.values()]
    # the last lines of the log arrive within a second
    time.sleep(1)
    os.kill(reader, signal.SIGTERM)
    reports = LOG.read_text(errors="replace").split("FAULT_INJECTION: forcing a failure")[1:]
    places = (PLACE.search(report) for report in reports)
    return sum(times - n for n in left), dict(Counter(match[1] for match in places if match))


class Attempts(NamedTuple):
    """0 or an errno of each load and unload, and what was left in sysfs and debugfs."""

    loads: list[int]
    unloads: list[int]
    left: list[str]


def fail_nth(number: int | None = None) -> int:
    """Has this thread's so-many-th allocation fail; returns how many are still to come."""
    path = Path("/proc/thread-self/fail-nth")
    if number is not None:
        path.write_text(str(number))
    return int(path.read_text())


def error_of(number: int, *words: object) -> int:
    """Make a system call; returns 0 or an errno."""
    return ctypes.get_errno() if LIBC.syscall(number, *words) else 0


def load(file: str, number: int) -> int:
    descriptor = os.open(file, os.O_RDONLY)
    fail_nth(number)
    error = error_of(NR_FINIT_MODULE, descriptor, b"", 0)
    os.close(descriptor)
    return error


@on("client", timeout=1200)
def load_and_unload(file: str) -> Attempts:
    """With the first allocation failing, with the second, ..., until nothing is left to fail."""
    attempts, more, number = Attempts([], [], []), True, 0
    prepare(MODULES)
    while more:
        number += 1
        attempts.loads.append(load(file, number))
        more = fail_nth() == 0
        if not attempts.loads[-1]:
            fail_nth(number)
            attempts.unloads.append(error_of(NR_DELETE_MODULE, b"nfsrdma", os.O_NONBLOCK))
        fail_nth(0)
        attempts.left.extend(
            str(path) for path in (MODULE, Path("/sys/kernel/debug/nfsrdma")) if path.exists()
        )
    put_back()
    return attempts


# --- failures beside other work ---


@dataclass(frozen=True)
class Allocations(Fault):
    """From here on, of all allocations under a function of the module, each ``every``-th fails."""

    every: int = 1
    times: int = 1_000_000
    under: str = ""
    """The default: under any of its functions."""

    def happen(self, lab: Nodes) -> None:
        begin.at(self.node)(lab, self.every, self.times, self.under)


def arm(node: str, every: int, times: int = 1_000_000, under: str = "") -> Fault:
    return Allocations(f"each {every}. allocation fails", node, "", False, every, times, under)


@dataclass
class Failed:
    """How many allocations failed, by node, and at which functions of the module."""

    counts: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)


@contextmanager
def failing(lab: Lab, failed: Failed, *faults: Fault) -> Iterator[None]:
    """These of ``arm`` happen; when this ends nothing fails any more in any node."""
    with ExitStack() as undo:
        for node in lab.config.nodes:
            undo.callback(switch_off, lab, node, failed)
        for fault in faults:
            fault.happen(lab)
        yield


def switch_off(lab: Lab, node: str, failed: Failed) -> None:
    # a report on a console must not leave it switched on
    lab.ssh(node).run("bash", "-ec", OFF)
    count, places = end.at(node)(lab)
    failed.counts[node] += count
    failed.places.update(places)


def record(record_property: Record, failed: Failed) -> None:
    print(failed)
    assert sum(failed.counts.values()) > 0, "no allocation failed"
    for node, count in failed.counts.items():
        record_property(f"allocations that failed in {node}", count)
    record_property("under functions of ours", len(failed.places))


def test_it_is_loaded_as_a_whole_or_not_at_all(ours: Lab, record_property: Record) -> None:
    with taken_out(ours) as file:
        attempts = load_and_unload(ours, file)
    print(attempts)
    # some of it can do without, such as its files in debugfs
    assert set(attempts.loads) == {0, errno.ENOMEM}
    assert attempts.loads[-1] == 0
    assert set(attempts.unloads) == {0}
    assert attempts.left == []
    record_property("loads", len(attempts.loads))


@pytest.mark.parametrize("node", ("client", "server"))
def test_a_mount_is_made_or_refused(both: Lab, node: str, record_property: Record) -> None:
    failed, made = Failed(), []
    for number, every in enumerate(EVERY):
        with failing(both, failed, arm(node, every, times=4)):
            made.append(mounts(both, "vers=4.2" if number % 2 else "vers=3"))
            if made[-1]:
                first, second = both.run("client", "sh", "-ec", WORK).stdout.splitlines()
                assert first == second
    assert any(made)
    record_property("mounts made", sum(made))
    record(record_property, failed)


def mounts(lab: Lab, options: str) -> bool:
    """Whether a mount was made; if not, mount prints an error."""
    ended = lab.run("client", "sh", "-c", MOUNT, options, check=False, timeout=300)
    assert not ended.returncode or "mount" in ended.stderr, ended
    return ended.returncode == 0


def test_nfsd_listens_or_says_that_it_does_not(both: Lab, record_property: Record) -> None:
    failed = Failed()
    for every in EVERY[:4]:
        with failing(both, failed, arm("server", every)):
            both.run("server", "sh", "-c", RESTART, check=False, timeout=300)
    both.run("server", "sh", "-c", RESTART, timeout=300)
    both.run("server", "grep", "-q", "rdma 20049", "/proc/fs/nfsd/portlist")
    record(record_property, failed)


@pytest.mark.parametrize("options", ("vers=3", "vers=4.2,nconnect=4"))
def test_work_goes_on(both: Lab, options: str, long: bool, record_property: Record) -> None:
    rxe = both.config.nic == "rxe"
    # how a device goes is known of soft-RoCE
    gone = (FAULTS["client's device removed"],) if rxe else ()
    # fewer, and no connection would ever be made: some twenty of its allocations have to succeed,
    # and hundreds on a server whose device wants memory regions for RDMA Reads
    arms = (arm("client", 79), arm("server", 61 if rxe else 997))
    often = (*LOST, *gone)
    failed = Failed()
    with failing(both, failed):
        faults, least = chain(arms, cycle(often)), len(arms) + len(often)
        result = storm(both, options, faults, 300 if long else 30, "failures", least=least)
    assert min(failed.counts.values()) > 0, failed.counts
    assert sum(result.disconnects) > 0
    record_property("operations", result.operations)
    record(record_property, failed)


@pytest.mark.parametrize("name", ("read-write", "optimistic"))
def test_reads_that_bypass_nfsd_go_on(
    both: Lab, name: str, long: bool, record_property: Record
) -> None:
    """The allocations of the receive path fail. Nothing may sleep there for memory."""
    both.run("server", "sh", "-c", "head -c 65536 /dev/urandom > /export/threadless; sleep 2")
    failed, before = Failed(), totals(both)
    with set_parameters(both, "server", server_threadless=65536), agreed(both, name):
        for every, times, under in ROUNDS * (10 if long else 1):
            fault = arm("server", every, times, under)
            # a connection with few requests
            with mounted(both, "vers=3,noac"), failing(both, failed, fault):
                sums = both.run("client", "sh", "-ec", READ, timeout=1800).stdout.splitlines()
            print(every, times, under, failed, flush=True)
            assert (len(sums), len(set(sums))) == (1 + 24 * 5, 1), set(sums)
    after = totals(both)
    hits, short = (after[name][0] - before[name][0] for name in ("threadless_hits", "memory_short"))
    assert name == "optimistic" or hits > 0
    assert short > 0, "every Call found memory when it was received"
    record_property("Calls received without memory", short)
    record_property("READs without a thread", hits)
    record(record_property, failed)
