# SPDX-License-Identifier: Apache-2.0
"""The lines of a log, as dmesg(1), journalctl(1) and syslog write them: time, program, text."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, Generic, NamedTuple, TypeVar

from nfsrdma_tools.host.kernel_log.encodings import utf8_blocks

__all__ = [
    "LINE_BYTES",
    "Form",
    "LogLine",
    "Numbered",
    "batches",
    "form_of",
    "lines_of",
    "parsed",
    "printed",
]

LINE_BYTES = 2048
"""Longer lines are cut: the kernel's own limit is about 1000 (printk(), LOG_LINE_MAX)."""


class LogLine(NamedTuple):
    """A line without what stands before the text."""

    time: str
    tag: str
    """The program that printed it; empty if the line does not say."""
    text: str
    caller: str = ""
    """The thread or CPU that printed it (CONFIG_PRINTK_CALLER), as "T155" or "C3"."""

    @property
    def seconds(self) -> float | None:
        """The time since the boot; None if the line has another time."""
        return float(self.time[:-2]) if self.time.endswith(" s") else None


class Form(NamedTuple):
    """Where the parts of a line are: of each line that differs from it in digits only."""

    time: slice
    """Empty if the lines have no time."""
    unit: str
    """The text after the time: " s" for a time since the boot."""
    tag: str
    text: slice
    caller: slice

    def line(self, line: str) -> LogLine:
        """The same as ``parsed``."""
        time = line[self.time]
        return LogLine(
            time + self.unit if time else "", self.tag, line[self.text], line[self.caller]
        )


R_co = TypeVar("R_co", covariant=True)


if TYPE_CHECKING:

    class Numbered(NamedTuple, Generic[R_co]):
        """A record of a log, and the numbers of its lines, from 0."""

        record: R_co
        numbers: tuple[int, ...]

else:
    # Python 3.9 has no named tuple of a generic type
    Numbered = namedtuple("Numbered", ["record", "numbers"])


# Times as dmesg(1) and journalctl(1) print them, with the names of days and months of any language:
# in brackets, or before the host.
_TIME = re.compile(
    r"\[ *(?P<boot>\d{1,12}\.\d{1,9})\] ?"
    # dmesg --ctime, --reltime, --show-delta; [drm] and [ T155] are no times
    r"|\[ *(?P<bracketed>(?=[^]]*\d[.:]\d)[^][]{1,64})\] ?"
    r"|(?P<short>[^\W\d]\S{0,15} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) "
    # Japanese, Chinese and Korean months begin with a digit
    r"|(?P<month>\d{1,2}[^\W\d]{1,2} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) "
    r"|(?P<full>[^\W\d]\S{0,15} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? [\w:+-]{1,9}) "
    r"|(?P<unix>\d{9,11}\.\d{6}) "
    r"|(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?[+-]\d\d:?\d\d|Z)?) "
)
_CLOCK = r"[ \d]?\d \d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?"
_PLAIN_TIME = re.compile(
    r"\d{9,11}\.\d{6}|"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?[+-]\d\d:?\d\d|Z)?"
)
_BRACKETED_TIME = re.compile(
    r"(?:(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
    rf"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ?{_CLOCK}(?: \d{{4}})?"
    r"|\d{1,12}\.\d{1,9})?(?: ?<? *\+?\d{1,12}\.\d{1,9}>?)?"
)
_EDGES = " \t\r\n\0\ufeff"
_COLOUR = re.compile(r"\x1b\[[\d;]{0,16}m")
_JSON = ("{", "data: {", "\x1e{")
_KMSG = re.compile(r"\d{1,5},\d{1,12},(?P<us>\d{1,15}),[^;]{1,64};")
"""Of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): priority, number, microseconds, flags."""
_SYSLOG = re.compile(
    r"\d (?P<time>\d{4}-\d\d-\d\dT\S{8,24}) \S{1,255} (?P<tag>\S{1,48}) \S{1,128} \S{1,32}"
    r" (?:-|\[[^]]{0,512}\]) ?\ufeff?"
)
"""RFC 5424, after the priority; the first digit is the version of the protocol, 1."""
_LEVEL = re.compile(
    r"<\d{1,3}>|(?:kern|user|daemon|syslog) *: ?(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
)
"""Of the raw buffer, and of dmesg --decode."""
_CALLER = re.compile(r"\[ *(?P<caller>[TC]\d{1,9})\] ?")
"""CONFIG_PRINTK_CALLER: the thread or CPU, after the time."""
_PLAIN = re.compile(r"\[ *(\d{1,12}\.\d{1,9})\] ?(?:\[ *([TC]\d{1,9})\] ?)?")
"""Of dmesg without options, which most logs are."""
_HOST_TAG = re.compile(r"[\w.-]{1,255} (?P<tag>[\w./@-]{1,64})(?P<pid>\[\d{1,10}\])?: ")
_HEAD = 600
"""Characters in which a line names its host, unless it is JSON."""
_JSON_HOST = re.compile(r'"_HOSTNAME" ?: ?"(?P<host>[\w.-]{1,255})"')
_SYSLOG_HOST = re.compile(r"1 \d{4}-\d\d-\d\dT\S{8,24} (?P<host>[\w.-]{2,255}) \S{1,48} \S{1,128} ")
_TAG = re.compile(r"(?P<tag>kernel|[\w./@-]{1,64}(?=\[))(?P<pid>\[\d{1,10}\])?: ")
"""Of journalctl --no-hostname."""
_FIELD = re.compile(
    r'(?:MESSAGE=(?P<export>.*)|"(?:MESSAGE|msg)" ?: ?(?P<json>"(?:[^"\\]|\\.)*"),?)$'
)
"""Of journalctl --output=export, verbose and json-pretty, and of dmesg --json."""


