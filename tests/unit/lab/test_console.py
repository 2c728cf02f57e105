# SPDX-License-Identifier: Apache-2.0
"""What a console reports, and whose fault it is."""

import threading
from pathlib import Path

import pytest

from nfsrdma_tools.lab import machine
from nfsrdma_tools.lab.console import (
    DMA_API_REPORTS,
    Console,
    EmulatorFaultError,
    KernelReportError,
)

REPORTS = [
    "[   12.3] Oops: general protection fault, probably for address 0x1: 0000 [#1] SMP",
    "[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "[   12.3] WARNING: CPU: 1 PID: 77 at net/sunrpc/xprt.c:100 xprt_release+0x1/0x2",
    "[   12.3] WARNING: possible circular locking dependency detected",
    "[   12.3] INFO: task kworker/0:1:9 blocked for more than 120 seconds.",
    "[   12.3] Kernel panic - not syncing: Fatal exception",
    "[   12.3] BUG: KASAN: slab-use-after-free in rpcrdma_reply_put+0x1/0x2",
    "[   12.3] BUG: KCSAN: data-race in nfr_post [nfsrdma] / nfr_reply [nfsrdma]",
    "[   12.3] BUG nfsrdma_call (Tainted: G           OE     ): Objects remaining on shutdown",
    "[   12.3] BUG: sleeping function called from invalid context at mm/slab.h:321",
    "[   12.3] [ BUG: Invalid wait context ]",
    "[   12.3] BUG: MAX_LOCKDEP_CHAINS too low!",
    "[   12.3] WARNING: inconsistent lock state",
    "[   12.3] WARNING: suspicious RCU usage",
    "[   12.3] WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected",
    "[   12.3] WARNING: bad unlock balance detected!",
    "[   12.3] WARNING: held lock freed!",
    "[   12.3] WARNING: lock held when returning to user space!",
    "[   12.3] WARNING: nfsd/77 still has locks held!",
    "[   12.3] INFO: trying to register non-static key.",
    "[   12.3] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
    "[   12.3] kmemleak: Kernel memory leak detector disabled",
    "[   12.3] kmemleak: Memory pool empty, consider increasing CONFIG_DEBUG",
    "[   12.3] DMA-API: virtio-pci 0000:00:03.0: cacheline tracking ENOMEM, dma-debug disabled",
    "[   12.3] DMA-API: debugging out of memory - disabling",
    "[   12.3] DMA-API: nfsrdma_card 0000:00:10.0: device driver tries to free DMA memory it has"
    " not allocated [device address=0x0000000004a00000] [size=3145728 bytes]",
    "[   12.3] nfsrdma_card: card0: DMA fault: no memory of 0000:00:10.0 is mapped at 0xfffff000",
    "[   12.3] ODEBUG: free active (active state 0) object: 00000000 object type: work_struct",
    "[   12.3] list_del corruption. prev->next should be ffff8880, but was dead4ead. (prev=f)",
]


@pytest.mark.parametrize("line", REPORTS)
def test_a_report_on_the_console_is_seen_once(line: str, tmp_path: Path) -> None:
    log = tmp_path / "console"
    end = "[   12.4] ---[ end trace 0000000000000000 ]---"
    log.write_text(f"[   12.2] all is well\n{line}\n[   12.4]  in this function\n{end}\n")
    console = Console("server", log)
    with pytest.raises(KernelReportError, match=r"server reports.*in this function"):
        console.check()
    console.check()


OOPS = """[   12.3] Oops: {kind}: 0000 [#1] PREEMPT SMP NOPTI
[   12.3] RIP: 0010:kmalloc+0xd9/0x430
[   12.3] Code: 48 c7 45 c0 00 00 00 {before} <49> 8b 06 65 48 03
[   12.3] RSP: 0018:ff42cddc006d7c40 EFLAGS: {flags}
[   12.3] ---[ end trace 0000000000000000 ]---
"""


