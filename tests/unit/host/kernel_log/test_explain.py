# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import re
import time
from dataclasses import fields
from pathlib import Path

import pytest
from unit.doctor.bundles_made import anonymous

from nfsrdma_tools.cli import explain as command
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor.anonymize import _Anonymizer
from nfsrdma_tools.doctor.checks import kernel
from nfsrdma_tools.doctor.finding import carry_out
from nfsrdma_tools.errors import ProgramMissingError, UsageError, UserError
from nfsrdma_tools.host import machine
from nfsrdma_tools.host.kernel_log import explain as log
from nfsrdma_tools.host.kernel_log import sources
from nfsrdma_tools.host.kernel_log.explain import Explanation, explain
from nfsrdma_tools.host.kernel_log.lines import lines_of
from nfsrdma_tools.host.kernel_log.messages import MESSAGES, KnownMessage
from nfsrdma_tools.host.machine import Machine, Recording

ROOT = Path(__file__).parents[4]

TABLE = Path(__file__).parents[2] / "data/log_messages.tsv"
ROWS = [row.split("\t") for row in TABLE.read_text().splitlines() if not row.startswith("#")]
KERNEL = [(name, subject, text) for name, subject, program, text in ROWS if not program]
PROGRAM = [(name, subject, program, text) for name, subject, program, text in ROWS if program]

FORMS = {
    "dmesg": ("[  312.000417] {}", "312.000417 s"),
    "dmesg with callers": ("[  312.000417][  T155] {}", "312.000417 s"),
    "dmesg --decode": ("kern  :warn  : [  312.000417] {}", "312.000417 s"),
    "dmesg -T": ("[Tue Mar  3 07:05:09 2026] {}", "Tue Mar  3 07:05:09 2026"),
    "dmesg iso": ("2026-03-03T07:05:09,000417+01:00 {}", "2026-03-03T07:05:09,000417+01:00"),
    "journalctl": ("Mar 03 07:05:09 client4 kernel: {}", "Mar 03 07:05:09"),
    "journalctl iso": ("2026-03-03T07:05:09+01:00 client4 kernel: {}", "2026-03-03T07:05:09+01:00"),
    "journalctl monotonic": ("[  312.000417] client4 kernel: {}", "312.000417 s"),
    "rsyslog": ("Mar  3 07:05:09 client4 kernel: [  312.000417] {}", "Mar  3 07:05:09"),
    "docker --timestamps": (
        "2026-03-03T07:05:09.000417123Z [  312.000417] {}",
        "2026-03-03T07:05:09.000417123Z",
    ),
    "docker --timestamps with callers": (
        "2026-03-03T07:05:09.000417123Z [  312.000417][  T155] {}",
        "2026-03-03T07:05:09.000417123Z",
    ),
    "serial console": ("<4>[  312.000417] {}", "312.000417 s"),
    "bare": ("{}", ""),
}


QUIET = [
    "bnxt_en 0000:18:00.0 eth4: NIC Link is Up, 100000 Mbps full duplex, Flow control: none",
    "ice 0000:3b:00.0 eth2: NIC Link is up 100 Gbps Full Duplex, Requested FEC: RS-FEC",
]
"""What is not shown by itself."""


def one(line: str) -> Explanation:
    (only,) = explain([line])
    return only


@pytest.mark.parametrize("form", FORMS)
def test_each_message_is_recognized_in_each_form(form: str) -> None:
    pattern, when = FORMS[form]
    for name, subject, text in KERNEL:
        rows = explain([pattern.format(text) + "\n"])
        seen = [(row.name, row.subject, row.first, row.last, row.example) for row in rows]
        assert seen == [(name, subject, when, when, text)]


# abbreviated names of LC_TIME in glibc's locales: Tuesday and March, Friday and August
NAMES = {
    "C": ("Tue", "Mar", "Fri", "Aug"),
    "de_DE": ("Di", "Mär", "Fr", "Aug"),
    "fr_FR": ("mar.", "mars", "ven.", "août"),
    "it_IT": ("mar", "mar", "ven", "ago"),
    "ru_RU": ("Вт", "мар", "Пт", "авг"),
    "ja_JP": ("火", " 3月", "金", " 8月"),
}


