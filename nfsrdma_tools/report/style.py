# SPDX-License-Identifier: Apache-2.0
"""The style of figures: colours for light and dark pages, markers, sizes, safe text.

Read-ahead is ordered, so its colours are steps of viridis (Smith and van der Walt), which keeps
its order in grey and for colour-blind readers; transports use colours of Okabe and Ito.  Each
colour of a light figure has a counterpart for dark pages, and the page maps one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["COLOURS", "GRID", "INK", "MUTED", "PAPER", "steps", "transport"]

INK, MUTED, GRID, PAPER = "#1b1f24", "#5b6470", "#e1e5ea", "#fefefe"
_STEPS = (
    ("#440154", "#2e6f8e"), ("#482576", "#25848e"), ("#404588", "#1f9a8a"), ("#34618d", "#2ab07f"),
    ("#297b8e", "#50c46a"), ("#20938c", "#86d549"), ("#25ac82", "#c2df23"), ("#4ec36b", "#fde725"),
)  # fmt: skip
_TRANSPORTS = {
    "tcp": ("#d55e00", "#f0904d"),
    "rdma": ("#0072b2", "#56b4e9"),
    "nfsrdma": ("#009e73", "#2fcf9f"),
}
_OTHER = ("#cc79a7", "#e3a3c6")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

COLOURS = {
    INK: "#e6e8eb",
    MUTED: "#a4adb8",
    GRID: "#31373e",
    PAPER: "#15181c",
    **dict(_STEPS),
    **dict(_TRANSPORTS.values()),
    **dict([_OTHER]),
}
"""Each colour of a figure on a light page, with its counterpart on a dark page."""

RC: dict[str, Any] = {
    "figure.figsize": (5.6, 3.9),
    "figure.dpi": 100,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "font.size": 10,
    "font.family": ["DejaVu Sans"],
    "lines.linewidth": 1.9,
    "lines.markersize": 6.3,
    "errorbar.capsize": 2.5,
    # text from a store may contain a dollar sign, which must not start a formula
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "nfsrdma",
}
"""matplotlib's settings for all figures; the fixed salt makes equal figures equal bytes."""


def steps(count: int) -> list[str]:
    """``count`` colours for ordered values, as distinct as possible."""
    last = len(_STEPS) - 1
    indexes = [round(i * last / max(1, count - 1)) for i in range(count)]
    return [_STEPS[index][0] for index in indexes]


def transport(name: str) -> str:
    """The colour of a transport."""
    return _TRANSPORTS.get(name, _OTHER)[0]


def marker(names: Sequence[str], name: str) -> str:
    """The marker of one of several transports."""
    return MARKERS[names.index(name) % len(MARKERS)]
