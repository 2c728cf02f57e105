# SPDX-License-Identifier: Apache-2.0
"""Replaces the addresses, host names and paths in a bundle, each by the same one everywhere.

Two addresses that share a prefix share one of the same length afterwards (as Crypto-PAn does, "On
the design and performance of prefix-preserving IP traffic trace anonymization", 2001), so routes
stay as they are; the first octet of an IPv4 address, and the first two of an IPv6 address, remain.
Names and folders are numbered in the order of the alphabet.  The key is random, and kept nowhere.
Free text that no reader uses is removed: comments, descriptions, aliases.
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
from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.nfs import fstab, mountinfo, units
from nfsrdma_tools.host.nfs.mounts import Target

__all__ = ["Words", "anonymized"]

_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
# not the beginning of ::ffff:192.0.2.1
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:]|\.\d)")
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
_COMMON_HOSTS = frozenset(
    {"accept", "all", "auto", "chain", "client", "clients", "data", "default", "defaults", "dev"}
    | {"device", "drop", "files", "hard", "host", "input", "ip", "kernel", "link", "mount", "name"}
    | {"nas", "nfs", "nfs3", "nfs4", "nfsd", "nfsrdma", "none", "port", "rdma", "ro", "rpcrdma"}
    | {"rw", "server", "servers", "soft", "storage", "store", "sunrpc", "svcrdma", "sys", "table"}
    | {"tcp", "type", "udp"}
)
"""Labels of hosts that say nothing about their owner, and words of formats and messages."""
_SYSTEM = frozenset({"boot", "etc", "lib", "proc", "run", "sbin", "sys", "usr"})
_KEPT_NAMES = frozenset(("localhost", "*", ""))
_EXPORTS_D = "etc/exports.d/"
# the builder in parentheses, of a kernel that somebody built
_BUILDER = re.compile(r"\([^()\s]+@[^()\s]+\)")
_COMMENT = re.compile(r"^([ \t]*[#;]).*?(\\?)$", re.MULTILINE)
_COMMENT_BEHIND = re.compile(r"([ \t]#).*$", re.MULTILINE)
_WITH_COMMENTS_BEHIND = ("etc/hosts", "etc/fstab", "etc/exports")
_DESCRIPTION = re.compile(r"^((?:Description|Documentation)[ \t]*=).*$", re.MULTILINE)
_TEXT_IN_RULE = re.compile(r"((?:comment|prefix) )(?:\"[^\"]*\"|\S+)")
_TEXT_OF_LINK = re.compile(r'("(?:ifalias|phys_port_id|phys_switch_id)": ?")(?:[^"\\]|\\.)*')
_HOME = re.compile(r"/home/[^/\s:'\"]+")
# names in configuration: host= of nfs.conf, sections of nfsmount.conf, referrals of exports(5)
_CONFIGURED = re.compile(r"^[ \t]*host[ \t]*=(.*)$|\[[ \t]*Server[ \t]*\"([^\"]*)\"", re.M | re.I)
_EXPORT = re.compile(r'^[ \t]*(?:"([^"\n]*)"|([^\s#]\S*))([^\n]*)', re.MULTILINE)
_REFERRAL = re.compile(r"\b(?:refer|replicas)=([^,)\s]+)")
# "2026-11-26T17:12:14+0000 node7 kernel: ..." and "... on NFSv4 server filer7"
_JOURNAL_HOST = re.compile(r"^\d{4}-\S+ (\S+) [\w./-]+(?:\[\d+\])?: ", re.MULTILINE)
_SERVER = re.compile(r"\bserver ([\w.-]*\w)")


def anonymized(bundle: Bundle) -> Bundle:
    """A copy of a bundle without the addresses, names and paths of its host."""
    words = Words(os.urandom(32), *_names(bundle))
    notes, drop_ins = bundle.notes, [name for name in bundle.files if name.startswith(_EXPORTS_D)]
    renamed = {name: f"{_EXPORTS_D}{number}.exports" for number, name in enumerate(drop_ins, 1)}
    return Bundle(
        files={
            renamed.get(name) or words.text(f"/{name}")[1:]: data
            if name.endswith(".gz")
            else os.fsencode(words.file(name, os.fsdecode(data)))
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
    texts = words.text(_without_free_text(result)), words.text(result.stderr)
    return result._replace(argv=argv, stdout=texts[0], stderr=texts[1])


def _without_free_text(result: Result) -> str:
    """The output of a program without texts that an administrator has chosen."""
    if result.argv[0] in ("nft", "iptables-legacy-save"):
        return _TEXT_IN_RULE.sub(r'\1""', result.stdout)
    return _TEXT_OF_LINK.sub(r"\1", result.stdout) if result.argv[0] == "ip" else result.stdout


def _names(bundle: Bundle) -> tuple[set[str], set[str]]:
    """The host names and the paths in a bundle."""
    texts = {name: os.fsdecode(data) for name, data in bundle.files.items()}
    hosts, paths = {platform.node(), *bundle.notes.addresses}, set[str]()
    for source, directory in _mounts(texts):
        target = Target.of(source)
        # mount.nfs takes several
        hosts |= set(target.host.split(","))
        paths |= {target.path, directory}
    for host, path in _exported(texts):
        hosts.add(host)
        paths.add(path)
    hosts |= set(_configured(texts))
    for text in _outputs(bundle):
        hosts |= set(_JOURNAL_HOST.findall(text))
        paths |= set(_HOME.findall(text))
    for name, link in bundle.links.items():
        # to a mount point
        if name.partition("/")[0] not in _SYSTEM:
            paths |= {f"/{name}", link}
    return hosts | _servers_in_logs(bundle), paths


def _configured(texts: dict[str, str]) -> Iterator[str]:
    """The names in /etc/hosts and in the configuration of NFS."""
    for row in texts.get("etc/hosts", "").splitlines():
        yield from row.partition("#")[0].split()[1:]
    for name, text in texts.items():
        if name.startswith(("etc/nfs", "usr/etc/nfs")):
            for pair in _CONFIGURED.findall(text):
                yield from re.split(r"[,\s]+", "".join(pair))


def _exported(texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The clients and the directories of exports, and the places that they refer to."""
    for name, text in texts.items():
        if not name.startswith(("etc/exports", "var/lib/nfs/etab")):
            continue
        for match in _EXPORT.finditer(text):
            yield "", match[1] or match[2]
            yield from ((word.partition("(")[0], "") for word in match[3].split())
        for place in ":".join(_REFERRAL.findall(text)).split(":"):
            path, *names = re.split("[@+]", place)
            yield from ((host, path) for host in names)


