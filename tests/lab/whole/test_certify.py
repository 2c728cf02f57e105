# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma certify` over soft-RoCE and over the modelled card, and a card that lies."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from nfsrdma_tools.certify.result import ALL, FAILED, PASSED, UNKNOWN, Certificate, names
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import cards_lab, traces
from testbed.node import modelled
from testbed.remote import on

pytestmark = pytest.mark.nightly

STORE, BUNDLE = "/run/certify.db", "/run/certify.tar.gz"
RESULTS = "var/lib/nfsrdma/certify.json"


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards."""
    with cards_lab(pytestconfig, "certify") as lab:
        yield lab


class Certified(NamedTuple):
    """The exit status, each step's status and text, and what the bundle has of the results."""

    status: int
    steps: dict[str, str]
    found: dict[str, str]
    bundled: Certificate


def certified(lab: Lab, *options: str) -> Certified:
    """Certify the export of the lab; it is left as it was."""
    before = traces(lab)
    lab.run("client", "rm", "-f", STORE, BUNDLE)
    argv = ("nfsrdma", "certify", "server:/export", "--json", "-o", STORE, "--bundle", BUNDLE)
    done = lab.run("client", *argv, *options, check=False, timeout=3600)
    assert done.stdout, done.stderr
    print(done.stderr)
    steps = json.loads(done.stdout)["steps"]
    text = lab.run("client", "tar", "-xzOf", BUNDLE, RESULTS).stdout
    assert "server" not in text
    files = lab.run("client", "sh", "-c", "ls -A /export | grep certify || true").stdout
    assert (traces(lab), files) == (before, "")
    name = "{step} {over}".format
    return Certified(
        done.returncode,
        {name(**each).strip(): each["status"] for each in steps},
        {name(**each).strip(): each["found"] for each in steps},
        Certificate.from_json(text),
    )


def wanted(module: bool) -> dict[str, str]:
    return {" ".join(filter(None, name)): PASSED for name in names(module, False)}


@contextmanager
def lying(lab: Lab, **faults: int) -> Iterator[None]:
    """Both cards have these faults during the block."""
    set_faults(lab, faults)
    try:
        yield
    finally:
        set_faults(lab, dict.fromkeys(faults, 0))


@on("client")
def set_faults(faults: dict[str, int]) -> None:
    """Set files of fault injection of each card."""
    for card in modelled.CARDS:
        for name, value in faults.items():
            modelled.order(card, name, value)


def test_all_passes_over_the_modelled_card(cards: Lab) -> None:
    certificate = certified(cards)
    assert certificate.steps == wanted(module=False), certificate.found
    assert certificate.status == 0
    row = certificate.bundled.row
    assert (row.card, row.driver, row.protocol) == ("modelled-card", "card", "roce")
    assert row.kernel.startswith("6.")
    assert certificate.bundled.of_status(FAILED) == []
    # not requested
    assert {("pull", "rdma"), ("data", "cached")} < {*certificate.bundled.of_status(UNKNOWN)}
    assert len(certificate.bundled.of_status(PASSED)) < len(ALL)


def test_each_personality_passes_over_the_modelled_card(cards: Lab) -> None:
    certificate = certified(cards, "--module")
    assert certificate.steps == wanted(module=True), certificate.found


def test_all_passes_over_soft_roce(pair: Lab) -> None:
    certificate = certified(pair)
    assert certificate.steps == wanted(module=False), certificate.found
    assert certificate.bundled.row.card == "soft-RoCE"


def test_a_card_that_changes_data_fails(cards: Lab) -> None:
    with lying(cards, corrupt=100_000):
        certificate = certified(cards)
    assert certificate.status == 1
    assert certificate.steps["data tcp"] == PASSED
    assert certificate.steps["data rdma"] == FAILED
    assert "bytes are wrong" in certificate.found["data rdma"]
    data = next(each for each in certificate.bundled.steps if each.name == ("data", "rdma"))
    assert data.figures["wrong_files"] > 0


def test_a_card_that_drops_invalidations_fails(cards: Lab) -> None:
    with lying(cards, keep_keys=100_000):
        certificate = certified(cards)
    assert certificate.status == 1
    assert certificate.steps["data tcp"] == PASSED
    assert certificate.steps["data rdma"] == FAILED


def test_an_interrupted_certification_resumes(cards: Lab) -> None:
    """After a kill -9, the next command undoes what is left, and no step is repeated."""
    before = traces(cards)
    script = f"""
        cd /run; rm -f {STORE} {BUNDLE}
        nfsrdma certify server:/export -o {STORE} --bundle {BUNDLE} > log &
        pid=$!
        until grep -q 'data tcp' log && grep -q ' nfs' /proc/mounts; do sleep 0.2; done
        kill -9 $pid; wait $pid; echo $?
        nfsrdma certify --resume {STORE} --bundle {BUNDLE}; echo $?
        grep -c 'data tcp' log
    """
    printed = cards.run("client", "bash", "-c", script, timeout=3600).stdout.splitlines()
    assert (printed[0], printed[-2:]) == ("137", ["0", "1"]), printed
    assert traces(cards) == before
