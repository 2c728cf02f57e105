# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma certify` over soft-RoCE and over the modelled card, a card that lies, and kills."""

import json
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from nfsrdma_tools.certify.result import ALL, FAILED, PASSED, UNKNOWN, Certificate, Row
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.module_source import card_profiles
from testbed.labs import cards_lab, traces
from testbed.node import modelled
from testbed.node.programs import until
from testbed.remote import on

pytestmark = pytest.mark.nightly

STORE, BUNDLE = "/run/certify.db", "/run/certify.tar.gz"
OUTPUT, ERRORS = Path("/run/certify.json"), Path("/run/certify.log")
RESULTS = "var/lib/nfsrdma/certify.json"
# the first is the modelled card without one
PROFILES = card_profiles()[1:]
HOUR = 3600.0
BEGIN = ["server:/export", "--json", "-o", STORE, "--bundle", BUNDLE]
NOTHING = Row("", "", "")
RESUME = ["--resume", STORE, "--json", "--bundle", BUNDLE]


# results before it, whether there is a mount or only files on the server, and the signal
MOMENTS = (
    # in mount tcp, in data tcp, between two mounts of data rdma, in counts, in the sweep
    (1, True, signal.SIGKILL),
    (3, True, signal.SIGKILL),
    (4, False, signal.SIGKILL),
    (5, True, signal.SIGINT),
    (6, True, signal.SIGKILL),
)


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards."""
    with cards_lab(pytestconfig, "certify") as lab:
        yield lab


class Certified(NamedTuple):
    """The exit status, each step's status and text, and the certificate in the bundle."""

    status: int
    steps: dict[str, str]
    found: dict[str, str]
    bundled: Certificate


def certified(lab: Lab, *options: str) -> Certified:
    """Certify the export of the lab; it is left as it was."""
    before = traces(lab)
    lab.run("client", "rm", "-f", STORE, BUNDLE)
    status = run(lab, [*BEGIN, *options])
    assert (traces(lab), files(lab)) == (before, "")
    return answered(lab, status)


def answered(lab: Lab, status: int) -> Certified:
    """The results that the command printed, and those in its bundle."""
    output, errors = (lab.run("client", "cat", str(path)).stdout for path in (OUTPUT, ERRORS))
    print(errors)
    assert output, errors
    steps = json.loads(output)["steps"]
    text = lab.run("client", "tar", "-xzOf", BUNDLE, RESULTS).stdout
    assert "server" not in text
    name = "{step} {over}".format
    return Certified(
        status,
        {name(**each).strip(): each["status"] for each in steps},
        {name(**each).strip(): each["found"] for each in steps},
        Certificate.from_json(text),
    )


def files(lab: Lab) -> str:
    """The files on the server that certify and its sweep make."""
    return lab.run("client", "sh", "-c", "ls -A /export | grep '^.nfsrdma' || true").stdout


def started(options: list[str]) -> subprocess.Popen[bytes]:
    with OUTPUT.open("wb") as output, ERRORS.open("wb") as errors:
        return subprocess.Popen(["nfsrdma", "certify", *options], stdout=output, stderr=errors)


@on("client", timeout=HOUR)
def run(options: list[str]) -> int:
    """Certify; pull the cable of a card, and plug it in again, when the command asks for it."""
    process, is_down = started(options), False
    while process.poll() is None:
        text = ERRORS.read_text()
        card = re.search(r"pull the cable of (\w+)/1 now", text)
        if card and is_down != ("plug the cable in again" not in text):
            is_down = not is_down
            modelled.order(card[1], "link_down", int(is_down))
        time.sleep(0.1)
    return process.returncode


@on("client", timeout=HOUR)
def stop(options: list[str], done: int, mounted: bool, with_signal: int) -> tuple[int, list[str]]:
    """Send a signal after ``done`` results.

    ``mounted``: while there is a mount; otherwise, while there are files on the server and no
    mount.  Returns the exit status, and the results in the store.
    """
    process = started(options)

    def results() -> list[str]:
        with closing(sqlite3.connect(f"file:{STORE}?mode=ro", uri=True)) as store:
            ((noted,),) = store.execute("SELECT value FROM notes WHERE key = 'certify'")
        return [json.dumps(each) for each in json.loads(noted)["steps"]]

    def is_there() -> bool:
        assert process.poll() is None, ERRORS.read_text()
        try:
            if len(results()) < done:
                return False
        except (sqlite3.Error, ValueError):
            # the store is about to be made
            return False
        has_mount = "/mnt-" in Path("/proc/mounts").read_text()
        return has_mount if mounted else not has_mount and any(Path("/export").glob(".nfsrdma*"))

    until("the moment", is_there, HOUR, pause=0.01)
    process.send_signal(with_signal)
    return process.wait(120), results()


def wanted(module: bool = False, pull: bool = False) -> dict[str, str]:
    requested = Certificate(NOTHING, module=module, pull=pull).requested
    return {" ".join(filter(None, name)): PASSED for name in requested}


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
    assert certificate.steps == wanted(), certificate.found
    assert certificate.status == 0
    row = certificate.bundled.row
    assert (row.card, row.driver, row.protocol) == ("modelled-card", "card", "roce")
    assert (row.link_layer, row.limits["max_sge"] > 0) == ("Ethernet", True)
    assert row.kernel.startswith("6.")
    assert certificate.bundled.of_status(FAILED) == []
    # not requested
    assert {("pull", "rdma"), ("data", "cached")} < {*certificate.bundled.of_status(UNKNOWN)}
    assert len(certificate.bundled.of_status(PASSED)) < len(ALL)


def test_each_optional_step_passes_over_the_modelled_card(cards: Lab) -> None:
    certificate = certified(cards, "--module", "--pull")
    assert certificate.steps == wanted(module=True, pull=True), certificate.found


@pytest.mark.parametrize("profile", PROFILES)
def test_all_passes_over_the_profile_of_a_driver(pytestconfig: pytest.Config, profile: str) -> None:
    with cards_lab(pytestconfig, f"certify-{profile}", profile=profile) as lab:
        certificate = certified(lab, "--module")
    assert certificate.steps == wanted(module=True), certificate.found


def test_all_passes_over_soft_roce(pair: Lab) -> None:
    certificate = certified(pair)
    assert certificate.steps == wanted(), certificate.found
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


def test_a_certification_resumes_after_kills_and_ctrl_c(cards: Lab) -> None:
    """After a kill -9, the next command cleans up; no step with a result is repeated."""
    before = traces(cards)
    cards.run("client", "rm", "-f", STORE, BUNDLE)
    options, kept = BEGIN, list[str]()
    for done, mounted, with_signal in MOMENTS:
        status, results = stop(cards, options, done, mounted, int(with_signal))
        assert results[: len(kept)] == kept
        options, kept = RESUME, results
        if with_signal == signal.SIGINT:
            assert status == 130
            assert (traces(cards), files(cards)) == (before, "")
        else:
            assert status == -with_signal
    status = run(cards, RESUME)
    assert (traces(cards), files(cards)) == (before, "")
    certificate = answered(cards, status)
    assert certificate.steps == wanted(), certificate.found
    steps = json.loads(cards.run("client", "cat", str(OUTPUT)).stdout)["steps"]
    assert [json.dumps(each) for each in steps[: len(kept)]] == kept
