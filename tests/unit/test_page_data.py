# SPDX-License-Identifier: Apache-2.0
"""What browsers are told: all of it once, then what changed, which comes to the same."""

import json
from dataclasses import replace
from typing import Any

from snapshots_made import HOSTILE, hostile, mount, op, served, snapshot, xprt

from nfsrdma_tools.live.memo import Kept, changed
from nfsrdma_tools.live.snapshot import Credits, Mount, Snapshot
from nfsrdma_tools.live.web.page_data import Shown

IDLE = mount("/mnt/idle", device="0:46", ops=(), read=0)


def expanded(told: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """As app.js does it."""
    have = {each["device"]: each for each in before.get("mounts", ())}
    mounts = [
        have[m] if isinstance(m, str) else m if "directory" in m else {**have[m["device"]], **m}
        for m in told["mounts"]
    ]
    return {**told, "mounts": mounts}


def with_(*mounts: Mount, **more: Any) -> Snapshot:
    return snapshot(1, mounts, **more)


def test_changes_come_to_what_is() -> None:
    shown, state = Shown(), {}
    busy = replace(IDLE, ops=(op(),), read=6553600)
    down = replace(busy, xprts=(xprt(connected=False, states=()),))
    starved = replace(down, xprts=(xprt(credits=Credits(64, 64)),))
    gone = (mount(),)
    for taken in (with_(mount(), IDLE), with_(mount(), IDLE), with_(mount(), busy),
                  with_(mount(), down), with_(starved, mount()), with_(*gone), with_(),
                  with_(*gone, server=served()), hostile()):  # fmt: skip
        shown.take(taken)
        state = expanded(json.loads(shown.changes()), state)
        assert state == json.loads(shown.whole())
    assert state["mounts"][1]["directory"] == HOSTILE


def test_a_mount_that_is_as_it_was_is_not_told_again() -> None:
    shown = Shown()
    shown.take(with_(mount(), IDLE))
    counted = changed(xprt(), counters={"sends": 9})
    shown.take(with_(mount(ops=(op(count=7),)), changed(IDLE, xprts=(counted,))))
    first, second = json.loads(shown.changes())["mounts"]
    assert first["ops"][0]["count"] == 7
    assert second == "0:46"
    shown.take(with_(mount(ops=(op(count=7),)), changed(IDLE, xprts=(xprt(pending=2),))))
    first, second = json.loads(shown.changes())["mounts"]
    assert first == "0:45"
    assert (set(second), second["xprts"][0]["pending"]) == ({"device", "xprts"}, 2)


def test_what_is_made_of_the_same_is_kept() -> None:
    made: list[tuple[object, ...]] = []
    kept = Kept(lambda *parts: made.append(parts) or [parts])
    first = kept.of("a", 1, {})
    assert kept.of("a", 1, {}) is first
    kept.turn()
    assert kept.of("a", 1, {}) is first
    assert kept.of("a", 2, {}) is not first
    kept.turn()
    kept.turn()
    kept.of("a", 2, {})
    assert made == [(1, {}), (2, {}), (2, {})]


def test_a_copy_with_changes_is_as_if_it_was_made_so() -> None:
    assert changed(mount(), read=7) == replace(mount(), read=7)
