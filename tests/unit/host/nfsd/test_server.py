# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from unit.files_made import write, write_all

from nfsrdma_tools import etab
from nfsrdma_tools.cli import server as command
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import recorded
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.etab import Exported
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfsd import exports, nfsctl, serving
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.nfsd_status import (
    LIST_ENDS_EARLY,
    NO_FAMILY,
    NfsdStatus,
    PendingList,
    PendingRpc,
    Socket,
)
from nfsrdma_tools.host.state import ServerState, server_state
from nfsrdma_tools.undo import Journal


def words(text: str) -> list[str]:
    """Split and unescape a line as exports(5) does: white space ends a word, \\ooo is a byte."""
    fields = []
    for line in text.splitlines():
        for word in line.partition("#")[0].split():
            raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), word.encode())
            fields.append(os.fsdecode(raw))
    return fields


@pytest.mark.parametrize(
    "name", ["plain", "with blank", "#comment", "(ro)", 'quo"te', "a$(reboot);b", "-dash", "ä%s"]
)
def test_a_path_with_anything_printable_is_one_word(tmp_path: Path, name: str) -> None:
    path = tmp_path.resolve() / name
    path.mkdir()
    export = Export(path, ("10.0.0.0/24", "host"))
    export.check()
    fields = words(exports.render(export))
    assert fields[0] == str(path)
    assert [word.partition("(")[0] for word in fields[1:]] == ["10.0.0.0/24", "host"]


@pytest.mark.parametrize("name", ["new\nline", "tab\there", "back\\slash", "esc\x1b", "\udcff"])
def test_a_path_that_could_be_read_twice_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="backslash or control"):
        Export(tmp_path / name, ("host",)).check()


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    cases = {Path("relative"): "an absolute path", tmp_path / "none": "not a directory"}
    cases[tmp_path / "link"] = "resolves to"
    for path, message in cases.items():
        with pytest.raises(UserError, match=message):
            Export(path, ("host",)).check()


@pytest.mark.parametrize(
    "client",
    ["", "-x", "[abc]*", "a b", "a(rw)", "a,b", "a\nb", "#a", "a\\040b", '"a"', "$(id)", "ä"],
)
def test_a_client_that_is_no_client_is_refused(tmp_path: Path, client: str) -> None:
    with pytest.raises(UsageError, match="client"):
        Export(tmp_path.resolve(), (client,)).check()


@pytest.mark.parametrize(
    ("client", "fault"),
    [
        ("10.0.0.0/255.0.255.0", "network"),
        ("10.0.0.0/0.0.0.255", "'0.0.0.255' is not a netmask"),
        ("10.0.0.0/33", "network"),
        ("10.0.0.0/-1", "network"),
        ("10.0.0.0/", "network"),
        ("fd00::/129", "network"),
        ("fd00::/ffff::", "network"),
        ("999.1.1.1/8", "network"),
        ("host/24", "network"),
        ("*.example.org/24", "network"),
        ("999.1.1.1", "address"),
        ("10.0.0", "address"),
        ("fd00:::1", "address"),
        ("host:1", "address"),
        ("@", "netgroup"),
        ("@a/b", "netgroup"),
    ],
)
def test_an_address_or_netgroup_out_of_range_is_refused(
    tmp_path: Path, client: str, fault: str
) -> None:
    with pytest.raises(UsageError, match=f"client '{re.escape(client)}': .*{fault}.*man 5 exports"):
        Export(tmp_path.resolve(), (client,)).check()


@pytest.mark.parametrize(
    "client",
    ["host", "3com", "a.example.org", "*", "*.example.org", "10.0.0.*", "10.0.0.0/24", "fe80::/10",
     "10.0.0.5/8", "10.0.0.0/255.0.0.0", "0.0.0.0/0", "::/0", "192.0.2.1", "fd00::1", "@group",
     "gss/krb5p"],
)  # fmt: skip
def test_a_client_of_exports_5_is_taken(tmp_path: Path, client: str) -> None:
    Export(tmp_path.resolve(), (client,)).check()


