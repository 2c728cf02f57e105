# SPDX-License-Identifier: Apache-2.0
"""What keeps a tree from being released, each in one line; and the version in all its places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.command import run

__all__ = ["PLACES", "missing", "set_version", "version"]

SECURITY = "SECURITY.md"
PLACEHOLDER = "PLACEHOLDER"
_CHANGELOG = "CHANGELOG.md"
_NUMBER = r"(\d+\.\d+\.\d+)"


class Place(NamedTuple):
    """Files with the version, and a pattern whose groups, joined by dots, are the version."""

    files: str
    pattern: str


PLACES = (
    # the first one is that of the package; the others follow it
    Place("nfsrdma_tools/__init__.py", rf'^__version__ = "{_NUMBER}"$'),
    Place("kmod/dkms.conf", rf'^PACKAGE_VERSION="{_NUMBER}"$'),
    Place("kmod/module.c", rf'^MODULE_VERSION\("{_NUMBER}"\);$'),
    Place("kmod/card/card.h", rf'^#define CARD_VERSION\s+"{_NUMBER}"$'),
    Place(
        "lib/nfsrdma.h",
        r"^#define NFSRDMA_VERSION_MAJOR\s+(\d+)\n#define NFSRDMA_VERSION_MINOR\s+(\d+)\n"
        r"#define NFSRDMA_VERSION_PATCH\s+(\d+)$",
    ),
    Place("playbooks/galaxy.yml", rf"^version: {_NUMBER}$"),
    Place("playbooks/CHANGELOG.md", rf"\A[^#]*# [^#]*## {_NUMBER}$"),
    Place("playbooks/monitoring/daemonset.yml", rf"/nfsrdma-tools:{_NUMBER}$"),
    Place("tools/release/nfsrdma.spec", rf"^Version: +{_NUMBER}$"),
    Place("docs/how-to/*.md", rf"\bnfsrdma(?:[_-](?:tools|dkms))?[-_:]{_NUMBER}"),
)


def missing(root: Path) -> Iterator[str]:
    """What keeps the tree at ``root`` from being released."""
    yield from _tree(root)
    yield from _versions(root)
    yield from _changelog(root)
    if PLACEHOLDER in (root / SECURITY).read_text():
        yield f"{SECURITY}: a maintainer has to fill in the line with {PLACEHOLDER}"


def version(root: Path) -> str:
    """The version of the package."""
    return next(_numbers(root, PLACES[0]))[1]


def set_version(root: Path, number: str) -> None:
    """Write a version into all its places."""
    parts = number.split(".")
    for place in PLACES:
        for path in sorted(root.glob(place.files)):
            path.write_text(
                re.sub(
                    place.pattern,
                    lambda match: _replaced(match, parts if len(match.groups()) > 1 else [number]),
                    path.read_text(),
                    flags=re.MULTILINE,
                )
            )


def _replaced(match: re.Match[str], parts: list[str]) -> str:
    """The text of a match with other groups."""
    text, begin = match[0], match.start()
    for number, part in reversed(list(enumerate(parts, 1))):
        start, end = (at - begin for at in match.span(number))
        text = text[:start] + part + text[end:]
    return text


def _numbers(root: Path, place: Place) -> Iterator[tuple[Path, str]]:
    """The files of a place, and each version in them."""
    for path in sorted(root.glob(place.files)):
        for match in re.finditer(place.pattern, path.read_text(), re.MULTILINE):
            yield path, ".".join(match.groups())


def _tree(root: Path) -> Iterator[str]:
    status = run("git", "-C", root, "status", "--porcelain", check=False)
    if status.returncode:
        yield "git: expected a clone, found no repository"
    elif changed := status.stdout.splitlines():
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        yield f"git: uncommitted: {changed[0][3:]}{more}"


def _versions(root: Path) -> Iterator[str]:
    expected = version(root)
    for place in PLACES:
        found = set(_numbers(root, place))
        if not found:
            yield f"{place.files}: expected version {expected}, found none"
        for path, number in sorted(found):
            if number != expected:
                name = path.relative_to(root)
                yield f"{name}: expected version {expected}, found {number}"


def _changelog(root: Path) -> Iterator[str]:
    text = (root / _CHANGELOG).read_text()
    first = re.search(r"^## (.*)$", text, re.MULTILINE)
    found = first[1] if first else "none"
    expected = f"[{version(root)}] - DATE"
    if not re.fullmatch(re.escape(expected[:-4]) + r"\d{4}-\d\d-\d\d", found):
        yield f"{_CHANGELOG}: expected first section {expected}, found {found}"
    # a stub of the next version may not stand behind
    if found != "[Unreleased]" and re.search(r"^## \[Unreleased\]", text, re.MULTILINE):
        yield f"{_CHANGELOG}: a section [Unreleased] follows"
