# SPDX-License-Identifier: Apache-2.0
"""Personalities: their names, the module's table, its transports, and what a mount has in effect.

tests/lab/personalities/test_mount_personality.py mounts with them.
"""

import re
from pathlib import Path

import pytest

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mounting, personality, sharing
from nfsrdma_tools.host.nfs.personality import ClientTransport, client_transports, in_effect
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.lock import try_folder_lock
from nfsrdma_tools.personalities import DEFAULT, PERSONALITIES
from nfsrdma_tools.undo import journal

KMOD = Path(__file__).parents[4] / "kmod"
CONNECTION = """\
peer {peer} port 20049
personality_wanted cached
connected {connected}
connects 1
token 00000000000000aa
"""


def transport(number: int, personality: str, requested: str = "cached") -> ClientTransport:
    return ClientTransport(number, "10.9.1.2", 20049, requested, personality)


def table_of(machine: Machine) -> Path:
    """The module's table of requested personalities, in a folder that is there."""
    table = machine.path(str(personality.TABLE.relative_to("/")))
    table.parent.mkdir(parents=True)
    return table


def test_the_names_are_those_of_the_module_in_its_order() -> None:
    text = (KMOD / "personality.h").read_text()
    listed = re.findall(r'_\((\d+), \w+, \w+, "([\w-]+)"\)', text)
    assert [int(number) for number, _ in listed] == list(range(len(listed)))
    names = [name for _, name in listed]
    assert names == list(PERSONALITIES)
    assert names[0] == DEFAULT


def test_the_module_is_needed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with pytest.raises(UserError, match=r"found no module \(load this version: nfsrdma module lo"):
        personality.require_module(machine)
    table_of(machine).touch()
    personality.require_module(machine)


def test_the_table_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    table = table_of(machine)
    table.write_text("\n")
    assert personality.table_entries(machine) == {}
    table.write_text("10.9.1.2,cached fe80::1,read-write\n")
    assert personality.table_entries(machine) == {"10.9.1.2": "cached", "fe80::1": "read-write"}
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        personality.table_entries(Machine(tmp_path / "none"))


def test_an_entry_that_did_not_take_effect_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    machine = Machine(tmp_path)
    table_of(machine).write_text("\n")
    monkeypatch.setattr(personality, "_write_entry", lambda entry, table: None)
    with (
        pytest.raises(MismatchError, match=r"for fe80::1%2: requested cached, got none"),
        journal() as changes,
        personality.requested_for(["fe80::1%2"], "cached", changes, machine),
    ):
        raise AssertionError


def test_a_lock_on_the_parameters_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    machine = Machine(tmp_path)
    with (
        try_folder_lock(table_of(machine).parent),
        journal() as changes,
        personality.requested_for([], "cached", changes, machine),
    ):
        pass


def test_the_transports_are_read(tmp_path: Path) -> None:
    machine = Machine(sysfs=tmp_path)
    assert client_transports(machine) == []
    folder = machine.path("sys/kernel/debug/nfsrdma")
    folder.mkdir(parents=True)
    for name, peer, connected in (
        ("10", "10.9.1.2", "yes\npersonality read-write"),
        ("9", "fe80::1%eth1", "no"),
    ):
        (folder / name).mkdir()
        text = CONNECTION.format(peer=peer, connected=connected)
        (folder / name / "connection").write_text(text)
    # it ended while this was read
    (folder / "11").mkdir()
    idle = ClientTransport(9, "fe80::1%eth1", 20049, "cached", "")
    assert client_transports(machine) == [idle, transport(10, "read-write")]
    assert in_effect(client_transports(machine)) == ("read-write",)
    assert in_effect([idle]) == ()


def test_figures_of_a_personality_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personality, "_PAGE", 4096)
    state = {
        "1": "yes\npersonality pre-posted\nlanes 3 of 8\nlanes_busy 0",
        "2": "yes\npersonality cached\ncache_hits 9\ncache_misses 0\ncache_idle_pages 16",
        "3": "yes\npersonality read-write",
        "4": "yes\npersonality optimistic\noptimistic_connection yes\noptimistic_paused yes\n"
        "references 5",
    }
    machine = Machine(sysfs=tmp_path)
    folder = machine.path("sys/kernel/debug/nfsrdma")
    for name, lines in state.items():
        (folder / name).mkdir(parents=True)
        text = CONNECTION.format(peer="10.9.1.2", connected=lines)
        (folder / name / "connection").write_text(text)
        own = "optimistic_reads 8\n" if name == "4" else "lane_calls 40\n"
        (folder / name / "counters").write_text(f"{own}lane_bytes 5\ndones 0\n")
    lanes, cache, usual, reads = client_transports(machine)
    assert (lanes.gauges, lanes.counters) == ({"lanes": 3, "lanes_busy": 0}, {"lane_calls": 40})
    assert (cache.gauges, cache.counters["cache_hits"]) == ({"cache_bytes": 65536}, 9)
    assert "cache_misses" not in cache.counters
    assert (usual.gauges, usual.counters) == ({}, {})
    assert reads.gauges == {"references": 5, "optimistic_paused": 1}
    assert reads.counters == {"optimistic_reads": 8}


