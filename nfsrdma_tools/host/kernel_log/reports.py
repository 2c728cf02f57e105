# SPDX-License-Identifier: Apache-2.0
"""Find the kernel's reports of its own errors in a log: records of many lines.

An oops, a warning, a hung task or a lockdep report begins with a head, which says what happened,
and has a body: the process, the registers, the stack.  The meaning is in the stack.  The forms are
those of Linux 3.10 to 7.x on x86, arm64 and powerpc: lib/bug.c, kernel/panic.c, kernel/hung_task.c,
kernel/watchdog.c, kernel/rcu/tree_stall.h, kernel/locking/lockdep.c, mm/kasan/report.c,
mm/page_alloc.c, arch/*/kernel/traps.c, arch/*/mm/fault.c and dumpstack.c.

Lines of other processors may stand between the lines of a report; those do not end it.  Reports
that two processors print at once differ by their callers (CONFIG_PRINTK_CALLER).  Without callers
the second report takes the lines that follow its head; if these show that they are of two reports,
its process and its frames are left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nfsrdma_tools.host.kernel_log.lines import LogLine, Numbered

__all__ = ["HEAD_WORDS", "Frame", "KernelReport", "Kind", "ReportReader"]

Kind = Literal[
    "oops",
    "bug",
    "warning",
    "hung task",
    "lockup",
    "stall",
    "lockdep",
    "sanitizer",
    "allocation",
    "stack",
]
"""``stack``: the beginning is not in the log."""

_MOST_LINES = 400
"""Of one report; a lockdep report of two deep stacks has some 200."""
_MOST_TEXT = 1 << 15
"""Characters of a report's lines."""
_MOST_FRAMES = 400
"""Of one report, and as many that the kernel marks as unsure."""
_MOST_OPEN = 8
"""Reports that several processors print at once; with more, the oldest ends."""
_FOREIGN = 12
"""This number of lines of others in a row ends a report without an end of its own."""
_GAP = 5.0
"""Seconds without a line of the report that end it, too."""
_HEAD_TEXT = 6
"""Lines of free text between "cut here" and the head: the argument of WARN()."""


class Frame(NamedTuple):
    """A function of the stack, and its module; "" for a part of vmlinux."""

    function: str
    module: str


