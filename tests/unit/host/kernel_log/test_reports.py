# SPDX-License-Identifier: Apache-2.0
"""The kernel's reports of errors, and dumps of completions, in logs.

tests/unit/kernel_records has records of public reports, with their meaning written by hand.  The
others here are made: each has the frames of one known fault.
"""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import pytest
from unit.doctor.bundles_made import anonymous
from unit.host.kernel_log.recorded import ENTRIES, FOLDER

from nfsrdma_tools.doctor.checks.kernel import judge_log
from nfsrdma_tools.host.kernel_faults import FAULTS
from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump
from nfsrdma_tools.host.kernel_log.explain import explain, recognized_lines
from nfsrdma_tools.host.kernel_log.known_reports import KNOWN_REPORTS, OTHER_REPORTS, part
from nfsrdma_tools.host.kernel_log.lines import LogLine
from nfsrdma_tools.host.kernel_log.meanings import meaning_of
from nfsrdma_tools.host.kernel_log.records import Record, records
from nfsrdma_tools.host.kernel_log.reports import KernelReport

# a name that does not tell whether a fault was fixed
_UNCERTAIN = "5.14.0-427.13.1.el9_4.x86_64"


def report(head: str, *frames: str, process: str = "kworker/3:1", work: str = "") -> str:
    """The log of one report, with times."""
    lines = [
        head,
        f"CPU: 3 PID: 4711 Comm: {process} Not tainted {_UNCERTAIN} #1",
        *([f"RIP: 0010:{frames[0]}+0x71/0x90"] if head == _NULL else []),
        *([f"Workqueue: {work}"] if work else []),
        "Call Trace:",
        " <TASK>",
        *(f" {frame}+0x12/0x340" + (" [rpcrdma]" if "rdma" in frame else "") for frame in frames),
        " </TASK>",
        "---[ end trace 0000000000000000 ]---",
    ]
    return "".join(f"[   77.{number:06}] {line}\n" for number, line in enumerate(lines))


def hung(process: str, *frames: str) -> str:
    return report(f"INFO: task {process}:4711 blocked for more than 122 seconds.", *frames)


_NULL = "BUG: kernel NULL pointer dereference, address: 0000000000000018"
_REFERENCE = "refcount_t: underflow; use-after-free."
OF_FAULTS = {
    "a9c10b5b3b67": report(
        _NULL, "rpcrdma_ep_destroy", "rpcrdma_ep_put", "rpcrdma_ep_create", "rpcrdma_xprt_connect"
    ),
    "773f91b2cf3f": report(_NULL, "svc_rdma_sendto", "svc_send", "nfsd"),
    "11270e7ca268": report(
        _NULL, "_raw_spin_lock", "rpcrdma_bc_receive_call", "rpcrdma_wc_receive"
    ),
    "4836da219781": "[   77.0] ------------[ cut here ]------------\n[   77.0] "
    + _REFERENCE
    + "\n"
    + report(
        "WARNING: CPU: 60 PID: 4711 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110",
        "rpcrdma_ep_put",
        "rpcrdma_xprt_disconnect",
        "xprt_rdma_connect_worker",
    ),
    "2b23b6097303": report(_NULL, "rxe_comp_queue_pkt", "rxe_rcv_pkt", "rxe_rcv"),
    "750037aa0a9f": report(
        "WARNING: CPU: 1 PID: 4711 at lib/xarray.c:1 xa_erase+0x1/0x10",
        "rpcrdma_rn_unregister",
        "svc_rdma_free",
        "svc_delete_xprt",
        process="rpc.nfsd",
    ),
    "8ac6fcae5dc0": hung("rmmod", "schedule", "wait_for_completion", "rpcrdma_remove_one"),
    "6883b680e703": report(
        "BUG: KASAN: slab-use-after-free in __pwq_activate_work+0x1ff/0x250",
        "dump_stack",
        "kasan_report",
        "__pwq_activate_work",
        work="iw_cm_wq cm_work_handler [iw_cm]",
    ),
    "7b6275c80a0c": hung(
        "kworker/u16:5", "schedule", "wait_for_completion", "rpcrdma_xprt_disconnect"
    ),
    "e5248a742603": hung("nfsd", "schedule", "svc_rdma_sq_wait", "svc_rdma_sendto", "nfsd"),
    "af9b65b29af3": report(
        "WARNING: CPU: 6 PID: 4711 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110",
        "rpcrdma_ep_put",
        "rpcrdma_cm_event_handler",
        "cma_netdev_callback",
    ),
    "5b06f706374c": report(_NULL, "complete", "rpcrdma_remove_one", "remove_client_context"),
}