def test_without_a_request_the_table_is_not_needed() -> None:
    with personality.requested(None, [], None) as earlier:  # type: ignore[arg-type]
        assert earlier == frozenset()


def test_a_request_without_the_module_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    machine = Machine(tmp_path)
    with (
        journal() as changes,
        pytest.raises(UserError, match="needs module nfsrdma: found no module"),
        personality.requested("cached", ["127.0.0.1"], changes, machine),
    ):
        raise AssertionError
    table_of(machine).touch()
    with (
        journal() as changes,
        pytest.raises(UserError, match=r"debug/nfsrdma, .* does not exist \(mount debugfs: "),
        personality.requested("cached", ["127.0.0.1"], changes, machine),
    ):
        raise AssertionError


class Host:
    """A mount, 0:45, and the transports of the module."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.known: list[ClientTransport] = []
        self.numbers: list[int] | None = None
        patch.setattr(personality, "client_transports", lambda: self.known)
        for module in (sharing, mounting):
            patch.setattr(module, "transport_numbers", lambda device, *_: self.numbers)
        patch.setattr(sharing, "server", lambda device, *_: ("10.9.1.2", 20049))

    def verify(self, before: set[int], *sharing: Path) -> str:
        """The message of an error."""
        try:
            mounting.verify_personality("cached", "0:45", before, sharing)
        except MismatchError as error:
            return str(error)
        return ""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.mark.parametrize("numbers", [[3], None])
def test_a_personality_in_effect_is_accepted(host: Host, numbers: list[int] | None) -> None:
    host.numbers = numbers
    # another mount's
    host.known = [transport(2, "read-write", "read-write"), transport(3, "cached")]
    assert host.verify({2}) == ""


def test_a_connection_that_was_not_used_yet_is_no_difference(host: Host) -> None:
    host.numbers = [3, 4]
    host.known = [transport(3, "cached"), transport(4, "")]
    assert host.verify(set()) == ""
    host.known = [transport(3, "cached"), transport(4, "", "read-write")]
    assert host.verify(set())
    host.known = [transport(3, ""), transport(4, "")]
    assert "requested cached, got no connection" in host.verify(set())


@pytest.mark.parametrize("numbers", [[3], None])
def test_a_server_that_refuses_is_named(host: Host, numbers: list[int] | None) -> None:
    host.numbers, host.known = numbers, [transport(3, "read-write")]
    assert host.verify(set()) == (
        "personality: requested cached, got read-write "
        "(the server does not accept it; nfsrdma does with server_personalities=cached)"
    )


@pytest.mark.parametrize("numbers", [[3], None])
def test_a_shared_transport_is_named(host: Host, numbers: list[int] | None) -> None:
    host.numbers, host.known = numbers, [transport(3, "read-write", "read-write")]
    assert host.verify({3}, Path("/mnt/a"), Path("/mnt/b")) == (
        "personality of a shared transport: requested cached, got read-write (it uses the "
        "transport of /mnt/a, /mnt/b: unmount that first, or use another --vers)"
    )
    assert "the transport of another mount" in host.verify({3})
    host.known = [transport(3, "cached")]
    assert host.verify({3}, Path("/mnt/a")) == ""


def test_what_is_verified_again_is_what_the_kernel_knows_exactly(host: Host) -> None:
    host.known = [transport(3, "read-write")]
    mounting.verify_personality("cached", "0:45")
    host.numbers = [3]
    with pytest.raises(MismatchError):
        mounting.verify_personality("cached", "0:45")


def test_the_addresses_of_a_target() -> None:
    assert Target.parse("127.0.0.1:/").addresses() == ["127.0.0.1"]
    assert Target.parse("[::1]:/").addresses() == ["::1"]
    assert Target.parse("[fe80::1%lo]:/").addresses() == ["fe80::1%1"]
