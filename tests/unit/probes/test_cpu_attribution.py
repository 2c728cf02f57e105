# SPDX-License-Identifier: Apache-2.0
"""CPU time divided among layers: what is known exactly stays exact."""

import os
import struct
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nfsrdma_tools.cli import trace
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.cpu_time import CpuCounters, CpuTimes, ThreadTime
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.probes import kallsyms
from nfsrdma_tools.probes.cpu_layers import Frame
from nfsrdma_tools.probes.sets import cpu as cpu_set
from nfsrdma_tools.probes.sets.cpu import Cpu, Reading, Sample, difference, divide, group, records

S = 10**9
MODES = {"idle": 2.0, "user": 0.0}


def host(busy: int) -> CpuTimes:
    return CpuTimes(busy, busy, 5 * S, 2, MODES)


def cpu(
    busy: int, ran: dict[int, int], samples: dict[tuple[int, str, str], int], **more: Any
) -> Cpu:
    fields: dict[str, Any] = {
        "groups": {}, "stacks": {}, "stat_ns": 7, "rate": 499, "lost": 0, **more,
    }  # fmt: skip
    return Cpu(threads=ran, samples=samples, host=host(busy), **fields)


def test_samples_divide_what_a_thread_ran_and_no_more() -> None:
    # the second was sampled more often than it ran
    samples = {(7, "nfs", "client"): 1, (7, "sunrpc", "client"): 3, (8, "nfsd", "server"): 400}
    assert divide(cpu(3 * S, {7: 2 * S, 8: 1 * S}, samples)) == {
        ("nfs", "client"): S // 2, ("sunrpc", "client"): 3 * S // 2, ("nfsd", "server"): S,
    }  # fmt: skip


def test_threads_that_are_alike_share_their_samples() -> None:
    groups = dict.fromkeys((7, 8), "kworker")
    divided = divide(cpu(4 * S, {7: 3 * S, 8: S}, {(8, "nfs", "client"): 1}, groups=groups))
    assert divided == {("nfs", "client"): 4 * S}


def test_what_no_living_thread_ran_is_divided_by_the_samples_of_dead_ones_and_idle_cpus() -> None:
    samples = {
        (7, "nfs", "client"): 5, (99, "application", "client"): 3,
        (0, "interrupts", "neither"): 1, (0, "idle", "neither"): 1000,
    }  # fmt: skip
    assert divide(cpu(5 * S, {7: S}, samples)) == {
        ("nfs", "client"): S, ("application", "client"): 3 * S, ("interrupts", "neither"): S,
    }  # fmt: skip