# The first line of a report, in order: a line may fit several.
_HEADS: tuple[tuple[Kind, str], ...] = (
    ("sanitizer", r"BUG: K(?:AS|CS|MS|FENCE)\w*:? .+|UBSAN: .+|ODEBUG: .+|kmemleak: \d+ new .+"),
    (
        "lockdep",
        r"(?:WARNING: |INFO: |BUG: )?(?:possible (?:circular|recursive|irq lock inversion|irq-"
        r"unsafe).{0,80}|\[ ?INFO: .{0,80} \]|suspicious RCU usage.{0,20}|inconsistent lock state"
        r"|bad unlock balance.{0,40}|held lock freed!|lock held when returning.{0,40}"
        r"|Nested lock was not taken|Invalid wait context|trying to register non-static key\."
        r"|MAX_LOCK\w+ too low!|[\w-]{1,32}-safe -> [\w-]{1,32}-unsafe.{0,40}"
        r"|.{1,40} still has locks held!)",
    ),
    (
        "hung task",
        r"INFO: task (?P<comm>.{1,32}):(?P<pid>\d+) (?:<\S+> )?blocked (?:on a .{1,80} )?"
        r"(?:in .{1,40} )?for more than \d+ seconds\.?.{0,80}",
    ),
    (
        "lockup",
        r"(?:(?:NMI )?watchdog: )?(?:BUG: soft lockup - CPU#\d+ stuck for \d+s!"
        r"|Watchdog detected hard"
        r" LOCKUP on cpu \d+|BUG: workqueue lockup - pool|CPU \d+ (?:self-detected hard LOCKUP"
        r"|detected hard LOCKUP on other CPUs).{0,80})"
        r"(?: \[(?P<comm>.{1,32}):(?P<pid>\d+)\])?.{0,120}",
    ),
    (
        "stall",
        r"(?:rcu: )?INFO: rcu\w{0,24}(?: \S{1,24})? (?:self-)?detected (?:expedited )?stalls?"
        r" (?:on|in).{0,160}",
    ),
    (
        "oops",
        r"BUG: unable to handle .{1,120}|BUG: kernel NULL pointer dereference.{0,80}"
        r"|general protection fault.{0,160}|Oops: .{1,120}|invalid opcode: \d+ .{0,80}"
        r"|traps: .{1,80}|Internal error: .{1,120}|Unable to handle kernel .{1,120}"
        r"|double fault: .{1,80}|divide error: .{1,80}|stack segment: .{1,80}"
        r"|Kernel panic - not syncing: .{1,160}|PANIC: double fault.{0,80}"
        r"|Kernel attempted to \w+ .{1,80}|Bad kernel stack pointer .{1,80}"
        r"|int3: .{1,80}|stack guard page was hit.{0,120}"
        r"|BUG: stack guard page was hit.{0,120}|BUG: TASK stack guard page was hit.{0,120}",
    ),
    (
        # complaints of debugging code: the thread goes on
        "warning",
        r"BUG: (?:using \w+\(\) in preemptible|sleeping function called|scheduling while atomic"
        r"|Invalid wait context|.{1,40} still has locks).{0,160}",
    ),
    (
        "bug",
        r"kernel BUG at .{1,200}|kernel BUG in .{1,200}|BUG: .{1,160}"
        r"|BUG \S{1,64} \(.{1,80}\): .{1,160}",
    ),
    (
        "warning",
        # of lib/bug.c: since Linux 7.0 the place comes first, and the processor last
        r"WARNING: (?:CPU: \d+ PID: (?P<pid>\d+) at |at |\S{1,200}:\d+ at ).{1,240}"
        r"|Badness at .{1,160}",
    ),
    (
        "allocation",
        r"(?P<comm>.{1,32}?): (?:vmalloc error|vmalloc: .{0,40}allocation failure|page allocation"
        r" (?:failure|stall)s?)[:,. ].{0,200}",
    ),
)
_HEAD = tuple((kind, re.compile(pattern)) for kind, pattern in _HEADS)
_CUT = "------------[ cut here ]------------"
HEAD_WORDS = (
    *("BUG", "WARNING: ", "INFO: ", "Oops: ", "cut here", "fault", "opcode: ", "error: "),
    *("Unable to handle", "Kernel panic", "allocation", "vmalloc", "LOCKUP", "UBSAN", "ODEBUG"),
    *("kmemleak", "possible ", "suspicious RCU", "inconsistent lock", "Badness", "stack guard"),
    *("attempted", "int3", "segment: ", "locks held", "soft lockup", "stack pointer", "Internal"),
    *("-safe -> ", "unlock balance", "lock held", "lock freed", "Nested lock", "Invalid wait"),
    *("non-static key", "MAX_LOCK", "traps: ", " PID: ", "Call Trace", "Call trace"),
)
"""Each head of a report has one of these: `in` costs less than a pattern."""
_FIRST_TWO = frozenset(
    start[:2]
    for start in (
        *("BUG", "WARNING", "INFO", "possible", "[ INFO", "[INFO", "suspicious", "inconsistent"),
        *("bad unlock", "held lock", "lock held", "Nested", "Invalid", "trying", "MAX_LOCK"),
        *("UBSAN", "ODEBUG", "kmemleak", "NMI", "watchdog", "Watchdog", "CPU", "rcu", "Oops"),
        *("general", "invalid", "traps", "Internal", "Unable", "double", "divide", "stack"),
        *("Kernel", "PANIC", "Bad", "int3", "kernel BUG"),
    )
)
"""Each head begins with one of these, or has "alloc", "-safe -> " or "held!" in it."""
_ENDS = ("---[ end trace", "---[ end Kernel panic")
_NUMBERED = ("Oops: ", "Internal error: ", "invalid opcode: ")
"""Heads with the number of the oops."""
_ONCE = ("Modules linked in:", "Hardware name:", "Code: ", "RSP: ", "sp : ")
"""Lines that a report has once before its stack."""