def test_nobody_is_served_by_default(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no clients given"):
        Export(tmp_path.resolve(), ()).check()


@pytest.mark.parametrize("path", ["/proc", "/proc/sys/kernel", "/sys", "/sys/kernel"])
def test_a_pseudo_file_system_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match=f"'{path}' is on a pseudo file system, (proc|sysfs)"):
        Export(Path(path), ("host",)).check()


def test_enabling_is_refused_on_a_host_without_an_nfs_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path / "lib"))
    monkeypatch.setattr(serving, "is_installed", lambda _: False)
    export, journal = Export(tmp_path.resolve(), ("client",)), Journal(tmp_path / "x.undo")
    for request in (lambda: serving.enable(export, journal), lambda: serving.enabling(export)):
        with pytest.raises(UserError, match="found no program exportfs"):
            request()
    assert not (tmp_path / "lib").exists()


def test_a_kernel_without_nfsd_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "is_installed", lambda _: True)
    argv = ("modinfo", "-0", "--", "nfsd")
    recording = Recording()
    recording.programs[argv] = Result(argv, "", "modinfo: ERROR: Module nfsd not found.", 1)
    machine = Machine(tmp_path, recording=recording)
    write(tmp_path, "proc/sys/kernel/osrelease", "6.12-cloud\n")
    with pytest.raises(UserError, match=r"kernel 6\.12-cloud has no module nfsd"):
        serving._require_server(machine)
    (tmp_path / "sys/module/nfsd").mkdir(parents=True)
    serving._require_server(machine)


def test_the_options_are_safe_and_let_rdma_in(tmp_path: Path) -> None:
    assert {"rw", "root_squash", "insecure"} <= set(Export(tmp_path, ("a",)).options)
    assert "ro" in Export(tmp_path, ("a",), read_only=True).options


def test_a_filesystem_without_a_device_gets_a_number_that_stays() -> None:
    options = Export(Path("/proc"), ("a",)).options
    assert [o for o in options if o.startswith("fsid=")]
    assert options == Export(Path("/proc"), ("a",)).options


def test_each_path_has_its_own_file() -> None:
    assert exports.file_of(Path("/a b")) != exports.file_of(Path("/a-b"))
    assert re.fullmatch(r"nfsrdma-a-b-[0-9a-f]{8}\.exports", exports.file_of(Path("/a b")).name)


# as exportfs of nfs-utils 2.8.3 writes it
ETAB = (
    "/srv/with\\040blank\t10.0.0.0/24(rw,sync,wdelay,hide,nocrossmnt,insecure,root_squash,"
    "no_all_squash,no_subtree_check,secure_locks,acl,no_pnfs,anonuid=65534,anongid=65534,"
    "sec=sys,rw,insecure,root_squash,no_all_squash)\n"
    "/export\t*(rw,async,insecure,no_root_squash,fsid=1,sec=sys)\n"
    "a line that is none\n"
)


def test_etab_is_parsed() -> None:
    blank, export = etab.parse(ETAB)
    assert (blank.path, blank.client) == ("/srv/with blank", "10.0.0.0/24")
    assert {"rw", "insecure", "root_squash"} <= set(blank.options)
    assert export == Exported(
        "/export", "*", ("rw", "async", "insecure", "no_root_squash", "fsid=1", "sec=sys")
    )


def test_verify_compares_with_the_table(tmp_path: Path) -> None:
    table = tmp_path / "etab"
    export = Export(tmp_path, ("10.0.0.0/255.255.255.0",))
    with pytest.raises(MismatchError, match="no export"):
        exports.verify(export, table=table)
    table.write_text(f"{tmp_path}\t10.0.0.0/24({','.join(export.options)},wdelay)\n")
    exports.verify(export, table=table)
    with pytest.raises(MismatchError, match=r"10.0.0.0/24\(rw"):
        exports.verify(Export(tmp_path, ("10.0.0.0/24",), read_only=True), table=table)
    with pytest.raises(UserError, match="already exported to"):
        exports.refuse_foreign(export, table)


