# SPDX-License-Identifier: Apache-2.0
"""The histogram of lib/histogram.c beside exact percentiles of the sorted values."""

import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil
from typing import Any

import pytest

pytest.importorskip("device", reason="no tests/device; missed: the histogram of `nfsrdma load`")

from device import Device
from unit.device_fixtures import device, device_library

from nfsrdma_tools.client import library

__all__ = ["device", "device_library"]

ALL = 100_000
PARTS = (0, 1, 1000, 25_000, 50_000, 90_000, 99_000, 99_900, 99_990, 99_999, ALL)
MOST = (1 << 64) - 1


def exact(values: list[int], parts: int) -> int:
    """The lowest value that ``parts`` of 100,000 values do not exceed."""
    return sorted(values)[max(ceil(Fraction(len(values) * parts, ALL)), 1) - 1]


@pytest.fixture
def make(device: Device) -> Callable[[Iterable[int]], Any]:
    del device
    loaded = library.load()

    def make(values: Iterable[int]) -> Any:
        made = loaded.ffi.new("struct nfsrdma_histogram *")
        for value in values:
            loaded.functions.nfsrdma_histogram_record(made, value)
        return made

    return make


def percentile(histogram: Any, parts: int) -> int:
    return int(library.load().functions.nfsrdma_histogram_percentile(histogram, parts))


def edges() -> list[int]:
    """The values around each power of two, and around the slots that it is cut into."""
    near = {
        base + step
        for bit in range(64)
        for base in (1 << bit, (1 << bit) + (1 << bit >> 8))
        for step in (-1, 0, 1)
    }
    return sorted({0, MOST, MOST - 1, *(value for value in near if 0 <= value <= MOST)})


def draws(seed: int) -> dict[str, list[int]]:
    chance = random.Random(seed)  # noqa: S311 - the same values in each run
    return {
        "one": [12_345_678],
        "zeros": [0] * 50,
        "edges": edges(),
        "equal": [999_983] * 777,
        "small": [chance.randrange(512) for _ in range(3001)],
        "uniform": [chance.randrange(10**9) for _ in range(5000)],
        "times": [int(chance.lognormvariate(11, 2)) for _ in range(5000)],
        "two humps": [
            chance.choice((80_000, 5_000_000_000)) + chance.randrange(99) for _ in range(999)
        ],
        "any": [chance.getrandbits(chance.randrange(1, 65)) for _ in range(5000)],
        "one late": [1000] * 999 + [60 * 10**9],
    }


CASES = [(name, values) for seed in range(3) for name, values in draws(seed).items()]


@pytest.mark.parametrize(("name", "values"), CASES, ids=[name for name, _ in CASES])
def test_percentiles_are_those_of_the_values(
    make: Callable[[Iterable[int]], Any], name: str, values: list[int]
) -> None:
    del name
    histogram = make(values)
    assert (histogram.count, histogram.least, histogram.most) == (
        len(values),
        min(values),
        max(values),
    )
    assert histogram.sum == pytest.approx(sum(values), rel=1e-9)
    for parts in PARTS:
        right, found = exact(values, parts), percentile(histogram, parts)
        assert right <= found <= right + right // 256, parts


def test_the_error_is_as_large_as_the_header_says(
    make: Callable[[Iterable[int]], Any],
) -> None:
    """Not much smaller either: a value beside the lowest one of its slot."""
    low = 1 << 40
    assert percentile(make([low, MOST]), 50_000) == low
    high = percentile(make([0, low, MOST]), 50_000)
    assert low + low // 257 < high < low + low // 256


def test_each_value_has_one_slot(make: Callable[[Iterable[int]], Any]) -> None:
    slots = [[at for at, n in enumerate(make([value]).slots) if n] for value in edges()]
    assert all(len(each) == 1 for each in slots)
    assert slots == sorted(slots)
    assert slots[-1] == [len(make([]).slots) - 1]


def test_no_values(make: Callable[[Iterable[int]], Any]) -> None:
    histogram = make([])
    assert [percentile(histogram, parts) for parts in PARTS] == [0] * len(PARTS)


def test_the_sum_of_two_histograms_is_that_of_their_values(
    make: Callable[[Iterable[int]], Any],
) -> None:
    loaded, sets = library.load(), draws(7)
    total = make([])
    for values in (*sets.values(), []):
        loaded.functions.nfsrdma_histogram_add(total, make(values))
    everything = make(value for values in sets.values() for value in values)
    buffer = loaded.ffi.buffer
    one, other = buffer(total)[:], buffer(everything)[:]
    # the sums of floating-point numbers depend on the order
    assert one[:24] + one[32:] == other[:24] + other[32:]
    assert total.sum == pytest.approx(everything.sum)
