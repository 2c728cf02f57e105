# SPDX-License-Identifier: Apache-2.0
"""The bottleneck of a mount and of a server: each verdict, and figures that almost make it true."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.files_made import write_all
from unit.live.snapshots_made import HOSTILE, mount, op, served, snapshot, xprt

from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.cpu_time import CpuTicks, ThreadTime, each_cpu, parse_stat
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.nfsd.nfsctl import PoolCounts
from nfsrdma_tools.live.analyze.bottleneck import limit, server_limit, with_limits
from nfsrdma_tools.live.collect import device_counters
from nfsrdma_tools.live.collect.busy_threads import BusyThreads
from nfsrdma_tools.live.collect.client_finder import ClientFinder
from nfsrdma_tools.live.collect.device_counters import LinkCounts, Links
from nfsrdma_tools.live.collect.host_statistics import HostReader
from nfsrdma_tools.live.collect.readings import Readings
from nfsrdma_tools.live.snapshot import (
    Cpu,
    Credits,
    Disk,
    Link,
    Processors,
    Snapshot,
    Thread,
    Waiting,
)

# 64 CPUs, of which one is full: the average of the host is 2 %
CALM = Processors(64, 10**9, 10**9)
NOW = snapshot(processors=CALM)
READER = Thread("fio", 123, 125, 0.99, 2, devices=("0:45",))
FULL_LINK = Link("mlx5_0/1", 100 * 10**9, received=11_500_000_000, sent=10**6)
FULL_DISK = Disk("dm-0", "/srv/data", 0.99, 3.2, 60)


def worker(name: str, share: float = 0.97) -> Thread:
    return Thread(name, 77, 77, share, 3, kernel=True)


def on(processors: dict[str, Any], **more: Any) -> Snapshot:
    return replace(NOW, processors=replace(CALM, **processors), **more)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ops": ()}, "Idle"),
        ({"ops": (), "waiting": (Waiting("READ", 9.0, "xprt_pending", 3, 1),)}, "Stalled: READ"),
        ({"xprts": (xprt(credits=Credits(32, 9)),), "credit_waits": 40}, "Credits: all 32"),
        ({"xprts": (xprt(credits=Credits(32, 32), sending=5),)}, "Credits: all 32"),
        ({"xprts": (xprt(credits=Credits(32, 32)),), "ops": (op(count=9000),)}, "Network and"),
        ({"xprts": (xprt(credits=Credits(32, 31), sending=5),), "ops": (op(count=9000),)},
         "Network and"),
        ({"xprts": (xprt(requests=16, counters={"sends": 50, "bklog_u": 150}),)},
         "Slots: 3 RPCs wait for a slot on average; all 16 slots"),
        ({"xprts": (xprt(counters={"sends": 50, "bklog_u": 49}),), "ops": (op(count=9000),)},
         "Network and server"),
        ({"xprts": (xprt(counters={"sends": 5, "bklog_u": 150}),), "ops": (op(count=9000),)},
         "Network and server"),
        ({"read_ahead_kb": 128, "ops": (op(count=500),)}, "Read-ahead: 128 KiB is 2 READs"),
        ({"read_ahead_kb": 128, "ops": (op(count=2900),)}, "Network and server"),
        ({"read_ahead_kb": 128, "ops": (op(count=500),), "direct": 6553600}, "Network and server"),
        ({"ops": (op(count=500, queue_ms=900),)}, "Queue: a READ spends"),
        ({"ops": (op(count=10),)}, "Application"),
        ({"ops": (op(count=9000),)}, "Network and server"),
        ({"ops": (op("GETATTR", received=0),)}, "Metadata: GETATTR"),
    ],
)  # fmt: skip
def test_the_bottleneck_of_a_mount(change: dict[str, Any], expected: str) -> None:
    assert limit(replace(mount(), **change), NOW).startswith(expected)


def test_a_busy_host_is_a_bottleneck() -> None:
    cpu = replace(snapshot().processors, busy_ns=2 * 10**9)
    expected = "CPU: 100% of this host is busy, most of it in emulated NIC."
    assert limit(mount(), snapshot(processors=cpu)) == expected
    almost = replace(cpu, busy_ns=2 * 10**9 * 89 // 100)
    assert limit(mount(), snapshot(processors=almost)).startswith("Application")


BUSY = mount(ops=(op(count=9000),))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # one reader at 99 % of a CPU, and a host that is idle on average
        (on({"threads": (READER,)}), "Thread: fio (pid 123, thread 125) uses 99% of CPU 2. Use"),
        (on({"threads": (replace(READER, number=123, cpu=-1),)}),
         "Thread: fio (pid 123) uses 99% of a CPU. Use"),
        (on({"threads": (replace(READER, share=0.89),)}), "Network and server"),
        # it has files of other mounts, or of none
        (on({"threads": (replace(READER, devices=("0:99",)),)}), "Network and server"),
        (on({"threads": (replace(READER, devices=()),)}), "Network and server"),
        # the first thread is not the reason, the second one is
        (on({"threads": (replace(READER, devices=()), replace(READER, process=9))}),
         "Thread: fio (pid 9,"),
        # an unknown thread is not idle, and not the reason
        (on({"threads": (replace(READER, devices=None),)}), "Unknown: fio (pid 123, thread 125)"),
        (on({"threads": (replace(READER, devices=None), READER)}), "Thread: fio"),
        (on({"threads": (replace(READER, devices=None, share=0.89),)}), "Network and server"),
        # threads of the kernel
        (on({"threads": (worker("kworker/u16:3+xprtiod"),)}),
         "Thread: the kernel's kworker/u16:3+xprtiod (pid 77) uses 97% of CPU 3. Try nconnect."),
        (on({"threads": (worker("kworker/2:1H-ib-comp-wq"),)}), "Thread: the kernel's kworker"),
        (on({"threads": (worker("kworker/u16:3-xprtiod", 0.89),)}), "Network and server"),
        (on({"threads": (worker("kswapd0"),)}), "Unknown: the kernel's kswapd0"),
        # a program may call itself anything
        (on({"threads": (replace(READER, name="nfsd", devices=()),)}), "Network and server"),
        # interrupts
        (on({"busiest": (Cpu(3, 0.99, 0.97),)}),
         "CPU: CPU 3 is 99% busy, 97% in interrupts (irq, softirq)."),
        (on({"busiest": (Cpu(3, 0.99, 0.97),), "threads": (worker("ksoftirqd/3"),)}), "CPU: CPU 3"),
        (on({"busiest": (Cpu(3, 0.89, 0.87),)}), "Network and server"),
        (on({"busiest": (Cpu(3, 0.99, 0.4),), "threads": ()}), "Network and server"),
        # a full CPU of which no thread is visible, or none was read yet
        (on({"busiest": (Cpu(3, 0.99),), "threads": (), "hidden": 1.0}), "Unknown: threads that"),
        (on({"busiest": (Cpu(3, 0.99),)}), "Unknown: CPU 3 is 99% busy; its threads are not"),
        (on({"busiest": (Cpu(3, 0.99),), "threads": (), "hidden": 0.8}), "Network and server"),
        (on({"busiest": (Cpu(3, 0.89),)}), "Network and server"),
        # links: 92 % of 100 Gb/s; 88 %; a link that cannot have carried the mount's data
        (replace(NOW, links=(FULL_LINK,)), "Link: mlx5_0/1 receives 92% of its 100 Gb/s."),
        (replace(NOW, links=(replace(FULL_LINK, received=11 * 10**9),)), "Network and server"),
        (replace(NOW, links=(replace(FULL_LINK, rate=10**7, received=1200000),)),
         "Network and server"),
        # what waits for the link comes after it
        (on({"threads": (READER,)}, links=(FULL_LINK,)), "Thread: fio"),
    ],
)  # fmt: skip
def test_what_is_full_is_named(now: Snapshot, expected: str) -> None:
    assert now.processors.share < 0.05
    assert limit(BUSY, now).startswith(expected)


def test_credits_that_are_used_up_behind_a_full_link_are_not_the_bottleneck() -> None:
    starved = replace(BUSY, xprts=(xprt(credits=Credits(32, 32), sending=5),))
    assert limit(starved, NOW).startswith("Credits")
    assert limit(starved, replace(NOW, links=(FULL_LINK,))).startswith("Link")


@pytest.mark.parametrize(
    ("change", "now", "expected"),
    [
        ({"calls": 0}, NOW, "Idle"),
        # nfsd is idle, its threads are not needed
        ({"calls": 0, "threadless": {"hits": 9, "bytes": 4096}}, NOW, "Clients and network"),
        ({"calls": 0, "threadless": {"missed_open": 9}}, NOW, "Idle"),
        ({}, NOW, "Clients and network"),
        ({}, on({"threads": (worker("nfsd"),)}), "Thread: the kernel's nfsd (pid 77) uses 97%"),
        ({}, on({"threads": (worker("nfsd", 0.89),)}), "Clients and network"),
        ({}, on({"threads": (READER,)}), "Clients and network"),
        ({}, on({"threads": (replace(READER, devices=None),)}), "Unknown: fio"),
        ({}, on({"busiest": (Cpu(3, 0.95, 0.9),)}), "CPU: CPU 3 is 95% busy"),
        ({}, replace(NOW, links=(replace(FULL_LINK, sent=12 * 10**9),)),
         "Link: mlx5_0/1 sends 96%"),
        ({"disks": (FULL_DISK,)}, NOW,
         "Disk: dm-0 (/srv/data) has requests in flight for 99% of the time, 3.2 on average."),
        ({"disks": (replace(FULL_DISK, busy=0.89),)}, NOW, "Clients and network"),
        # the kernel rounds the busy time of a fast disk up to a tick for each request
        ({"disks": (replace(FULL_DISK, in_flight=0.2),)}, NOW, "Clients and network"),
        ({"queued": 900, "woken": 90}, NOW, "nfsd threads: 90% of the times that a connection"),
        ({"queued": 900, "woken": 460}, NOW, "Clients and network"),
        ({"queued": 15, "woken": 0}, NOW, "Clients and network"),
        ({"queued": 90, "woken": 99}, NOW, "Clients and network"),
    ],
)  # fmt: skip
def test_the_bottleneck_of_a_server(change: dict[str, Any], now: Snapshot, expected: str) -> None:
    assert server_limit(replace(served(), **change), now).startswith(expected)


def test_a_full_disk_and_busy_threads_are_both_named() -> None:
    both = replace(served(), disks=(FULL_DISK,), queued=900, woken=90)
    bottleneck = server_limit(both, NOW)
    assert bottleneck.startswith("Disk: dm-0")
    assert "all 8 threads of nfsd were busy" in bottleneck


def test_a_snapshot_has_both() -> None:
    limited = with_limits(replace(NOW, server=served(), mounts=(mount(limit="old"),)))
    assert limited.mounts[0].limit.startswith("Application")
    assert limited.server and limited.server.limit.startswith("Clients and network")


STAT = """\
cpu  1 2 3 4 5 6 7 8 9 10
cpu0 {} 0 {} {} 0 0 {} {} 0 0
cpu5 100 0 100 {} 0 0 0 0 0 0
intr 9 9 9
"""


def test_the_use_of_each_cpu_from_ticks() -> None:
    before = parse_stat(STAT.format(1000, 1000, 9000, 500, 0, 5000))
    assert before == {0: CpuTicks(9000, 2000, 500, 0), 5: CpuTicks(5000, 200, 0, 0)}
    after = parse_stat(STAT.format(1008, 1011, 9001, 570, 10, 5100))
    uses = each_cpu(after, before, 10**9)
    assert uses[5].busy == 0
    full = uses[0]
    assert (full.busy, full.interrupts, full.stolen) == pytest.approx((0.99, 0.7, 0.1))
    assert Cpu(0, *full).tasks == pytest.approx(0.19)
    assert each_cpu(after, before, 0) == {}


@pytest.mark.parametrize(
    "text", ["", "cpu0 1 2 3\n", "cpufoo 1 2 3 4 5 6 7 8", "cpu0 a b c d e f g"]
)
def test_lines_of_other_kernels_are_not_cpus(text: str) -> None:
    assert parse_stat(text) == {}


DAY = 86_400 * 100


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # it comes online, after a day or since boot
        ({}, {1: CpuTicks(DAY, 9, 0, 0)}),
        # it goes offline
        ({1: CpuTicks(DAY, 9, 0, 0)}, {}),
        # it was offline in between, on a kernel that keeps its idle time, and on one before 6.8
        ({1: CpuTicks(DAY, 9, 0, 0)}, {1: CpuTicks(DAY + 2, 12, 0, 0)}),
        ({1: CpuTicks(DAY, 9, 0, 0)}, {1: CpuTicks(30, 60, 0, 0)}),
    ],
)
def test_a_cpu_that_comes_or_goes_is_not_full(
    before: dict[int, CpuTicks], after: dict[int, CpuTicks]
) -> None:
    idle, later = CpuTicks(DAY, 9, 0, 0), CpuTicks(DAY + 100, 9, 0, 0)
    assert list(each_cpu({0: later, **after}, {0: idle, **before}, 10**9)) == [0]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HostReader:
    """A host without mounts, that exports /srv/data."""
    write_all(tmp_path, {
        "proc/self/mountinfo": "22 1 254:3 / / rw - ext4 /dev/vda3 rw\n"
        "40 22 253:0 / /srv rw - xfs /dev/mapper/srv rw\n",
        "proc/self/mountstats": "",
        "proc/self/net/rpc/nfsd": "io 4096 77\nrpc 12 1 1 0 0\n",
        "proc/fs/nfsd/threads": "8\n",
        "var/lib/nfs/etab": "/srv/data\t*(rw,fsid=0)\n",
    })  # fmt: skip
    monkeypatch.setattr(ClientFinder, "look_up", lambda self: None)
    return HostReader(ClientFinder(), Machine(tmp_path))


DISKSTATS = """\
 254       3 vda3 10 0 80 5 0 0 0 0 0 9 5 0 0 0 0 0 0
 253       0 dm-0 {} 0 80 500 {} 0 800 700 2 {} {} 0 0 0 0
   7       0 loop0 1 2 3
