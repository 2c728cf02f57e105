# SPDX-License-Identifier: Apache-2.0
"""ping, ls, stat, cat and cp over a stand-in for the library: both ways, resumed, hostile names."""

import errno
import io
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from unit.library_stand_in import Node, StandIn

from nfsrdma_tools.cli import main
from nfsrdma_tools.cli.cp import cp
from nfsrdma_tools.cli.doctor import _with_ping
from nfsrdma_tools.cli.options import default_signals
from nfsrdma_tools.cli.ping import ping
from nfsrdma_tools.cli.remote import cat, ls
from nfsrdma_tools.cli.remote import stat as show
from nfsrdma_tools.client import copy, session, stream
from nfsrdma_tools.client.ping import Ping
from nfsrdma_tools.client.place import is_remote, split_server
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host.checks import Finding

DATA = os.urandom(60_000)
FOLDER = stat.S_IFDIR | 0o755
LINK = stat.S_IFLNK | 0o777
PART = ".nfsrdma-part"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = StandIn(
        {
            "/export/data": Node(bytearray(DATA), stat.S_IFREG | 0o600),
            "/export/sub": Node(mode=FOLDER),
            "/export/sub/empty": Node(),
            "/export/sub/deep": Node(mode=FOLDER),
            "/export/sub/deep/file": Node(bytearray(DATA[:9000])),
            "/export/sub/link": Node(bytearray(b"/etc"), LINK),
        }
    )
    monkeypatch.setattr(session, "load", lambda: made.library)
    # several buffers for a small file
    monkeypatch.setattr(stream, "_BUFFER", 16_384)
    yield made
    assert not made.roots


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
    ("text", "found"),
    [
        ("nas", ("nas", 0)), ("nas:20050", ("nas", 20050)), ("[::1]:1", ("[::1]", 1)),
        ("[::1]", ("[::1]", 0)), ("2001:db8::1", ("2001:db8::1", 0)), ("nas:0", None),
        ("nas:65536", None), ("nas:x", None), ("", None), ("nas:/export", None), ("[::1", None),
    ],
)  # fmt: skip
def test_servers(text: str, found: tuple[str, int] | None) -> None:
    if found:
        assert split_server(text) == found
    else:
        with pytest.raises(UsageError):
            split_server(text)


# --- ping and doctor ---


def test_ping_prints_terms_and_round_trips(server: StandIn, capsysbinary: Output) -> None:
    ping("nas:20050", count=3)
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines[:5] == [
        "nas:20050: address 10.9.1.1, RDMA port 20050, by device rxe0",
        "server         module nfsrdma, personalities padded, optimistic",
        "credits        32",
        "inline sizes   4096 bytes to the server, 8192 from it",
        "private data   RFC 8797",
    ]
    assert lines[5].startswith("3 round trips: min 0.")
    assert server.options["port"] == 20050
    assert server.options["timeout"] == 10_000
    assert server.calls.count("null") == 3


def test_ping_as_json(server: StandIn, capsysbinary: Output) -> None:
    ping("nas", count=2, as_json=True)
    facts = json.loads(capsysbinary.readouterr().out)
    trips = facts.pop("round_trip_us")
    assert list(trips) == ["min", "median", "p99"]
    assert 0 < trips["min"] <= trips["median"] <= trips["p99"]
    assert (facts["port"], facts["count"], facts["credits"]) == (20049, 2, 32)


def test_percentiles() -> None:
    times = tuple(range(1, 201))
    found = Ping(None, 0, (), times)  # type: ignore[arg-type]
    assert (found.median, found.p99) == (100.5, 198)
    assert Ping(None, 0, (), (5.0,)).p99 == 5  # type: ignore[arg-type]


