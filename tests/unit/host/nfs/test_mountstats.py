# SPDX-License-Identifier: Apache-2.0
"""Golden files: three kernels' own words after a known workload.

On Debian's 6.1.0-56, 6.12.117 and 7.2.12 kernels, with client and server in one kernel and
soft-RoCE, five mounts with rsize and wsize of 64 KiB each read 23 and wrote 5 blocks of 64 KiB with
O_DIRECT: /mnt/a rdma v4.2, /mnt/b tcp v3 nconnect=4, "/mnt/c d" rdma v3 nconnect=4,
/mnt/e tcp v4.1, /mnt/g tcp v4.0.  Operations that were not called are listed for 6.12 alone, of
/mnt/a and /mnt/b.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo, mountstats
from nfsrdma_tools.host.nfs.mounts import nfs_mounts
from nfsrdma_tools.host.nfs.mountstats import (
    ByteCounts,
    MountStats,
    Operation,
    Reader,
    difference,
    parse,
    read,
    read_all,
)
from nfsrdma_tools.host.nfs.sharing import connection

DATA = Path(__file__).parents[2] / "data"
KERNELS = ("6.1", "6.12", "7.2")
BLOCK = 65536


def client(root: Path) -> Machine:
    """A host whose mounts are below proc/self."""
    (root / "proc/self").mkdir(parents=True)
    return Machine(root)


def golden(kernel: str) -> dict[str, MountStats]:
    text = mountinfo.read_text(DATA / f"mountstats-{kernel}.txt")
    return {str(stats.directory): stats for stats in parse(text)}


@pytest.fixture(params=KERNELS)
def mounts(request: pytest.FixtureRequest) -> dict[str, MountStats]:
    return golden(request.param)


def test_nfs_mounts_and_no_others(mounts: dict[str, MountStats]) -> None:
    fstypes = {directory: stats.fstype for directory, stats in mounts.items()}
    assert fstypes == {
        "/mnt/a": "nfs4", "/mnt/b": "nfs", "/mnt/c d": "nfs", "/mnt/e": "nfs4", "/mnt/g": "nfs4",
    }  # fmt: skip
    assert {stats.device for stats in mounts.values()} == {"server:/export"}


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_but_operations_can_be_read_alone(kernel: str) -> None:
    text = mountinfo.read_text(DATA / f"mountstats-{kernel}.txt")
    whole = parse(text)
    assert all(stats.operations for stats in whole)
    without = [replace(stats, operations={}) for stats in whole]
    assert parse(text, with_operations=False) == without


def test_23_reads_are_23_reads(mounts: dict[str, MountStats]) -> None:
    for stats in mounts.values():
        read_, write = stats.operations["READ"], stats.operations["WRITE"]
        assert (read_.operations, read_.transmissions, read_.timeouts, read_.errors) == (
            23,
            23,
            0,
            0,
        )
        assert (write.operations, write.transmissions, write.errors) == (5, 5, 0)
        assert 23 * BLOCK < read_.bytes_received < 23 * (BLOCK + 256)
        assert 5 * BLOCK < write.bytes_sent < 5 * (BLOCK + 256)
        assert read_.execute_ms >= read_.rtt_ms > 0


def test_bytes_went_the_direct_way(mounts: dict[str, MountStats]) -> None:
    for stats in mounts.values():
        assert stats.bytes == ByteCounts(
            direct_read=23 * BLOCK, direct_write=5 * BLOCK,
            server_read=23 * BLOCK, server_write=5 * BLOCK,
        )  # fmt: skip


def test_one_connection_per_nconnect(mounts: dict[str, MountStats]) -> None:
    protos = {directory: [x.proto for x in stats.xprts] for directory, stats in mounts.items()}
    assert protos == {
        "/mnt/a": ["rdma"], "/mnt/b": ["tcp"] * 4, "/mnt/c d": ["rdma"] * 4,
        "/mnt/e": ["tcp"], "/mnt/g": ["tcp"],
    }  # fmt: skip


def test_rdma_columns_are_in_their_places(mounts: dict[str, MountStats]) -> None:
    (xprt,) = mounts["/mnt/a"].xprts
    # one write chunk per READ, one read chunk per WRITE; data goes in no other way
    assert (xprt.counters["write_chunk_count"], xprt.counters["read_chunk_count"]) == (23, 5)
    assert 23 * BLOCK <= xprt.counters["total_rdma_reply"] < 24 * BLOCK
    assert (xprt.counters["sends"], xprt.counters["connect_count"]) == (xprt.counters["recvs"], 1)
    assert xprt.counters["mrs_allocated"] == 11
    assert len(xprt.counters) == 27
    four = mounts["/mnt/c d"].xprts
    assert sum(x.counters["write_chunk_count"] for x in four) == 23
    assert sum(x.counters["read_chunk_count"] for x in four) == 5


def test_tcp_columns_are_in_their_places(mounts: dict[str, MountStats]) -> None:
    stats = mounts["/mnt/b"]
    assert all(len(x.counters) == 13 for x in stats.xprts)
    assert all(0 < x.counters["port"] < 1024 for x in stats.xprts)
    assert len({x.counters["port"] for x in stats.xprts}) == 4
    assert [x.counters["max_slots"] for x in stats.xprts] == [2, 2, 2, 2]
    sends = sum(x.counters["sends"] for x in stats.xprts)
    # each connection of nconnect sends a NULL of its own, beside the mount's operations
    asked = sum(operation.transmissions for operation in stats.operations.values())
    assert asked <= sends <= asked + 4


def test_options_and_age(mounts: dict[str, MountStats]) -> None:
    assert (mounts["/mnt/a"].options["proto"], mounts["/mnt/a"].options["vers"]) == ("rdma", "4.2")
    assert mounts["/mnt/b"].options["nconnect"] == "4"
    assert all(0 <= stats.age_s < 60 for stats in mounts.values())


@pytest.mark.parametrize("kernel", KERNELS)
def test_mountinfo_says_the_same(kernel: str) -> None:
    entries = mountinfo.parse(mountinfo.read_text(DATA / f"mountinfo-{kernel}.txt"))
    by_directory = {str(mount.directory): mount for mount in nfs_mounts(entries)}
    stats = golden(kernel)
    assert by_directory.keys() == stats.keys()
    for directory, mount in by_directory.items():
        assert {x.proto for x in stats[directory].xprts} == {mount.transport}
        assert len(stats[directory].xprts) == mount.nconnect
        assert (mount.rsize, mount.wsize) == (BLOCK, BLOCK)
    assert [m.vers for m in by_directory.values()] == ["4.2", "3", "3", "4.1", "4.0"]


def test_an_older_kernels_list_of_volumes(tmp_path: Path) -> None:
    volumes = tmp_path / "proc/fs/nfsfs/volumes"
    volumes.parent.mkdir(parents=True)
    volumes.write_bytes((DATA / "nfsfs-volumes-6.1.txt").read_bytes())
    entries = mountinfo.parse(mountinfo.read_text(DATA / "mountinfo-6.1.txt"))
    devices = [e.device for e in entries if e.fstype in {"nfs", "nfs4"}]
    assert [connection(device, Machine(tmp_path)) for device in devices] == [
        "v4 0a090101 4e51", "v3 0a090101 801", "v3 0a090101 4e51",
        "v4 0a090101 801", "v4 0a090101 801",
    ]  # fmt: skip


def test_a_file_is_read_by_mount_point(tmp_path: Path) -> None:
    machine = client(tmp_path)
    for name in ("mountinfo", "mountstats"):
        machine.of_process(name).symlink_to(DATA / f"{name}-6.12.txt")
    stats = read(Path("/mnt/c d"), machine)
    assert stats.directory == Path("/mnt/c d")
    with pytest.raises(UserError, match="/mnt/c is not an NFS mount point"):
        read(Path("/mnt/c"), machine)


def test_difference_counts_what_happened_between() -> None:
    after = golden("6.12")["/mnt/a"]
    nothing = difference(after, after)
    assert nothing.operations["READ"] == Operation(0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert nothing.bytes == ByteCounts()
    assert nothing.xprts[0].counters["sends"] == 0
    assert nothing.xprts[0].counters["idle_time"] == after.xprts[0].counters["idle_time"]
    before = replace(after, operations={}, bytes=ByteCounts(server_read=BLOCK), age_s=0)
    between = difference(after, before)
    assert between.operations == after.operations
    assert between.bytes.server_read == 22 * BLOCK
    assert between.age_s == after.age_s


def test_a_mount_made_anew_has_no_difference() -> None:
    first, second = golden("6.12")["/mnt/a"], golden("6.12")["/mnt/b"]
    for after, before in ((first, second), (first, replace(first, age_s=first.age_s + 1))):
        with pytest.raises(UserError, match="was remounted"):
            difference(after, before)
    with pytest.raises(UserError, match="was remounted"):
        difference(second, replace(second, xprts=second.xprts[:2]))


def test_kernels_with_fewer_and_with_more_columns() -> None:
    text = (DATA / "mountstats-6.12.txt").read_text()
    older = text.replace("READ: 23 23 0 4048 1509720 10 470 486 0", "READ: 23 23 0 1 2 3 4 5")
    assert older != text
    stats = next(s for s in parse(older) if str(s.directory) == "/mnt/a")
    assert stats.operations["READ"] == Operation(23, 23, 0, 1, 2, 3, 4, 5, 0)
    newer = text.replace("11 0 0 0\n", "11 0 0 0 99\n")
    assert newer != text
    assert parse(newer) == parse(text)


def test_a_transport_nobody_knows_has_no_counters() -> None:
    text = (DATA / "mountstats-6.12.txt").read_text().replace("xprt:\trdma ", "xprt:\tpigeon ")
    (xprt,) = next(s for s in parse(text) if str(s.directory) == "/mnt/a").xprts
    assert (xprt.proto, xprt.counters) == ("pigeon", {})


@pytest.mark.parametrize("odd", ["xprt:\trdma odd ", "xprt:\trdma 0 0 1 x "])
def test_a_word_among_the_numbers_of_a_connection_hides_no_mount(odd: str) -> None:
    text = (DATA / "mountstats-6.12.txt").read_text()
    changed = text.replace("xprt:\trdma ", odd, 1)
    assert changed != text
    parsed, expected = parse(changed), parse(text)
    assert [stats.directory for stats in parsed] == [stats.directory for stats in expected]
    xprts = [xprt for stats in parsed for xprt in stats.xprts]
    assert [xprt.counters for xprt in xprts].count({}) == 1
    assert [xprt.proto for xprt in xprts] == [
        xprt.proto for stats in expected for xprt in stats.xprts
    ]


def test_an_error_names_the_mount_and_no_text_of_python() -> None:
    text = (DATA / "mountstats-6.12.txt").read_text().replace("\tbytes:\t", "\tbytes:\tx ", 1)
    with pytest.raises(UserError) as error:
        parse(text)
    (first, *_) = parse(text.replace("\tbytes:\tx ", "\tbytes:\t"))
    expected = f"cannot parse mountstats: a line of {first.directory} has other columns"
    assert error.value.message == expected


@settings(deadline=None)
@given(st.data())
def test_a_broken_file_ends_in_one_clear_error(data: st.DataObject) -> None:
    text = (DATA / "mountstats-6.1.txt").read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 200, len(text))))
    broken = text[:start] + data.draw(st.text(max_size=20)) + text[end:]
    try:
        parse(broken)
    except UserError as error:
        assert "cannot parse mountstats" in error.message


def test_data_is_read_with_either_operation() -> None:
    stats = golden("6.12")["/mnt/a"]
    plus = replace(stats, operations={**stats.operations, "READ_PLUS": Operation(*range(9))})
    assert stats.data("read") == stats.operations["READ"]
    assert stats.data("write") == stats.operations["WRITE"]
    assert plus.data("read").transmissions == 23 + 1
    assert replace(stats, operations={}).data("read") == Operation(0, 0, 0, 0, 0, 0, 0, 0)


# name and domain of an implementation id: a server sends at most so many bytes of each
MOST = 1024
LINE = "{n} 20 0:{n} / {directory} rw - {fstype} server:/export rw,vers=4.2,proto=rdma\n"
SHORT = (
    "\topts:\trw,vers=4.2\n\tage:\t5\n\timpl_id:\tname='',domain='',date='0,0'\n"
    "\tcaps:\tcaps=0x1\n\tbytes:\t0 0 0 0 7 0 0 0 \n\txprt:\trdma 0 0 1 0 0 5 5 0\n"
    "\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n\n"
)
HEAD = "device server:/export mounted on {directory} with fstype {fstype} statvers=1.1\n"


def kernels_own(directory: str) -> str:
    """The lines of a mount in a golden file, without the first."""
    text = mountinfo.read_text(DATA / "mountstats-6.12.txt")
    head = HEAD.format(directory=directory, fstype="nfs4" if directory != "/mnt/b" else "nfs")
    return text.partition(head)[2].partition("\ndevice ")[0] + "\n"


BODIES = {"nfs4": kernels_own("/mnt/a"), "nfs": kernels_own("/mnt/b")}


def host(places: list[tuple[str, str]], bodies: list[str]) -> tuple[list[mountinfo.Entry], str]:
    """Mounts as (mount point, type): mountinfo, and mountstats with the text below each head."""
    lines, stats = "", "device proc mounted on /proc with fstype proc\n"
    for n, ((directory, fstype), body) in enumerate(zip(places, bodies, strict=True), 40):
        lines += LINE.format(n=n, directory=directory, fstype=fstype)
        stats += HEAD.format(directory=directory, fstype=fstype) + body
        stats += f"no device mounted on /other/{n} with fstype tmpfs\n"
    return mountinfo.parse(lines), stats


def hostile(body: str, name: str, domain: str) -> str:
    old = "impl_id:\tname='',domain='',date"
    assert body.count(old) == 1
    return body.replace(old, f"impl_id:\tname='{name}',domain='{domain}',date")


@settings(deadline=None)
@given(st.data())
def test_no_server_adds_or_hides_or_changes_a_mount(data: st.DataObject) -> None:
    places = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["/a", "/b", "/c\\040d"]), st.sampled_from(["nfs", "nfs4"])),
            min_size=1, max_size=5,
        )
    )  # fmt: skip
    bodies = []
    for number, (_, fstype) in enumerate(places):
        # the counters tell the records apart
        body = BODIES[fstype].replace("READ: 23 23", f"READ: {number} {number}")
        bodies.append(body.replace("bytes:\t0 0", f"bytes:\t{number} 0"))
    entries, honest = host(places, bodies)
    heads = [HEAD.format(directory=d, fstype=f) for d, f in {*places, ("/forged", "nfs4")}]
    end, start = "',domain='x',date='0,0'\n\tcaps:\tcaps=0\n", "\tage:\t1\n\timpl_id:\tname='"
    counts = (
        "\tbytes:\t9 9 9 9 9 9 9 9 \n\txprt:\ttcp 1 1 1 1 1 1 1 1 1 1 1 1 1\n"
        "\tper-op statistics\n\t        READ: 8 8 8 8 8 8 8 8 8\n"
    )
    pieces = st.sampled_from(
        [
            *(f"{end}{counts}{head}{start}" for head in heads),
            *(f"{head}{start}{end}" for head in heads),
            *heads, end, start, counts, "bytes: x\n", "\n", "no device mounted on /", "." * 700,
        ]
    )  # fmt: skip
    words = st.lists(pieces | st.text(max_size=9), max_size=6).map(lambda w: "".join(w)[:MOST])
    attacked = [
        hostile(body, ("x\n" + data.draw(words))[:MOST], data.draw(words))
        if "impl_id" in body
        else body
        for body in bodies
    ]
    _, text = host(places, attacked)
    assert [(str(s.directory), s.fstype) for s in parse(honest, entries)] == [
        (mountinfo.unescape(directory), fstype) for directory, fstype in places
    ]
    assert parse(text, entries) == parse(honest, entries)


@pytest.mark.parametrize("line", ["    user@host:/usr/obj\n", "device user@host:/usr/obj\n"])
@pytest.mark.parametrize("checked", [True, False])
def test_a_servers_line_breaks_hide_nothing(line: str, checked: bool) -> None:
    """A FreeBSD server sends its kernel's version: three lines."""
    places = [("/a", "nfs4"), ("/b", "nfs4"), ("/c", "nfs4")]
    odd = hostile(SHORT, f"FreeBSD 14.1\n{line}", "freebsd.org")
    entries, text = host(places, [odd, SHORT, odd])
    parsed = parse(text, entries if checked else None)
    assert [str(stats.directory) for stats in parsed] == ["/a", "/b", "/c"]
    assert {(s.age_s, s.bytes.server_read, s.operations["NULL"].operations) for s in parsed} == {
        (5, 7, 1)
    }
    assert {len(stats.xprts) for stats in parsed} == {1}


