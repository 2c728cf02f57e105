# SPDX-License-Identifier: Apache-2.0
"""Each personality of our module carries data over the modelled card, and leaves nothing behind."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cards import cards_lab
from carriers import OURS, serve
from module_data import around, carried, fio
from module_faults import killed
from peers import SEED, SERVER, argv_of, bring, of_personality
from scene import until
from storm import HERE, connections, mounted, nothing_lost, set_to
from test_card import on
from tracing import said, tracing

from nfsrdma_tools.lab.lab import Lab

Record = Callable[[str, object], None]
PARAMETERS = "/sys/module/nfsrdma/parameters"
VERSIONS = ("vers=3", "vers=4.2")
PERSONALITIES = ("cached",)
FOLDER = "hostile"
PAGE, BLOCK, MIB = 4096, 1 << 16, 1 << 20


@pytest.fixture(scope="module")
def ours(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; our module is the client and the server."""
    with cards_lab(pytestconfig, "personalities", verbs=True) as lab:
        serve(lab, "server", OURS)
        yield lab


def set_all(lab: Lab, **values: str) -> None:
    for name, value in values.items():
        set_to(lab, "client", name, value)


@contextmanager
def agreed(lab: Lab, name: str) -> Iterator[None]:
    """New transports ask for a personality, and the server accepts it."""
    set_all(lab, personality=name, server_personalities=name)
    try:
        yield
    finally:
        set_all(lab, personality="read-write", server_personalities="")


