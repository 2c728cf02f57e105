# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma load`, its engine and its files, over the device of tests/device."""

import errno
import itertools
import json
import math
import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("device", reason="no tests/device; missed: the engine of `nfsrdma load`")

from device import FOLDER, READ, REMOVE, Device
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client import Session, connect, library
from nfsrdma_tools.client import load as client
from nfsrdma_tools.client.load import Outcome, Plan, Progress, jain, load, remove
from nfsrdma_tools.errors import UsageError, UserError

__all__ = ["device", "device_library"]

READDIRPLUS = 17
TARGET = "server:/export"
SMALL = Plan(sessions=20, duration=0.5, file_size=1 << 18, size=512, timeout=20)
MIXED = replace(SMALL, mix={"null": 1, "getattr": 2, "read": 4, "write": 2, "readdir": 1})


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path))
    return tmp_path


def nothing(_: Progress) -> None:
    """Watch nothing."""


def counts(outcome: Outcome) -> dict[str, int]:
    return {each.kind: each.done for each in outcome.kinds}


def left(device: Device) -> bool:
    """Whether something of a load is on the server."""
    with library_session() as session:
        return any(name.startswith("nfsrdma-load") for name in session.listdir())


def library_session() -> Session:
    return connect(TARGET)


# --- operations ---


def test_all_kinds_from_many_sessions(device: Device) -> None:
    outcome = load(TARGET, replace(MIXED, verify=True), nothing)
    assert outcome.connected == outcome.up == 20
    assert outcome.connect.samples == 20
    assert outcome.connect_seconds is not None
    assert device.most_connections >= 21
    assert all(each.done for each in outcome.kinds), outcome
    assert sum(outcome.shares) == outcome.total.done == sum(counts(outcome).values())
    assert (outcome.total.failed, outcome.mismatches, outcome.unfinished) == (0, 0, 0)
    assert outcome.total.response.samples == outcome.total.done
    assert len(outcome.shares) == 20
    assert client.succeeded(MIXED, outcome)
    assert not left(device)


def test_the_server_counts_the_same_reads_and_writes(device: Device) -> None:
    before = device.reads
    plan = replace(SMALL, mix={"read": 3, "write": 1}, files=3)
    device.set(late=300)
    outcome = load(TARGET, plan, nothing)
    assert device.reads - before == counts(outcome)["read"]
    # those that made the files, in pieces
    made = plan.files * math.ceil(plan.file_size / device_write_max(device))
    assert device.writes - made == counts(outcome)["write"]
    assert outcome.total.bytes == outcome.total.done * plan.size


def device_write_max(device: Device) -> int:
    del device
    with library_session() as session:
        return int(session.terms.write_max)


def first_reads(device: Device, seed: int) -> tuple[int, ...]:
    """The READs of each session before its first READDIRPLUS, which gets no reply."""
    mix = {"read": 5, "readdir": 1}
    plan = replace(SMALL, mix=mix, paths=("data",), seed=seed, timeout=4, duration=1.5)
    device.hold(READDIRPLUS)
    outcome = load(TARGET, plan, nothing)
    device.hold()
    assert outcome.total.failed + outcome.unfinished == plan.sessions
    return outcome.shares


def test_a_seed_makes_the_same_operations(device: Device) -> None:
    first = first_reads(device, 3)
    assert first_reads(device, 3) == first
    assert first_reads(device, 4) != first
    # not the same ones in each session
    assert len(set(first)) > 3


@pytest.mark.parametrize(("sessions", "depth", "most"), [(20, 1, 4), (1, 16, 16), (2, 1, 2)])
def test_operations_of_all_sessions_are_limited(
    device: Device, sessions: int, depth: int, most: int
) -> None:
    """With no replies, as many are unfinished as the limit permits, or the sessions."""
    plan = replace(SMALL, sessions=sessions, depth=depth, in_flight=min(most, 16), paths=("data",))
    outcome = load(TARGET, plan, nothing)
    assert outcome.total.done > 100
    assert all(outcome.shares)
    assert (outcome.total.failed, outcome.unfinished) == (0, 0)
    device.hold(READ)
    seen: list[int] = []
    stalled = replace(plan, duration=1.5, timeout=4)
    outcome = load(TARGET, stalled, lambda progress: seen.append(progress.unfinished))
    device.hold()
    # some may have waited for the same session
    assert 0 < outcome.total.failed + outcome.unfinished <= most
    assert max(seen) <= most


