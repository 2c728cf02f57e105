# SPDX-License-Identifier: Apache-2.0
"""Threadless reads: data, changes that end permits, what is not answered, and the ends of things.

The functions of optimistic_node.py read the same files: here with the personality read-write, and
with READs that the server answers from its page cache.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.cached_reads import (
    DISK,
    MIB,
    SEED,
    WITHDRAWALS,
    Record,
    bring_fuse,
    campaign,
    check_acl_by_nfs,
    check_changes,
    check_nameless,
    check_opened_for_writing,
    check_withdrawn,
    check_withdrawn_meanwhile,
    counts_listeners,
    misreads_holes,
    nothing_broke,
    nothing_in_use,
    on,
    stale,
)
from testbed.dashboard import until
from testbed.hostile import damageable, finished
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import PARAMETERS, nothing_lost, set_to
from testbed.peers import threadless_client
from testbed.peers.site import FOLDER
from testbed.peers.threadless_client import Replies
from testbed.remote import on as on_node
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
        on(lab, "make_disk")
        yield lab


def prepare(lab: Lab) -> None:
    serve(lab, "server", OURS)
    set_to(lab, "client", "server_threadless", str(MOST))


def hits(found: dict[str, Any]) -> int:
    return int(found["served"]["threadless_hits"])


@contextmanager
def personality(lab: Lab, name: str) -> Iterator[None]:
    for parameter in ("personality", "server_personalities"):
        set_to(lab, "client", parameter, name)
    try:
        yield
    finally:
        set_to(lab, "client", "personality", "read-write")


# --- data ---


@pytest.mark.parametrize("name", PERSONALITIES)
def test_data_of_every_size_and_offset_is_right(cards: Lab, name: str) -> None:
    folder = DISK if name == "read-write" else "/export"
    with nothing_lost(cards, "client"), personality(cards, name):
        found = on(cards, "kinds", "vers=3,noac,rsize=65536", folder)
    assert (found["wrong"], found["whole"]) == ([], True)
    assert {state["personality"] for state in found["state"]} == {name}
    # the others: the first of each second, the end of the file
    assert hits(found) + found["direct"]["optimistic_reads"] > 100
    assert hits(found) > 50
    assert found["served"]["threadless_bytes"] > MIB
    nothing_broke(found)
    nothing_in_use(found)


def test_version_4_is_answered_by_nfsd(cards: Lab) -> None:
    found = on(cards, "kinds", "vers=4.2,noac")
    assert (found["wrong"], found["whole"], hits(found)) == ([], True, 0)
    nothing_broke(found)
    nothing_in_use(found)


# --- changes ---


@pytest.mark.parametrize(("folder", "view"), [("/export", "tcp"), (DISK, "server")])
def test_each_change_ends_the_permits_before_it_returns(cards: Lab, folder: str, view: str) -> None:
    found = on(cards, "changes", folder, view)
    check_changes(found)
    nothing_broke(found)
    nothing_in_use(found)


def test_a_permit_belongs_to_the_credentials_of_a_reader(cards: Lab, long: bool) -> None:
    found = on(cards, "credentials", "60" if long else "5")
    assert found["same"]
    assert set(found["denied"]) == {"EACCES"}
    assert found["optimistic"] > found["reads"] / 3
    nothing_in_use(found)


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


@pytest.fixture(scope="module")
def unsuitable(cards: Lab) -> Lab:
    """The lab, which can have file systems in user space."""
    bring_fuse(cards)
    return cards


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
def test_what_does_not_suit_is_answered_by_nfsd(unsuitable: Lab, name: str) -> None:
    found = on(unsuitable, "unsuitable", name)
    assert found["wrong"] == []
    assert found["optimistic"] == 0
    nothing_broke(found)
    nothing_in_use(found)


def test_a_file_without_a_name_is_answered_by_nfsd(cards: Lab) -> None:
    check_nameless(cards, DISK)


def test_a_poisoned_page_is_answered_by_nfsd(cards: Lab) -> None:
    """It stays in the page cache of tmpfs."""
    found = on(cards, "poisoned", "/export")
    if not found["can"]:
        pytest.skip(f"kernel {cards.config.kernel} poisons no page; missed: poison in /export")
    assert (found["bad"], found["optimistic_bad"]) == (["EIO"], 0)
    assert found["said"] == found["wanted"]
    nothing_in_use(found)


# --- the ends of things ---


def test_an_exported_file_system_unmounts(cards: Lab) -> None:
    on(cards, "drop_disk")
    try:
        found = on(cards, "unmounts")
    finally:
        on(cards, "make_disk")
    assert found["same"]
    assert found["before"] > found["after"] == 0
    assert set(found["said"]) == {"ESTALE"}
    nothing_in_use(found)


def test_readers_survive_restarts_of_the_server(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        found = on(cards, "restart", "30" if long else "2", timeout=3600)
    assert (found["wrong"], found["errors"]) == (0, [])
    assert found["reads"] > 0
    nothing_in_use(found)


def test_readers_survive_the_removal_of_a_device(cards: Lab, long: bool) -> None:
    """Replies are in flight; the next connection has hits again, and no page stays held."""
    times = 40 if long else 4
    with nothing_lost(cards, "client"):
        found = on(cards, "removed", str(times), timeout=120 * times)
    assert (found["wrong"], found["errors"]) == (0, [])
    assert min(found["reads"]) > 0
    assert [flight["pages"] > 0 for flight in found["flights"]] == [True] * times
    assert found["disconnects"] >= times
    assert found["held"] > 0
    assert found["left"] == 0
    nothing_in_use(found)


def test_it_unloads_while_permits_are_fresh(cards: Lab) -> None:
    """The files of the permits are watched until then."""
    assert on(cards, "unloads_at_once") == {"unloaded": True}
    cards.run("server", "systemctl", "stop", "nfs-server")
    prepare(cards)


# --- staleness ---


@pytest.mark.parametrize("folder", ["/export", pytest.param(DISK, marks=pytest.mark.nightly)])
def test_no_reader_gets_bytes_that_are_out_of_date(
    cards: Lab, long: bool, folder: str, record_property: Record
) -> None:
    if misreads_holes(cards.config.kernel, folder):
        pytest.skip(f"nfsd of {cards.config.kernel} misreads holes; missed: staleness in {folder}")

    # a file that changed in the last second has no permits
    def enough(run: dict[str, Any]) -> bool:
        return bool(run["threadless"]["threadless_hits"] > 0.1 * run["reads"])

    found = stale(cards, 300 if long else 15, SEED, folder, "800000", enough=enough)
    record_property("staleness", found)


# --- the tools ---

HERE, EXPORT = "/mnt/threadless", "/export/threadless"
KEPT = "/etc/modprobe.d/nfsrdma-threadless.conf"
# the client's count of its READs
READS = f"""
sed -n '\\|mounted on {HERE} |,\\|^device|s/^\\t *READ: \\([0-9]*\\) .*/\\1/p' /proc/self/mountstats
"""


def shell(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-ec", script).stdout


def enable(lab: Lab, *words: str) -> dict[str, Any]:
    argv = ("nfsrdma", "server", "enable", EXPORT, "--client", "*", "--json", *words)
    found: dict[str, Any] = json.loads(lab.run("client", *argv).stdout)
    return found


def threadless(lab: Lab) -> dict[str, Any]:
    status = json.loads(lab.run("client", "nfsrdma", "server", "status", "--json").stdout)
    found: dict[str, Any] = status["threadless"]
    return found


@pytest.mark.nightly
def test_the_tools_turn_them_on_and_agree_on_their_number(cards: Lab) -> None:
    """server enable, status and disable, trace server, the module's counters, and the client."""
    parameter = f"cat {PARAMETERS}/server_threadless"
    shell(cards, f"mkdir -p {HERE} {EXPORT}; head -c 1M /dev/urandom > {EXPORT}/file")
    assert enable(cards, "--threadless", "32k")["threadless"] == 32768
    assert shell(cards, parameter) == "32768\n"
    assert shell(cards, f"tail -1 {KEPT}") == "options nfsrdma server_threadless=32768\n"
    mount = ("nfsrdma", "mount", f"server:{EXPORT}", HERE, "--vers", "3", "-o", "nolock")
    cards.run("client", *mount, "--transport", "nfsrdma")
    read = f"dd if={HERE}/file of=/dev/null bs=4k iflag=direct status=none"
    gone = "ls /sys/kernel/debug/nfsrdma-server | grep -v totals || true"
    try:
        with tracing(cards, "client", "server"):
            before, sent = threadless(cards), int(shell(cards, READS))

            def hit() -> bool:
                shell(cards, read)
                return bool(threadless(cards)["hits"] > before["hits"] + 100)

            until(hit, "hits")
            after, sent = threadless(cards), int(shell(cards, READS)) - sent
            hits, others = (after[name] - before[name] for name in ("hits", "nfsd_reads"))
            assert hits + others == after["reads"] - before["reads"] == sent
            assert after["bytes"] - before["bytes"] == hits * 4096

            def count(name: str) -> int:
                rows = (row for row in traced(cards, "client") if row["procedure"] == "READ")
                return sum(row[name] for row in rows)

            until(lambda: count("answered") >= sent, "as many READs as the client sent")
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
        cards.run("client", "nfsrdma", "umount", HERE)
        # those of a connection that has ended are still counted
        until(lambda: not shell(cards, gone), "the end of the connection")
        assert threadless(cards)["hits"] == off["hits"]
    finally:
        cards.run("client", "nfsrdma", "umount", HERE, check=False)
        cards.run("client", "nfsrdma", "server", "disable", EXPORT)
    assert shell(cards, parameter) == f"{MOST}\n"
    assert shell(cards, f"ls {KEPT} 2>&1 || true").endswith("No such file or directory\n")
    shell(cards, f"rm -r {EXPORT}")