def test_a_forged_record_is_none_and_the_rest_of_the_true_one_counts() -> None:
    places = [("/hostile", "nfs4"), ("/victim", "nfs4"), ("/stranger", "nfs4")]
    forged = "".join(
        HEAD.format(directory=where, fstype="nfs4") + SHORT.replace("bytes:\t0", "bytes:\t66")
        for where in ("/victim", "/none")
    )
    entries, text = host(places, [hostile(SHORT, f"\n{forged}", ""), SHORT, SHORT])
    parsed = parse(text, entries)
    assert [str(stats.directory) for stats in parsed] == ["/hostile", "/victim", "/stranger"]
    assert [stats.bytes.normal_read for stats in parsed] == [0, 0, 0]


def test_a_mount_that_mountinfo_lacks_is_left_out_and_hides_no_other() -> None:
    places = [("/a", "nfs4"), ("/b", "nfs"), ("/c", "nfs4"), ("/d", "nfs")]
    entries, text = host(places, [BODIES[fstype] for _, fstype in places])
    for missing in range(4):
        left = [entry for n, entry in enumerate(entries) if n != missing]
        parsed = parse(text, left)
        assert [stats.directory for stats in parsed] == [entry.directory for entry in left]
    before, _, rest = text.partition(HEAD.format(directory="/b", fstype="nfs"))
    without_b = before + rest.partition("no device")[2]
    assert [str(s.directory) for s in parse(without_b, entries)] == ["/a", "/c", "/d"]