_FRAME = re.compile(
    r"(?:<\w{1,8}> +)?(?:\[[0-9a-fx]{8,20}\] )?(?:\[<[0-9a-f]{8,16}>\] )?"
    r"(?:\[[0-9a-f]{8,16}\] )?(?P<unsure>\? )?(?:caller is )?"
    r"(?P<function>[A-Za-z_.$][\w.$]{0,127})"
    r"(?:\+0x[0-9a-f]{1,8}(?:/0x[0-9a-f]{1,8})?(?: \S{1,128}:\d{1,6})?"
    r"| \S{1,128}:\d{1,6} \[inline\]| \([^()]{1,128}(?: \(discriminator \d+\))?\))"
    r"(?: \[(?P<module>\w{1,64})(?: [0-9a-f]{8,64})?\])?(?: \(\S{1,80}\))*(?: \(unreliable\))?"
    r"(?: \(P\))?(?: \([A-Z]{1,4}\))?"
)
# of 32-bit arm: "[<80a88018>] (schedule) from [<8015c138>] (io_schedule+0x14/0x3c)"
_ARM = re.compile(
    r"(?:\[<[0-9a-f]{8}>\] )?\(?(?P<function>\w{1,128})(?: \[(?P<module>\w{1,64})\])?\)?"
    r" from .{1,160}"
)
_AT = re.compile(
    r"(?:RIP:? +(?:[0-9a-f]{4}:)?|(?:IP|pc|PC is at|EIP is at|NIP|epc)[ :]*)"
    r"(?:\[<[0-9a-f]{1,16}>\] {0,2})*(?:\[[0-9a-f]+\] ?)?"
    r"(?P<function>[A-Za-z_.$][\w.$]{0,127})\+0x[0-9a-f]+/0x[0-9a-f]+"
    r"(?: \[(?P<module>\w{1,64})(?: [0-9a-f]{8,64})?\])?.{0,40}"
)
_IN = re.compile(
    r" (?:in|at) (?:\S{1,200}:\d+ )?(?P<function>[A-Za-z_][\w.]{1,127})"
    r"\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(?P<module>\w{1,64})(?: [0-9a-f]+)?\])?"
)
# of dump_stack_print_info(): "CPU: 4 UID: 0 PID: 87 Comm: kworker/u65:1 ..."
_PROCESS = re.compile(
    r"CPU: \d+ (?:UID: \d+ )?PID: (?P<pid>\d+) (?:Comm: (?P<comm>.{1,32}?)"
    r"(?= ve: | Kdump:| Not tainted| Tainted:|$| \d+\.\d+)).{0,240}"
)
_WARNING_BY = re.compile(r", CPU#\d+: (?P<comm>.{1,32})/(?P<pid>\d+)$")
_WITH_PROCESS = (
    *(
        (word, pattern)
        for kind, word in (
            ("hung task", "INFO: task "),
            ("lockup", " ["),
            ("warning", "WARNING: CPU: "),
            ("allocation", "alloc"),
        )
        for of_kind, pattern in _HEAD
        if of_kind == kind and pattern.groups
    ),
    (", CPU#", _WARNING_BY),
)
"""Patterns that name a process, and what each text has in which they name one."""
_TASK = re.compile(
    r"task:.{1,32}? *state:\S(?: \([^)]{1,24}\))? *stack: *\d+ +pid: *\d+ .{0,120}"
    r"|\S{1,16} +[DRSTZIX] (?:ffff[0-9a-f]+|0x[0-9a-f]+"
    r"|[0-9a-f]{8,16})? *\d+ +\d+ +\d+ .{0,60}"
    r"|\S{1,16} +[DRSTZIX] +0 +\d+ +\d+ .{0,60}"
)
_STATE = re.compile(r"task:.{1,32}? *state:.{1,80}? pid: *(?P<pid>\d+) .*")
_WORKQUEUE = re.compile(
    r"Workqueue: +(?:0x0 \((?P<former>\S{1,64})\)"
    r"|(?P<queue>\S{1,64})(?: (?P<work>\S{1,128}))?.{0,80})"
)
_IN_FLIGHT = re.compile(r"in-flight: \d+(?:\(RESCUER\))?:(?P<work>\w{1,128}).*")
_KERNEL = re.compile(
    r"(?:Not tainted|Tainted: [^#]{1,64}?) +(?P<kernel>\d{1,3}\.\d\S{0,62} +#\d.{0,120})"
)
"""The kernel's release and version, after its taints."""
_STACK = re.compile(
    r"Call [Tt]race:.{0,40}|Backtrace:.{0,40}|</?(?:TASK|IRQ|NMI|SOFTIRQ|#\w+|EOI|EOE)>"
    r"|stack backtrace:|.{0,40}Stack:.{0,20}|=+$|-+$"
)
_BODY = re.compile(
    # a space before each further module: no text matches in two ways
    r"Modules linked in:.*|[a-z0-9_]{2,64}(?:\([A-Z+]+\))?(?: [a-z0-9_]{2,64}(?:\([A-Z+]+\))?)*"
    r"(?: \[last unloaded: .*\])?"
    r"|(?:Unl|L)oaded tainted modules:.*|Hardware name:.*|CPU: \d+ .*"
    r"|CPU:? \d+.*"
    r"|(?:RIP|RSP|EIP|IP|CS|DS|CR[0-8]|FS|GS|PKRU|DR\d|[RE](?:[A-D]X|[SD]I|[BSI]P)|R\d{1,2}|EFLAGS"
    r"|PGD|PUD|P4D|PMD|PTE|ORIG_RAX)"
    r"[ :].*|Code: .*|Call Code: .*|#PF: .*|Kernel panic .*|Kernel Offset: .*"
    r"|note: .* exited with .*"
    r"|(?:pc|lr|sp|x\d{1,2}|pstate|Mem abort info|ESR|EC|SET|EA|FSC|WnR|Data abort info|ISV|CM|GCS"
    r"|user pgtable|swapper pgtable|SError)\b ?[:=,].*|\[[0-9a-f]{16}\] (?:pgd|p4d)=.*"
    r"|(?:NIP|LR|GPR\d\d|REGS|MSR|CTR|XER|CFAR|IRQMASK|LE|NIP \[).*|Instruction dump:.*"
    r"|[0-9a-f ]{20,}"
    r"|Workqueue: .*|Call Trace.*|Stack:.*|Tainted: .*|Not tainted.*|task: ?\S+ .*|task:.* state:.*"
    r"|\"echo 0 > /proc/sys/kernel/hung_task.*|Modules linked.*|[0-9a-f]{16}(?: [0-9a-f]{16})*.*"
    r"|Showing all locks held in the system:.*|\d+ locks? held by .*|no locks held by .*"
    r"|#\d+: .*|Sending NMI .*|NMI backtrace for cpu.*|\(?t=\d+ jiffies.*|rcu: .*"
    r"|last \w+ at .*|irq event stamp: .*|(?:hard|soft)irqs last .*|hardirqs last.*|softirqs last.*"
    r"|Mem-Info:.*|active_anon:.*|Node \d.*|lowmem_reserve.*|\d+ total pagecache pages.*"
    r"|\d+ pages .*|Swap cache .*|Total swap .*|Free swap .*|dump_stack\+.*|Allocated by task .*"
    r"|Freed by task .*|(?:Read|Write) of size \d+ .*|The buggy address .*|Memory state around.*"
    r"|>?[0-9a-f]{16}: .*|\^.*|page:.*|raw: .*|flags: .*|other info that might help.*"
    r"|Last potentially related work creation:|Second to last potentially related.*"
    r"|which belongs to.*"
    r"|KASAN: .*|\w+(?:\(\w+\))?:\d+ \w+(?:\(\w+\))?:\d+.*|CPU#\d+ Utilization .*|\S+ cpuset=.*"
    r"|Showing busy workqueues .*|workqueue \S+: flags=.*|pwq \d+: .*"
    r"|(?:pending|delayed|inactive): .*"
    r"|pool \d+: .*|\(?t=\d+ jiffies.*|#011\(t=.*"
    r"|page dumped because:.*|INFO: .* blocked on a .* likely owned by .*|Blocked by coredump\."
)
# of lockdep everything up to the end of the stack belongs to the report
_LAST_OF_LOCKDEP = "stack backtrace:"
_BACKTRACE = ("Call Trace", "Call trace", "Backtrace")
_NEXT_STACK = re.compile(
    r"Kernel panic .*|NMI backtrace for cpu.*|Sending NMI .*|task:.* state:.*|.* likely owned by .*"
    r"|Allocated by task .*|Freed by task .*|Last potentially .*|Second to last .*|page last .*"
    r"|page_owner .*|Last Breaking-Event-Address:.*|Showing .*|Preemption disabled at:.*"
    r"|caller is .*|CPU#\d+ Utilization .*"
)
"""A line of a report after which another stack, or the frame of another place, may follow."""
_FRAMES_FOLLOW = ("Allocated by", "Freed by", "Last ", "Second to", "page")
"""Those whose stacks have no line "Call Trace:"."""
_FIRST_HEAD = re.compile(
    r"(?:BUG: (?:unable to handle|kernel NULL|K\w+SAN)|general protection fault|kernel BUG |UBSAN: "
    r"|WARNING: |Unable to handle kernel).*"
)
"""A head that no other head of a report comes before."""
_OUTERMOST = re.compile(
    r"ret_from_\w+|entry_SYSCALL_?64\w*|system_call_fastpath|el0t_(?:64|32)_sync|el0_sync"
)
"""The function at the outer end of a stack."""
_WITHOUT_END: tuple[Kind, ...] = ("hung task", "lockup", "allocation")
"""Reports that do not end with "end trace"."""


