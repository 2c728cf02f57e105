# SPDX-License-Identifier: Apache-2.0
"""Typed placeholders for an anonymized bundle: the same value has the same placeholder everywhere.

A value leaves as it is only if it is a number or a word of ``vocabulary``.  Addresses that share a
prefix share one of the same length afterwards (Crypto-PAn, "On the design and performance of
prefix-preserving IP traffic trace anonymization", 2001), so that routes stay as they are; the first
octet of an IPv4 address, the first two of an IPv6 address, and the prefix fe80::/64 remain.  Names
are numbered.  The key is random, and kept nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable
from typing import Union

from nfsrdma_tools.doctor.vocabulary import DEVICE, FILES, FOLDERS, RELEASE_WORDS, WORDS
from nfsrdma_tools.host.nfs import units

__all__ = ["Pseudonyms"]

_Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
_NUMBER = re.compile(
    r"[+-]?(?:0x[0-9a-fA-F]{1,8}|[0-9]{1,20}(?:[.:/-][0-9]{1,20}){0,2}%?[A-Za-z]{0,2})"
)
_HARDWARE = re.compile(r"(?:[0-9A-Fa-f]{2}:)+[0-9A-Fa-f]{2}")
_GUID = re.compile(r"[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3}")
_BARE_GUID = re.compile(r"(?:0x)?[0-9A-Fa-f]{16}")
_ADDRESS = re.compile(
    r"\[?(?P<address>[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f.:]{2,45})(?:%(?P<zone>[^\]/]+))?\]?(?P<rest>(?:/\d{1,3}|:\d{1,5})?)"
)
_KERNEL_FILE = re.compile(
    r"config-|vmlinuz-|linux-(?:image|modules|headers)-(?:unsigned-)?|(?:proxmox|pve)-kernel-"
)
# what stands between the words of a command, a rule or a message
_BETWEEN = re.compile(r"([\s,;=\"'(){}<>|&!`*]+)")
_JOINED = re.compile(r"([/:.@+\[\]$]+)")
_ADDRESS_PARTS = 4
# digits, hexadecimal or in parts, with at most what _NUMBER allows around them
_FREE_NUMBER = re.compile(r"[^A-Za-z]*(?:0x[0-9a-fA-F]+)?[^A-Za-z]*[A-Za-z]{0,2}")
_FREE_DIGITS = 4
_PRINTERS = ("awk", "echo", "sh")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MAC_OCTETS, _IPOIB_OCTETS = 6, 20
_LINK_LOCAL = ipaddress.IPv6Network("fe80::/64")


class Pseudonyms:
    """The placeholders of one bundle; ``withheld`` counts the values that no type knows."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}
        self.withheld = 0

    def of(self, kind: str, value: str) -> str:
        """The numbered placeholder of a value, such as ``dir-3``."""
        if (kind, value) not in self._known:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            self._known[kind, value] = f"{kind}-{self._numbers[kind]}"
        return self._known[kind, value]

    def unknown(self, value: str) -> str:
        """The placeholder of a value that no grammar knows; it is counted."""
        self.withheld += 1
        return self.of("withheld", value.lower())

    def identifier(self, value: str) -> str:
        """A hash, a version or a UUID as hexadecimal digits; "" stays."""
        digest = hmac.new(self._key, f"id {value}".encode(errors="surrogateescape"), hashlib.sha256)
        return digest.hexdigest()[:24].upper() if value else ""

    # ---- names

    def host(self, name: str) -> str:
        """A host name, an address, a wildcard or a netgroup."""
        if name in ("", "*", "localhost"):
            return name
        if address := self._as_address(name):
            return address
        if name.startswith("@"):
            return "@" + self.of("group", name[1:])
        label, dot, domain = name.lower().rstrip(".").partition(".")
        behind = f".{self.of('domain', domain)}.example" if dot else ""
        if label == "*":
            return f"*{behind}"
        wild = "*" if re.search(r"[*?\[]", label) else ""
        return f"{self.of('host', label)}{wild}{behind}"

    def path(self, path: str) -> str:
        """A path, each folder by itself; those whose names say nothing stay."""
        return "/".join(map(self._folder, path.split("/")))

    def _folder(self, part: str) -> str:
        return part if part in FOLDERS else self.of("dir", part)

    def source(self, text: str) -> str:
        """The source of an NFS mount: one or several hosts, and a path."""
        match = re.fullmatch(r"(\[[^\]]*\]|[^/:\[]*):(.*)", text, re.DOTALL)
        if not match:
            return self.path(text)
        hosts = match[1]
        if hosts.startswith("["):
            return f"[{self.host(hosts[1:-1])}]:{self.path(match[2])}"
        return f"{','.join(map(self.host, hosts.split(',')))}:{self.path(match[2])}"

    def device(self, name: str) -> str:
        """A network or RDMA device; one that is named by position or by a known word stays."""
        is_known = not name or name in WORDS or DEVICE.fullmatch(name)
        return name if is_known else self.of("dev", name)

    def release(self, text: str) -> str:
        """A kernel's release: its numbers, and the words of distributions."""
        parts = re.split(r"([-.+_~])", text.strip())
        return "".join(
            part if self._in_release(at, part) else self.of("x", part)
            for at, part in enumerate(parts)
        )

    def _in_release(self, at: int, part: str) -> bool:
        return bool(
            at % 2
            or part in RELEASE_WORDS
            or re.fullmatch(r"\d{0,9}(?:rc\d)?", part)
            or re.fullmatch(r"(?:el|fc|deb|bpo|pve|ubuntu|rt)\d{0,3}(?:u\d|uek)?", part)
            or re.fullmatch(
                r"(?:amzn|azl|cm|oe)\d{0,4}(?:sp\d)?|rpt\d|kali\d|exp\d|\d{6}rc\d", part
            )
        )

    def unit(self, name: str) -> str:
        """The name of a unit: of a mount its path, of a service its words if they are known."""
        if (service := re.fullmatch(r"(.+)\.(service|timer)", name)) and name not in WORDS:
            stem, at, instance = service[1].partition("@")
            shown = stem if _is_named(stem) else self.of("unit", stem)
            return f"{shown}{at}{self.device(instance)}.{service[2]}"
        match = re.fullmatch(r"(.+)\.(mount|automount)", name)
        if not match:
            return name if name in WORDS else self.of("unit", name)
        escaped = match[1].encode(errors="surrogateescape")
        path = (
            "/"
            if escaped == b"-"
            else "/" + escaped.decode(errors="surrogateescape").replace("-", "/")
        )
        path = re.sub(r"(?:\\x[0-9a-f]{2})+", _octets, path)
        return units.unit_name(self.path(path), match[2])

    def file(self, name: str) -> str:
        """The name of a file of a bundle, or the target of a link to one."""
        parts = name.split("/")
        return "/".join(self._part(parts, at) for at in range(len(parts)))

    def _part(self, parts: list[str], at: int) -> str:  # noqa: PLR0911 -- by folder
        part, above = parts[at], parts[at - 1] if at else ""
        if part in WORDS or part in FOLDERS:
            return part
        # elsewhere, a folder of digits has a name; links of the kernel begin with ".."
        of_kernel = next(filter(None, parts), "") in ("proc", "sys", "..")
        if of_kernel and _NUMBER.fullmatch(part):
            return part
        if of_kernel and re.fullmatch(
            r"(?:pci)?[0-9a-f]{2,8}(?::[0-9a-f]{2}){1,2}(?:\.[0-7])?|virtio\d{1,3}"
            r"|(?:vport|xprt)?-?\d{1,9}(?:-\w{1,8})?|xprt-\d{1,9}-(?:tcp|rdma|udp|local)"
            r"|switch-\d{1,9}|clnt-\d{1,9}",
            part,
        ):
            return part
        for prefix in ("lower_", "upper_"):
            if part.startswith(prefix):
                return prefix + self.device(part[len(prefix) :])
        if above in ("net", "infiniband", "vlan"):
            return self.device(part)
        match = _KERNEL_FILE.match(part)
        if match or (above == "modules" and not part.endswith(".conf")):
            head = match[0] if match else ""
            return head + self.release(part.removeprefix(head))
        for suffix in (".d", ".wants", ".requires"):
            if part.endswith(suffix):
                return self.unit(part.removesuffix(suffix)) + suffix
        if part.endswith((".mount", ".automount", ".service", ".timer")):
            return self.unit(part)
        match = re.search(r"\.(conf|rules|exports)$", part)
        return self.of("file", part) + match[0] if match else self.of("dir", part)

    def order(self, names: list[str]) -> None:
        """Number files, so that their new names sort as ``names`` do."""
        for number, name in enumerate(names):
            if name not in FILES:
                high, low = divmod(number, 26)
                letters = f"{chr(97 + high // 26 % 26)}{chr(97 + high % 26)}{chr(97 + low)}"
                self._known.setdefault(("file", name), f"file-{letters}")

    # ---- addresses

    def address(self, text: str) -> str:
        """An address with its zone and prefix length; a placeholder for another text."""
        return self._as_address(text) or self.unknown(text)

    def is_address(self, text: str) -> bool:
        """Whether a text is an address, with or without a zone and a prefix length."""
        return bool(self._as_address(text))

    def _as_address(self, text: str) -> str:
        match = _ADDRESS.fullmatch(text)
        if not match:
            return ""
        try:
            address = ipaddress.ip_address(match["address"])
        except ValueError:
            return ""
        changed = self.changed(address)
        # sysfs prints the GIDs of a port in full, with leading zeros
        shown = changed.packed.hex(":", 2) if len(match["address"]) == 39 else _text(changed)
        zone = f"%{self.device(match['zone'])}" if match["zone"] else ""
        opening, closing = ("[" if text[0] == "[" else ""), ("]" if "]" in text else "")
        return f"{opening}{shown}{zone}{closing}{match['rest']}"

    def changed(self, address: _Address) -> _Address:
        """The address in place of another one."""
        if isinstance(address, ipaddress.IPv6Address) and (mapped := address.ipv4_mapped):
            return ipaddress.IPv6Address(f"::ffff:{self.changed(mapped)}")
        mask = str(address).startswith("255.")
        if address.is_unspecified or address.is_loopback or address.is_multicast or mask:
            return address
        kept = 8 if address.version == 4 else 64 if address in _LINK_LOCAL else 16
        bits, number, result = address.max_prefixlen, int(address), 0
        for at in range(bits):
            bit = number >> (bits - 1 - at) & 1
            prefix = f"{bits}:{at}:{number >> (bits - at)}".encode()
            if at >= kept:
                bit ^= hmac.new(self._key, prefix, hashlib.sha256).digest()[0] & 1
            result = result << 1 | bit
        return type(address)(result)

    def hardware(self, text: str) -> str:
        """A MAC, an address of IPoIB, which ends in the GID of its port, or a GUID."""
        digits = text.replace(":", "")
        if not digits.strip("0") or not digits.strip("fF"):
            return text
        if _HARDWARE.fullmatch(text) and len(digits) == 2 * _IPOIB_OCTETS:
            gid = self.changed(ipaddress.IPv6Address(bytes.fromhex(digits[8:])))
            return f"80:00:00:00:{gid.packed.hex(':')}"
        new = hmac.new(self._key, f"hw {text.lower()}".encode(), hashlib.sha256).hexdigest()
        if _HARDWARE.fullmatch(text) and len(digits) == 2 * _MAC_OCTETS:
            # a locally administered address
            return "02:" + bytes.fromhex(new[:10]).hex(":")
        taken = iter(new * 4)
        return "".join(c if c in ":x" else next(taken) for c in text)

    # ---- texts of known words

    def word(self, text: str) -> str:
        """One word: a known one, a number, an address or a device; else a placeholder."""
        if text in WORDS or _NUMBER.fullmatch(text) or DEVICE.fullmatch(text):
            return text
        if _is_hardware(text) or _BARE_GUID.fullmatch(text):
            return self.hardware(text)
        if address := self._as_address(text):
            return address
        # four numbers may be an address, such as that of a range or before a port
        is_short = len(re.findall(r"\d+", text)) < _ADDRESS_PARTS or _PCI.fullmatch(text)
        if is_short and all(
            at % 2 or _is_known(part) for at, part in enumerate(_JOINED.split(text))
        ):
            return text
        return self.unknown(text)

    def command(self, text: str, word: Callable[[str], str] | None = None) -> str:
        """The words of a command or a rule, where a number may be a password or a serial.

        It stays behind the known word that it is the value of, such as ``port``; others are
        withheld from the fourth digit on, counted over neighbours.
        """
        change, before, digits = word or self.word, "", 0

        def of_command(part: str) -> str:
            nonlocal before, digits
            name, before = before.lstrip("-"), part
            is_value = name in WORDS and name not in _PRINTERS
            is_free = _FREE_NUMBER.fullmatch(part) and not is_value and not self._has_type(part)
            digits = digits + _digits(part) if is_free else 0
            is_long = digits >= _FREE_DIGITS and _digits(part) > 0
            return self.unknown(part) if is_long else change(part)

        return self.words(text, of_command)

    def _has_type(self, text: str) -> bool:
        """Whether a text is an address of a network or of hardware."""
        return self.is_address(text) or _is_hardware(text)

    def words(self, text: str, word: Callable[[str], str] | None = None) -> str:
        """A text of words, each replaced by itself."""
        parts = _BETWEEN.split(text)
        change = word or self.word
        return "".join(
            part if at % 2 or not part else change(part) for at, part in enumerate(parts)
        )


def _digits(number: str) -> int:
    return len(re.findall("[0-9a-fA-F]" if "0x" in number else "[0-9]", number.replace("0x", "")))


def _is_hardware(text: str) -> bool:
    # two or three octets may be a time
    return bool(_GUID.fullmatch(text) or (_HARDWARE.fullmatch(text) and len(text) > 8))


def _is_known(part: str) -> bool:
    if not part or part in WORDS or _NUMBER.fullmatch(part):
        return True
    return all(not word or word in WORDS or word.isdecimal() for word in part.split("-"))


def _is_named(part: str) -> bool:
    """Whether a name has known words alone; a number behind one of them counts the others."""
    first, *others = part.split("-")
    return first in WORDS and all(
        word in WORDS or re.fullmatch("[0-9]{0,2}", word) for word in others
    )


def _octets(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\x", "")).decode(errors="surrogateescape")


def _text(address: _Address) -> str:
    # as the kernel prints it (%pI6c), and Python since 3.13
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"::ffff:{mapped}" if mapped else str(address)
