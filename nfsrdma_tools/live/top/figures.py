# SPDX-License-Identifier: Apache-2.0
"""Numbers, text and sparklines for a terminal: short and of fixed width."""

from __future__ import annotations

from collections import deque

from rich.text import Text

from nfsrdma_tools.errors import printable
from nfsrdma_tools.live.snapshot import FULL, Mount, Processors, Snapshot

__all__ = ["RecentRates", "cpu_figures", "number", "rate", "span", "spark", "text"]

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def text(raw: object, style: str = "", width: int = 0) -> Text:
    """Untrusted text without markup and control characters; long text loses its middle."""
    plain = printable(str(raw))
    if width and len(plain) > width:
        tail = (width - 1) // 2
        plain = f"{plain[: width - 1 - tail]}…{plain[len(plain) - tail :]}"
    return Text(plain, style, no_wrap=True)


def number(value: float) -> str:
    """Three digits and a unit; "" for 0."""
    if not value:
        return ""
    for size, unit in _UNITS:
        if value >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def rate(amount: float, seconds: float) -> str:
    """An amount per second."""
    return number(amount / seconds) if seconds else ""


def span(ms: float) -> str:
    """A time given in milliseconds."""
    if not ms:
        return ""
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if ms >= 1 else f"{ms * 1000:.3g} us"


def cpu_figures(processors: Processors) -> str:
    """The busy share of the host, and the busiest CPU if it is full: "CPU 2% (CPU 7: 99%)"."""
    full = [f" (CPU {c.number}: {c.busy:.0%})" for c in processors.busiest[:1] if c.busy >= FULL]
    return f"CPU {processors.share:.0%}{''.join(full)}"


_LENGTH = 120
_BARS = " ▁▂▃▄▅▆▇█"


class RecentRates:
    """The rates of each mount in the last intervals: ``add`` snapshots, ``of`` returns rates."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, deque[float]]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add an interval, and drop mounts that are gone."""
        there = {mount.device for mount in snapshot.mounts}
        self._values = {d: kept for d, kept in self._values.items() if d in there}
        for mount in snapshot.mounts:
            kept = self._values.setdefault(mount.device, {})
            for name, value in _rates(mount, snapshot.seconds).items():
                kept.setdefault(name, deque(maxlen=_LENGTH)).append(value)

    def of(self, device: str, name: str) -> list[float]:
        """The values, newest last: "read", "written", "ops" (per second) or "exe" (ms)."""
        return list(self._values.get(device, {}).get(name, ()))


def _rates(mount: Mount, seconds: float) -> dict[str, float]:
    long = seconds or 1.0
    return {
        "read": mount.read / long,
        "written": mount.written / long,
        "ops": mount.rpcs / long,
        "exe": mount.mean_ms,
    }


def spark(values: list[float], width: int) -> str:
    """A sparkline, newest value on the right, scaled to the largest."""
    shown = values[-width:]
    most = max(shown, default=0.0)
    if not most:
        return "".rjust(width)
    steps = len(_BARS) - 1
    # a value above 0 has a visible bar
    bars = (_BARS[max(round(v / most * steps), 1 if v else 0)] for v in shown)
    return "".join(bars).rjust(width)