def test_nfsctl_reads_threads_listeners_and_versions(tmp_path: Path) -> None:
    machine = Machine(procfs=tmp_path)
    read = (nfsctl.threads(machine), nfsctl.listeners(machine), nfsctl.versions(machine))
    assert read == (0, [], [])
    folder = tmp_path / "fs/nfsd"
    folder.mkdir(parents=True)
    (folder / "threads").write_text("8\n")
    (folder / "portlist").write_text("rdma 20049\nrdma 20049\nnfr 20050\ntcp 2049\ntcp 2049\n")
    (folder / "versions").write_text("-2 +3 +4 -4.0 +4.1 +4.2\n")
    assert nfsctl.threads(machine) == 8
    listeners = nfsctl.listeners(machine)
    assert listeners == [Listener("nfr", 20050), Listener("rdma", 20049), Listener("tcp", 2049)]
    assert [each.over_rdma for each in listeners] == [True, True, False]
    assert nfsctl.versions(machine) == ["3", "4.1", "4.2"]


def test_serving_without_new_files_has_no_such_values(tmp_path: Path) -> None:
    server = serving.serving(Machine(tmp_path, recording=Recording()))
    assert server == serving.Serving(0, (), (), (), (), pending_unknown="not recorded")


NFSD = {
    "proc/fs/nfsd/threads": "96\n",
    "proc/fs/nfsd/pool_threads": "48 48\n",
    "proc/fs/nfsd/max_block_size": "4194304\n",
    "sys/module/sunrpc/parameters/pool_mode": "pernode\n",
    "sys/kernel/debug/nfsd/io_cache_read": "2\n",
    "sys/kernel/debug/nfsd/io_cache_write": "3\n",
    "sys/kernel/debug/nfsd/disable-splice-read": "1\n",
}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("threads", b"lots\n"),
        ("threads", b"9" * 5000),
        ("portlist", b"rdma 20049\ntcp abc\n"),
        ("portlist", b"rdma\n"),
        ("portlist", b"\xff\xfe 1\n"),
    ],
)
def test_a_file_that_is_none_of_nfsd_is_an_error_of_one_line(
    name: str, data: bytes, tmp_path: Path
) -> None:
    (tmp_path / "proc/fs/nfsd").mkdir(parents=True)
    (tmp_path / "proc/fs/nfsd" / name).write_bytes(data)
    with pytest.raises(UserError, match=f"^{name} of nfsd"):
        serving.serving(Machine(tmp_path))


def test_what_another_user_than_root_cannot_read_is_unknown_in_the_bundle_too(
    tmp_path: Path,
) -> None:
    write(tmp_path, "proc/fs/nfsd/portlist", "tcp 2049\n")
    server = serving.serving(Machine(tmp_path, recording=Recording(root_user=False)))
    assert (server.threads, server.versions) == (None, None)
    assert server.listeners == (nfsctl.Listener("tcp", 2049),)


def test_threads_block_size_and_io_modes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_all(tmp_path, NFSD)
    status = NfsdStatus(pool_threads=(48, 48), min_threads=8)
    machine = Machine(tmp_path, recording=Recording(nfsd=status))
    server = serving.serving(machine)
    assert (server.min_threads, server.threads, server.pool_threads) == (8, 96, (48, 48))
    assert (server.pool_mode, server.max_block_size) == ("pernode", 4 << 20)
    # 3 is a mode of a later kernel
    assert (server.io_cache_read, server.io_cache_write, server.splice_read) == (
        "direct",
        "3",
        False,
    )
    monkeypatch.setattr(serving, "serving", lambda _: server)
    command.status()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "threads    8 to 96 in 2 pools: 48, 48, pool mode pernode"
    assert "block size 4M at most, for rsize and wsize" in lines
    assert "file I/O   read direct, write 3, READ does not splice" in lines


