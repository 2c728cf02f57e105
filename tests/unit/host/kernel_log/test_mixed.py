# SPDX-License-Identifier: Apache-2.0
"""Logs that several processors write at once, made of records whose meaning is known.

Each log is made of records, and what ``explain`` has to find is written beside each of them. It
shares nothing with the readers of logs.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.meanings import Meaning, meaning_of
from nfsrdma_tools.host.kernel_log.records import records
from nfsrdma_tools.host.kernel_log.reports import Frame, KernelReport

NOISE = (
    "usb 1-2: new high-speed USB device number 9 using xhci_hcd",
    "audit: type=1400 audit(1.2:3): apparmor=0",
    "eth0: renamed from veth1a2b",
    "systemd[1]: Started Session 12 of user root.",
)


def written(pieces: Sequence[Sequence[str]], chance: random.Random, noise: float) -> list[str]:
    """The lines of all pieces, each in its order, at random places between each other."""
    left = [list(piece) for piece in pieces]
    lines: list[str] = []
    while any(left):
        lines.append(chance.choice([piece for piece in left if piece]).pop(0))
        if chance.random() < noise:
            lines.append(chance.choice(NOISE))
    return timed(lines)


def timed(lines: Sequence[str], begin: float = 100.0) -> list[str]:
    return [
        f"[{begin + number / 1e4:12.6f}]{'' if text.startswith('[ ') else ' '}{text}"
        for number, text in enumerate(lines)
    ]


def called(lines: Sequence[str], caller: str) -> list[str]:
    return [f"[{caller:>7}] {line}" for line in lines]


def callers(chance: random.Random, count: int) -> list[str]:
    every = [f"{kind}{number}" for kind in "TC" for number in (0, 3, 17, 155)]
    return chance.sample(every, count)


# ---- dumps of completions

SYNDROMES = {
    0x04: "local protection error", 0x13: "remote access error", 0x15: "retries exceeded",
    0x16: "receiver not ready",
}  # fmt: skip
WORK = {0x08: "RDMA Write", 0x0A: "Send", 0x10: "RDMA Read"}


@dataclass
class Dump:
    lines: list[str]
    name: str
    subject: str
    pair: int

    @property
    def truth(self) -> tuple[str, str, str]:
        return self.name, self.subject, f"queue pair {self.pair:#x}"


def a_dump(chance: random.Random, pair: int) -> Dump:
    device = f"mlx5_{chance.randrange(2)}"
    syndrome, opcode = chance.choice(list(SYNDROMES)), chance.choice(list(WORK))
    filler = chance.randbytes(54) if chance.random() < 0.5 else bytes(54)
    data = filler + struct.pack(">BBIHBB", 0x88, syndrome, opcode << 24 | pair, 17, 0xAA, 0xD2)
    kind = chance.choice(["plain", "two heads", "named rows", "el7", "net", "hns"])
    name = f"{WORK[opcode]} failed: {SYNDROMES[syndrome]}"
    words = [struct.unpack(">4I", data[at : at + 16]) for at in range(0, 64, 16)]
    in_words = [" ".join(f"{word:08x}" for word in row) for row in words]
    rows = [f"{at:08x}: {data[at : at + 16].hex(' ')}" for at in range(0, 64, 16)]
    if kind == "hns":
        device = f"hns_{chance.randrange(2)}"
        head = f"hns3 0000:bd:00.0 {device}: error cqe status {syndrome:#x}:"
        rows = [f"0005{syndrome:02x}83 00000000 00000000 {pair:08x}"]
        rows += ["00000000 00000000 00000000 00000000"] * chance.choice((1, 3))
        return Dump([head, *rows], f"request failed: {SYNDROMES[syndrome]}", device, pair)
    if kind == "el7":
        return Dump(
            [f"{device}:dump_cqe:286:(pid 0): dump error cqe", *in_words], name, device, pair
        )
    if kind == "net":
        device = f"ens{chance.randrange(2)}np0"
        head = f"mlx5_core 0000:3b:00.0 {device}: Error cqe on cqn 0x4{pair:x}, ci 0x1, opcode 0xd"
        return Dump([head, *rows], name, device, pair)
    first = f"infiniband {device}: "
    heads = [f"{first}dump_cqe:272:(pid 0): dump error cqe"]
    if kind == "two heads":
        heads.insert(0, f"{first}mlx5_handle_error_cqe:333:(pid 0): WC error: 10, Message: x y")
    if kind == "named rows":
        heads = [f"{first}dump_cqe:272:(pid 0): WC error: 10, Message: x y"]
        rows = [f"{first}cqe_dump: {row}" for row in rows]
    return Dump([*heads, *rows], name, device, pair)


def decoded(lines: list[str]) -> list[tuple[str, str, str]]:
    """The name, the device and the queue pair of each dump that was decoded."""
    explained = [meaning for record, _ in records(lines) if (meaning := meaning_of(record))]
    return [
        (meaning.name, meaning.subject, meaning.meaning.partition(" on ")[2].partition(" ended")[0])
        for meaning in explained
        if " failed: " in meaning.name and meaning.lines
    ]


@pytest.mark.parametrize("seed", range(100))
def test_dumps_of_several_callers_are_all_decoded(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    dumps = [a_dump(chance, 0x100 + number) for number in range(chance.randrange(1, 8))]
    who = callers(chance, len(dumps))
    lines = written(
        [called(dump.lines, caller) for dump, caller in zip(dumps, who, strict=True)], chance, 0.2
    )
    assert Counter(decoded(lines)) == Counter(dump.truth for dump in dumps)


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.parametrize("with_callers", [False, True])
def test_a_dump_that_is_decoded_was_written(seed: int, with_callers: bool) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    dumps = [a_dump(chance, 0x100 + number) for number in range(chance.randrange(2, 6))]
    cut = set()
    for number, dump in enumerate(dumps):
        if chance.random() < 0.4:
            cut.add(number)
            # without a head and without offsets, nothing tells rows of two dumps apart
            del dump.lines[chance.randrange(2, len(dump.lines))]
    pieces = [dump.lines for dump in dumps]
    if with_callers:
        who = callers(chance, len(dumps))
        pieces = [called(piece, caller) for piece, caller in zip(pieces, who, strict=True)]
    lines = written(pieces, chance, 0.1)
    seen = decoded(lines)
    assert not Counter(seen) - Counter(dump.truth for dump in dumps)
    assert not any("syndrome 0x00" in row.meaning for row in explain(lines))


def dump_of(pair: int, form: str = "plain", syndrome: int = 0x13) -> list[str]:
    data = bytes(54) + struct.pack(">BBIHBB", 0x88, syndrome, 8 << 24 | pair, 17, 0xAA, 0xD2)
    if form == "el7":
        rows = [data[at : at + 16].hex(" ", 4) for at in range(0, 64, 16)]
        return ["mlx5_0:dump_cqe:286:(pid 0): dump error cqe", *rows]
    rows = [f"{at:08x}: {data[at : at + 16].hex(' ')}" for at in range(0, 64, 16)]
    return ["infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe", *rows]


def meanings(lines: Sequence[str]) -> list[Meaning]:
    return [meaning for record, _ in records(timed(lines)) if (meaning := meaning_of(record))]


@pytest.mark.parametrize("form", ["plain", "el7"])
def test_mixed_dumps_without_callers_are_not_decoded(form: str) -> None:
    first, second = dump_of(0x111, form), dump_of(0x222, form, 0x15)
    for at in range(1, 5):
        mixed = meanings([*first[:at], *second[:at], *first[at:], *second[at:]])
        assert [meaning.name for meaning in mixed] == ["error completion, not decoded"] * 2
        for meaning in mixed:
            assert "the log does not tell its bytes from those of another dump" in meaning.meaning
            assert "syndrome" not in meaning.meaning


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_dump_without_one_of_its_rows_is_incomplete(missing: int) -> None:
    lines = dump_of(0x111)
    del lines[missing]
    (meaning,) = meanings(called(lines, "T3"))
    assert meaning.name in ("error completion, not decoded", "mlx5 work failed")
    assert ("its bytes are not all here" in meaning.meaning) == (missing > 1)
    assert "syndrome" not in meaning.meaning


def test_dumps_one_after_another_are_decoded_without_callers() -> None:
    for form in ("plain", "el7"):
        lines = [line for pair in (0x111, 0x222, 0x333) for line in dump_of(pair, form)]
        names = [meaning.name for meaning in meanings(lines)]
        assert names == ["RDMA Write failed: remote access error"] * 3
    # the first of them is cut, and long over
    rest = timed(dump_of(0x222), 107.0)
    (*_, last) = [meaning_of(record) for record, _ in records([*timed(dump_of(0x111)[:3]), *rest])]
    assert last
    assert "queue pair 0x222" in last.meaning


def test_bytes_that_are_no_error_completion_have_no_syndrome() -> None:
    lines = dump_of(0x111)
    lines[4] = lines[4][:-2] + "00"
    (meaning,) = meanings(lines)
    assert meaning.meaning.endswith("its bytes are no error completion.")


def test_the_number_of_open_dumps_is_bounded() -> None:
    heads = [line for n in range(40) for line in called(dump_of(0x100 + n)[:2], f"T{n}")]
    rows = [line for n in range(39, -1, -1) for line in called(dump_of(n + 0x100)[2:], f"T{n}")]
    shown = meanings([*heads, *rows])
    assert sum(meaning.name.startswith("RDMA Write failed") for meaning in shown) == 8


# ---- reports


@dataclass(frozen=True)
class Code:
    """Where a report is, and whose code that is."""

    title: str
    place: str
    at: str
    callers: tuple[str, ...]
    process: str
    work: str = ""


CODES = (
    Code("NFS client", "client over RDMA", "frwr_unmap_async [rpcrdma]",
         ("xprt_rdma_send_request [rpcrdma]", "xprt_transmit [sunrpc]", "call_transmit [sunrpc]",
          "__rpc_execute [sunrpc]", "rpc_async_schedule [sunrpc]", "process_one_work",
          "worker_thread"),
         "kworker/u65:1", "rpciod rpc_async_schedule [sunrpc]"),
    Code("NFS client", "client over RDMA", "rpcrdma_mr_init [rpcrdma]",
         ("rpcrdma_mrs_create [rpcrdma]", "process_one_work", "worker_thread"), "kworker/3:2"),
    Code("NFS server", "NFS server", "svc_rdma_recvfrom [rpcrdma]",
         ("svc_recv [sunrpc]", "nfsd [nfsd]"), "nfsd"),
    Code("NFS server", "NFS server", "nfsd4_encode_fattr4 [nfsd]",
         ("nfsd4_encode_operation [nfsd]", "nfsd4_proc_compound [nfsd]", "nfsd_dispatch [nfsd]",
          "svc_process [sunrpc]", "nfsd [nfsd]"), "nfsd"),
    Code("NFS client", "NFS client", "nfs4_put_open_state [nfsv4]",
         ("nfs4_do_close [nfsv4]", "__put_nfs_open_context [nfs]", "__fput", "task_work_run"),
         "cc1"),
    Code("RDMA core", "RDMA core", "ib_free_cq [ib_core]",
         ("cm_work_handler [ib_cm]", "process_one_work", "worker_thread"), "kworker/7:0",
         "ib_cm cm_work_handler [ib_cm]"),
    Code("driver of an RDMA device", "driver of an RDMA device", "mlx5_ib_poll_cq [mlx5_ib]",
         ("mlx5_ib_destroy_cq [mlx5_ib]", "process_one_work", "worker_thread"), "kworker/9:1H"),
    Code("", "", "arc_read [zfs]", ("dbuf_read [zfs]", "dsl_scan_visit [zfs]"), "txg_sync"),
    Code("", "", "nvidia_open [nvidia]", ("chrdev_open", "do_dentry_open", "vfs_open"), "Xorg"),
    Code("", "", "ext4_es_lookup_extent [ext4]", ("ext4_map_blocks [ext4]", "vfs_write"), "cp"),
    Code("", "", "pick_next_entity", ("schedule", "smpboot_thread_fn"), "ksoftirqd/2"),
)  # fmt: skip


@dataclass(frozen=True)
class Truth:
    kind: str
    head: str
    name: str
    code: str
    process: str
    pid: int
    at: str
    frames: tuple[str, ...]

    @property
    def subject(self) -> str:
        return self.process if self.kind == "hung task" else ""


@dataclass
class Made:
    lines: list[str]
    truth: Truth
    head: str
    """Of a warning not its text, but the line that begins so."""


def in_log(function: str, chance: random.Random) -> str:
    name, space, module = function.partition(" ")
    return f"{name}+{chance.randrange(1, 999):#x}/{chance.randrange(999, 9999):#x}{space}{module}"


FORMS = ("7.0", "6.12", "el7", "arm64")


def reports(chance: random.Random, most: int) -> list[Made]:
    """Reports of one kernel, each of another process."""
    form = chance.choice(FORMS)
    return [a_report(chance, 1000 + n, form) for n in range(chance.randrange(2, most + 1))]


CUT = "------------[ cut here ]------------"
END = "---[ end trace 0000000000000000 ]---"
TAILS = {
    "7.0": ("kthread", "ret_from_fork", "ret_from_fork_asm"),
    "6.12": ("kthread", "ret_from_fork", "ret_from_fork_asm"),
    "el7": ("kthread", "ret_from_fork_nospec_begin"),
    "arm64": ("kthread", "ret_from_fork"),
}
TAILS_OF_PROGRAMS = {
    "7.0": ("do_syscall_64", "entry_SYSCALL_64_after_hwframe"),
    "6.12": ("do_syscall_64", "entry_SYSCALL_64_after_hwframe"),
    "el7": ("system_call_fastpath",),
    "arm64": ("el0_svc", "el0t_64_sync_handler", "el0t_64_sync"),
}
ABOVE = {
    "hung task": ("__schedule", "schedule"),
    "sanitizer": ("dump_stack_lvl", "kasan_report"),
    "allocation": ("dump_stack_lvl", "warn_alloc"),
}
"""The frames above the function that failed, which is in the registers of the other kinds."""
OTHERS = ("kasan_save_stack", "__kmalloc", "vfs_read")


class Scene:
    """The parts that reports of one form of the kernel share."""

    def __init__(self, chance: random.Random, pid: int, form: str, kind: str) -> None:
        self.chance, self.pid, self.form, self.kind = chance, pid, form, kind
        self.code = chance.choice(CODES)
        self.cpu = chance.randrange(64)
        self.release = f"{chance.choice(['Not tainted', 'Tainted: G        W  OE     '])} 6.12.0 #1"
        self.place = in_log(self.code.at, chance)
        self.address = f"{pid:016x}"
        self.mark = f"[<ffffffff{pid:08x}>]"
        tails = TAILS_OF_PROGRAMS if self.code.process in ("cc1", "Xorg", "cp") else TAILS
        above = ABOVE.get(kind)
        self.frames = (*((*above, self.code.at) if above else ()), *self.code.callers, *tails[form])

    @property
    def modules(self) -> str:
        return "Modules linked in: nfsd rpcrdma sunrpc mlx5_ib ib_core zfs(POE) ext4"

    @property
    def process(self) -> list[str]:
        uid = "UID: 0 " if self.form in ("7.0", "6.12") else ""
        loaded = " Kdump: loaded" if self.form == "el7" else ""
        name = f"{uid}PID: {self.pid} Comm: {self.code.process}{loaded}"
        lines = [
            f"CPU: {self.cpu} {name} {self.release} SMP",
            "Hardware name: Example Inc. Server/Board, BIOS 1.1a 10/16/2015",
        ]
        return [*lines, f"Workqueue: {self.code.work}"] if self.code.work else lines

    @property
    def registers(self) -> list[str]:
        if self.form == "arm64":
            return [
                f"pc : {self.place}", "lr : " + in_log("schedule_timeout", self.chance),
                "sp : ffff80008a4dbd20", "x29: ffff80008a4dbd20 x28: 0000000000000000",
            ]  # fmt: skip
        marks = f"{self.mark}  {self.mark} " if self.form == "el7" else ""
        return [
            f"RIP: 0010:{marks}{self.place}", "Code: 48 89 e5 41 54 <48> 8b 07 65",
            "RSP: 0018:ffffc9000153fe08 EFLAGS: 00010246",
            "RAX: 0000000000000000 RBX: ffff88810a7e4000 RCX: 0000000000000000",
        ]  # fmt: skip

    @property
    def stack(self) -> list[str]:
        prefix = f" {self.mark} " if self.form == "el7" else " "
        lines = [prefix + in_log(frame, self.chance) for frame in self.frames]
        unsure = f"{prefix}? {in_log('__pfx_worker_thread', self.chance)}"
        lines[-1:-1] = [unsure] * self.chance.randrange(2)
        if self.form == "arm64":
            return ["Call trace:", *lines]
        return ["Call Trace:", *(lines if self.form == "el7" else [" <TASK>", *lines, " </TASK>"])]

    @property
    def body(self) -> list[str]:
        return [self.modules, *self.process, *self.registers, *self.stack]


def of_oops(scene: Scene) -> list[str]:
    number = scene.chance.randrange(1, 4)
    if scene.form == "el7":
        head = f"BUG: unable to handle kernel NULL pointer dereference at {scene.address}"
        second = ["PGD 0 ", f"Oops: 0000 [#{number}] SMP "]
    elif scene.form == "arm64":
        head = f"Unable to handle kernel paging request at virtual address {scene.address}"
        second = ["Mem abort info:", "  ESR = 0x0000000096000004"]
        second.append(f"Internal error: Oops: 0000000096000004 [#{number}]  SMP")
    else:
        head = f"BUG: kernel NULL pointer dereference, address: {scene.address}"
        second = ["#PF: supervisor read access in kernel mode", "PGD 0 P4D 0 "]
        second.append(f"Oops: Oops: 0000 [#{number}] SMP NOPTI")
    return [head, *second, *scene.body, END]


def of_bug(scene: Scene) -> list[str]:
    second = {
        "el7": "invalid opcode: 0000 [#1] SMP ",
        "arm64": "Internal error: Oops - BUG: 00000000f2000800 [#1]  SMP",
    }.get(scene.form, "Oops: invalid opcode: 0000 [#1] SMP NOPTI")
    return [f"kernel BUG at net/some_file.c:{scene.pid}!", CUT, second, *scene.body, END]


def of_warning(scene: Scene) -> list[str]:
    at = f"fs/some_file.c:{scene.pid}"
    head = f"WARNING: CPU: {scene.cpu} PID: {scene.pid} at {at} {scene.place}"
    if scene.form == "7.0":
        who = f"CPU#{scene.cpu}: {scene.code.process}/{scene.pid}"
        head = f"WARNING: {at} at {scene.place}, {who}"
    text = [f"some text of WARN() about {scene.pid}"] * scene.chance.randrange(2)
    return [head, CUT, *text, *scene.body, END]


def of_hung_task(scene: Scene) -> list[str]:
    name, pid = scene.code.process, scene.pid
    task = f"task:{name:15} state:D stack:0     pid:{pid} tgid:{pid} ppid:2      flags:0x"
    if scene.form == "el7":
        task = f"{name:15} D ffff9a3e7fd1ac80     0 {pid}      2 0x00000080"
    disable = '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.'
    head = f"INFO: task {name}:{pid} blocked for more than 122 seconds."
    return [head, f"      {scene.release}", disable, task, *scene.stack]


def of_lockup(scene: Scene) -> list[str]:
    who = f"{scene.code.process}:{scene.pid}"
    return [f"watchdog: BUG: soft lockup - CPU#{scene.cpu} stuck for 22s! [{who}]", *scene.body]


def of_sanitizer(scene: Scene) -> list[str]:
    who = f"{scene.code.process}/{scene.pid}"
    return [
        f"BUG: KASAN: slab-use-after-free in {scene.place}", "=" * 66,
        f"Read of size 8 at addr ffff888100000000 by task {who}", "", *scene.process, *scene.stack,
        "", "Allocated by task 12:", *(f" {in_log(frame, scene.chance)}" for frame in OTHERS), "",
        "The buggy address belongs to the object at ffff888100000000", "=" * 66,
    ]  # fmt: skip


def of_allocation(scene: Scene) -> list[str]:
    head = f"{scene.code.process}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL)"
    return [head, *scene.process, *scene.stack, "Mem-Info:", "active_anon:1 inactive_anon:2"]


MAKERS = {
    "oops": (of_oops, "{} crashed"), "bug": (of_bug, "{} crashed"),
    "warning": (of_warning, "warning of the {}"), "lockup": (of_lockup, "processor held in the {}"),
    "hung task": (of_hung_task, "thread of the {} waits"),
    "sanitizer": (of_sanitizer, "{} crashed"),
    "allocation": (of_allocation, "memory short in the {}"),
}  # fmt: skip


def a_report(chance: random.Random, pid: int, form: str) -> Made:
    kind = chance.choice([maker for maker in MAKERS if form != "el7" or maker != "sanitizer"])
    scene = Scene(chance, pid, form, kind)
    make, name = MAKERS[kind]
    head, *lines = make(scene)
    # the head is not the first line of each kind
    first = 0 if kind in ("oops", "hung task", "lockup", "allocation") else 1
    has_text = lines[first].startswith("some text") if kind == "warning" else False
    lines.insert(first + has_text, head)
    code = scene.code
    name = name.format(code.title) if code.title else "report of other code"
    if kind == "hung task":
        # what it waits for says more than its code
        special = {"NFS server": "nfsd waits", "nfs4": "program waits for pages of an NFS file"}
        name = special.get(code.at[:4], special.get(code.title, name))
    at = code.at if kind not in ("hung task", "allocation") else ""
    shown = [part for part in (code.place, at or scene.frames[0]) if part]
    frames = (*scene.frames, *(OTHERS if kind == "sanitizer" else ()))
    # the argument of WARN() says more than the place
    says_most = lines[1] if has_text else head
    truth = Truth(kind, says_most, name, ", ".join(shown), code.process, pid, at, frames)
    return Made(lines, truth, head)


def named(frame: Frame | None) -> str:
    if not frame:
        return ""
    return f"{frame.function} [{frame.module}]" if frame.module else frame.function


def found_in(lines: list[str]) -> list[tuple[KernelReport, Meaning]]:
    every = [
        (record, meaning_of(record))
        for record, _ in records(lines)
        if isinstance(record, KernelReport)
    ]
    return [(report, meaning) for report, meaning in every if meaning]


def truth_of(report: KernelReport, meaning: Meaning) -> Truth:
    """What the reader found, in the form of what was written."""
    frames = tuple(named(frame) for frame in report.frames)
    return Truth(
        report.kind, report.head, meaning.name, meaning.code, report.process, report.pid,
        named(report.at), frames,
    )  # fmt: skip


def interleaved(chance: random.Random, made: Sequence[Made]) -> list[str]:
    """A log of several callers."""
    who = callers(chance, len(made))
    pieces = [called(report.lines, caller) for report, caller in zip(made, who, strict=True)]
    return written(pieces, chance, 0.2)


@pytest.mark.parametrize("seed", range(150))
def test_reports_of_several_callers_are_all_found(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    made = reports(chance, 7)
    truths = Counter(truth_of(*pair) for pair in found_in(interleaved(chance, made)))
    assert truths == Counter(report.truth for report in made)


@pytest.mark.parametrize("seed", range(150))
def test_reports_one_after_another_are_all_found_without_callers(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    made = reports(chance, 7)
    lines = timed([line for report in made for line in report.lines])
    truths = [truth_of(*pair) for pair in found_in(lines)]
    assert truths == [report.truth for report in made]


@pytest.mark.parametrize("seed", range(150))
def test_explain_counts_the_reports_of_one_place_together(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    made = reports(chance, 7)
    dumps = [a_dump(chance, 0x100 + number) for number in range(chance.randrange(3))]
    who = callers(chance, 8)
    every = [*(report.lines for report in made), *(dump.lines for dump in dumps)]
    pieces = [called(piece, who.pop()) for piece in every[:8]]
    lines = written(pieces, chance, 0.2)
    totals = Counter({(row.name, row.subject): 0 for row in explain(lines)})
    for row in explain(lines):
        totals[row.name, row.subject] += row.count
    truth = Counter((report.truth.name, report.truth.subject) for report in made)
    truth += Counter((dump.name, dump.subject) for dump in dumps[: 8 - len(made)])
    assert totals == truth
    # a crash or a warning is counted with those of its place alone
    places = Counter(
        (report.truth.name, report.truth.code, report.truth.kind)
        for report in made
        if report.truth.kind not in ("hung task", "lockup")
    )
    counts = Counter((name, code, count) for (name, code, _), count in places.items())
    shown = Counter((row.name, row.code, row.count) for row in explain(lines))
    assert not counts - shown


def is_of(report: KernelReport, truth: Truth) -> bool:
    """Whether all that a report says of a process and of code may be of one that was written."""
    rest = iter(truth.frames)
    unsure = [frame for frame in report.frames if not frame.function.startswith("__pfx_")]
    return (
        report.process in ("", truth.process)
        and report.pid in (0, truth.pid)
        and named(report.at) in ("", truth.at)
        and all(named(frame) in rest for frame in unsure)
    )


def without_a_part(chance: random.Random, made: Made) -> list[str]:
    """Its lines with one part lost: the beginning, the end, or some between."""
    begin = chance.randrange(len(made.lines))
    end = chance.randrange(begin, len(made.lines) + 1)
    return chance.choice(
        [made.lines[begin:], made.lines[:end], made.lines[:begin] + made.lines[end:]]
    )


@pytest.mark.parametrize("seed", range(150))
def test_a_report_that_lost_lines_is_mixed_with_no_other_caller_s(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    made = reports(chance, 7)
    who = callers(chance, len(made))
    pieces = [
        called(without_a_part(chance, report), caller)
        for report, caller in zip(made, who, strict=True)
    ]
    for report, _ in found_in(written(pieces, chance, 0.2)):
        assert not report.mixed
        assert any(is_of(report, original.truth) for original in made), report


def test_reports_without_callers_blame_nobody_by_frames_of_another() -> None:
    wrong = 0
    for seed in range(600):
        chance = random.Random(seed)  # noqa: S311 -- repeatable
        made = reports(chance, 2)
        shown = found_in(written([original.lines for original in made], chance, 0.1))
        for report, meaning in shown:
            wrong += not any(is_of(report, original.truth) for original in made)
            assert not report.mixed or "whose code it is in is not known" in meaning.doubt
        heads = {line for report, _ in shown for line in report.lines}
        # no report vanishes in the other
        assert all(original.head in heads for original in made)
        assert len(shown) >= 2
    # some mixtures look as one whole report and the rest of another
    assert wrong <= 3


@pytest.mark.parametrize("form", FORMS)
def test_the_second_of_two_oopses_does_not_vanish(form: str) -> None:
    for seed in range(40):
        chance = random.Random(seed)  # noqa: S311 -- repeatable
        first, second = a_report(chance, 1000, form), a_report(chance, 1001, form)
        for at in range(1, len(first.lines)):
            lines = timed([*first.lines[:at], *second.lines, *first.lines[at:]])
            shown = found_in(lines)
            heads = {line for report, _ in shown for line in report.lines}
            assert {first.head, second.head} <= heads
            # the report that stands as a whole between the parts of the other is not blamed on it
            assert all(
                is_of(report, first.truth) or is_of(report, second.truth) for report, _ in shown
            )