def forms(day: str, month: str) -> dict[str, str]:
    """A line of each program and option, by dmesg(1) and journalctl(1), with names of a locale."""
    short = f"{month} 07 07:05:09"
    return {
        "dmesg -T": f"[{day} {month}  7 07:05:09 2026] {{}}",
        "dmesg -T -d": f"[{day} {month}  7 07:05:09 2026 <    0.000417>] {{}}",
        "dmesg -x -T": f"kern  :warn  : [{day} {month}  7 07:05:09 2026] {{}}",
        "dmesg -H, first": f"[{month} 7 07:05] {{}}",
        "dmesg -H": "[  +0.000417] {}",
        "dmesg -H -L": "\x1b[32m[  +0.000417] \x1b[0m{}",
        "dmesg -d": "[  312.000417 <    0.000417>] {}",
        "short": f"{short} client4 kernel: {{}}",
        "short-precise": f"{short}.000417 client4 kernel: {{}}",
        "short, --no-hostname": f"{short} kernel: {{}}",
        "short-full": f"{day} 2026-03-07 07:05:09 CET client4 kernel: {{}}",
        "with-unit": f"{day} 2026-03-07 07:05:09 UTC client4 kernel: {{}}",
        "short-iso-precise": "2026-03-07T07:05:09.000417+01:00 client4 kernel: {}",
        "short-unix": "1772863509.000417 client4 kernel: {}",
        "short-monotonic": "[  312.000417] client4 kernel: {}",
        "cat": "{}",
        "export": "MESSAGE={}",
        "verbose": "    MESSAGE={}",
    }


@pytest.mark.parametrize("language", NAMES)
def test_each_message_is_recognized_in_each_language(language: str) -> None:
    one_day, one_month, other_day, other_month = NAMES[language]
    for day, month in ((one_day, one_month), (other_day, other_month)):
        for form, pattern in forms(day, month).items():
            for name, subject, text in KERNEL:
                log_read = log.read_log([pattern.format(text)])
                seen = [(row.name, row.subject, row.example) for row in log_read.entries]
                assert seen == [(name, subject, text)], (form, text)
                assert not log_read.is_unreadable


def test_each_message_is_recognized_as_json() -> None:
    for name, subject, text in KERNEL:
        entry = {
            "MESSAGE": text,
            "_TRANSPORT": "kernel",
            "__REALTIME_TIMESTAMP": "1772863509000417",
        }
        whole = json.dumps(entry)
        pretty = json.dumps({"MESSAGE": text, "x": 1}, indent="\t").replace('":', '" :')
        ring = json.dumps({"dmesg": [{"pri": 4, "msg": text}]}, indent=3)
        for lines in ([whole], [f"data: {whole}"], pretty.splitlines(), ring.splitlines()):
            rows = explain(lines)
            assert [(row.name, row.subject, row.example) for row in rows] == [(name, subject, text)]
        assert one(whole).first == "1772863509.000417"
        assert explain([json.dumps({**entry, "_TRANSPORT": "syslog",
                                    "SYSLOG_IDENTIFIER": "kernel"})]) == []  # fmt: skip


def test_a_log_of_which_no_line_can_be_read_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["07|05|09 client4 nfs: server store7 not responding, timed out"] * 3
    assert log.read_log(lines).is_unreadable
    assert not log.read_log([*lines, "[    1.000000] Linux version 6.12"]).is_unreadable
    assert not log.read_log(["", "\n"]).is_unreadable
    monkeypatch.setattr(kernel, "kernel_ring", lambda _: lines)
    (finding,) = kernel.kernel_log(Machine())
    assert finding.status == "unknown"
    (tmp_path / "log").write_text("\n".join(lines))
    with pytest.raises(UserError, match="none of the log's 3 lines has a time"):
        command.explain([str(tmp_path / "log")])


@pytest.mark.parametrize(("name", "subject", "program", "text"), PROGRAM)
def test_a_program_s_message_is_recognized(
    name: str, subject: str, program: str, text: str
) -> None:
    for line in (text, f"Mar 03 07:05:09 client4 {program}[4711]: {text}"):
        explanation = one(line)
        assert (explanation.name, explanation.subject) == (name, subject)
        assert explanation.example == text


def test_each_pattern_has_a_sample() -> None:
    texts = [text for _, _, text in KERNEL] + [text for *_, text in PROGRAM] + QUIET
    for message in MESSAGES:
        assert any(re.fullmatch(message.pattern, text) for text in texts), message.name