@dataclass
class KernelReport:
    """One report of a kernel."""

    kind: Kind
    head: str
    """The line that says most of what happened."""
    time: str
    process: str = ""
    pid: int = 0
    at: Frame | None = None
    """The function that failed."""
    workqueue: str = ""
    work: str = ""
    frames: list[Frame] = field(default_factory=list)
    """From the innermost function outwards; those that the kernel marks as unsure if none else."""
    lines: list[str] = field(default_factory=list)
    mixed: bool = False
    """Whether lines of another report stand among its own: it has no frames then, and no facts but
    those of its head."""

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions: where it failed, then the stack, without suffixes of the compiler."""
        return tuple(frame.function.partition(".")[0] for frame in self.stack)

    @property
    def kernel(self) -> str:
        """The release of the kernel that failed and its version, as in uname -rv; or empty."""
        matches = filter(None, map(_KERNEL.search, self.lines))
        return next((match["kernel"] for match in matches), "")

    @property
    def stack(self) -> tuple[Frame, ...]:
        """Where it failed, then the frames."""
        return (*((self.at,) if self.at else ()), *self.frames)


@dataclass
class _Open:
    """A report whose end was not read yet."""

    report: KernelReport
    caller: str
    seconds: float | None
    numbers: list[int] = field(default_factory=list)
    room: int = _MOST_TEXT
    in_body: bool = False
    in_stack: bool = False
    foreign: int = 0
    from_cut: bool = False
    free_text: int = 0
    ended: bool = False
    unsure: list[Frame] = field(default_factory=list)
    stack_due: bool = True
    """Whether a stack may begin."""
    closed: bool = False
    """Whether the stack has ended."""
    outermost: str = ""
    """The last frame, if it is at the outer end of a stack."""
    has_first: bool = False
    """Whether a head was read that no other head comes before."""
    numbered: bool = False
    """Whether the head with the number of the oops was read."""
    cuts_another: bool = False
    """Whether it began before the end of a report that may be of another thread."""
    named: bool = False
    """Whether the line of its process was read, which comes before the stack."""
    has_blocker: bool = False
    """Of a hung task: whether the task that holds its lock was named, whose stack follows."""
    once: set[str] = field(default_factory=set)
    """Those lines of ``_ONCE`` that were read."""

    @property
    def is_whole(self) -> bool:
        """Whether its end was read, or the outer end of its stack."""
        return self.ended or self.closed or bool(self.outermost)

    def keep(self, number: int, text: str) -> None:
        """Keep a line of the report, within its limits."""
        if len(self.numbers) < _MOST_LINES and len(text) <= self.room:
            self.report.lines.append(text)
            self.numbers.append(number)
            self.room -= len(text)

    def notice(self, head: str) -> None:
        """Keep what a head says."""
        self.has_first = self.has_first or bool(_FIRST_HEAD.match(head))
        self.numbered = self.numbered or head.startswith(_NUMBERED)
        _take_head(self.report, head)

    def mix(self) -> None:
        """Forget what the lines of another report may have said."""
        report = self.report
        report.mixed, report.at, report.process, report.pid = True, None, "", 0
        report.workqueue = report.work = ""
        report.frames.clear()
        self.unsure.clear()
        _take_head(report, report.head)


class ReportReader:
    """Takes lines one by one; keeps the reports that are open."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    @property
    def idle(self) -> bool:
        """Whether no report is open: the next line belongs to none."""
        return not self._open

    def feed(self, number: int, line: LogLine) -> list[Numbered[LogLine | KernelReport]]:
        """The records that this line ends, and the line itself unless a report has it."""
        if line.tag not in ("", "kernel"):
            # a program can print any text: it must not pass for the kernel
            return [Numbered(line, (number,))]
        now = line.seconds
        ended = self._end_all([opened for opened in self._open if _late(opened, now)])
        if self._open and (taker := self._takes(number, line)):
            taker.foreign, taker.seconds = 0, now or taker.seconds
            # of an oops, the registers come once more after its end
            taker.ended = taker.ended or line.text.startswith(_ENDS)
        elif (kind := _kind(line.text) or _headless(line.text)) or line.text == _CUT:
            ended += self._begin(number, line, now, kind)
        else:
            ended.append(Numbered(line, (number,)))
            ended += self._end_all([opened for opened in self._open if _is_left(opened, line)])
        return ended

    def end(self) -> list[Numbered[LogLine | KernelReport]]:
        """The reports that the log's end cuts."""
        return self._end_all(list(self._open))

    def _end_all(self, some: Sequence[_Open]) -> list[Numbered[LogLine | KernelReport]]:
        return [self._end(opened) for opened in some]

    def _takes(self, number: int, line: LogLine) -> _Open | None:
        for opened in reversed(self._open):
            if not _foreign(opened, line) and self._adds(opened, line):
                opened.keep(number, line.text)
                return opened
        return None

    def _adds(self, opened: _Open, line: LogLine) -> bool:
        """Whether a line is one of the report; its facts are kept."""
        text = line.text
        if not text:
            return not opened.ended
        if text.startswith(_ENDS):
            again = opened.ended or (opened.cuts_another and opened.report.kind in _WITHOUT_END)
            if again and not opened.caller and text.startswith(_ENDS[0]):
                opened.mix()
            opened.closed, opened.stack_due = True, False
            return True
        if text == _CUT:
            return not opened.in_body and not opened.from_cut
        if kind := _kind(text):
            return _takes_head(opened, kind, text)
        return _take_body(opened, text) or _takes_text(opened, text)

    def _begin(
        self, number: int, line: LogLine, now: float | None, kind: Kind | None
    ) -> list[Numbered[LogLine | KernelReport]]:
        # the same thread prints another report: the one before has no more lines
        before = [other for other in self._open if other.caller == line.caller]
        cuts_another = not line.caller and not all(other.is_whole for other in before)
        ended = self._end_all(before)
        while len(self._open) >= _MOST_OPEN:
            ended.append(self._end(self._open[0]))
        report = KernelReport(kind or "warning", line.text if kind else "", line.time)
        # free text follows: the argument of WARN(), what UBSAN found
        from_cut = kind in (None, "sanitizer")
        opened = _Open(report, line.caller, now, from_cut=from_cut, cuts_another=cuts_another)
        opened.keep(number, line.text)
        if kind == "stack":
            _take_body(opened, line.text)
        elif kind:
            opened.notice(line.text)
            if cuts_another and opened.numbered:
                # the first head of this oops was that of another report
                opened.mix()
        self._open.append(opened)
        return ended

    def _end(self, opened: _Open) -> Numbered[LogLine | KernelReport]:
        self._open.remove(opened)
        report = opened.report
        while not report.lines[-1]:
            del report.lines[-1], opened.numbers[-1]
        report.head = report.head or report.lines[-1]
        report.frames = report.frames or opened.unsure
        return Numbered(report, tuple(opened.numbers))


