# SPDX-License-Identifier: Apache-2.0
"""Put the logs of two or more hosts side by side, and join what belongs together.

A cause in one log and its effect in another may be one story if the effect is at most ``CLOCKS``
seconds after the cause, or ``SKEW`` seconds before it: the clocks of hosts differ.  A larger skew
makes both times longer.  They are none if the client's message names a server that the other log
is not of.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.kernel_log.lines import host_of
from nfsrdma_tools.host.kernel_log.meanings import Meaning, meaning_of
from nfsrdma_tools.host.kernel_log.records import records
from nfsrdma_tools.host.rdma.completions import COMPLETIONS

__all__ = ["CLOCKS", "DOUBT", "SKEW", "Event", "Story", "events", "stories", "timeline"]

CLOCKS = 30.0
"""Seconds that the clocks of two hosts may differ, with what the first effect takes."""
SKEW = 5.0
"""Seconds that an effect may be before its cause, by the clocks of two hosts."""
DOUBT = "two logs prove no link: the times are near, and the messages fit each other"
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
    hosts: frozenset[str] = frozenset()
    """The names of the hosts that its log is of, without their domains; empty if not known."""

    @property
    def server(self) -> str:
        """The name of the server that the message names, without its domain; or empty."""
        name = self.meaning.subject
        if self.meaning.name not in _OF_SERVERS or not re.search(r"[A-Za-z]", name) or ":" in name:
            return ""
        return _short(name)


class Story(NamedTuple):
    """A cause in one log and its effect in another."""

    text: str
    cause: Event
    effect: Event
    effects: int
    """The number of effects that have this cause."""

    @property
    def doubt(self) -> str:
        """Facts that neither log has."""
        early = self.cause.at - self.effect.at
        if early <= 0:
            return DOUBT
        return f"{DOUBT}; by the hosts' clocks, the effect is {early:.0f} s before the cause"

    @property
    def parts(self) -> tuple[tuple[str, Event], ...]:
        """The cause and the effect with their labels, by time."""
        parts = (("cause", self.cause), ("effect", self.effect))
        return parts if self.cause.at <= self.effect.at else parts[::-1]


class _Rule(NamedTuple):
    cause: str
    effect: str
    text: str


_OF_SERVERS = ("request timed out", "server not responding")
"""Messages whose subject is a server, as the mount named it."""
_MOST_HOSTS = 64
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
        "{effect_log}: an RDMA operation failed; it may be because {cause_log} had withdrawn its"
        " memory: its IOMMU had no mapping any more",
    ),
    _Rule(
        rf"request timed out|device removed|mount lost with its device|{_CRASHED}"
        r"|warning of the NFS client|connection closed|\w+ device (?:failed|recovers|stalled)",
        _WITHDRAWN,
        "{effect_log}: an RDMA operation failed; it may be because {cause_log} had withdrawn its"
        " memory",
    ),
    _Rule(
        rf"{_CRASHED}|deferred request crashed the server|nfsd waits.*|processor held in .*"
        r"|thread of the NFS server waits",
        _WAITS,
        "{effect_log} waits; it may be because the kernel of {cause_log} reported an error",
    ),
    _Rule(
        r"server stopped|server started|grace period|.*nfsd: last server.*",
        _WAITS,
        "{effect_log} waited; it may be because the NFS server of {cause_log} was stopped or"
        " started",
    ),
    _Rule(
        r"device removed|\w+ device (?:failed|recovers|stalled)|network device held|address moved"
        r"|IOMMU .*",
        rf"{_LOST}|{_WAITS}",
        "{effect_log} lost its connection; it may be because a device of {cause_log} was removed,"
        " moved or reset",
    ),
    _Rule(
        r"memory short in .*|no memory regions",
        _WAITS,
        "{effect_log} waited; it may be because {cause_log} was short of memory",
    ),
)


def events(log: str, lines: Iterable[str]) -> list[Event]:
    """The records of a log that have a meaning, in the order of the log.

    Raises UserError if its times cannot be compared with those of another host.
    """
    latest = list[Event]()
    hosts = set[str]()
    for record, _ in records(_noting(lines, hosts)):
        if (meaning := meaning_of(record)) and record.time:
            latest.append(Event(log, _seconds(log, record.time), record.time, meaning))
            del latest[: max(len(latest) - _MOST, 0)]
    # of an anonymized log, all lines are of "host"
    known = frozenset(hosts if len(hosts) < _MOST_HOSTS and hosts.isdisjoint(_NO_NAMES) else ())
    return [event._replace(hosts=known) for event in latest]


_NO_NAMES = ("host", "localhost")


def _noting(lines: Iterable[str], hosts: set[str]) -> Iterator[str]:
    """The lines of a log; ``hosts`` gets the names of the hosts that they are of."""
    last = ""
    for line in lines:
        # most lines of a log are of one host
        if len(hosts) < _MOST_HOSTS and not (last and f" {last} " in line[:64]):
            last = host_of(line)
            hosts.update(filter(None, (_short(last),)))
        yield line


def _short(name: str) -> str:
    """The name of a host without its domain."""
    return name.partition(".")[0].casefold()


def timeline(logs: Iterable[Sequence[Event]]) -> list[Event]:
    """The events of all logs by time."""
    return sorted((event for log in logs for event in log), key=lambda event: event.at)


def stories(everything: Sequence[Event], skew: float = SKEW) -> list[Story]:
    """The causes and their effects in a ``timeline``, in the order of the effects.

    ``skew``: seconds that the hosts' clocks may differ.
    """
    by_key: dict[tuple[str, str, str, str], Story] = {}
    causes = [_Causes(rule, everything, skew) for rule in _RULES]
    for effect in everything:
        if story := _of(effect, causes):
            key = (story.text, story.cause.log, story.cause.time, effect.meaning.name)
            known = by_key.setdefault(key, story)
            by_key[key] = known._replace(effects=known.effects + (known is not story))
        if len(by_key) >= _MOST_STORIES:
            break
    return list(by_key.values())


class _Causes:
    """The events that may be a rule's cause, of each log by time."""

    def __init__(self, rule: _Rule, everything: Sequence[Event], skew: float) -> None:
        self.rule, self._skew = rule, skew
        self._of_logs: dict[str, list[Event]] = {}
        for event in everything:
            if _fits(rule.cause, event.meaning):
                self._of_logs.setdefault(event.log, []).append(event)

    def nearest(self, effect: Event) -> Event | None:
        """The last cause of another log before the effect, or else the first after it.

        None if none is near.
        """
        near = [
            cause
            for log, events_ in self._of_logs.items()
            if log != effect.log
            for cause in _near(events_, effect)
            if _may_be_linked(cause, effect, self._skew)
        ]
        return min(
            near, key=lambda cause: (cause.at > effect.at, abs(cause.at - effect.at)), default=None
        )


