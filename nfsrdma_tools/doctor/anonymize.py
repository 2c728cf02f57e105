# SPDX-License-Identifier: Apache-2.0
"""An anonymized bundle: what leaves is what a grammar knows, everything else is a placeholder.

Each file and each program's output has a grammar, which lists its keys, options and message
templates and gives each value a type (doctor/pseudonyms.py).  Values that no type knows become
``withheld-N``, lines that no grammar knows are removed; both are counted by file.  No text is
searched for known names: a name that nobody thought of has no way out.
"""

from __future__ import annotations

import builtins
import functools
import gzip
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Union

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import kernel_changelog
from nfsrdma_tools.doctor.bundle import NEEDS_ROOT, Bundle, LeftOut
from nfsrdma_tools.doctor.bundle_documents import CUT
from nfsrdma_tools.doctor.inputs import CONTEXTS, NO_BCC
from nfsrdma_tools.doctor.pseudonyms import Pseudonyms
from nfsrdma_tools.doctor.vocabulary import (
    CERTIFICATE_FIGURES,
    CONFIG,
    MODULES,
    OPERATION,
    OPTIONS,
    WORDS,
)
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.files import NOT_REGULAR
from nfsrdma_tools.host import boot_files, packet_filter
from nfsrdma_tools.host.boot_files import SYSCTLS
from nfsrdma_tools.host.kernel_log import canonical
from nfsrdma_tools.host.kernel_log import lines as log_lines
from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump
from nfsrdma_tools.host.kernel_log.explain import WITHHELD
from nfsrdma_tools.host.kernel_log.known_message import KnownMessage
from nfsrdma_tools.host.kernel_log.lines import LogLine
from nfsrdma_tools.host.kernel_log.meanings import meaning_of, recognized
from nfsrdma_tools.host.kernel_log.records import Record, records
from nfsrdma_tools.host.kernel_log.reports import KernelReport
from nfsrdma_tools.host.machine import Recording
from nfsrdma_tools.host.nfs import mountinfo, udev_rules
from nfsrdma_tools.host.nfsd import ganesha, other_servers
from nfsrdma_tools.host.nfsd.configuration import version_order
from nfsrdma_tools.host.nfsd_status import REASONS, NfsdStatus, PendingList, Socket
from nfsrdma_tools.host.rdma.ports import Device, Link, NoRdmaError

__all__ = ["anonymized"]

_Json = Union[bool, int, float, str, list["_Json"], dict[str, "_Json"], None]
_COUNTERS = re.compile(
    r"(?P<before>[ \t]*)(?P<name>[A-Z][A-Z0-9_]{0,31})(?P<behind>:(?: +[0-9]{1,20}){1,16} *)"
)
_STRERROR = frozenset(os.strerror(number) for number in range(1, 134))
_OF_ERRNO = re.compile(f"({'|'.join(map(re.escape, sorted(_STRERROR, key=len, reverse=True)))})")


def anonymized(bundle: Bundle, key: bytes = b"") -> Bundle:
    """A copy of a bundle that has only what a grammar knows; ``withheld`` counts the rest.

    ``key`` decides the placeholders; without one, no two copies have the same ones.
    """
    return _Anonymizer(Pseudonyms(key or os.urandom(32))).bundle(bundle)


