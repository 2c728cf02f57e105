# SPDX-License-Identifier: Apache-2.0
"""Put the logs of two or more hosts side by side, and join what belongs together.

A cause in one log and its effect in another are one story if they are at most ``CLOCKS`` seconds
apart: the clocks of hosts differ, so the order of the two does not count.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.kernel_log.meanings import Meaning, meaning_of
from nfsrdma_tools.host.kernel_log.records import records
from nfsrdma_tools.host.rdma.completions import COMPLETIONS

__all__ = ["CLOCKS", "Event", "Story", "events", "stories", "timeline"]

CLOCKS = 30.0
"""Seconds that the clocks of two hosts may differ, with what the first effect takes."""
_MOST = 20_000
"""Events of one log; of a longer one, the last are kept."""
_MOST_STORIES = 50


class Event(NamedTuple):
    """A record of one log that has a meaning, and its time in seconds since 1970."""

    log: str
    at: float
    time: str
    """As the log has it."""
    meaning: Meaning


class Story(NamedTuple):
    """A cause in one log and its effect in another."""

    text: str
    cause: Event
    effect: Event
    effects: int
    """The number of effects that have this cause."""


class _Rule(NamedTuple):
    cause: str
    effect: str
    text: str


_WITHDRAWN = r".*: remote access error"
_LOST = r".*: (?:retries exceeded|response timeout|flushed)"
_WAITS = (
    r"server not responding|request timed out|program waits for .*|connection closed"
    r"|thread of the NFS client waits|RPC call failed"
)
_CRASHED = (
    r"(?:NFS server|client over RDMA|NFS client|RDMA core|driver of an RDMA device) crashed"
    r"|another module crashed in a thread of .*"
)
# the first rule that fits a pair tells the story
_RULES = (
    _Rule(
        r"IOMMU .*",
        _WITHDRAWN,
        "{effect_log}: an RDMA operation failed, because {cause_log} had withdrawn its memory: its"
        " IOMMU had no mapping any more",
    ),
    _Rule(
        rf"request timed out|device removed|mount lost with its device|{_CRASHED}"
        r"|warning of the NFS client|connection closed|\w+ device (?:failed|recovers|stalled)",
        _WITHDRAWN,
        "{effect_log}: an RDMA operation failed, because {cause_log} had withdrawn its memory",
    ),
    _Rule(
        rf"{_CRASHED}|deferred request crashed the server|nfsd waits.*|processor held in .*"
        r"|thread of the NFS server waits",
        _WAITS,
        "{effect_log} waits for {cause_log}, whose kernel reported an error",
    ),
    _Rule(
        r"server stopped|server started|grace period|.*nfsd: last server.*",
        _WAITS,
        "{effect_log} waited for {cause_log}, whose NFS server was stopped or started",
    ),
    _Rule(
        r"device removed|\w+ device (?:failed|recovers|stalled)|network device held|address moved"
        r"|IOMMU .*",
        rf"{_LOST}|{_WAITS}",
        "{effect_log} lost its connection, because a device of {cause_log} was removed, moved or"
        " reset",
    ),
    _Rule(
        r"memory short in .*|no memory regions",
        _WAITS,
        "{effect_log} waited for {cause_log}, which was short of memory",
    ),
)


def events(log: str, lines: Iterable[str]) -> list[Event]:
    """The records of a log that have a meaning, in the order of the log.

    Raises UserError if its times cannot be compared with those of another host.
    """
    found = list[Event]()
    for record, _ in records(lines):
        if (meaning := meaning_of(record)) and record.time:
            found.append(Event(log, _seconds(log, record.time), record.time, meaning))
            del found[: max(len(found) - _MOST, 0)]
    return found


def timeline(logs: Iterable[Sequence[Event]]) -> list[Event]:
    """The events of all logs by time."""
    return sorted((event for log in logs for event in log), key=lambda event: event.at)


def stories(everything: Sequence[Event]) -> list[Story]:
    """The causes and their effects in a ``timeline``, in the order of the effects."""
    found: dict[tuple[str, str, str, str], Story] = {}
    causes = [_Causes(rule, everything) for rule in _RULES]
    for effect in everything:
        if story := _of(effect, causes):
            key = (story.text, story.cause.log, story.cause.time, effect.meaning.name)
            known = found.setdefault(key, story)
            found[key] = known._replace(effects=known.effects + (known is not story))
        if len(found) >= _MOST_STORIES:
            break
    return list(found.values())


class _Causes:
    """The events that may be a rule's cause, of each log by time."""

    def __init__(self, rule: _Rule, everything: Sequence[Event]) -> None:
        self.rule = rule
        self._of_logs: dict[str, list[Event]] = {}
        for event in everything:
            if _fits(rule.cause, event.meaning):
                self._of_logs.setdefault(event.log, []).append(event)

    def nearest(self, effect: Event) -> Event | None:
        """The nearest cause of another log; None if none is near."""
        near = [
            one
            for log, events_ in self._of_logs.items()
            if log != effect.log
            for at in [bisect.bisect_left(events_, effect.at, key=lambda event: event.at)]
            for one in events_[max(at - 1, 0) : at + 1]
            if abs(one.at - effect.at) <= CLOCKS
        ]
        return min(near, key=lambda one: abs(one.at - effect.at), default=None)


def _of(effect: Event, causes: Sequence[_Causes]) -> Story | None:
    """The story of an effect, by the first rule that has a cause."""
    for each in causes:
        if _fits(each.rule.effect, effect.meaning) and (cause := each.nearest(effect)):
            text = each.rule.text.format(cause_log=cause.log, effect_log=effect.log)
            return Story(text, cause, effect, 1)
    return None


def _fits(pattern: str, meaning: Meaning) -> bool:
    return _matches(pattern, _kind(meaning))


@functools.cache
def _matches(pattern: str, kind: str) -> bool:
    # the names of meanings are those of our tables
    return bool(re.fullmatch(pattern, kind))


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _kind(meaning: Meaning) -> str:
    """The name of a meaning, with the status of a work completion."""
    number = meaning.number
    if not number or not number.name.startswith("IB_WC_") or ": " in meaning.name:
        return meaning.name
    return f"{meaning.name}: {COMPLETIONS[number.number].name}"


_CTIME = re.compile(
    r"(?:[A-Z][a-z]{2} )?(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) "
    r"(?P<clock>\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?: (?P<year>\d{4}))?"
)
_HINT = "write both logs with: journalctl -k -o short-iso"


def _seconds(log: str, time: str) -> float:
    """A time of a log in seconds since 1970; without a zone it is taken for UTC."""
    if time.endswith(" s"):
        raise UserError(f"{log} has times since the boot of its host only", _HINT)
    if re.fullmatch(r"\d{9,11}\.\d{1,9}", time):
        return float(time)
    if found := _CTIME.fullmatch(time):
        if found["month"] not in _MONTHS:
            raise UserError(f"{log} has times in an unknown language: {time}", _HINT)
        month = _MONTHS.index(found["month"]) + 1
        # syslog has no year: this one, as for the other log
        year = int(found["year"] or datetime.now(UTC).year)
        time = f"{year:04}-{month:02}-{int(found['day']):02}T{found['clock']}"
    text = re.sub(r"[.,](\d{1,6})\d*", r".\1", time.strip())
    text = re.sub(r" ?([+-]\d\d):?(\d\d)$", r"\1:\2", text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"{log} has times in an unknown form: {time}", _HINT) from error
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
