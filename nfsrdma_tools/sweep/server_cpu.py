# SPDX-License-Identifier: Apache-2.0
"""CPU time of a server while its clients measure: sampled on the server, kept in a store."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import cpu_time

__all__ = ["Sample", "as_sample", "busy", "read", "to_facts", "watch"]


class Sample(NamedTuple):
    """A time (Unix time, s) and the busy time of all CPUs together (s), from any start."""

    at: float
    busy: float


def watch(count: int, interval: float = 1.0) -> Iterator[Sample]:
    """Yield ``count`` samples: one now, then one per interval."""
    begin = time.monotonic()
    before = cpu_time.snapshot()
    busy_ns = before.busy_since_boot_ns
    for number in range(1, count + 1):
        after = cpu_time.snapshot()
        # not since boot again: that jumps when a CPU comes online
        busy_ns, before = busy_ns + cpu_time.difference(after, before).busy_ns, after
        yield Sample(round(datetime.now(UTC).timestamp(), 3), round(busy_ns / 1e9, 6))
        if number < count:
            # from the begin, so that samples do not drift
            time.sleep(max(begin + number * interval - time.monotonic(), 0))


def as_sample(pair: Sequence[object]) -> Sample:
    """A sample from JSON; ValueError or TypeError when it is not one."""
    at, spent = pair
    if not isinstance(at, int | float) or not isinstance(spent, int | float):
        raise ValueError(f"{pair!r} is no sample")
    return Sample(float(at), float(spent))


def to_facts(sample: Sample) -> dict[str, float]:
    """The sample as `nfsrdma server cpu` prints it."""
    return {"time": sample.at, "busy_s": sample.busy}


def read(lines: Iterable[str]) -> list[Sample]:
    """Parse the lines of ``nfsrdma server cpu``; a truncated last line is skipped.

    Raises UserError for anything else.
    """
    whole = [line for line in lines if line.endswith("\n")]
    try:
        return [_from_line(line) for line in whole]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"these are not samples of `nfsrdma server cpu`: {error}") from error


def _from_line(line: str) -> Sample:
    facts = json.loads(line)
    return as_sample((facts["time"], facts["busy_s"]))


def busy(samples: Sequence[Sample], since: float, until: float) -> float | None:
    """Mean number of busy CPUs between two times (Unix time, s).

    Interpolates between samples; None when the samples do not cover the interval.
    """
    if until <= since or not samples or not samples[0].at <= since < until <= samples[-1].at:
        return None
    spent = _at(samples, until) - _at(samples, since)
    # after a reboot the machine counts from 0 again
    return spent / (until - since) if spent >= 0 else None


def _at(samples: Sequence[Sample], moment: float) -> float:
    for before, after in itertools.pairwise(samples):
        if before.at <= moment <= after.at and after.at > before.at:
            share = (moment - before.at) / (after.at - before.at)
            return before.busy + share * (after.busy - before.busy)
    return samples[0].busy