class _Anonymizer:
    """The grammars of one bundle's files; they share the placeholders."""

    def __init__(self, names: Pseudonyms) -> None:
        self._p = names

    def bundle(self, bundle: Bundle) -> Bundle:
        p = self._p
        self._order(bundle)
        withheld: dict[str, int] = {}
        files: dict[str, bytes] = {}
        for name, data in bundle.files.items():
            new = p.file(name)
            before = p.withheld
            files[new] = self._file(name, data)
            if p.withheld > before:
                withheld[new] = p.withheld - before
        programs: dict[tuple[str, ...], Result | None] = {}
        for argv, result in bundle.notes.programs.items():
            before = p.withheld
            changed = self._argv(argv)
            programs[changed] = result and self._result(result, changed)
            if p.withheld > before:
                withheld[changed[0]] = withheld.get(changed[0], 0) + p.withheld - before
        notes = bundle.notes
        return Bundle(
            files=files,
            links={
                self._link(name): self._link(target, name) for name, target in bundle.links.items()
            },
            notes=replace(
                notes,
                programs=programs,
                links=self._links(notes),
                nfsd=self._nfsd(notes.nfsd),
                addresses={
                    p.host(name): [p.address(address) for address in addresses]
                    for name, addresses in notes.addresses.items()
                },
                facts={name: self._fact(name, value) for name, value in notes.facts.items()},
            ),
            left_out=[
                LeftOut(self._what(omission.what), self._reason(omission.why))
                for omission in bundle.left_out
            ],
            withheld=withheld,
        )

    def _order(self, bundle: Bundle) -> None:
        """Number files of free names in the order in which their readers read them."""
        last = {name.rpartition("/")[2] for name in bundle.files}
        for suffix in (".conf", ".exports", ".rules"):
            of_kind = [name for name in last if name.endswith(suffix)]
            self._p.order(sorted(of_kind, key=version_order if suffix == ".conf" else str))

    # ---- names and links

    def _link(self, text: str, name: str = "") -> str:
        """The name or the target of a link: one to a file of the bundle, or to a mount point."""
        first = (name or text).lstrip("/").partition("/")[0]
        if first in ("sys", "proc", "etc", "lib", "lib64", "boot", "sbin", "usr", "run", "nix"):
            return self._p.file(text)
        return self._p.path(text)

    def _what(self, text: str) -> str:
        return self._p.file(text) if text.startswith("/") else self._p.word(text)

    def _reason(self, text: str) -> str:
        """Why something is left out; of another error its kind, without its text."""
        if text in (CUT, NEEDS_ROOT, NOT_REGULAR):
            return text
        self._dropped()
        kind = max((message for message in _STRERROR if message in text), key=len, default="")
        return f"the reader failed: {kind}" if kind else "the reader failed"

    def _fact(self, name: str, value: str) -> str:
        if name == "module build":
            return self._module_path(value)
        if name == CONTEXTS:
            rows = (line.rpartition(" ") for line in value.splitlines())
            return "\n".join(f"{self._p.device(device)} {int(count)}" for device, _, count in rows)
        if name == other_servers.RDMA_FACT:
            return value if not value or other_servers.known_fact(value) else self._p.unknown(value)
        known = ("runs", "missing", boot_files.READ, *other_servers.PROGRAMS)
        return value if not value or value in known else self._p.unknown(value)

    def _links(self, notes: Recording) -> list[Link] | UserError | None:
        if isinstance(notes.links, UserError):
            if not isinstance(notes.links, NoRdmaError):
                self._dropped()
                return UserError("the list of RDMA links failed")
            return NoRdmaError(_one_of(notes.links.reason, _STRERROR) or "withheld")
        if notes.links is None:
            return None
        return [self._rdma_link(link) for link in notes.links]

    def _nfsd(self, status: NfsdStatus | None) -> NfsdStatus | None:
        if status is None:
            return None
        p, pending = self._p, status.pending
        if pending:
            rpcs = tuple(
                replace(rpc, client=self._endpoint(rpc.client), server=self._endpoint(rpc.server))
                for rpc in pending.rpcs
            )
            pending = PendingList(rpcs, pending.count, self._why(pending.cut))
        return NfsdStatus(
            pool_threads=status.pool_threads,
            min_threads=status.min_threads,
            listeners=None
            if status.listeners is None
            else tuple(
                Socket(p.word(listener.transport), self._endpoint(listener.address), listener.port)
                for listener in status.listeners
            ),
            versions=None if status.versions is None else tuple(map(p.word, status.versions)),
            pool_mode=status.pool_mode and p.word(status.pool_mode),
            pending=pending,
            unknown={p.word(name): self._why(why) for name, why in status.unknown.items()},
        )

    def _endpoint(self, address: str) -> str:
        return address and self._p.address(address)

    def _why(self, text: str) -> str:
        """Why nfsd did not report something, "" if it did."""
        return _one_of(text, REASONS | _STRERROR) or self._p.words(text)

    def _rdma_link(self, link: Link) -> Link:
        p, device = self._p, link.device
        known = Device(
            index=device.index,
            name=p.device(device.name),
            ports=device.ports,
            node_type=p.word(device.node_type) if device.node_type != "ca" else "ca",
            protocol=_one_of(device.protocol, ("ib", "roce", "iw", "opa", "usnic")),
            driver=_driver(device.driver),
            firmware=p.word(device.firmware),
            node_guid=p.word(device.node_guid),
        )
        return Link(
            device=known,
            port=link.port,
            state=p.word(link.state),
            physical_state=p.word(link.physical_state),
            netdev=p.device(link.netdev),
        )

    # ---- files

    def _file(self, name: str, data: bytes) -> bytes:
        grammar = next((change for pattern, change in _FILES if re.fullmatch(pattern, name)), None)
        if not data:
            return data
        if grammar is None and data.startswith(b"#!"):
            grammar = _A._script
        if grammar is None:
            self._p.unknown(name)
            return b""
        packed = name.endswith(".gz")
        text = os.fsdecode(gzip.decompress(data) if packed else data)
        changed = os.fsencode(grammar(self, text))
        return gzip.compress(changed, mtime=0) if packed else changed

    def _dropped(self, count: int = 1) -> None:
        self._p.withheld += count

    def _lines(self, text: str, change: Callable[[str], str | None]) -> str:
        """Each line changed; one for which ``change`` returns None is removed and counted."""
        *lines, rest = text.split("\n")
        changed = []
        for line in lines:
            new = change(line) if line.strip() else ""
            if new is None:
                self._dropped()
            else:
                changed.append(f"{new}\n")
        end = (change(rest) or "") if rest.strip() else ""
        return "".join(changed) + end

    def _words(self, text: str) -> str:
        return self._p.words(text)

    def _release(self, text: str) -> str:
        return self._p.release(text) + "\n" * text.endswith("\n")

    def _hostname(self, text: str) -> str:
        name = text.strip()
        return f"{self._p.host(name)}\n" if name else ""

    def _version(self, text: str) -> str:
        match = re.match(r"Linux version (\S+)", text)
        # Debian has the version of the package here only
        package = re.search(r" #\d.* Debian (\d[\w.+~-]*)", text, re.ASCII)
        behind = f" #1 Debian {self._p.release(package[1])}" if package else ""
        return f"Linux version {self._p.release(match[1])}{behind}\n" if match else ""

    def _changelog(self, text: str) -> str:
        return kernel_changelog.anonymous(text, self._p.release)

    def _signature(self, text: str) -> str:
        return " ".join(
            word if word == "Ubuntu" else self._p.release(word) for word in text.split()
        )

    def _modules(self, text: str) -> str:
        def line(row: str) -> str | None:
            words = row.split()
            if len(words) < 6 or not words[1].isdecimal():
                return None
            users = ",".join(
                user if user in MODULES or user in ("", "-", "[permanent]") else self._module(user)
                for user in words[3].split(",")
            )
            used = words[2] if words[2].isdecimal() else "0"
            taint = words[6] if re.fullmatch(r"\([A-Z+-]{1,16}\)", " ".join(words[6:])) else ""
            state = words[4] if words[4] in ("Live", "Loading", "Unloading") else "Live"
            name = self._module(words[0])
            return f"{name} {words[1]} {used} {users} {state} 0x0 {taint}".rstrip()

        return self._lines(text, line)

    def _module(self, name: str) -> str:
        return name if name in MODULES else self._p.of("module", name).replace("-", "_")

    def _config(self, text: str) -> str:
        return self._lines(text, lambda row: row if CONFIG.fullmatch(row) else None)

    def _identifier(self, text: str) -> str:
        return f"{self._p.identifier(text.strip())}\n" if text.strip() else text

    def _module_version(self, text: str) -> str:
        return self._p.words(text)

    def _os_release(self, text: str) -> str:
        keys = ("ID", "ID_LIKE", "VERSION_ID", "VARIANT_ID", "PLATFORM_ID", "VERSION_CODENAME")

        def line(row: str) -> str | None:
            key, equals, value = row.partition("=")
            return f"{key}={self._p.words(value)}" if equals and key in keys else None

        return self._lines(text, line)

    def _mountinfo(self, text: str) -> str:
        def line(row: str) -> str | None:
            fields = row.split(" ")
            if len(fields) < 9 or "-" not in fields[6:-3]:
                return None
            end = fields.index("-", 6)
            if not re.fullmatch(r"\d+", fields[0]) or len(fields) != end + 4:
                return None
            fstype, source = fields[end + 1], mountinfo.unescape(fields[end + 2])
            nfs = fstype in ("nfs", "nfs4")
            kept = [
                *(word if re.fullmatch(r"[0-9:]{1,24}", word) else "0" for word in fields[:3]),
                self._p.path(mountinfo.unescape(fields[3])),
                self._p.path(mountinfo.unescape(fields[4])),
                self.options(fields[5]),
                *(
                    word
                    for word in fields[6:end]
                    if re.fullmatch(r"[a-z_]{4,16}(?::\d{1,9})?", word)
                    and word.partition(":")[0]
                    in ("shared", "master", "propagate_from", "unbindable")
                ),
                "-",
                fstype if fstype in _TYPES else "other",
                self._p.source(source)
                if nfs
                else source
                if source in (*_TYPES, "systemd-1")
                else "withheld",
                self.options(fields[end + 3]),
            ]
            return " ".join(kept)

        return self._lines(text, line)

    def options(self, text: str) -> str:
        """Mount options by nfs(5); values of other options, and unknown options, are withheld."""
        options = (self._option(option) for option in mountinfo.split_options(text))
        return ",".join(filter(None, options))

    def _option(self, option: str) -> str:
        name, equals, value = (mountinfo.unescape(part) for part in option.partition("="))
        if name not in OPTIONS:
            self._dropped()
            return ""
        if not equals:
            return name
        return f"{name}={self._option_value(name, value)}"

    def _option_value(self, name: str, value: str) -> str:
        p = self._p
        if name in ("addr", "clientaddr", "mountaddr", "mounthost"):
            return p.host(value)
        if name in ("remoteports", "localports"):
            parts = re.split(r"([-~+])", value)
            return "".join(part if at % 2 else p.host(part) for at, part in enumerate(parts))
        parts = re.split(r"([:,])", value)
        return "".join(
            part
            if at % 2
            or part in WORDS
            or not part
            or re.fullmatch(r"-?\d{1,12}(?:\.\d{1,6})?[A-Za-z]{0,3}", part)
            else p.unknown(part)
            for at, part in enumerate(parts)
        )

    def _mountstats(self, text: str) -> str:
        inside = False

        def line(row: str) -> str | None:
            nonlocal inside
            if row.startswith("\timpl_id:\t"):
                inside = True
                return "\timpl_id:\tname='withheld',domain='withheld',date='0,0'"
            if inside and not row.startswith(("\tcaps:\t", "device ")):
                return None
            inside = inside and not row.startswith("\tcaps:\t")
            match = re.fullmatch(
                r"device (.+) mounted on (.+) with fstype (nfs4?)( statvers=1\.\d)?", row
            )
            if match:
                source, directory = (mountinfo.unescape(part) for part in match.group(1, 2))
                return (
                    f"device {self._p.source(source)} mounted on {self._p.path(directory)}"
                    f" with fstype {match[3]}{match[4] or ''}"
                )
            if tag := re.fullmatch(r"([ \t]*opts:[ \t]*)([^ \t]*)[ \t]*", row):
                return f"{tag[1]}{self.options(tag[2])}"
            if re.fullmatch(
                r"[ \t]*(?:age|events|bytes|xprt|caps|nfsv4|sec|fsc|per-op statistics"
                r"|RPC iostats version)\b.*",
                row,
            ):
                return self._p.words(row, self._counter)
            return self._operation(row)

        return self._lines(text, line)

    def _operation(self, row: str) -> str | None:
        match = _COUNTERS.fullmatch(row)
        # a server can print such a line, too (host/nfs/mountstats.py)
        known = match and OPERATION.fullmatch(match["name"])
        if not match or known:
            return row if known else None
        return f"{match['before']}{self._p.unknown(match['name'])}{match['behind']}"

    def _counter(self, word: str) -> str:
        if re.fullmatch(
            r"(?:(?:age|events|bytes|xprt|caps|nfsv4|sec|fsc|per-op|statistics|version):?"
            r"|0x[0-9a-f]{1,8})",
            word,
        ):
            return word
        return self._p.word(word)

    def _capabilities(self, text: str) -> str:
        return self._lines(
            text, lambda row: row if re.fullmatch(r"CapEff:\s*[0-9a-f]{1,16}", row) else None
        )

    def _nfsfs(self, text: str) -> str:
        def line(row: str) -> str | None:
            words = row.split()
            if not words or words[0] == "NV":
                return self._p.words(row)
            if not re.fullmatch(r"v\d", words[0]) or len(words) < 4:
                return None
            try:
                address = bytes.fromhex(words[1])
                import ipaddress

                new = self._p.changed(ipaddress.ip_address(address)).packed.hex()
            except ValueError:
                return None
            rest = [
                word
                if re.fullmatch(r"\d{1,9}(?::\d{1,9})?|yes|no", word)
                else self._p.identifier(word).lower()[:16]
                for word in words[3:5]
            ]
            if len(words) == 5 and ":" not in words[3]:
                rest = [words[3] if words[3].isdecimal() else "0", self._p.host(words[4])]
            elif len(words) > 5:
                rest = [rest[0], "0:0", "no"]
            port = words[2] if re.fullmatch(r"[0-9a-f]{1,8}", words[2]) else "0"
            return " ".join([words[0], new, port, *rest])

        return self._lines(text, line)

    def _fstab(self, text: str) -> str:
        def line(row: str) -> str | None:
            fields = row.split()
            if len(fields) < 3 or fields[0].startswith("#"):
                return None
            source, directory = map(mountinfo.unescape, fields[:2])
            fstype = fields[2] if fields[2] in ("nfs", "nfs4", "auto") else None
            if not fstype:
                return None
            rest = [number if number.isdecimal() else "0" for number in fields[4:6]]
            opts = [self.options(fields[3]) or "defaults"] if len(fields) > 3 else []
            return " ".join([self._p.source(source), self._p.path(directory), fstype, *opts, *rest])

        return self._lines(text, line)

    def _nfsmount_conf(self, text: str) -> str:
        def line(row: str) -> str | None:
            head = row.strip()
            if section := re.fullmatch(r'\[\s*(\w+)\s*(?:"([^"]*)")?\s*\]', head):
                name = section[1].lower()
                if name == "server":
                    return f'[ Server "{self._p.host(section[2] or "")}" ]'
                if name == "mountpoint":
                    return f'[ MountPoint "{self._p.path(section[2] or "")}" ]'
                return head if name == "nfsmount_global_options" and not section[2] else None
            key, equals, value = (part.strip() for part in head.partition("="))
            known = key.lower() if key.lower() in OPTIONS else key.lower().removeprefix("default")
            if head.startswith(("#", ";")) or known not in OPTIONS:
                return None
            return f"{key}={self._option_value(known, value)}" if equals else key

        return self._lines(text, line)

    def _unit(self, text: str) -> str:
        def line(row: str) -> str | None:  # noqa: PLR0911 -- a case for each kind of line
            if re.fullmatch(r"\[(?:Unit|Mount|Install|Automount|Service)\]", row.strip()):
                return row.strip()
            key, equals, value = (part.strip() for part in row.partition("="))
            if not equals or key not in ("What", "Where", "Type", "Options", "SourcePath"):
                return None
            if key == "What":
                return f"What={self._p.source(value)}"
            if key == "Where":
                return f"Where={self._p.path(value)}"
            if key == "Options":
                return f"Options={self.options(value)}"
            if key == "SourcePath":
                return f"SourcePath={'/etc/fstab' if value == '/etc/fstab' else 'withheld'}"
            return f"Type={value if value in _TYPES else 'other'}"

        return self._lines(text.replace("\\\n", " "), line)

    def _service(self, text: str) -> str:
        def line(row: str) -> str | None:
            if re.fullmatch(r"\[(?:Unit|Service|Install)\]", row.strip()):
                return row.strip()
            key, equals, value = (part.strip() for part in row.partition("="))
            if key in ("Wants", "Requires", "BindsTo", "Upholds", "WantedBy"):
                return f"{key}={' '.join(map(self._p.unit, value.split()))}"
            if not equals or not re.fullmatch(
                r"Exec(?:Start|StartPre|StartPost|Stop|Reload)"
                r"|Environment(?:File)?",
                key,
            ):
                return None
            return f"{key}={self._command(value)}"

        return self._lines(text.replace("\\\n", " "), line)

    def _command(self, text: str) -> str:
        if re.search(r"\blink\s+add\b", text):
            return self._p.command(text, self._link_word)
        is_mount = re.search(r"\bmount\b", text)
        return self._p.command(text, self._mount_word if is_mount else self._argument_word)

    def _mount_word(self, word: str) -> str:
        """A word of a command that mounts: a path or source of a mount, or the program."""
        if word.startswith("/") and word.rpartition("/")[2] not in ("mount", "nfsrdma", "sh"):
            return word if word in WORDS else self._p.path(word)
        return self._p.source(word) if ":/" in word else self._argument_word(word)

    def _link_word(self, word: str) -> str:
        """A word of a command that adds a soft link: its names are those of devices."""
        if word in WORDS or word == "%i" or not re.fullmatch(r"\w[\w.-]*", word):
            return word if word == "%i" else self._argument_word(word)
        return self._p.device(word)

    def _script(self, text: str) -> str:
        # a reader knows a script by its first line
        first, newline, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
        return f"{first and '#!/bin/sh'}{newline}{self._lines(rest, self._command)}"

    def _module_list(self, text: str) -> str:
        # a bundle has known modules only
        return self._lines(text, lambda row: self._module(row.strip().replace("-", "_")))

    def _sysctl(self, text: str) -> str:
        def line(row: str) -> str | None:
            key, _, value = (part.strip() for part in row.partition("="))
            name = key.removeprefix("-").replace("/", ".")
            return f"{name} = {self._p.words(value)}" if name in SYSCTLS else None

        return self._lines(text, line)

    def _shell(self, text: str) -> str:
        def line(row: str) -> str | None:
            match = re.fullmatch(r"\s*(?:export\s+)?(\w+)=(.*)", row)
            if not match or match[1] not in WORDS:
                return None
            value = re.split(r"\s#", match[2])[0]
            return f"{match[1]}={self._p.words(value, self._argument_word)}"

        return self._lines(text, line)

    def _argument_word(self, word: str) -> str:
        # -r of rpc.nfsd decides what it listens on; one letter is no name
        if re.fullmatch("-[A-Za-z]", word):
            return word
        # the file of a program or a script has the same name in the bundle
        is_file = re.fullmatch(r"(?:/[\w.+@-]+){2,}", word)
        return self._p.file(word) if is_file else self._p.word(word)

    def _nfs_conf(self, text: str) -> str:
        section = ""

        def line(row: str) -> str | None:
            nonlocal section
            head = row.strip()
            if match := re.fullmatch(r"\[\s*([\w-]+)\s*(\"[^\"]*\")?\s*\].*", head):
                section = match[1].lower()
                mark = ' "withheld"' if match[2] else ""
                name = section if section in _SECTIONS else self._p.unknown(section)
                return f"[{name}{mark}]"
            key, equals, value = (part.strip() for part in head.partition("="))
            if not equals or head[0] in "#;":
                return None
            name = key.lower()
            if section == "environment" and name != "include":
                return f"{self._variable_of_conf(name)}={self._setting('', value)}"
            if name not in _KEYS:
                return None
            return f"{key}={self._setting(name, value)}"

        return self._lines(text.replace("\\\n", "  "), line)

    def _setting(self, key: str, value: str) -> str:
        p = self._p
        quote = value[:1] if value[:1] in ("'", '"') and value[:1] in value[1:] else ""
        if quote:
            return f"{quote}{self._setting(key, value[1:].partition(quote)[0])}{quote}"
        if value[:1] in ("'", '"'):
            # a quote that is not closed
            return f"{value[0]}withheld"
        plain = re.split(r"[#;]", value, maxsplit=1)[0].strip()
        if plain.startswith("$"):
            return f"${self._variable_of_conf(plain[1:])}"
        if key in ("host", "name", "scope"):
            return re.sub(r"[^,\s]+", lambda match: p.host(match[0]), plain)
        if key == "include":
            # "-" before the name: the file may be missing
            optional = "-" * plain.startswith("-")
            return optional + p.file(plain.removeprefix("-"))
        # a realm of digits is no number
        change = p.command if key in _NAMES else p.words
        return p.path(plain) if plain.startswith("/") else change(plain)

    def _variable_of_conf(self, name: str) -> str:
        # those of /etc/sysconfig/nfs, which nfs.conf of SUSE includes; case does not count
        return name.upper() if name.upper() in WORDS else self._p.of("variable", name.lower())

    def _exports(self, text: str) -> str:
        def line(row: str) -> str | None:
            match = re.fullmatch(r'\s*(?:"([^"]*)"|([^\s#"]\S*))(\s*)(.*)', row)
            if not match:
                return None
            path = self._p.path(mountinfo.unescape(match[1] or match[2]))
            clients = re.split(r"\s#", match[4])[0]
            words = re.findall(r"[^\s()]*\([^)]*\)|\S+", clients)
            return f"{path}{match[3] or ' '}{' '.join(map(self._client, words))}"

        return self._lines(text.replace("\\\n", " "), line)

    def _client(self, text: str) -> str:
        if text.startswith("-"):
            return f"-{self._export_options(text[1:])}"
        client, bracket, options = text.partition("(")
        if client.startswith("gss/"):
            name = client if client in ("gss/krb5", "gss/krb5i", "gss/krb5p") else "gss/withheld"
        elif re.fullmatch(r"[\d.*]+/[\d.]+", client):
            net, _, mask = client.partition("/")
            name = f"{self._p.host(net)}/{mask}" if mask.isdecimal() else self._p.address(net)
        elif re.fullmatch(r"\d{1,3}[\d.*?\[\]-]*[*?\]][\d.*]*", client):
            name = self._p.of("host", client) + "*"
        else:
            name = self._p.host(client)
        return f"{name}({self._export_options(options.removesuffix(')'))})" if bracket else name

    def _export_options(self, text: str) -> str:
        options = []
        for option in text.split(","):
            name, equals, value = option.partition("=")
            if name in ("refer", "replicas"):
                options.append(f"{name}={':'.join(map(self._replica, value.split(':')))}")
            elif name == "fsid" and not re.fullmatch(r"root|\d{1,10}", value):
                options.append(f"fsid={self._p.identifier(value).lower()}")
            elif name in ("mp", "mountpoint"):
                options.append(f"{name}={self._p.path(value)}" if equals else name)
            elif name == "sec" and equals:
                options.append(f"sec={self._option_value(name, value)}")
            elif new := self._option(option):
                options.append(new)
        return ",".join(options)

    def _replica(self, text: str) -> str:
        path, *hosts = re.split(r"[@+]", text)
        return "@".join([self._p.path(path), "+".join(map(self._p.host, hosts))])

    def _hosts(self, text: str) -> str:
        def line(row: str) -> str | None:
            words = row.partition("#")[0].split()
            if len(words) < 2 or not (address := self._p._as_address(words[0])):
                return None
            return " ".join([address, *map(self._p.host, words[1:])])

        return self._lines(text, line)

    def _modprobe(self, text: str) -> str:
        def line(row: str) -> str | None:
            match = re.fullmatch(r"\s*(options|blacklist|softdep|install|alias)\s+(\w+)(.*)", row)
            if not match or match[2] not in MODULES:
                return None
            change = self._p.command if match[1] == "install" else self._p.words
            return f"{match[1]} {match[2]}{change(match[3])}"

        return self._lines(text, line)

    def _rules(self, text: str) -> str:
        # a number of lines counts: findings name them
        return "\n".join(map(self._rule, text.split("\n")))

    def _rule(self, line: str) -> str:
        if line.lstrip().startswith("#"):
            return "#"
        adds = re.search(r"\blink\s+add\b", line)
        return self._p.command(line, self._adding_rule_word if adds else self._rule_word)

    def _adding_rule_word(self, word: str) -> str:
        is_key = word.rstrip("+-:!") in udev_rules.KEYS or word.startswith("%")
        return self._rule_word(word) if is_key else self._link_word(word)

    def _rule_word(self, word: str) -> str:
        return (
            word
            if word
            in ("\\", "+", ":", "==", "%k", "$kernel", "%p", "+", "-n", "?", "$1", "[0-9]", "0:")
            or word.rstrip("+-:!") in udev_rules.KEYS
            else self._p.word(word)
        )

    def _address_file(self, text: str) -> str:
        return self._lines(text, self._address_line)

    def _address_line(self, text: str) -> str:
        return text if text == "<closed>" else self._p.host(text.strip())

    def _hardware_file(self, text: str) -> str:
        return self._lines(text, self._hardware_line)

    def _hardware_line(self, text: str) -> str:
        known = re.fullmatch(
            r"(?:[0-9A-Fa-f]{2}:){1,31}[0-9A-Fa-f]{2}|[0-9a-f]{4}(?::[0-9a-f]{4}){3}", text
        )
        return self._p.hardware(text) if known else self._p.word(text)

    def _devices(self, text: str) -> str:
        return re.sub(r"\S+", lambda match: self._p.device(match[0]), text)

    def _tcp(self, text: str) -> str:
        # a bundle has the listeners in this form already
        return self._lines(text, lambda row: other_servers.listening_lines(row).strip() or None)

    def _ganesha(self, text: str) -> str:
        self._dropped(len(ganesha.parse(text).includes))
        return ganesha.without_names(text)

    def _vlan(self, text: str) -> str:
        return self._p.words(
            text,
            lambda word: (
                self._p.word(word)
                if word in WORDS or not re.fullmatch(r"[\w.-]+", word) or word.isdecimal()
                else self._p.device(word)
            ),
        )

    def _tuned(self, text: str) -> str:
        rows = json.loads(text)["mounts"]
        return json.dumps(
            {
                "mounts": [
                    {
                        "directory": self._p.path(str(row["directory"])),
                        "read_ahead_kb": row["read_ahead_kb"]
                        if isinstance(row["read_ahead_kb"], int)
                        else 0,
                    }
                    for row in rows
                ]
            }
        )

    def _certificate(self, text: str) -> str:
        return self._json(text, _CERTIFICATE)

    # ---- programs

    def _argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        if argv[0] == "python3":
            return argv
        return tuple(self._argument(argv, at) for at in range(len(argv)))

    def _argument(self, argv: tuple[str, ...], at: int) -> str:  # noqa: PLR0911 -- by kind
        word = argv[at]
        if word.startswith("--unit="):
            return f"--unit={self._p.unit(word[7:])}"
        if word.endswith((".mount", ".automount")):
            return self._p.unit(word)
        if argv[0] == "rpm":
            folder, _, name = word.rpartition("/")
            return self._p.file(word) if folder and name else word
        if argv[0] == "modinfo":
            return (
                self._module_path(word)
                if "/" in word
                else word
                if word in ("modinfo", "-0", "--")
                else self._module(word)
            )
        if argv[at - 1] == "dev" and at:
            return self._p.device(word)
        if word in _ARGUMENTS or (argv[0] == "journalctl" and word.startswith(("--", "SYSLOG_"))):
            return word
        if word.startswith("--property="):
            return word
        return self._p.host(word) if argv[0] == "ip" else self._p.word(word)

    def _result(self, result: Result, argv: tuple[str, ...]) -> Result:
        program, printed = result.argv[0], result.stdout
        if program in ("dmesg", "journalctl"):
            text = self.log(printed, program)
        elif program == "rpm":
            text = self._changelog(printed)
        elif program == "modinfo":
            text = self._modinfo(printed)
        elif program == "ip":
            text = self._ip(printed)
        elif program == "systemctl":
            text = self._unit_states(printed)
        elif program in ("nft", "iptables-legacy-save", "ip6tables-legacy-save"):
            text = self._filter(printed)
        elif program == "dcb":
            text = self._json(printed, _DCB)
        elif program == "nfsconf":
            text = self._setting(result.argv[-1].lower(), printed.strip()) + "\n" * bool(printed)
        elif program == "ibv_devinfo":
            text = self._devinfo(printed)
        else:
            text = self._p.words(printed)
        change = self._traceback if argv[0] == "python3" else self._sentence
        return result._replace(argv=argv, stdout=text, stderr=change(result.stderr))

    def _sentence(self, text: str) -> str:
        """The message of a program, by its words and by the texts of errno."""
        return "".join(
            part if part in _STRERROR else self._p.words(part) for part in _OF_ERRNO.split(text)
        )

    def _traceback(self, text: str) -> str:
        """The last line of a traceback of Python: the exception, and its text if that is known."""
        if not text.strip():
            return ""
        last = one_line(text)
        name = last.partition(":")[0]
        if last == NO_BCC:
            return f"{last}\n"
        self._dropped()
        return f"{name}: withheld\n" if hasattr(builtins, name) else "withheld\n"

    def _module_path(self, path: str) -> str:
        parts = path.split("/")
        changed = []
        for at, part in enumerate(parts):
            name, dot, suffix = part.partition(".ko")
            if (
                not part
                or part in WORDS
                or (dot and name in MODULES and suffix in ("", ".xz", ".zst", ".gz"))
            ):
                changed.append(part)
            elif at and parts[at - 1] == "modules":
                changed.append(self._p.release(part))
            else:
                changed.append(self._p.of("dir", part))
        return "/".join(changed)

    def _modinfo(self, text: str) -> str:
        return "\0".join(
            filter(None, map(self._modinfo_field, text.split("\0")))
        ) + "\0" * text.endswith("\0")

    def _modinfo_field(self, field: str) -> str:  # noqa: PLR0911 -- a case for each key
        match = re.fullmatch(r"(\w+)(:\s*|=)(.*)", field.strip("\n"), re.DOTALL)
        if not match:
            self._dropped(bool(field.strip()))
            return ""
        key, between, value = match.groups()
        head = f"{key}{between}"
        if key == "filename":
            return head + ("(builtin)" if value == "(builtin)" else self._module_path(value))
        if key == "vermagic":
            release, _, rest = value.partition(" ")
            return f"{head}{self._p.release(release)} {self._p.words(rest)}"
        if key in ("srcversion",):
            return f"{head}{self._p.identifier(value)}"
        if key in ("name", "depends", "alias"):
            return head + ",".join(
                word if word in WORDS or not word else self._module(word)
                for word in value.split(",")
            )
        if key in ("intree", "retpoline"):
            return f"{head}{'Y' if value == 'Y' else 'N'}"
        if key in ("signer", "sig_id"):
            return f"{head}withheld"
        if key in ("version",):
            return f"{head}{self._p.words(value)}"
        if key == "description":
            return f"{head}{'dummy' if 'dummy' in value.lower() else 'withheld'}"
        if key == "parm":
            default = re.search(r" \(default (\d{1,10}|[YN]|)\)", value)
            name = re.fullmatch(r"([a-z_0-9]{1,40}):.*", value, re.DOTALL)
            if name and default and name[1] in WORDS:
                kind = re.search(r" \((u?int|bool|charp|u?long|u?short)\)$", value)
                return f"{head}{name[1]}:{default[0]}{kind[0] if kind else ''}"
        self._dropped()
        return ""

    def _ip(self, text: str) -> str:
        if text.lstrip()[:1] in ("[", "{"):
            return self._json(text, _IP)
        return self._p.words(text, self._ip_word)

    def _ip_word(self, word: str) -> str:
        number = re.fullmatch(r"\d{1,9}:", word)
        if (
            number
            or word in WORDS
            or word in ("RTNETLINK", "answers:", "Network", "is", "unreachable")
        ):
            return word
        if "@" in word or word.endswith(":"):
            name, at, below = word.rstrip(":").partition("@")
            lower = below if re.fullmatch(r"if\d{1,9}|NONE", below) else self._p.device(below)
            return f"{self._p.device(name)}{at}{lower}{':' * word.endswith(':')}"
        if re.fullmatch(r"[0-9A-Fa-f.:]+(?:/\d+)?", word):
            return self._p.word(word)
        return self._p.device(word)

    def _json(self, text: str, keys: dict[str, str]) -> str:
        try:
            document: _Json = json.loads(text)
        except (ValueError, RecursionError):
            self._dropped(bool(text.strip()))
            return ""
        return json.dumps(self._value(document, "", keys))

    def _value(self, value: _Json, kind: str, keys: dict[str, str]) -> _Json:
        if isinstance(value, dict):
            self._dropped(len([key for key in value if key not in keys]))
            return {
                key: self._value(member, keys[key], keys)
                for key, member in value.items()
                if key in keys
            }
        if isinstance(value, list):
            return [self._value(item, kind, keys) for item in value]
        if not isinstance(value, str):
            return value
        if kind in _EXACT and re.fullmatch(_EXACT[kind], value):
            return value
        kinds: dict[str, Callable[[str], str]] = {
            "firmware": self._p.words,
            "device": self._p.device,
            "hardware": self._hardware_line,
            "release": self._p.release,
        }
        return kinds.get(kind, self._p.word)(value)

    def _devinfo(self, text: str) -> str:
        def line(row: str) -> str | None:
            match = re.fullmatch(r"(\s*)([a-z_]+):(\s*)(.*)", row)
            if not match or match[2] not in WORDS:
                return None
            kind = self._p.device if match[2] == "hca_id" else self._words
            return f"{match[1]}{match[2]}:{match[3]}{kind(match[4].strip())}"

        return self._lines(text, line)

    def _unit_states(self, text: str) -> str:
        def line(row: str) -> str | None:
            key, equals, value = row.partition("=")
            if not equals or key not in WORDS:
                return None
            return f"{key}={self._p.unit(value) if key == 'Id' else self._p.words(value)}"

        return self._lines(text, line)

    def _filter(self, text: str) -> str:
        # the rules of a bundle are in this form already, without comments and counters
        return self._p.words(packet_filter.rules_of_input(text), self._filter_word)

    def _filter_word(self, word: str) -> str:
        if word in WORDS or re.fullmatch(
            r"\d{1,9}(?:-\d{1,9}|/(?:second|minute|hour|day|week))?", word
        ):
            return word
        if word.startswith("@"):
            return f"@{self._filter_word(word[1:])}"
        low, dash, high = word.partition("-")
        if dash and self._p.is_address(low) and self._p.is_address(high):
            return f"{self._p.address(low)}-{self._p.address(high)}"
        if re.fullmatch(r"[0-9A-Fa-f.:/-]+|0x[0-9a-f]{1,8}", word):
            return self._p.word(word)
        # a chain, a set or a device
        return self._p.device(word) if re.fullmatch(r"[\w.-]+", word) else self._p.unknown(word)

    # ---- logs

    def log(self, text: str, program: str) -> str:
        """A log by the templates of ``explain``; other lines are counted and removed."""
        lines = [line for line in text.split("\n") if line.strip()]
        changed, kept = list[str](), 0
        for record, numbers in records(lines):
            first = lines[numbers[0]]
            if isinstance(record, LogLine):
                new = self._log_line(record) or self._of_mount(first)
            else:
                new = self._log_record(record, log_lines.parsed(first))
            changed += new
            kept += len(numbers) if new else 0
        self._dropped(len(lines) - kept)
        return "\n".join(changed) + "\n" * (bool(changed) and text.endswith("\n"))

    def _of_mount(self, line: str) -> list[str]:
        """Of a message of mount.nfs that is not known, that there was one."""
        if not (program := re.match(r"(mount(?:\.nfs4?)?): ", line)):
            return []
        self._dropped()
        return [f"{program[1]}: withheld"]

    def _log_line(self, line: LogLine) -> list[str]:
        known = recognized(line)
        if not known:
            return []
        message, match = known
        line = line._replace(tag=line.tag if line.tag in _TAGS or not line.tag else "program")
        new = log_lines.printed(line, self._message(message, match))
        again = recognized(log_lines.parsed(new))
        if again and again[0] == message and _shape(again[1]) == _shape(match):
            return [new]
        self._dropped()
        return [log_lines.printed(line, WITHHELD)]

    def _log_record(self, record: KernelReport | CompletionDump, first: LogLine) -> list[str]:
        """A report or a dump in its canonical form, if that keeps its meaning."""
        if isinstance(record, KernelReport):
            texts = canonical.of_report(record, MODULES)
        elif record.complete:
            texts = canonical.of_dump(record, self._p.device(record.device))
        else:
            texts = []
        new = [log_lines.printed(first, text) for text in texts]
        again = [parsed for parsed, _ in records(new)]
        if len(again) == 1 and _says(again[0]) == _says(record):
            return new
        self._dropped()
        return [log_lines.printed(first, WITHHELD)]

    def _message(self, message: KnownMessage, match: re.Match[str]) -> str:
        """The literal text of a message's template, and each variable part by its type."""
        template = _template(message.pattern)
        text = match[0]
        parts = template.pattern.fullmatch(text) if template else None
        if not template or not parts:
            return ""
        subject = match.groupdict().get("subject") or ""
        known = subject in MODULES or subject in _STRERROR
        pieces, last = [], 0
        for number, variable in template.variables.items():
            start, end = parts.span(number)
            if start < 0:
                continue
            pieces.append(text[last:start])
            last = end
            part = text[start:end]
            is_host = variable.of_subject and variable.pattern.startswith(r"\S")
            if (known and variable.of_subject) or (_is_number(part, variable) and not is_host):
                pieces.append(text[start:end])
            else:
                pieces.append(self._variable(text[start:end], variable))
        return "".join([*pieces, text[last:]])

    def _variable(self, text: str, variable: _Variable) -> str:
        changed = self._subject(text, variable) if variable.of_subject else self._p.words(text)
        # no digit before a colon, which looks like a time
        zeros = "0" * len(text)
        for fits in (changed, re.sub(r"-(\d+)", r"_\1_", changed), "x", "x" * 8, zeros):
            if re.fullmatch(variable.pattern, fits):
                return fits
        return ""

    def _subject(self, text: str, variable: _Variable) -> str:
        if variable.pattern.startswith(r"[\w.:-]"):
            is_pci = re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text)
            return text if is_pci else self._p.device(text)
        if variable.pattern.startswith(r"\S"):
            return self._p._as_address(text) or (
                self._p.source(text)
                if ":/" in text
                else self._p.path(text)
                if text.startswith("/")
                else self._p.host(text.rstrip(":"))
            )
        return self._p.words(text)