_BROKEN: tuple[Kind, ...] = ("oops", "bug", "warning", "sanitizer")
_RANKS: tuple[Kind, ...] = (
    *("stack",),
    *("allocation", "warning", "stall", "lockup", "hung task", "lockdep"),
    *("bug", "sanitizer", "oops"),
)


def _headless(text: str) -> Kind | None:
    """The kind of a report whose body begins here, with no head before it."""
    if text in ("Call Trace:", "Call trace:"):
        return "stack"
    return "stack" if text.startswith("CPU: ") and _PROCESS.fullmatch(text) else None


def _says_more(new: Kind, old: Kind) -> bool:
    # a BUG() is followed by "invalid opcode" or "Oops", which say less
    if (
        old in ("bug", "sanitizer", "hung task", "lockup", "lockdep", "stall")
        or new == "allocation"
    ):
        return False
    return _RANKS.index(new) > _RANKS.index(old)


def _belongs(opened: _Open, kind: Kind, text: str) -> bool:
    """Whether a head may be another one of a report, and not that of another thread."""
    report = opened.report
    if report.kind == "lockdep" and kind == "lockdep":
        return not opened.in_stack
    if report.kind not in _BROKEN or kind not in _BROKEN:
        return False
    pids = _head_facts(text).pids
    is_same = report.pid in pids
    if report.pid and pids and not is_same:
        return False
    if text.startswith(_NUMBERED) and report.head:
        return not (opened.in_stack or opened.numbered or report.kind == "warning")
    return not opened.in_body and (is_same or not (opened.has_first and _FIRST_HEAD.match(text)))


