# SPDX-License-Identifier: Apache-2.0
"""The udev rules that set the read-ahead of bdi devices: which is in effect, and for what devices.

Follows udev(7) and src/udev/udev-rules.c of systemd: of files with one name, that of the first
folder counts, and an empty one or a link to /dev/null disables the others; files are read in the
order of their names, and each rule that matches writes its attributes at once, so the last one
wins.  A rule is matched with a device that the kernel adds; what only a running system knows, such
as the result of a program, leaves it open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.files import matching, note_unread, text
from nfsrdma_tools.host.machine import Machine

__all__ = ["FOLDERS", "KEYS", "KINDS", "ReadAheadRule", "RuleFile", "effective_files", "rules_for"]

FOLDERS = (
    "etc/udev/rules.d",
    "run/udev/rules.d",
    "usr/local/lib/udev/rules.d",
    "usr/lib/udev/rules.d",
    "lib/udev/rules.d",
)
"""In the order of their precedence."""
_ATTRIBUTE = "read_ahead_kb"
KINDS = {
    "disks": "8:0",
    "other filesystems without a disk, such as FUSE": "0:50",
    "Lustre": "lustre-ffff8881a0b1c000",
}
"""Devices of the subsystem bdi that are none of NFS, and the name of one each."""
_TOKEN = re.compile(
    r'[\s,]*([A-Z][A-Z_a-z]*)(?:\{([^}]*)\})?\s*(==|!=|\+=|-=|:=|=)\s*([ei]*)"((?:\\"|[^"])*)"'
)
# of udev(7); udev ignores a line with a key that it does not know
KEYS = frozenset(
    [
        "ACTION",
        "DEVPATH",
        "KERNEL",
        "KERNELS",
        "NAME",
        "SYMLINK",
        "SUBSYSTEM",
        "SUBSYSTEMS",
        "DRIVER",
        "DRIVERS",
        "ATTR",
        "ATTRS",
        "SYSCTL",
        "ENV",
        "CONST",
        "TAG",
        "TAGS",
        "TEST",
        "PROGRAM",
        "RESULT",
        "OWNER",
        "GROUP",
        "MODE",
        "SECLABEL",
        "RUN",
        "LABEL",
        "GOTO",
        "IMPORT",
        "OPTIONS",
    ]
)
_MOST_LINE = 16 << 10
_MOST_TEXT = 64 << 10
_MATCHES = ("==", "!=")
# of bdi devices: mm/backing-dev.c
_ATTRIBUTES = re.compile(r"(read_ahead_kb|(min|max)_(ratio|ratio_fine|bytes)|strict_limit|uevent)")
_ECHO = re.compile(r"\becho\s+(?:-n\s+)?[\"']?([0-9]+)")


class RuleFile(NamedTuple):
    """The file in effect of one name, and the files that it masks."""

    path: str
    text: str
    masked: tuple[str, ...] = ()
    """Those of them that would set the read-ahead."""


class ReadAheadRule(NamedTuple):
    """A rule that sets the read-ahead of a device.

    ``value`` is what it writes: a number in KiB, or "" for the result of ``program``.
    """

    file: str
    line: int
    value: str
    program: str
    certain: bool
    """Whether it applies to the device; False: only the running system can tell."""
    torn: bool
    """Whether the line before ends as if this one continued it, without a backslash."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _Token(NamedTuple):
    key: str
    name: str
    operator: str
    value: str


class _Rule(NamedTuple):
    """A line of a file; numbered from 1 by its last line, as in udev's messages."""

    line: int
    tokens: tuple[_Token, ...]
    torn: bool

    def value(self, key: str) -> str:
        """The value of the last token with this key; "" if there is none."""
        return next((token.value for token in reversed(self.tokens) if token.key == key), "")

    @property
    def program(self) -> str:
        return self.value("PROGRAM") or self.value("IMPORT")