def parsed(line: str) -> LogLine:
    """A line of dmesg, journalctl or a file of syslog without what stands before the text."""
    if (
        (plain := _PLAIN.match(line))
        and not ("kernel: " in line or "]: " in line)
        and "\x1b" not in line
    ):
        # no host can follow, nor a colour
        text = line[plain.end() :].rstrip(_EDGES).strip()
        return LogLine(f"{plain[1]} s", "", text, plain[2] or "")
    rest = _COLOUR.sub("", line).strip(_EDGES)
    if rest.startswith(_JSON):
        return _of_json(rest.removeprefix("data: ").removeprefix("\x1e"))
    if field := _FIELD.match(rest):
        text = field["export"] if field["json"] is None else _unquoted(field["json"])
        return LogLine("", "", text)
    if kmsg := _KMSG.match(rest):
        return LogLine(f"{int(kmsg['us']) / 1e6:.6f} s", "", rest[kmsg.end() :].strip())
    if level := _LEVEL.match(rest):
        rest = rest[level.end() :]
    if syslog := _SYSLOG.match(rest):
        return LogLine(syslog["time"], syslog["tag"], rest[syslog.end() :].strip())
    return _with_time(rest)


def form_of(line: str, read: LogLine) -> Form | None:
    """The form of a line that was parsed; None if it cannot tell the parts of other lines.

    No pattern of this module knows one digit from another, so a line with other digits has its
    parts in the same places.  Not so in JSON, where digits are parts of escapes and of numbers.
    """
    begin = line.lstrip(_EDGES)
    if begin.startswith(_JSON) or _KMSG.match(begin) or "\\" in line or "\x1b" in line:
        return None
    if any(map(str.isdigit, read.tag)):
        return None
    time, unit = read.time.removesuffix(" s"), " s" if read.time.endswith(" s") else ""
    # no digit but those of a priority and of a version is before the time
    at = _span(line.find(time), time)
    # only blanks are after the text
    text = _span(line.rfind(read.text), read.text)
    return Form(at, unit, read.tag, text, _span(line.find(read.caller, at.stop), read.caller))


def _span(begin: int, part: str) -> slice:
    return slice(begin, begin + len(part))


def host_of(line: str) -> str:
    """The host that a line of a journal or of syslog names; empty if it names none."""
    rest = _COLOUR.sub("", line[:_HEAD]).strip(_EDGES)
    if json_host := _JSON_HOST.search(line) if rest.startswith("{") else None:
        return json_host["host"]
    if level := _LEVEL.match(rest):
        rest = rest[level.end() :]
    if syslog := _SYSLOG_HOST.match(rest):
        return syslog["host"]
    if not (time := _TIME.match(rest)) or not (host := _HOST_TAG.match(rest, time.end())):
        return ""
    return host[0].partition(" ")[0] if _names_host(time, host) else ""


