# SPDX-License-Identifier: Apache-2.0
"""ping, ls, stat, cat and cp over the device of tests/device: both ways, resumed, hostile names."""

import errno
import io
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device import COMMIT, FILE, FOLDER, LINK, READ, WRITE, Device
from unit.device_fixtures import Recorder, device, device_library, recorder

from nfsrdma_tools.cli import main
from nfsrdma_tools.cli.cp import cp
from nfsrdma_tools.cli.options import default_signals
from nfsrdma_tools.cli.ping import ping
from nfsrdma_tools.cli.remote import cat, ls
from nfsrdma_tools.cli.remote import stat as show
from nfsrdma_tools.client import copy, session, stream
from nfsrdma_tools.client.listing import content
from nfsrdma_tools.client.ping import Ping
from nfsrdma_tools.client.place import is_remote, split_server
from nfsrdma_tools.doctor import ping as doctor_ping
from nfsrdma_tools.doctor.checks import nfs_server
from nfsrdma_tools.doctor.ping import over_rdma
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host.machine import LIVE

DATA = os.urandom(60_000)
MTIME = 1_700_000_000_000_000_005
LEAST = 4096
"""Bytes of a READ or WRITE: a file has several."""
PART = ".nfsrdma-part"


__all__ = ["device", "device_library", "recorder"]


@pytest.fixture
def server(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    for path, data, kind, mode in (
        ("data", DATA, FILE, 0o600),
        ("sub", b"", FOLDER, 0o755),
        ("sub/empty", b"", FILE, 0o644),
        ("sub/deep", b"", FOLDER, 0o755),
        ("sub/deep/file", DATA[:9000], FILE, 0o644),
        ("sub/link", b"/etc", LINK, 0o777),
    ):
        device.put(f"/export/{path}", data, kind, mode)
        device.set_time(f"/export/{path}", MTIME)
    # replies come in any order
    device.set(read_max=LEAST, write_max=LEAST, late=200)
    # several buffers for a small file
    monkeypatch.setattr(stream, "_BUFFER", 16_384)
    return device


@pytest.mark.parametrize(
    ("before", "inside"),
    ((signal.default_int_handler, signal.SIG_DFL), (signal.SIG_IGN, signal.SIG_IGN)),
)
def test_signals_end_a_call_of_the_library(before: Any, inside: Any) -> None:
    """A shell starts background programs with SIGINT ignored: it stays so."""
    kept = signal.signal(signal.SIGINT, before)
    try:
        with default_signals():
            assert signal.getsignal(signal.SIGINT) is inside
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, kept)


class Terminal(io.TextIOWrapper):
    """Standard output that is a terminal."""

    def __init__(self) -> None:
        self.written = io.BytesIO()
        super().__init__(self.written, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True


Output = pytest.CaptureFixture[bytes]


# --- targets ---


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("nas:/x", True), ("[::1]:/x", True), ("[fe80::1%v0]:/", True), ("./nas:/x", False),
        ("a/nas:/x", False), ("nas:x", False), ("/nas", False), ("::1:/x", False), (":/x", False),
    ],
)  # fmt: skip
def test_remote_paths(text: str, remote: bool) -> None:
    assert is_remote(text) == remote


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nas", ("nas", 0)), ("nas:20050", ("nas", 20050)), ("[::1]:1", ("[::1]", 1)),
        ("[::1]", ("[::1]", 0)), ("2001:db8::1", ("2001:db8::1", 0)), ("nas:0", None),
        ("nas:65536", None), ("nas:x", None), ("", None), ("nas:/export", None), ("[::1", None),
    ],
)  # fmt: skip
def test_servers(text: str, expected: tuple[str, int] | None) -> None:
    if expected:
        assert split_server(text) == expected
    else:
        with pytest.raises(UsageError):
            split_server(text)


# --- ping and doctor ---