class _Variable(NamedTuple):
    """A class of characters in a message's template, with its repetition."""

    pattern: str
    of_subject: bool


class _Template(NamedTuple):
    """A message's pattern with a group around each variable; the variables by group."""

    pattern: re.Pattern[str]
    variables: dict[int, _Variable]


_TOKENS = re.compile(
    r"(?P<variable>(?:\\[dDsSwW]|\[(?:\\.|[^]\\])+\]|\.)(?:\{[\d,]+\}|[*+?])?)"
    r"|\\.|\((?:\?:|\?P<(?P<name>\w+)>)?|.",
    re.DOTALL,
)


@functools.cache
def _template(pattern: str) -> _Template | None:
    """None of a pattern with a group that repeats: only its last text would be known."""
    # the driver and the kind of a device
    pattern = pattern.replace(r"(?:\S{1,40} ){0,2}", r"(?:\S{1,40} (?:\S{1,40} )?)?")
    if re.search(r"(?<!\\)\)[*+{]", pattern):
        return None
    made, variables, names = list[str](), dict[int, _Variable](), list[str]()
    groups = 0
    for token in _TOKENS.finditer(pattern):
        text = token[0]
        if variable := token["variable"]:
            groups += 1
            variables[groups] = _Variable(variable, "subject" in names)
            text = f"({variable})"
        elif text.startswith("("):
            names.append(token["name"] or "")
            groups += text != "(?:"
        elif text == ")":
            names.pop()
        made.append(text)
    return _Template(re.compile("".join(made)), variables)


