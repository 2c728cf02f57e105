# SPDX-License-Identifier: Apache-2.0
"""Replaces the addresses, host names and paths in a bundle, each by the same one everywhere.

Two addresses that share a prefix share one of the same length afterwards (as Crypto-PAn does, "On
the design and performance of prefix-preserving IP traffic trace anonymization", 2001), so routes
stay as they are; the first octet of an IPv4 address, and the first two of an IPv6 address, remain.
Names and folders are numbered in the order of the alphabet.  The key is random, and kept nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nfsrdma_tools.command import Result
from nfsrdma_tools.host.bundle import Bundle, LeftOut
from nfsrdma_tools.host.nfs import fstab, mountinfo, units
from nfsrdma_tools.host.nfs.mounts import Target

__all__ = ["Words", "anonymized"]

_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_MAC = re.compile(
    r"(?<![\w:])((?:[0-9A-Fa-f]{2}:){3})((?:[0-9A-Fa-f]{2}:){2}[0-9A-Fa-f]{2})(?![\w:])"
)
# of IPoIB: four octets of flags and queue pair, and the GID of the port
_IPOIB = re.compile(
    r"(?<![\w:])((?:[0-9A-Fa-f]{2}:){4})((?:[0-9A-Fa-f]{2}:){15}[0-9A-Fa-f]{2})(?![\w:])"
)
_GUID = re.compile(r"(?<![\w:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])")
# the address of a line in /proc/fs/nfsfs/volumes and servers
_HEX_ADDRESS = re.compile(r"^(v\d )([0-9a-f]{32}|[0-9a-f]{8})(?= )", re.MULTILINE)
_COMMON = frozenset(
    {"data", "etc", "export", "exports", "home", "media", "mnt", "nfs", "nfs4", "opt", "pool"}
    | {"proc", "run", "scratch", "srv", "sys", "tmp", "usr", "var", "lib", "log"}
    | {"pods", "kubelet", "volumes", "plugins"}
)
"""Folders whose names say nothing about their owner."""
_SYSTEM = frozenset({"boot", "etc", "lib", "proc", "run", "sbin", "sys", "usr"})
_KEPT_NAMES = frozenset(("localhost", "*", ""))


def anonymized(bundle: Bundle) -> Bundle:
    """A copy of a bundle without the addresses, names and paths of its host."""
    words = Words(os.urandom(32), *_names(bundle))
    notes = bundle.notes
    return Bundle(
        files={
            words.text(name): os.fsencode(words.file(name, os.fsdecode(data)))
            if not name.endswith(".gz")
            else data
            for name, data in bundle.files.items()
        },
        links={
            words.text(f"/{name}")[1:]: words.text(target) for name, target in bundle.links.items()
        },
        notes=replace(
            notes,
            programs={
                tuple(map(words.text, argv)): result and _result(result, words)
                for argv, result in notes.programs.items()
            },
            addresses={
                words.text(name): list(map(words.text, addresses))
                for name, addresses in notes.addresses.items()
            },
            facts={name: words.text(value) for name, value in notes.facts.items()},
        ),
        left_out=[LeftOut(words.text(one.what), words.text(one.why)) for one in bundle.left_out],
    )


def _result(result: Result, words: Words) -> Result:
    argv = tuple(map(words.text, result.argv))
    texts = words.text(result.stdout), words.text(result.stderr)
    return result._replace(argv=argv, stdout=texts[0], stderr=texts[1])


def _names(bundle: Bundle) -> tuple[set[str], set[str]]:
    """The host names and the paths in a bundle."""
    texts = {name: os.fsdecode(data) for name, data in bundle.files.items()}
    hosts, paths = {platform.node()}, set[str]()
    for source, directory in _mounts(texts):
        target = Target.of(source)
        hosts.add(target.host)
        paths |= {target.path, directory}
    for name, text in texts.items():
        if name.startswith(("etc/exports", "var/lib/nfs/etab")):
            for fields in (row.split() for row in text.splitlines() if not row.startswith("#")):
                paths |= set(fields[:1])
                hosts |= {word.partition("(")[0] for word in fields[1:]}
    for row in texts.get("etc/hosts", "").splitlines():
        hosts |= set(row.partition("#")[0].split()[1:])
    hosts |= set(bundle.notes.addresses)
    for name, link in bundle.links.items():
        # to a mount point
        if name.partition("/")[0] not in _SYSTEM:
            paths |= {f"/{name}", link}
    return hosts, paths


def _mounts(texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The source and the mount point of each NFS mount in these files."""
    for entry in mountinfo.parse(texts.get("proc/self/mountinfo", "")):
        if entry.is_nfs:
            yield entry.source, str(entry.directory)
    for line in fstab.nfs_lines(texts.get("etc/fstab", "")):
        yield line.source, str(line.directory)
    for name, text in texts.items():
        if name.endswith(".mount"):
            yield units.setting(text, "Mount", "What"), units.setting(text, "Mount", "Where")
    for row in json.loads(texts.get("var/lib/nfsrdma/tune.json", '{"mounts": []}'))["mounts"]:
        yield "", str(row["directory"])


