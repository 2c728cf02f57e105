# SPDX-License-Identifier: Apache-2.0
"""Which module a transport takes, and what a mount with proto=rdma is called."""

import pytest
from unit.requests_made import asks

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.kernel_modules import ModuleFile, parse_loaded
from nfsrdma_tools.host.nfs.mountinfo import parse
from nfsrdma_tools.host.nfs.mounts import nfs_mounts
from nfsrdma_tools.host.transports import check_transport_module, family, named, owner

LINE = "58 1 0:45 / /mnt rw shared:1 - nfs4 server:/export rw,vers=4.2,proto={proto},rsize=65536"


@pytest.fixture
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    users = f"{name}," if name else "-"
    text = f"sunrpc 1 1 {users} Live 0x0\nrdma_cm 1 1 {users} Live 0x0\n"
    monkeypatch.setattr(kernel_modules, "loaded", lambda *_: parse_loaded(text))
    return name


@pytest.mark.parametrize(
    ("carrier", "proto", "transport"),
    [
        ("nfsrdma", "rdma", "nfsrdma"),
        ("nfsrdma", "rdma6", "nfsrdma"),
        ("nfsrdma", "tcp6", "tcp"),
        ("rpcrdma", "rdma6", "rdma"),
        ("", "rdma", "rdma"),
    ],
    indirect=["carrier"],
)
def test_a_mount_is_named_after_the_module_that_carries_it(
    carrier: str, proto: str, transport: str
) -> None:
    assert named(proto, owner()) == transport
    (entry,) = parse(LINE.format(proto=proto))
    assert [mount.transport for mount in nfs_mounts([entry])] == [transport]


@pytest.mark.parametrize(
    ("carrier", "transport", "words"),
    [
        ("rpcrdma", "nfsrdma", "requested nfsrdma, got rpcrdma (nfsrdma module load)"),
        ("nfsrdma", "rdma", "requested rpcrdma, got nfsrdma (nfsrdma module unload,"),
        ("nfsrdma", "nfsrdma", ""),
        ("rpcrdma", "rdma", ""),
        ("vendor_rdma", "rdma", ""),
        ("nfsrdma", "tcp", ""),
        ("rpcrdma", "tcp", ""),
    ],
    indirect=["carrier"],
)
def test_a_mount_that_would_get_another_module_is_refused(
    carrier: str, transport: str, words: str
) -> None:
    if words:
        with pytest.raises(MismatchError) as error:
            check_transport_module(transport)
        assert words in str(error.value)
    else:
        check_transport_module(transport)


@pytest.mark.parametrize("carrier", [""], indirect=True)
@pytest.mark.parametrize("would", ["rpcrdma", "nfsrdma"])
def test_with_none_loaded_it_counts_what_would_be(
    carrier: str, would: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "would_load", lambda: would)
    right, wrong = ("nfsrdma", "rdma") if would == "nfsrdma" else ("rdma", "nfsrdma")
    check_transport_module(right)
    with pytest.raises(MismatchError):
        check_transport_module(wrong)


@pytest.mark.parametrize(
    ("alias", "built", "loads"),
    [("rpcrdma", True, "rpcrdma"), ("nfsrdma", True, "nfsrdma"), ("nfsrdma", False, "rpcrdma")],
)
def test_ours_is_loaded_only_where_it_is_built(
    alias: str, built: bool, loads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ModuleFile("nfsrdma", "/lib/nfsrdma.ko") if built else None
    monkeypatch.setattr(transports, "alias_target", lambda: alias)
    monkeypatch.setattr(kernel_modules, "on_disk", lambda _: file)
    assert transports.would_load() == loads


def test_ours_is_asked_for_as_rdma() -> None:
    assert [family(name) for name in ("tcp", "rdma", "nfsrdma")] == ["tcp", "rdma", "rdma"]
    request = asks(transport="nfsrdma")
    assert "proto=rdma,port=20049" in request.mount_options(request.target.netid(request.family))
    with pytest.raises(UserError, match="transport is 'ours'"):
        asks(transport="ours")