def _with_time(rest: str) -> LogLine:
    """A line that begins with a time."""
    if not (stamp := _TIME.match(rest)):
        return LogLine("", "", rest)
    rest, tag = rest[stamp.end() :], ""
    time = f"{stamp['boot']} s" if stamp["boot"] else next(filter(None, stamp.groups()))
    # docker and kubectl logs --timestamps put theirs before the kernel's own
    if stamp["iso"] and (own := _TIME.match(rest)) and own["boot"]:
        stamp, rest, tag = own, rest[own.end() :], "kernel"
    if caller := _CALLER.match(rest):
        rest = rest[caller.end() :]
    by = caller["caller"] if caller else ""
    host = _TAG.match(rest) or _HOST_TAG.match(rest)
    if host and _names_host(stamp, host):
        tag, rest = host["tag"], rest[host.end() :]
        # rsyslog keeps the kernel's own time: "host kernel: [   12.3] text"
        if tag == "kernel" and (inner := _TIME.match(rest)) and inner["boot"]:
            rest = rest[inner.end() :]
    return LogLine(time, tag, rest.strip(), by)


def _of_json(text: str) -> LogLine:
    """A line of journalctl --output=json, with the time of the entry."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return LogLine("", "", "")
    if not isinstance(entry, dict) or not isinstance(entry.get("MESSAGE"), str):
        return LogLine("", "", "")
    tag = str(entry.get("SYSLOG_IDENTIFIER") or "")
    if entry.get("_TRANSPORT") == "kernel":
        tag = "kernel"
    elif tag == "kernel":
        tag = "a program"
    stamp = str(entry.get("__REALTIME_TIMESTAMP") or "")
    seconds = f"{stamp[:-6]}.{stamp[-6:]}" if stamp.isdecimal() and len(stamp) > 6 else ""
    return LogLine(seconds, tag, entry["MESSAGE"].strip())


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)).strip()
    except ValueError:
        return ""


def printed(line: LogLine, text: str) -> str:
    """A line with another text, whose time has no words but English days and months.

    Other texts in the place of a time are left out: they may be a name or an address.
    """
    if line.time.endswith(" s"):
        time = f"[{line.time.removesuffix(' s'):>12}] "
    elif plain := _PLAIN_TIME.search(line.time):
        time = f"{plain[0]} "
    elif line.time and _BRACKETED_TIME.fullmatch(line.time):
        time = f"[{line.time}] "
    else:
        # of another language
        time = f"[month {clock[0]}] " if (clock := re.search(_CLOCK, line.time)) else ""
    if not line.tag or not time:
        return f"{time}{text}"
    return f"{time}host {line.tag}{'' if line.tag == 'kernel' else '[1]'}: {text}"


def _names_host(time: re.Match[str], host: re.Match[str]) -> bool:
    """Whether "word word: " after a time is a host and a program, and not the kernel's text.

    The kernel prints "infiniband rxe0: ...", too.  dmesg names no host; of its times, only that of
    --time-format iso looks like a journal's, but has a comma.
    """
    if host["tag"] == "kernel" or host["pid"]:
        return True
    if time["iso"]:
        return "," not in time["iso"]
    return not (time["boot"] or time["bracketed"])


_BLOCK = 1 << 16
_BATCH = 1024


class _Lines(Iterable[str]):
    """The lines of a file, read once."""

    def __init__(self, file: BinaryIO) -> None:
        self.batches = _batches_of(file)
        self._lines = chain.from_iterable(self.batches)

    def __iter__(self) -> Iterator[str]:
        return self._lines


def lines_of(file: BinaryIO) -> Iterable[str]:
    """The lines of a file, cut at a limit, with ``?`` for what is no UTF-8 and no UTF-16."""
    return _Lines(file)


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lines in lists of many, each cut at the limit."""
    if isinstance(texts, _Lines):
        yield from texts.batches
        return
    rest = iter(texts)
    while lines := [line[:LINE_BYTES] for line in islice(rest, _BATCH)]:
        yield lines


def _batches_of(file: BinaryIO) -> Iterator[list[str]]:
    rest = b""
    for block in utf8_blocks(file, _BLOCK):
        whole, newline, rest = (rest + block.replace(b"\r", b"\n")).rpartition(b"\n")
        rest = rest[:LINE_BYTES]
        if newline:
            yield _decoded(whole)
    if rest:
        yield _decoded(rest)


def _decoded(lines: bytes) -> list[str]:
    """Lines, of which each is cut: one decoding of all takes less than one of each."""
    if len(lines) > LINE_BYTES:
        whole = lines.split(b"\n")
        if max(map(len, whole)) > LINE_BYTES:
            lines = b"\n".join(line[:LINE_BYTES] for line in whole)
    return lines.decode(errors="replace").replace("\ufffd", "?").split("\n")
