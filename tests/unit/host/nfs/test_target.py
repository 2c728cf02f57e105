# SPDX-License-Identifier: Apache-2.0
import socket

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.target import Target, UnknownHostError


@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("server:/export", "server", "/export"),
        ("nas-1.example_x.org:/", "nas-1.example_x.org", "/"),
        ("192.0.2.1:/a:b/c d\n$(reboot)", "192.0.2.1", "/a:b/c d\n$(reboot)"),
        ("[::1]:/p", "::1", "/p"),
        ("[fe80::1%eth0]:/p", "fe80::1%eth0", "/p"),
    ],
)
def test_reads_names_and_addresses(text: str, host: str, path: str) -> None:
    target = Target.parse(text)
    assert (target.host, target.path) == (host, path)
    assert str(target) == text
    assert Target.of(text) == target


def test_slashes_at_the_end_are_dropped() -> None:
    assert Target.parse("a:/export//") == Target.parse("a:/export")
    assert Target.parse("a://").path == "/"


@pytest.mark.parametrize(
    "text",
    [
        "server", "server:export", ":/export", "-o:/export", "a,b:/export", "a b:/x", "::1:/x",
        "[::1:/x", "[server]:/x", "[]:/x", "a\n:/x", "nfs://a/x", "a/b:/x", "", "a-:/x", "a:/\0",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Target.parse(text)
    assert "\n" not in str(caught.value)


def test_a_source_that_is_no_target_is_kept() -> None:
    assert Target.of("weird") == Target("weird", "")


def test_the_netid_follows_the_address_family() -> None:
    assert Target.parse("127.0.0.1:/").netid("rdma") == "rdma"
    assert Target.parse("[::1]:/").netid("rdma") == "rdma6"


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(UnknownHostError, match=r"nowhere\.invalid"):
        Target.parse("nowhere.invalid:/x").netid("tcp")


BOTH = [
    (socket.AF_INET6, ("2001:db8::10", 0, 0, 0)),
    (socket.AF_INET, ("192.0.2.10", 0)),
    (socket.AF_INET, ("192.0.2.11", 0)),
]


@pytest.mark.parametrize(
    ("known", "ipv6", "netid", "addresses"),
    [
        (BOTH, False, "rdma", ["192.0.2.10", "192.0.2.11"]),
        (BOTH, True, "rdma6", ["2001:db8::10"]),
        (BOTH[:1], False, "rdma6", ["2001:db8::10"]),
    ],
)
def test_a_name_with_both_families_is_used_by_the_required_one(
    monkeypatch: pytest.MonkeyPatch,
    known: list[tuple[int, tuple[object, ...]]],
    ipv6: bool,
    netid: str,
    addresses: list[str],
) -> None:
    infos = [(family, socket.SOCK_STREAM, 6, "", address) for family, address in known]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
    target = Target.parse("server:/x")
    assert target.netid("rdma", ipv6) == netid
    assert target.addresses(ipv6) == addresses


def test_a_host_without_ipv6_cannot_be_reached_by_it() -> None:
    target = Target.parse("192.0.2.7:/x")
    for call in (lambda: target.netid("rdma", True), lambda: target.addresses(True)):
        with pytest.raises(UnknownHostError, match=r"has no IPv6 address, found 192\.0\.2\.7"):
            call()
