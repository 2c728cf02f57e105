# SPDX-License-Identifier: Apache-2.0
"""What each personality of our module must do: data, killed tasks, restarts, refusals, its end.

Over modelled cards, with client and server in one kernel, and our module on both ends. A file for
each personality has the tests that are its own.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import SEED, finished
from testbed.killed_tasks import killed
from testbed.labs import OURS, THEIRS, serve
from testbed.module_data import WAYS, around, carried, delegation
from testbed.mounts import (
    HERE,
    PARAMETERS,
    connections,
    mounted,
    nothing_lost,
    set_parameters,
    set_to,
)
from testbed.node import modelled
from testbed.node.programs import until
from testbed.peers import (
    cached_server,
    messages,
    padded_client,
    padded_server,
    read_read_client,
    read_read_server,
    trick_server,
)
from testbed.peers.messages import Outcomes
from testbed.peers.trick_server import Story
from testbed.personalities import (
    LIMIT,
    VERSIONS,
    agreed,
    compare,
    counted,
    hostile_files,
    in_effect,
    nothing_left,
    serves_others,
)
from testbed.remote import on

Record = Callable[[str, object], None]
PAGE, BLOCK, MIB = 4096, 1 << 16, 1 << 20
NIGHTLY = pytest.mark.nightly


@dataclass(frozen=True)
class Personality:
    """Direct reads of ``block`` bytes use it, and add to ``counter`` of the client."""

    name: str
    counter: str
    block: int
    options: str = "vers=3"

    def __str__(self) -> str:
        return self.name


READ_READ = Personality("read-read", "fetches", BLOCK)
PADDED = Personality("padded", "padded_replies", 2 * PAGE)
PRE_POSTED = Personality("pre-posted", "lane_calls", MIB)
CACHED = Personality("cached", "cache_hits", BLOCK)
OPTIMISTIC = Personality("optimistic", "optimistic_reads", PAGE, "vers=3,noac")
ALL = (READ_READ, PADDED, PRE_POSTED, CACHED, OPTIMISTIC)


def with_each(*personalities: Personality, nightly: bool = False) -> pytest.MarkDecorator:
    """Run a test with each of these; its transports have the personality."""
    marks = [NIGHTLY] if nightly else []
    values = [
        pytest.param(personality, marks=marks, id=str(personality)) for personality in personalities
    ]
    return pytest.mark.parametrize("personality", values, indirect=True)


def in_turn(
    names: str, personalities: Sequence[Personality], values: Sequence[str], *indirect: str
) -> pytest.MarkDecorator:
    """Run a test with all pairs of them; each personality has one value that is not nightly."""
    pairs = [
        pytest.param(
            personality, value, id=f"{personality}-{value}",
            marks=[] if index == number % len(values) else [NIGHTLY],
        )
        for number, personality in enumerate(personalities)
        for index, value in enumerate(values)
    ]  # fmt: skip
    return pytest.mark.parametrize(names, pairs, indirect=indirect)


@pytest.fixture
def personality(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Personality]:
    """New transports have this personality."""
    requested: Personality = request.param
    with agreed(lab, requested.name):
        yield requested
    nothing_left(lab)
    lab.check()


def used(lab: Lab, personality: Personality, name: str) -> None:
    """Read a file until the personality was used; its data is right."""
    script = f"""
