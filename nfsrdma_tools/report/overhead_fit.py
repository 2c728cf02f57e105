# SPDX-License-Identifier: Apache-2.0
"""Overhead per byte and per I/O, fitted: o(m) = m * o_byte + o_io.

Magoutis, Addetia, Fedorova, Seltzer: "Making the Most out of Direct-Access Network Attached
Storage" (FAST 2003), section 2.2.  The fit minimises errors relative to a scale for each point;
otherwise the largest transfers alone would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nfsrdma_tools.sweep.significance import quantile

__all__ = ["CONFIDENCE", "Estimate", "Fit", "fit"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value, and half the width of its 95 % confidence interval."""

    value: float
    margin: float


@dataclass(frozen=True)
class Fit:
    """``per_byte`` in ns, ``per_io`` in ns of CPU time; from ``points`` points."""

    per_byte: Estimate
    per_io: Estimate
    points: int

    def at(self, size: float) -> float:
        """The cost of an operation of ``size`` bytes, in ns."""
        return size * self.per_byte.value + self.per_io.value

    def enough_from(self, ns_per_byte: float) -> float:
        """The operation size from which a byte costs at most ``ns_per_byte``; inf if none."""
        left = ns_per_byte - self.per_byte.value
        return max(self.per_io.value, 0.0) / left if left > 0 else math.inf


def fit(sizes: Sequence[float], costs: Sequence[float], scales: Sequence[float]) -> Fit | None:
    """Fit a line through ``costs`` (ns) over ``sizes`` (bytes), with errors relative to ``scales``.

    None without degrees of freedom: it needs three points, of at least two sizes.
    Intervals use Student's t for the number of points.
    """
    if len(sizes) < 3 or len(set(sizes)) < 2 or min(scales) <= 0:
        return None
    scale, cost = np.array(scales, float), np.array(costs, float)
    terms = np.column_stack([np.array(sizes, float), np.ones(len(cost))]) / scale[:, None]
    found, *_ = np.linalg.lstsq(terms, cost / scale, rcond=None)
    degrees = len(cost) - 2
    variance = float(np.sum((terms @ found - cost / scale) ** 2)) / degrees
    spread = np.sqrt(np.diag(np.linalg.inv(terms.T @ terms)) * variance)
    margins = quantile(degrees, (1 + CONFIDENCE) / 2) * spread
    byte, io = (Estimate(float(v), float(m)) for v, m in zip(found, margins, strict=True))
    return Fit(byte, io, len(cost))