_MOST_CAUSES = 16
"""Causes on each side of an effect that are looked at."""


def _near(events_: Sequence[Event], effect: Event) -> Sequence[Event]:
    at = bisect.bisect_right(events_, effect.at, key=lambda event: event.at)
    return events_[max(at - _MOST_CAUSES, 0) : at + _MOST_CAUSES]


def _may_be_linked(cause: Event, effect: Event, skew: float) -> bool:
    """Whether neither the clocks nor the names of hosts speak against a link."""
    if not -skew <= effect.at - cause.at <= CLOCKS - SKEW + skew:
        return False
    sides = ((cause, effect), (effect, cause))
    return all(not a.server or not b.hosts or a.server in b.hosts for a, b in sides)


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
    if ctime := _CTIME.fullmatch(time):
        if ctime["month"] not in _MONTHS:
            raise UserError(f"{log} has times in an unknown language: {time}", _HINT)
        month = _MONTHS.index(ctime["month"]) + 1
        # syslog has no year: this one, as for the other log
        year = int(ctime["year"] or datetime.now(UTC).year)
        time = f"{year:04}-{month:02}-{int(ctime['day']):02}T{ctime['clock']}"
    text = re.sub(r"[.,](\d{1,6})\d*", r".\1", time.strip())
    text = re.sub(r" ?([+-]\d\d):?(\d\d)$", r"\1:\2", text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"{log} has times in an unknown form: {time}", _HINT) from error
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
