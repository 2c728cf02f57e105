# SPDX-License-Identifier: Apache-2.0
"""Personality cached: registrations stay for later reads, and what a server can do with them.

Over modelled cards, with client and server in one kernel, and our module on both ends.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.module_data import fio
from testbed.mounts import HERE, connections, mounted, nothing_lost, set_parameters
from testbed.node.programs import until
from testbed.peers import cached_server, trick_server
from testbed.personalities import VERSIONS, agreed, hostile_files
from testbed.remote import on
from testbed.tracing import said, sums, tracing

PAGE, BLOCK, MIB = 4096, 1 << 16, 1 << 20
# more than a key has values
USES = 2000


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-ec", script, timeout=900).stdout


def of_cache(lab: Lab) -> dict[str, int]:
    """The figures of the cache of the only connection."""
    (row,) = connections(lab)
    return {name: int(text.split()[0]) for name, text in row.items() if name.startswith("cache_")}


@pytest.mark.parametrize("vers", VERSIONS)
def test_fio_finds_what_it_wrote(lab: Lab, vers: str, long: bool) -> None:
    with agreed(lab, "cached"):
        fio(lab, vers, loops=20 if long else 2, seed=2)
    lab.check()


DIRECT = f"dd if={HERE}/cache of=/dev/null bs=64k count={{count}} iflag=direct status=none"

EMPTY = "until grep -q '^cache_pages 0 ' /sys/kernel/debug/nfsrdma/*/connection; do sleep 0.1; done"


@contextmanager
def with_a_file(lab: Lab, options: str = "vers=3") -> Iterator[None]:
    with agreed(lab, "cached"), mounted(lab, options):
        sh(lab, f"head -c 4M /dev/urandom > {HERE}/cache; sync")
        yield
        sh(lab, f"rm {HERE}/cache")
    lab.check()


def test_reads_into_the_same_memory_find_its_registration(lab: Lab) -> None:
    with with_a_file(lab):
        before = of_cache(lab)
        sh(lab, DIRECT.format(count=64))
        after = of_cache(lab)
    assert after["cache_hits"] - before["cache_hits"] == 63
    assert after["cache_misses"] - before["cache_misses"] == 1
    assert after["cache_idle_pages"] - before["cache_idle_pages"] == BLOCK // PAGE


@pytest.mark.nightly
def test_the_probes_and_top_count_hits_and_misses(lab: Lab) -> None:
    with with_a_file(lab), tracing(lab, "client", "registrations"):
        sh(lab, DIRECT.format(count=64))

        def counted() -> dict[str, int]:
            return sums(lab, "client", "reused", "registered", mount=HERE)

        until("as many hits as there were", lambda: counted()["reused"] >= 63, 300, 0.5)
        assert counted() == {"reused": 63, "registered": 1}
        mapped = [row["mapped_bytes"] for row in said(lab, "client") if row["mount"] == HERE]
        assert mapped[-1] == BLOCK
        script = f"""
nfsrdma top --batch --json --no-probes --count 4 > /run/top &
while kill -0 $! 2> /dev/null; do {DIRECT.format(count=64)}; done
cat /run/top
"""
        lines = sh(lab, script).splitlines()
        xprts = [x for line in lines for m in json.loads(line)["mounts"] for x in m["xprts"]]
        shown = [x["personality"] for x in xprts]
    assert {personality["name"] for personality in shown} == {"cached"}
    hits = sum(personality.get("counters", {}).get("cache_hits", 0) for personality in shown)
    assert hits > 63
    assert shown[-1]["gauges"]["cache_bytes"] >= BLOCK


def test_the_cache_gives_pages_back_when_memory_is_short(lab: Lab) -> None:
    with with_a_file(lab):
        sh(lab, DIRECT.format(count=64))
        sh(lab, f"cp {HERE}/cache /dev/null")
        assert of_cache(lab)["cache_pages"] > 0
        sh(lab, f"echo 2 > /proc/sys/vm/drop_caches; {EMPTY}")
        sh(lab, DIRECT.format(count=2))


@pytest.mark.nightly
def test_memory_that_a_process_gave_up_leaves_the_cache(lab: Lab) -> None:
    with with_a_file(lab):
        sh(lab, DIRECT.format(count=64))
        # the next look at the cache is at most 30 s away
        sh(lab, EMPTY)


def test_the_cache_keeps_its_limit(lab: Lab) -> None:
    with with_a_file(lab), set_parameters(lab, cache_memory=1):
        sh(lab, f"for n in $(seq 40); do {DIRECT.format(count=64)}; done")
        pages = of_cache(lab)["cache_pages"]
    assert 0 < pages <= MIB // PAGE


def test_buffered_reads_arrive_in_slots(lab: Lab) -> None:
    with with_a_file(lab, "vers=3,rsize=32768"):
        sh(lab, f"echo 3 > /proc/sys/vm/drop_caches; cmp {HERE}/cache /export/cache")
        figures = of_cache(lab)
    assert figures["cache_copies"] >= (4 << 20) // 32768
    assert figures["cache_slots"] > 0


def test_nothing_stays_after_unmounting(lab: Lab) -> None:
    with with_a_file(lab):
        sh(lab, DIRECT.format(count=64))
    with agreed(lab, "cached"), mounted(lab, "vers=3"):
        assert of_cache(lab)["cache_pages"] == 0


# --- a server that abuses memory that stays registered ---


@pytest.fixture(scope="module")
def victim(lab: Lab) -> Iterator[Lab]:
    """A file for the clients of a hostile server, which this module does not serve."""
    with hostile_files(lab):
        yield lab


class Keys:
    """Keys of one registration after another, until one comes again."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.again = self.repeated = False

    def take(self, answer: cached_server.Answer) -> None:
        handle, offset = answer.offer.handle, answer.offer.offset
        # the key of any region: the client may never use a certain one again
        self.again = handle in self.offsets
        before = self.offsets.setdefault(handle, offset)
        if self.again:
            self.repeated = offset == before
            answer.refused(before, handle)
        else:
            answer.send()


@on("client", timeout=1800)
def use_keys() -> None:
    """A key has 8 bits of its own, so a region gets it again. It has another address then."""
    server, keys, outcome = cached_server.Server(), Keys(), "ok"
    with trick_server.asking(server) as ask:
        while not keys.again and outcome == "ok" and len(keys.offsets) < USES:
            server.trick = keys.take
            outcome = ask(0)
            if not keys.again:
                cached_server.evict()
        ended = server.story.ended
    assert keys.again
    assert len(keys.offsets) > 200
    assert not keys.repeated
    # the data of that READ came over another connection
    assert (outcome, ended) == ("ok", True)


def test_a_key_that_comes_again_has_another_address(victim: Lab) -> None:
    with agreed(victim, "cached"), nothing_lost(victim, "client"):
        use_keys(victim)
    victim.check()