dd if={HERE}/{name} of=/run/{name} bs={personality.block} iflag=direct status=none
cmp /run/{name} /export/{name}
rm /run/{name}
"""

    def counts() -> bool:
        lab.run("client", "sh", "-ec", script, timeout=LIMIT)
        return counted(lab, "nfsrdma", personality.counter) > [0]

    # a lane, or the connection of optimistic reads, may not be there when the first read is
    until(f"the first use of {personality}", counts, 300, 0.5)


# --- data ---

SIZES = {
    READ_READ: around(PAGE, BLOCK, MIB),
    PRE_POSTED: around(BLOCK, 17 * BLOCK),
    CACHED: [1, 5000, *around(BLOCK)],
}
LONG_SIZES = SIZES | {
    PRE_POSTED: around(*(1 << n for n in range(24))),
    CACHED: around(PAGE, 2 * PAGE, BLOCK, MIB),
}
# several connections have lanes of their own; a READ of the cache may take one block
OPTIONS = {
    (PRE_POSTED, "vers=4.2"): "vers=4.2,nconnect=4",
    (CACHED, "vers=3"): "vers=3,rsize=65536,wsize=65536",
    (CACHED, "vers=4.2"): "vers=4.2,rsize=65536,wsize=65536",
}


@in_turn("personality, vers", (READ_READ, PRE_POSTED, CACHED), VERSIONS, "personality")
def test_data_of_every_size_is_equal(
    lab: Lab, personality: Personality, vers: str, long: bool, record_property: Record
) -> None:
    with mounted(lab, vers):
        assert in_effect(lab) == [[personality.name]] * 2
        assert [row["personality_wanted"] for row in connections(lab)] == [personality.name]
    sizes = (LONG_SIZES if long else SIZES)[personality]
    ways = WAYS if long or personality != PRE_POSTED else ("buffered", "direct-skewed")
    options = OPTIONS.get((personality, vers), vers)
    result = carried(lab, options, sizes, seed=2003, ways=ways)
    record_property("bytes", result.bytes)


@with_each(READ_READ, PADDED)
def test_a_delegation_is_recalled(lab: Lab, personality: Personality) -> None:
    delegation(lab, "vers=4.2")


# --- killed tasks and failures ---


@in_turn("personality, vers", (PADDED, CACHED, READ_READ), VERSIONS, "personality")
def test_killed_readers_and_writers_leave_nothing(
    lab: Lab, personality: Personality, vers: str, long: bool
) -> None:
    killed(lab, vers, silent=False, seed="2003", rounds=20 if long else 3)


@on("client", timeout=1800)
def each_failure() -> None:
    modelled.each_failure()


@with_each(READ_READ, CACHED, nightly=True)
def test_a_mount_survives_each_failure_of_its_card(lab: Lab, personality: Personality) -> None:
    each_failure(lab)


# the number of restarts is fixed: on a busy machine, a restart takes longer than a copy
RESTARTS = f"""
head -c $1 /dev/urandom > /export/restarts
(until test -e /run/restarted; do
	dd if={HERE}/restarts of={HERE}/copied bs=$2 oflag=direct status=none || exit
	cmp /export/restarts {HERE}/copied || exit
	echo 3 > /proc/sys/vm/drop_caches
done; echo equal > /run/equal) &
for n in $(seq $3); do
	sleep 1
	systemctl restart nfs-server
	echo Y > /proc/fs/nfsd/v4_end_grace || true
