# SPDX-License-Identifier: Apache-2.0
"""1,000 batches of two stores of blocks, while their server is killed, stopped or cut off.

testbed/block_storm.py has the batches and what must hold for each.  Here: after each fault, both
stores work again as they are, and drafts stay only of puts that had no result when the server did
not answer.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.block_storm import Report, storm
from testbed.exports import DISK, cut_power, disk_export, serve_disk
from testbed.faults import AGAIN, LINK_DOWN, RESTARTED, SILENT, SOUND
from testbed.labs import Record, cards_lab
from testbed.node import modelled
from testbed.node.programs import until
from testbed.remote import Running, on

pytestmark = [pytest.mark.lab, pytest.mark.nightly]

BATCHES = 1000
# between two faults, and under one: more than one deadline of each store
BETWEEN, UNDER = 40, 4
SECONDS = 3000
UP = "ip link set eth1 up"
DRAFTS = f"find {DISK} -name '.nfsrdma-*'"

Disturbance = Callable[[Lab], contextlib.AbstractContextManager[None]]


def sound(lab: Lab) -> contextlib.AbstractContextManager[None]:
    """No fault."""
    del lab
    return contextlib.nullcontext()


@contextlib.contextmanager
def killed(lab: Lab) -> Iterator[None]:
    """The server has no power; what it has acknowledged is there when it comes back."""
    lab.run("server", "sync")
    lab.reset("server")
    serve_disk(lab, "server")
    yield


@contextlib.contextmanager
def stopped(lab: Lab) -> Iterator[None]:
    """The server stands still, then goes on with what it was doing."""
    machine = lab.machines["server"]
    machine.pause()
    yield
    machine.resume()


@contextlib.contextmanager
def without_power(lab: Lab) -> Iterator[None]:
    """The server restarts, and its file system loses what is not on the disk."""
    cut_power(lab, "server")
    yield


def between(node: str, before: str, after: str) -> Disturbance:
    """A fault of a node that a script begins and another one ends."""

    @contextlib.contextmanager
    def disturb(lab: Lab) -> Iterator[None]:
        lab.run(node, "sh", "-ec", before)
        yield
        lab.run(node, "sh", "-ec", after)

    return disturb


# Not the client's link: then soft-RoCE needs a new device (testbed/faults.py), and the kernel
# waits until all programs have closed the old one, because rxe has no disassociate_ucontext.
FAULTS: dict[str, Disturbance] = {
    "server stopped": stopped,
    "server hears nothing": between("server", SILENT, SOUND),
    "client hears nothing": between("client", SILENT, SOUND),
    "server's link down": between("server", LINK_DOWN, f"{UP}\n{AGAIN}"),
    "server's device removed": between("server", AGAIN, "true"),
    # after those that remove a device: see faults of other software
    "server restarted": between("server", RESTARTED.script, "true"),
    "server without power": without_power,
    "server killed": killed,
}


@on("client")
def break_queue_pairs() -> None:
    modelled.fail("break")


@on("client")
def set_link(down: int) -> None:
    modelled.order("card0", "link_down", down)
    until("the link", lambda: modelled.is_active("card0") != bool(down))


@contextlib.contextmanager
def card_down(lab: Lab) -> Iterator[None]:
    """The client's card has no link."""
    set_link(lab, 1)
    yield
    set_link(lab, 0)


@contextlib.contextmanager
def card_breaks(lab: Lab) -> Iterator[None]:
    """The client's card has a fatal error in each queue pair."""
    break_queue_pairs(lab)
    yield


# a card that is removed and added again connects no process that had it: see the same page
OF_CARDS: dict[str, Disturbance] = {
    **{name: FAULTS[name] for name in ("server restarted", "server without power")},
    "client's card has no link": card_down,
    "client's card breaks its queue pairs": card_breaks,
}


class Drafts:
    """Files of puts on the server that were not renamed."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.known = lab, set[str]()

    def new(self) -> set[str]:
        """Those that came since the last call; the stores rest."""
        found = set(self.lab.run("server", "sh", "-c", DRAFTS).stdout.split())
        new, self.known = found - self.known, found
        return new


def tell(running: Running[int], word: str) -> Report:
    """The answer to a word."""
    running.send(word)
    report: Report = running.receive(SECONDS)
    return report


def together(reports: list[Report]) -> Report:
    """The sums of some reports, and the latest batch of all."""
    last = max(reports, key=lambda report: report.latest)
    return replace(
        last,
        batches=sum(report.batches for report in reports),
        done=sum(report.done for report in reports),
        misses=sum(report.misses for report in reports),
        unknown=sum(report.unknown for report in reports),
        seconds=sum(report.seconds for report in reports),
        recovered=max(report.recovered for report in reports),
        errors=dict(sum((Counter(report.errors) for report in reports), Counter[int]())),
    )


def disturb(running: Running[int], lab: Lab, fault: Disturbance) -> Report:
    """A fault in the middle of batches, until both stores work again."""
    tell(running, f"run {BETWEEN}")
    with fault(lab):
        under = tell(running, f"run {UNDER}")
    return together([under, tell(running, "recover")])


@pytest.fixture
def lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A pair of its own, whose server may be killed."""
    options = {name: pytestconfig.getoption(f"--{name}") for name in ("kernel", "nic", "cpus")}
    config = LabConfig(f"test-blocks-{os.getpid()}", shape="pair", extras=True, **options)
    with Lab(config) as made:
        yield made


@pytest.fixture
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """Modelled cards, in one machine."""
    with cards_lab(pytestconfig, "blocks") as made:
        yield made


def storm_under(lab: Lab, faults: dict[str, Disturbance], record_property: Record) -> None:
    """All batches, with each fault in the middle of them."""
    reports, left = dict[str, Report](), dict[str, int]()
    with disk_export(lab, "server"), storm.started(lab, f"server:{DISK}", 5) as running:
        drafts = Drafts(lab)
        for name, fault in {"none before": sound, **faults, "none after": sound}.items():
            reports[name] = disturb(running, lab, fault)
            left[name] = len(drafts.new())
            print(name, reports[name], "drafts", left[name], flush=True)
            # those whose put had no result, and whose removal had none either
            assert left[name] <= reports[name].unknown, name
        total = together(list(reports.values()))
        last = [tell(running, f"run {max(BETWEEN, BATCHES - total.batches)}")]
        last.append(tell(running, "recover"))
        running.send("end")
        assert running.result() >= BATCHES
    total = together([total, *last])
    record_property("report", total)
    record_property("drafts", left)
    print(total, left, flush=True)
    # the server did not answer
    assert total.misses and total.latest > 0, total


def test_batches_end_in_time_and_whole_under_faults(lab: Lab, record_property: Record) -> None:
    storm_under(lab, FAULTS, record_property)


def test_the_same_over_cards(cards: Lab, record_property: Record) -> None:
    storm_under(cards, OF_CARDS, record_property)
