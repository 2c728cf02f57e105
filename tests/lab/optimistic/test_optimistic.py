# SPDX-License-Identifier: Apache-2.0
"""Optimistic reads: data, changes that revoke, limits, the ends of things, and staleness."""

from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed.cached_reads import (
    DISK,
    HUGE,
    MIB,
    PAGE,
    SEED,
    USERS,
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
    make_folders,
    misreads_holes,
    nothing_broke,
    nothing_in_use,
    on,
    stale,
)
from testbed.hostile import damageable, finished, serving
from testbed.kernel_events import recorded
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import mounted, nothing_lost, set_to
from testbed.peers import optimistic_client, optimistic_server
from testbed.programs import bring_xfs
from testbed.remote import on as on_node

# NFR_REFERENCES of kmod/client/optimistic/reference.c
REFERENCES = 8192


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards and their provider; both ends are optimistic."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "optimistic") as lab:
        prepare(lab)
        make_folders(lab)
        yield lab


def prepare(lab: Lab) -> None:
    serve(lab, "server", OURS)
    accept(lab)


def accept(lab: Lab) -> None:
    for name in ("personality", "server_personalities"):
        set_to(lab, "client", name, "optimistic")


# --- data ---


@pytest.mark.parametrize("folder", ["/export", DISK])
def test_data_of_every_size_and_offset_is_right(cards: Lab, folder: str) -> None:
    with nothing_lost(cards, "client"):
        found = on(cards, "kinds", "vers=3,noac,rsize=65536", folder)
    assert found["wrong"] == []
    assert found["whole"]
    assert {state["personality"] for state in found["state"]} == {"optimistic"}
    # the rest are first reads of extents, reads that cross them, and reads of the end of the file
    assert found["direct"]["optimistic_reads"] > 100
    assert found["direct"]["optimistic_bytes"] > 5 * MIB
    assert found["counters"]["optimistic_reads"] > found["direct"]["optimistic_reads"]
    nothing_broke(found)
    nothing_in_use(found)


def test_a_first_pass_needs_an_rpc_for_each_extent(cards: Lab, record_property: Record) -> None:
    rpcs: list[int] = []
    # a READ that is on its way before the grant arrives goes by RPC, too: many do if a busy host
    # stops the processor that handles the grant, so that one of five passes decides
    while len(rpcs) < 5 and min(rpcs, default=9) > 8:
        found = on(cards, "first_pass", str(4 * MIB))
        assert found["wrong"] == []
        assert found["rpcs"] + found["optimistic"] == found["reads"] == 1024
        nothing_in_use(found)
        rpcs.append(found["rpcs"])
    record_property("RPCs of each first pass", rpcs)
    assert 4 <= min(rpcs) <= 8, rpcs


def test_version_4_makes_no_optimistic_read(cards: Lab) -> None:
    found = on(cards, "kinds", "vers=4.2,noac")
    assert (found["wrong"], found["whole"]) == ([], True)
    assert {state["personality"] for state in found["state"]} == {"optimistic"}
    assert found["counters"]["optimistic_reads"] == 0
    nothing_broke(found)
    nothing_in_use(found)


def test_the_first_read_of_a_mount_goes_by_rpc(cards: Lab) -> None:
    """The NFS client learns from it how long the header of a READ's reply is."""
    found = on(cards, "second_mount")
    assert len(found["state"]) == 1, "the mounts have no transport in common"
    assert found["optimistic"] == [False, True]
    assert found["same"]
    assert found["rest"] == found["wanted"]
    nothing_in_use(found)


# --- changes ---


@pytest.mark.parametrize(("folder", "view"), [("/export", "tcp"), (DISK, "server")])
def test_each_change_revokes_before_it_returns(cards: Lab, folder: str, view: str) -> None:
    found = on(cards, "changes", folder, view)
    check_changes(found)
    nothing_broke(found)
    nothing_in_use(found)


def test_a_grant_belongs_to_the_credentials_of_a_reader(cards: Lab, long: bool) -> None:
    found = on(cards, "credentials", "60" if long else "5")
    assert found["same"]
    assert set(found["denied"]) == {"EACCES"}
    assert found["optimistic"] > found["reads"] / 2
    nothing_in_use(found)