def test_an_open_loop_does_not_limit_what_is_in_flight(device: Device) -> None:
    with pytest.raises(UsageError, match="leave out --in-flight"):
        load(TARGET, replace(SMALL, rate=10, in_flight=2), nothing)


def test_null_calls_need_no_export(device: Device) -> None:
    outcome = load("server", replace(SMALL, mix={"null": 1}), nothing)
    assert counts(outcome)["null"] > 20
    assert device.reads == 0


@pytest.mark.parametrize(("target", "first"), [("server", 0), (TARGET, 1)])
def test_a_session_with_an_export_begins_with_a_call(
    device: Device, target: str, first: int
) -> None:
    """Servers may close connections without one.  It is not counted."""
    before = device.calls
    outcome = load(target, replace(SMALL, mix={"null": 1}), nothing)
    # beside FSINFO of the session that knows the export
    assert device.calls - before == outcome.total.done + first * (SMALL.sessions + 1)
    assert outcome.total.response.samples == outcome.total.done


def test_an_existing_file_is_read_and_kept(device: Device) -> None:
    before = device.get("/export/data")
    outcome = load(TARGET, replace(SMALL, paths=("data",)), nothing)
    assert counts(outcome)["read"] > 20
    assert device.get("/export/data") == before
    assert device.writes == 0


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (replace(SMALL, paths=("none",)), "No such file"),
        (replace(SMALL, paths=("folder",)), "not a regular file"),
        (replace(SMALL, paths=("short",)), "less than one READ"),
        (replace(SMALL, size=1 << 21, file_size=1 << 22), "the server takes"),
    ],
)
def test_files_that_cannot_be_read(device: Device, plan: Plan, says: str) -> None:
    device.put("/export/folder", kind=FOLDER)
    device.put("/export/short", b"x" * 100)
    with pytest.raises(OSError, match=says):
        load(TARGET, plan, nothing)


@pytest.mark.parametrize(
    ("target", "plan", "says"),
    [
        (TARGET, replace(SMALL, mix={"reed": 1}), "the mix has 'reed'"),
        (TARGET, replace(SMALL, mix={"read": 0}), "the mix has no operation"),
        (TARGET, replace(SMALL, mix={"write": 1}, paths=("data",)), "files of its own"),
        (TARGET, replace(SMALL, verify=True, paths=("data",)), "files of its own"),
        (TARGET, replace(SMALL, size=1001), "multiple of 8"),
        (TARGET, replace(SMALL, size=1 << 20), "that of a file 262144"),
        (TARGET, replace(SMALL, rate=1, think=1), "no think time"),
        ("server", SMALL, "has no export"),
    ],
)
def test_plans_that_are_refused(device: Device, target: str, plan: Plan, says: str) -> None:
    del device
    with pytest.raises(UsageError, match=says):
        load(target, plan, nothing)


# --- loops ---


def test_an_open_loop_sends_at_its_rate(device: Device) -> None:
    del device
    plan = replace(SMALL, rate=400, duration=1)
    outcome = load(TARGET, plan, nothing)
    assert outcome.dropped == 0
    assert outcome.arrivals == outcome.total.done + outcome.unsent
    # a Poisson process: six standard deviations of what is due, whatever the clock says
    due = plan.rate * outcome.seconds
    assert abs(outcome.arrivals - due) < 6 * math.sqrt(due) + plan.rate * 0.3
    assert outcome.late.samples == outcome.arrivals


def test_an_open_loop_counts_from_when_an_operation_was_due(device: Device) -> None:
    """A server that stalls delays all operations behind it, which a closed loop leaves out."""
    plan = replace(SMALL, sessions=1, rate=200, queue=10_000, duration=1.5)
    device.hold(READ)

    def release(progress: Progress) -> None:
        # the first report comes a second after the start
        if progress.seconds > 0:
            device.hold()

    outcome = load(TARGET, plan, release)
    # one operation was sent before the stall ended, the others wait in the queue
    assert outcome.total.response.max > 900_000
    assert outcome.total.response.p50 > 2 * outcome.total.service.p50
    assert outcome.total.response.p50 > 100_000
    assert outcome.dropped == 0


def test_a_full_queue_drops_and_says_so(device: Device) -> None:
    device.hold(READ)
    plan = replace(SMALL, sessions=2, rate=500, queue=5, duration=1, timeout=6)
    outcome = load(TARGET, plan, nothing)
    device.hold()
    # one in flight and five in the queue of each session
    assert (outcome.total.done, outcome.total.failed, outcome.unsent) == (0, 2, 10)
    assert outcome.dropped == outcome.arrivals - 12 > 100


