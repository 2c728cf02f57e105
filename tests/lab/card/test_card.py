# SPDX-License-Identifier: Apache-2.0
"""The modelled card executes and refuses requests as a card does, and survives removal."""

import errno
import json
import mmap
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.labs import OURS, THEIRS, cards_lab, serve
from testbed.leaks import growth
from testbed.node import modelled
from testbed.node.memory import slabs
from testbed.node.mounts import HERE, drop_caches, mounted
from testbed.node.programs import call, until
from testbed.programs import place_compiled
from testbed.remote import on

VERBS = Path(__file__).with_name("card_verbs")
RACES = Path(__file__).with_name("card_races.c")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="no verbs module: only root can build it")


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards."""
    with cards_lab(pytestconfig, "card") as lab:
        yield lab


@pytest.fixture(scope="module", params=("rpcrdma", "nfsrdma"))
def mounts(cards: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab with the kernel's transport module, then with ours."""
    if request.param == "rpcrdma":
        yield cards
        return
    serve(cards, "server", OURS)
    yield cards
    serve(cards, "server", THEIRS)


# the kernel's module is there to compare with: its long tests run nightly
THEIRS_NIGHTLY = pytest.mark.parametrize(
    "mounts", (pytest.param("rpcrdma", marks=pytest.mark.nightly), "nfsrdma"), indirect=True
)


@pytest.fixture(scope="module")
def verbs(cards: Lab) -> Lab:
    """The lab with card_verbs.ko in the node."""
    kernel_modules.place(cards, VERBS, "/run/card_verbs.ko", "client")
    return cards


def failures(lab: Lab, *parameters: str) -> dict[str, str]:
    """Run the cases of card_verbs.ko: the expectation that failed, by case."""
    lab.run("client", "insmod", "/run/card_verbs.ko", *parameters, timeout=1800)
    try:
        output = lab.run("client", "cat", "/sys/kernel/debug/card_verbs").stdout
    finally:
        lab.run("client", "rmmod", "card_verbs")
    results = dict(line.split(" ", 1) for line in output.splitlines())
    assert results
    return {name: result for name, result in results.items() if result != "ok"}


@ROOT
def test_verbs_complete_with_the_status_of_the_specification(verbs: Lab) -> None:
    assert failures(verbs) == {}


@ROOT
def test_a_recoverable_card_survives_refused_requests(verbs: Lab) -> None:
    files = [f"/sys/kernel/debug/nfsrdma_card/{card}/recoverable" for card in ("card0", "card1")]
    verbs.run("client", "tee", *files, stdin=b"Y")
    try:
        assert failures(verbs, "recoverable=1") == {}
    finally:
        verbs.run("client", "tee", *files, stdin=b"N")


@pytest.fixture(scope="module")
def races(cards: Lab) -> Lab:
    """The lab with card_races in the node."""
    words = (f"-I{module_source.find_card().folder}", "-pthread", "-Wno-unused-parameter")
    place_compiled(cards, "client", RACES, "/run/card_races", *words)
    return cards


def race(lab: Lab, *words: str) -> int:
    """The number that a case of card_races.c prints, as a user without rights."""
    argv = ("setpriv", "--reuid=nobody", "--clear-groups", "/run/card_races", *words)
    return int(lab.run("client", *argv, timeout=3600).stdout)


def test_threads_modify_one_queue_pair_at_the_same_time(races: Lab, long: bool) -> None:
    assert race(races, "reset", "20000" if long else "2000") > 0


def test_a_broken_queue_pair_reports_one_event(races: Lab) -> None:
    # and one of its completion queue
    assert race(races, "events") <= 2


def test_link_show_lists_cards(cards: Lab) -> None:
    links = json.loads(cards.run("client", "nfsrdma", "link", "show", "--json").stdout)["links"]
    keys = ("name", "driver", "netdev", "state", "protocol")
    assert [tuple(link[key] for key in keys) for link in links] == [
        ("card0", "card", "v0", "ACTIVE", "roce"),
        ("card1", "card", "v1", "ACTIVE", "roce"),
    ]


