# SPDX-License-Identifier: Apache-2.0
"""The terminal's screens, as they are at 80x24, from recorded snapshots.

The pictures are tests/unit/data/top-*.txt.  This draws them anew:
`python -m pytest --redraw tests/unit/live/top/test_top.py`.
"""

import asyncio
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from unit.live.snapshots_made import (
    HOSTILE,
    a_thousand_clients,
    held,
    hostile,
    mount,
    op,
    personality,
    served,
    snapshot,
    xprt,
)

from nfsrdma_tools.live.snapshot import Event, Personality, Snapshot
from nfsrdma_tools.live.top.app import SnapshotTaken, Top
from nfsrdma_tools.live.top.figures import RecentRates, number, span, spark, text
from nfsrdma_tools.live.top.screens import host_text

DATA = Path(__file__).parents[2] / "data"


def drawn(taken: list[Snapshot], *keys: str, size: tuple[int, int] = (80, 24)) -> str:
    """The screen after these snapshots and keys, as text."""

    async def go() -> str:
        app = Top()
        async with app.run_test(size=size) as pilot:
            for each in taken:
                app.post_message(SnapshotTaken(each))
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            await pilot.pause(0.2)
            return letters(app.export_screenshot())

    return asyncio.run(go())


def letters(svg: str) -> str:
    """Characters in a picture by textual, at their places."""
    texts = re.findall(
        r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg, re.DOTALL
    )
    rows: dict[float, dict[int, str]] = {}
    for x, y, part in texts:
        rows.setdefault(float(y), {})[round(float(x) / 12.2)] = unescape(part).replace("\xa0", " ")
    lines = []
    for _, parts in sorted(rows.items()):
        line = ""
        for place, part in sorted(parts.items()):
            line = line.ljust(place) + part
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def busy(number_: int) -> Snapshot:
    """A client with three mounts, one of which waits for its connection."""
    down = xprt(number=5, connected=False, states=("CONNECTING",))
    mounts = (
        mount("/mnt/data", limit="The wire and the server: 2.3 READ.", read=number_ * 10**6),
        mount("/mnt/scratch", device="0:46", transport="tcp", vers="3", ops=(op("WRITE", 9),),
              read=0, written=number_ * 10**5, limit="The application: nothing here is full."),
        mount("/srv/home/of/somebody/with/a/long/name", device="0:47", ops=(), read=0,
              xprts=(down,), limit="Stalled: READ waits for 9 s; it is not connected."),
    )  # fmt: skip
    event = Event(1_800_000_000.0 + number_, "disconnected", "/srv/home", "connection 5 is down",
                  "nfsrdma trace connections", "warning")  # fmt: skip
    missing = {"probes": "only root may attach probes (run this as root)"}
    events = (event,) if number_ == 3 else ()
    return snapshot(number_, mounts, events=events, server=served(), missing=missing)


TAKEN = [busy(number_) for number_ in range(1, 9)]
SCREENS = {
    "overview": (), "filtered": ("slash", "s", "c", "r", "enter"), "detail": ("enter",),
    "events": ("e",), "paused": ("p", "s", "s"), "host": ("h",),
}  # fmt: skip


@pytest.fixture(autouse=True)
def somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name: str, request: pytest.FixtureRequest) -> None:
    screen = drawn(TAKEN, *SCREENS[name])
    file = DATA / f"top-{name}.txt"
    if request.config.getoption("--redraw"):
        file.write_text(screen)
    assert screen == file.read_text()


def test_the_figures_of_a_personality_are_in_the_details() -> None:
    own = xprt(personality=personality())
    usual = xprt(number=4, personality=Personality("read-write"))
    taken = [snapshot(1, (mount(xprts=(own, usual)),))]
    lines = drawn(taken, "enter", size=(160, 50)).splitlines()
    (at,) = (n for n, line in enumerate(lines) if "rdma pre-posted 10.9.1.1" in line)
    assert " pre-posted: lanes 4, lanes busy 4, " in lines[at + 1]
    assert any("rdma read-write 10.9.1.1" in line for line in lines[at + 2 :])


def test_the_page_on_live_views_shows_the_overview() -> None:
    screen = (DATA / "top-overview.txt").read_text().splitlines()
    page = Path(__file__).parents[4] / "docs" / "how-to" / "live.md"
    assert "\n".join(screen[:5]) in page.read_text()


