# SPDX-License-Identifier: Apache-2.0

import pytest
from unit.host.nfs.requests_made import asks

from nfsrdma_tools.errors import UsageError, UserError


def test_rdma_goes_to_its_port_unless_told_otherwise() -> None:
    assert asks().mount_options("rdma") == "vers=4.2,proto=rdma,port=20049,retry=0"
    assert asks(port=4711).mount_options("rdma") == "vers=4.2,proto=rdma,port=4711,retry=0"
    assert asks(transport="tcp", vers="3").mount_options("tcp6") == "vers=3,proto=tcp6,retry=0"


def test_everything_asked_is_in_the_options() -> None:
    request = asks(rsize=65536, wsize=4096, nconnect=4, options=("ro", "sec=sys"))
    assert request.mount_options("rdma") == (
        "vers=4.2,proto=rdma,port=20049,rsize=65536,wsize=4096,nconnect=4,retry=0,ro,sec=sys"
    )


def test_a_mount_with_its_own_read_ahead_has_its_own_cache() -> None:
    assert "nosharecache" in asks(read_ahead=0).mount_options("rdma").split(",")
    assert "nosharecache" not in asks().mount_options("rdma")
    shares = asks(read_ahead=0, options=("sharecache",)).mount_options("rdma")
    assert "nosharecache" not in shares


def test_a_read_ahead_in_kib_is_as_good_as_one_in_blocks() -> None:
    assert asks(read_ahead_kb=128).sets_read_ahead
    assert "nosharecache" in asks(read_ahead_kb=0).mount_options("rdma").split(",")
    assert not asks().sets_read_ahead


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"read_ahead": 4, "read_ahead_kb": 128}, "in blocks and in KiB"),
        ({"read_ahead_kb": 2}, "a page"),
        ({"read_ahead_kb": -4}, "it can be 0 to"),
    ],
)
def test_a_window_that_is_ambiguous_or_rounded_is_refused(
    words: dict[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        asks(**words)


def test_a_personality_needs_our_transport_and_is_no_mount_option() -> None:
    request = asks(transport="nfsrdma", personality="cached")
    assert "cached" not in request.mount_options("rdma")
    with pytest.raises(UsageError, match="cached needs transport nfsrdma, found rdma"):
        asks(personality="cached")
    with pytest.raises(
        UsageError,
        match=r"'fast' .*it can be read-write, read-read, padded, pre-posted, cached, optimistic",
    ):
        asks(transport="nfsrdma", personality="fast")


def test_optimistic_reads_need_nfsv3() -> None:
    ours = {"transport": "nfsrdma", "personality": "optimistic"}
    assert asks(**ours, vers="3").personality == "optimistic"
    with pytest.raises(UsageError, match=r"^personality optimistic needs vers 3, found 4.2 \(use "):
        asks(**ours)


def test_a_users_retry_wins() -> None:
    assert asks(options=("retry=2",)).mount_options("rdma").endswith("20049,retry=2")


@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192, 12288, 524288, 1 << 20])
def test_sizes_that_linux_keeps(size: int) -> None:
    assert asks(rsize=size, wsize=size).rsize == size


@pytest.mark.parametrize("size", [-4096, 0, 1, 512, 1023, 1025, 3072, 4097, 6144, 65535])
def test_sizes_that_linux_would_round(size: int) -> None:
    with pytest.raises(UserError, match=f"rsize is {size} bytes"):
        asks(rsize=size)
    with pytest.raises(UserError, match=f"wsize is {size} bytes"):
        asks(wsize=size)


@pytest.mark.parametrize(
    "words",
    [
        {"transport": "udp"}, {"vers": "4"}, {"vers": "4.2,sec=none"}, {"nconnect": 0},
        {"nconnect": -1}, {"nconnect": 1 << 32}, {"read_ahead": -1}, {"port": 0}, {"port": 65536},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(UserError, match="it can be"):
        asks(**words)


def test_what_vendors_clients_accept_is_passed_on() -> None:
    options = ("remoteports=192.0.2.1-192.0.2.8~192.0.2.11", "localports=ib0", "spread_reads")
    request = asks(vers="3", nconnect=64, options=(*options, "max_connect=16"))
    assert request.mount_options("rdma") == (
        "vers=3,proto=rdma,port=20049,nconnect=64,retry=0,"
        "remoteports=192.0.2.1-192.0.2.8~192.0.2.11,localports=ib0,spread_reads,max_connect=16"
    )


def test_a_label_with_categories_is_one_option() -> None:
    label = 'context="system_u:object_r:nfs_t:s0:c1,c2"'
    assert asks(options=(label,)).mount_options("rdma").endswith(f",{label}")


@pytest.mark.parametrize(
    "option",
    [
        "ro,exec", "a\nb", "", "x y", "a\\054b", "a\0b", "\u2028", '"', 'a="b c"',
        'context="a', 'context="a"b', "proto=tcp",
        "tcp", "vers=3", "v4.1", "rsize=4096", "nconnect=2", "port=1", "bg", "remount", "bind",
    ],
)  # fmt: skip
def test_options_that_smuggle_or_contradict_are_refused(option: str) -> None:
    with pytest.raises(UserError, match="mount option") as caught:
        asks(options=(option,))
    assert "\n" not in str(caught.value)