def _takes_head(opened: _Open, kind: Kind, text: str) -> bool:
    """Whether a head continues the report instead of beginning another; its facts are kept."""
    report = opened.report
    if text.startswith("Kernel panic"):
        # it ends the report of any thread, and may print a stack of its own
        opened.stack_due = True
    elif opened.ended or not _belongs(opened, kind, text):
        return False
    if not report.head or _says_more(kind, report.kind):
        report.kind, report.head = kind, text
    opened.notice(text)
    return True


def _takes_text(opened: _Open, text: str) -> bool:
    """Whether free text is part of the report: all of lockdep's, and the argument of WARN()."""
    if opened.report.kind == "lockdep":
        return not opened.in_stack
    if opened.from_cut and not opened.in_body and opened.free_text < _HEAD_TEXT:
        opened.free_text += 1
        opened.report.head = opened.report.head or text
        return True
    return False


def _kind(text: str) -> Kind | None:
    if text[:2] in _FIRST_TWO or "alloc" in text or "-safe -> " in text or "held!" in text:
        return _kind_of_head(text)
    return None


@functools.lru_cache(maxsize=512)
def _kind_of_head(text: str) -> Kind | None:
    # logs repeat their lines
    return next((kind for kind, pattern in _HEAD if pattern.fullmatch(text)), None)