@on("client", timeout=900)
def data_of_each_version() -> None:
    """The data is equal, the server does all Reads and Writes, and no card has an error."""
    before = {card: modelled.counters(card) for card in modelled.CARDS}
    for seed, options in enumerate(("vers=3", "vers=4.2", "vers=4.1,nconnect=4,rsize=8192")):
        with mounted(options):
            modelled.compare("data", seed)
    client, server = (modelled.changes(card, before[card]) for card in modelled.CARDS)
    assert server["reads"] > 0
    assert server["writes"] > 0
    assert (client["reads"], client["writes"]) == (0, 0)
    assert server["bytes"] > 3 * modelled.SIZE
    for card in (client, server):
        assert card["interrupts"] > 0
        quiet = ("refused", "receiver_not_ready", "retries", "lost", "cache_misses")
        assert {name: card[name] for name in quiet} == dict.fromkeys(quiet, 0)


def test_data_is_equal_and_no_card_counts_an_error(mounts: Lab) -> None:
    data_of_each_version(mounts)


@on("client")
def transfer(options: str, seed: int, orders: dict[str, int]) -> dict[str, int]:
    """Compare a file with a card in an unusual state; returns the changes of its counters."""
    before = modelled.counters("card0")
    with mounted(options):
        for name, value in orders.items():
            modelled.order("card0", name, value)
        try:
            modelled.compare("transfer", seed)
        finally:
            for name in orders:
                modelled.order("card0", name, 0)
    return modelled.changes("card0", before)


def test_a_lost_message_is_retransmitted(mounts: Lab) -> None:
    counted = transfer(mounts, "vers=3", 4, {"lose": 3})
    assert counted["lost"] == 3
    assert counted["retries"] >= 1


def test_data_is_equal_with_late_completions(mounts: Lab) -> None:
    """Send completions arrive later than the replies."""
    transfer(mounts, "vers=4.2", 5, {"completion_delay": 2_000_000})


def test_a_small_translation_cache_counts_its_misses(mounts: Lab) -> None:
    counted = transfer(mounts, "vers=3", 6, {"cache_entries": 16, "cache_miss": 9_000})
    # the server reads each page, and writes it
    assert counted["cache_misses"] >= 2 * modelled.SIZE // 4096


def test_a_cache_of_queue_pairs_counts_its_misses(mounts: Lab) -> None:
    """With one entry, each message of another connection misses."""
    options, miss = "vers=3,nconnect=4", {"qp_cache_miss": 1_000}
    large = transfer(mounts, options, 8, {"qp_cache_entries": 1 << 16, **miss})["qp_cache_misses"]
    small = transfer(mounts, options, 9, {"qp_cache_entries": 1, **miss})["qp_cache_misses"]
    assert 0 < large <= 4
    # one RPC of each megabyte, on the connections in turn
    assert small >= 2 * modelled.SIZE // (1 << 20)


def allocated() -> int:
    """Pages that the kernel has allocated since it started."""
    rows = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(count) for name, count in rows if name.startswith("pgalloc_"))


@on("client", timeout=900)
def pages() -> dict[str, float]:
    """Pages that the kernel allocates for a direct read of 1 MiB, and for a direct write.

    The kernel counts for the whole machine, and other programs only add to it: of several series
    the one with the fewest pages is the server's.
    """
    size, turns, series = 1 << 20, 16, 6
    room, fewest = mmap.mmap(-1, size), {}
    with mounted("vers=3,rsize=1048576,wsize=1048576"):
        modelled.write("pages", 7, size)
        file = os.open(HERE / "pages", os.O_RDWR | os.O_DIRECT)
        for name, move in (("read", os.preadv), ("write", os.pwritev)):
            # what the first series allocates, the module keeps: its count is not the least
            counts = [allocated()]
            for _ in range(series):
                assert [move(file, [room], 0) for _ in range(turns)] == [size] * turns
                counts.append(allocated())
            fewest[name] = min(b - a for a, b in pairwise(counts)) / turns
        os.close(file)
    return fewest


