# SPDX-License-Identifier: Apache-2.0
"""What nfs-ganesha's configuration says about RDMA.

The listener over RDMA needs ``nfsrdma`` or ``rpcrdma`` in ``Protocols`` of ``NFS_CORE_PARAM``
(core_params in src/support/nfs_read_conf.c, nfs_Init_svc in src/MainNFSD), and a build with RDMA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.nfs_ports import RDMA_PORT

__all__ = ["CONF", "Ganesha", "configured", "kept", "parse", "without_names"]

CONF = "etc/ganesha/ganesha.conf"
_MOST = 1 << 20
_BLOCK = "nfs_core_param"
_PROTOCOLS = ("protocols", "nfs_protocols")
_PORT, _VERSIONS = "nfs_rdma_port", "nfs_rdma_protocol_versions"
_KEYS = (*_PROTOCOLS, _PORT, _VERSIONS)
_OVER_RDMA = {"nfsrdma", "rpcrdma"}
_DIRECTIVES = ("%include", "%dir", "%url")
# the last one is a quote without its end
_TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\])*"|'[^']*'|[{}=,;]|[^\s{}=,;#"']+|["']""", re.DOTALL)
_VALUE = re.compile(
    r"(?:NFS)?v?(?:[34](?:\.[012])?)|9P|NONE|ALL|nfsvsock|nfsrdma|rpcrdma|\d+", re.I
)


class Ganesha(NamedTuple):
    """The parts of ganesha.conf that are about RDMA."""

    protocols: tuple[str, ...] = ()
    """As written; empty: the default, which has no RDMA."""
    port: int = RDMA_PORT
    versions: tuple[str, ...] = ()
    """NFS versions over RDMA, as written; empty: those of the release."""
    includes: tuple[str, ...] = ()
    """The files, folders and addresses that the file includes, which are not read."""
    is_cut: bool = False
    """Whether only the first MiB was read."""
    unread: str = ""
    """Why the file cannot be read; "" if it was."""

    @property
    def rdma(self) -> bool:
        """Whether the file requests a listener over RDMA."""
        named = {protocol.casefold() for protocol in self.protocols}
        versions = {version.casefold() for version in self.versions}
        return bool(named & _OVER_RDMA) and versions != {"none"}

    def __str__(self) -> str:
        """The requests in the file, and the parts that nfsrdma does not know."""
        if self.unread:
            return self.unread
        versions = f" for NFS {', '.join(self.versions)}" if self.versions else ""
        wanted = f"RDMA on port {self.port}{versions}" if self.rdma else "no RDMA"
        text = f"/{CONF} requests {wanted}"
        if not self.rdma and (self.includes or self.is_cut):
            text = f"whether /{CONF} requests RDMA is unknown"
        if self.includes:
            more = f" and {len(self.includes) - 1} more" if self.includes[1:] else ""
            text += f"; it includes {self.includes[0]}{more}, not read"
        return f"{text}; only its first MiB is read" if self.is_cut else text


def configured(machine: Machine) -> Ganesha | None:
    """The configuration of a host; None if it has none."""
    try:
        data = files.beginning(machine.path(CONF), _MOST + 1)
    except FileNotFoundError:
        why = machine.recording.unread.get(f"/{CONF}") if machine.recording else None
        return Ganesha(unread=why) if why else None
    except OSError as error:
        files.note_unread(error)
        return Ganesha(unread=machine.unreadable(error))
    if b"\0" in data:
        return Ganesha(unread=f"cannot read /{CONF}: it has NUL bytes, expected text")
    return parse(data.decode(errors="replace"))


def parse(text: str) -> Ganesha:
    """The configuration of a text, of which the first MiB counts; no text is an error."""
    values: dict[str, tuple[str, ...]] = {}
    includes: list[str] = []
    for key, words in _statements(text[:_MOST]):
        if key in _DIRECTIVES:
            includes += words[:1]
        else:
            values[key] = words
    port = "".join(values.get(_PORT, ()))
    protocols = next((values[key] for key in _PROTOCOLS if key in values), ())
    return Ganesha(
        protocols,
        int(port) if re.fullmatch(r"[0-9]{1,5}", port) else RDMA_PORT,
        values.get(_VERSIONS, ()),
        tuple(includes),
        len(text) > _MOST,
    )


def _statements(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The keys of interest in NFS_CORE_PARAM, in lower case, with their values; and directives."""
    words: list[str] = []
    blocks: list[str] = []
    for match in _TOKEN.finditer(text):
        part = match[0]
        if part[0] == "#" or part == ",":
            continue
        if part == "{":
            blocks.append(words[0].casefold() if words else "")
        elif part in "};":
            key = words[0].casefold() if words else ""
            if blocks == [_BLOCK] and key in _KEYS and words[1:2] == ["="]:
                yield key, tuple(word.strip("\"'") for word in words[2:])
            if part == "}" and blocks:
                blocks.pop()
        else:
            if words and words[-1] in _DIRECTIVES:
                yield words.pop(), (part.strip("\"'"),)
            else:
                words.append(part)
            continue
        words = []


def kept(text: str) -> str:
    """The parts of a file that ``parse`` reads, in its form; the rest may have names and keys."""
    if "\0" in text:
        # its reader says so
        return "\0"
    statements = [*_statements(text[:_MOST])]
    lines = [f'{key} "{words[0]}"' for key, words in statements if key in _DIRECTIVES]
    rows = [f"\t{key} = {', '.join(words)};" for key, words in statements if key not in _DIRECTIVES]
    block = [_BLOCK.upper() + " {", *rows, "}"] if rows else []
    return "".join(f"{line}\n" for line in (*lines, *block))


def without_names(text: str) -> str:
    """A text of ``kept`` with the words of ganesha.conf alone."""
    if "\0" in text:
        return "\0"
    parsed = parse(text)
    words = "".join('%include "withheld"\n' for _ in parsed.includes)

    def known(values: tuple[str, ...]) -> str:
        return ", ".join(value for value in values if _VALUE.fullmatch(value))

    protocols, versions = known(parsed.protocols), known(parsed.versions)
    rows = [f"protocols = {protocols};"] if protocols else []
    rows += [f"{_PORT} = {parsed.port};", f"{_VERSIONS} = {versions};" if versions else ""]
    return words + kept(f"{_BLOCK} {{ {' '.join(rows)} }}")
