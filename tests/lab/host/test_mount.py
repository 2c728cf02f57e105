# SPDX-License-Identifier: Apache-2.0
"""Real mounts: options in effect, counters that agree, and how each fault ends."""

import json
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.scripts import node_script

pytestmark = pytest.mark.lab

SCRIPT = node_script("mount")
BLOCK, READS, WRITES = 65536, 23, 5
HERE, THERE = "/mnt/here", "/mnt/there"


def on(lab: Lab, name: str) -> Any:
    """Run the function ``name`` of mount_node.py in the node; returns its result."""
    said = lab.run("client", "python3", "-", name, stdin=SCRIPT, timeout=300).stdout
    return json.loads(said)


def test_what_is_asked_is_in_effect_and_everybody_counts_the_same(solo: Lab) -> None:
    runs = on(solo, "counters")
    asked = [[transport, vers] for vers in ("3", "4.2") for transport in ("tcp", "rdma")]
    assert [run["asked"] for run in runs] == asked
    for run in runs:
        in_effect(run)
        data_counts(run)
        connections_count(run)


def in_effect(run: dict[str, Any]) -> None:
    transport, vers = run["asked"]
    facts = run["facts"]
    assert (facts["transport"], facts["options"]["proto"], facts["vers"]) == (
        transport, transport, vers,
    )  # fmt: skip
    assert (facts["rsize"], facts["wsize"]) == (BLOCK, BLOCK)
    assert (facts["nconnect"], facts["connections"]) == (4, 4)
    assert (facts["read_ahead_kb"], facts["read_ahead_blocks"]) == (256, 4.0)
    assert run["kb_at_the_end"] == 256
    assert facts["options"]["local_lock"] == "none"
    assert facts["shares_with"] == []


def data_counts(run: dict[str, Any]) -> None:
    read, write, elsewhere = run["read"], run["write"], run["elsewhere"]
    assert (read["operations"], read["transmissions"], read["errors"]) == (READS, READS, 0)
    assert (write["operations"], write["errors"]) == (WRITES, 0)
    assert elsewhere["client"] == run["READ"]
    assert elsewhere["server"] == READS
    assert run["bytes"]["direct_read"] == READS * BLOCK == elsewhere["server_read"]
    assert run["bytes"]["direct_write"] == WRITES * BLOCK == elsewhere["server_written"]


def connections_count(run: dict[str, Any]) -> None:
    counters = [counters for _, counters in run["xprts"]]
    assert [proto for proto, _ in run["xprts"]] == [run["asked"][0]] * 4
    assert all(one["sends"] == one["recvs"] > 0 for one in counters)
    if run["asked"][0] == "rdma":
        # as many chunks as there is data to place, and soft-RoCE sends 4 KiB in a packet at most
        assert sum(one["write_chunk_count"] for one in counters) == READS
        assert sum(one["read_chunk_count"] for one in counters) == WRITES
        assert run["elsewhere"]["rdma_packets"] >= (READS + WRITES) * BLOCK // 4096
    else:
        assert run["elsewhere"]["rdma_packets"] == 0


def test_a_second_nfsv4_mount_is_given_the_first_ones_transport(solo: Lab) -> None:
    answer = on(solo, "shared_transport")
    assert answer["v4"] == {
        "kind": "MismatchError", "left": [HERE], "undo": 0, "running": 0,
        "error": "transport: requested tcp, got rdma (it shares the connections of /mnt/here, as "
        "NFSv4 mounts of one server do: unmount that first, or use --vers 3)",
    }  # fmt: skip
    assert "nconnect: requested 4, got 1 (it shares" in answer["nconnect"]["error"]
    assert answer["shares"] == [HERE]
    assert answer["3"] == answer["4.1"] == {"got": "tcp", "shares": []}


def test_other_values_than_asked_are_errors_with_both(solo: Lab) -> None:
    answer = on(solo, "other_values")
    assert "rsize: requested 1048576, got 524288" in answer["rsize"]["error"]
    assert answer["rsize"]["left"] == []
    assert f"{THERE} has one cache and one read-ahead with {HERE}" in answer["sharecache"]["error"]
    assert answer["sharecache"]["left"] == [HERE]
    assert answer["kb"] == [128, 0]
    assert answer["set"] == [6, 4]


def test_every_failure_is_one_line_and_leaves_nothing(solo: Lab) -> None:
    answer = on(solo, "failures")
    expected = {
        "unknown host": "unknown host 'nowhere.invalid'",
        "tcp port": "server refuses tcp connections on port 4711",
        "rdma port": "server refuses rdma connections on port 4711",
        "v3 port": "server refuses tcp connections on port 4711",
        "v4 export": "server has no export '/none'",
        "v3 export": "server does not export '/none' to this host",
        "no device": "no rdma device has a route to 127.0.0.1",
        "option": "mount.nfs or the kernel rejects foo=bar",
        "in use": "mount point /export is in use: tmpfs",
        "missing": "mount point /mnt/missing: No such file or directory",
    }
    assert answer.keys() == expected.keys()
    for name, words in expected.items():
        assert answer[name]["error"].startswith(words), answer[name]
        assert "\n" not in answer[name]["error"]
        assert (answer[name]["left"], answer[name]["undo"], answer[name]["running"]) == ([], 0, 0)