@pytest.mark.nightly
def test_staleness_campaign(cards: Lab, record_property: Record) -> None:
    """Writers over TCP get delegations with NFSv4.1."""
    on(cards, "make_huge")
    values = {"server_threadless": (4096, 16384, 65536, 131072)}
    faults = "drop caches,squeeze,remount,restart nfsd,sync"
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


threadless_replies = on_node("client", timeout=7200)(threadless_client.replies)


def replies(lab: Lab, folder: str, elsewhere: str, limit: int) -> Replies:
    """The replies to odd READs, with a value of server_threadless."""
    set_to(lab, "client", "server_threadless", str(limit))
    try:
        return finished(threadless_replies, lab, Path(folder), Path(elsewhere), limit)
    finally:
        set_to(lab, "client", "server_threadless", str(MOST))


def different(off: dict[str, Any], on: dict[str, Any]) -> dict[str, Any]:
    """The fields of replies that differ: nfsd's, and those with threadless reads."""
    fields = {
        name: {
            field: (reply.get(field), on[name].get(field))
            for field in reply.keys() | on[name].keys()
            if reply.get(field) != on[name].get(field)
        }
        for name, reply in off.items()
    }
    return {name: found for name, found in fields.items() if found}


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
            off, found = (replies(cards, where, f"{elsewhere}/data", n) for n in (0, MOST))
        finally:
            shell(cards, f"rm -r {disk}")
    assert off.replies.keys() == found.replies.keys()
    assert len(off.replies) > 400
    assert off.hits == []
    # the connections of a client share its permits
    assert (off.second_hits, found.second_hits) == (0, 1)
    assert found.second == off.second
    hits = set(found.hits) & set(found.sound)
    record_property("hits", f"{len(hits)} of {len(found.sound)}")
    print(len(off.replies), "READs,", len(hits), "hits of", len(found.sound), "sound ones")
    assert len(hits) >= len(found.sound) / 2
    other = different(off.replies, found.replies)
    for name, fields in other.items():
        print(f"{name}: {fields}")
    assert list(other) == []