def test_a_think_time_limits_a_closed_loop(device: Device) -> None:
    del device
    plan = replace(SMALL, think=0.1, depth=2, duration=1)
    outcome = load(TARGET, plan, nothing)
    # at most as many as without any response time, which is a Poisson process
    most = plan.sessions * plan.depth * outcome.seconds / plan.think
    assert 0 < outcome.total.done < most + 6 * math.sqrt(most)


def test_sequential_offsets_cover_a_file(device: Device) -> None:
    """One block of four fails: each fourth operation."""
    device.put("/export/four", b"x" * 4 * 4096)
    device.error(READ, 5, offset=2 * 4096, times=1 << 30)
    plan = replace(SMALL, sessions=1, size=4096, sequential=True, paths=("four",))
    total = load(TARGET, plan, nothing).total
    assert total.failed - (total.done + total.failed) // 4 in {0, 1}
    assert total.failed > 0


# --- faults ---


def test_lost_connections_come_back(device: Device) -> None:
    ended: list[Progress] = []

    def end(progress: Progress) -> None:
        if progress.seconds > 0 and not ended:
            ended.append(progress)
            device.end_connections()

    outcome = load(TARGET, replace(SMALL, duration=2), end)
    assert outcome.lost == outcome.reconnects == outcome.outage.samples == 20
    assert outcome.up == 20
    assert outcome.outages == 1
    assert outcome.recovery_seconds
    assert outcome.recovery_seconds * 1e6 >= outcome.outage.max * 0.99
    assert outcome.total.failed == 0
    assert min(outcome.shares) > 0


def test_wrong_data_is_found(device: Device) -> None:
    """Another writer: a byte in the middle of a block."""
    plan = replace(SMALL, verify=True, duration=2, file_size=8192, size=4096)

    def spoil(progress: Progress) -> None:
        if progress.seconds < 0:
            return
        with library_session() as session:
            for name in session.listdir():
                if name.startswith("nfsrdma-load"):
                    with session.open(f"{name}/0", "r+") as file:
                        old = file.pread(1, 5000)
                        file.pwrite(bytes([old[0] ^ 1]), 5000)

    outcome = load(TARGET, plan, spoil)
    assert outcome.mismatches > 0
    assert "file 0: the data at 5000 is not what was written" in outcome.mismatch
    assert not client.succeeded(plan, outcome)


def test_errors_are_counted_by_name(device: Device) -> None:
    device.error(READ, 5, times=7)
    outcome = load(TARGET, SMALL, nothing)
    assert outcome.errors == {"EIO": 7}
    assert outcome.total.failed == 7
    assert not client.succeeded(SMALL, outcome)


def test_short_reads_are_counted(device: Device) -> None:
    device.put("/export/big", b"x" * 65536)
    device.set(shortened=1)
    outcome = load(TARGET, replace(SMALL, paths=("big",)), nothing)
    assert outcome.short_moves == outcome.total.done > 0
    assert outcome.total.bytes == outcome.total.done * SMALL.size // 2


def test_a_server_that_stays_silent_leaves_operations_unfinished(device: Device) -> None:
    plan = replace(SMALL, timeout=1, duration=0.3, paths=("data",))
    device.hold(READ)
    outcome = load(TARGET, plan, nothing)
    device.hold()
    assert outcome.total.done == 0
    assert outcome.errors.get("ETIMEDOUT", 0) + outcome.unfinished == 20
    assert not client.succeeded(plan, outcome)


def test_refused_connections_are_reported(device: Device) -> None:
    """The server takes the first session, then none."""
    plan = replace(SMALL, timeout=1, paths=("data",))
    device.fail("connect", 111, after=1, times=1000)
    with pytest.raises(OSError, match="refuses"):
        load(TARGET, plan, nothing)
    device.heal()


def test_some_sessions_without_a_connection(device: Device) -> None:
    plan = replace(SMALL, timeout=1, paths=("data",))
    device.fail("connect", 111, after=6, times=1000)
    outcome = load(TARGET, plan, nothing)
    device.heal()
    assert outcome.connected == 5
    assert outcome.connect_seconds is None
    assert outcome.failures >= 15
    assert "refuses" in outcome.message
    assert len(outcome.shares) == 5
    assert min(outcome.shares) > 0
    assert not client.succeeded(plan, outcome)


def test_only_connections(device: Device) -> None:
    outcome = load(TARGET, replace(SMALL, duration=0, at_once=20, paths=("data",)), nothing)
    assert outcome.connect.samples == outcome.connected == 20
    assert (outcome.total.done, device.reads) == (0, 0)
    assert client.succeeded(SMALL, outcome)


