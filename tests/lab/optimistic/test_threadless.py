# SPDX-License-Identifier: Apache-2.0
"""Threadless reads: data, changes that end permits, what is not answered, and the ends of things.

The personality is read-write unless a test names another.
"""

import ctypes
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lab.optimistic.access import (
    WITHDRAWALS,
    check_acl_by_nfs,
    check_changes,
    check_credentials,
    check_opened_for_writing,
    check_withdrawn,
    check_withdrawn_meanwhile,
    read_all_kinds,
)
from lab.optimistic.exports import make_disks
from lab.optimistic.faults import (
    check_restarts,
    check_unmounts,
    more_optimistic_reads,
    steady,
    unload,
)
from lab.optimistic.staleness import SEED, Round, campaign, misreads_holes, stale
from lab.optimistic.unsuitable import read_nameless, read_poisoned, read_unsuitable

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import damageable, finished
from testbed.labs import OURS, Record, cards_lab, choose, counts_listeners, serve
from testbed.mounts import PARAMETERS, nothing_lost, set_to
from testbed.node import mounts
from testbed.node.grants import (
    BLOCK,
    CARDS,
    DISK,
    EXPORT,
    LIBC,
    MIB,
    Reader,
    disconnects,
    made,
    mounted_export,
    nothing_in_use,
    totals,
)
from testbed.node.mounts import CLIENTS, connections
from testbed.node.programs import call, until
from testbed.peers import threadless_client
from testbed.peers.site import FOLDER
from testbed.peers.threadless_client import Replies
from testbed.remote import on
from testbed.tracing import said as traced
from testbed.tracing import tracing

MOST = 65536
# with a second connection for optimistic reads, or lanes, the client asks for other Replies
PERSONALITIES = (
    "read-write",
    "pre-posted",
    "optimistic",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("cached", "padded")),
)


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; the server answers READs without a thread."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "threadless") as lab:
        prepare(lab)
        make_disks(lab)
        yield lab


def prepare(lab: Lab) -> None:
    serve(lab, "server", OURS)
    set_to(lab, "client", "server_threadless", str(MOST))


# --- data ---


@pytest.mark.parametrize("name", PERSONALITIES)
def test_data_of_every_size_and_offset_is_right(cards: Lab, name: str) -> None:
    folder = DISK if name == "read-write" else EXPORT
    with nothing_lost(cards, "client"):
        choose(cards, name)
        try:
            reads = read_all_kinds(cards, "vers=3,noac,rsize=65536", folder, name)
        finally:
            set_to(cards, "client", "personality", "read-write")
    hits = reads.server["threadless_hits"]
    # the others: the first of each second, the end of the file
    assert hits + reads.direct["optimistic_reads"] > 100
    assert hits > 50
    assert reads.server["threadless_bytes"] > MIB


def test_version_4_is_answered_by_nfsd(cards: Lab) -> None:
    reads = read_all_kinds(cards, "vers=4.2,noac", EXPORT, "read-write")
    assert reads.server["threadless_hits"] == 0


# --- changes ---


@pytest.mark.parametrize(("folder", "view"), [(EXPORT, "tcp"), (DISK, "server")], ids=str)
def test_each_change_ends_the_permits_before_it_returns(
    cards: Lab, folder: Path, view: str
) -> None:
    check_changes(cards, folder, view)


def test_a_permit_belongs_to_the_credentials_of_a_reader(cards: Lab, long: bool) -> None:
    check_credentials(cards, 60 if long else 5, 1 / 3)


@pytest.mark.parametrize("how", WITHDRAWALS)
def test_another_export_ends_access_in_time(cards: Lab, how: str) -> None:
    check_withdrawn(cards, how, 1)


def test_access_that_is_withdrawn_while_nfsd_reads(cards: Lab) -> None:
    check_withdrawn_meanwhile(cards)


def test_nfsd_reads_a_file_that_is_open_for_writing(cards: Lab) -> None:
    check_opened_for_writing(cards)


@pytest.mark.parametrize("version", [pytest.param("3", marks=pytest.mark.nightly), "4.2"])
def test_an_acl_set_over_nfs_ends_access(cards: Lab, version: str) -> None:
    """fsnotify does not report it: each READ compares ctime."""
    check_acl_by_nfs(cards, DISK, version)