class _HeadFacts(NamedTuple):
    """What a head says besides its kind."""

    processes: tuple[str, ...]
    pids: tuple[int, ...]
    at: Frame | None


@functools.lru_cache(maxsize=512)
def _head_facts(text: str) -> _HeadFacts:
    groups = [
        match.groupdict()
        for word, pattern in _WITH_PROCESS
        if word in text and (match := pattern.search(text))
    ]
    processes = tuple(name for each in groups if (name := each.get("comm")))
    pids = tuple(int(number) for each in groups if (number := each.get("pid")))
    place = _IN.search(text) if "+0x" in text else None
    return _HeadFacts(
        processes, pids, Frame(place["function"], place["module"] or "") if place else None
    )


def _take_head(report: KernelReport, text: str) -> None:
    facts = _head_facts(text)
    for name in facts.processes:
        report.process = report.process or name
    for number in facts.pids:
        report.pid = report.pid or number
    report.at = report.at or facts.at


class _Body(NamedTuple):
    """What a line of a body says; its fields are empty if it says nothing that is kept."""

    frame: Frame | None = None
    unsure: bool = False
    """Whether the kernel marks the frame so."""
    is_stack: bool = False
    """Whether it is a mark in or around a stack."""
    next_stack: bool = False
    """Whether another stack may follow."""
    process: str = ""
    pid: int = 0
    workqueue: str = ""
    work: str = ""
    in_flight: str = ""
    at: Frame | None = None


@functools.lru_cache(maxsize=2048)
def _body(text: str) -> _Body | None:
    """What a line of a body says; None if it is none."""
    # logs repeat their lines
    if match := _FRAME.fullmatch(text) or _ARM.fullmatch(text):
        frame = Frame(match["function"], match["module"] or "")
        unsure = bool(match.groupdict().get("unsure"))
        return _Body(frame, unsure=unsure, next_stack=text.startswith("caller is "))
    if _STACK.fullmatch(text):
        return _Body(is_stack=True)
    if facts := _facts(text):
        return facts
    if _NEXT_STACK.fullmatch(text):
        return _Body(next_stack=True)
    return _Body() if _TASK.fullmatch(text) or _BODY.fullmatch(text) else None


def _facts(text: str) -> _Body | None:
    """The process, the work or the place of a line; None if it has no such."""
    if match := _PROCESS.fullmatch(text):
        return _Body(process=match["comm"], pid=int(match["pid"]))
    if match := _WORKQUEUE.fullmatch(text):
        return _Body(workqueue=match["queue"] or match["former"], work=match["work"] or "")
    if match := _IN_FLIGHT.fullmatch(text):
        return _Body(in_flight=match["work"])
    if match := _AT.fullmatch(text):
        return _Body(at=Frame(match["function"], match["module"] or ""))
    return None


def _take_body(opened: _Open, text: str) -> bool:
    """Keep what a line of the body says; False if it is none."""
    if not (body := _body(text)):
        return False
    if opened.ended and not opened.stack_due and (body.frame or body.is_stack or body.process):
        # of another report, whose head is not in the log or was that of this one
        return False
    if not opened.caller and not _has_several(opened.report) and _is_of_another(opened, body, text):
        opened.mix()
    _follow(opened, body, text)
    if body.frame:
        _take_frame(opened, body.frame, body.unsure)
    elif not opened.report.mixed:
        _take_facts(opened.report, body)
    return True


def _follow(opened: _Open, body: _Body, text: str) -> None:
    """Keep what part of a report the line is."""
    if body.is_stack:
        _follow_mark(opened, text)
        return
    opened.in_body = True
    opened.named = bool(body.process) or (opened.named and not body.next_stack)
    if body.next_stack:
        opened.stack_due = opened.stack_due or not text.startswith(_FRAMES_FOLLOW)
        opened.closed, opened.outermost = False, ""
        opened.has_blocker = opened.has_blocker or " likely owned by " in text
    if not opened.in_stack and text.startswith(_ONCE):
        opened.once.add(text[:5])
    opened.in_stack = opened.in_stack or bool(body.frame)