done
touch /run/restarted
wait
cat /run/equal
rm /run/equal /run/restarted /export/restarts /export/copied
"""


@pytest.mark.parametrize(
    ("personality", "options", "size", "counter"),
    [
        pytest.param(READ_READ, "vers=4.2", 32 * MIB, "fetches", id="read-read"),
        pytest.param(
            PADDED, "vers=4.2,rsize=16384,wsize=16384", 8 * MIB, "padded_calls", id="padded"
        ),
    ],
    indirect=["personality"],
)
@NIGHTLY
def test_a_mount_survives_restarts_of_its_server(
    lab: Lab, personality: Personality, options: str, size: int, counter: str, long: bool
) -> None:
    words = (str(size), str(personality.block), str(20 if long else 4))
    with mounted(lab, options):
        output = lab.run("client", "sh", "-c", RESTARTS, "sh", *words, timeout=1800).stdout
        (uses,) = counted(lab, "nfsrdma", counter)
    assert output == "equal\n"
    assert uses > 100


# --- a server that does not accept it ---


@in_turn("requested, accepted", ALL, ("nothing", "another"))
def test_without_permission_a_mount_is_read_write(
    lab: Lab, requested: Personality, accepted: str
) -> None:
    another = "cached" if requested != CACHED else "read-read"
    set_to(lab, "client", "personality", requested.name)
    set_to(lab, "server", "server_personalities", another if accepted == "another" else "")
    try:
        with mounted(lab, "vers=3"):
            effective = in_effect(lab)
            wanted = [row["personality_wanted"] for row in connections(lab)]
            compare(lab, 4 * MIB, requested.block, 12288, BLOCK, MIB)
            uses, writes = counted(lab, "nfsrdma", requested.counter, "write_chunks")
    finally:
        set_to(lab, "client", "personality", "read-write")
        set_to(lab, "server", "server_personalities", "")
    assert effective == [["read-write"]] * 2
    assert wanted == [requested.name]
    assert (uses, writes > 0) == (0, True)
    nothing_left(lab)


def test_one_server_has_a_personality_of_its_own(lab: Lab) -> None:
    parameter = f"{PARAMETERS}/personality_for"
    address = lab.run("client", "getent", "hosts", "server").stdout.split()[0]
    set_to(lab, "server", "server_personalities", "cached")
    try:
        set_to(lab, "client", "personality_for", f"{address},cached")
        with mounted(lab, "vers=3"):
            assert in_effect(lab)[0] == ["cached"]
        assert lab.run("client", "cat", parameter).stdout.strip() == f"{address},cached"
        set_to(lab, "client", "personality_for", address)
        assert lab.run("client", "cat", parameter).stdout.strip() == ""
        with mounted(lab, "vers=3"):
            assert in_effect(lab)[0] == ["read-write"]
    finally:
        set_to(lab, "client", "personality_for", address)
        set_to(lab, "server", "server_personalities", "")


# --- peers that break the rules ---


@pytest.fixture(scope="module")
def files(lab: Lab) -> Iterator[Lab]:
    """Files on the server that hostile peers may damage."""
    with hostile_files(lab), set_parameters(lab, server_done_timeout=2):
        yield lab


# by name of the personality
SENDERS = {"read-read": read_read_client.Sender, "padded": padded_client.Sender}
SERVERS = {"read-read": read_read_server, "padded": padded_server, "cached": cached_server}
# tricks that a server plays at least
TRICKS = {READ_READ: 21, PADDED: 21, CACHED: 11}


@on("client", timeout=14400)
def send_mutants(personality: str, seed: str, count: int) -> Outcomes:
    return messages.mutants(seed, count, SENDERS[personality])


@on("client", timeout=14400)
def reply_by_mutants(personality: str, memory: str, seed: str, count: int) -> Outcomes:
    server = SERVERS[personality].Server()
    if memory == "slots":
        server.memory = mmap.MAP_SHARED
    return trick_server.mutants(server, seed, count)


@on("client", timeout=LIMIT * 3)
def play_tricks(personality: str) -> dict[str, Story]:
    peer = SERVERS[personality]
    return trick_server.played(peer.Server(), peer.TRICKS)


def did_no_harm(outcomes: Outcomes, count: int) -> None:
    words, failures = outcomes
    assert failures == [], f"seed {SEED}"
    assert sum(words.values()) == count
    print(words)


@with_each(READ_READ, PADDED, nightly=True)
def test_a_client_that_sends_mutated_messages(
    files: Lab, personality: Personality, mutants: int
) -> None:
    did_no_harm(finished(send_mutants, files, personality.name, SEED, mutants), mutants)
    serves_others(files)


@with_each(*TRICKS, nightly=True)
def test_a_server_that_lies_is_not_believed(files: Lab, personality: Personality) -> None:
    """No trick hurts but the read that it is played on; what can be sent again, is."""
    with nothing_lost(files, "client"):
        stories = play_tricks(files, personality.name)
    assert len(stories) >= TRICKS[personality]
    assert {name: story for name, story in stories.items() if not story.fine()} == {}


# cached: the registrations that are mutated
@pytest.mark.parametrize(
    ("personality", "memory"),
    [
        pytest.param(READ_READ, "", id="read-read", marks=NIGHTLY),
        pytest.param(PADDED, "", id="padded", marks=NIGHTLY),
        pytest.param(CACHED, "kept", id="cached-kept", marks=NIGHTLY),
        pytest.param(CACHED, "slots", id="cached-slots", marks=NIGHTLY),
    ],
    indirect=["personality"],
)
def test_a_server_that_sends_mutated_messages(
    files: Lab, personality: Personality, memory: str, mutants: int
) -> None:
    with nothing_lost(files, "client"):
        seed = f"{SEED} {memory}" if memory else SEED
        words = (personality.name, memory, seed, mutants)
        did_no_harm(finished(reply_by_mutants, files, *words), mutants)


# --- the end ---

# those that keep memory or watches beyond a reply, each time
LEFT = (*(pytest.param(p, marks=NIGHTLY) for p in ALL[:3]), *ALL[3:])


@pytest.mark.parametrize("requested", LEFT, ids=str)
def test_the_module_unloads_after_use(lab: Lab, requested: Personality) -> None:
    """And serves the same personality when it is loaded again."""
    with agreed(lab, requested.name):
        lab.run("server", "sh", "-ec", "head -c 4194304 /dev/urandom > /export/unload")
        with mounted(lab, requested.options):
            assert {name for side in in_effect(lab) for name in side} == {requested.name}
            used(lab, requested, "unload")
        lab.run("server", "rm", "/export/unload")
    nothing_left(lab)
    lab.run("server", "systemctl", "stop", "nfs-server")
    until("a module that is not in use", lambda: unused(lab), 60, 0.5)
    serve(lab, "server", THEIRS)
    lab.run("client", "sh", "-c", "! test -e /sys/module/nfsrdma")
    serve(lab, "server", OURS)
    with agreed(lab, requested.name), mounted(lab, requested.options):
        assert in_effect(lab)[0] == [requested.name]
    lab.check()


def unused(lab: Lab) -> bool:
    script = "grep -qx 0 /sys/module/nfsrdma/refcnt"
    return not lab.run("client", "sh", "-c", script, check=False).returncode
