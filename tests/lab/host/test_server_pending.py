# SPDX-License-Identifier: Apache-2.0
"""A WRITE that a server holds is shown pending; each way to read nfsd's state says the same."""

import json
import re
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.scripts import node_script

MOUNTS = {
    "NFSv3 WRITE": ("server", "proto=rdma,port=20049,vers=3"),
    # over IPv6, whose addresses have an attribute of their own
    "NFSv4 WRITE": ("[::1]", "proto=tcp6,vers=4.2"),
}
STATE = ("threads", "listeners", "versions", "pool_threads", "pool_mode")


def swapped(number: str) -> int:
    """A number in network order that nfsdctl prints as one in the host's order."""
    bits = 32 if number.startswith("0x") else 16
    return int.from_bytes(int(number, 0).to_bytes(bits // 8, "little"), "big")


def agree(found: dict[str, Any]) -> None:
    """Compare threads, listeners and versions with /proc/fs/nfsd, and with nfsdctl if it is there.

    /proc/fs/nfsd lists NFSv4.0 only if it is off.
    """
    status, files, nfsdctl = found["status"], found["files"], found["nfsdctl"]
    assert [status["threads"]] == [int(files["threads"])]
    assert status["pool_threads"] == list(map(int, files["pool_threads"].split()))
    listed = {tuple(line.split()) for line in files["portlist"].splitlines()}
    assert {(one["transport"], str(one["port"])) for one in status["listeners"]} == listed
    words = files["versions"].split()
    on = {word.removeprefix("+") for word in words if word[0] == "+"}
    assert set(status["versions"]) == (on - {"4"}) | ({"4.0"} if "-4.0" not in words else set())
    if not nfsdctl["status"]:
        return
    pools = re.search("pool-threads: (.*)", nfsdctl["threads"])
    assert pools
    assert status["pool_threads"] == list(map(int, pools[1].split()))
    listed = {tuple(re.split(r":(?:\S*:)?", line)) for line in nfsdctl["listener"].split()}
    assert {(one["transport"], str(one["port"])) for one in status["listeners"]} == listed
    on = {word.removeprefix("+") for word in nfsdctl["version"].split() if word[0] == "+"}
    assert set(status["versions"]) == {"3" if one == "3.0" else one for one in on}


@pytest.mark.parametrize("name", MOUNTS)
def test_a_held_write_is_pending(name: str, solo: Lab, request: pytest.FixtureRequest) -> None:
    argv = ("python3", "-", *MOUNTS[name])
    said = solo.run("server", *argv, stdin=node_script("pending"), timeout=900).stdout
    found = json.loads(said)
    agree(found)
    assert [found["bundle"][key] for key in STATE] == [found["status"][key] for key in STATE]
    if request.config.getoption("--kernel") == "6.1":
        why = "the kernel has no netlink family nfsd (before Linux 6.7)"
        assert f"\npending    unknown ({why})\n" in found["text"]
        assert "threads    unknown (needs root)\n" in found["text"]
        assert f"unavailable: pending RPCs of nfsd: {why}" in found["top"]
        readers = ("status", "bundle", "after")
        assert {found[reader]["pending_unknown"] for reader in readers} == {why}
        return
    (rpc,) = (one for one in found["status"]["pending"]["rpcs"] if one["name"].startswith(name))
    # the kernel's own event of the same RPC
    procedure = "WRITE" if rpc["version"] == 3 else "COMPOUND"
    event = re.compile(rf"xid=0x{rpc['xid']:08x} .*vers={rpc['version']} proc={procedure}")
    assert any(event.search(line) for line in found["events"]), (rpc, found["events"])
    assert rpc["program"] == 100003
    # as another user than root
    assert f"threads    {found['status']['threads']}, " in found["text"]
    line = f"0x{rpc['xid']:08x} {rpc['name']} for "
    assert line in found["text"]
    assert f"nfsd: pending: {line}" in found["top"]
    if name == "NFSv3 WRITE":
        addresses = [rpc[key] for key in ("client", "client_port", "server", "server_port")]
        assert addresses == ["10.9.1.11", 0, "10.9.1.1", 20049]
        assert rpc["operations"] == []
    else:
        # half an address of a kernel without "widen nfsd_genl_rqstp address fields"
        assert rpc["client"] == rpc["server"]
        assert rpc["client"] in ("::1", "::/64")
        assert (rpc["client_port"] > 0, rpc["server_port"]) == (True, 2049)
        # SEQUENCE PUTFH WRITE
        assert rpc["operations"][:3] == [53, 22, 38]
    (there,) = (one for one in found["bundle"]["pending"]["rpcs"] if one["xid"] == rpc["xid"])
    # collect came later, by the clock of the kernel
    assert there.pop("age_us") > rpc["age_us"] > 0
    assert there.items() < rpc.items()
    after = found["after"]["pending"]
    assert rpc["xid"] not in [one["xid"] for one in after["rpcs"]]
    if found["nfsdctl"]["status"]:
        rows = [row.split() for row in found["nfsdctl"]["status"].splitlines()]
        (row,) = (row for row in rows if swapped(row[0]) == rpc["xid"])
        assert row[2:5] == [str(rpc["program"]), str(rpc["procedure"]), f"NFS{rpc['version']}"]
        if name == "NFSv3 WRITE":
            ports = [swapped(port) for port in row[8:10]]
            assert [*row[6:8], *ports] == ["10.9.1.11", "10.9.1.1", 0, 20049]
