# SPDX-License-Identifier: Apache-2.0
"""Student's t, in closed form: importing scipy takes longer than a trial of a sweep."""

from __future__ import annotations

import functools
import math

__all__ = ["quantile"]


@functools.cache
def quantile(degrees: int, probability: float) -> float:
    """The value that Student's t with ``degrees`` (1 or more) stays below with ``probability``.

    ``probability`` is 0.5 or more.
    """
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, degrees) < probability else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _below(angle: float, degrees: int) -> float:
    """P(T < tan(angle) * sqrt(degrees)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    cosine, odd = math.cos(angle), degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for n in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (n - 1) / n
    both = math.sin(angle) * total
    return (1 + (2 / math.pi * (angle + both) if odd else both)) / 2
