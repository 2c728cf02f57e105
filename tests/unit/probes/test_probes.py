# SPDX-License-Identifier: Apache-2.0
"""Accounts without a kernel: which events a program has, and what their counters mean."""

import ctypes
import errno
import functools
import json
import operator
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from nfsrdma_tools.cli import trace
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.lab.config import MODULE_KERNELS as RELEASES
from nfsrdma_tools.live.collect.probe_statistics import clients
from nfsrdma_tools.probes import (
    columns,
    intervals,
    kallsyms,
    maps,
    probe_sets,
    program,
    rpc_clients,
    session,
)
from nfsrdma_tools.probes.intervals import Interval, WatchOptions, watch
from nfsrdma_tools.probes.maps import Losses, Row, increase, lost, row_of, total
from nfsrdma_tools.probes.rpc_clients import mounts_of_transports, owner
from nfsrdma_tools.probes.sets import chunks, connections, latency, readahead, registrations, server
from nfsrdma_tools.sweep.trial import TrialProbes

BPF = Path(__file__).parents[3] / "bpf"
HEADERS = BPF / "headers"
KMOD = BPF.parent / "kmod"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tracefs whose events a test makes."""
    monkeypatch.setattr(program, "TRACEFS", tmp_path)
    (tmp_path / "events").mkdir()
    return tmp_path / "events"


ALL_MEMBERS = sorted({
    name
    for path in BPF.glob("*.c")
    for names in re.findall(r"args->(\w+)|READ_STR\([^,]+, (\w+),", path.read_text())
    for name in names
    if name
})  # fmt: skip


def with_bcc(monkeypatch: pytest.MonkeyPatch, lib: object) -> None:
    """bcc whose library is ``lib``."""
    monkeypatch.setitem(sys.modules, "bcc", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "bcc.libbcc", SimpleNamespace(lib=lib))


def has(kernel: Path, system: str, event: str, *lacks: str) -> None:
    """An event whose record has all members that any probe reads, but for ``lacks``."""
    folder = kernel / system / event
    folder.mkdir(parents=True)
    members = (name for name in ALL_MEMBERS if name not in lacks)
    lines = [f"\tfield:u32 {m};\toffset:{8 + 4 * n};\tsize:4;\n" for n, m in enumerate(members)]
    folder.joinpath("format").write_text("".join(lines))


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_client_of_a_mount_is_found_from_each_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    """Where sysfs does not name it, the RPC of a child shows it, as with top and the exporter.

    The kernel traces a child whose parent is a thread of set_event_pid (option event-fork in
    Documentation/trace/events.rst; a process has one of the same number, its first thread).
    """
    instances, make = tmp_path / "instances", Path.mkdir

    def make_folder(folder: Path, *args: Any, **options: Any) -> None:
        make(folder, *args, **options)
        if folder.parent == instances:
            make(folder / "events/sunrpc/rpc_request", parents=True)

    def send_rpc(directory: Path) -> None:
        assert directory == tmp_path / "mnt"
        (folder,) = instances.iterdir()
        traced = (folder / "set_event_pid").read_text().split()
        seen = str(threading.get_native_id()) in traced
        line = " python3-7 [000] ..... 1.5: rpc_request: task:0000001f@0000000b nfsv4 STATFS (sync)"
        (folder / "trace").write_text(f"# tracer: nop\n{line * seen}\n")

    instances.mkdir()
    info = tmp_path / "proc/self/mountinfo"
    info.parent.mkdir(parents=True)
    info.write_text("44 29 0:45 / /mnt rw - nfs4 server:/export rw,vers=4.2,proto=rdma\n")
    monkeypatch.setattr(rpc_clients, "TRACEFS", tmp_path)
    monkeypatch.setattr(rpc_clients, "_send_rpc", send_rpc)
    monkeypatch.setattr(Path, "mkdir", make_folder)
    with ThreadPoolExecutor() as pool:
        look_up = functools.partial(rpc_clients.clients, machine=Machine(root=tmp_path))
        mounts = pool.submit(look_up).result() if in_thread else look_up()
    assert mounts == {11: ("/mnt",)}


def test_a_program_has_the_events_that_the_kernel_has(kernel: Path) -> None:
    has(kernel, "rpcrdma", "xprtrdma_marshal")
    has(kernel, "sunrpc", "rpc_stats_latency")
    made = program.program(["chunks", "latency"])
    assert set(made.events) == {"rpcrdma:xprtrdma_marshal", "sunrpc:rpc_stats_latency"}
    assert made.text.count("\nPROBE(") == 3
    assert "\nPROBE(rpcrdma, xprtrdma_marshal)\n" in made.text
    # both count at it, by one function
    assert made.text.count("TRACEPOINT_PROBE(sunrpc, rpc_stats_latency)") == 1
    assert "chunks__sunrpc__rpc_stats_latency(args); latency__sunrpc" in made.text
    reasons = {each.event: each.reason for each in made.missing}
    assert reasons["rpcrdma:xprtrdma_chunk_read"] == "this kernel has no such event"
    # nobody has loaded ours
    assert not any(name.startswith("nfsrdma:") for name in reasons)


def test_a_program_has_no_probe_of_an_absent_event(kernel: Path) -> None:
    texts = [path.read_text() for path in BPF.glob("*.c")]
    assert sum(text.count("\nPROBE(") for text in texts) > 80
    sets = ["chunks", "connections", "latency", "readahead", "registrations", "server"]
    made = program.program(sets)
    assert "\nPROBE(" not in made.text
    # what is left is still what it was: functions end where they did
    assert made.text.count("{") == made.text.count("}")


def test_a_probe_set_whose_members_the_kernel_lacks_is_missing_as_a_whole(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Linux 5.10, whose events of regions and of the server's Calls identify less."""
    has(kernel, "rpcrdma", "xprtrdma_mr_map", "client_id")
    # a probe reads these by a macro
    has(kernel, "rpcrdma", "svcrdma_decode_wseg", "cq_id", "completion_id")
    # another set reads more of the same file's events
    has(kernel, "rpcrdma", "xprtrdma_frwr_alloc", "mr_id")
    has(kernel, "sunrpc", "rpc_stats_latency")
    made = program.program(["chunks", "registrations", "server", "latency"])
    assert made.sets == ("chunks", "latency")
    assert made.events == ("sunrpc:rpc_stats_latency",)
    assert "region_rows" not in made.text
    reasons = {missing.event: missing.reason for missing in made.missing}
    assert reasons["probe set registrations"] == (
        "the record of rpcrdma:xprtrdma_mr_map has no client_id here"
    )
    assert "svcrdma_decode_wseg has no completion_id, cq_id" in reasons["probe set server"]
    monkeypatch.setattr(session, "check", lambda transport: None)
    monkeypatch.setattr(session, "load", lambda *_: pytest.fail("it was compiled"))
    with pytest.raises(UserError) as caught, session.session(["registrations"]):
        pass
    assert str(caught.value).startswith("cannot attach probe set registrations: the record of ")
    first, last = (min(RELEASES, key=release), max(RELEASES, key=release))
    hint = f"Linux {first} to {last} have it; this kernel has probe sets chunks, connections, "
    assert str(caught.value.hint).startswith(hint)