@pytest.mark.parametrize("text", QUIET)
def test_an_end_without_a_begin_is_not_shown(text: str) -> None:
    assert explain([text]) == []


_MLX5 = "[  1{at}.0] mlx5_core 0000:3b:00.0: {text}"
_BEGINS = ("poll_health:825:(pid 0): Fatal error 1 detected",
           "device's health compromised - reached miss count")  # fmt: skip
_RECOVERY = "mlx5_health_try_recover:335:(pid 55): {}"


def _reset(begin: str, *texts: str) -> list[str]:
    handled = (begin, "handling bad device here", *texts)
    texts = (handled[0], *(_RECOVERY.format(text) for text in handled[1:]))
    return [_MLX5.format(at=at, text=text) for at, text in enumerate(texts)]


@pytest.mark.parametrize("begin", _BEGINS)
def test_a_reset_of_mlx5_that_succeeded_is_one_event(begin: str) -> None:
    (entry,) = explain(_reset(begin, "health recovery succeeded"))
    assert (entry.name, entry.severity, entry.count) == ("mlx5 device recovers", "information", 1)
    assert (entry.recovers, entry.doubt) == ("yes", "")
    assert entry.meaning.endswith("It works again.")


_ABORTED = "health recovery flow aborted, PCI reads still not working"


@pytest.mark.parametrize("begin", _BEGINS)
@pytest.mark.parametrize(
    "ends", [(_ABORTED, "health recovery failed"), ("health recovery failed",)]
)
def test_a_reset_of_mlx5_that_failed_is_one_error(begin: str, ends: tuple[str, ...]) -> None:
    failed, began = explain(_reset(begin, *ends))
    assert (failed.name, failed.severity, failed.count) == ("mlx5 device failed", "error", 1)
    assert (failed.recovers, began.recovers) == ("no", "no")
    assert (began.name, began.severity, began.doubt) == ("mlx5 device recovers", "information", "")
    assert began.meaning.endswith("That failed: see mlx5 device failed.")


def test_a_device_that_recovered_after_a_failed_reset_works() -> None:
    again = ("health recovery failed", "health recovery succeeded")
    entries = explain(_reset(_BEGINS[0], *again))
    assert {(entry.severity, entry.recovers) for entry in entries} == {("information", "yes")}


def test_a_reset_of_mlx5_without_an_end_has_a_doubt() -> None:
    (entry,) = explain(_reset(_BEGINS[0]))
    assert (entry.severity, entry.recovers, entry.count) == ("warning", "unknown", 1)
    assert entry.doubt == "no message says that the recovery succeeded"