def test_a_server_that_does_not_answer_is_given_up(solo: Lab) -> None:
    answer = on(solo, "hanging")
    status, said = answer["limited"]
    assert status == 1
    assert said.startswith("nfsrdma: server did not answer within 2 s, so the mount was aborted")
    assert said.count("\n") == 1
    assert answer["stopped"][0] == 130
    assert "Traceback" not in answer["stopped"][1]
    assert (answer["running"], answer["left"], answer["journals"]) == ("", [], [])


# a mount whose server is gone, and a program that waits for it
WAITING = f"""
set -e
mkdir -p {HERE}
mount -t nfs -o vers=4.2,proto=rdma,port=20049 server:/export {HERE}
device=$(awk '$5 == "{HERE}" {{print $3}}' /proc/self/mountinfo)
systemctl stop nfs-server
systemd-run --quiet --collect --unit waits -- sh -c 'echo x > {HERE}/waits'
pid=$(systemctl show --property MainPID --value waits)
until grep -q rpc_wait /proc/$pid/stack; do sleep 0.2; done
"""
ENDED = "while systemctl --quiet is-active waits; do sleep 0.2; done"
MOUNTED = f"grep -q ' {HERE} ' /proc/self/mountinfo"
# out of the tree; umount still waits for the reply to DESTROY_SESSION, and a signal ends that
UNMOUNT = f"umount {HERE} & while {MOUNTED}; do sleep 0.2; done; pkill -x umount.nfs4 || true; wait"
FORCE = f"while {MOUNTED}; do timeout 5 umount -f {HERE} || true; done"
SHUTDOWN = "echo 1 > /sys/fs/nfs/$device/shutdown"
# docs/how-to/hang.md, steps 4 to 7
WAYS = {
    "kill": f"! umount {HERE}; systemctl kill --signal KILL waits; {ENDED}; {UNMOUNT}",
    "umount -f": f"{FORCE}; {ENDED}",
    "shutdown": f"{SHUTDOWN}; {ENDED}; umount {HERE}",
    "umount -l": f"umount -l {HERE}; systemctl is-active waits; test -d /sys/fs/nfs/$device;"
    f" {SHUTDOWN}; {ENDED}",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_mount_whose_server_is_gone_is_given_up(solo: Lab, way: str) -> None:
    def sh(script: str) -> str:
        return solo.run("client", "timeout", "120", "bash", "-c", script, timeout=300).stdout

    release = [int(part) for part in sh("uname -r").split(".")[:2]]
    if SHUTDOWN in WAYS[way] and release < [6, 5]:
        pytest.skip("Linux has the file shutdown since 6.5 (commit d9615d166c7e)")
    try:
        sh(f"{WAITING}{WAYS[way]}\nsync -f /")
        left = sh(f"{MOUNTED} && echo mounted; until ! grep ^v /proc/fs/nfsfs/volumes; do :; done")
        assert left == ""
    finally:
        sh("systemctl start nfs-server")


def test_a_mount_in_use_names_its_users(solo: Lab) -> None:
    answer = on(solo, "busy")
    sleeper = f"{HERE} is in use by pid {answer['pid']} (sleep, working folder)"
    assert answer["first"].startswith(f"nfsrdma: {sleeper}")
    assert answer["second"].startswith(f"nfsrdma: {HERE} is in use by mount {HERE}/inside")
    assert answer["still"]


@pytest.mark.main
def test_a_killed_toolkit_is_cleaned_up_by_the_next(solo: Lab) -> None:
    assert on(solo, "killed") == {
        "undone": True, "ended": -9, "stayed": True, "failed": [], "recovered": True,
    }  # fmt: skip


def test_hostile_names_are_names(solo: Lab) -> None:
    assert on(solo, "hostile") == []


def test_ipv6_addresses_with_and_without_a_zone(solo: Lab) -> None:
    plain, zoned = on(solo, "ipv6")
    assert plain[1:] == ["[::1]:/export", "tcp", "tcp6"]
    assert zoned[1:] == [zoned[0], "rdma", "rdma6"]
    assert zoned[0].startswith("[fe80::")


@pytest.mark.main
def test_the_commands(solo: Lab) -> None:
    script = (
        f"mkdir -p '{HERE} x' && nfsrdma mount server:/export '{HERE} x' --rsize 64k "
        f"--read-ahead 4 -o noatime,soft --json && nfsrdma mounts && nfsrdma umount '{HERE} x' "
        f"&& rmdir '{HERE} x' && nfsrdma mounts --json"
    )
    said = solo.run("client", "sh", "-c", script).stdout
    made, end = json.JSONDecoder().raw_decode(said)
    assert (made["rsize"], made["read_ahead_blocks"], made["transport"]) == (BLOCK, 4.0, "rdma")
    assert f"{HERE} x  server:/export  rdma       4.2" in said[end:]
    assert "256 KiB = 4 blocks" in said[end:]
    # options of the superblock: noatime is not one of them
    assert "soft" in made["options"]
    assert json.loads(said[said.rindex("\n{") :]) == {"schema_version": 1, "mounts": []}