# --- what nfsd answers ---


@pytest.mark.parametrize(
    "name",
    [
        "file system in user space",
        "lower layer of an overlay",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in (
                "file system of another server",
                "upper layer of an overlay",
                "file of ext4 by itself",
                "swap file",
            )
        ),
    ],
)
def test_what_does_not_suit_is_answered_by_nfsd(cards: Lab, name: str) -> None:
    assert read_unsuitable(cards, name).optimistic == 0


def test_a_file_without_a_name_is_answered_by_nfsd(cards: Lab) -> None:
    read_nameless(cards, DISK)


def test_a_poisoned_page_is_answered_by_nfsd(cards: Lab) -> None:
    if not read_poisoned(cards, EXPORT):
        pytest.skip(f"kernel {cards.config.kernel} poisons no page; missed: poison in /export")


# --- the ends of things ---


def test_an_exported_file_system_unmounts(cards: Lab) -> None:
    check_unmounts(cards)


def test_readers_survive_restarts_of_the_server(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        check_restarts(cards, 30 if long else 2)


def remove(card: str, *, surprise: bool) -> None:
    """Remove a card, as an administrator or as one that is pulled out, and add it again."""
    links = json.loads(call("rdma", "-j", "link"))
    netdev = next(link["netdev"] for link in links if link["ifname"] == card)
    if surprise:
        (CARDS / card / "gone").write_text("1")
    else:
        call("rdma", "link", "delete", card)
    until("removal", lambda: not Path("/sys/class/infiniband", card).exists())
    call("rdma", "link", "add", card, "type", "nfsrdma_card", "netdev", netdev)
    until(card, lambda: f"link {card}/1 state ACTIVE" in call("rdma", "link", check=False))


def pages_of(path: Path) -> int:
    """Pages of a file in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as room:
        flags = (ctypes.c_ubyte * (-(-len(room) // BLOCK)))()
        start = ctypes.c_char.from_buffer(room)
        failed = LIBC.mincore(ctypes.byref(start), ctypes.c_size_t(len(room)), flags)
        # it would keep the mapping
        del start
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(flag & 1 for flag in flags)


@on("client")
def check_removals(times: int) -> None:
    """Remove the device of the server or of the client while replies to READs are in flight.

    The card reports completions 0.2 seconds late, and each reply keeps its pages until then. A
    page that a reply still holds afterwards stays in the page cache when the caches are dropped.
    """
    file, sizes = DISK / "removed", (BLOCK, BLOCK, 16 * BLOCK, 16 * BLOCK)
    data = made(file, 46)
    os.sync()
    with mounted_export("vers=3,noac,timeo=50", folder=DISK):
        with ExitStack() as stack:
            for size in sizes:
                stack.enter_context(steady("removed", data, size))
            for number in range(times):
                more_optimistic_reads()
                folder = mounts.SERVER if number % 2 else CLIENTS
                (card,) = {each["device"] for each in connections(folder)}
                serving = {each["device"] for each in connections(mounts.SERVER)}
                for each in serving:
                    (CARDS / each / "completion_delay").write_text("200000000")
                more_optimistic_reads()
                until("replies in flight", lambda: totals()["reply_pages"])
                remove(card, surprise=number % 4 > 1)
                for each in serving - {card}:
                    (CARDS / each / "completion_delay").write_text("0")
            more_optimistic_reads()
        assert disconnects() >= times
    nothing_in_use()
    assert totals()["reply_pages"] == 0
    assert pages_of(file) > 0

    def is_dropped() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        return not pages_of(file)

    until("an empty page cache", is_dropped, limit=20)
    file.unlink()


def test_readers_survive_the_removal_of_a_device(cards: Lab, long: bool) -> None:
    """Replies are in flight; the next connection has hits again, and no page stays held."""
    times = 40 if long else 4
    with nothing_lost(cards, "client"):
        check_removals.at(timeout=120 * times)(cards, times)


@on("client", timeout=300)
def unload_at_once() -> None:
    """Unload the module while a file is watched that clients have just read."""
    made(EXPORT / "unloads", 50, MIB)
    with mounted_export(), Reader("unloads") as reader:
        reader.granted()
    Path("/proc/fs/nfsd/threads").write_text("0")
    unload()


def test_it_unloads_while_permits_are_fresh(cards: Lab) -> None:
    """The files of the permits are watched until then."""
    unload_at_once(cards)
    cards.run("server", "systemctl", "stop", "nfs-server")
    prepare(cards)


# --- staleness ---


@pytest.mark.parametrize("folder", [EXPORT, pytest.param(DISK, marks=pytest.mark.nightly)], ids=str)
def test_no_reader_gets_bytes_that_are_out_of_date(
    cards: Lab, long: bool, folder: Path, record_property: Record
) -> None:
    if misreads_holes(cards.config.kernel, folder):
        pytest.skip(f"nfsd of {cards.config.kernel} misreads holes; missed: staleness in {folder}")

    # a file that changed in the last second has no permits
    def enough(run: Round) -> bool:
        return run.threadless["threadless_hits"] > 0.1 * run.counts["reads"]

    run = stale(cards, 300 if long else 15, SEED, folder, 800_000, enough=enough)
    record_property("staleness", run)


# --- the tools ---

AT, SHARED = "/mnt/threadless", "/export/threadless"
KEPT = "/etc/modprobe.d/nfsrdma-threadless.conf"
# the client's count of its READs
READS = f"""
sed -n '\\|mounted on {AT} |,\\|^device|s/^\\t *READ: \\([0-9]*\\) .*/\\1/p' /proc/self/mountstats
"""


def shell(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-ec", script).stdout


def enable(lab: Lab, *words: str) -> dict[str, Any]:
    argv = ("nfsrdma", "server", "enable", SHARED, "--client", "*", "--json", *words)
    result: dict[str, Any] = json.loads(lab.run("client", *argv).stdout)
    return result


def threadless(lab: Lab) -> dict[str, Any]:
    status = json.loads(lab.run("client", "nfsrdma", "server", "status", "--json").stdout)
    counts: dict[str, Any] = status["threadless"]
    return counts


@pytest.mark.nightly
def test_the_tools_turn_them_on_and_agree_on_their_number(cards: Lab) -> None:
    """server enable, status and disable, trace server, the module's counters, and the client."""
    parameter = f"cat {PARAMETERS}/server_threadless"
    shell(cards, f"mkdir -p {AT} {SHARED}; head -c 1M /dev/urandom > {SHARED}/file")
    assert enable(cards, "--threadless", "32k")["threadless"] == 32768
    assert shell(cards, parameter) == "32768\n"
    assert shell(cards, f"tail -1 {KEPT}") == "options nfsrdma server_threadless=32768\n"
    mount = ("nfsrdma", "mount", f"server:{SHARED}", AT, "--vers", "3", "-o", "nolock")
    cards.run("client", *mount, "--transport", "nfsrdma")
    read = f"dd if={AT}/file of=/dev/null bs=4k iflag=direct status=none"
    gone = "ls /sys/kernel/debug/nfsrdma-server | grep -v totals || true"
    try:
        with tracing(cards, "client", "server"):
            before, sent = threadless(cards), int(shell(cards, READS))

            def hit() -> bool:
                shell(cards, read)
                return bool(threadless(cards)["hits"] > before["hits"] + 100)

            until("hits", hit, 300, 0.5)
            after, sent = threadless(cards), int(shell(cards, READS)) - sent
            hits, others = (after[name] - before[name] for name in ("hits", "nfsd_reads"))
            assert hits + others == after["reads"] - before["reads"] == sent
            assert after["bytes"] - before["bytes"] == hits * 4096

            def count(name: str) -> int:
                rows = (row for row in traced(cards, "client") if row["procedure"] == "READ")
                return sum(row[name] for row in rows)

            until("as many READs as the client sent", lambda: count("answered") >= sent, 300, 0.5)
            assert (count("threadless_hits"), count("calls")) == (hits, others)
            assert count("threadless_bytes") == hits * 4096
            assert count("threadless_missed_absent") > 0
        lines = cards.run("client", "nfsrdma", "server", "status").stdout.splitlines()
        assert any(line.startswith("threadless up to 32 KiB: ") for line in lines)
        assert (
            f"READs      {after['reads']}: {after['nfsd_reads']} by nfsd, {after['hits']} thread"
            in ("\n".join(lines))
        )
        enable(cards, "--threadless", "0")
        assert shell(cards, parameter) == "0\n"
        off = threadless(cards)
        shell(cards, read)
        assert threadless(cards)["hits"] == off["hits"]
        cards.run("client", "nfsrdma", "umount", AT)
        # those of a connection that has ended are still counted
        until("the end of the connection", lambda: not shell(cards, gone), 300, 0.5)
        assert threadless(cards)["hits"] == off["hits"]
    finally:
        cards.run("client", "nfsrdma", "umount", AT, check=False)
        cards.run("client", "nfsrdma", "server", "disable", SHARED)
    assert shell(cards, parameter) == f"{MOST}\n"
    assert shell(cards, f"ls {KEPT} 2>&1 || true").endswith("No such file or directory\n")
    shell(cards, f"rm -r {SHARED}")


@pytest.mark.nightly
def test_staleness_campaign(cards: Lab, record_property: Record) -> None:
    """Writers over TCP get delegations with NFSv4.1."""
    values = {"server_threadless": (4096, 16384, 65536, 131072)}
    faults = ("drop caches", "squeeze", "remount", "restart nfsd", "sync")
    sums, _ = campaign(cards, values, faults, prepare, ("vers=3", "vers=4.1"))
    record_property("campaign", sums)
    # the counters of hits end with their connections
    assert sums["rpcs"] < 0.8 * sums["reads"]
    assert sums["threadless_hits"] > 0


# --- Replies ---
# last: nfsd's table of exports has the deleted folder for a minute or two, whatever flushes
# it, and /srv/disk stays mounted meanwhile

MAKE_FILES = """
cd $1
head -c 70003 /dev/urandom > data
head -c 70003 /dev/urandom > other
head -c 70003 /dev/urandom | (umask 077; cat > private)
chmod 755 . && sync
"""


threadless_replies = on("client", timeout=7200)(threadless_client.replies)


def replies(lab: Lab, folder: str, elsewhere: str, limit: int) -> Replies:
    """The replies to odd READs, with a value of server_threadless."""
    set_to(lab, "client", "server_threadless", str(limit))
    try:
        return finished(threadless_replies, lab, Path(folder), Path(elsewhere), limit)
    finally:
        set_to(lab, "client", "server_threadless", str(MOST))


def different(nfsd: dict[str, Any], both: dict[str, Any]) -> dict[str, Any]:
    """The fields of replies that differ: nfsd's, and those with threadless reads."""
    fields = {
        name: {
            field: (reply.get(field), both[name].get(field))
            for field in reply.keys() | both[name].keys()
            if reply.get(field) != both[name].get(field)
        }
        for name, reply in nfsd.items()
    }
    return {name: pairs for name, pairs in fields.items() if pairs}


@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_odd_reads_get_the_replies_of_nfsd(
    cards: Lab, on_disk: bool, record_property: Record
) -> None:
    """A client in user space asks for everything twice: with threadless reads, and without."""
    memory, disk = str(FOLDER), f"{DISK}/{FOLDER.name}"
    with damageable(cards):
        shell(cards, f"mkdir -p {disk}")
        try:
            for folder in (memory, disk):
                cards.run("client", "sh", "-ec", MAKE_FILES, "sh", folder)
            where, elsewhere = (disk, memory) if on_disk else (memory, disk)
            nfsd, both = (replies(cards, where, f"{elsewhere}/data", n) for n in (0, MOST))
        finally:
            shell(cards, f"rm -r {disk}")
    assert nfsd.replies.keys() == both.replies.keys()
    assert len(nfsd.replies) > 400
    assert nfsd.hits == []
    # the connections of a client share its permits
    assert (nfsd.second_hits, both.second_hits) == (0, 1)
    assert both.second == nfsd.second
    hits = set(both.hits) & set(both.sound)
    record_property("hits", f"{len(hits)} of {len(both.sound)}")
    print(len(nfsd.replies), "READs,", len(hits), "hits of", len(both.sound), "sound ones")
    assert len(hits) >= len(both.sound) / 2
    other = different(nfsd.replies, both.replies)
    for name, fields in other.items():
        print(f"{name}: {fields}")
    assert list(other) == []