def test_mountinfo_beside_the_file_is_what_counts(tmp_path: Path) -> None:
    places = [("/a", "nfs4"), ("/b", "nfs4")]
    _, text = host(places, [SHORT, SHORT])
    machine = client(tmp_path)
    machine.of_process("mountstats").write_text(text)
    assert len(read_all(machine)) == 2
    machine.of_process("mountinfo").write_text(LINE.format(n=41, directory="/b", fstype="nfs4"))
    (only,) = read_all(machine)
    assert str(only.directory) == "/b"


def test_a_reader_reads_mountinfo_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = client(tmp_path)
    info, stats = machine.of_process("mountinfo"), machine.of_process("mountstats")
    line = "{0} 22 0:{0} / /mnt/{1} rw - nfs server:/export rw,vers=3\n"
    head = "device server:/export mounted on /mnt/{} with fstype nfs statvers=1.1\n\tage:\t1\n"
    info.write_text(line.format(45, "a"))
    stats.write_text(head.format("a"))
    changes: list[bool] = []
    monkeypatch.setattr(mountinfo.Watch, "changed", lambda _: changes.pop(0))
    taken: list[Path] = []
    read_text = mountinfo.read_text

    def counted(path: Path) -> str:
        taken.append(path)
        return read_text(path)

    monkeypatch.setattr(mountinfo, "read_text", counted)
    reader = Reader(machine)

    def seen(*answers: bool) -> tuple[list[str], int]:
        changes[:] = answers
        taken.clear()
        return [record.directory.name for record in reader.read()], len(taken)

    assert seen(True, False) == (["a"], 1)
    assert seen(False, False) == (["a"], 0)
    # a mount while it reads
    info.write_text(line.format(45, "a") + line.format(46, "b"))
    stats.write_text(head.format("a") + head.format("b"))
    assert seen(False, True) == (["a", "b"], 2)
    assert seen(False, False) == (["a", "b"], 1)
    assert seen(False, False) == (["a", "b"], 0)
    # a folder above a mount has another name
    info.write_text(line.format(45, "c") + line.format(46, "b"))
    stats.write_text(head.format("c") + head.format("b"))
    assert seen(False, False) == (["c", "b"], 2)
    assert seen(False, False) == (["c", "b"], 1)


