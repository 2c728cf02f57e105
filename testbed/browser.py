# SPDX-License-Identifier: Apache-2.0
"""The dashboard's page in Chromium: what it shows, what it logged, and which hosts it asked."""

import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testbed.dashboard import MOUNT
from testbed.programs import chromium

__all__ = ["Browser", "opened"]


class Browser:
    """The page; ``said`` is what it logged, ``asked`` are the hosts of its requests."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on(
            "request", lambda request: self.asked.add(urllib.parse.urlsplit(request.url).netloc)
        )
        # the page's own policy forbids evaluation in it; the debugger is allowed to
        self._debugger = page.context.new_cdp_session(page)

    def state(self, name: str) -> Any:
        """A part of the page's state."""
        ask = {"expression": f"JSON.stringify(window.nfsrdma.{name})", "returnByValue": True}
        return json.loads(self._debugger.send("Runtime.evaluate", ask)["result"]["value"])

    def text(self, selector: str) -> str:
        """The text of an element."""
        text: str = self.page.inner_text(selector)
        return text

    def shown(self, since: float) -> int:
        """Bytes read from the mount that the page has drawn since a time of the node's clock."""
        frames = [frame for frame in self.state("frames") if frame["time"] > since]
        return sum(frame["subjects"].get(f"mount:{MOUNT}", {}).get("read", 0) for frame in frames)


@contextmanager
def opened(url: str) -> Iterator[Browser]:
    """The page in a browser, once it lists a mount; skips without playwright or Chromium."""
    sync = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; missed: the dashboard's page"
    )
    # as root, and in most containers, Chromium has no sandbox
    with sync.sync_playwright() as player:
        chrome = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        browser = Browser(chrome.new_page())
        browser.page.goto(url)
        browser.page.wait_for_selector("#mounts tbody tr", timeout=600_000)
        yield browser
        chrome.close()