def test_each_user_of_an_extent_has_a_reference(cards: Lab) -> None:
    found = on(cards, "shared")
    assert found["same"]
    # the first READ of each user goes by RPC, and has the extent announced to the user
    assert found["optimistic"] > 0.8 * found["reads"]
    assert found["grants"] == 4
    nothing_in_use(found)


@pytest.mark.nightly
def test_users_who_fill_the_table_of_references_leave_room_for_another(cards: Lab) -> None:
    """A user with fewer references than another takes the place of the other's oldest one."""
    found = on(cards, "full_table", str(REFERENCES), "16")
    assert found["same"]
    assert found["full"] == found["references"] == REFERENCES
    assert found["optimistic"] > 0.8 * 64
    nothing_in_use(found)


@pytest.mark.parametrize("how", WITHDRAWALS)
def test_another_export_ends_access_in_time(cards: Lab, how: str) -> None:
    check_withdrawn(cards, how, 2)


def test_access_that_is_withdrawn_while_nfsd_reads(cards: Lab) -> None:
    assert check_withdrawn_meanwhile(cards)["optimistic"] > 0


def test_nothing_is_granted_while_the_file_is_open_for_writing(cards: Lab) -> None:
    check_opened_for_writing(cards)


def test_a_writer_that_is_not_reported_is_found_by_an_rpc(cards: Lab) -> None:
    if cards.config.kernel in CHECKING:
        pytest.skip(f"kernel {cards.config.kernel} has no fanotify; missed: unreported writers")
    found = on(cards, "unreported")
    assert found["open"] > 0, "fsnotify reported the writer"
    # the pages are the file's own
    assert (found["optimistic"], found["through"]) == (True, True)
    assert found["second"]
    assert found["punched"] > 0, "fsnotify reported the hole"
    nothing_in_use(found)


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_change_does_not_wait_for_a_slow_card(cards: Lab, stuck: int) -> None:
    """The server fences the connection whose invalidation takes more than 100 ms.

    If the card refuses the fence, the server destroys the registrations.
    """
    refusals = "dmesg | grep -c 'refused the error state' || true"
    before = int(cards.run("client", "sh", "-c", refusals).stdout)
    found = on(cards, "slow_invalidation", str(stuck))
    assert int(cards.run("client", "sh", "-c", refusals).stdout) - before == stuck
    assert found["left"] == 0
    assert found["said"] == found["wanted"]
    assert found["connects"] > 0, "the invalidation was fast"
    nothing_broke(found)
    nothing_in_use(found)


@pytest.mark.parametrize("version", ["3", "4.2"])
@pytest.mark.parametrize("folder", ["/export", DISK])
def test_an_acl_set_over_nfs_ends_access(cards: Lab, folder: str, version: str) -> None:
    """fsnotify does not report it: READs by RPC and a worker compare ctime."""
    check_acl_by_nfs(cards, folder, version)


# --- what is not granted ---


@pytest.fixture(scope="module")
def unsuitable(cards: Lab) -> Lab:
    """The lab, which can have file systems in user space, and XFS."""
    bring_fuse(cards)
    return cards


@pytest.mark.parametrize(
    "name",
    [
        "file system of another server",
        "file system in user space",
        "lower layer of an overlay",
        "upper layer of an overlay",
        "file of an overlay by itself",
        "file of tmpfs by itself",
        "file of ext4 by itself",
        "swap file",
    ],
)
def test_what_does_not_suit_is_not_granted(unsuitable: Lab, name: str) -> None:
    """Data is right, and each READ finds that the file does not suit."""
    found = on(unsuitable, "unsuitable", name)
    assert found["wrong"] == []
    assert (found["grants"], found["optimistic"]) == (0, 0)
    assert found["refused"] == {"file": found["reads"]}
    nothing_broke(found)
    nothing_in_use(found)


