# SPDX-License-Identifier: Apache-2.0
"""Archives whose bytes depend on the content only, and where two archives differ."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["compress", "difference", "normalize"]

_EXECUTABLE = 0o111
_AR = b"!<arch>\n"
_AR_HEADER = 60


def compress(data: bytes) -> bytes:
    """Compress with gzip, without a name and a time."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(data)
    return packed.getvalue()


def normalize(archive: Path, epoch: int) -> None:
    """Write a .tar or .tar.gz again: sorted, of root, with two modes and the time ``epoch``."""
    tar = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=tar, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            runs = member.isdir() or member.mode & _EXECUTABLE
            member.mode = 0o755 if runs else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    data = tar.getvalue()
    archive.write_bytes(compress(data) if archive.suffix == ".gz" else data)


def difference(name: str, first: bytes, second: bytes) -> str:
    """The first place at which two files differ, inside the archives that they are; "" if none."""
    if first == second:
        return ""
    lists = [list(_members(data)) for data in (first, second)]
    for one, other in zip(*lists, strict=False):
        if one[0] != other[0]:
            return f"{name}: expected {one[0]}, found {other[0]}"
        if inner := difference(f"{name}: {one[0]}", one[1], other[1]):
            return inner
    if len(lists[0]) != len(lists[1]):
        return f"{name}: expected {len(lists[0])} members, found {len(lists[1])}"
    # equal members, or no archive: headers, compression
    common = zip(first, second, strict=False)
    at = next((n for n, (one, other) in enumerate(common) if one != other), None)
    at = min(len(first), len(second)) if at is None else at
    parts = (data[max(0, at - 16) : at + 48] for data in (first, second))
    return f"{name}: at byte {at}: {next(parts)!r}, {next(parts)!r}"


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Description and content of each member of an archive; nothing for another file."""
    # the zipapp begins with the line of its interpreter
    if data.startswith((b"PK", b"#!/usr/bin/env python3\nPK")):
        yield from _of_zip(data)
    elif data.startswith(_AR):
        yield from _of_ar(data)
    else:
        yield from _of_tar(data)


def _of_zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for each in archive.infolist():
            mode = each.external_attr >> 16
            yield f"{each.filename} {mode:o} {each.date_time}", archive.read(each)


def _of_ar(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Members of an archive of ar(1), which a Debian package is."""
    at = len(_AR)
    while at + _AR_HEADER <= len(data):
        header = data[at : at + _AR_HEADER].decode(errors="replace")
        size = int(header[48:58])
        at += _AR_HEADER
        yield " ".join(header[:48].split()), data[at : at + size]
        at += size + size % 2


def _of_tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for each in archive:
                file = archive.extractfile(each) if each.isfile() else None
                what = f"{each.mode:o} {each.uid}/{each.gid} {each.mtime} {each.linkname}".rstrip()
                yield f"{each.name} {what}", file.read() if file else b""
    except tarfile.ReadError:
        return
