# SPDX-License-Identifier: Apache-2.0
"""Permits of threadless reads: what they cost files that are read once, and whose they are.

On the instruction clock: rates and times do not depend on the host.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.cached_reads import Record, nothing_in_use, on
from testbed.hostile import damageable
from testbed.labs import OURS, cards_lab, serve
from testbed.mounts import set_to
from testbed.node.programs import until
from testbed.peers import odd_reads, rpc
from testbed.peers.odd_reads import INLINE
from testbed.peers.site import FOLDER, handles
from testbed.peers.token_client import TokenClient, contents
from testbed.remote import on as on_node
from testbed.scripts import bring_programs, called

# short forms as well, until each has passed five times
pytestmark = pytest.mark.nightly
MOST = "65536"


@pytest.fixture(scope="module")
def counted(pytestconfig: pytest.Config) -> Iterator[Lab]:
    with cards_lab(pytestconfig, "permits", clock="instructions") as lab:
        serve(lab, "server", OURS)
        set_to(lab, "client", "server_threadless", MOST)
        on(lab, "make_disk")
        bring_programs(lab)
        yield lab


# --- files that get no permit ---


def ratio(found: dict[str, Any]) -> float:
    """READs per second with threadless reads, of those without."""
    seconds = found["seconds"]
    assert len(seconds["0"]) == len(seconds[MOST]) > 1
    return float(sum(seconds["0"]) / sum(seconds[MOST]))


def test_files_that_are_read_once_cost_no_more(
    counted: Lab, long: bool, record_property: Record
) -> None:
    files = 50_000 if long else 600
    found = called(counted, "permits", "once", str(files), "2", timeout=7200)
    record_property("READs per second, with threadless reads : without", ratio(found))
    # nfsd makes a mark of its own for each file that it opens
    off, on = (found["marked"][limit] for limit in ("0", MOST))
    record_property("marks, without and with", (off, on))
    about = f"{ratio(found):.3f}: {found}"
    assert found["wrong"] == 0
    assert off["nfsd"] == on["nfsd"] == files, about
    assert on["made"] - off["made"] < files / 10, about
    assert on["most"] - off["most"] < min(files / 10, 8192), about
    assert found["pinned"] < files / 10, about
    assert found["after"] < 5, about
    assert ratio(found) > 0.97, about
    nothing_in_use(found)


def test_the_end_of_a_growing_log_costs_no_more(counted: Lab, record_property: Record) -> None:
    """Its writer has it open all the time, and each READ finds that."""
    found = called(counted, "permits", "tail", "300", "2")
    record_property("READs per second, with threadless reads : without", ratio(found))
    about = f"{ratio(found):.3f}: {found}"
    assert found["wrong"] == 0
    assert found["marks"]["0"] == found["marks"][MOST], about
    assert ratio(found) > 0.97, about
    nothing_in_use(found)


# --- whose a permit is ---


@pytest.mark.parametrize(
    "connections", [*(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 8)), 16]
)
def test_the_connections_of_a_host_share_permits(
    counted: Lab, connections: int, record_property: Record
) -> None:
    """Each of 64 files is read 60 times a second, by a host and by another one beside it."""
    words = (str(connections), "64", "64", "60", "2")
    found = called(counted, "permits", "hosts", *words, timeout=1800)
    assert found["connections"] == connections + 1
    shares = {}
    for host, did in found["hosts"].items():
        assert did["wrong"] == 0
        assert did["reads"] / 64 / did["seconds"] >= 50, f"{host}: {found}"
        shares[host] = did["hits"] / did["reads"]
    record_property("hits", shares)
    # the kernel's count
    reads = sum(did["reads"] for did in found["hosts"].values())
    hits = sum(did["hits"] for did in found["hosts"].values())
    assert hits + found["nfsd"] == reads, found
    assert min(shares.values()) >= 0.9, f"{shares}: {found}"
    nothing_in_use(found)


@pytest.mark.nightly
def test_a_host_with_many_files_leaves_permits_to_another(
    counted: Lab, record_property: Record
) -> None:
    """Sixteen connections, each with as many files as have permits, fill all tables."""
    found = called(counted, "permits", "hosts", "16", "320", "16", "16", "4", timeout=1800)
    few = found["hosts"]["few"]
    record_property("hits of the other host", few["hits"] / few["reads"])
    assert few["reads"] / 16 / few["seconds"] >= 10, found
    assert few["hits"] / few["reads"] >= 0.8, found
    nothing_in_use(found)


class Stamped(NamedTuple):
    """READs, and how many of these nfsd executed, by the kernel's count."""

    reads: int
    nfsd: int


@on_node("client")
def read_with_stamps(seconds: float) -> Stamped:
    """READs whose credentials have all other stamps.

    The stamp of AUTH_SYS is "an arbitrary ID which the caller machine may generate" (RFC 5531,
    appendix A): it names no user.
    """
    (file,), data, client = handles(FOLDER, "data"), contents("data")[:INLINE], TokenClient(0)
    # no permit follows a READ before the last change is older than a second
    changed = (FOLDER / "data").stat().st_ctime
    until("the permits of a file", lambda: time.time() > changed + 2)
    before, count = nfsd_reads(), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        credential = rpc.words(1, 20, 0x5EED0000 + count, 0, 0, 0, 0)
        assert rpc.data_of(client.answer(odd_reads.read(file, credential=credential))) == data
    return Stamped(count, nfsd_reads() - before)


def nfsd_reads() -> int:
    rows = map(str.split, Path("/proc/net/rpc/nfsd").read_text().splitlines())
    return next(int(row[2 + rpc.READ]) for row in rows if row[0] == "proc3")


def test_a_client_may_vary_its_stamps(counted: Lab, record_property: Record) -> None:
    with damageable(counted):
        found = read_with_stamps(counted, 3)
    record_property("READs", found.reads)
    # two or three of each second
    assert found.reads > 100
    assert found.nfsd <= 0.1 * found.reads, found