def test_a_sweep_names_the_probe_sets_that_the_kernel_allows(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the list with each trial, so it says what was measured and why not."""
    monkeypatch.setattr(session, "available", lambda: None)
    has(kernel, "sunrpc", "rpc_stats_latency")
    assert TrialProbes(wanted=True).summary == "cpu, chunks, registrations"
    has(kernel, "rpcrdma", "xprtrdma_mr_map", "client_id")
    probes = TrialProbes(wanted=True)
    assert probes.names == ("cpu", "chunks")
    why = "the record of rpcrdma:xprtrdma_mr_map has no client_id here"
    assert probes.summary == f"cpu, chunks; not registrations: {why}"


def release(name: str) -> list[int]:
    return [int(part) for part in name.split(".")]


@pytest.mark.parametrize("allocates", (True, False))
def test_a_kernel_without_an_allocator_for_probes_allocates_rows_before(
    allocates: bool, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 6.1 warns of rows that are allocated in a probe: panic_on_warn ends there."""
    symbols = tmp_path / "kallsyms"
    symbols.write_text(
        "0000000000000000 T bpf_map_update_elem\n"
        + "0000000000000000 T bpf_mem_alloc_init\n" * allocates
    )
    monkeypatch.setattr(program, "_KALLSYMS", symbols)
    monkeypatch.setattr(program, "_CLIENTS", (tmp_path / "none",))
    flags = program.program(["latency"]).flags
    assert f"-DWHEN_NEEDED={int(allocates)}" in flags
    assert f"-DROWS={program.rows(allocates)}" in flags
    # none of the other maps is allocated by rows
    texts = [path.read_text() for path in BPF.glob("*.[ch]")]
    assert not any("NO_PREALLOC" in re.sub(r"/\*.*?\*/", "", text, flags=re.S) for text in texts)


@pytest.mark.parametrize(("processors", "most"), ((1, 32768), (8, 4096), (1024, 512)))
def test_rows_that_are_allocated_before_take_bounded_memory(
    processors: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_CLIENTS", (tmp_path,))
    monkeypatch.setattr("os.sysconf", lambda _: processors)
    assert program.rows(allocates=False) == 512
    for number in range(1024):
        (tmp_path / f"clnt-{number}").mkdir()
    assert program.rows(allocates=False) == most


def test_a_program_of_one_process_knows_who_issues_an_rpc(kernel: Path) -> None:
    for event in ("rpc_task_begin", "rpc_stats_latency"):
        has(kernel, "sunrpc", event)
    every, of_process = program.program(["chunks"]), program.program(["chunks"], pid=4711)
    assert not any("PID" in flag for flag in every.flags)
    assert "rpc_task_begin" not in " ".join(every.events)
    assert "-DPID=4711" in of_process.flags
    assert set(of_process.events) == {"sunrpc:rpc_task_begin", "sunrpc:rpc_stats_latency"}
    # a function of bpf/issuer.c, in front of those that call it
    assert of_process.text.index("int issued(u32") < of_process.text.index("!issued(client, task)")


def test_filtering_by_process_needs_the_event(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(kernel, "rpcrdma", "xprtrdma_marshal")
    monkeypatch.setattr(session, "check", lambda transport: None)
    monkeypatch.setattr(session, "load", lambda *_: pytest.fail("it was compiled"))
    with (
        pytest.raises(UserError, match=r"no event sunrpc:rpc_task_begin.*omit --pid"),
        session.session(["chunks"], pid=4711),
    ):
        pass


def test_what_is_not_loaded_is_named(kernel: Path) -> None:
    has(kernel, "rpcrdma", "xprtrdma_marshal")
    reasons = {each.event: each.reason for each in program.program(["chunks"]).missing}
    assert reasons["sunrpc:rpc_stats_latency"] == "module sunrpc is not loaded"


def test_events_come_and_go_with_their_modules(kernel: Path) -> None:
    assert not program.has_event("sunrpc", "rpc_stats_latency")
    assert program.program(["chunks"]).events == ()
    has(kernel, "sunrpc", "rpc_stats_latency")
    assert program.program(["chunks"]).events == ("sunrpc:rpc_stats_latency",)
    shutil.rmtree(kernel / "sunrpc")
    assert program.program(["chunks"]).events == ()


@pytest.mark.parametrize("name", probe_sets.NAMES)
def test_each_probe_set_has_its_files_and_columns(name: str) -> None:
    assert (BPF / f"{name}.c").is_file()
    known = probe_sets.probe_set(name)
    assert (known.name, bool(known.columns)) == (name, True)


def test_help_and_docs_name_all_probe_sets() -> None:
    """The help's own text: commands load no probe set until they run."""
    hints = get_type_hints(trace.trace, include_extras=True)
    named = re.search("Probe set: (.*); or nfsiostat", hints["name"].__metadata__[0].help)
    assert named
    assert re.split(", | or ", named[1]) == list(probe_sets.NAMES)
    assert hints["pid"].__metadata__[0].help.count("(chunks, latency; default:")
    page = (BPF.parent / "docs/how-to/trace.md").read_text()
    assert set(probe_sets.NAMES) <= set(re.findall(r"^## (\w+)$", page, re.MULTILINE))


def test_tables_of_the_page_have_the_columns_of_trace() -> None:
    text = (BPF.parent / "docs/how-to/trace.md").read_text()
    shown = re.findall(r"^# nfsrdma trace (\w+).*\n\d\d:\d\d:\d\d\n(.*)$", text, re.MULTILINE)
    assert len(shown) > 6
    for name, head in shown:
        columns = {column.head for column in probe_sets.probe_set(name).columns}
        assert [word for word in re.split(r"  +", head.strip()) if word not in columns] == []


def test_an_unknown_probe_set_is_an_error() -> None:
    with pytest.raises(UserError, match="unknown probe set 'x'"):
        probe_sets.probe_set("x")


def names_of(file: str, first: str, last: str) -> list[str]:
    """The names of an enum of bpf/, from ``first`` to the one before ``last``."""
    text = re.sub(r"/\*.*?\*/", "", (BPF / file).read_text(), flags=re.DOTALL)
    begin, end = (re.search(rf"\b{name}\b", text) for name in (first, last))
    assert begin, first
    assert end, last
    body = text[begin.start() : end.end()]
    return [name.split("=")[0].strip() for name in body.split(",")][:-1]


def test_counters_have_the_same_order_in_the_kernel() -> None:
    def lower(names: list[str]) -> tuple[str, ...]:
        return tuple(name.lower() for name in names)

    assert lower(names_of("chunks.c", "RPCS", "CHUNK_COUNTS"))[:13] == chunks.COUNTS[:13]
    assert lower(names_of("chunks.c", "INLINE_BYTES", "CHUNK_COUNTS")) == chunks.COUNTS[21:]
    names = lower(names_of("registrations.c", "MAPPED", "REGION_COUNTS"))
    assert tuple(name.removeprefix("region_") for name in names) == registrations.COUNTS
    names = lower(names_of("latency.c", "SLOT", "PHASES"))
    assert tuple(name.removesuffix("_handled") for name in names) == latency.PHASES
    names = lower(names_of("server.c", "SERVER_QUEUE", "SERVER_PHASES"))
    assert tuple(name.removeprefix("server_") for name in names) == server.PHASES
    names = lower(names_of("server.c", "SERVER_CALLS", "SERVER_COUNTS"))
    assert tuple(name.removeprefix("server_") for name in names) == server.COUNTS
    events = names_of("connections.c", "CONNECTED", "LANE_END")
    assert len(events) == len(connections.EVENTS) - 1
    assert lower(names_of("server_ours.c", "EXPOSURES", "EXPOSURE_COUNTS")) == server.EXPOSURES


def test_sums_over_cpus_and_differences() -> None:
    read, write, nobodys = (
        SimpleNamespace(row=SimpleNamespace(client=3, procedure=name))
        for name in (b"READ\0junk", b"WRITE\0", b"\0")
    )
    # one number, two names: on two CPUs
    named = maps.named([read, write, read, nobodys], row_of)
    assert named == {Row(3, "READ"): [read, read], Row(3, "WRITE"): [write]}
    assert total([(1, 2), (3, 4)]) == (4, 6)
    before, after = {"a": (1, 2)}, {"a": (1, 5), "b": (7, 0), "c": (0, 0)}
    assert increase(after, before) == {"a": (0, 3), "b": (7, 0)}


@pytest.mark.parametrize("slot", range(127))
def test_slots_of_times_join_up(slot: int) -> None:
    low, high = latency.slot_ns(slot)
    assert low < high == latency.slot_ns(slot + 1)[0]
    # four to each power of two
    assert slot < 4 or high - low <= low / 4


def test_percentiles() -> None:
    times = [0] * 128
    times[10], times[20] = 90, 10
    low, high = latency.slot_ns(10)
    assert low < latency.percentile(tuple(times), 50) < high
    assert latency.slot_ns(20)[0] <= latency.percentile(tuple(times), 95) < latency.slot_ns(20)[1]
    assert latency.percentile((), 50) == 0


def test_whose_a_client_and_a_transport_is(tmp_path: Path) -> None:
    sunrpc = tmp_path / "kernel/sunrpc"
    switch = sunrpc / "xprt-switches" / "switch-1"
    for name in ("xprt-4-rdma", "xprt-5-rdma", "xprt-junk"):
        (switch / name).mkdir(parents=True)
    (sunrpc / "rpc-clients" / "clnt-7").mkdir(parents=True)
    (sunrpc / "rpc-clients" / "clnt-7" / "switch").symlink_to(switch)
    known = {7: ("/a", "/b"), 8: ("/gone",)}
    mounts = mounts_of_transports(known, Machine(sysfs=tmp_path))
    assert mounts == dict.fromkeys((4, 5), ("/a", "/b"))
    assert (owner(7, known), owner(9, known)) == ("/a, /b", "unattributed")


def test_statuses_in_words() -> None:
    assert connections.completion(13).startswith("receiver not ready: ")
    assert connections.completion(99).startswith("status 99: ")
    assert connections.cm_event(8, 28) == "rejected, status 28"
    assert connections.cm_event(77, 0) == "event 77"


def test_events_of_connections_in_words() -> None:
    def told(event: str, **more: object) -> connections.Event:
        raw = {"time": 5, "ours": 0, "number": 3, "status": 0, "detail": 0, "text": b""}
        raw |= {"event": connections.EVENTS.index(event), "has_address": 0, "peer": b"10.0.0.1\0"}
        return connections.event_of(SimpleNamespace(**(raw | more)))

    assert told("connect").words == told("lane").words == "done"
    assert told("connect", status=-111).words == "Connection refused"
    assert told("disconnect").peer == "10.0.0.1"
    assert told("lane end", text=b"abandoned\0").words == "abandoned"
    assert told("retransmission", text=b"READ\0", status=2).words == "READ, sent 2 times"
    v4 = b"\2\0\0\0" + bytes((10, 9, 1, 11)) + bytes(20)
    v6 = b"\12\0" + bytes(6) + bytes(15) + b"\1" + bytes(4)
    assert told("accept", has_address=1, address=v4).peer == "10.9.1.11"
    assert told("accept", has_address=1, address=v6).peer == "[::1]"


def test_tables_align_words_left_and_numbers_right() -> None:
    shown = (columns.words("n", "name"), columns.number("c", "count"))
    lines = trace.table(shown, [{"n": "a\x1b[31m", "c": 5}, {"n": "bb", "c": 0}])
    assert lines == ["name    count", "a?[31m      5", "bb"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"uid": 1000}, "only root may attach"),
        ({"lockdown": "none integrity [confidentiality]"}, "locked down"),
        ({"events": False}, "no trace events at"),
        ({}, "no transport module is loaded"),
    ],
)
def test_what_a_machine_lacks_is_one_line(
    state: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lockdown").write_text(str(state.get("lockdown", "[none] integrity")))
    if state.get("events", True):
        (tmp_path / "tracing" / "events").mkdir(parents=True)
    monkeypatch.setattr(program, "TRACEFS", tmp_path / "tracing")
    monkeypatch.setattr(session, "_LOCKDOWN", tmp_path / "lockdown")
    monkeypatch.setattr("os.geteuid", lambda: state.get("uid", 0))
    with pytest.raises(UserError, match=message) as raised:
        session.check()
    assert "\n" not in str(raised.value)
    assert raised.value.hint


def test_a_wrong_or_missing_bcc_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SimpleNamespace(__file__="/lib/bcc/__init__.py")
    monkeypatch.setitem(__import__("sys").modules, "bcc", wrong)
    with pytest.raises(UserError, match="crystal-lattice"):
        session.bcc()
    monkeypatch.setitem(__import__("sys").modules, "bcc", None)
    with pytest.raises(UserError, match="python3-bpfcc"):
        session.bcc()


def test_a_bcc_that_lacks_a_library_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bcc.py"
    broken.write_text("import ctypes\nctypes.CDLL('libnone.so.14')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "bcc", raising=False)
    with pytest.raises(UserError, match=r"libnone\.so\.14"):
        session.bcc()


class Compiler:
    """bcc, which compiles in the folder that its variable names, whatever a program says."""

    def BPF(self, text: str, cflags: list[str]) -> Path:  # noqa: N802
        folder = Path(os.environ["BCC_KERNEL_SOURCE"])
        assert (folder / "include/linux/kconfig.h").is_file()
        if text == "wrong":
            raise Exception(text)
        return folder


def test_bcc_compiles_with_our_headers_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bcc", Compiler())
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    assert session.load("", ()) == HEADERS
    with pytest.raises(UserError, match="cannot attach the probes: wrong"):
        session.load("wrong", ())
    # programs that we start have their own
    assert "BCC_KERNEL_SOURCE" not in os.environ
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(UserError, match=f"{tmp_path} has no kernel headers") as raised:
        session.load("", ())
    assert raised.value.hint == "unset BCC_KERNEL_SOURCE: probes need no kernel headers"
    (tmp_path / "include/linux").mkdir(parents=True)
    (tmp_path / "include/linux/kconfig.h").touch()
    assert session.load("", ()) == tmp_path
    assert os.environ["BCC_KERNEL_SOURCE"] == str(tmp_path)


def compiled(text: str, *options: str) -> str:
    """What a C compiler says about a program with our headers and no others, as bcc calls it."""
    argv = (
        *("cc", "-fsyntax-only", "-nostdinc", "-Wall", "-Wextra", "-Werror", "-xc", "-"),
        *("-Iinclude", "-include", "./include/linux/kconfig.h", "-DPAGE_BITS=12", *options),
    )
    pipe = subprocess.PIPE
    return subprocess.run(argv, cwd=HEADERS, input=text, stderr=pipe, text=True, check=False).stderr


# what bcc's helpers.h and virtual_bpf.h include, in versions 0.18 to 0.37
INCLUDED = (
    *("linux/types.h", "linux/bpf_common.h", "uapi/linux/bpf.h", "uapi/linux/if_packet.h"),
    *("linux/version.h", "linux/log2.h", "asm/page.h"),
)
TYPES = """
#ifndef CONFIG_BPF_SYSCALL
#error bcc
#endif
_Static_assert(PAGE_SIZE == 4096 && LINUX_VERSION_CODE >= KERNEL_VERSION(4, 8, 0), "");
_Static_assert(sizeof(u8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "");
_Static_assert(sizeof(s8) == 1 && sizeof(s16) == 2 && sizeof(s32) == 4 && sizeof(s64) == 8, "");
_Static_assert(sizeof(dev_t) == 4 && sizeof(umode_t) == 2 && sizeof(pid_t) == 4, "");
_Static_assert(sizeof(struct sockaddr_in6) == 28, "");
_Static_assert(sizeof(loff_t) == 8 && sizeof(size_t) == 8 && sizeof(sector_t) == 8, "");
_Static_assert((s8)-1 < 0 && (s16)-1 < 0 && (s32)-1 < 0 && (s64)-1 < 0 && (loff_t)-1 < 0, "");
_Static_assert((u8)-1 > 0 && (u16)-1 > 0 && (u32)-1 > 0 && (u64)-1 > 0 && (dev_t)-1 > 0, "");
static __always_inline __maybe_unused bool none(void *pointer) { return pointer == NULL; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_our_headers_have_what_bcc_includes() -> None:
    includes = "".join(f"#include <{name}>\n" for name in INCLUDED * 2)
    for language in ("gnu11", "gnu2x"):
        assert compiled(includes + TYPES, f"-std={language}") == ""
    files = {str(file.relative_to(HEADERS / "include")) for file in HEADERS.rglob("*.h")}
    assert files == {*INCLUDED, "linux/kconfig.h"}


FORMAT = """name: mm_filemap_fault
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:unsigned long i_ino;\toffset:8;\tsize:8;\tsigned:0;
\tfield:dev_t s_dev;\toffset:16;\tsize:4;\tsigned:0;
\tfield:__data_loc char[] procname;\toffset:20;\tsize:4;\tsigned:0;
\tfield:unsigned char local[28];\toffset:24;\tsize:28;\tsigned:0;
\tfield:u32 index;\toffset:52;\tsize:4;\tsigned:0;
"""
# as bcc makes it of the format
RECORD = """#include <linux/types.h>
struct tracepoint__filemap__mm_filemap_fault {
    u64 head; unsigned long i_ino; dev_t s_dev; int data_loc_procname; unsigned char local[28];
    u64 index;
};
"""
READS = "f(args->i_ino, args->s_dev, args->local); TP_DATA_LOC_READ_STR(row.name, procname, TEXT);"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_record_whose_members_are_elsewhere_does_not_compile(kernel: Path) -> None:
    event = ("filemap", "mm_filemap_fault")
    (kernel / "filemap/mm_filemap_fault").mkdir(parents=True)
    (kernel / "filemap/mm_filemap_fault/format").write_text(FORMAT)
    checks = program.record_checks(event, READS)
    # of what is read
    assert checks.count("_Static_assert") == 4
    assert compiled(RECORD + checks) == ""
    errors = compiled(RECORD.replace("dev_t s_dev", "u64 s_dev") + checks)
    for member in ("s_dev", "procname", "local"):
        assert f"{member} is elsewhere in filemap:mm_filemap_fault" in errors
    assert "i_ino is" not in errors
    # each program has them
    assert checks.splitlines()[0] in program.program(["readahead"]).text


def test_what_a_program_cost() -> None:
    text = "pos:\t0\nprog_type:\t5\nrun_time_ns:\t1234\nrun_cnt:\t7\nrecursion_misses:\t0\n"
    assert intervals.parse(text) == intervals.Cost(7, 1234)
    assert intervals.parse("pos:\t0\n") == intervals.Cost(0, 0)
    assert intervals.Cost(7, 1234) - intervals.Cost(2, 234) == intervals.Cost(5, 1000)


def test_what_was_lost_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(0, [1, 4]), (1, [0, 2]), (2, [0, 0]), (3, [0, 7])]
    table = SimpleNamespace(items=lambda: rows)
    asked: list[str] = []

    def table_of(name: str) -> SimpleNamespace:
        asked.append(name)
        return table

    counting: Any = SimpleNamespace(table=table_of)
    assert lost(counting) == Losses(rpcs=5, regions=2, windows=7)
    assert asked == ["losses"]
    assert Losses(5, 2) - Losses(4, 2) == Losses(1, 0)
    assert len(names_of("account.h", "LOST_RPCS", "LOSSES")) == len(Losses._fields)
    for gone, is_shown in ((Losses(), False), (Losses(regions=3, credits=1), True)):
        trace.JsonIntervals().show(Interval([], gone))
        assert json.loads(capsys.readouterr().out)["lost"] == gone._asdict()
        trace.Tables(probe_sets.probe_set("chunks")).show(Interval([], gone))
        assert ("lost: 3 regions, 1 Calls' credits" in capsys.readouterr().out) == is_shown


def test_a_map_has_room_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 clients with all of NFSv3's 22 procedures, twice as many of them later; 4096 clients."""
    monkeypatch.setattr(program, "_CLIENTS", (tmp_path, tmp_path / "none"))
    assert program.rows() == 8192
    for number in range(4096):
        (tmp_path / f"clnt-{number}").mkdir()
        if number == 99:
            assert program.rows() >= 2 * 100 * 22
        if number == 499:
            assert program.rows() == 1 << 15
    assert program.rows() == 1 << 16
    assert f"-DROWS={1 << 16}" in program.program(["latency"]).flags


class Rows(dict[int, object]):
    """A map of the kernel's, by number."""

    Key = int


def test_rows_of_what_is_gone_are_freed() -> None:
    """On a clock of the test's; two clients' rows have one number, and go together."""
    table = Rows.fromkeys((1, 2, 3))
    numbers = {"gone": 1, "busy": 2, "twin": 2, "late": 3}
    counting: Any = SimpleNamespace(state={"numbers of x": numbers}, table=lambda _: table)

    def reading(**counts: int) -> dict[str, tuple[int, ...]]:
        return {name: (count,) for name, count in counts.items()}

    for at in range(0, 1200, 60):
        last = reading(gone=5, busy=at, twin=7, **({"late": 1} if at >= 600 else {}))
        other = reading(gone=9)
        maps.free(counting, "x", float(at), last, other)
        assert (1 in table) == (at < maps.IDLE)
        if at >= maps.IDLE:
            assert "gone" not in last
            assert other == {}
            break
    assert set(table) == set(numbers.values()) == {2, 3}
    # it came back: its row begins anew, and so does the difference
    table[1] = None
    assert increase(reading(gone=2, busy=601), last) == reading(gone=2, busy=1)


class Credits(dict[tuple[bool, int], object]):
    """The map of credits."""

    def Key(self, ours: bool, number: int) -> tuple[bool, int]:  # noqa: N802 - bcc's name
        return ours, number


def test_pages_that_are_demanded_on_another_cpu_are_not_ahead() -> None:
    """A reader that was moved to another CPU subtracts there what it added on the first."""
    text = (BPF / "readahead.c").read_text()
    (kind,) = re.findall(r"struct ahead_row \{.*?\b([us]64) counts\[", text, re.S)
    number = {"s64": ctypes.c_longlong, "u64": ctypes.c_ulonglong}[kind]
    counts = number * len(readahead.COUNTS)
    first, second = counts(1, 0, 48, 0, 0, 0), counts(0, 48, -48, 0, 0, 0)
    leaves = [SimpleNamespace(counts=leaf) for leaf in (first, second)]
    assert readahead._decoded(ctypes.c_ulonglong(50), leaves) == ("0:50", (1, 48, 0, 0, 0, 0))


def test_credits_of_what_is_gone_are_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_clients, "_SYSFS_SUNRPC", tmp_path)
    table = Credits.fromkeys([(False, 1), (False, 2), (True, 1), (True, 2)])
    counting: Any = SimpleNamespace(table=lambda name: {"credits": table}[name])
    reading = connections.Connections((), 0, dict.fromkeys(table, connections.Credit(32, 0, 1, 0)))
    (tmp_path / "rpc-clients/clnt-1").mkdir(parents=True)
    (tmp_path / "xprt-switches/switch-0/xprt-2-nfsrdma").mkdir(parents=True)
    probe_sets.probe_set("connections").forget(counting, reading, 0.0)
    assert set(table) == set(reading.credits) == {(False, 1), (True, 2)}
    # a kernel that does not say which there are
    shutil.rmtree(tmp_path)
    probe_sets.probe_set("connections").forget(counting, reading, 0.0)
    assert set(table) == set(reading.credits) == {(False, 1), (True, 2)}


def test_a_send_that_ends_after_its_interval() -> None:
    counts = dict.fromkeys(server.COUNTS, 0)
    asked, after = server.ServerRow("10.0.0.1", "READ"), dict.fromkeys(server.PHASES, 0)
    calls = (4000, *{**after, "nfsd": 3000}.values(), *{**counts, "calls": 2}.values())
    sends = (0, *{**after, "send": 9000}.values(), *{**counts, "sends": 3}.values())
    (row,) = server.records(server.Server({asked: calls}, {asked: (2,)}), {})
    assert row["mean_us"] == 2
    assert row["phases_us"] == {"queue": 0, "read_in": 0, "nfsd": 1.5, "write_out": 0}
    (row,) = server.records(server.Server({asked: sends}, {}), {})
    assert (row["mean_us"], row["phases_us"]) == (0, {"send": 3})


def test_replies_that_clients_read_have_a_row_for_each_client() -> None:
    first, second = (server.Connection(1 << 31 | n, "10.0.0.1") for n in (1, 2))
    none = (0,) * len((*server.GRANTS, *server.THREADLESS))
    before = server.Server({}, {}, {first: (4, 400, 3, 1, 0, *none, 9)})
    after = server.Server(
        {}, {}, {first: (6, 600, 5, 1, 0, *none, 2), second: (1, 100, 0, 0, 3, *none, 1)}
    )
    (row,) = server.records(server.difference(after, before), {})
    assert (row["peer"], row["procedure"], row["calls"]) == ("10.0.0.1", "RDMA_DONE", 0)
    assert [row[name] for name in server.EXPOSURES] == [3, 300, 2, 0, 3, *none, 3]
    assert server.difference(after, after).exposed == {}
    lines = trace.table(server.PROBE_SET.columns, [row])
    assert "| exposed  done  not done  | mean us" in lines[0]
    plain = row | dict.fromkeys(server.EXPOSURES, 0)
    assert "exposed" not in trace.table(server.PROBE_SET.columns, [plain])[0]


def test_granted_page_cache_has_a_row_for_each_client() -> None:
    counts = dict.fromkeys(server.EXPOSURES, 0)
    counts |= {"grants": 9, "granted_bytes": 9 << 20, "revoked_modified": 3, "revoked_expired": 1}
    counted = server.Server({}, {}, {server.Connection(1, "10.0.0.1"): tuple(counts.values())})
    (row,) = server.records(counted, {})
    assert (row["procedure"], row["grants"], row["revoked_modified"]) == ("GRANT", 9, 3)
    head, line = trace.table(server.PROBE_SET.columns, [row])
    assert "| granted  bytes granted" in head
    assert "exposed" not in head
    assert "9             9M  modified 3, expired 1" in line
    assert server.granted(counted) == {name: count for name, count in counts.items() if count}
    assert server.granted(server.Server({}, {})) == {}


def test_threadless_reads_are_in_the_row_of_reads() -> None:
    """Of two connections of a client, with IPv6, whose READs nfsd got too, and of another one."""
    counts = dict.fromkeys(server.EXPOSURES, 0)
    hits = counts | {"threadless_hits": 9, "threadless_bytes": 36864, "threadless_missed_size": 2}
    sums = list(server.NO_CALLS)
    sums[1 + len(server.PHASES)] = 4
    own = {
        server.Connection(1, "[fe80::1]"): hits,
        server.Connection(2, "[fe80::1]"): hits | {"threadless_missed_size": 0},
        server.Connection(3, "10.0.0.2"): counts | {"threadless_hits": 1},
    }
    calls = {server.ServerRow("fe80::1%2", "READ"): tuple(sums)}
    counted = server.Server(calls, {}, {of: tuple(row.values()) for of, row in own.items()})
    other, row = server.records(counted, {})
    words = operator.itemgetter("peer", "procedure", "calls", "answered")
    assert words(row) == ("fe80::1%2", "READ", 4, 22)
    assert (row["threadless_hits"], row["threadless_bytes"]) == (18, 73728)
    assert words(other) == ("10.0.0.2", "READ", 0, 1)
    head, _, line = trace.table(server.PROBE_SET.columns, [other, row])
    assert "| threadless  by threadless  missed  in all  | mean us" in head
    assert re.search(r"\b18 +72k  size 2 +22\b", line)
    plain = other | dict.fromkeys(server.THREADLESS, 0)
    assert "threadless" not in trace.table(server.PROBE_SET.columns, [plain])[0]
    first, second = clients(counted)
    assert first.counts == {"threadless_hits": 1}
    assert (second.answered, second.read) == (22, 73728)


def test_results_of_threadless_reads_differ_in_two_letters() -> None:
    """bpf/server_ours.c tells them apart by these."""
    names = (KMOD / "observe" / "debugfs.c").read_text()
    known = re.findall(r'\[NFR_THREADLESS_\w+\]\s+= "(\w+)"', names)
    assert known == ["hit", *server.MISSED]
    text = (KMOD.parent / "bpf" / "server_ours.c").read_text()
    body = text.partition("threadless_result(char first, char second)")[2].partition("\n}")[0]
    for reason in ("hit", *server.MISSED):
        name = "THREADLESS_HITS" if reason == "hit" else f"THREADLESS_MISSED_{reason.upper()}"
        case = re.search(rf"case '{reason[0]}':\n\t\treturn ([^;]+);", body)
        chosen = case[1] if case else re.findall(r"default:\n\t\treturn ([^;]+);", body)[0]
        if choice := re.fullmatch(r"second == '(\w)' \? (\w+) : (\w+)", chosen):
            chosen = choice[2] if reason[1] == choice[1] else choice[3]
        assert chosen == name


def test_the_reasons_of_revocations_are_those_of_the_module() -> None:
    """bpf/server_ours.c tells them apart by their first letters."""
    text = (KMOD / "observe" / "debugfs.c").read_text()
    reasons = re.findall(r'\[NFR_REVOKED_\w+\]\s+= "(\w+)"', text)
    assert set(reasons) == set(server.REVOKED)
    first = {reason[:1] for reason in reasons if not reason.startswith(("m", "l"))}
    assert len(first) == len(reasons) - 5
    assert {reason[2] for reason in reasons if reason.startswith("l")} == {"s", "m"}


def test_states_of_regions_are_not_differences() -> None:
    counts = dict.fromkeys(registrations.COUNTS, 0)
    before = {**counts, "mapped": 5, "reused": 3, "high_water": 4, "mapped_bytes": 900}
    after = {**counts, "mapped": 6, "reused": 9, "high_water": 4, "mapped_bytes": 100}
    readings = (
        registrations.Registrations({(True, 7): tuple(each.values())}, {}, 0, 0)
        for each in (after, before)
    )
    (sums,) = registrations.difference(*readings).counts.values()
    named = dict(zip(registrations.COUNTS, sums, strict=True))
    assert named == {**counts, "mapped": 1, "reused": 6, "high_water": 4, "mapped_bytes": 100}


# as without CAP_SYSLOG
HIDDEN = """\
0000000000000000 T _stext
0000000000000000 t frwr_map\t[rpcrdma]
0000000000000000 t frwr_gone.cold\t[rpcrdma]
"""


def test_functions_that_are_not_there_are_named_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Functions are found by name: a container may not see their addresses."""
    (tmp_path / "kallsyms").write_text(HIDDEN)
    monkeypatch.setattr(kallsyms, "_KALLSYMS", tmp_path / "kallsyms")
    attached: list[str] = []

    def note(event: str, fn_name: str) -> None:
        attached.append(f"{event} {fn_name}")

    # bcc has no symbol whose address is 0 (bcc_procutils_each_ksym)
    bpf = SimpleNamespace(ksymname=lambda _: -1, attach_kprobe=note, attach_kretprobe=note)
    counting = session.Session(bpf, ())
    for name in ("frwr_map", "frwr_gone"):
        counting.attach_kprobe(name, "begin")
        counting.attach_kretprobe(name, "end")
    assert attached == ["frwr_map begin", "frwr_map end"]
    (missing,) = counting.missing
    assert missing == program.Missing("kprobe:frwr_gone", "this kernel has no such function")


def test_each_session_reads_the_kernels_symbols_anew(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bcc reads them once for a process, and a module that is loaded later has functions, too."""
    del kernel
    caches = {-1: SimpleNamespace(cache=0xCAFE), 7: SimpleNamespace(cache=0xBEEF)}
    calls: list[tuple[object, ...]] = []
    bpf = SimpleNamespace(_sym_caches=caches, cleanup=lambda: calls.append(("cleanup",)))
    lib = SimpleNamespace(bcc_free_symcache=lambda *argv: calls.append(argv))
    with_bcc(monkeypatch, lib)
    monkeypatch.setattr(session, "check", lambda transport: None)
    monkeypatch.setattr(session, "load", lambda text, flags: bpf)
    for _ in range(2):
        with session.session(["chunks"]):
            pass
    assert calls == [("cleanup",), (0xCAFE, -1), ("cleanup",)]
    assert set(caches) == {7}


def test_functions_that_are_probed_are_those_of_transports_that_are_there(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(kernel, "nfsrdma", "nfsrdma_mr_map")
    monkeypatch.setattr(kallsyms, "addresses", lambda names: dict.fromkeys(names, 1))
    begun: list[str] = []
    ended: list[str] = []
    bpf = SimpleNamespace(
        attach_kprobe=lambda event, fn_name: begun.append(event),
        attach_kretprobe=lambda event, fn_name: ended.append(event),
    )
    registrations.time_functions(session.Session(bpf, ()))
    assert begun == ["nfr_mem_prepare", "nfr_client_revoke", "nfr_mem_release"]
    assert ended == ["nfr_client_revoke", "nfr_mem_release"]
    text = "".join(path.read_text() for path in (BPF.parent / "kmod").rglob("*.c"))
    # a function that is not static
    assert all(re.search(rf"^(int|void) {name}\(", text, re.MULTILINE) for name in begun)


def test_only_some_probe_sets_measure_cpu_time() -> None:
    times = [name for name in probe_sets.NAMES if probe_sets.probe_set(name).time]
    assert times == ["registrations"]
    with pytest.raises(UserError, match="trace chunks has no option --cpu"):
        next(watch(probe_sets.probe_set("chunks"), WatchOptions(cpu=True), lambda _missing: None))


def test_late_events_of_other_cpus_are_reported_once() -> None:
    """CPUs' buffers are read one after the other: a later one may have earlier events."""

    def taken(*times: int, came: int) -> connections.Connections:
        heard = tuple(connections.Event(t, "connect", False, 1, "", "done") for t in times)
        return connections.Connections(heard, 0, {}, came)

    first = taken(100, 20, came=2)
    assert connections.difference(taken(100, 20, came=2), first).events == ()
    second = connections.difference(taken(100, 20, 10, came=3), first)
    assert [event.time for event in second.events] == [10]
    # those that were heard long ago are not kept: they are no loss, unless nobody has read them
    assert second.lost == 0
    late = taken(7, 8, came=9)
    third = connections.difference(late, first)
    assert [event.time for event in third.events] == [7, 8]
    assert third.lost == 5
    assert connections.difference(taken(8, 9, came=10), late).lost == 0


class Counter(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint64),)


class Counters:
    """A map per CPU of two CPUs, whose batches come in threes."""

    Key, Leaf, map_fd = ctypes.c_uint32, Counter * 2, 7

    def __init__(self, **errors: int) -> None:
        self.values: dict[int, tuple[int, int]] = {}
        self.error = errors.get("error", 0)

    def items(self) -> list[tuple[ctypes.c_uint32, object]]:
        made = {k: self.Leaf(*(Counter(v) for v in pair)) for k, pair in self.values.items()}
        return [(self.Key(key), leaf) for key, leaf in made.items()]

    def bpf_lookup_batch(
        self, _fd: int, before: object, after: object, keys: object, values: object, count: object
    ) -> int:
        place = before._obj.value if before else 0  # type: ignore[attr-defined]
        part = self.items()[place : place + 3]
        for n, (key, leaf) in enumerate(part):
            keys._obj[n], values._obj[n] = key, leaf  # type: ignore[attr-defined]
        count._obj.value = len(part)  # type: ignore[attr-defined]
        after._obj.value = place + 3  # type: ignore[attr-defined]
        ctypes.set_errno(self.error or errno.ENOENT)
        return -1 if self.error or place + 3 >= len(self.values) else 0


class Owned(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint64), ("used", ctypes.c_uint64))


