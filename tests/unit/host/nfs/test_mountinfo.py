# SPDX-License-Identifier: Apache-2.0
import os
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfs.fstab import find, nfs_lines, transport
from nfsrdma_tools.host.nfs.mountinfo import (
    at,
    canonical,
    closed,
    options,
    parse,
    read,
    unescape,
    without_links,
)

PLUGINS = Path(__file__).parents[4] / "playbooks/plugins"


def escape(text: str) -> str:
    # mangle() of fs/proc_namespace.c with show_mountinfo's characters
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)


def line(directory: str, source: str = "server:/x", number: int = 40, fstype: str = "nfs4") -> str:
    optional = "shared:5 master:1" if number % 2 else ""
    fields = f"{number} 25 0:45 / {escape(directory)} rw,relatime {optional}".strip()
    return f"{fields} - {fstype} {escape(source)} rw,vers=4.2,rsize=524288,proto=rdma"


def test_reads_this_machine() -> None:
    entries = read()
    assert at(Path("/proc"), entries) is not None
    assert {entry.fstype for entry in entries if entry.directory == Path("/proc")} == {"proc"}


def test_mounts_are_new_once() -> None:
    watch = mountinfo.Watch()
    assert watch.changed()
    # this machine's may change meanwhile, but not each time
    assert not all(watch.changed() for _ in range(100))


def test_one_entry_in_all_its_parts() -> None:
    (entry,) = parse(line("/mnt/a") + "\n")
    assert (entry.id, entry.parent, entry.device, entry.root) == (40, 25, "0:45", "/")
    assert (entry.directory, entry.fstype, entry.source) == (Path("/mnt/a"), "nfs4", "server:/x")
    assert entry.options == {"rw": "", "vers": "4.2", "rsize": "524288", "proto": "rdma"}


@pytest.mark.parametrize(
    "name", ["a b", "a - nfs4 b", "a\nb", "a\\040b", "a\rb", "a\u2028b", "a\x0bb", "#", "a\udcffb"]
)
def test_hostile_directories_are_one_entry_each(name: str) -> None:
    text = "\n".join([line(f"/mnt/{name}", number=41), line("/mnt/other", number=42)])
    first, second = parse(text)
    assert (first.directory, second.directory) == (Path(f"/mnt/{name}"), Path("/mnt/other"))


# fstab(5) may have any byte as an octal escape, and any character as it is
@pytest.mark.parametrize("written", ["f\\303\\274r", "für", "f\\303\udcbcr"])
def test_bytes_beyond_ascii_are_one_name_in_fstab(written: str) -> None:
    line = f"server:/x\t/mnt/{written}\u00a0a nfs  proto=rdma 0 0\n"
    directory = Path("/mnt/für\u00a0a")
    assert unescape(f"/mnt/{written}\u00a0a") == str(directory)
    assert [(entry.directory, transport(entry.options)) for entry in nfs_lines(line)] == [
        (directory, "rdma")
    ]
    assert find(line, directory) == line.rstrip("\n")
    # Ansible's module runs without this package, and has a copy
    definition = runpy.run_path(str(PLUGINS / "module_utils/definition.py"))
    assert definition["fstab_entry"](line, str(directory)) == (line.rstrip("\n"), 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("defaults", "tcp"),
        ("udp", "udp"),
        ("udp,vers=3", "udp"),
        ("proto=udp6", "udp"),
        ("rdma,port=20049", "rdma"),
        # mount.nfs uses the last one
        ("rdma,proto=tcp", "tcp"),
        ("proto=tcp,rdma", "rdma"),
        ('context="a:c1,udp"', "tcp"),
    ],
)
def test_the_transport_of_a_line_is_the_one_that_mount_uses(options: str, expected: str) -> None:
    (line,) = nfs_lines(f"server:/x /mnt nfs {options} 0 0\n")
    assert transport(line.options) == expected