def test_ping_prints_terms_and_round_trips(
    server: Device, recorder: Recorder, capsysbinary: Output
) -> None:
    # padded and optimistic
    server.set(personalities=0b10010, reply_size=8192)
    ping("nas:20050", count=3)
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines[:5] == [
        "nas:20050: address 10.9.1.1, RDMA port 20050, by device stand0",
        "server         module nfsrdma, personalities padded, optimistic",
        "credits        32",
        "inline sizes   4096 bytes to the server, 8192 from it",
        "private data   RFC 8797",
    ]
    assert re.fullmatch(r"3 round trips: min [\d.]+ ms, median [\d.]+ ms, p99 [\d.]+ ms", lines[5])
    assert server.port == 20050
    assert {options["timeout"] for options in recorder.options} == {10_000}
    calls = server.calls
    ping("nas:20050", count=5)
    assert server.calls == 2 * calls + 2


def test_ping_as_json(server: Device, capsysbinary: Output) -> None:
    ping("nas", count=2, as_json=True)
    facts = json.loads(capsysbinary.readouterr().out)
    trips = facts.pop("round_trip_us")
    assert list(trips) == ["min", "median", "p99"]
    assert 0 < trips["min"] <= trips["median"] <= trips["p99"]
    assert (facts["port"], facts["count"], facts["credits"]) == (20049, 2, 32)


def test_percentiles() -> None:
    times = tuple(range(1, 201))
    measured = Ping(None, 0, (), times)  # type: ignore[arg-type]
    assert (measured.median, measured.p99) == (100.5, 198)
    assert Ping(None, 0, (), (5.0,)).p99 == 5  # type: ignore[arg-type]