def test_threads_of_nfsd_keep_their_pages(mounts: Lab, request: pytest.FixtureRequest) -> None:
    fewest, data = pages(mounts).values(), (1 << 20) // 4096
    if "rpcrdma" in request.node.name:
        # the test would find a server that frees the pages of each Call
        assert min(fewest) >= data
    else:
        assert max(fewest) < data / 4


def direct(file: int, size: int) -> bytes:
    room = mmap.mmap(-1, size)
    return room[: os.preadv(file, [room], 0)]


@contextmanager
def deferrals() -> Iterator[tuple[Callable[[str], int], Callable[[], int]]]:
    """Trace nfsd's deferred Calls, and Replies that hold their pages.

    Yields two functions: how many Calls met an event, of which nfsd may defer each more than once,
    and how many Replies hold their pages.
    """
    tracing = Path("/sys/kernel/tracing")
    has_hold = " nfr_mem_transfer_hold\t" in Path("/proc/kallsyms").read_text()
    (tracing / "kprobe_events").write_text(
        "p:tests/held nfr_mem_transfer_hold\n" if has_hold else ""
    )
    names = ("events/sunrpc/svc_defer*/enable", "events/tests/enable")
    events = [path for name in names for path in tracing.glob(name)]
    trace = tracing / "trace"
    trace.write_text("")
    for event in events:
        event.write_text("1")
    try:
        yield (
            lambda name: len(set(re.findall(rf" {name}: .*xid=(\w+)", trace.read_text()))),
            lambda: trace.read_text().count(" held: "),
        )
    finally:
        for event in events:
            event.write_text("0")
        (tracing / "kprobe_events").write_text("")


@contextmanager
def no_answers() -> Iterator[None]:
    """Stop mountd, after nfsd has forgotten its answers."""
    call("pkill", "-STOP", "rpc.mountd")
    try:
        call("exportfs", "-f")
        yield
    finally:
        call("pkill", "-CONT", "rpc.mountd")


@contextmanager
def slow_wire(latency_ns: int) -> Iterator[None]:
    for card in modelled.CARDS:
        modelled.order(card, "latency", latency_ns)
    try:
        yield
    finally:
        for card in modelled.CARDS:
            modelled.order(card, "latency", 0)


@on("client", timeout=900)
def deferred(rounds: int) -> tuple[int, int]:
    """nfsd defers READs, because mountd does not answer; then all threads list folders.

    Returns the deferred Calls, and the Replies that held their pages.
    """
    size, readers, folders, total, holds = 1 << 20, 4, 8, 0, 0
    names = {f"f{n}": sorted(f"f{n}-{i}-{'x' * 60}" for i in range(2000)) for n in range(folders)}
    for name, entries in names.items():
        Path("/export", name).mkdir(exist_ok=True)
        for entry in entries:
            Path("/export", name, entry).touch()
    with mounted("vers=3,rsize=1048576,wsize=1048576"), ExitStack() as opened:
        written = [modelled.write(f"deferred{n}", n, size) for n in range(readers)]
        # before nfsd forgets, so that READs are the first Calls to be deferred
        paths = [HERE / f"deferred{n}" for n in range(readers)]
        files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
        for file in files:
            opened.callback(os.close, file)
        pool = opened.enter_context(modelled.FORK.Pool(folders))
        for _ in range(rounds):
            with deferrals() as (calls, held):
                with no_answers():
                    reads = [pool.apply_async(direct, (file, size)) for file in files]
                    # each thread waits for some seconds; another one takes what it deferred
                    until("deferred Calls", lambda: calls("svc_defer") >= readers, modelled.LIMIT)
                assert [read.get(modelled.LIMIT) for read in reads] == written
                total += calls("svc_defer_recv")
                holds += held()
            # the replies are on the wire while the threads build the next ones
            with slow_wire(20_000_000):
                for _ in range(3):
                    drop_caches()
                    lists = pool.map(os.listdir, [HERE / name for name in names])
                    assert [sorted(entries) for entries in lists] == [*names.values()]
    return total, holds