_MLX4, _BNXT = "mlx4_core 0000:03:00.0: ", "bnxt_en 0000:18:00.0 eth4: "
_ICE = "ice 0000:3b:00.0"
_HNS, _QEDE = "hns3 0000:bd:00.0: ", "[qede_recovery_handler:2674(eth5)]"
_RESETS = {
    "mlx4": (f"{_MLX4}Internal error detected:", f"{_MLX4}mlx4_restart_one was ended, ret=0"),
    "bnxt_en": (f"{_BNXT}Firmware fatal reset event, data1: 0x80004, data2: 0x0, min wait 2000 ms,"
                " max wait 6000 ms",
                f"{_BNXT}NIC Link is Up, 100000 Mbps (NRZ) full duplex, Flow control: none"),
    "ice": (f"{_ICE} irdma0: Requesting a reset",
            f"{_ICE} eth6: NIC Link is up 100 Gbps Full Duplex"),
    "qede": (f"{_QEDE}Starting a recovery process", f"{_QEDE}Recovery handling is done"),
    "hns": (f"{_HNS}global reset requested", f"{_HNS}reset done, RoCE client reinit finished."),
}  # fmt: skip
"""How the reset of each driver begins, and how it ends well."""
_FAILED = [
    # drivers/net/ethernet/mellanox/mlx4: catas.c, reset.c, main.c
    ("mlx4", f"{_MLX4}Fail to reset HCA"),
    ("mlx4", f"{_MLX4}PCI device did not come back after reset, aborting"),
    ("mlx4", f"{_MLX4}Fail to send reset over the communication channel"),
    ("mlx4", f"{_MLX4}Communication channel isn't sync, fail to send reset"),
    ("mlx4", f"{_MLX4}mlx4_restart_one_up failed, ret=-5"),
    ("mlx4", f"{_MLX4}mlx4_restart_one was ended, ret=-12"),
    # drivers/net/ethernet/broadcom/bnxt/bnxt.c
    ("bnxt_en", f"{_BNXT}Firmware reset aborted"),
    ("bnxt_en", f"{_BNXT}Firmware reset aborted, rc = -110"),
    ("bnxt_en", f"{_BNXT}Firmware reset aborted, PCI config space invalid"),
    ("bnxt_en", f"{_BNXT}Firmware reset aborted, bnxt_get_registered_vfs() returns -5"),
    ("bnxt_en", f"{_BNXT}Firmware reset aborted, subsequent func_qcfg cmd failed, rc = -5, 60000"
     " msecs since reset timestamp"),
    ("bnxt_en", f"{_BNXT}bnxt_open() failed during FW reset"),
    ("bnxt_en", f"{_BNXT}RESET_DONE not set during FW reset."),
    ("bnxt_en", f"{_BNXT}Firmware init phase 1 failed"),
    ("bnxt_en", f"{_BNXT}A previous firmware reset has not completed, aborting"),
    ("bnxt_en", f"{_BNXT}A previous firmware reset has not completed, aborting half open"),
    ("bnxt_en", f"{_BNXT}Failed to reinitialize after aborted firmware reset"),
    ("bnxt_en", f"{_BNXT}Failed FW reset via OP-TEE, rc=-5"),
    # drivers/net/ethernet/intel/ice/ice_main.c
    ("ice", f"{_ICE}: Rebuild failed, unload and reload driver"),
    ("ice", f"{_ICE}: reset 1 failed"),
    ("ice", f"{_ICE}: PF VSI rebuild failed: -22"),
    ("ice", f"{_ICE}: control VSI rebuild failed: -22"),
    ("ice", f"{_ICE}: Rebuild failed due to error sending driver version: -5"),
    ("ice", f"{_ICE}: Reset during resume failed."),
    ("ice", f"{_ICE}: Error resetting device. Please reload the driver"),
    ("ice", f"{_ICE}: Cannot re-enable PCI device after reset, error -22"),
    ("ice", f"{_ICE} eth6: tx_timeout recovery unsuccessful, device is in unrecoverable state."),
    ("ice", f"{_ICE} eth6: driver needs to be unloaded and reloaded"),
    # drivers/net/ethernet/qlogic/qede/qede_main.c
    ("qede", "qede 0000:19:00.0 eth5: Recovery handling has failed. Power cycle is needed."),
    # drivers/net/ethernet/hisilicon/hns3/hns3pf/hclge_main.c, drivers/infiniband/hw/hns
    ("hns", f"{_HNS}Reset fail!"),
    ("hns", f"{_HNS}In reset process RoCE reinit failed -110."),
]  # fmt: skip


def _at(*texts: str) -> list[str]:
    return [f"[  1{at}.000001] {text}" for at, text in enumerate(texts)]


@pytest.mark.parametrize(("driver", "end"), _FAILED)
def test_a_reset_that_failed_is_one_error_of_each_driver(driver: str, end: str) -> None:
    begin, well = _RESETS[driver]
    failed, began = explain(_at(begin, end))
    assert (failed.name, failed.severity, failed.count, failed.recovers) == (
        f"{driver} device failed", "error", 1, "no",
    )  # fmt: skip
    assert failed.subject == began.subject
    assert (began.name, began.severity, began.recovers) == (
        f"{driver} device recovers", "information", "no",
    )  # fmt: skip
    # an end that is well is over when the failure comes; behind it, it is the end
    assert explain(_at(begin, well, end))[0].name == f"{driver} device failed"
    assert {row.severity for row in explain(_at(begin, end, well))} == {"information"}


def test_a_network_that_recovers_is_no_rdma_that_does() -> None:
    """hns3 initializes its network device before its RDMA device, which may fail."""
    network = f"{_HNS}Reset done, HNS3 driver initialization finished."
    failed = f"{_HNS}In reset process RoCE reinit failed -110."
    assert explain(_at(_RESETS["hns"][0], network, failed))[0].name == "hns device failed"