def test_a_failed_ping_is_one_line(
    server: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.set(refuse=1)
    monkeypatch.setattr(sys, "argv", ["nfsrdma", "ping", "nas"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert (
        capsys.readouterr().err
        == "nfsrdma: nas: the server refuses RDMA connections on this port\n"
    )


@pytest.mark.parametrize(
    ("prepare", "status", "words"),
    [
        (lambda _: None, "ok", "10.9.1.1 answers on RDMA 20049 by stand0; round trip "),
        (lambda server: server.set(refuse=1), "error", "nas: the server refuses RDMA connections"),
        (
            lambda server: server.fail("event:resolve_addr", errno.ENODEV, times=1000),
            "unknown",
            "not tried: nas: no RDMA device has a route to the server",
        ),
        (
            lambda server: server.fail("create_event_channel", errno.EACCES, times=1000),
            "unknown",
            "not tried: ",
        ),
    ],
)
def test_doctor_pings(
    server: Device, prepare: Callable[[Device], None], status: str, words: str
) -> None:
    prepare(server)
    rdma = over_rdma("nas")
    assert (rdma.name, rdma.status) == ("rdma nas", status)
    assert rdma.found.startswith(words)
    assert bool(rdma.remedy) == (status != "ok")


@pytest.mark.parametrize("is_loaded", [False, True])
def test_without_a_route_the_remedy_depends_on_rdma_ucm(
    is_loaded: bool, server: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server.fail("event:resolve_addr", errno.ENODEV, times=1000)
    monkeypatch.setattr(doctor_ping, "_RDMA_UCM", tmp_path / ("" if is_loaded else "none"))
    remedy = over_rdma("192.0.2.9").remedy
    where = "use a device with a route to 192.0.2.9, see: rdma link; ip route get 192.0.2.9"
    assert remedy == (where if is_loaded else "modprobe rdma_ucm, as root")
    monkeypatch.setattr(sys, "argv", ["nfsrdma", "ping", "192.0.2.9:20049"])
    with pytest.raises(SystemExit):
        main.main()
    message = "nfsrdma: 192.0.2.9: no RDMA device has a route to the server"
    assert capsys.readouterr().err == f"{message} ({remedy})\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_user_without_access_to_rdma_cm(
    number: int, server: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.fail("create_event_channel", number, times=1000)
    monkeypatch.setattr(doctor_ping, "_RDMA_UCM", tmp_path)
    assert over_rdma("nas").remedy.startswith("run this as root")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_an_error_of_a_file_has_no_remedy_about_devices(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor_ping, "_RDMA_UCM", tmp_path)
    error = OSError(number, "LOOKUP none")
    monkeypatch.setattr(doctor_ping, "_DEVICE", tmp_path / "none")
    assert doctor_ping.remedy(error, "nas").startswith("run this as root")
    monkeypatch.setattr(doctor_ping, "_DEVICE", tmp_path)
    assert doctor_ping.remedy(error, "nas") == ""


def test_doctor_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UserError("libnfsrdma.so.0 is missing", "apt install libnfsrdma0")

    monkeypatch.setattr(session, "load", missing)
    finding = over_rdma("nas")
    assert finding.status == "unknown"
    assert finding.remedy == "apt install libnfsrdma0; or mount to test RDMA"


def test_a_server_is_pinged_if_it_answers_over_tcp(
    server: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = replace(LIVE, server="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(nfs_server, "NFS_PORT", listener.getsockname()[1])
        assert [finding.name for finding in nfs_server.reach(here)] == [
            "server 127.0.0.1",
            "rdma 127.0.0.1",
        ]
    (silent,) = nfs_server.reach(here)
    assert (silent.name, silent.status) == ("server 127.0.0.1", "error")


# --- ls, stat and cat ---

HOSTILE = [b"\x1b[2Jx", b"new\nline", b"\xff\xfe"]


def put_hostile(server: Device) -> None:
    for name in HOSTILE:
        server.put_name("/export/sub", name)


def test_ls_escapes_names_on_a_terminal(server: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    put_hostile(server)
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    ls("nas:/export/sub")
    assert screen.written.getvalue().decode().splitlines() == [
        "?[2Jx", "deep", "empty", "link", "new?line", "??",
    ]  # fmt: skip


def test_ls_prints_names_as_they_are_to_a_program(server: Device, capsysbinary: Output) -> None:
    put_hostile(server)
    ls("nas:/export/sub")
    assert capsysbinary.readouterr().out == b"\x1b[2Jx\ndeep\nempty\nlink\nnew\nline\n\xff\xfe\n"


def test_ls_long_and_json(
    server: Device, capsysbinary: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_hostile(server)
    ls("nas:/export/sub/deep", long=True)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_700_000_000))
    assert capsysbinary.readouterr().out == f"-rw-r--r-- 1 0 0 9000 {when} file\n".encode()
    ls("nas:/export/sub", as_json=True)
    entries = {row.pop("name"): row for row in json.loads(capsysbinary.readouterr().out)["entries"]}
    assert entries["link"]["type"] == "link"
    assert entries["\udcff\udcfe"]["size"] == 0
    ls("nas:/export/sub", long=True)
    text = capsysbinary.readouterr().out
    assert (text.count(b"\x1b"), text.count(b"\n")) == (0, 6)


def test_ls_of_a_file_prints_its_name(server: Device, capsysbinary: Output) -> None:
    del server
    ls("nas:/export/sub/empty")
    assert capsysbinary.readouterr().out == b"empty\n"


def test_stat(server: Device, capsysbinary: Output) -> None:
    show("nas:/export/sub/link", as_json=True)
    facts = json.loads(capsysbinary.readouterr().out)
    assert (facts["type"], facts["size"], facts["modified_ns"]) == (
        "link", 4, MTIME,
    )  # fmt: skip
    show("nas:/export/data")
    assert b"mode      -rw------- (0600)\n" in capsysbinary.readouterr().out


def test_cat_writes_files_in_order(server: Device, capsysbinary: Output) -> None:
    cat(["nas:/export/data", "nas:/export/sub/empty", "nas:/export/sub/deep/file"])
    assert capsysbinary.readouterr().out == DATA + DATA[:9000]


def test_a_file_that_ends_early_ends(server: Device) -> None:
    pieces = content("nas:/export/data")
    chunks = [bytes(next(pieces))]
    # the second buffer is under way
    server.put("/export/data", DATA[:40_000])
    chunks += map(bytes, pieces)
    assert b"".join(chunks) == DATA[:40_000]
    # nothing is read behind the end
    assert [len(piece) for piece in chunks] == [16_384, 16_384, 7232]


@pytest.mark.parametrize("target", ["nas:/export/none", "nas:/none", "nas:/export/sub/none/x"])
def test_a_missing_file_is_an_error(server: Device, target: str) -> None:
    with pytest.raises(OSError, match=r"No such file|mount daemon"):
        cat([target])


DAEMON = {errno.EACCES: {"mount_error": errno.EACCES}, errno.ECONNREFUSED: {"no_mount_daemon": 1}}


@pytest.mark.parametrize("error", DAEMON)
def test_copies_need_no_mount_daemon(
    server: Device,
    tmp_path: Path,
    capsysbinary: Output,
    error: int,
) -> None:
    server.set(**DAEMON[error])
    cat(["nas:/export/data"])
    assert capsysbinary.readouterr().out == DATA
    assert copy.copy("nas:/export/data", str(tmp_path), options()).bytes == len(DATA)
    copy.copy(str(tmp_path / "data"), "nas:/export/new", options())
    assert server.get("/export/new", disk=True) == DATA
    with pytest.raises(FileNotFoundError):
        cat(["nas:/export/none/none"])


@pytest.mark.parametrize("error", DAEMON)
def test_cat_reports_the_error_of_the_mount_daemon(server: Device, error: int) -> None:
    """The server has NFSv3 alone."""
    server.set(nfs4=0, **DAEMON[error])
    with pytest.raises(OSError, match=r"mount daemon|RPC: Program not registered") as caught:
        cat(["nas:/export/data"])
    assert caught.value.errno == error


# --- cp ---


def options(**given: Any) -> copy.Options:
    return copy.Options(**given)


@pytest.mark.parametrize("short", [False, True])
def test_a_file_is_copied_from_the_server(
    server: Device, tmp_path: Path, short: bool, capsysbinary: Output
) -> None:
    server.set(shortened=short)
    cp("nas:/export/data", str(tmp_path))
    made = tmp_path / "data"
    assert made.read_bytes() == DATA
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [made]
    assert capsysbinary.readouterr().out == b"copied 1 file, 60000 bytes\n"


@pytest.mark.parametrize("short", [False, True])
def test_a_file_is_copied_to_the_server(server: Device, tmp_path: Path, short: bool) -> None:
    server.set(shortened=short)
    source = tmp_path / "source"
    source.write_bytes(DATA)
    for target, path in (("/export", "/export/source"), ("/export/sub/new", "/export/sub/new")):
        done = copy.copy(str(source), f"nas:{target}", options())
        assert done == (1, len(DATA), ())
        assert server.get(path, disk=True) == DATA
        assert server.get(f"{path}{PART}") is None


def test_a_folder_is_copied_both_ways(server: Device, tmp_path: Path) -> None:
    seen: list[int] = []
    wanted = options(recursive=True, planned=seen.append, advance=seen.append)
    done = copy.copy("nas:/export/sub", str(tmp_path / "copy"), wanted)
    assert done == (2, 9000, ("link",))
    assert seen[0] == sum(seen[1:]) == 9000
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    assert files == {"copy", "copy/empty", "copy/deep", "copy/deep/file"}
    (tmp_path / "copy" / "out").symlink_to("/etc")
    done = copy.copy(str(tmp_path / "copy"), "nas:/export/sub/deep", options(recursive=True))
    assert done == (2, 9000, ("out",))
    assert server.get("/export/sub/deep/copy/deep/file") == DATA[:9000]


def test_nothing_is_replaced_without_force(server: Device, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(UserError, match=r"data exists \(replace it with --force\)"):
        copy.copy("nas:/export/data", str(tmp_path), options())
    with pytest.raises(UserError, match=r"data exists \(replace it with --force\)"):
        copy.copy(str(tmp_path / "data"), "nas:/export", options())
    assert (tmp_path / "data").read_text() == "mine"
    assert server.get("/export/data") == DATA
    copy.copy(str(tmp_path / "data"), "nas:/export/sub/empty", options(overwrite=True))
    assert server.get("/export/sub/empty") == b"mine"
    copy.copy("nas:/export/data", str(tmp_path), options(overwrite=True))
    assert (tmp_path / "data").read_bytes() == DATA
    # an existing folder is not mixed with another one
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="sub exists"):
        copy.copy("nas:/export/sub", str(tmp_path), options(recursive=True))


def test_a_folder_needs_recursive(server: Device, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder \(copy it with --recursive"):
        copy.copy("nas:/export/sub", str(tmp_path), options())
    with pytest.raises(UserError, match="is a folder"):
        copy.copy(str(tmp_path), "nas:/export/sub", options())


@pytest.mark.parametrize("words", [("a", "b"), ("nas:/a", "nas:/b")])
def test_one_of_both_is_remote(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="one of source and target"):
        copy.copy(*words, options())


def test_an_interrupted_copy_from_the_server_goes_on(server: Device, tmp_path: Path) -> None:
    server.error(READ, errno.EIO, offset=40_960)
    with pytest.raises(OSError, match="Input/output error"):
        copy.copy("nas:/export/data", str(tmp_path), options())
    part = tmp_path / f"data{PART}"
    start = part.stat().st_size
    assert 0 < start <= 40_960
    with pytest.raises(UserError, match=r"interrupted copy exists \(continue it with --continue"):
        copy.copy("nas:/export/data", str(tmp_path), options())
    done = copy.copy("nas:/export/data", str(tmp_path), options(resume=True))
    assert done.bytes == len(DATA) - start
    assert (tmp_path / "data").read_bytes() == DATA
    assert not part.exists()


def test_an_interrupted_copy_to_the_server_goes_on(
    server: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "UNORDERED", 8192)
    (tmp_path / "file").write_bytes(DATA)
    server.error(WRITE, errno.ENOSPC, offset=40_960)
    with pytest.raises(OSError, match="No space left"):
        copy.copy(str(tmp_path / "file"), "nas:/export", options())
    assert server.get("/export/file") is None
    with pytest.raises(UserError, match="of an interrupted copy exists"):
        copy.copy(str(tmp_path / "file"), "nas:/export", options())
    # the server had not yet written what came before the last bytes
    there = DATA[:12_000] + bytes(7_000) + DATA[19_000:20_000]
    server.put(f"/export/file{PART}", there)
    done = copy.copy(str(tmp_path / "file"), "nas:/export", options(resume=True))
    assert done.bytes == 40_000 + 8192
    assert server.get("/export/file") == DATA


def test_an_interrupted_copy_of_a_folder_goes_on(server: Device, tmp_path: Path) -> None:
    again = options(recursive=True, resume=True)
    server.error(READ, errno.EIO, offset=8192)
    with pytest.raises(OSError, match="Input/output error"):
        copy.copy("nas:/export/sub", str(tmp_path), options(recursive=True))
    assert (tmp_path / "sub" / "empty").exists()
    with pytest.raises(UserError, match="sub exists"):
        copy.copy("nas:/export/sub", str(tmp_path), options(recursive=True))
    assert copy.copy("nas:/export/sub", str(tmp_path), again).files == 2
    assert (tmp_path / "sub" / "deep" / "file").read_bytes() == DATA[:9000]
    assert copy.copy("nas:/export/sub", str(tmp_path), again).bytes == 0
    # back, where one file is there and another one has its name
    copy.copy(str(tmp_path / "sub" / "empty"), "nas:/export", options())
    assert copy.copy(str(tmp_path / "sub" / "empty"), "nas:/export", again) == (1, 0, ())
    server.put("/export/empty", b"?")
    with pytest.raises(UserError, match="empty exists"):
        copy.copy(str(tmp_path / "sub" / "empty"), "nas:/export", again)


def test_a_part_of_another_file_is_not_continued(
    server: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "UNORDERED", 0)
    for text in (b"another", DATA + b"more"):
        (tmp_path / f"data{PART}").write_bytes(text)
        with pytest.raises(UserError, match="is not the beginning of the source"):
            copy.copy("nas:/export/data", str(tmp_path), options(resume=True))
        server.put(f"/export/part{PART}", text)
        (tmp_path / "part").write_bytes(DATA)
        with pytest.raises(UserError, match="is not the beginning of the source"):
            copy.copy(str(tmp_path / "part"), "nas:/export", options(resume=True))
    assert not (tmp_path / "data").exists()


class Once:
    """For ``advance``: calls a function when all of DATA has moved, the first time."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.left = len(DATA)

    def __call__(self, moved: int) -> None:
        self.left -= moved
        if not self.left:
            self.call()


def test_data_that_a_server_lost_is_written_again(server: Device, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    lost = options(advance=Once(server.restart))
    assert copy.copy(str(tmp_path / "file"), "nas:/export", lost).bytes == len(DATA)
    assert server.get("/export/file", disk=True) == DATA
    assert server.writes >= 2 * len(DATA) / LEAST


def test_a_copy_whose_commit_fails_is_written_again(server: Device, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    server.error(COMMIT, errno.EIO)
    assert copy.copy(str(tmp_path / "file"), "nas:/export", options()).bytes == len(DATA)
    assert server.get("/export/file", disk=True) == DATA
    assert server.writes >= 2 * len(DATA) / LEAST
    server.error(COMMIT, errno.EIO, times=3)
    with pytest.raises(OSError, match="Input/output error"):
        copy.copy(str(tmp_path / "file"), "nas:/export/again", options())
    assert server.get("/export/again") is None


def test_a_source_that_changes_makes_no_copy(server: Device, tmp_path: Path) -> None:
    def grow(_bytes: int) -> None:
        server.set_time("/export/data", MTIME + 1)

    with pytest.raises(UserError, match="data changed while it was copied"):
        copy.copy("nas:/export/data", str(tmp_path), options(advance=grow))
    assert not (tmp_path / "data").exists()


def test_a_copy_of_another_size_is_no_copy(server: Device, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    lose = Once(lambda: server.put(f"/export/file{PART}", DATA[:1000]))
    with pytest.raises(MismatchError, match="requested 60000, got 1000"):
        copy.copy(str(tmp_path / "file"), "nas:/export", options(advance=lose))
    assert server.get("/export/file") is None


def test_a_server_writes_nothing_outside_of_the_target(server: Device, tmp_path: Path) -> None:
    """A link of this host, with the name of a directory that the server lists."""
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (target / "sub").mkdir(parents=True)
    (target / "sub" / "deep").symlink_to(outside)
    wanted = options(recursive=True, overwrite=True, resume=True)
    with pytest.raises((OSError, UserError)):
        copy.copy("nas:/export/sub", str(target), wanted)
    assert list(outside.iterdir()) == []
    # nor through a link with the name of a file, or of its part
    for name in ("data", f"data{PART}"):
        (target / name).symlink_to(outside / "made")
        with pytest.raises((OSError, UserError)):
            copy.copy("nas:/export/data", str(target), options(resume=True))
        (target / name).unlink()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", [b"../x", b"/tmp/x", b""])
def test_hostile_names_end_a_copy(server: Device, tmp_path: Path, name: bytes) -> None:
    server.put_name("/export/sub", name)
    with pytest.raises(OSError, match="the server sent a name"):
        copy.copy("nas:/export/sub", str(tmp_path / "in"), options(recursive=True))
    assert not (tmp_path / "in").exists()


def test_a_copy_has_nothing_of_the_directory_above(server: Device, tmp_path: Path) -> None:
    server.put_name("/export/sub/deep", b"..")
    copy.copy("nas:/export/sub/deep", str(tmp_path / "in"), options(recursive=True))
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["in", "in/file"]


def test_long_names_have_parts(server: Device, tmp_path: Path) -> None:
    name = "n" * 255
    server.put(f"/export/{name}", DATA)
    copy.copy(f"nas:/export/{name}", str(tmp_path), options())
    assert (tmp_path / name).read_bytes() == DATA


def test_a_directory_of_the_host_is_no_name(server: Device, tmp_path: Path) -> None:
    del server
    with pytest.raises(UsageError, match="is no name for a copy"):
        copy.copy("nas:/", "/", options(recursive=True))