HELD = PendingRpc(0x0AA6501C, 100003, 3, 7, 86_900_000, "10.9.1.11", 0, "10.9.1.1", 20049)
BY_NETLINK = NfsdStatus(
    pool_threads=(6, 2),
    listeners=(Socket("rdma", "10.9.1.1", 20049), Socket("rdma", "::", 20049)),
    versions=("3", "4.2"),
    pool_mode="percpu",
    pending=PendingList((HELD,), 1),
)


def shown(status: NfsdStatus | None, root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of ``server status --from`` a bundle with this status."""
    root.mkdir()
    file = root / "bundle.tar.gz"
    file.write_bytes(Bundle(notes=Recording(nfsd=status, root_user=False)).archive())
    command.status(file)
    return capsys.readouterr().out.splitlines()


def test_another_user_than_root_reads_nfsd_by_netlink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nfsd = tmp_path / "proc/fs/nfsd"
    nfsd.mkdir(parents=True)
    (nfsd / "portlist").write_text("tcp 2049\n")
    (nfsd / "threads").write_text("1\n")
    machine = Machine(tmp_path, recording=Recording(root_user=False, nfsd=BY_NETLINK))
    server = serving.serving(machine)
    assert (server.threads, server.pool_threads, server.versions) == (8, (6, 2), ("3", "4.2"))
    assert server.listeners == (Listener("rdma", 20049),)
    assert shown(BY_NETLINK, tmp_path / "b", capsys) == [
        "threads    8 in 2 pools: 6, 2, pool mode percpu",
        "listeners  rdma 20049",
        "versions   3, 4.2",
        "pending    1 RPC, the oldest for 86.9 s",
        "  0x0aa6501c NFSv3 WRITE for 86.9 s from 10.9.1.11",
    ]


def test_a_stopped_nfsd_offers_no_version(tmp_path: Path) -> None:
    # netlink has those that it would offer
    status = NfsdStatus(pool_threads=(0,), listeners=(), versions=("3",), pending=PendingList())
    server = serving.serving(Machine(tmp_path, recording=Recording(nfsd=status)))
    assert (server.threads, server.versions, server.pool_threads) == (0, (), None)


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (None, ["pending    unknown (not recorded)"]),
        (NfsdStatus(unknown={"rpc-status-get": NO_FAMILY}), [f"pending    unknown ({NO_FAMILY})"]),
        (
            NfsdStatus(unknown={"rpc-status-get": "Operation not permitted"}),
            ["pending    unknown (Operation not permitted)"],
        ),
        (NfsdStatus(pending=PendingList()), ["pending    none"]),
        (
            NfsdStatus(pending=PendingList(cut=LIST_ENDS_EARLY)),
            [f"pending    unknown ({LIST_ENDS_EARLY})"],
        ),
        (
            NfsdStatus(pending=PendingList((HELD,) * 12, 300, LIST_ENDS_EARLY)),
            [
                f"pending    at least 300 RPCs, the oldest for 86.9 s; {LIST_ENDS_EARLY}",
                *[f"  {HELD}"] * 10,
                "  and 290 more",
            ],
        ),
    ],
)
def test_nfsd_status_says_what_is_pending(
    status: NfsdStatus | None,
    lines: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = shown(status, tmp_path / "b", capsys)
    assert printed[-len(lines) :] == lines
    assert printed[-len(lines) - 1].startswith("versions ")


def test_a_container_without_the_filesystem_knows_nothing(tmp_path: Path) -> None:
    for name in ("run/.containerenv", "proc/net/rpc/nfsd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    server = serving.serving(Machine(tmp_path, recording=Recording(nfsd=BY_NETLINK)))
    assert (server.threads, server.listeners, server.pending) == (None, None, None)
    assert server.pending_unknown == "run this on the host"


HOSTILE = [
    {"pending": {"rpcs": [{"xid": "1"}]}},
    {"pending": {"rpcs": [vars(HELD) | {"client": 7}]}},
    {"pending": {"rpcs": [vars(HELD)] * 257, "count": 257}},
    {"pool_threads": [True]},
    {"versions": "3"},
    {"unknown": ["why"]},
    ["nfsd"],
]


@pytest.mark.parametrize("document", HOSTILE)
def test_another_form_of_the_record_is_one_line(document: object, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "netlink.json").write_text(json.dumps({"nfsd": document}))
    with (
        pytest.raises(UserError, match=r"^netlink\.json of the bundle is invalid: [^\n]+$"),
        recorded.opened(tmp_path),
    ):
        pass


def test_hostile_text_of_a_bundle_is_printed_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b[2J\n"
    rpc = replace(HELD, client=bad)
    status = NfsdStatus(
        (8,), None, (Socket(bad, bad, 1),), (bad,), bad, PendingList((rpc,), 1, bad)
    )
    lines = shown(status, tmp_path / "b", capsys)
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 5


def test_nfsd_that_cannot_listen_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot listen on rdma 20049"):
        nfsctl.listen("rdma", 20049, Machine(tmp_path))


def test_the_drop_in_of_nfs_conf() -> None:
    state = ServerState(True, True, 20050, versions=("3", "4.2"))
    text = serving._conf_text(state)
    assert "[nfsd]\nrdma=y\nrdma-port=20050\nvers3=y\nvers4.2=y\n" in text
    text = serving._conf_text(replace(state, requests_rdma=False))
    assert "[nfsd]\nvers3=y\nvers4.2=y\n" in text


def test_a_failed_attempt_gives_those_listeners_back(tmp_path: Path) -> None:
    book = Journal(tmp_path / "journal.json")
    serving._note_restart(ServerState(True, True, 20049, listeners=("nfr 20050",)), book)
    shown = [str(action) for action in reversed(book.actions)]
    assert shown == [
        "systemctl restart nfs-server.service",
        "write 'nfr 20050' to /proc/fs/nfsd/portlist",
    ]


def test_a_restart_keeps_the_listeners_that_only_portlist_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listeners = [Listener("nfr", 20050), Listener("rdma", 20049)]
    # nfs.conf has one of the two
    monkeypatch.setattr(serving, "_systemctl", lambda _: listeners.remove(Listener("nfr", 20050)))
    monkeypatch.setattr(nfsctl, "listeners", lambda: listeners)
    monkeypatch.setattr(nfsctl, "listen", lambda name, port: listeners.append(Listener(name, port)))
    serving._restart(ServerState(True, True, 20049, listeners=("nfr 20050", "rdma 20049")))
    assert sorted(listeners) == [Listener("nfr", 20050), Listener("rdma", 20049)]


def test_the_state_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path / "lib"))
    state = ServerState(
        True, False, 20049, made=("/etc/exports.d",), exports={"/a b": "/etc/x"}, listeners=("a 1",)
    )
    assert server_state.load() is None
    server_state.save(state)
    assert server_state.load() == state
    server_state.save(None)
    assert not (tmp_path / "lib").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON at line 1, column 1"),
        ("[]", "'was_active' is missing"),
        ("[1]", "another type"),
        ("{}", "'was_active' is missing"),
        ('{"made": [], "versions": [], "zqskey": 1}', "unknown key 'zqskey'"),
        ("\xff", "not a text in UTF-8"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_a_damaged_state_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path))
    path = tmp_path / "server.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError) as error:
        server_state.load()
    assert str(error.value).startswith(f"{path} is damaged: ")
    assert reason in error.value.message
    assert not any(word in error.value.message for word in ("__", "argument", "codec", "\n"))


def test_one_change_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path))
    with server_state.locked(), pytest.raises(UserError, match="another"), server_state.locked():
        pass
    with server_state.locked():
        pass