def test_each_known_message_is_complete() -> None:
    for message in MESSAGES:
        assert message.source, message.name
        # a doubt is a warning that names the doubt
        assert bool(message.doubt) == (message.severity == "warning"), message.name
        assert message.next_step or message.severity == "information", message.name
        names = {"", *(other.name for other in MESSAGES)}
        assert {message.ended_by, message.failed_by} <= names


@pytest.mark.parametrize(
    "text",
    [
        "nfs: server store7 not responding, still trying to please",
        "nfs: server store7 OKAY",
        "nfs: server  not responding, still trying",
        "app: the nfs: server store7 not responding, still trying",
        "rpcrdma: 'frwr' mode is supported by device mlx5_0",
        "RPC: Registered",
        "RPC: Registered tcp-with-tls transport module.",
        "NFS: store7: lost many locks",
        "svc: failed to register nfsdv3 RPC service (errno x).",
        "NFSD: starting ninety-second grace period (net f0000000)",
        "infiniband mlx5_0: dump_cqe:272:(pid 0): WC error: x, Message: remote access error",
        "rxe0: qp#17 make_send_cqe: non-flush error status = twelve",
        "usbcore: Unknown symbol rdma_connect (err -22)",
        "i915: loading out-of-tree module taints kernel.",
        "ext4: Unknown parameter 'nconnect'",
        "siw: got TERMINATE. layer x, type 2, code 0",
        "mount: /mnt/a: access denied by server while mounting store7:/e",
        "mlx5_core 0000:5e:00.0 eth1: Link up",
        "nfsrdma: loaded",
        "pcieport 0000:17:00.0: AER: Uncorrected (Non-Fatal) error received: 0000:18:00.0",
        "RPC: fragment too large: many",
        "ahci 0000:28:00.0: Event logged [IO_PAGE_FAULT domain=0x0035 address=0x7ff flags=0x0000]",
        "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x04 received:",
        "",
        "[  312.000417]",
    ],
)  # fmt: skip
def test_a_near_miss_is_not_recognized(text: str) -> None:
    assert explain([text, f"[    1.000000] {text}"]) == []


@pytest.mark.parametrize(
    "line",
    [
        # a program can print the kernel's text, and the kernel prints none of a program
        "Mar 03 07:05:09 client4 evil[9]: nfs: server store7 not responding, timed out",
        "Mar 03 07:05:09 client4 kernel: mount.nfs: Connection refused",
        "2026-03-03T07:05:09+01:00 client4 cron: NFS: store7: lost 3 locks",
    ],
)
def test_no_program_passes_for_the_kernel(line: str) -> None:
    assert explain([line]) == []


def test_a_message_names_no_host_as_its_program() -> None:
    """The words before the first colon are the kernel's own, and no host and program."""
    assert one("[    9.100000] infiniband rxe0: set active").subject == "rxe0"


# ---- what is counted


def test_messages_are_counted_with_their_first_and_last_time() -> None:
    text = "nfs: server {} not responding, timed out"
    rows = explain([f"[  {n}.000000] {text.format('a' if n % 2 else 'b')}" for n in range(10, 15)])
    assert [(row.subject, row.count, row.first, row.last) for row in rows] == [
        ("b", 3, "10.000000 s", "14.000000 s"),
        ("a", 2, "11.000000 s", "13.000000 s"),
    ]


def test_the_most_severe_come_first_and_then_the_newest() -> None:
    rows = explain([
        "NFS: store7: lost 1 locks",
        "RPC: Registered rdma transport module.",
        "nfs: server store7 not responding, still trying",
        "NFS: server store7 error: fileid changed",
    ])  # fmt: skip
    assert [row.name for row in rows] == [
        "file identity changed", "locks lost", "server not responding", "transport registered",
    ]  # fmt: skip
    assert [row.severity for row in rows] == ["error", "error", "warning", "information"]