def test_links_are_followed_up_to_a_mount_that_may_hang(tmp_path: Path) -> None:
    (tmp_path / "var/mnt").mkdir(parents=True)
    (tmp_path / "mnt").symlink_to("var/mnt")
    (tmp_path / "var/mnt/data").symlink_to("../../data")
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/link").symlink_to("/elsewhere")
    (tmp_path / "loop").symlink_to("loop")
    entries = parse(line("/data/deep", number=41))
    path, links = without_links(Path("/mnt/data/deep/link"), closed(entries), tmp_path)
    assert path == Path("/data/deep/link")
    assert list(links) == [Path("/mnt"), Path("/var/mnt/data")]
    assert without_links(Path("/mnt/x"), (), tmp_path)[0] == Path("/var/mnt/x")
    assert without_links(Path("/loop/x"), (), tmp_path)[0].name == "x"
    assert without_links(Path("/"), (), tmp_path)[0] == Path("/")


# a file's name is bytes, and Python decodes each of them
NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1),
    st.lists(st.sampled_from(sorted({*range(256)} - {*b"\0/"})), min_size=1).map(
        lambda name: os.fsdecode(bytes(name))
    ),
)


@settings(deadline=None)
@given(NAMES)
def test_every_name_survives_the_escapes(name: str) -> None:
    if name in {".", ".."}:
        return
    assert unescape(escape(name)) == name
    (entry,) = parse(line(f"/mnt/{name}", source=f"server:/{name}"))
    assert (entry.directory, entry.source) == (Path(f"/mnt/{name}"), f"server:/{name}")


@settings(deadline=None)
@given(st.text())
def test_no_text_ends_in_a_traceback(text: str) -> None:
    try:
        parse(text)
    except UserError as error:
        assert "mountinfo" in error.message


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    machine = Machine(procfs=tmp_path)
    (tmp_path / "self").mkdir()
    machine.of_process("mountinfo").write_bytes(line("/mnt/X").encode().replace(b"X", b"\xff\r"))
    (entry,) = read(machine)
    assert os.fsencode(entry.directory) == b"/mnt/\xff\r"


def test_an_empty_source_is_read() -> None:
    (entry,) = parse(line("/mnt/a", source=""))
    assert entry.source == ""


def test_commas_between_quotes_do_not_split() -> None:
    text = 'rw,context="system_u:object_r:nfs_t:s0:c1,c2",vers=3,addr=fe80::1%2,x='
    assert options(text) == {
        "rw": "", "context": '"system_u:object_r:nfs_t:s0:c1,c2"', "vers": "3",
        "addr": "fe80::1%2", "x": "",
    }  # fmt: skip


def test_the_topmost_of_two_mounts_is_found() -> None:
    entries = parse("\n".join([line("/mnt", "a:/1", 30), line("/mnt", "b:/2", 31)]))
    entry = at(Path("/mnt"), entries)
    assert entry is not None
    assert entry.source == "b:/2"


def test_links_lead_to_the_mount_point(tmp_path: Path) -> None:
    real = tmp_path / "real" / "mnt"
    real.mkdir(parents=True)
    (tmp_path / "beside").symlink_to(tmp_path / "real")
    (tmp_path / "onto").symlink_to(real)
    entries = parse(line(str(real)))
    for path in (real, tmp_path / "beside" / "mnt", tmp_path / "onto", tmp_path / "x/../real/mnt"):
        assert canonical(path, entries) == real


def test_a_mount_point_is_found_without_a_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> str:
        raise AssertionError("a dead server would hang here")

    entries = parse(line("/mnt/dead"))
    monkeypatch.setattr("os.path.realpath", hang)
    assert at(Path("/mnt/dead"), entries) == entries[0]


@pytest.mark.parametrize(
    ("proto", "over_rdma"),
    [("proto=rdma,", True), ("proto=rdma6,", True), ("proto=tcp,", False), ("", False)],
)
def test_the_transport_of_a_mount(proto: str, over_rdma: bool) -> None:
    (entry,) = mountinfo.parse(f"61 22 0:52 / /mnt rw - nfs4 server:/export rw,{proto}vers=4.2\n")
    assert entry.over_rdma is over_rdma
