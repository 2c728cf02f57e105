# SPDX-License-Identifier: Apache-2.0
import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.mounts import Target, UnknownHostError


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