@pytest.mark.nightly
def test_deferred_calls_take_no_pages_of_other_threads(
    mounts: Lab, request: pytest.FixtureRequest
) -> None:
    calls, holds = deferred(mounts, 3)
    assert calls >= 3 * 4
    if "nfsrdma" in request.node.name:
        # other Replies exchange their pages for the thread's
        assert holds >= calls


def test_lab_link_sets_rate_and_latency_of_the_cards(cards: Lab) -> None:
    script = "cd /sys/kernel/debug/nfsrdma_card/$1 && cat rate latency"
    for link, wanted in (("10gbit/25us", [10**10, 12_500]), ("none", [0, 0])):
        cards.set_link(link)
        for card in ("card0", "card1"):
            output = cards.run("client", "sh", "-c", script, "sh", card).stdout
            assert [int(word) for word in output.split()] == wanted


@on("client")
def changed(name: str, text: str) -> tuple[int, bool]:
    """Write a text to a file of the first card; the errno, and whether its content changed."""
    file, error = Path("/sys/kernel/debug/nfsrdma_card/card0", name), 0
    before = file.read_text()
    try:
        file.write_text(text)
    except OSError as refused:
        error = refused.errno or 0
    return error, file.read_text() != before


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("lose", "-1"), ("lose", str(1 << 31)), ("refuse", str(1 << 32))),
        *(("recoverable", "maybe"), ("strict_keys", "9"), ("link_down", "9"), ("moderation", "7")),
        *((name, str(value)) for name in ("latency", "rate") for value in (2**63 - 1, 2**64 - 1)),
    ],
)
def test_a_file_refuses_what_it_cannot_mean(cards: Lab, name: str, text: str) -> None:
    assert changed(cards, name, text) == (errno.EINVAL, False)


@on("client", timeout=1800)
def each_failure() -> None:
    modelled.each_failure()


@THEIRS_NIGHTLY
def test_a_mount_survives_each_failure_of_its_card(mounts: Lab) -> None:
    each_failure(mounts)


@on("client")
def storm(rounds: int) -> None:
    """The card fails at random under load."""
    rng = random.Random(8166)  # noqa: S311
    with mounted("vers=3,timeo=50"), modelled.load():
        for _ in range(rounds):
            modelled.fail(rng.choice(modelled.FAILURES))
            time.sleep(rng.uniform(0, 2))


@THEIRS_NIGHTLY
def test_a_mount_survives_a_storm_of_failures(mounts: Lab, long: bool) -> None:
    rounds = 100 if long else 8
    storm.at(timeout=60 * rounds + 600)(mounts, rounds)


@on("client")
def unplugged() -> None:
    """A card goes with its network device, which takes no second one."""
    call("ip", "link", "add", "lab9", "type", "dummy")
    call("ip", "link", "set", "lab9", "up")
    words = ("type", "nfsrdma_card", "netdev", "lab9")
    call("rdma", "link", "add", "card9", *words)
    second = subprocess.run(("rdma", "link", "add", "card8", *words), check=False)
    call("ip", "link", "delete", "lab9")
    until("removal", lambda: not (modelled.SYSFS / "card9").exists(), modelled.LIMIT)
    assert second.returncode != 0


def test_removal_of_the_network_device_removes_the_card(cards: Lab) -> None:
    unplugged(cards)


@on("client")
def loads(rounds: int) -> list[dict[str, int]]:
    """Unload the module under a mount and reload it; returns the objects in use, round by round."""
    objects = []
    with mounted("vers=3,timeo=50"):
        # nfsd keeps its replies to WRITEs for two minutes, which would look like a leak
        data = modelled.write("loads", 0)
        for _ in range(rounds):
            assert modelled.read("loads") == data
            call("rmmod", "nfsrdma_card")
            modelled.restore()
            objects.append({n: count for n, count in slabs().items() if n.startswith("kmalloc")})
    return objects


def test_unloading_the_module_frees_its_memory(mounts: Lab, long: bool) -> None:
    rounds = 100 if long else 3
    objects = loads.at(timeout=60 * rounds + 600)(mounts, rounds)
    if long:
        growth(objects[3:])