class Words:
    """Replaces words, each by the same one."""

    def __init__(self, key: bytes, hosts: set[str], paths: set[str]) -> None:
        self._key = key
        self._words: dict[str, str] = {}
        # a name and its first label name one host
        labels = sorted({host.partition(".")[0] for host in hosts if _is_name(host)})
        numbered = {label: f"host-{number}" for number, label in enumerate(labels, 1)}
        for host in filter(_is_name, hosts):
            label, dot, _ = host.partition(".")
            self._words[host] = numbered[label] + (".example.com" if dot else "")
        folders = sorted({part for path in paths for part in path.split("/")} - _COMMON - {""})
        self._folders = {part: f"dir-{number}" for number, part in enumerate(folders, 1)}
        self._paths = {path: self._path(path) for path in paths if path.count("/") > 0}
        self._pattern = _any_of(self._words, r"(?<![\w.-])", r"(?![\w-]|\.\w)")
        named = {_unit(old): _unit(new) for old, new in self._paths.items()}
        octal = {_octal(old): new for old, new in self._paths.items()}
        self._replaced = {**self._paths, **octal, **named}
        self._path_pattern = _any_of(self._replaced, r"(?<![\w.-])", r"(?![\w-])")

    def _path(self, path: str) -> str:
        return "/".join(self._folders.get(part, part) for part in path.split("/"))

    def file(self, name: str, text: str) -> str:
        """The text of a file."""
        if name in ("proc/fs/nfsfs/volumes", "proc/fs/nfsfs/servers"):
            text = _HEX_ADDRESS.sub(self._hexadecimal, text)
        return self.text(text)

    def text(self, text: str) -> str:
        """A text with all its words replaced."""
        text = self._path_pattern.sub(lambda match: self._replaced[match[0]], text)
        text = self._pattern.sub(lambda match: self._words[match[0]], text)
        text = _IPOIB.sub(self._hardware_address, text)
        text = _MAC.sub(lambda match: match[1] + self._digits(match[2]), text)
        text = _IPV6.sub(self._address, text)
        text = _GUID.sub(lambda match: self._digits(match[0]), text)
        return _IPV4.sub(self._address, text)

    def _digits(self, text: str) -> str:
        if not text.strip("0:"):
            return text
        digest = iter(hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest())
        return "".join(":" if character == ":" else next(digest) for character in text)

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        changed = self._changed(address)
        # sysfs prints the GIDs of a port in full, with leading zeros
        return changed.exploded if len(match[0]) == 39 else str(changed)

    def _hardware_address(self, match: re.Match[str]) -> str:
        gid = ipaddress.ip_address(bytes.fromhex(match[2].replace(":", "")))
        return f"{match[1]}{self._changed(gid).packed.hex(':')}"

    def _hexadecimal(self, match: re.Match[str]) -> str:
        changed = self._changed(ipaddress.ip_address(bytes.fromhex(match[2])))
        return f"{match[1]}{changed.packed.hex()}"

    def _changed(self, address: Any) -> Any:
        mapped = address.version == 6 and address.ipv4_mapped
        if mapped:
            return ipaddress.IPv6Address(f"::ffff:{self._changed(mapped)}")
        mask = str(address).startswith("255.")
        if address.is_unspecified or address.is_loopback or address.is_multicast or mask:
            return address
        bits = 32 if address.version == 4 else 128
        number, result = int(address), 0
        for at in range(bits):
            bit = number >> (bits - 1 - at) & 1
            prefix = f"{bits}:{at}:{number >> (bits - at)}".encode()
            if at >= bits // 4 // (1 if bits == 32 else 2):
                bit ^= hmac.new(self._key, prefix, hashlib.sha256).digest()[0] & 1
            result = result << 1 | bit
        return type(address)(result)


def _is_name(host: str) -> bool:
    if host in _KEPT_NAMES or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", host):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _any_of(words: dict[str, str], before: str, after: str) -> re.Pattern[str]:
    # the longest first: a path may begin with another one
    ordered = sorted(words, key=len, reverse=True)
    choice = "|".join(map(re.escape, ordered)) or r"(?!)"
    return re.compile(f"{before}(?:{choice}){after}")


def _octal(path: str) -> str:
    """A path as mountinfo and fstab have it."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in path)


def _unit(path: str) -> str:
    return units.unit_name(path).removesuffix(".mount")