def found(log: str) -> list[Record]:
    return [record for record, _ in records(log.split("\n"))]


def reports(log: str) -> list[KernelReport]:
    return [record for record in found(log) if isinstance(record, KernelReport)]


# ---- the faults of the table


@pytest.mark.parametrize("commit", OF_FAULTS)
def test_the_log_of_a_fault_is_taken_for_that_fault_alone(commit: str) -> None:
    (entry,) = explain(OF_FAULTS[commit].split("\n"))
    assert (entry.fault, entry.severity, entry.recovers) == (commit, "error", "no")


@pytest.mark.parametrize(
    ("commit", "release", "name", "why"),
    [
        ("7b6275c80a0c", "6.18.25 #1", "thread of the NFS client waits",
         "which this kernel, 6.18.25, has the fix of"),
        ("7b6275c80a0c", "6.12.90+deb13-amd64 #1 SMP Debian 6.12.90-1",
         "thread of the NFS client waits", "which this kernel, 6.12.90+deb13-amd64, has the fix"),
        ("e5248a742603", "7.2.9 #1", "nfsd waits", "which this kernel, 7.2.9, has the fix of"),
        ("e5248a742603", "6.6.50 #1", "nfsd waits",
         "which came with Linux 7.1, and this kernel is 6.6.50"),
        ("773f91b2cf3f", "6.18.25 #1", "NFS server crashed", "which this kernel, 6.18.25"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("taint", ["Not tainted", "Tainted: G        W  OE     "])
def test_a_fault_that_the_kernel_does_not_have_is_not_the_cause(
    commit: str, release: str, name: str, why: str, taint: str
) -> None:
    log = OF_FAULTS[commit].replace(f"Not tainted {_UNCERTAIN} #1", f"{taint} {release}")
    (entry,) = explain(log.split("\n"))
    assert (entry.name, entry.fault) == (name, "")
    assert f"The frames are those of a known fault (commit {commit}), {why}" in entry.meaning
    assert entry.meaning.endswith(": another cause.")


@pytest.mark.parametrize(
    ("release", "doubt"),
    [
        ("7.1.3", ""),
        (_UNCERTAIN, f"this kernel, {_UNCERTAIN}, may have the fix: the number stays"),
        ("7.1.4-custom", "this kernel, 7.1.4-custom, may have the fix: nothing is known"),
        ("of nobody", "the record does not name the kernel's release"),
    ],
)
def test_a_fault_that_the_kernel_may_have_stays_with_a_doubt(release: str, doubt: str) -> None:
    (entry,) = explain(OF_FAULTS["e5248a742603"].replace(_UNCERTAIN, release).split("\n"))
    assert (entry.fault, entry.severity) == ("e5248a742603", "error")
    assert entry.doubt.startswith(doubt)
    assert bool(entry.doubt) == bool(doubt)


def test_known_reports_have_a_fault_of_the_table_and_a_log() -> None:
    named = {entry.fault for entry in KNOWN_REPORTS if entry.fault}
    assert named == set(OF_FAULTS)
    assert named <= {fault.commit for fault in FAULTS}


def test_doctor_takes_a_fault_that_a_log_shows_for_an_error() -> None:
    log = OF_FAULTS["e5248a742603"].split("\n")
    (finding,) = judge_log(explain(log))
    assert (finding.status, "e5248a742603" in finding.found) == ("error", True)
    (finding,) = judge_log(explain(dump(completion(0x13, 8, 5, responder=False)).split("\n")))
    assert finding.status == "warning"


# ---- records of public reports

_KINDS = {
    "oops": {"oops", "stack"}, "bug": {"bug", "warning"}, "warning": {"warning"},
    "hung task": {"hung task"},
    "soft lockup": {"lockup", "stack"}, "stall": {"stall", "lockup"}, "lockdep": {"lockdep"},
    "kasan": {"sanitizer"}, "allocation": {"allocation"},
}  # fmt: skip
REPORTS = [entry for entry in ENTRIES if entry["kind"] in _KINDS]


def named(entry: dict[str, Any]) -> str:
    return f"{entry['file']}:{entry['lines'][0]}"


def of(entry: dict[str, Any]) -> tuple[Record, set[int]]:
    """The record that has most lines of an entry, and its lines that are not blank, from 1."""
    lines = (FOLDER / entry["file"]).read_text().split("\n")
    wanted = set(range(entry["lines"][0], entry["lines"][1] + 1)) - set(entry["foreign"])
    all_ = [
        (record, {number + 1 for number in numbers if lines[number].strip()})
        for record, numbers in records(lines)
    ]
    return max(all_, key=lambda pair: len(pair[1] & wanted))


@pytest.mark.parametrize("entry", REPORTS, ids=named)
def test_a_report_is_one_record(entry: dict[str, Any]) -> None:
    record, lines = of(entry)
    assert isinstance(record, KernelReport)
    assert record.kind in _KINDS[entry["kind"]]
    begin, end = entry["lines"]
    assert lines <= set(range(begin, end + 1)) - set(entry["foreign"])
    # lines of rules and headings may be left out, the stack may not
    assert len(lines) >= (end - begin + 1 - len(entry["foreign"])) * 0.6


@pytest.mark.parametrize("entry", REPORTS, ids=named)
def test_a_report_names_its_process(entry: dict[str, Any]) -> None:
    record, _ = of(entry)
    assert isinstance(record, KernelReport)
    name, _, pid = entry["process"].rpartition(" ")
    assert (record.process, record.pid) == (name, int(pid or 0))


_CODE = {
    "client": {"client", "rdma"}, "server": {"server"}, "nfs": {"nfs", "client"},
    "ib_core": {"rdma"}, "rdma_cm": {"rdma"}, "iw_cm": {"rdma"}, "ib_cm": {"rdma"},
}  # fmt: skip


@pytest.mark.parametrize("entry", REPORTS, ids=named)
def test_a_report_is_in_its_code(entry: dict[str, Any]) -> None:
    record, _ = of(entry)
    assert isinstance(record, KernelReport)
    if not entry["concerns_nfs_rdma"]:
        assert part(record) == ""
    elif entry["code"] in _CODE:
        assert part(record) in _CODE[entry["code"]]


_SAME_FRAMES = {
    # a driver that loses a flushed Receive leaves the frames of this fault: its entry has a doubt
    "hung-task-xprtrdma-autoclose-6.2.log": {"7b6275c80a0c"},
    # the record's source is another patch for this reference, from before the commit
    "warning-refcount-xprtrdma-ep-5.14.log": {"4836da219781"},
}


@pytest.mark.parametrize("entry", REPORTS, ids=named)
def test_a_report_is_taken_for_no_other_fault(entry: dict[str, Any]) -> None:
    meaning = meaning_of(of(entry)[0])
    assert meaning
    assert meaning.fault in {entry["fault"], "", *_SAME_FRAMES.get(entry["file"], ())}


@pytest.mark.parametrize(
    "place",
    [
        "RIP: 0010:arc_read+0x7a1/0x8d0 [zfs]",
        "IP: [<ffffffffa04b3e90>] arc_read+0x7a1/0x8d0 [zfs]",
        "RIP: 0010:[<ffffffffa04b3e90>]  [<ffffffffa04b3e90>] arc_read+0x7a1/0x8d0 [zfs]",
        "RIP  [<ffffffffa04b3e90>] arc_read+0x7a1/0x8d0 [zfs]",
        "pc : arc_read+0x7a1/0x8d0 [zfs]",
    ],
)
def test_a_crash_of_another_module_is_not_that_of_nfsd(place: str) -> None:
    log = report("Oops: 0000 [#1] SMP", "nfsd4_read", "svc_process", process="nfsd")
    log = log.replace("Call Trace:", f"{place}\n[   77.000001] Call Trace:")
    (entry,) = explain(log.split("\n"))
    assert entry.name == "another module crashed in a thread of nfsd"
    assert (entry.code, entry.recovers) == ("arc_read [zfs]", "no")


def test_crashes_at_different_places_are_different_entries() -> None:
    places = ("frwr_unmap_async", "rpcrdma_mr_init", "frwr_unmap_async")
    logs = [report(_NULL, f"{place}_of_rdma", "process_one_work") for place in places]
    rows = explain("".join(logs).split("\n"))
    codes = {(row.name, row.code, row.count) for row in rows}
    name, owner = "NFS client crashed", "client over RDMA"
    assert codes == {
        (name, f"{owner}, frwr_unmap_async_of_rdma", 2),
        (name, f"{owner}, rpcrdma_mr_init_of_rdma", 1),
    }
    # a state is repeated, each time at the place of that moment
    logs = [hung("nfsd", "schedule", f"svc_rdma_{place}", "nfsd") for place in "abc"]
    assert [row.count for row in explain("".join(logs).split("\n"))] == [3]


def test_each_name_of_a_report_is_in_the_tables_of_the_reference() -> None:
    names = {entry.name for entry in (*KNOWN_REPORTS, *OTHER_REPORTS)}
    for name, thread in (("arc_read", "nfsd"), ("ksmbd_recv", "mount.nfs"), ("nv_open", "Xorg")):
        log = report(_NULL, name, "do_work", process=thread)
        for text in (log, log.replace(f"{name}+0x71/0x90", f"{name}+0x71/0x90 [{name}]")):
            assert {row.name for row in explain(text.split("\n"))} <= names
    for entry in REPORTS:
        meaning = meaning_of(of(entry)[0])
        assert meaning
        assert meaning.name in names


# ---- completions


def completion(syndrome: int, opcode: int, pair: int, responder: bool) -> bytes:
    """An error completion as the device writes it (struct mlx5_err_cqe)."""
    owner = (0xE if responder else 0xD) << 4 | 1
    return struct.pack(">54xBBIHBB", 0x88, syndrome, opcode << 24 | pair, 17, 0xAA, owner)


def dump(data: bytes, head: str = "infiniband mlx5_3: dump_cqe:272:(pid 9): dump error cqe") -> str:
    rows = [f"{at:08x}: {data[at : at + 16].hex(' ')}" for at in range(0, 64, 16)]
    return "".join(f"[   9.{number:06}] {line}\n" for number, line in enumerate([head, *rows]))


@pytest.mark.parametrize(
    ("syndrome", "opcode", "responder", "words"),
    [
        (0x13, 0x08, False, "An RDMA Write on queue pair 0x113 ended with remote access error"),
        (0x15, 0x0A, False, "A Send on queue pair 0x113 ended with retries exceeded"),
        (0x16, 0x10, False, "An RDMA Read on queue pair 0x113 ended with receiver not ready"),
        (0x11, 0x00, True, "A receive on queue pair 0x113 ended with local access error"),
        (0x06, 0x25, False, "A memory registration on queue pair 0x113 ended with memory window"),
    ],
)
def test_completion_dumps_are_decoded(
    syndrome: int, opcode: int, responder: bool, words: str
) -> None:
    (entry,) = explain(dump(completion(syndrome, opcode, 0x113, responder)).split("\n"))
    assert entry.meaning.startswith(words)
    assert (entry.subject, entry.severity) == ("mlx5_3", "warning")


def test_a_dump_with_two_heads_is_one_record() -> None:
    head = "infiniband mlx5_3: mlx5_handle_error_cqe:334:(pid 9): WC error: 10, Message: remote x\n"
    log = f"[   9.0] {head}{dump(completion(0x13, 8, 5, responder=False))}"
    assert [len(record.lines) for record in found(log) if isinstance(record, CompletionDump)] == [6]


def test_a_dump_that_is_cut_is_not_decoded() -> None:
    log = dump(completion(0x13, 8, 5, responder=False)).split("\n")[:3]
    (entry,) = explain(log)
    assert (entry.name, entry.explained) == ("error completion, not decoded", False)
    (head,) = explain(log[:1])
    assert head.name == "mlx5 work failed"


# ---- logs of more than one writer


@pytest.mark.parametrize("seed", range(60))
def test_lines_of_others_change_no_report(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    whole = chance.choice(list(OF_FAULTS.values())).splitlines()
    mixed: list[str] = []
    in_stack = False
    for line in whole:
        in_stack = in_stack or "Call Trace" in line
        # without a caller, text before the stack may be the argument of WARN()
        while in_stack and chance.random() < 0.3:
            mixed.append(f"{line.partition(']')[0]}] usb 1-2: new device number {len(mixed)}")
        mixed.append(line)
    (alone,) = reports("\n".join(whole))
    (beside,) = reports("\n".join(mixed))
    assert beside == alone


def test_a_program_forges_no_report() -> None:
    log = [f"Nov 29 10:00:00 host a[7]: {line.partition('] ')[2]}"
           for line in OF_FAULTS["e5248a742603"].splitlines()]  # fmt: skip
    assert explain(log) == []


def test_a_message_that_follows_a_cut_report_is_no_part_of_it() -> None:
    cut = OF_FAULTS["773f91b2cf3f"].splitlines()[:3]
    names = {row.name for row in explain([*cut, "[   77.4] RPC: transport (256) not supported"])}
    assert names == {"deferred request crashed the server", "transport not there"}


def test_an_unknown_report_is_shown_whole() -> None:
    log = report(_NULL, "amdgpu_job_run", "drm_sched_main")
    (entry,) = explain(log.split("\n"))
    assert (entry.name, entry.explained) == ("report of other code", False)
    assert len(entry.lines) == len(log.splitlines())


@pytest.mark.parametrize("seed", range(200))
def test_no_log_is_too_strange(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    pool = [line for log in OF_FAULTS.values() for line in log.splitlines()]
    pool += dump(completion(0x13, 8, 5, responder=False)).splitlines()
    lines: list[str] = []
    for _ in range(300):
        line = chance.choice(pool)
        at = chance.randrange(len(line) + 1)
        kind = chance.random()
        if kind < 0.2:
            line = line[:at]
        elif kind < 0.3:
            line = line[:at] + chance.choice(["\x1b[2J", "\0", "\u202e", "9" * 3000]) + line[at:]
        lines.append(line)
    for entry in explain(lines):
        assert all(text.isprintable() for text in (entry.example, entry.process, *entry.lines))
        assert len(entry.lines) <= 400


def test_no_line_of_a_report_takes_long() -> None:
    parts = (
        *(
            "a",
            "a ",
            "a_",
            "ab(O) ",
            "(",
            "[<",
            "[ffffffff81] ",
            "0x",
            "+0x1",
            "? ",
            " (P)",
            "<A> ",
        ),
        *(
            "A",
            "A: ",
            "00 ",
            "ffffffff81000000 ",
            "task:",
            "INFO: task ",
            "WARNING: ",
            "at ",
            "in ",
        ),
        *(
            "CPU: 1 ",
            "PID: 1 ",
            "Comm: ",
            "Workqueue: ",
            "from ",
            "#1: ",
            "x:1 ",
            "BUG: ",
            "\t",
            ".",
        ),
    )
    start = time.process_time()
    for part_ in parts:
        for ends in ("", "!", "\0", "+0x1/0x2 [", " (file.c:1"):
            line = (part_ * 2000)[:2000] + ends
            explain(["------------[ cut here ]------------", line, "CPU: 1 PID: 2 Comm: a", line])
    assert time.process_time() - start < 30


# ---- bundles


@pytest.mark.parametrize("entry", REPORTS, ids=named)
def test_a_bundle_keeps_the_whole_report(entry: dict[str, Any]) -> None:
    log = (FOLDER / entry["file"]).read_text()
    kept = recognized_lines(log.split("\n"))
    assert reports("\n".join(kept)) == reports(log)


@pytest.mark.parametrize("commit", OF_FAULTS)
def test_a_fault_is_known_in_an_anonymized_bundle(commit: str) -> None:
    (entry,) = explain(anonymous(OF_FAULTS[commit]).split("\n"))
    assert (entry.fault, entry.severity) == (commit, "error")


def test_a_completion_is_known_in_an_anonymized_bundle() -> None:
    log = dump(completion(0x13, 8, 0x113, responder=False))
    (entry,), (before,) = explain(anonymous(log).split("\n")), explain(log.split("\n"))
    assert (entry.name, entry.meaning) == (before.name, before.meaning)


def test_an_anonymized_report_names_nobody() -> None:
    log = (
        hung("alice_job", "schedule", "rpc_wait_bit_killable", "nfs4_proc_getattr")
        .replace("Call Trace:", "Hardware name: Acme Secret/X1, BIOS s3cret\n[   77.9] Call Trace:")
        .replace("nfs4_proc_getattr+", "acme_read+0x1/0x2 [acme_fs]\n[   77.9] nfs4_proc_getattr+")
    )
    (entry,) = explain(log.split("\n"))
    kept = anonymous(log)
    assert [row.name for row in explain(kept.split("\n"))] == [entry.name]
    assert not any(word in kept.lower() for word in ("alice", "acme", "secret", "s3cret"))


def test_lines_beside_reports_stay_lines() -> None:
    log = OF_FAULTS["4836da219781"] + "[   99.0] nfs: server a not responding, still trying\n"
    last = [line for line in found(log) if isinstance(line, LogLine) and line.text]
    assert [line.text for line in last] == ["nfs: server a not responding, still trying"]