def many(counts: dict[int, int], mounts: int = 1000, ops: int = 60) -> str:
    """mountstats of NFS mounts; ``counts`` are RPCs of the first operation by mount."""
    head = "device s:/{0} mounted on /m{0} with fstype nfs4 statvers=1.1\n\tage:\t5\n"
    lines = [f"\t  OP{n}: {{1}} 1 0 4 4 0 0 0 0\n" if n == 0 else f"\t  OP{n}: 7 7 0 4 4 0 0 0 0\n"
             for n in range(ops)]  # fmt: skip
    record = head + "\tper-op statistics\n" + "".join(lines)
    return "".join(record.format(n, counts.get(n, 1)) for n in range(mounts))


def test_only_changed_operations_are_parsed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With any number of mounts: a cache of fixed size, read in sequence, is of no use."""
    machine = client(tmp_path)
    info, stats = machine.of_process("mountinfo"), machine.of_process("mountstats")
    info.write_text("".join(
        f"{n + 40} 29 0:{n + 40} / /m{n} rw - nfs4 s:/{n} rw\n" for n in range(1000)
    ))  # fmt: skip
    stats.write_text(many({}))
    monkeypatch.setattr(mountinfo.Watch, "changed", lambda _: False)
    parsed: list[str] = []
    real = mountstats._operation

    def counted(line: str) -> tuple[str, Operation] | None:
        parsed.append(line)
        return real(line)

    monkeypatch.setattr(mountstats, "_operation", counted)
    reader = Reader(machine)
    before = reader.read()
    assert len(before) == 1000
    assert len(parsed) >= 60_000
    parsed.clear()
    assert reader.read() == before
    assert parsed == []
    stats.write_text(many({5: 9, 700: 9}))
    after = reader.read()
    assert parsed == ["\t  OP0: 9 1 0 4 4 0 0 0 0"] * 2
    grown = [n for n in range(1000) if difference(after[n], before[n]).operations["OP0"].operations]
    assert grown == [5, 700]
    # what is gone is forgotten
    info.write_text("")
    stats.write_text("")
    monkeypatch.setattr(mountinfo.Watch, "changed", lambda _: True)
    reader.read()
    assert not reader._operations