@pytest.fixture(params=PERSONALITIES)
def personality(ours: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    with agreed(ours, request.param):
        yield request.param
    ours.check()


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-ec", script, timeout=900).stdout


def of_cache(lab: Lab) -> dict[str, int]:
    """The figures of the cache of the only connection."""
    (one,) = connections(lab)
    return {name: int(text.split()[0]) for name, text in one.items() if name.startswith("cache_")}


@pytest.mark.parametrize("vers", VERSIONS)
def test_data_of_every_size_is_what_it_was(
    ours: Lab, personality: str, vers: str, long: bool, record_property: Record
) -> None:
    sizes = around(PAGE, 2 * PAGE, BLOCK, MIB) if long else [1, 5000, *around(BLOCK)]
    with mounted(ours, vers):
        (one,) = connections(ours)
        assert (one["personality_wanted"], one["personality"]) == (personality, personality)
    found = carried(ours, f"{vers},rsize=65536,wsize=65536", sizes, seed=1)
    record_property("bytes", found["bytes"])


@pytest.mark.parametrize("vers", VERSIONS)
def test_fio_finds_what_it_wrote(ours: Lab, personality: str, vers: str, long: bool) -> None:
    fio(ours, vers, loops=20 if long else 2, seed=2)


def test_killed_tasks_get_their_memory_back(ours: Lab, personality: str, long: bool) -> None:
    killed(ours, "vers=3", silent=False, seed="3", rounds=20 if long else 3)


@pytest.mark.nightly
def test_a_mount_survives_each_failure_of_its_card(ours: Lab, personality: str) -> None:
    found = on(ours, "broken", timeout=1800)
    assert [state["same"] for state in found.values()] == [True] * 4


def test_a_server_that_does_not_accept_it_gets_an_ordinary_connection(ours: Lab) -> None:
    set_all(ours, personality="cached")
    try:
        with mounted(ours, "vers=3"):
            (one,) = connections(ours)
    finally:
        set_all(ours, personality="read-write")
    assert (one["personality_wanted"], one["personality"]) == ("cached", "read-write")


def test_one_server_has_a_personality_of_its_own(ours: Lab) -> None:
    sh(ours, f"echo cached > {PARAMETERS}/server_personalities")
    address = sh(ours, "getent hosts server | cut -d' ' -f1").strip()
    try:
        set_all(ours, personality_for=f"{address},cached")
        with mounted(ours, "vers=3"):
            (one,) = connections(ours)
        assert one["personality"] == "cached"
        assert sh(ours, f"cat {PARAMETERS}/personality_for").strip() == f"{address},cached"
        set_all(ours, personality_for=address)
        assert sh(ours, f"cat {PARAMETERS}/personality_for").strip() == ""
        with mounted(ours, "vers=3"):
            (one,) = connections(ours)
        assert one["personality"] == "read-write"
    finally:
        set_all(ours, personality_for=address, server_personalities="")


# --- cached ---

DIRECT = f"dd if={HERE}/cache of=/dev/null bs=64k count={{count}} iflag=direct status=none"


@contextmanager
def with_a_file(lab: Lab, options: str = "vers=3") -> Iterator[None]:
    with agreed(lab, "cached"), mounted(lab, options):
        sh(lab, f"head -c 4M /dev/urandom > {HERE}/cache; sync")
        yield
        sh(lab, f"rm {HERE}/cache")
    lab.check()


def test_reads_into_the_same_memory_find_its_registration(ours: Lab) -> None:
    with with_a_file(ours):
        before = of_cache(ours)
        sh(ours, DIRECT.format(count=64))
        after = of_cache(ours)
    assert after["cache_hits"] - before["cache_hits"] == 63
    assert after["cache_misses"] - before["cache_misses"] == 1
    assert after["cache_idle_pages"] - before["cache_idle_pages"] == BLOCK // PAGE


@pytest.mark.nightly
def test_the_probes_and_top_count_hits_and_misses(ours: Lab) -> None:
    with with_a_file(ours), tracing(ours, "client", "registrations"):
        sh(ours, DIRECT.format(count=64))

        def counted() -> dict[str, int]:
            rows = [row for row in said(ours, "client") if row["mount"] == HERE]
            return {name: sum(row[name] for row in rows) for name in ("reused", "registered")}

        until(lambda: counted()["reused"] >= 63, "as many hits as there were")
        assert counted() == {"reused": 63, "registered": 1}
        mapped = [row["mapped_bytes"] for row in said(ours, "client") if row["mount"] == HERE]
        assert mapped[-1] == BLOCK
        script = f"""
nfsrdma top --batch --json --no-probes --count 4 > /run/top &
while kill -0 $! 2> /dev/null; do {DIRECT.format(count=64)}; done
cat /run/top
"""
        lines = sh(ours, script).splitlines()
        xprts = [x for line in lines for m in json.loads(line)["mounts"] for x in m["xprts"]]
        shown = [x["personality"] for x in xprts]
    assert {each["name"] for each in shown} == {"cached"}
    hits = sum(each.get("counters", {}).get("cache_hits", 0) for each in shown)
    assert hits > 63
    assert shown[-1]["gauges"]["cache_bytes"] >= BLOCK


def test_the_cache_gives_pages_back_when_memory_is_short(ours: Lab) -> None:
    with with_a_file(ours):
        sh(ours, DIRECT.format(count=64))
        sh(ours, f"cp {HERE}/cache /dev/null")
        assert of_cache(ours)["cache_pages"] > 0
        until = "until grep -q '^cache_pages 0 ' /sys/kernel/debug/nfsrdma/*/connection"
        sh(ours, f"echo 2 > /proc/sys/vm/drop_caches; {until}; do sleep 0.1; done")
        sh(ours, DIRECT.format(count=2))


@pytest.mark.nightly
def test_memory_that_a_process_gave_up_leaves_the_cache(ours: Lab) -> None:
    with with_a_file(ours):
        sh(ours, DIRECT.format(count=64))
        # the next look at the cache is at most 30 s away
        until = "until grep -q '^cache_pages 0 ' /sys/kernel/debug/nfsrdma/*/connection"
        sh(ours, f"{until}; do sleep 0.5; done")


def test_the_cache_keeps_its_limit(ours: Lab) -> None:
    with with_a_file(ours):
        sh(ours, f"echo 1 > {PARAMETERS}/cache_memory")
        try:
            sh(ours, f"for n in $(seq 40); do {DIRECT.format(count=64)}; done")
            found = of_cache(ours)
        finally:
            sh(ours, f"echo 64 > {PARAMETERS}/cache_memory")
    assert 0 < found["cache_pages"] <= MIB // PAGE


def test_buffered_reads_arrive_in_slots(ours: Lab) -> None:
    with with_a_file(ours, "vers=3,rsize=32768"):
        sh(ours, f"echo 3 > /proc/sys/vm/drop_caches; cmp {HERE}/cache /export/cache")
        found = of_cache(ours)
    assert found["cache_copies"] >= (4 << 20) // 32768
    assert found["cache_slots"] > 0


def test_nothing_stays_after_unmounting(ours: Lab) -> None:
    with with_a_file(ours):
        sh(ours, DIRECT.format(count=64))
    with agreed(ours, "cached"), mounted(ours, "vers=3"):
        assert of_cache(ours)["cache_pages"] == 0


# --- a server that abuses memory that stays registered ---


@pytest.fixture(scope="module")
def victim(ours: Lab) -> Iterator[Lab]:
    """A file for the clients of a hostile server, which this module does not serve."""
    bring(ours, "client")
    sh(ours, f"mkdir /export/{FOLDER} && head -c 4194304 /dev/urandom > /export/{FOLDER}/data")
    yield ours
    sh(ours, f"rm -r /export/{FOLDER}")


@pytest.mark.nightly
def test_a_server_reaches_what_is_kept_and_nothing_else(victim: Lab) -> None:
    with agreed(victim, "cached"), nothing_lost(victim, "client"):
        argv = argv_of("cached_server", SERVER, "20070", FOLDER)
        said = json.loads(victim.run("client", *argv, timeout=1800).stdout)
    assert len(said["stories"]) > 10
    assert said["failures"] == {}
    victim.check()


def test_a_key_that_comes_again_has_another_address(victim: Lab) -> None:
    with agreed(victim, "cached"), nothing_lost(victim, "client"):
        argv = argv_of("cached_server", SERVER, "20070", FOLDER, "again")
        said = json.loads(victim.run("client", *argv, timeout=1800).stdout)
    assert said["again"]
    assert said["uses"] > 200
    assert not said["repeated"]
    # the data of that READ came over another connection
    assert (said["outcome"], said["ended"]) == ("ok", True)
    victim.check()


@pytest.mark.nightly
@pytest.mark.parametrize("memory", ("kept", "slots"))
def test_a_server_that_answers_as_it_likes(victim: Lab, mutants: int, memory: str) -> None:
    with agreed(victim, "cached"), nothing_lost(victim, "client"):
        words = (SERVER, "20070", FOLDER)
        of_personality(victim, "cached_server", words, f"{SEED} {memory}", mutants)
    victim.check()
