# SPDX-License-Identifier: Apache-2.0
"""The release of kernel.org that a kernel has, by its name, and whether that is certain.

A distribution's kernel has a release of kernel.org as its base, and fixes of later releases.
How much the name tells depends on the distribution: docs/how-to/explain.md has the sources.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from nfsrdma_tools.errors import UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.host.machine import Machine

__all__ = ["KernelVersion", "Kind", "is_series", "kernel_named", "kernel_of"]

Kind = Literal["release", "stable", "own", "backports", "series", "candidate", "unknown"]
"""What a kernel has beside its release of kernel.org.

release     little: kernel.org's own kernels, and those of distributions that build them as they are
stable      some fixes of later releases; the distribution goes from one stable release to the next
own         many fixes of later releases; all changes of the release are in
backports   fixes and features of later releases, on a number that never changes
series      its name has only the series, such as 6.1: the rest is the distribution's number
candidate   it is a release candidate: which changes of its release are in is open
unknown     nothing is known about who built it
"""
_RELEASE_OF_UNAME = 2
_LONGEST, _LONGEST_RELEASE = 4096, 64
"""Of a text; of a release: __NEW_UTS_LEN in include/uapi/linux/utsname.h."""


class KernelVersion(NamedTuple):
    """A kernel: its release, and the release of kernel.org that it is based on."""

    release: str
    """As uname -r prints it."""
    number: tuple[int, int, int]
    """Of kernel.org; if not ``certain``, what the name says, and (0, 0, 0) if it says nothing."""
    suffix: str
    """The distribution's part of the release; empty for a release of kernel.org."""
    by: str = ""
    """The distribution, or kernel.org; empty if unknown."""
    kind: Kind = "unknown"
    reason: str = ""
    """Why the number is certain, or is not."""
    source: str = "/proc/sys/kernel/osrelease"
    """The file that has the number."""

    @property
    def text(self) -> str:
        """The release of kernel.org that it is based on."""
        return ".".join(map(str, self.number))

    @property
    def certain(self) -> bool:
        """Whether it has all changes of that release, and whether the distribution counts by it."""
        return self.kind in ("release", "stable", "own")


_RELEASE = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,5}))?(?!\d)(.*)", re.DOTALL | re.ASCII)
_CANDIDATE = re.compile(r"-rc\d|-0\.rc\d|-\d{6}rc\d|^[\d.]+rc\d|~rc\d", re.ASCII)
_SIGNATURE = re.compile(r"\bUbuntu \d\S* (\d+\.\d+\.\d{1,5})(?!\d)([^\s)]*)\)?\s*\Z", re.ASCII)
# the compiler's version comes first in /proc/version, and may be one of Debian, too
_DEBIAN = re.compile(r" #\d.* Debian (?:\d+:)?(\d+\.\d+(?:\.\d{1,5})?)(?!\d)([^\s(]*)", re.ASCII)
_ARCHITECTURES = (
    "amd64|arm64|arm64-16k|686|686-pae|armmp|armmp-lpae|powerpc64le|powerpc64le-64k|s390x|riscv64"
    "|loong64|mips64el|4kc-malta|5kc-malta|octeon|marvell|rpi"
)
_OF_UBUNTU = (
    "generic|lowlatency|realtime|azure|aws|gcp|gke|gkeop|oracle|oem|ibm|kvm|intel|intel-iotg|nvidia"
    "|nvidia-lowlatency|nvidia-tegra|raspi|raspi2|snapdragon|virtual|xilinx-zynqmp|laptop"
)


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    """Of the whole release."""
    by: str
    kind: Kind
    reason: str


def _rule(pattern: str, by: str, kind: Kind, reason: str) -> _Rule:
    return _Rule(re.compile(pattern, re.ASCII), by, kind, reason)


