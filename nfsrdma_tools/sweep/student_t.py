# SPDX-License-Identifier: Apache-2.0
"""Quantiles of Student's t and of the studentized maximum."""

from __future__ import annotations

import functools
import math

__all__ = ["maximum", "quantile"]

_STEPS = 400


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


@functools.cache
def maximum(degrees: int, of: int, probability: float) -> float:
    """The value that the largest of so many t-distributed values stays below with ``probability``.

    They share the estimate of their spread, which has so many ``degrees`` of freedom (1 or more),
    and nothing else: the studentized maximum, for one value Student's t.
    """
    if of == 1:
        return quantile(degrees, probability)
    low, high = 0.0, 1000.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        small = _all_below(middle, degrees, of) < probability
        low, high = (middle, high) if small else (low, middle)
    return high


def _all_below(value: float, degrees: int, of: int) -> float:
    """The integral over the estimate of the spread, 1 on average, by the midpoint rule."""
    width = (1 + 8 / math.sqrt(degrees)) / _STEPS
    constant = math.log(2 * width) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    total = 0.0
    for step in range(_STEPS):
        spread = (step + 0.5) * width
        density = math.exp(constant + (degrees - 1) * math.log(spread) - degrees * spread**2 / 2)
        total += density * (0.5 * math.erfc(-value * spread / math.sqrt(2))) ** of
    return total


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