def test_a_file_system_that_passes_reads_on_is_not_granted(unsuitable: Lab) -> None:
    """The file id of a handle has to be that of the inode whose pages are in the reply."""
    if unsuitable.config.kernel == "6.1":
        pytest.skip("FUSE of 6.1 passes nothing through; missed: handles of another inode")
    if unsuitable.config.kernel in CHECKING:
        pytest.skip(f"{unsuitable.config.kernel} has no XFS; missed: handles of another inode")
    bring_xfs(unsuitable, "client")
    suits = on(unsuitable, "unsuitable", "file of XFS")
    assert suits["grants"] > 0
    assert suits["optimistic"] > suits["reads"] / 2
    found = on(unsuitable, "unsuitable", "file of XFS through user space")
    assert (suits["wrong"], found["wrong"]) == ([], [])
    assert (found["grants"], found["optimistic"]) == (0, 0)
    assert found["refused"] == {"file": found["reads"]}
    nothing_broke(found)
    nothing_in_use(found)


@pytest.mark.parametrize("folder", ["/export", DISK])
def test_a_file_without_a_name_is_not_granted(cards: Lab, folder: str) -> None:
    """A process has it open. nfsd may find it by its handle, or not."""
    found = check_nameless(cards, folder)
    assert found["grants"] == 0
    served = sum(said != "ESTALE" for said in found["said"])
    assert found["refused"].get("file", 0) == served


@pytest.mark.parametrize("folder", ["/export", HUGE])
def test_a_poisoned_page_is_not_granted(cards: Lab, folder: str) -> None:
    """It stays in the page cache of tmpfs, and its neighbours are granted."""
    found = on(cards, "poisoned", folder)
    if not found["can"]:
        pytest.skip(f"kernel {cards.config.kernel} poisons no page; missed: poison in {folder}")
    assert (found["bad"], found["optimistic_bad"]) == (["EIO"], 0)
    assert found["said"] == found["wanted"]
    for blocks, said in enumerate(found["across"], 1):
        assert said in (
            [found["prefixes"][blocks]] if blocks <= 5 else [found["prefixes"][5], "EIO"]
        )
    nothing_in_use(found)


def test_memory_that_has_to_stay_movable_is_not_granted(cards: Lab) -> None:
    found = on(cards, "movable")
    assert found["there"] == found["pages"]
    assert found["same"]
    assert (found["grants"], found["optimistic"]) == (0, 0)
    assert found["refused"]["pages"] > 20
    nothing_in_use(found)


# --- how long, and how much ---


def test_grants_expire(cards: Lab) -> None:
    found = on(cards, "expires")
    assert found["same"]
    assert found["before"] > 0
    assert found["revoked"] > 0
    nothing_in_use(found)


def test_readers_renew_grants(cards: Lab) -> None:
    found = on(cards, "renewed", "6")
    assert found["wrong"] == 0
    assert found["served"]["grants_renewed"] >= 2
    assert found["optimistic"] > 0.9 * found["reads"]
    assert found["optimistic"] + found["rpcs"] == found["reads"]
    nothing_in_use(found)