def _is_number(text: str, variable: _Variable) -> bool:
    """Whether a variable is a number that is neither an address nor a key."""
    if variable.pattern.startswith("[0-9a-f]") and len(text) <= 6:
        return True
    return not text.strip("0123456789")


def _shape(match: re.Match[str]) -> dict[str, str | None]:
    """The groups of a message that decide its meaning; of a subject, only whether it has one."""
    return match.groupdict() | ({"subject": ""} if match.groupdict().get("subject") else {})


def _says(record: Record) -> tuple[object, ...]:
    """The parts of a record's meaning that its canonical form keeps."""
    meaning = meaning_of(record)
    return (meaning.name, meaning.severity, meaning.number, meaning.fault) if meaning else ()


def _one_of(text: str, known: Iterable[str]) -> str:
    return text if text in known else ""


def _driver(text: str) -> str:
    known = (
        "rxe",
        "siw",
        "card",
        "mlx5",
        "mlx4",
        "irdma",
        "i40iw",
        "bnxt_re",
        "qedr",
        "cxgb4",
        "hfi1",
        "erdma",
        "efa",
        "hns",
        "mana",
        "usnic",
        "vmw_pvrdma",
        "mthca",
        "ocrdma",
        "ipathverbs",
    )
    return text if text in known or not text else "other"