@pytest.mark.parametrize(
    ("kind", "before", "flags", "fault"),
    [
        ("double fault", "00", "c66f6202", "EFLAGS c66f6202 is impossible"),
        ("general protection fault", "00", "00000244", "EFLAGS 00000244 is impossible"),
        ("int3", "0f", "00000246", "a breakpoint executed where memory has 0f"),
    ],
)
def test_what_no_processor_does_is_the_emulators_fault(
    kind: str, before: str, flags: str, fault: str, tmp_path: Path
) -> None:
    log = tmp_path / "console"
    log.write_text(OOPS.format(kind=kind, before=before, flags=flags))
    with pytest.raises(EmulatorFaultError, match=f"emulator of server failed: {fault}"):
        Console("server", log).check()


LOST_TIMER = """[ {time}.28] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
[ {time}.28] rcu: \tPossible timer handling issue on cpu=0 timer-softirq=39
"""


def test_a_timer_interrupt_is_lost_when_it_is_missed_twice(tmp_path: Path) -> None:
    """Once may be the host's: a processor that it did not run for as long."""
    log = tmp_path / "console"
    console = Console("server", log)
    log.write_text(LOST_TIMER.format(time=107))
    console.check()
    with log.open("a") as file:
        file.write(LOST_TIMER.format(time=128))
    with pytest.raises(EmulatorFaultError, match="processor 0 gets no timer interrupt"):
        console.check()


def test_a_boot_that_the_emulator_failed_is_done_again() -> None:
    boots, reports = iter((EmulatorFaultError("no timer"), None)), list[str]()

    def boot() -> None:
        if fault := next(boots):
            raise fault

    machine.boot_again(boot, reports.append)
    assert reports == ["no timer: booting again"]


def test_a_boot_that_the_emulator_fails_three_times_is_an_error() -> None:
    boots = []

    def boot() -> None:
        boots.append(1)
        raise EmulatorFaultError("no timer")

    with pytest.raises(EmulatorFaultError):
        machine.boot_again(boot, lambda text: None)
    assert len(boots) == 3


@pytest.mark.parametrize(
    ("kind", "before", "flags"), [("double fault", "00", "003f7fd7"), ("int3", "cc", "00000246")]
)
def test_what_a_processor_may_do_is_the_kernels_fault(
    kind: str, before: str, flags: str, tmp_path: Path
) -> None:
    log = tmp_path / "console"
    log.write_text(OOPS.format(kind=kind, before=before, flags=flags))
    with pytest.raises(KernelReportError, match="the kernel of server reports") as met:
        Console("server", log).check()
    assert not isinstance(met.value, EmulatorFaultError)


def test_an_oops_is_judged_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "console"
    lines = OOPS.format(kind="double fault", before="00", flags="c66f6202").splitlines(True)
    log.write_text(lines[0])

    def rest() -> None:
        with log.open("a") as file:
            file.writelines(lines[1:])

    later = threading.Timer(0.2, rest)
    later.start()
    with pytest.raises(EmulatorFaultError, match="EFLAGS c66f6202"):
        Console("server", log).check()
    later.join()


def test_an_oops_without_an_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfsrdma_tools.lab.console._OOPS_SECONDS", 0.2)
    log = tmp_path / "console"
    log.write_text(f"{REPORTS[0]}\n[   12.4]  in this function\n")
    with pytest.raises(KernelReportError, match=r"server reports.*in this function"):
        Console("server", log).check()


def test_a_defect_that_is_known_is_kept_and_others_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text(
        "[   12.3] WARNING: CPU: 1 PID: 39 at rxe_comp.c:827 rxe_completer+0xb9f/0xe40\n"
    )
    console = Console("server", log)
    console.check()
    assert len(console.met) == 1
    with log.open("a") as file:
        file.write("[   12.4] WARNING: CPU: 1 PID: 39 at rxe_req.c:1 rxe_requester+0xb9f/0xe40\n")
    with pytest.raises(KernelReportError, match="rxe_requester"):
        console.check()


SIW = """[   12.3] WARNING: CPU: 0 PID: 654 at verbs.c:2104 ib_destroy_qp_user+0x165/0x1a0 [ib_core]
[   12.3] Modules linked in: siw(OE) libcrc32c nfsd rpcrdma
[   12.3] RIP: 0010:ib_destroy_qp_user+0x165/0x1a0 [ib_core]
[   12.3] Call Trace:
[   12.3]  <TASK>
[   12.3]  ? __warn+0x1/0x2
[   12.3]  svc_rdma_free+0x88/0x130 [rpcrdma]
[   12.3]  svc_xprt_free+0x99/0x120 [sunrpc]
[   12.3]  </TASK>
[   12.3] ---[ end trace 0000000000000000 ]---
"""


