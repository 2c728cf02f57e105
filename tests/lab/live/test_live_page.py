# SPDX-License-Identifier: Apache-2.0
"""The dashboard's page in Chromium, with a recording in place of a host."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from unit.live.snapshots_made import mount, snapshot, xprt

from nfsrdma_tools.live.snapshot import Credits
from nfsrdma_tools.live.snapshot_json import Recorder
from testbed.browser import Browser, opened
from testbed.node.programs import until

# ten minutes: the page shows tables only while snapshots arrive
SNAPSHOTS = 1200
# per card its top, its height, and the height of its plot
CARDS = """() => [...document.querySelectorAll(".chart")].map((card) => {
  const box = card.getBoundingClientRect();
  return [box.top, box.height, card.querySelector(".plot").clientHeight].map(Math.round);
})"""
REASONS = """() => Object.fromEntries([...document.querySelectorAll(".chart.empty")].map((card) =>
  [card.querySelector("h2").textContent, card.querySelector(".reason").innerText]))"""
RDMA_ONLY = {
    "Distribution of chunk sizes": "Only RDMA mounts have chunks.",
    "Credits": "Only RDMA mounts have credits.",
    "Memory registrations per second": "Only RDMA mounts register memory.",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page of a host with an RDMA mount that is busy and a TCP mount."""
    file = tmp_path_factory.mktemp("page") / "recording"
    recorder = Recorder(file)
    tcp = mount("/tcp", device="0:46", transport="tcp", timings=(), chunks=(), regions=None,
                xprts=(xprt(number=7, kind="tcp", credits=Credits()),))  # fmt: skip
    for number in range(SNAPSHOTS):
        taken = snapshot(number, (mount(), tcp))
        recorder.add(replace(taken, time=taken.time - number / 2))
    recorder.close()
    argv = (sys.executable, "-m", "nfsrdma_tools", "dashboard", "--replay", str(file),
            "--web.listen-address", "127.0.0.1:0")  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            with opened(process.stdout.readline().strip()) as window:
                yield window
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("width", [1500, 900, 390])
def test_cards_of_one_row_have_one_height(page: Browser, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 900})
    expected = {1500: 3, 900: 4, 390: 8}[width]
    # the charts are drawn again a moment later
    cards = until(f"{expected} rows of one height each", lambda: laid_out(page, expected), 30, 0.5)
    assert len(cards) == 8
    assert min(plot for _, _, plot in cards) >= 100


def laid_out(page: Browser, expected: int) -> list[list[int]]:
    """The cards, if there are as many rows as expected, of one height each."""
    cards: list[list[int]] = page.page.evaluate(CARDS)
    rows = {top: {height for other, height, _ in cards if other == top} for top, _, _ in cards}
    sound = len(rows) == expected and all(len(heights) == 1 for heights in rows.values())
    return cards if sound else []


def test_an_empty_chart_shows_the_reason(page: Browser) -> None:
    page.page.select_option("#who", "mount:/tcp")
    page.page.wait_for_selector(".chart.empty")
    reasons = page.page.evaluate(REASONS)
    assert RDMA_ONLY.items() <= reasons.items()
    assert reasons["Distribution of RPC times"].startswith("No RPCs on this mount")
    page.page.select_option("#who", "mount:/mnt")
    page.page.wait_for_selector(".chart.empty", state="detached")


def test_columns_have_the_names_of_nfsiostat(page: Browser) -> None:
    headings = page.page.locator("#ops th").all_inner_texts()
    assert headings == ["operation", "ops/s", "bytes/s", "bytes/op", "retrans", "avg RTT",
                        "avg exe", "avg queue", "errors"]  # fmt: skip
    assert page.said == []