@pytest.mark.parametrize("count", [2, 64, 100])
def test_rows_that_are_somebodys_are_read_from_memory(count: int, tmp_path: Path) -> None:
    rows = (Owned * count)(*(Owned(n, n % 2) for n in range(count)))
    with (tmp_path / "map").open("w+b") as file:
        file.write(bytes(rows))
        file.flush()
        table = SimpleNamespace(Leaf=Owned, max_entries=count, map_fd=file.fileno())
        session_: Any = SimpleNamespace(state={}, table=lambda _: table)
        made: list[int] = []

        def decode(row: Owned) -> int:
            made.append(row.value)
            value: int = row.value
            return -value

        assert maps.mapped(session_, "x", decode) == [-n for n in range(1, count, 2)]
        for place, row in ((count - 1, Owned(7, 1)), (0, Owned(9, 1))):
            file.seek(ctypes.sizeof(row) * place)
            file.write(bytes(row))
        file.flush()
        assert maps.mapped(session_, "x", decode) == [-9, *(-n for n in range(1, count - 1, 2)), -7]
        assert made[count // 2 :] == [9, 7]


@pytest.mark.parametrize("count", [0, 2, 3, 7])
def test_a_map_is_emptied_in_batches(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Counters()
    table.values = {key: (key, 10 * key) for key in range(count)}
    lib = SimpleNamespace(bpf_lookup_and_delete_batch=table.bpf_lookup_batch)
    with_bcc(monkeypatch, lib)
    session_: Any = SimpleNamespace(state={}, table=lambda _: table)
    batches = list(maps.drained(session_, "x"))
    keys, values = (b"".join(each) for each in zip(*batches, strict=True)) if count else (b"", b"")
    assert struct.unpack(f"={count}I", keys) == tuple(range(count))
    assert struct.unpack(f"={2 * count}Q", values)[1::2] == tuple(range(0, 10 * count, 10))


@pytest.mark.parametrize("error", [0, errno.ENOSPC, errno.EINVAL])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 8])
def test_rows_come_in_batches_and_only_those_that_changed_are_decoded(
    count: int, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Counters(error=error)
    table.values = {key: (key, 10 * key) for key in range(count)}
    with_bcc(monkeypatch, table)
    session_: Any = SimpleNamespace(state={}, table=lambda _: table)
    made: list[int] = []

    def decode(key: ctypes.c_uint32, leaves: list[Counter]) -> tuple[int, int]:
        made.append(key.value)
        return key.value, sum(leaf.value for leaf in leaves)

    read = functools.partial(maps.decoded, session_, "x", decode)
    assert sorted(read()) == [(key, 11 * key) for key in range(count)]
    first = read()
    assert len(made) == count
    if count:
        table.values[count - 1] = (5, 6)
        assert (count - 1, 11) in read()
        assert made[count:] == [count - 1]
        table.values.clear()
        assert read() == []
        assert len(first) == count


def test_the_first_interval_has_what_ends_once_the_caller_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = [0]
    counter = probe_sets.ProbeSet(
        "counter", "", (), lambda _session: counted[0], int.__sub__,
        lambda count, _clients: [{"rpcs": count}], host_wide=True,
    )  # fmt: skip
    attached = nullcontext(SimpleNamespace(missing=()))
    monkeypatch.setattr(intervals, "attached", lambda *_, **__: attached)
    monkeypatch.setattr(intervals, "lost", lambda _session: Losses())
    reading = watch(
        counter,
        WatchOptions(interval=0, count=1),
        lambda _missing: counted.__setitem__(0, 12),
    )
    assert [each.records for each in reading] == [[{"rpcs": 12}]]