_TYPES = frozenset(
    [
        "nfs",
        "nfs4",
        "auto",
        "nfsd",
        "autofs",
        "rpc_pipefs",
        "debugfs",
        "overlay",
        "tmpfs",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "sysfs",
        "proc",
        "devtmpfs",
        "squashfs",
        "fuse",
        "ceph",
        "cifs",
    ]
)
_TAGS = frozenset(
    [
        "kernel",
        "rpc.nfsd",
        "mount",
        "mount.nfs",
        "mount.nfs4",
        "nfsdctl",
        "modprobe",
        "systemd-modules-load",
    ]
)
_ARGUMENTS = WORDS | frozenset(
    [
        "-0",
        "--",
        "-j",
        "-d",
        "-V",
        "+",
        "-c",
        "ip",
        "nfsdctl",
        "--boot",
        "--no-pager",
        "--quiet",
        "_TRANSPORT=kernel",
        "all",
        "table",
    ]
)
_SECTIONS = frozenset(
    [
        "nfsd",
        "mountd",
        "statd",
        "lockd",
        "general",
        "exports",
        "exportfs",
        "gssd",
        "svcgssd",
        "nfsdcld",
        "nfsdcltrack",
        "exportd",
        "environment",
        "nfsrahead",
        "sm-notify",
        "idmapd",
    ]
)
_KEYS = frozenset(
    [
        "nfs",
        "nfs4",
        "default",
        "rdma",
        "rdma-port",
        "port",
        "threads",
        "host",
        "name",
        "scope",
        "grace-time",
        "lease-time",
        "udp",
        "tcp",
        "vers2",
        "vers3",
        "vers4",
        "vers4.0",
        "vers4.1",
        "vers4.2",
        "min-threads",
        "pool-mode",
        "pipefs-directory",
        "include",
        "debug",
        "manage-gids",
        "descriptors",
        "reverse-lookup",
        "state-directory-path",
        "ha-callout",
        "cache-use-ipaddr",
        "ttl",
        "udp-port",
        "outgoing-port",
        "outgoing-addr",
        "no-notify",
        "use-memcache",
        "use-machine-creds",
        "use-gss-proxy",
        "avoid-dns",
        "limit-to-legacy-enctypes",
        "context-timeout",
        "rpc-timeout",
        "keytab-file",
        "cred-cache-directory",
        "preferred-realm",
        "cancel-timed-out-upcalls",
        "apple-tls",
        "allowed-enctypes",
        "apply-root-cred",
        "fh-key-file",
        "force",
        "idmap-verbosity",
        "lift-grace",
        "nfsv4",
        "no-netlink",
        "principal",
        "retry-time",
        "rootdir",
        "rpc-verbosity",
        "set-home",
        "storagedir",
        "upcall-timeout",
        "verbosity",
    ]
)
_NAMES = ("preferred-realm", "principal", "keytab-file", "cred-cache-directory", "fh-key-file")
"""Keys of nfs.conf whose values are names."""
_IP = {
    **dict.fromkeys(["ifname", "link", "master", "dev", "oif"], "device"),
    **dict.fromkeys(["address"], "hardware"),
    **dict.fromkeys(
        [
            "link_index",
            "ifindex",
            "mtu",
            "flags",
            "operstate",
            "link_type",
            "linkinfo",
            "info_kind",
            "info_slave_kind",
            "addr_info",
            "local",
            "prefixlen",
            "family",
            "scope",
            "dst",
            "gateway",
            "via",
            "host",
            "table",
            "type",
            "prefsrc",
            "metric",
            "pref",
            "protocol",
            "src",
        ],
        "",
    ),
}
# values of JSON by their kind; elsewhere, four numbers may be an address
_EXACT = {
    "device": r"if\d{1,9}",
    "firmware": r"\d{1,5}(?:\.\d{1,6}){1,4}",
    "card": r"[0-9a-f]{4}:[0-9a-f]{4}",
}
_CERTIFICATE = {
    **dict.fromkeys(("row", "driver", "protocol", "link_layer", "gbps", "date", "nfsrdma"), ""),
    **dict.fromkeys(("limits", "max_qp_wr", "max_sge", "max_sge_rd", "max_qp_rd_atom"), ""),
    **{"card": "card", "firmware": "firmware", "kernel": "release"},
    **dict.fromkeys(("module", "pull", "steps", "step", "over", "status", "seconds"), ""),
    **dict.fromkeys(("figures", *CERTIFICATE_FIGURES), ""),
}
_DCB = {"prio_pfc": "", **{str(number): "" for number in range(8)}}

