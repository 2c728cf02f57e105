# SPDX-License-Identifier: Apache-2.0
"""Overhead per byte and per I/O, fitted: o(m) = m * o_byte + o_io.

Magoutis, Addetia, Fedorova, Seltzer: "Making the Most out of Direct-Access Network Attached
Storage" (FAST 2003), section 2.2.  What is measured is known to a share of itself, so that
relative errors are minimized; else the largest transfers alone would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "Estimate", "Fit", "fit"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value, and how far to both sides it is uncertain (95 % confidence interval)."""

    value: float
    margin: float


@dataclass(frozen=True)
class Fit:
    """``per_byte`` in ns, ``per_io`` in ns of CPU time; from so many ``points``."""

    per_byte: Estimate
    per_io: Estimate
    points: int

    def at(self, size: float) -> float:
        """Nanoseconds of an operation of ``size`` bytes."""
        return size * self.per_byte.value + self.per_io.value

    def enough_from(self, ns_per_byte: float) -> float:
        """The bytes per operation from which on one costs ``ns_per_byte`` or less; inf if none."""
        left = ns_per_byte - self.per_byte.value
        return max(self.per_io.value, 0.0) / left if left > 0 else math.inf


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Fit | None:
    """The line through costs (ns, above 0) over sizes (bytes); None if it has nothing to err from.

    That takes three points, of two sizes at least.  Student's t for as many points as there are.
    """
    if len(sizes) < 3 or len(set(sizes)) < 2 or min(costs) <= 0:
        return None
    from scipy.special import stdtrit

    cost = np.array(costs, float)
    terms = np.column_stack([np.array(sizes, float), np.ones(len(cost))]) / cost[:, None]
    found, *_ = np.linalg.lstsq(terms, np.ones(len(cost)), rcond=None)
    degrees = len(cost) - 2
    variance = float(np.sum((terms @ found - 1) ** 2)) / degrees
    spread = np.sqrt(np.diag(np.linalg.inv(terms.T @ terms)) * variance)
    margins = float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * spread
    byte, io = (Estimate(float(v), float(m)) for v, m in zip(found, margins, strict=True))
    return Fit(byte, io, len(cost))