def test_a_server_that_answers_again_is_information() -> None:
    lines = [
        "[    1.000000] nfs: server a not responding, still trying",
        "[    2.000000] nfs: server b not responding, still trying",
        "[    3.000000] nfs: server a OK",
    ]
    severities = {row.subject: row for row in explain(lines) if "not" in row.name}
    assert severities["a"].severity == "information"
    assert (severities["a"].doubt, severities["a"].next_step) == ("", "")
    assert (severities["b"].severity, severities["b"].next_step) == ("warning", "nfsrdma doctor b")
    # and is a warning again afterwards
    again = explain([*lines, "[    4.000000] nfs: server a not responding, still trying"])
    assert {row.subject for row in again if row.severity == "warning"} == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "number", "name", "words"),
    [
        ("nfs: RPC call returned error 103", 103, "ECONNABORTED", "ended by this host"),
        ("RPC: Could not send backchannel reply error: -110", -110, "ETIMEDOUT", "no answer"),
        ("RPC:   rpc_clnt_test_xprt failed: -111 addr a not added", -111, "ECONNREFUSED",
         "refused"),
        ("nfs: RPC call returned error 12", 12, "ENOMEM", "memory"),
        ("nfsrdma: device rxe0: a queue pair refused the error state: -19", -19, "ENODEV",
         "device"),
        ("nfs: RPC call returned error 22", 22, "EINVAL", "limit of the device"),
        ("nfs: RPC call returned error 71", 71, "EPROTO", "no RDMA device"),
        ("nfs: RPC call returned error 10052", 10052, "NFS4ERR_BADSESSION", "session"),
        # the meaning in this message goes before the general one
        ("svc: failed to register nfsdv3 RPC service (errno 111).", 111, "ECONNREFUSED", "rpcbind"),
        ("rpcrdma: Unknown symbol ib_poll (err -22)", -22, "EINVAL", "another version"),
        ("rxe0: qp#1 f: non-flush error status = 13", 13, "IB_WC_RNR_RETRY_EXC_ERR", "credits"),
        ("rxe0: qp#1 f: non-flush error status = 99", 99, "", "no status"),
        ("nfs: RPC call returned error 4095", 4095, "", "errno(3)"),
    ],
)  # fmt: skip
def test_a_number_is_named_and_explained(text: str, number: int, name: str, words: str) -> None:
    (named,) = one(text).numbers
    assert (named.number, named.name) == (number, name)
    assert words in named.meaning


def test_the_module_s_own_messages_are_recognized() -> None:
    """Each pr_err() and pr_warn() of kmod, with a value for each conversion."""
    calls = [
        call
        for path in sorted((ROOT / "kmod").rglob("*.c"))
        if "card" not in path.parts
        for call in re.findall(r"pr_(?:err|warn)\w*\(\s*\"(nfsrdma: .*?)\\n\"", path.read_text())
    ]
    assert len(calls) >= 10
    for text in calls:
        line = re.sub(r"%[.\d]*[sp]", "name", re.sub(r"%l*[dux]", "16", text))
        assert explain([line]), line


# ---- hostile logs


def test_a_long_line_is_cut() -> None:
    data = b"x" * 10_000_000 + b"\n" + b"NFS: store7: lost 1 locks\n" + b"y" * 5_000_000
    lines = list(lines_of(io.BytesIO(data)))
    assert [len(line) for line in lines] == [2048, 25, 2048]
    assert [row.name for row in explain(lines)] == ["locks lost"]


def test_no_control_character_leaves_a_line() -> None:
    data = b"nfs: server \x1b]0;x\x07\xff\xfe\x00 OK\nNFS: a\x1b[2J\xe2\x80\xae: lost 1 locks\n"
    for row in explain(lines_of(io.BytesIO(data))):
        assert row.subject.isprintable()
        assert row.example.isprintable()
        assert row.next_step.isprintable()


def test_a_command_to_paste_holds_no_text_of_the_log() -> None:
    for name in ("a;reboot", "$(reboot)", "-rf", "`x`"):
        explanation = one(f"nfs: server {name} not responding, timed out")
        assert explanation.next_step == "nfsrdma doctor SERVER"


def test_many_subjects_are_counted_together() -> None:
    lines = (f"NFS: server{n}: lost 1 locks" for n in range(2000))
    rows = explain(lines)
    assert len(rows) <= 501
    assert sum(row.count for row in rows) == 2000
    assert any(row.subject == "(others)" for row in rows)


def test_no_line_takes_long() -> None:
    parts = (
        "nfs: ",
        "a:",
        " ",
        "[1.",
        "infiniband ",
        "mlx5_0: ",
        "0x",
        "(",
        "NFS: ",
        "INFO: task k",
    )
    start = time.process_time()
    for part in parts:
        explain([part * 700, part * 700 + " failed"] * 5)
    assert time.process_time() - start < 5