def test_clocks_read_one_after_the_other_do_not_make_more_than_was_busy() -> None:
    samples = {(7, "nfs", "client"): 1, (8, "nfsd", "server"): 1}
    divided = divide(cpu(2 * S, {7: 3 * S, 8: S}, samples))
    assert divided == {("nfs", "client"): 3 * S // 2, ("nfsd", "server"): S // 2}


def test_without_samples_only_nfsd_is_known() -> None:
    divided = divide(cpu(3 * S, {7: S, 8: S}, {}, groups={7: "nfsd"}, rate=0))
    assert divided == {("nfsd", "server"): S, ("unattributed", "neither"): 2 * S}


def sample(name: bytes, thread: int, *addresses: int) -> bytes:
    return struct.pack("=16sQ8Q", name, thread, *addresses, *[0] * (8 - len(addresses)))


@pytest.mark.parametrize("sums_only", [True, False])
def test_samples_are_counted_by_thread_and_place(
    sums_only: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = [
        (sample(b"nfsd", 7, 16, 32) + sample(b"dd", 8, 16, 32), struct.pack("=2Q", 5, 2)),
        (sample(b"dd", 9) + sample(b"dd", os.getpid(), 32), struct.pack("=2Q", 1, 4)),
    ]
    asked: list[int] = []

    def ksym(address: int, show_module: bool = False) -> bytes:
        asked.append(address)
        return b"rpc_execute [sunrpc]" if address == 16 else b"vfs_read [kernel]"

    monkeypatch.setattr(cpu_set, "drained", lambda _session, _name: iter(batches))
    monkeypatch.setattr(cpu_set.Symbols.__init__, "__defaults__", (Machine(procfs=tmp_path),))
    (tmp_path / "modules").write_text("sunrpc 4096 0 - Live 0x0\n")
    bpf = SimpleNamespace(ksym=ksym)
    state = {"sums only": sums_only}
    session: Any = SimpleNamespace(bpf=bpf, state=state, table=lambda _: Lost())
    reader = cpu_set.Reader(session)
    for _ in range(2):
        reading = reader.read()
    # its client is the RPC's; a stack without kernel functions is a program's
    assert reading.samples == {
        (7, "sunrpc", "server"): 10, (8, "sunrpc", "client"): 4,
        (9, "application", "client"): 2, (os.getpid(), "tracing", "neither"): 8,
    }  # fmt: skip
    assert (reading.lost, len(reading.stacks)) == (3, 0 if sums_only else 4)
    # each address once, and 0 when the reader was made
    assert sorted(asked) == [0, 16, 32]


def test_addresses_that_the_kernel_hides_are_not_looked_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For each of them, bcc would read all of kallsyms: an exporter did nothing else."""
    (tmp_path / "kallsyms").write_text("0000000000000000 T _stext\n0000000000000000 T vfs_read\n")
    monkeypatch.setattr(kallsyms, "_KALLSYMS", tmp_path / "kallsyms")
    monkeypatch.setattr(cpu_set.Symbols.__init__, "__defaults__", (Machine(procfs=tmp_path),))
    (tmp_path / "modules").write_text("")
    asked: list[str] = []
    bpf = SimpleNamespace(
        ksym=lambda address, **_: asked.append(f"{address:#x}"),
        attach_perf_event=lambda **_: asked.append("samples"),
    )
    monkeypatch.setitem(
        sys.modules, "bcc", SimpleNamespace(PerfSWConfig=SimpleNamespace(CPU_CLOCK=0),
                                            PerfType=SimpleNamespace(SOFTWARE=1))
    )  # fmt: skip
    session: Any = SimpleNamespace(bpf=bpf, state={}, missing=(), table=lambda _: Lost())
    cpu_set.attach(session)
    (missing,) = session.missing
    assert (asked, missing.event) == ([], "perf:cpu-clock")
    assert "CAP_SYSLOG" in missing.reason
    # with addresses, there are samples
    (tmp_path / "kallsyms").write_text("ffffffff81000000 T _stext\n")
    session.missing = ()
    cpu_set.attach(session)
    assert (asked, session.missing) == (["0x0", "samples"], ())


def test_the_threads_of_the_host_are_those_of_its_proc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container has a pid namespace of its own, but the probes report the host's numbers."""
    for thread, name in ((4242, "exporter"), (77, "nfsd")):
        task = tmp_path / str(thread) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text("123456 0 1\n")
        (tmp_path / str(thread) / "comm").write_text(f"{name}\n")
    (tmp_path / "self").symlink_to("4242")
    machine = Machine(procfs=tmp_path)
    monkeypatch.setattr(cpu_set.Symbols.__init__, "__defaults__", (machine,))
    (tmp_path / "modules").write_text("")
    batch = sample(b"nfsrdma", 4242, 32), struct.pack("=Q", 4)
    monkeypatch.setattr(cpu_set, "drained", lambda _session, _name: iter([batch]))
    monkeypatch.setattr(cpu_set.Symbols, "frames", lambda *_: (Frame("vfs_read"),))
    bpf = SimpleNamespace(ksym=lambda *_: b"")
    session: Any = SimpleNamespace(bpf=bpf, state={"machine": machine}, table=lambda _: Lost())
    reading = cpu_set.Reader(session).read()
    assert reading.samples == {(4242, "tracing", "neither"): 4}
    assert {thread: time.ns for thread, time in reading.threads.items()} == {
        4242: 123456, 77: 123456,
    }  # fmt: skip
    assert reading.groups == {4242: "", 77: "nfsd"}


class Lost:
    def __getitem__(self, _: object) -> list[int]:
        return [1, 2]


def test_the_rows_end_with_their_sum_and_what_proc_stat_says() -> None:
    rows = records(cpu(3 * S, {7: 3 * S}, {(7, "nfs", "client"): 1, (7, "nfsd", "server"): 2}), {})
    assert [row["layer"] for row in rows] == ["nfs", "nfsd", "busy", "idle"]
    layers, (busy, idle) = rows[:-2], rows[-2:]
    assert sum(row["ns"] for row in layers) == busy["ns"] == 3 * S
    assert (busy["client_ns"], busy["server_ns"]) == (S, 2 * S)
    assert (busy["stat_ns"], idle["ns"]) == (7, 7 * S)
    assert busy["share"] + idle["share"] == pytest.approx(1.0)


def test_a_difference_is_of_the_time_between() -> None:
    def reading(
        busy: int, wall: int, ran: dict[int, ThreadTime], samples: dict[Any, int]
    ) -> Reading:
        # two CPUs
        stat = 2 * wall, {0: wall // 2, 1: wall // 2}
        counters = CpuCounters(wall, {0: 2 * wall - busy, 1: 0}, {}, MODES)
        return Reading(counters, stat, ran, {}, samples, Counter(), 499, 0)

    before = reading(
        S, S, {7: ThreadTime(S, 0), 8: ThreadTime(5 * S, 0)}, {(7, "nfs", "client"): 2}
    )
    after = reading(4 * S, 3 * S, {7: ThreadTime(2 * S, 4 * S)}, {(7, "nfs", "client"): 2})
    delta = difference(after, before)
    assert delta.host.busy_ns == 3 * S
    # one second of four, brought to the two that went by
    assert delta.threads == {7: S // 2}
    assert delta.samples == {}
    # three busy seconds of two
    assert delta.stat_ns == 3 * S


@pytest.mark.parametrize(
    ("before", "after", "ran"),
    [
        (None, ThreadTime(30, 100), 30),
        (ThreadTime(50, 0), ThreadTime(30, 100), 30),
        (ThreadTime(10, 0), ThreadTime(30, 100), 20),
        (ThreadTime(10, 0), ThreadTime(30, 200), 10),
    ],
)
def test_a_thread_born_meanwhile_ran_all_of_its_time(
    before: ThreadTime | None, after: ThreadTime, ran: int
) -> None:
    first = {} if before is None else {7: before}
    assert cpu_time.difference_of_threads({7: after}, first, 100) == {7: ran}


def test_threads_are_read_where_there_are_any(tmp_path: Path) -> None:
    for thread, text in (("7", "123 4 5\n"), ("8", "nonsense"), ("9", "")):
        folder = tmp_path / "7/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    (tmp_path / "7/comm").write_text("kworker/0:1\n")
    (tmp_path / "11").mkdir()
    machine = Machine(procfs=tmp_path)
    times = {thread: ran.ns for thread, ran in cpu_time.snapshot_threads(machine).items()}
    assert times == {7: 123}
    assert cpu_time.thread_name(7, machine) == "kworker/0:1"
    assert cpu_time.thread_name(8, machine) == ""
    assert cpu_time.snapshot_threads(Machine(procfs=tmp_path / "none")) == {}


def test_workers_and_threads_of_nfsd_are_groups() -> None:
    names = ("kworker/0:1H", "nfsd", "nfsdcld", "dd", "")
    assert [group(name) for name in names] == ["kworker", "nfsd", "", "", ""]


def test_only_cpu_writes_folded_stacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no option --folded"):
        trace.trace("chunks", folded=tmp_path / "x")
    with pytest.raises(UserError, match="is not a directory"):
        trace.trace("cpu", folded=tmp_path / "none/x")


def test_stacks_are_folded_from_the_thread_to_the_running_function(tmp_path: Path) -> None:
    read = (Frame("nfs_read", "nfs"), Frame("ksys_read"))
    timer = (Frame("crc32"), Frame("asm_sysvec_apic_timer_interrupt"), *read)
    stacks = {
        Sample("dd", read, ("nfs", "client")): 3,
        # the same functions on another CPU
        Sample("dd", read, ("nfs", "server")): 1,
        # an interrupt does not belong to the functions that it interrupted
        Sample("dd", timer, ("interrupts", "neither")): 2,
        Sample("a;b\x1b", (), ("application", "client")): 4,
        Sample("swapper", (Frame("default_idle"),), ("idle", "neither")): 99,
    }
    cpu_set.stack_writer(tmp_path / "x")(cpu(S, {}, {}, stacks=stacks))
    assert (tmp_path / "x").read_text().splitlines() == [
        "a:b?;user space 4",
        "dd;ksys_read;nfs_read [nfs] 4",
        "interrupts;asm_sysvec_apic_timer_interrupt;crc32 2",
    ]