def test_a_server_that_soft_iwarp_did_not_drain_is_known(tmp_path: Path) -> None:
    log = tmp_path / "console"
    lines = SIW.splitlines(True)
    log.write_text(lines[0])

    def rest() -> None:
        with log.open("a") as file:
            file.writelines([*lines[1:], "[   12.4] all is well\n", REPORTS[0] + "\n"])

    later = threading.Timer(0.2, rest)
    later.start()
    console = Console("server", log)
    with pytest.raises(KernelReportError, match=r"reports: \S+ +12.3\] Oops"):
        console.check()
    later.join()
    assert console.met == [lines[0].rstrip()]


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ("siw(OE) ", ""),
        ("svc_rdma_free", "rpcrdma_ep_destroy"),
        ("[rpcrdma]\n", "[nfsrdma]\n"),
        ("  svc_rdma_free", "  ? svc_rdma_free"),
        ("  ? __warn", "  nvmet_rdma_free_queue"),
    ],
)
def test_a_queue_pair_that_anything_else_destroys_in_use_is_reported(
    known: str, other: str, tmp_path: Path
) -> None:
    assert known in SIW
    log = tmp_path / "console"
    # a known one behind it is another report
    log.write_text(SIW.replace(known, other) + SIW)
    with pytest.raises(KernelReportError, match="ib_destroy_qp_user"):
        Console("server", log).check()


def test_a_line_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text("[   12.3] BU")
    console = Console("server", log)
    console.check()
    with log.open("a") as file:
        file.write("G: kernel NULL pointer dereference\n")
    with pytest.raises(KernelReportError):
        console.check()


SHARED_LINE = """[   12.3] ------------[ cut here ]------------
[   12.3] DMA-API: nfsrdma_card 0000:00:10.0: cacheline tracking EEXIST, overlapping mappings aren't
[   12.3] WARNING: CPU: 1 PID: 77 at kernel/dma/debug.c:601 add_dma_entry+0x2c1/0x300
[   12.3] ---[ end trace 0000000000000000 ]---
"""


def test_mappings_that_share_a_cache_line_are_met(tmp_path: Path) -> None:
    """They are harmless where DMA is coherent; other reports of the DMA API are not."""
    log = tmp_path / "console"
    log.write_text(SHARED_LINE)
    console = Console("server", log)
    console.check()
    assert len(console.met) == 2
    with log.open("a") as file:
        file.write(SHARED_LINE.replace("cacheline tracking EEXIST", "device driver tries to free"))
    with pytest.raises(KernelReportError, match="tries to free"):
        console.check()


@pytest.mark.parametrize("more", [0, 1])
def test_a_dma_api_that_reports_nothing_more_is_an_error(more: int, tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text(SHARED_LINE * (DMA_API_REPORTS - 1 + more))
    console = Console("server", log)
    if more:
        with pytest.raises(KernelReportError, match="reports nothing more"):
            console.check()
    else:
        console.check()


def test_ordinary_lines_are_no_report(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text(
        "[    1.0] systemd[1]: Starting debug things...\n"
        "[    2.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n"
        "[    2.0] BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!\n"
        "[    2.0] INFO: rcu_preempt detected stalls on CPUs/tasks:\n"
        "[    2.0] BUG: KCSAN: data-race in xprt_transmit [sunrpc] / xs_tcp_write_space [sunrpc]\n"
        "[    2.0] kmemleak: Kernel memory leak detector initialized (mem pool available: 39000)\n"
        "[    2.0] DMA-API: preallocated 65536 debug entries\n"
        "[    2.0] DMA-API: debugging enabled by kernel config\n"
        "[    2.0] DMA-API: dma_debug_entry pool grown to 131072 (200%)\n"
        "[    3.0] rpcrdma: 'frwr' mode, 32 MRs per connection\n"
    )
    Console("server", log).check()