"""


def test_the_disk_below_an_export(host: HostReader, tmp_path: Path) -> None:
    stats = tmp_path / "proc/diskstats"
    stats.write_text(DISKSTATS.format(100, 200, 5000, 9000))
    before = replace(host.read(), at=0)
    stats.write_text(DISKSTATS.format(110, 250, 5990, 12200))
    now = replace(host.read(), at=10**9)
    host._server._find_exported(now.disks)
    assert host._server._disks(now, before) == (Disk("dm-0", "/srv/data", 0.99, 3.2, 60),)
    assert host._server._disks(before, before) == ()
    # the counters restarted
    assert host._server._disks(replace(before, at=2 * 10**9), now) == ()


def test_disk_counts_by_the_name_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "diskstats").write_text(DISKSTATS.format(1, 2, 3, 4))
    known = device_counters.disk_counts(Machine(procfs=tmp_path))
    assert known["253:0"] == device_counters.DiskCounts("dm-0", 3, 3, 4)
    entries = mountinfo.parse(
        "22 1 0:25 / / rw - btrfs /dev/vda3 rw\n40 22 0:99 / /tank rw - zfs tank rw\n"
    )
    assert device_counters.disks_below(("/x", "/tank/y"), entries, known) == {"254:3": "/x"}
    assert device_counters.disk_counts(Machine(tmp_path)) == {}


def test_pool_counts_of_connections_that_found_no_thread(tmp_path: Path) -> None:
    head = "# pool packets-arrived sockets-enqueued threads-woken threads-timedout\n"
    write_all(tmp_path, {"proc/fs/nfsd/pool_stats": f"{head}0 500 300 20 0\n1 7 9 8 0\n"})
    assert nfsctl.pool_counts(Machine(tmp_path)) == PoolCounts(309, 28)
    assert nfsctl.pool_counts(Machine(tmp_path / "none")) == PoolCounts()


def link(sysfs: Path, name: str, files: dict[str, str]) -> None:
    write_all(sysfs / "class" / name, {file: f"{text}\n" for file, text in files.items()})


def test_device_counters_of_links_with_a_known_rate(tmp_path: Path) -> None:
    data = {"counters/port_rcv_data": "1000", "counters/port_xmit_data": "10"}
    for name, rate, layer in (
        ("mlx5_0", "100 Gb/sec (4X EDR)", "InfiniBand"),
        ("mlx5_1", "40 Gb/sec (4X QDR)", "Ethernet"),
        ("qib0", "40 Gb/sec (4X QDR)", "InfiniBand"),
        ("odd0", "fast", "Ethernet"),
    ):
        folder = f"infiniband/{name}/ports/1"
        link(tmp_path, folder, {"rate": rate, "link_layer": layer, **data})
    # soft-RoCE has no counters
    link(tmp_path, "infiniband/rxe0/ports/1", {"rate": "2.5 Gb/sec (1X SDR)"})
    packets = {"statistics/rx_bytes": "70", "statistics/tx_bytes": "7"}
    link(tmp_path, "net/eth1", {"speed": "25000", "device/x": "", **packets})
    link(tmp_path, "net/eth2", {"speed": "-1", "device/x": "", **packets})
    link(tmp_path, "net/bond0", {"speed": "25000", **packets})
    links = Links(Machine(sysfs=tmp_path))
    assert links.read() == {}
    links.find()
    assert links.read() == {
        "mlx5_0/1": LinkCounts(100 * 10**9, 4000, 40),
        "mlx5_1/1": LinkCounts(40 * 10**9, 4000, 40),
        "qib0/1": LinkCounts(32 * 10**9, 4000, 40),
        "eth1": LinkCounts(25 * 10**9, 70, 7),
    }
    (tmp_path / "class/net/eth1/statistics/rx_bytes").unlink()
    assert "eth1" not in links.read()


def test_a_link_is_in_the_snapshot_from_half_of_its_rate(host: HostReader) -> None:
    before = Readings(at=0, links={"eth1": LinkCounts(8000, 500, 500)})
    half = Readings(at=10**9, links={"eth1": LinkCounts(8000, 1000, 500)})
    less = Readings(at=10**9, links={"eth1": LinkCounts(8000, 999, 0), "new": LinkCounts(8, 9, 9)})
    assert host.links(half, before) == (Link("eth1", 8000, 500, 0),)
    assert host.links(less, before) == host.links(half, half) == ()


STATUS = "Name:\tx\nTgid:\t{}\nPid:\t{}\n"
TAIL = "S 1 1 1 0 -1 {} 0 0 0 0 5 5 0 0 20 0 1 0 9 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {} 0 0"


class Host:
    """A /proc with threads; ``run`` lets them run, ``take`` reads them as in an interval."""

    def __init__(self, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc = proc
        self.now = 10**12
        self.ns: dict[int, int] = {}
        self.looked = 0
        self.reader = BusyThreads(Machine(procfs=proc))
        clock = SimpleNamespace(monotonic_ns=lambda: self.now, thread_time_ns=lambda: 0)
        monkeypatch.setattr("nfsrdma_tools.live.collect.busy_threads.time", clock)
        monkeypatch.setattr(cpu_time, "snapshot_threads", self._all)
        monkeypatch.setattr(cpu_time, "thread_ns", self._one)

    def _all(self, _: Path) -> dict[int, ThreadTime]:
        self.looked += 1
        return {thread: ThreadTime(ns, self.now) for thread, ns in self.ns.items()}

    def _one(self, thread: int, _: Path) -> ThreadTime | None:
        return ThreadTime(self.ns[thread], self.now) if thread in self.ns else None

    def add(
        self, process: int, thread: int, name: str, kernel: bool = False, mount: int = 0
    ) -> None:
        self.ns[thread] = 0
        flags = 0x00208040 if kernel else 0x00400000
        write_all(self.proc, {
            f"{thread}/stat": f"{thread} ({name}) {TAIL.format(flags, 3)}",
            f"{thread}/comm": f"{name}\n",
            f"{thread}/status": STATUS.format(process, thread),
            f"{process}/fdinfo/0": f"pos:\t0\nflags:\t0100000\nmnt_id:\t{mount}\nino:\t5\n",
            f"{process}/mountinfo": "22 1 254:3 / / rw - ext4 /dev/vda3 rw\n"
                                    "70 22 0:45 / /mnt rw - nfs4 s:/e rw\n",
        })  # fmt: skip
        (self.proc / f"{process}/cwd").symlink_to("/")

    def run(self, tasks: float = 2.0, **shares: float) -> Processors:
        """A second in which threads ran for these shares of it: t7=0.5."""
        self.now += 10**9
        for name, share in shares.items():
            self.ns[int(name[1:])] += round(share * 10**9)
        return self.reader.add_to(CALM, tasks * 1e9, {"0:45"})


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_busy_thread_and_the_mount_that_it_uses(threads: Host) -> None:
    threads.add(7, 7, "a) b (c", mount=70)
    threads.add(8, 8, "spin", mount=22)
    threads.add(9, 9, "kworker/u4:1-xprtiod", kernel=True)
    threads.add(10, 10, "idle", mount=70)
    assert threads.run(t7=1, t8=0.4).threads is None
    busy = threads.run(t7=0.99, t8=0.6, t9=0.55, t10=0.1).threads
    assert busy == (
        Thread("a) b (c", 7, 7, 0.99, 3, devices=("0:45",)),
        Thread("spin", 8, 8, 0.6, 3, devices=()),
        Thread("kworker/u4:1-xprtiod", 9, 9, 0.55, 3, kernel=True, devices=None),
    )
    # almost
    (almost,) = threads.run(t7=0.85).threads or ()
    assert limit(BUSY, on({"threads": (almost,)})).startswith("Network and server")
    assert threads.run(t7=0.4).threads == ()


def test_processes_that_ended_are_forgotten(threads: Host) -> None:
    """A busy host starts short processes, such as those of a compiler, for days."""
    threads.add(1000, 1000, "p", mount=70)
    threads.run(t1000=1)
    for number in range(1000, 1100):
        threads.add(number + 1, number + 1, "p", mount=70)
        threads.run(**{f"t{number}": 1, f"t{number + 1}": 1})
        threads.ns.pop(number)
    assert 0 < len(threads.reader._devices) <= 32


def test_files_of_another_user_are_unknown(threads: Host) -> None:
    threads.add(7, 7, "fio", mount=70)
    threads.run(t7=1)
    (threads.proc / "7/fdinfo/0").unlink()
    (threads.proc / "7/fdinfo").rmdir()
    (thread,) = threads.run(t7=1).threads or ()
    assert thread.devices is None


def test_a_working_directory_on_the_mount_counts(threads: Host) -> None:
    threads.add(7, 7, "grep")
    (threads.proc / "7/cwd").unlink()
    (threads.proc / "7/cwd").symlink_to("/mnt/some/where")
    threads.run(t7=1)
    (thread,) = threads.run(t7=1).threads or ()
    assert thread.devices == ("0:45",)


def test_time_of_threads_that_are_not_visible(threads: Host) -> None:
    threads.add(7, 7, "fio", mount=70)
    threads.run(t7=1)
    assert threads.run(tasks=2.0, t7=0.99).hidden == pytest.approx(0.91)
    assert threads.run(tasks=1.0, t7=0.99).hidden == 0
    del threads.ns[7]
    assert threads.run(tasks=1.0).threads == ()


def test_a_thread_number_that_is_used_again(threads: Host) -> None:
    threads.add(7, 7, "old", mount=70)
    threads.run(t7=1)
    threads.run(t7=1)
    threads.ns[7] = 0
    (thread,) = threads.run(t7=0.7).threads or ()
    assert thread.share == pytest.approx(0.7)


def test_all_threads_are_read_seldom_if_that_takes_long(
    threads: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter(range(0, 10**12, 25 * 10**6))
    clock = SimpleNamespace(monotonic_ns=lambda: threads.now, thread_time_ns=lambda: next(spent))
    monkeypatch.setattr("nfsrdma_tools.live.collect.busy_threads.time", clock)
    threads.add(7, 7, "fio", mount=70)
    threads.add(8, 8, "later", mount=70)
    seen = [len(threads.run(t7=1).threads or ()) for _ in range(2)]
    assert (seen, threads.looked) == ([0, 1], 2)
    # two readings took 50 ms: the next one is due 5 s later
    busy = [len(threads.run(t7=1, t8=1).threads or ()) for _ in range(6)]
    assert busy == [1, 1, 1, 1, 2, 2]
    assert threads.looked == 3


def test_threads_are_not_read_while_no_cpu_can_be_full(host: HostReader, tmp_path: Path) -> None:
    before = Readings(at=0, ticks={0: CpuTicks(0, 0, 0, 0), 1: CpuTicks(0, 0, 0, 0)})

    def after(tasks: int) -> Processors:
        ticks = {0: CpuTicks(100 - tasks, tasks, 0, 0), 1: CpuTicks(60, 0, 40, 0)}
        now = Readings(at=10**9, ticks=ticks)
        return [host.processors(now, before, {"0:45"}) for _ in range(2)][-1]

    write_all(tmp_path, {"proc/7/task/7/schedstat": "500 0 1\n"})
    assert after(89).threads is None
    assert after(91).threads == ()


def test_names_of_threads_are_untrusted() -> None:
    hostile = replace(READER, name=HOSTILE)
    assert HOSTILE in limit(BUSY, on({"threads": (hostile,)}))