_NUMBER = r"\d+\.\d+\.\d+"
_AS_IT_IS = "it builds kernel.org's releases, with few patches or none"
_FOLLOWS = "it goes from one stable release of kernel.org to the next, and adds fixes of its own"
_KEEPS = "the number stays, and the distribution decides which fixes it has: it backports them"
_RULES = (
    _rule(r"\d+\.\d+(\.\d+)?", "kernel.org", "release", "the name has nothing else"),
    # Ubuntu's builds of kernel.org's releases repeat the number: 6.6.5-060605
    _rule(rf"{_NUMBER}-0\d{{5}}-(generic|lowlatency)(-64k)?", "kernel.org", "release", _AS_IT_IS),
    # before Red Hat: these have el9, too
    _rule(rf"{_NUMBER}-[\w.]*\.el\d+\.elrepo\..*", "ELRepo", "release", _AS_IT_IS),
    _rule(rf"{_NUMBER}-.*\.?el\d+uek\b.*", "Oracle", "backports", _KEEPS),
    _rule(rf"{_NUMBER}-.*\.el\d+([._].*)?", "Red Hat", "backports", _KEEPS),
    _rule(rf"{_NUMBER}-.*\.oe\d+.*", "openEuler", "backports", _KEEPS),
    # 150500 is 15 SP5, 160000 is 16.0
    _rule(rf"{_NUMBER}-1[5-9]\d{{4}}\..*", "SUSE", "backports", _KEEPS),
    # before the rest of SUSE, whose flavour azure has 5.3.18-18.47: Ubuntu has a 0 and one number
    _rule(
        rf"\d+\.\d+\.0-\d+-({_OF_UBUNTU})(-fde|-64k)*",
        "Ubuntu",
        "series",
        "its number is that of the ABI: /proc/version_signature has the release",
    ),
    _rule(
        rf"{_NUMBER}-[\d.]+-(default|preempt|rt|64kb|azure|vanilla)(-base)?",
        "SUSE",
        "series",
        "SUSE Linux Enterprise has such names, too, and backports fixes",
    ),
    _rule(
        rf"\d+\.\d+\.0-(\d+|0\.(bpo|deb\d+)\.\d+|kali\d+)(-cloud|-rt)?-({_ARCHITECTURES})",
        "Debian",
        "series",
        "its number is that of the ABI: /proc/version and uname -v have the release",
    ),
    _rule(
        rf"\d+\.\d+(\.\d+)?(\+(deb\d+|bpo)(\+\d+)?|\+kali)(-cloud|-rt)?-({_ARCHITECTURES})",
        "Debian",
        "stable",
        _FOLLOWS,
    ),
    _rule(rf"{_NUMBER}\+rpt-rpi-\w+", "Raspberry Pi OS", "stable", _FOLLOWS),
    _rule(rf"{_NUMBER}-v(6|7|7l|8|8-16k)\+", "Raspberry Pi OS", "stable", _FOLLOWS),
    _rule(
        r"\d+\.\d+\.0-\d+-pve",
        "Proxmox",
        "series",
        "the first package of a series may have a release candidate",
    ),
    _rule(
        rf"{_NUMBER}-\d+-pve",
        "Proxmox",
        "own",
        "it has Ubuntu's tree: all of the release, and fixes of later ones that it does not count",
    ),
    _rule(
        rf"{_NUMBER}\.(\d+|mshv\d+)-.*\.(azl\d+|cm\d+)(\.\w+)?", "Azure Linux", "stable", _FOLLOWS
    ),
    _rule(rf"{_NUMBER}(\.\d+)+-microsoft-standard(-WSL2)?", "WSL", "stable", _FOLLOWS),
    _rule(r".*-Microsoft", "WSL", "unknown", "WSL 1 has no Linux kernel"),
    _rule(rf"{_NUMBER}-[\d.]+\.amzn\d+\.\w+", "Amazon Linux", "stable", _FOLLOWS),
    _rule(rf"{_NUMBER}-\d+\.fc\d+\.\w+", "Fedora", "stable", _FOLLOWS),
    _rule(rf"{_NUMBER}-arch\d+-\d+", "Arch Linux", "release", _AS_IT_IS),
    _rule(rf"{_NUMBER}-\d+-lts", "Alpine or Arch Linux", "release", _AS_IT_IS),
    _rule(rf"{_NUMBER}-\d+-virt", "Alpine Linux", "release", _AS_IT_IS),
    _rule(rf"{_NUMBER}-flatcar", "Flatcar", "release", _AS_IT_IS),
    _rule(rf"{_NUMBER}-talos", "Talos", "release", _AS_IT_IS),
)
"""By the whole release, the first that matches counts."""
_BUILDERS = (
    # what /proc/version adds, for names that several distributions have
    (re.compile(r"#\d+-Alpine\b"), "Alpine or Arch Linux", "Alpine Linux"),
)
_TUMBLEWEED = "openSUSE Tumbleweed"
_LAST = {3: 19, 4: 20, 5: 19, 6: 19, 7: 19}
"""The last series of each major number; 7.19 is what Linus Torvalds' habit makes of it."""


def is_series(number: tuple[int, int, int]) -> bool:
    """Whether Linux had the series of a release, from 2.6 on, or may have it before 8.0."""
    major, minor, _ = number
    return (major, minor) == (2, 6) or minor <= _LAST.get(major, -1)


def kernel_of(machine: Machine) -> KernelVersion:
    """The running kernel of a host."""
    # the files of a container tell nothing about the kernel
    text = "" if machine.in_container else machine.text("etc/os-release")[:_LONGEST]
    match = re.search(r'^ID="?([\w.-]*)', text, re.MULTILINE)
    release, version, signature = (
        machine.text(f"proc/{name}")[:_LONGEST]
        for name in ("sys/kernel/osrelease", "version", "version_signature")
    )
    return _identified(release.strip(), version, signature, match[1] if match else "")