def test_few_sessions_connect_at_a_time(device: Device) -> None:
    """With one at a time, each connects after the one before it."""
    device.set(late=2000)
    plan = replace(SMALL, duration=0, at_once=1, paths=("data",))
    outcome = load(TARGET, plan, nothing)
    assert outcome.connect_seconds is not None
    assert outcome.connect_seconds * 1e6 >= outcome.connect.mean * outcome.connect.samples * 0.99


# --- Ctrl-C, kill, files ---


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_what_was_measured(device: Device) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.seconds > 0:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = load(TARGET, replace(SMALL, duration=600), interrupt)
    assert outcome.interrupted
    assert outcome.seconds < 600
    assert outcome.total.done == sum(outcome.shares) > 0
    assert not left(device)


def test_progress_is_that_of_the_interval(device: Device) -> None:
    seen: list[Progress] = []
    outcome = load(TARGET, replace(SMALL, duration=2.5), seen.append)
    measured = [each for each in seen if each.seconds > 0]
    assert measured
    assert all(each.up == 20 and each.p50 <= each.p99 for each in measured)
    total = sum(each.per_second for each in measured)
    assert total > 0
    assert outcome.total.done > 0


def test_a_measurement_is_reported_also_if_files_cannot_be_removed(device: Device) -> None:
    device.error(REMOVE, errno.EACCES, times=100)
    outcome = load(TARGET, replace(SMALL, mix={"write": 1}), nothing)
    assert outcome.total.done > 0
    directory = outcome.left.partition(" ")[2].partition("/")[0]
    assert ": Permission denied (" in outcome.left
    assert outcome.left.endswith(f" {TARGET} --remove {directory})")
    assert not client.succeeded(SMALL, outcome)
    device.no_errors()
    client.remove(TARGET, directory)
    assert not left(device)


def test_the_journal_has_the_directory_while_it_exists(device: Device, state: Path) -> None:
    seen: list[Any] = []

    def look(progress: Progress) -> None:
        if progress.seconds > 0:
            seen.extend(json.loads(path.read_text()) for path in state.glob("*.undo"))

    load(TARGET, replace(SMALL, duration=1.5), look)
    ((action,), *_) = seen
    *program, verb, target, option, directory = action["argv"]
    assert (verb, target, option) == ("load", TARGET, "--remove")
    assert program
    assert not list(state.glob("*.undo"))
    # what a killed load has left
    device.put(f"/export/{directory}", kind=FOLDER)
    device.put(f"/export/{directory}/0", b"x")
    assert left(device)
    remove(TARGET, directory)
    assert not left(device)
    remove(TARGET, directory)


def test_files_of_others_in_the_directory_stay(device: Device) -> None:
    device.put("/export/nfsrdma-load-00000000", kind=FOLDER)
    for name in ("0", "17", "mine"):
        device.put(f"/export/nfsrdma-load-00000000/{name}", b"x")
    with pytest.raises(OSError, match="not empty"):
        remove(TARGET, "nfsrdma-load-00000000")
    assert device.get("/export/nfsrdma-load-00000000/mine") == b"x"
    assert device.get("/export/nfsrdma-load-00000000/17") is None


@pytest.mark.parametrize("name", ["", "data", "nfsrdma-load-0", "../nfsrdma-load-00000000"])
def test_only_directories_of_a_load_are_removed(device: Device, name: str) -> None:
    del device
    with pytest.raises(UsageError, match="not a directory of nfsrdma load"):
        remove(TARGET, name)


# --- limits ---


Limits = Callable[..., dict[int, tuple[int, int]]]
"""Sets limits of this process; returns those that it changes then."""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limits:
    def limit(
        kind: int, soft: int, hard: int, privileged: bool = False
    ) -> dict[int, tuple[int, int]]:
        set_to: dict[int, tuple[int, int]] = {}
        both = {kind: (soft, hard)}
        everything = (resource.RLIM_INFINITY,) * 2
        fake = SimpleNamespace(
            **{name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIM")},
            getrlimit=lambda which: set_to.get(which, both.get(which, everything)),
            setrlimit=set_to.__setitem__,
        )
        monkeypatch.setattr(client, "resource", fake)
        monkeypatch.setattr(client, "_may_lock", lambda: privileged)
        return set_to

    return limit


NEEDED = SimpleNamespace(locked=200 << 10, descriptors=6, qps=0, cqs=0, mrs=0, pds=0)


def test_enough_of_everything(limited: Limits) -> None:
    changed = limited(resource.RLIMIT_NOFILE, 1024, 1 << 20)
    client._check_limits(NEEDED, replace(SMALL, sessions=1000))
    assert changed == {resource.RLIMIT_NOFILE: (6064, 1 << 20)}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (resource.RLIMIT_NOFILE, "6064 open files, the limit of this process is 4096"),
        (resource.RLIMIT_MEMLOCK, "204801024 bytes of locked memory"),
    ],
)
def test_too_low_a_limit(limited: Limits, kind: int, says: str) -> None:
    limited(kind, 1024, 4096)
    with pytest.raises(UserError, match=says):
        client._check_limits(NEEDED, replace(SMALL, sessions=1000))


