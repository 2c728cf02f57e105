# SPDX-License-Identifier: Apache-2.0
"""Comma lists of mount(8)."""

import pytest

from nfsrdma_tools.cli.mount import parse_options
from nfsrdma_tools.errors import UsageError

NONE: dict[str, str | None] = {"vers": None, "rsize": None, "transport": None}


@pytest.mark.parametrize(
    ("lists", "values", "others"),
    [
        ((), {}, ()),
        (("ro,noatime",), {}, ("ro", "noatime")),
        (("vers=4.1,rsize=64k,nconnect=4",), {"vers": "4.1", "rsize": "64k", "nconnect": "4"}, ()),
        (("rdma,port=20049", "sec=krb5"), {"transport": "rdma", "port": "20049"}, ("sec=krb5",)),
        (("nfsvers=3", "proto=tcp,soft"), {"vers": "3", "transport": "tcp"}, ("soft",)),
        (("ro,,",), {}, ("ro",)),
        (('ro,context="u:r:t:s0:c1,c2",vers=3',), {"vers": "3"},
         ("ro", 'context="u:r:t:s0:c1,c2"')),
        (("vers=3,vers=3",), {"vers": "3"}, ()),
        (("rdma,port=20049,vers=4.2,proto=rdma6",),
         {"transport": "rdma6", "port": "20049", "vers": "4.2"}, ()),
        (("proto=tcp6,tcp",), {"transport": "tcp6"}, ()),
        (("nconnect=64,remoteports=192.0.2.1-192.0.2.64,localports=ib0",), {"nconnect": "64"},
         ("remoteports=192.0.2.1-192.0.2.64", "localports=ib0")),
    ],
)  # fmt: skip
def test_known_options_become_values_and_others_stay(
    lists: tuple[str, ...], values: dict[str, str], others: tuple[str, ...]
) -> None:
    assert parse_options(lists, NONE) == (values, others)


def test_the_commands_own_options_count_too() -> None:
    assert parse_options(["ro"], {"vers": "3", "rsize": None}) == ({"vers": "3"}, ("ro",))
    # the kernel has one name for both modules
    for given, netid, both in (
        ("nfsrdma", "rdma6", "nfsrdma6"),
        ("nfsrdma6", "rdma", "nfsrdma6"),
        ("nfsrdma", "rdma", "nfsrdma"),
        ("rdma", "rdma6", "rdma6"),
    ):
        options, _ = parse_options([f"proto={netid}"], {"transport": given})
        assert options == {"transport": both}


@pytest.mark.parametrize(
    ("lists", "given", "message"),
    [
        (["vers=3"], {"vers": "4.2"}, "vers is both 4.2 and 3"),
        (["vers=3,nfsvers=4.1"], {}, "vers is both 3 and 4.1"),
        (["rdma,proto=tcp"], {}, "transport is both rdma and tcp"),
        (["proto=tcp6"], {"transport": "rdma6"}, "transport is both rdma6 and tcp6"),
    ],
)
def test_two_values_of_one_option_are_a_usage_error(
    lists: list[str], given: dict[str, str | None], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options(lists, given)