@pytest.mark.parametrize("mib", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_grants_are_bounded(cards: Lab, mib: int) -> None:
    found = on(cards, "bounded", str(mib))
    assert found["wrong"] == []
    assert 0 < found["most"] <= mib * MIB // PAGE
    assert found["served"]["grants_revoked"] > 0
    assert found["counters"]["optimistic_reads"] > 0
    nothing_in_use(found)


def test_the_number_of_grants_is_bounded(cards: Lab) -> None:
    """A grant of one page counts for four: its memory region takes memory, too."""
    found = on(cards, "small_files", "8", "150")
    assert found["wrong"] == []
    # a client's quarter, in which a grant of a whole extent has to fit
    assert 10 < found["grants"] <= found["pages"] / 4 <= 2 * MIB // PAGE / 4
    nothing_in_use(found)


def test_the_connections_of_a_client_share_its_quarter(cards: Lab) -> None:
    found = on(cards, "shares", "4")
    assert found["wrong"] == 0
    assert found["transports"] == 4
    assert 0 < found["most"] <= 16 * MIB // PAGE // 4
    nothing_in_use(found)


@pytest.mark.nightly
def test_dropped_caches_do_no_harm(cards: Lab) -> None:
    found = on(cards, "pressure")
    assert found["wrong"] == []
    # writing 2 or 3 calls all shrinkers
    assert found["before"] > found["after"]
    nothing_in_use(found)


@pytest.mark.nightly
def test_grants_shrink_when_memory_is_short(cards: Lab) -> None:
    found = on(cards, "hog")
    assert found["wrong"] == 0
    assert found["least"] < found["before"]
    nothing_in_use(found)


@pytest.fixture(scope="module")
def counted(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """The same on the instruction clock, where times do not depend on the host."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "waits", clock="instructions") as lab:
        serve(lab, "server", OURS)
        accept(lab)
        yield lab


# of guest time, in milliseconds: a tenth of a second for invalidations, and a fence
WAIT_MAX = 250


def test_changes_wait_for_a_tenth_of_a_second_at_most(
    counted: Lab, record_property: Record
) -> None:
    """Whatever a client does, and however many grants it has."""
    names = ("answers 90 ms late", "answers 90 ms late, while all its grants expire")
    found = on(counted, "waits", "120", "30", *names, timeout=1800)
    record_property("waits", found)
    for name, client in found["clients"].items():
        assert client["grants"] > 100, name
        assert client["max"] < WAIT_MAX, f"{name}: {client}"
        # a second of such waits costs it all grants
        assert client["left"] == 0, f"{name}: {client}"
        assert client["sum"] < 2000, f"{name}: {client}"
    nothing_in_use(found)


# files per second, and instructions per second that are one per cent of the processor of the
# instruction clock
RATE, ONE_PERCENT = 10_000, 10**7


@pytest.mark.nightly
def test_the_worker_takes_less_than_one_per_cent(counted: Lab, record_property: Record) -> None:
    """It checks each watched file once a second, and ends watches that are left without grants.

    On the instruction clock, the lab may read fewer files per second than RATE: then the cost is
    taken to grow with the rate. That is too much for the checks, which do not depend on it.
    """
    found = on(counted, "worker", "10000", "5", timeout=7200)
    loads, called, share = found["loads"], found["called"], {}
    for name, load in loads.items():
        assert load["runs"] >= 3, f"{name}: {found}"
        rate = load["files"] / load["seconds"]
        scale = max(1, RATE / rate) if rate else 1
        share[name] = scale * load["instructions"] / load["seconds"]
    reads = loads["clients read"]
    check = reads["instructions"] / reads["runs"] / found["grants"]
    record_property("worker", found)
    record_property("instructions per second at 10,000 files per second", share)
    record_property("instructions per watched file", check)
    traced = called["clients read"]
    calls = traced["nfr_svc_revoke_check"]
    record_property("instructions per traced call", traced["instructions"] / calls - check)
    assert max(share.values()) < ONE_PERCENT, f"{share}: {found}"
    assert calls >= found["grants"] == 10_000
    assert called["no room"]["fsnotify_destroy_mark"] > 0
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


@pytest.mark.nightly
def test_an_unmount_returns_when_the_file_system_is_down(
    cards: Lab, long: bool, record_property: Record
) -> None:
    """At any moment of the interval in which the worker checks and ends watches."""
    rounds = 100 if long else 4
    found = on(cards, "unmount_races", str(rounds), SEED, timeout=3600)
    record_property("unmounts", found)
    about = f"seed {SEED}: {found}"
    assert found["rounds"] == rounds, about
    assert (found["up"], found["granted"]) == (0, 0), about
    assert found["got"].keys() <= {"right", "ESTALE"}, about
    assert found["got"]["right"] > rounds, about
    assert found["grants"] > 0 < found["optimistic"], about
    nothing_in_use(found)


def attempts(lines: list[str]) -> list[str]:
    """The results of the attempts to make a second connection, by its trace event."""
    return [line.split("reason=")[1] for line in lines if "nfsrdma_lane:" in line]


@pytest.mark.parametrize("way", ["silence", "no route"])
def test_an_unmount_does_not_wait_for_the_second_connection(
    cards: Lab, long: bool, way: str
) -> None:
    """The end of the transport ends the search for the server's address, which takes seconds."""
    events, rounds = {"nfsrdma/nfsrdma_lane/enable": "1"}, 50 if long else 3
    with nothing_lost(cards, "client"), recorded(cards, "client", events) as lines:
        found = on(cards, "unresolved", way, str(rounds))
    assert found["same"]
    assert found["connects"] == 0
    ends = attempts(lines)
    assert len(ends) == rounds
    if way == "silence":
        assert set(ends) == {"the transport closes"}
    nothing_in_use(found)


def test_a_connection_that_breaks_ends_a_second_one_that_is_being_made(cards: Lab) -> None:
    """The transport connects again at once, and makes a second connection later."""
    events = {"nfsrdma/nfsrdma_lane/enable": "1"}
    with nothing_lost(cards, "client"), recorded(cards, "client", events) as lines:
        found = on(cards, "lost_meanwhile")
    assert found["same"]
    assert found["disconnects"] == 1
    assert attempts(lines)[0] == "the transport closes"
    nothing_in_use(found)


@pytest.mark.nightly
@pytest.mark.parametrize("personality", ["optimistic", "read-write"])
def test_readers_that_are_killed_in_a_storm_leave_the_transport_to_others(
    cards: Lab, long: bool, personality: str, record_property: Record
) -> None:
    """A worker takes the lock from a killed task that waits for its own Reply with it.

    Few rounds meet that case, if any: the number of such locks is recorded. A task that kept the
    lock would leave processes that no kill ends.
    """
    rounds = "200" if long else "5"
    with nothing_lost(cards, "client"):
        found = on(cards, "killed_in_storm", rounds, personality, SEED, timeout=3600)
    record_property("locks taken from killed tasks", found["taken"])
    about = f"seed {SEED}: {found}"
    assert (found["alive"], found["same"]) == (0, True), about
    # each round breaks the connection
    assert found["disconnects"] >= int(rounds), about
    nothing_in_use(found)


def test_killed_readers_change_nothing(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        found = on(cards, "killed", "200" if long else "10")
    assert found["same"]
    assert found["disconnects"] == 0
    assert found["counters"]["optimistic_reads"] > 0
    nothing_in_use(found)


@pytest.mark.nightly
def test_killed_listings_do_not_end_the_connection(
    cards: Lab, long: bool, record_property: Record
) -> None:
    """`while :; do timeout -s KILL .01 ls -lR /mnt; done` beside a reader."""
    with nothing_lost(cards, "client"):
        found = on(cards, "killed_listings", "600" if long else "5", timeout=1800)
    record_property("killed listings", found)
    assert found["kills"] > 10
    assert found["reads"] > 10
    assert (found["disconnects"], found["wrong"], found["errors"]) == (0, 0, []), found
    # the Replies of a few are under way
    assert found["regions"][1] <= found["regions"][0] + 8, found
    nothing_in_use(found)


def test_readers_survive_restarts_of_the_server(cards: Lab, long: bool) -> None:
    with nothing_lost(cards, "client"):
        found = on(cards, "restart", "30" if long else "2", timeout=3600)
    assert (found["wrong"], found["errors"]) == (0, [])
    assert found["reads"] > 0
    nothing_in_use(found)


def test_the_end_of_the_second_connection_does_not_end_the_first(cards: Lab, long: bool) -> None:
    times = 50 if long else 5
    with nothing_lost(cards, "client"):
        found = on(cards, "broken", str(times), timeout=3600)
    assert (found["wrong"], found["errors"]) == (0, [])
    assert found["broken"] >= times
    assert found["disconnects"] == 0
    assert found["counters"]["optimistic_connects"] > 1
    nothing_in_use(found)


# --- hostile peers ---


misbehave = on_node("client", timeout=3600)(optimistic_client.misbehave)
serve_notices = on_node("server", timeout=3600)(optimistic_server.serve)


def test_a_client_that_reads_too_much(cards: Lab, long: bool) -> None:
    assert len(optimistic_client.CASES) >= 25
    with nothing_lost(cards, "client"), damageable(cards):
        with mounted(cards, "vers=3"):
            assert finished(misbehave, cards, 20000 if long else 100) == []
        nothing_in_use({"server": on(cards, "idle")})


def test_a_server_whose_notices_break_the_rules(cards: Lab) -> None:
    names = list(optimistic_server.TRICKS)
    with serving(serve_notices, cards, 20050), nothing_lost(cards, "client"):
        found = on(cards, "tricks", "20050", str(len(names)), timeout=1800)
    by_name = dict(zip(names, found["found"], strict=True))
    assert [name for name, each in by_name.items() if not each["same"]] == []
    assert found["same"]
    # nothing but the honest grant was of use
    used = {name for name, each in by_name.items() if each["optimistic_reads"]}
    assert used == {"honest"}
    assert {name for name, each in by_name.items() if each["optimistic_refused"]} >= {"no memory"}
    # what is no notice ends the second connection
    ends = found["ends"]
    assert ends["optimistic_connects"] > len(names) / 2
    assert (ends["disconnects"], ends["bad_replies"], ends["failed_marshals"]) == (0, 0, 0)


@pytest.mark.nightly
def test_nor_does_it_mislead_a_client_without_a_mount(cards: Lab) -> None:
    names = list(optimistic_server.TRICKS)
    with serving(serve_notices, cards, 20050):
        found = on(cards, "user_tricks", "20050", str(len(names)), timeout=1800)
    by_name = dict(zip(names, found["found"], strict=True))
    assert [name for name, each in by_name.items() if not each["same"]] == []
    assert found["same"]
    # nothing but the honest grant was of use
    assert {name for name, each in by_name.items() if each["by_reference"]} == {"honest"}
    assert {name for name, each in by_name.items() if each["refused"]} >= {"no memory"}
    ends = found["ends"]
    assert ends["second_connects"] > len(names) / 2
    assert (ends["connects"], ends["resent"]) == (ends["sessions"], 0)


# --- staleness ---

FAULTS = "drop caches,squeeze,remount,restart nfsd,break,sync"


@pytest.mark.parametrize("folder", [pytest.param("/export", marks=pytest.mark.nightly), DISK])
def test_no_reader_gets_bytes_that_are_out_of_date(
    cards: Lab, long: bool, folder: str, record_property: Record
) -> None:
    if misreads_holes(cards.config.kernel, folder):
        pytest.skip(f"nfsd of {cards.config.kernel} misreads holes; missed: staleness in {folder}")

    # a file that changed in the last second has no grants
    def enough(run: dict[str, Any]) -> bool:
        return bool(run["optimistic"]["optimistic_reads"] > 0.3 * run["reads"])

    found = stale(cards, 300 if long else 15, SEED, folder, "400000", enough=enough)
    record_property("staleness", found)
    every = found["changes_at_the_server"]
    assert long is False or all(every.values()), every


def test_nor_does_a_reader_without_a_mount(cards: Lab, long: bool, record_property: Record) -> None:
    def enough(run: dict[str, Any]) -> bool:
        return bool(run["user"]["by_reference"] > 0.3 * run["user"]["reads"])

    found = stale(cards, 300 if long else 15, SEED, DISK, "400000", users=2, enough=enough)
    record_property("staleness", found)
    user = found["user"]
    assert user["connects"] == 2, user


@pytest.mark.nightly
def test_staleness_campaign(cards: Lab, record_property: Record) -> None:
    values = {
        "optimistic_lifetime": (1, 2, 60),
        "optimistic_memory": (2, 8, 256),
        # READs that are no references go by nfsd, or pass it by
        "server_threadless": (0, 65536),
    }
    sums, first = campaign(cards, values, FAULTS, prepare, users=USERS)
    record_property("campaign", sums)
    # how many go by reference in the other rounds depends on what is drawn
    user = first.get("user", {"reads": 0, "by_reference": 0})
    assert first["optimistic"]["optimistic_reads"] > 0.3 * (first["reads"] - user["reads"])
    # a read of the library may be several
    assert not USERS or user["by_reference"] > 0.3 * user["reads"], user


@pytest.mark.nightly
def test_it_unloads_while_a_file_system_unmounts(cards: Lab, long: bool) -> None:
    for _ in range(20 if long else 3):
        assert on(cards, "unloads") == {"unmounted": True}
        cards.run("server", "systemctl", "stop", "nfs-server")
        serve(cards, "server", OURS)
        accept(cards)
        on(cards, "make_disk")