# ---- the command


def test_a_file_and_standard_input_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text("Mar 03 07:05:09 client4 kernel: NFS: store7: lost 2 locks\n")
    command.explain([str(path)])
    from_file = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    command.explain(["-"])
    assert capsys.readouterr().out == from_file
    assert from_file.splitlines() == [
        "x error  locks lost store7, once, Mar 03 07:05:09",
        "    line: NFS: store7: lost 2 locks",
        "    meaning: The client lost locks on files, because its lease expired or the server"
        " restarted. Other clients may have changed the files.",
        "    next step: check the data of programs that held locks",
        "    source: fs/nfs/nfs4state.c, nfs4_do_reclaim(), __nfs4_reclaim_open_state()",
        "1 error, 0 warning, 0 information",
    ]


def test_a_missing_file_is_an_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        command.explain([str(tmp_path / "none")])


def test_json_has_these_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_text("[    9.000001] nfs: RPC call returned error 103\n")
    command.explain([str(path)], as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts == {
        "schema_version": 1,
        "messages": [
            {
                "name": "RPC call failed",
                "severity": "warning",
                "subject": "nfs",
                "count": 1,
                "first": "9.000001 s",
                "last": "9.000001 s",
                "meaning": "A request ended with an error that the client does not repeat.",
                "doubt": "a program may have got the error, or the client may have handled it",
                "next_step": "nfsrdma doctor",
                "numbers": [
                    {
                        "number": 103,
                        "name": "ECONNABORTED",
                        "meaning": "the connection was ended by this host or the device",
                    }
                ],
                "example": "nfs: RPC call returned error 103",
                "source": "net/sunrpc/clnt.c, call_status()",
                "process": "",
                "code": "",
                "where": "",
                "wording": {
                    "since": "3.10",
                    "since_year": 2013,
                    "until": "7.1",
                    "until_year": 2026,
                },
                "recovers": None,
                "fault": "",
                "lines": [],
                "explained": True,
            }
        ],
    }
    assert set(facts["messages"][0]) == {field.name for field in fields(Explanation)}


def test_faults_read_no_log() -> None:
    with pytest.raises(UsageError):
        command.explain(["-"], faults=True)


# ---- the log of this boot


def test_the_log_comes_from_the_journal_or_from_dmesg(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*argv: str, **_options: object) -> Result:
        asked.append(argv)
        if argv[0] == "journalctl":
            raise ProgramMissingError(argv[0])
        return Result(argv, "one\ntwo\n", "", 0)

    monkeypatch.setattr(machine, "run", run)
    assert sources.boot_log()[:2] == ["one", "two"]
    assert [argv[0] for argv in asked] == ["journalctl", "dmesg"]
    assert sources.kernel_ring()[:2] == ["one", "two"]
    assert asked[-1] == ("dmesg",)


@pytest.mark.parametrize(
    ("status", "user", "hint"), [(0, 1000, "as root"), (1, 1000, "as root"), (1, 0, "on the host")]
)
def test_a_log_without_permission_is_an_error_with_a_hint(
    status: int, user: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*argv: str, **_options: object) -> Result:
        if argv[0] == "journalctl":
            return Result(argv, "", "Hint: You are currently not seeing messages", status)
        return Result(argv, "", "dmesg: read kernel buffer failed: Operation not permitted", 1)

    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr("os.geteuid", lambda: user)
    for read in (sources.boot_log, sources.kernel_ring):
        with pytest.raises(UserError, match="cannot read the kernel's log") as raised:
            read()
        assert f"run this {hint}" in raised.value.hint


# ---- the check of doctor


def messages(*names: str) -> list[Explanation]:
    samples = {name: text for name, _, text in KERNEL}
    return explain([samples[name] for name in names])


def test_doctor_shows_the_three_most_severe() -> None:
    explained = messages(
        "server not responding",
        "locks lost",
        "callbacks overflow",
        "grace period",
        "open file lost",
    )
    findings = list(kernel.judge_log(explained))
    assert [row.status for row in findings] == ["warning"] * 3
    assert "open file lost" in findings[0].found and "locks lost" in findings[1].found
    assert all(row.remedy and row.expected for row in findings)


def test_doctor_is_silent_about_what_is_normal() -> None:
    (finding,) = kernel.judge_log(messages("grace period", "transport registered"))
    assert (finding.status, finding.remedy) == ("ok", "")
    (finding,) = kernel.judge_log([])
    assert (finding.status, finding.found) == ("ok", "no message of NFS or RDMA")


def test_doctor_does_not_know_a_log_that_it_may_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: Machine) -> list[str]:
        raise UserError("cannot read the kernel's log: not permitted", "run this as root")

    monkeypatch.setattr(kernel, "kernel_ring", refused)
    (finding,) = carry_out("kernel log", kernel.kernel_log, Machine())
    assert (finding.status, finding.remedy) == ("unknown", "run this as root")