def effective_files(machine: Machine) -> list[RuleFile]:
    """The files with rules for the read-ahead, and those that mask such files, in order."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for folder in FOLDERS:
        for path in matching(machine.path(folder), "*.rules"):
            by_name.setdefault(path.name, []).append((f"/{folder}/{path.name}", _text(path)))
    files = []
    for name in sorted(by_name):
        (file, text), *rest = by_name[name]
        # /lib is a link to /usr/lib on most systems
        others = {re.sub("^/lib/", "/usr/lib/", other): body for other, body in rest}
        masked = tuple(o for o, body in others.items() if _ATTRIBUTE in body and body != text)
        if _ATTRIBUTE in text or masked:
            files.append(RuleFile(file, text, masked))
    return files


def _text(path: Path) -> str:
    try:
        return text(path, "replace")[:_MOST_TEXT]
    except OSError as error:
        note_unread(error)
        return ""


def rules_for(files: list[RuleFile], device: str, *, is_nfs: bool) -> list[ReadAheadRule]:
    """The rules that set the read-ahead of a device ("0:45"), in the order of their effect."""
    attributes: list[ReadAheadRule] = []
    programs: list[ReadAheadRule] = []
    for file in files:
        run = _Run(device, is_nfs)
        for rule, certain in run.rules(_parsed(file.text)):
            for token in rule.tokens:
                setting = _set_by(file.path, rule, token, certain)
                # udev runs the programs of RUN behind all rules
                if setting:
                    (programs if token.key == "RUN" else attributes).append(setting)
    return attributes + programs


def _set_by(path: str, rule: _Rule, token: _Token, certain: bool) -> ReadAheadRule | None:
    if token.operator in _MATCHES:
        return None
    if token.key == "ATTR" and token.name == _ATTRIBUTE:
        text = token.value.strip()
        value, program = text if re.fullmatch("[0-9]+", text) else "", rule.program
    elif token.key == "RUN" and token.name in ("", "program") and _ATTRIBUTE in token.value:
        match = _ECHO.search(token.value)
        value, program = (match[1] if match else ""), token.value
    else:
        return None
    return ReadAheadRule(path, rule.line, value[:12], program, certain, rule.torn)


@lru_cache(maxsize=64)
def _parsed(text: str) -> list[_Rule]:
    """The rules of a file: udev ignores a line with an error as a whole."""
    rules = []
    joined, before = "", ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.lstrip()
        if line.startswith("#"):
            continue
        more = line.endswith("\\")
        # udev ignores a line that is too long, and so the end of it
        if len(joined) < _MOST_LINE:
            joined += line[:-1] if more else line
        if more:
            continue
        tokens = _tokens(joined) if len(joined) < _MOST_LINE else None
        if tokens:
            rules.append(_Rule(number, tokens, before.rstrip().endswith(",")))
        before, joined = joined, ""
    return rules


def _tokens(line: str) -> tuple[_Token, ...] | None:
    tokens = []
    at = 0
    while match := _TOKEN.match(line, at):
        value = match[5].replace('\\"', '"')
        if match[1] not in KEYS:
            return None
        tokens.append(_Token(match[1], match[2] or "", match[3], value))
        at = match.end()
    return tuple(tokens) if not line[at:].strip(", \t\r") else None


@dataclass
class _Run:
    """One device on its way through the rules of a file; None: only the running system knows."""

    device: str
    is_nfs: bool
    env: dict[str, str | None] = field(default_factory=dict)

    def rules(self, rules: list[_Rule]) -> Iterator[tuple[_Rule, bool]]:
        """The rules that apply, and whether that is certain."""
        certain, label, open_label = True, "", ""
        labels = {rule.value("LABEL"): place for place, rule in enumerate(rules)}
        for place, rule in enumerate(rules):
            own = rule.value("LABEL")
            if label and own != label:
                continue
            if own and own == open_label:
                certain, open_label = True, ""
            label = ""
            applies = self._applies(rule)
            if applies is False:
                continue
            known = certain and applies is True
            self._assign(rule, known)
            yield rule, known
            target = rule.value("GOTO")
            if target and labels.get(target, 0) > place:
                if applies and certain:
                    label = target
                else:
                    certain, open_label = False, open_label or target

    def _applies(self, rule: _Rule) -> bool | None:
        applies: bool | None = True
        for token in rule.tokens:
            matches = self._matches(token)
            if matches is False:
                return False
            applies = applies and matches
        return applies

    def _assign(self, rule: _Rule, known: bool) -> None:
        for token in rule.tokens:
            if token.key == "ENV" and token.operator not in _MATCHES:
                self.env[token.name] = token.value if known else None

    def _matches(self, token: _Token) -> bool | None:
        program = token.key == "PROGRAM" or (token.key, token.name) == ("IMPORT", "program")
        if token.operator not in _MATCHES and not program:
            return True
        matches = self._runs(token.value) if program else self._equals(token)
        return matches if token.operator != "!=" or matches is None else not matches

    def _runs(self, program: str) -> bool | None:
        """Whether a program succeeds: one that looks for NFS does, for a device of NFS."""
        if "nfsrdma" in program:
            # ours, for the mounts that nfsrdma tune has a value for
            return None if self.is_nfs else False
        return self.is_nfs if "nfs" in program.lower() else None

    def _equals(self, token: _Token) -> bool | None:
        key, name, value = token.key, token.name, token.value
        known = {
            "ACTION": "add",
            "SUBSYSTEM": "bdi",
            "SUBSYSTEMS": "bdi",
            "KERNEL": self.device,
            "KERNELS": self.device,
            "DEVPATH": f"/devices/virtual/bdi/{self.device}",
            **dict.fromkeys(("DRIVER", "DRIVERS", "NAME", "SYMLINK"), ""),
        }
        if key in known:
            return _fits(value, known[key])
        if key == "ENV":
            text = {"ACTION": "add", "SUBSYSTEM": "bdi", "DEVTYPE": "", **self.env}.get(name)
            return None if text is None else _fits(value, text)
        if key in ("ATTR", "ATTRS") and not _ATTRIBUTES.fullmatch(name):
            # without the attribute, neither == nor != matches
            return token.operator == "!="
        if key in ("ATTR", "ATTRS") and value in ("*", "?*"):
            return True
        return None


def _fits(pattern: str, text: str) -> bool:
    """Whether one of the patterns matches; they are separated by |."""
    return any(
        fnmatchcase(text, alternative.replace("[^", "[!")) for alternative in pattern.split("|")
    )
