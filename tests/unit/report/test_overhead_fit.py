# SPDX-License-Identifier: Apache-2.0
import math
import random

import pytest

from nfsrdma_tools.report.cpu_figures import fit

SIZES = [8192, 32768, 131072, 524288] * 3


EXACT = [0.25 * m + 20000 for m in SIZES]


def noisy(luck: random.Random, spread: float) -> list[float]:
    return [(0.25 * m + 20000) * luck.gauss(1, spread) for m in SIZES]


def test_a_line_is_found_exactly() -> None:
    fitted = fit(SIZES, EXACT, EXACT)
    assert fitted
    assert fitted.per_byte.value == pytest.approx(0.25)
    assert fitted.per_io.value == pytest.approx(20000)
    assert fitted.per_byte.margin < 1e-9
    assert fitted.at(1000) == pytest.approx(20250)


def test_scipy_finds_the_same() -> None:
    costs = noisy(random.Random(3), 0.05)  # noqa: S311 - no secret
    fitted = fit(SIZES, costs, EXACT)
    assert fitted
    # scipy 1.17.1: scipy.optimize.curve_fit(line, SIZES, costs, p0=(1, 1), sigma=EXACT), where line
    # is lambda m, byte, io: m * byte + io; the deviations are the roots of the diagonal
    values, deviations = (0.2582947546732227, 20156.351946316834), (0.0061164556493, 445.2406191832)
    assert (fitted.per_byte.value, fitted.per_io.value) == pytest.approx(values, rel=1e-5)
    # t(10) at 97.5 %, out of a table
    margins = tuple(2.2281 * each for each in deviations)
    assert (fitted.per_byte.margin, fitted.per_io.margin) == pytest.approx(margins, rel=1e-4)


def test_the_truth_lies_in_the_interval_as_often_as_promised() -> None:
    luck, inside = random.Random(1), 0  # noqa: S311 - no secret
    for _ in range(1000):
        fitted = fit(SIZES, noisy(luck, 0.05), EXACT)
        assert fitted
        inside += abs(fitted.per_io.value - 20000) <= fitted.per_io.margin
    # of 950 that are expected; three deviations of a binomial are 21
    assert 929 <= inside <= 971


def test_too_little_to_say_anything() -> None:
    assert fit([1, 2], [1, 2], [1, 2]) is None
    assert fit([8, 8, 8], [1, 2, 3], [1, 2, 3]) is None
    assert fit([1, 2, 3], [1, 0, 3], [1, 0, 3]) is None


def test_from_which_size_the_cpu_is_enough() -> None:
    fitted = fit(SIZES, EXACT, EXACT)
    assert fitted
    assert fitted.enough_from(1.25) == pytest.approx(20000)
    assert fitted.enough_from(0.2) == math.inf