def test_each_message_has_one_meaning() -> None:
    meanings: dict[str, KnownMessage] = {}
    for message in MESSAGES:
        same = meanings.setdefault(message.name, message)
        assert (same.severity, same.meaning) == (message.severity, message.meaning)


def meanings(text: str) -> list[tuple[str, str, object]]:
    return [(row.name, row.severity, row.numbers) for row in explain(text.split("\n"))]


@pytest.mark.parametrize(
    "form",
    sorted(
        {pattern for pattern, _ in FORMS.values()}
        | {form for day, month, _, _ in NAMES.values() for form in forms(day, month).values()}
    ),
)
def test_each_message_keeps_its_meaning_in_an_anonymized_bundle(form: str) -> None:
    lines = [form.format(text) for _, _, text in KERNEL]
    kept = [anonymous(line) for line in lines]
    changed = [
        pair
        for pair in zip(lines, kept, strict=True)
        # an audit record names a program, and an option may name anything
        if meanings(pair[0]) != meanings(pair[1])
        and not (log.WITHHELD in pair[1] and ("avc: " in pair[0] or "specified: " in pair[0]))
    ]
    assert changed == []
    assert not any("store7" in line or "client4" in line for line in kept)


@pytest.mark.parametrize("form", FORMS)
def test_an_anonymized_bundle_keeps_the_times_of_a_log(form: str) -> None:
    pattern, when = FORMS[form]
    (explanation,) = explain(anonymous(pattern.format(KERNEL[0][2])).split("\n"))
    assert explanation.last == when


def test_each_message_of_a_program_keeps_its_meaning_in_an_anonymized_bundle() -> None:
    lines = [
        f"2026-11-26T17:12:14+0000 store7 {program}[12]: {text}" for _, _, program, text in PROGRAM
    ]
    kept = [anonymous(line) for line in lines]
    changed = [
        pair for pair in zip(lines, kept, strict=True) if meanings(pair[0]) != meanings(pair[1])
    ]
    assert changed == []
    assert not any("store7" in line for line in kept)


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("[10.9.8.7] nfs: server store7 OK", "10.9.8.7"),
        ("[acme 10.9.8.7] nfs: server store7 OK", "acme"),
        ("acme 26 17:12:14 store7 kernel: nfs: server store7 OK", "acme"),
        ("acme 2026-11-26 17:12:14 acme store7 kernel: nfs: server store7 OK", "acme"),
        (
            '{"MESSAGE": "nfs: server store7 OK", "_TRANSPORT": "kernel", "_HOSTNAME": "acme"}',
            "acme",
        ),
    ],
)
def test_a_time_hides_no_name_from_an_anonymized_bundle(line: str, hidden: str) -> None:
    kept = anonymous(f"{line}\n")
    assert [row.name for row in explain([line])] == ["server responds again"]
    assert [row.name for row in explain(kept.split("\n"))] == ["server responds again"]
    assert hidden not in kept and "store7" not in kept


def test_doctor_says_that_a_message_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> str:
        return "no message"

    monkeypatch.setattr(_Anonymizer, "_message", unknown)
    ring = anonymous("[    9.1] nfs: server store7 not responding, timed out\n")
    assert "store7" not in ring
    recording = Recording(programs={("dmesg",): Result(("dmesg",), ring, "", 0)}, complete=True)
    (finding,) = kernel.kernel_log(Machine(Path("/nonexistent"), recording=recording))
    assert (finding.status, finding.found) == (
        "unknown",
        "recognized messages withheld from this anonymized bundle: 1",
    )