def kernel_named(text: str, os_id: str = "") -> KernelVersion:
    """The kernel of a line of uname, /proc/version or /proc/version_signature.

    ``os_id`` is ID of os-release(5).  UserError if the line has no release.
    """
    line = text[:_LONGEST].strip()
    words = line.split()
    signature = ""
    if match := re.search(r"\bLinux version (\S+)", line):
        release = match[1]
    elif match := re.match(r"Ubuntu (\d+\.\d+\.\d+-\d+)[.\d~]*(\S*) \d", line, re.ASCII):
        release, signature = match[1] + match[2], line
    else:
        is_uname = words[:1] == ["Linux"] and len(words) > _RELEASE_OF_UNAME
        release = words[_RELEASE_OF_UNAME] if is_uname else "".join(words[:1])
    if not any(_parsed(release)[0]):
        shown = printable(line[:80]) or "an empty text"
        raise UserError(
            f"{shown} is neither a bundle nor the release of a kernel",
            "give a file of nfsrdma collect, or what uname -r prints",
        )
    return _identified(release, line, signature, os_id)


def _identified(release: str, version: str, signature: str, os_id: str) -> KernelVersion:
    number, suffix = _parsed(release)
    kernel = KernelVersion(release, number, suffix, reason="nothing is known about who built it")
    if not any(number):
        return kernel._replace(reason="the name has no number of a release")
    if not is_series(number):
        return kernel._replace(reason=f"Linux has no series {number[0]}.{number[1]} that is known")
    told = _told(kernel, version, signature) or _by_name(kernel, version, os_id)
    if told.kind != "candidate" and _CANDIDATE.search(release):
        told = _candidate(told)
    return told


def _told(kernel: KernelVersion, version: str, signature: str) -> KernelVersion | None:
    """What a text beside the release says about the kernel; None if it says nothing."""
    for pattern, text, source in (
        (_SIGNATURE, signature, "/proc/version_signature"),
        (_SIGNATURE, version, "/proc/version"),
        (_DEBIAN, version, "/proc/version"),
    ):
        match = pattern.search(text)
        number = _parsed(match[1])[0] if match else (0, 0, 0)
        if not match or number[:2] != kernel.number[:2]:
            continue
        if pattern is _SIGNATURE:
            reason = "it has all of that release, and fixes of later ones that it does not count"
            told = kernel._replace(by="Ubuntu", kind="own", reason=reason)
        else:
            by = "Raspberry Pi OS" if "+rpt" in match[2] else "Debian"
            told = kernel._replace(by=by, kind="stable", reason=_FOLLOWS)
        told = told._replace(number=number, source=source)
        return _candidate(told) if re.match(r"[-~]rc\d", match[2]) else told
    return None


def _by_name(kernel: KernelVersion, version: str, os_id: str) -> KernelVersion:
    release = kernel.release
    tumbleweed = _TUMBLEWEED in version or os_id in ("opensuse-tumbleweed", "opensuse-slowroll")
    if os_id == "cos" and re.fullmatch(rf"{_NUMBER}\+", release, re.ASCII):
        reason = "its tree has all of the release, and fixes of later ones"
        return kernel._replace(by="Container-Optimized OS", kind="own", reason=reason)
    if tumbleweed and re.fullmatch(rf"{_NUMBER}-\d+-default", release, re.ASCII):
        return kernel._replace(by=_TUMBLEWEED, kind="stable", reason=_FOLLOWS)
    for rule in _RULES:
        if rule.pattern.fullmatch(release):
            by = next((b for p, a, b in _BUILDERS if a == rule.by and p.search(version)), rule.by)
            return kernel._replace(by=by, kind=rule.kind, reason=rule.reason)
    if re.search(r"#\d+(~[\d.]+)?-Ubuntu\b", version) and kernel.number[2] == 0:
        reason = "its number is that of the ABI: /proc/version_signature has the release"
        return kernel._replace(by="Ubuntu", kind="series", reason=reason)
    return kernel


def _candidate(kernel: KernelVersion) -> KernelVersion:
    reason = f"it is a release candidate of {kernel.number[0]}.{kernel.number[1]}"
    by = kernel.by
    if re.fullmatch(r"[\d.]+-?rc\d+|.*-\d{6}rc\d+-\w+", kernel.release, re.ASCII):
        by = "kernel.org"
    elif re.search(r"-0\.rc\d+\b.*\.fc\d+\.", kernel.release, re.ASCII):
        by = "Fedora"
    return kernel._replace(kind="candidate", by=by, reason=reason)


def _parsed(text: str) -> tuple[tuple[int, int, int], str]:
    match = _RELEASE.fullmatch(text) if len(text) <= _LONGEST_RELEASE else None
    if not match:
        return (0, 0, 0), text
    return (int(match[1]), int(match[2]), int(match[3] or 0)), match[4]