def test_root_locks_what_it_needs(limited: Limits) -> None:
    limited(resource.RLIMIT_MEMLOCK, 1024, 4096, privileged=True)
    client._check_limits(NEEDED, replace(SMALL, sessions=1000))


@pytest.mark.parametrize(
    ("device_has", "says"),
    [
        ({"qps": 1000}, "queue pairs for 999 sessions"),
        ({"cqs": 1000}, "completion queues for 999"),
        ({"pds": 10}, "protection domains for 9"),
        ({"mrs": 3002}, "memory regions for 999"),
    ],
)
def test_a_device_that_is_too_small(limited: Limits, device_has: dict[str, int], says: str) -> None:
    limited(resource.RLIMIT_NOFILE, 1 << 20, 1 << 20)
    with pytest.raises(UserError, match=says):
        client._check_limits(
            SimpleNamespace(**{**vars(NEEDED), **device_has}), replace(SMALL, sessions=1000)
        )


def test_the_capability_of_this_process_is_known(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "status"
    monkeypatch.setattr(client, "_STATUS", path)
    for text, may in (
        ("000001ffffffffff", True),
        ("0000000000000000", False),
        ("0000000000004000", True),
        ("000001ffffffbfff", False),
    ):
        path.write_text(f"Name:\tx\nCapInh:\t{text[::-1]}\nCapEff:\t{text}\n")
        assert client._may_lock() is may
    path.write_text("Name:\tx\n")
    assert client._may_lock() is False


# --- numbers ---


def test_jains_index() -> None:
    assert jain([7] * 300) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([1, 2, 3]) == pytest.approx(36 / 42)
    assert jain([]) == jain([0, 0]) == 1


def gaps(seed: int, mean: float, count: int) -> list[float]:
    loaded = library.load()
    state = loaded.ffi.new("uint64_t *", seed)
    return [loaded.functions.nfsrdma_load_gap(state, mean) for _ in range(count)]


def test_gaps_have_an_exponential_distribution(device: Device) -> None:
    """The Kolmogorov-Smirnov test at 0.1%, for fixed seeds; and independence of neighbours."""
    del device
    for seed in (1, 2, 3):
        found = gaps(seed, 1e6, 20_000)
        n, ordered = len(found), sorted(found)
        assert ordered[0] >= 0
        assert math.isfinite(ordered[-1])
        expected = [1 - math.exp(-gap / 1e6) for gap in ordered]
        distance = max(
            max(abs(right - at / n), abs(right - (at + 1) / n)) for at, right in enumerate(expected)
        )
        assert distance < 1.95 / math.sqrt(n)
        mean = sum(found) / n
        pairs = itertools.pairwise(found)
        covariance = sum((a - mean) * (b - mean) for a, b in pairs) / n
        assert abs(covariance) / 1e12 < 4 / math.sqrt(n)


def test_a_seed_has_its_own_gaps(device: Device) -> None:
    del device
    assert gaps(5, 1, 50) == gaps(5, 1, 50)
    assert not set(gaps(5, 1, 50)) & set(gaps(6, 1, 50))


def pattern(seed: int, file: int, length: int, offset: int) -> bytes:
    loaded = library.load()
    buffer = bytearray(length)
    loaded.functions.nfsrdma_load_pattern(
        seed, file, loaded.ffi.from_buffer(buffer), length, offset
    )
    return bytes(buffer)


def test_the_pattern_depends_on_place_file_and_seed(device: Device) -> None:
    del device
    whole = pattern(1, 0, 1 << 16, 0)
    assert pattern(1, 0, 4096, 8192) == whole[8192:12288]
    words = {whole[at : at + 8] for at in range(0, len(whole), 8)}
    assert len(words) == len(whole) // 8
    for other in (pattern(2, 0, 1 << 16, 0), pattern(1, 1, 1 << 16, 0)):
        assert not words & {other[at : at + 8] for at in range(0, len(other), 8)}