def test_the_rpcs_that_nfsd_holds_are_on_two_screens() -> None:
    rpcs = tuple(replace(held(), xid=number_) for number_ in range(5))
    taken = [replace(old, server=replace(served(), held=rpcs)) for old in TAKEN]
    line = "nfsd holds 0x0000000{} NFSv3 WRITE for 86.9 s from 10.9.1.11"
    overview = drawn(taken)
    # three of them: there is room for mounts, clients and events, too
    assert [n for n in range(5) if line.format(n) in overview] == [0, 1, 2]
    for word in ("/mnt/data", "10.9.1.11 ", "disconnected", "Quit"):
        assert word in overview
    host = drawn(taken, "h")
    assert [n for n in range(5) if line.format(n) in host] == [0, 1, 2, 3, 4]
    bad = replace(held(), client=HOSTILE)
    assert HOSTILE not in drawn([replace(TAKEN[0], server=replace(served(), held=(bad,)))])


def test_hostile_names_are_text_on_every_screen() -> None:
    for keys in ((), ("enter",), ("e",), ("down", "enter")):
        screen = drawn([hostile()], *keys)
        assert HOSTILE not in screen
        assert "\x1b" not in screen
        assert "\udcff" not in screen
        assert "[31m" in screen or "<script>" in screen or "/mnt" in screen
    assert "[bold]?[31m" in drawn([hostile()], "e", size=(200, 24))


def test_it_is_readable_when_it_is_small_and_without_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for size in ((80, 24), (60, 15), (200, 60)):
        screen = drawn(TAKEN, size=size)
        assert "/mnt/data" in screen
        assert "!/srv" in screen
        assert "Quit" in screen


def test_keys_do_what_they_say() -> None:
    async def go() -> None:
        app = Top()
        async with app.run_test(size=(80, 24)) as pilot:
            app.post_message(SnapshotTaken(TAKEN[0]))
            await pilot.pause()
            await pilot.press("p")
            app.post_message(SnapshotTaken(TAKEN[1]))
            await pilot.pause()
            assert app.taken is TAKEN[0]
            await pilot.press("p")
            app.post_message(SnapshotTaken(TAKEN[2]))
            await pilot.pause()
            assert app.taken is TAKEN[2]
            await pilot.press("plus", "plus")
            assert app.pace == 5.0
            await pilot.press("minus", "minus", "minus", "minus")
            assert app.pace == 0.5
            await pilot.press("down", "down")
            assert app.overview.chosen is TAKEN[2].mounts[2]
            app.post_message(SnapshotTaken(TAKEN[3]))
            await pilot.pause()
            assert app.overview.chosen is TAKEN[3].mounts[2]
            await pilot.press("enter")
            assert app.screen is not app.overview
            await pilot.press("escape")
            assert app.screen is app.overview
            await pilot.press("slash", "x", "y", "enter")
            assert app.overview.shown == []
            await pilot.press("escape")
            assert len(app.overview.shown) == 3
            app.post_message(SnapshotTaken(snapshot(9, ())))
            await pilot.pause()
            assert app.overview.shown == []
            await pilot.press("q")
        assert not app.is_running

    asyncio.run(go())


def test_of_a_mount_that_is_gone_nothing_is_kept() -> None:
    rates = RecentRates()
    rates.add(TAKEN[0])
    assert rates.of("0:45", "read") == [1e6]
    rates.add(snapshot(2, ()))
    assert rates.of("0:45", "read") == []


def test_of_a_thousand_clients_the_busiest_are_shown() -> None:
    text = str(host_text(a_thousand_clients()))
    rows = [line for line in text.splitlines() if "10.9." in line]
    assert len(rows) == 100
    assert "10.9.3.249" in rows[0]
    assert text.endswith("3,900 more rows of clients, less busy")
    assert "10.9.3.249" in drawn([a_thousand_clients()], size=(120, 40))


def test_small_things() -> None:
    assert spark([0, 1, 8], 5) == "   ▁█"
    assert spark([], 3) == "   "
    assert [number(v) for v in (0, 1, 999, 1000, 65536, 2.5e9)] == [
        "", "1", "999", "1k", "65.5k", "2.5G",
    ]  # fmt: skip
    assert [span(v) for v in (0, 0.25, 1, 12.345, 2500)] == [
        "",
        "250 us",
        "1 ms",
        "12.3 ms",
        "2.5 s",
    ]
    assert text("/a/very/long/name", width=9).plain == "/a/v…name"