def _follow_mark(opened: _Open, text: str) -> None:
    """Keep what a mark in or around a stack says."""
    if text.startswith(_BACKTRACE):
        opened.in_stack, opened.stack_due, opened.closed, opened.outermost = True, False, False, ""
    elif text == _LAST_OF_LOCKDEP:
        opened.in_stack = True
    elif text == "</TASK>":
        opened.closed = True
    elif opened.report.kind == "sanitizer" and opened.in_stack and text.startswith("===="):
        # KASAN ends with a rule
        opened.ended, opened.closed, opened.stack_due = True, True, False


def _has_several(report: KernelReport) -> bool:
    """Whether a report of one thread may have stacks of several."""
    if report.kind == "sanitizer":
        return not report.head.startswith(("BUG: KASAN", "UBSAN"))
    return report.kind in ("stall", "lockdep")


def _is_of_another(opened: _Open, body: _Body, text: str) -> bool:
    """Whether a line of a body shows that lines of two reports are mixed."""
    if body.is_stack:
        return _is_second_stack(opened, text)
    if body.frame:
        return _is_frame_of_another(opened, body.frame.function, body.unsure)
    if body.next_stack:
        return _is_of_other_kind(opened, text)
    return _is_repeated(opened, body, text)


def _is_second_stack(opened: _Open, text: str) -> bool:
    if not text.startswith(_BACKTRACE):
        return text in ("<TASK>", "</TASK>") and opened.closed
    is_named = opened.named or opened.report.kind in ("hung task", "stack")
    return not opened.stack_due or (opened.cuts_another and not is_named)


def _is_frame_of_another(opened: _Open, function: str, unsure: bool) -> bool:
    if opened.stack_due:
        return opened.cuts_another and not opened.in_stack
    follows = unsure or function in ("ret_from_fork_asm", f"{opened.outermost}_asm")
    return opened.closed or bool(opened.outermost and not follows)


def _is_of_other_kind(opened: _Open, text: str) -> bool:
    report = opened.report
    if task := _STATE.fullmatch(text):
        if report.kind != "hung task":
            return report.kind in (*_BROKEN, "allocation")
        return opened.in_stack if int(task["pid"]) == report.pid else not opened.has_blocker
    return text.startswith(("Allocated by", "Freed by")) and report.kind != "sanitizer"


def _is_repeated(opened: _Open, body: _Body, text: str) -> bool:
    """Whether it is a line that comes once, and before the stack."""
    report = opened.report
    if body.at:
        return not opened.in_stack and report.at not in (None, body.at)
    if body.pid:
        is_other = report.kind in _BROKEN and report.pid not in (0, body.pid)
        return opened.named or not opened.stack_due or (is_other and not opened.in_stack)
    if opened.ended or not text.startswith(_ONCE):
        return False
    if opened.in_stack:
        return text.startswith("Hardware name:") and not opened.stack_due
    return text[:5] in opened.once


def _take_frame(opened: _Open, frame: Frame, unsure: bool) -> None:
    if not unsure:
        opened.outermost = frame.function if _OUTERMOST.fullmatch(frame.function) else ""
    frames = opened.unsure if unsure else opened.report.frames
    if len(frames) < _MOST_FRAMES and not opened.report.mixed:
        frames.append(frame)


def _take_facts(report: KernelReport, body: _Body) -> None:
    if not report.pid or report.pid == body.pid:
        report.process = report.process or body.process
        report.pid = report.pid or body.pid
    if body.workqueue:
        report.workqueue, report.work = body.workqueue, body.work
    report.work = report.work or body.in_flight
    report.at = report.at or body.at


def _foreign(opened: _Open, line: LogLine) -> bool:
    """Whether another thread printed the line; without callers nobody knows.

    A kernel names the caller of each line, or of none.
    """
    return opened.caller != line.caller


def _late(opened: _Open, now: float | None) -> bool:
    return now is not None and opened.seconds is not None and now - opened.seconds > _GAP


def _is_left(opened: _Open, line: LogLine) -> bool:
    """Count a line that is not of the report; return whether so many of them end it."""
    opened.foreign += not _foreign(opened, line)
    return opened.foreign > (0 if opened.ended else _FOREIGN)