def _outputs(bundle: Bundle) -> Iterator[str]:
    """The facts, and what programs got and printed."""
    yield from bundle.notes.facts.values()
    for argv, result in bundle.notes.programs.items():
        yield "\n".join(argv)
        if result:
            yield result.stdout
            yield result.stderr


def _servers_in_logs(bundle: Bundle) -> set[str]:
    """The servers in messages of the log; others than in mounts, if these have gone."""
    found = set()
    for argv, result in bundle.notes.programs.items():
        if result and argv[0] in ("dmesg", "journalctl"):
            subjects = {entry.subject for entry in explain(result.stdout.split("\n"))}
            found |= subjects.intersection(_SERVER.findall(result.stdout))
    return found


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
        known = {host.lower() for host in hosts if _is_name(host)}
        labels = sorted({host.partition(".")[0] for host in known} - _COMMON_HOSTS)
        self._labels = {label: f"host-{number}" for number, label in enumerate(labels, 1)}
        for host in known - _COMMON_HOSTS:
            label, dot, _ = host.partition(".")
            name = self._labels.get(label, label)
            self._words[host] = f"{name}.example.com" if dot else name
        folders = sorted({part for path in paths for part in path.split("/")} - _COMMON - {""})
        self._folders = {part: f"dir-{number}" for number, part in enumerate(folders, 1)}
        self._paths = {path: self._path(path) for path in paths if path.count("/") > 0}
        self._pattern = _any_of(self._words, r"(?<![\w.-])", r"(?![\w-]|\.\w)", re.I)
        # the same host with a domain
        self._longer = _any_of(self._labels, r"(?<![\w./-])(", r")(?:\.[A-Za-z0-9][\w-]*)+", re.I)
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
        if name == "proc/version":
            text = _BUILDER.sub("(builder)", text)
        if not name.startswith(("proc/", "sys/")):
            text = _DESCRIPTION.sub(r"\1", _COMMENT.sub(r"\1\2", text))
        if name.startswith(_WITH_COMMENTS_BEHIND):
            text = _COMMENT_BEHIND.sub(r"\1", text)
        return self.text(text)

    def text(self, text: str) -> str:
        """A text with all its words replaced."""
        text = self._path_pattern.sub(lambda match: self._replaced[match[0]], text)
        text = self._pattern.sub(lambda match: self._words[match[0].lower()], text)
        text = self._longer.sub(lambda match: f"{self._labels[match[1].lower()]}.example.com", text)
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


def _any_of(words: dict[str, str], before: str, after: str, flags: int = 0) -> re.Pattern[str]:
    # the longest first: a path may begin with another one
    ordered = sorted(words, key=len, reverse=True)
    choice = "|".join(map(re.escape, ordered)) or r"(?!)"
    return re.compile(f"{before}(?:{choice}){after}", flags)


def _octal(path: str) -> str:
    """A path as mountinfo and fstab have it."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in path)


def _unit(path: str) -> str:
    return units.unit_name(path).removesuffix(".mount")