def test_a_failed_ping_is_one_line(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuses = errno.ECONNREFUSED
    monkeypatch.setattr(sys, "argv", ["nfsrdma", "ping", "nas"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "nfsrdma: the server refuses\n"


ANSWERS = Finding("server nas", "ok", "10.9.1.1 answers on TCP 2049")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (0, "ok", "10.9.1.1 answers on RDMA 20049 by rxe0; round trip 0."),
        (errno.ECONNREFUSED, "error", "the server refuses"),
        (errno.ENODEV, "unknown", "not tried: the server refuses"),
        (errno.EACCES, "unknown", "not tried: the server refuses"),
    ],
)
def test_doctor_pings(server: StandIn, error: int, status: str, words: str) -> None:
    server.refuses = error
    others = Finding("kernel", "ok", "fine")
    first, tcp, rdma, last = _with_ping([others, ANSWERS, others], "nas")
    assert (first, tcp, last) == (others, ANSWERS, others)
    assert (rdma.name, rdma.status) == ("rdma nas", status)
    assert rdma.found.startswith(words)
    assert bool(rdma.remedy) == (status != "ok")


def test_doctor_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UserError("libnfsrdma.so.0 is missing", "apt install libnfsrdma0")

    monkeypatch.setattr(session, "load", missing)
    found = _with_ping([ANSWERS], "nas")[1]
    assert found.status == "unknown"
    assert found.remedy == "apt install libnfsrdma0; or mount to test RDMA"
    silent = ANSWERS._replace(status="error")
    assert _with_ping([silent], "nas") == [silent]


# --- ls, stat and cat ---

HOSTILE = [b"\x1b[2Jx", b"new\nline", b"\xff\xfe"]


def test_ls_escapes_names_on_a_terminal(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    server.names["/export/sub"] = HOSTILE
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    ls("nas:/export/sub")
    assert screen.written.getvalue().decode().splitlines() == [
        "?[2Jx", "deep", "empty", "link", "new?line", "??",
    ]  # fmt: skip


def test_ls_prints_names_as_they_are_to_a_program(server: StandIn, capsysbinary: Output) -> None:
    server.names["/export/sub"] = HOSTILE
    ls("nas:/export/sub")
    assert capsysbinary.readouterr().out == b"\x1b[2Jx\ndeep\nempty\nlink\nnew\nline\n\xff\xfe\n"


def test_ls_long_and_json(
    server: StandIn, capsysbinary: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.names["/export/sub"] = HOSTILE
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


def test_ls_of_a_file_prints_its_name(server: StandIn, capsysbinary: Output) -> None:
    server.exports = ("/export/sub",)
    ls("nas:/export/sub/empty")
    assert capsysbinary.readouterr().out == b"empty\n"


def test_stat(server: StandIn, capsysbinary: Output) -> None:
    show("nas:/export/sub/link", as_json=True)
    facts = json.loads(capsysbinary.readouterr().out)
    assert (facts["type"], facts["size"], facts["modified_ns"]) == (
        "link", 4, 1_700_000_000_000_000_005,
    )  # fmt: skip
    show("nas:/export/data")
    assert b"mode      -rw------- (0600)\n" in capsysbinary.readouterr().out


def test_cat_writes_files_in_order(server: StandIn, capsysbinary: Output) -> None:
    cat(["nas:/export/data", "nas:/export/sub/empty", "nas:/export/sub/deep/file"])
    assert capsysbinary.readouterr().out == DATA + DATA[:9000]


def test_a_file_that_ends_early_ends(server: StandIn, capsysbinary: Output) -> None:
    node = server.nodes["/export/data"]
    fill = server._fill

    def larger(of: Node, found: Any) -> int:
        fill(of, found)
        found.st_size += 40_000 if of is node else 0
        return 0

    server._fill = larger  # type: ignore[method-assign, assignment]
    cat(["nas:/export/data"])
    assert capsysbinary.readouterr().out == DATA


@pytest.mark.parametrize("target", ["nas:/export/none", "nas:/none", "nas:/export/sub/none/x"])
def test_a_missing_file_is_an_error(server: StandIn, target: str) -> None:
    with pytest.raises(OSError, match=r"No such file|mount daemon"):
        cat([target])


@pytest.mark.parametrize("error", [errno.EACCES, errno.ECONNREFUSED])
def test_reads_need_no_mount_daemon(
    server: StandIn, tmp_path: Path, capsysbinary: Output, error: int
) -> None:
    server.mount_daemon = error
    cat(["nas:/export/data"])
    assert capsysbinary.readouterr().out == DATA
    assert copy.copy("nas:/export/data", str(tmp_path), options()).bytes == len(DATA)
    # NFSv4.1 does not write here
    with pytest.raises(OSError, match="the mount daemon refuses this port"):
        copy.copy(str(tmp_path / "data"), "nas:/export/new", options())
    with pytest.raises(FileNotFoundError):
        cat(["nas:/export/none/none"])


# --- cp ---


def options(**given: Any) -> copy.Options:
    return copy.Options(**given)


@pytest.mark.parametrize("short", [False, True])
def test_a_file_is_copied_from_the_server(
    server: StandIn, tmp_path: Path, short: bool, capsysbinary: Output
) -> None:
    server.short = short
    cp("nas:/export/data", str(tmp_path))
    made = tmp_path / "data"
    assert made.read_bytes() == DATA
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [made]
    assert capsysbinary.readouterr().out == b"copied 1 file, 60000 bytes\n"


@pytest.mark.parametrize("short", [False, True])
def test_a_file_is_copied_to_the_server(server: StandIn, tmp_path: Path, short: bool) -> None:
    server.short = short
    source = tmp_path / "source"
    source.write_bytes(DATA)
    for target, path in (("/export", "/export/source"), ("/export/sub/new", "/export/sub/new")):
        done = copy.copy(str(source), f"nas:{target}", options())
        assert done == (1, len(DATA), ())
        assert bytes(server.nodes[path].data) == DATA
    assert not [name for name in server.nodes if PART in name]


def test_a_folder_is_copied_both_ways(server: StandIn, tmp_path: Path) -> None:
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
    assert bytes(server.nodes["/export/sub/deep/copy/deep/file"].data) == DATA[:9000]


def test_nothing_is_replaced_without_force(server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(UserError, match=r"data exists \(replace it with --force\)"):
        copy.copy("nas:/export/data", str(tmp_path), options())
    with pytest.raises(UserError, match=r"data exists \(replace it with --force\)"):
        copy.copy(str(tmp_path / "data"), "nas:/export", options())
    assert (tmp_path / "data").read_text() == "mine"
    assert bytes(server.nodes["/export/data"].data) == DATA
    copy.copy(str(tmp_path / "data"), "nas:/export/sub/empty", options(overwrite=True))
    assert bytes(server.nodes["/export/sub/empty"].data) == b"mine"
    copy.copy("nas:/export/data", str(tmp_path), options(overwrite=True))
    assert (tmp_path / "data").read_bytes() == DATA
    # an existing folder is not mixed with another one
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="sub exists"):
        copy.copy("nas:/export/sub", str(tmp_path), options(recursive=True))


def test_a_folder_needs_recursive(server: StandIn, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder \(copy it with --recursive"):
        copy.copy("nas:/export/sub", str(tmp_path), options())
    with pytest.raises(UserError, match="is a folder"):
        copy.copy(str(tmp_path), "nas:/export/sub", options())


@pytest.mark.parametrize("words", [("a", "b"), ("nas:/a", "nas:/b")])
def test_one_of_both_is_remote(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="one of source and target"):
        copy.copy(*words, options())


def test_an_interrupted_copy_from_the_server_goes_on(server: StandIn, tmp_path: Path) -> None:
    server.failing[40_960] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        copy.copy("nas:/export/data", str(tmp_path), options())
    part = tmp_path / f"data{PART}"
    start = part.stat().st_size
    assert 0 < start <= 40_960
    server.failing.clear()
    with pytest.raises(UserError, match=r"interrupted copy exists \(continue it with --continue"):
        copy.copy("nas:/export/data", str(tmp_path), options())
    done = copy.copy("nas:/export/data", str(tmp_path), options(resume=True))
    assert done.bytes == len(DATA) - start
    assert (tmp_path / "data").read_bytes() == DATA
    assert not part.exists()


def test_an_interrupted_copy_to_the_server_goes_on(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "UNORDERED", 8192)
    (tmp_path / "file").write_bytes(DATA)
    server.failing[40_960] = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        copy.copy(str(tmp_path / "file"), "nas:/export", options())
    assert "/export/file" not in server.nodes
    server.failing.clear()
    part = server.nodes[f"/export/file{PART}"].data
    with pytest.raises(UserError, match="of an interrupted copy exists"):
        copy.copy(str(tmp_path / "file"), "nas:/export", options())
    del part[20_000:]
    # the server had not yet written what came before the last bytes
    part[12_000:19_000] = bytes(7_000)
    done = copy.copy(str(tmp_path / "file"), "nas:/export", options(resume=True))
    assert done.bytes == 40_000 + 8192
    assert bytes(server.nodes["/export/file"].data) == DATA


def test_an_interrupted_copy_of_a_folder_goes_on(server: StandIn, tmp_path: Path) -> None:
    again = options(recursive=True, resume=True)
    server.failing[8192] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        copy.copy("nas:/export/sub", str(tmp_path), options(recursive=True))
    assert (tmp_path / "sub" / "empty").exists()
    server.failing.clear()
    with pytest.raises(UserError, match="sub exists"):
        copy.copy("nas:/export/sub", str(tmp_path), options(recursive=True))
    assert copy.copy("nas:/export/sub", str(tmp_path), again).files == 2
    assert (tmp_path / "sub" / "deep" / "file").read_bytes() == DATA[:9000]
    assert copy.copy("nas:/export/sub", str(tmp_path), again).bytes == 0
    # back, where one file is there and another one has its name
    copy.copy(str(tmp_path / "sub" / "empty"), "nas:/export", options())
    assert copy.copy(str(tmp_path / "sub" / "empty"), "nas:/export", again) == (1, 0, ())
    server.nodes["/export/empty"].data += b"?"
    with pytest.raises(UserError, match="empty exists"):
        copy.copy(str(tmp_path / "sub" / "empty"), "nas:/export", again)


def test_a_part_of_another_file_is_not_continued(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "UNORDERED", 0)
    for text in (b"another", DATA + b"more"):
        (tmp_path / f"data{PART}").write_bytes(text)
        with pytest.raises(UserError, match="is not the beginning of the source"):
            copy.copy("nas:/export/data", str(tmp_path), options(resume=True))
        server.nodes[f"/export/part{PART}"] = Node(bytearray(text))
        (tmp_path / "part").write_bytes(DATA)
        with pytest.raises(UserError, match="is not the beginning of the source"):
            copy.copy(str(tmp_path / "part"), "nas:/export", options(resume=True))
    assert not (tmp_path / "data").exists()


def test_data_that_a_server_lost_is_written_again(server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    server.fsync_errors = [errno.EIO]
    assert copy.copy(str(tmp_path / "file"), "nas:/export", options()).bytes == len(DATA)
    # two, and those of close() for the copy and for its name
    assert server.calls.count("prepare_fsync") == 4
    assert server.calls.count("write") >= 2 * len(DATA) / 4096
    server.fsync_errors = [errno.EIO] * 3
    with pytest.raises(OSError, match="Input/output error"):
        copy.copy(str(tmp_path / "file"), "nas:/export/again", options())
    assert "/export/again" not in server.nodes


def test_a_source_that_changes_makes_no_copy(server: StandIn, tmp_path: Path) -> None:
    def grow(_bytes: int) -> None:
        server.nodes["/export/data"].mtime += 1

    with pytest.raises(UserError, match="data changed while it was copied"):
        copy.copy("nas:/export/data", str(tmp_path), options(advance=grow))
    assert not (tmp_path / "data").exists()


def test_a_copy_of_another_size_is_no_copy(server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    fsync = server.do_prepare_fsync

    def lose(file: Any, user_data: int) -> int:
        server.do_ftruncate(file, 1000)
        return fsync(file, user_data)

    server.do_prepare_fsync = lose  # type: ignore[method-assign, assignment]
    with pytest.raises(MismatchError, match="requested 60000, got 1000"):
        copy.copy(str(tmp_path / "file"), "nas:/export", options())
    assert "/export/file" not in server.nodes


def test_a_server_writes_nothing_outside_of_the_target(server: StandIn, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", [b"..", b"../x", b"/tmp/x", b""])
def test_hostile_names_end_a_copy(server: StandIn, tmp_path: Path, name: bytes) -> None:
    server.names["/export/sub"] = [name]
    with pytest.raises(OSError, match="the server sent the name"):
        copy.copy("nas:/export/sub", str(tmp_path / "in"), options(recursive=True))
    assert not (tmp_path / "in").exists()


def test_long_names_have_parts(server: StandIn, tmp_path: Path) -> None:
    name = "n" * 255
    server.nodes[f"/export/{name}"] = Node(bytearray(DATA))
    copy.copy(f"nas:/export/{name}", str(tmp_path), options())
    assert (tmp_path / name).read_bytes() == DATA


def test_a_directory_of_the_host_is_no_name(server: StandIn, tmp_path: Path) -> None:
    server.exports, server.nodes[""] = ("",), Node(mode=FOLDER)
    with pytest.raises(UsageError, match="is no name for a copy"):
        copy.copy("nas:/", "/", options(recursive=True))