_Grammar = Callable[[_Anonymizer, str], str]
_A = _Anonymizer
_FILES: tuple[tuple[str, _Grammar], ...] = (
    (r"proc/sys/kernel/osrelease", _A._release),
    (r"proc/sys/kernel/hostname", _A._hostname),
    (r"proc/version", _A._version),
    (r"proc/version_signature", _A._signature),
    (r"usr/share/doc/[^/]+/changelog(?:\.Debian)?\.gz", _A._changelog),
    (r"proc/modules", _A._modules),
    (r"proc/config\.gz|boot/config-.*|(?:usr/)?lib/modules/[^/]+/config", _A._config),
    (r"sys/module/.*/srcversion", _A._identifier),
    (r"proc/self/mountinfo", _A._mountinfo),
    (r"proc/self/mountstats", _A._mountstats),
    (r"proc/self/status", _A._capabilities),
    (r"proc/fs/nfsfs/(?:volumes|servers)", _A._nfsfs),
    (r"etc/fstab", _A._fstab),
    (r"(?:usr/)?etc/nfsmount\.conf(?:\.d/.*)?", _A._nfsmount_conf),
    (r".*\.service(?:\.d/.*)?", _A._service),
    (r".*\.(?:mount|automount)(?:\.d/.*)?", _A._unit),
    (r"(?:usr/)?etc/nfs\.conf.*", _A._nfs_conf),
    (r"etc/exports|etc/exports\.d/.*|var/lib/nfs/etab", _A._exports),
    (r"(?:etc|run)/(?:sysconfig|default)/.*", _A._shell),
    (re.escape(ganesha.CONF), _A._ganesha),
    (r"etc/hosts", _A._hosts),
    (r".*/os-release", _A._os_release),
    (r".*/modprobe\.d/.*", _A._modprobe),
    (r".*/modules-load\.d/.*|etc/rdma/modules/.*|etc/modules", _A._module_list),
    (r".*/sysctl\.d/.*|etc/sysctl\.conf", _A._sysctl),
    ("|".join(map(re.escape, boot_files.RC_LOCAL)), _A._script),
    (r".*\.rules", _A._rules),
    (r"var/lib/nfsrdma/tune\.json", _A._tuned),
    (r"var/lib/nfsrdma/certify\.json", _A._certificate),
    (r"sys/.*/(?:dstaddr|srcaddr)", _A._address_file),
    (r"sys/.*/address|sys/.*/node_guid|sys/.*/gids/\d+", _A._hardware_file),
    (r"sys/.*/(?:ndevs/\d+|slaves|active_slave)", _A._devices),
    (r"proc/net/vlan/.*", _A._vlan),
    (r"proc/(?:self/)?net/tcp6?", _A._tcp),
    (r"proc/.*|sys/.*|(?:run|var)/.*", _A._words),
)
"""The grammar of each file by its name; a file without one leaves empty."""
