# SPDX-License-Identifier: Apache-2.0
"""A bundle of this host's files, for reports: all that doctor, mounts and server status read.

It has single named files (``CONTENTS`` of doctor/inputs.py), never a whole tree, and of long files
only the lines of NFS and RDMA.  What programs and netlink said is recorded while the readers
themselves run, so that they find the same on any other host (doctor/recorded.py).  It loads no
module and changes nothing.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gzip
import io
import json
import os
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import inputs, kernel_changelog
from nfsrdma_tools.doctor.bundle_documents import CUT, MANIFEST, to_facts
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import NOT_REGULAR, NotRegularError, open_file
from nfsrdma_tools.host import boot_files, packet_filter, rdma_routes
from nfsrdma_tools.host.kernel_log.explain import recognized_lines
from nfsrdma_tools.host.machine import LIVE, Machine, Recording
from nfsrdma_tools.host.nfs import fstab, mount_state, mountinfo, units
from nfsrdma_tools.host.nfsd import serving

__all__ = ["NEEDS_ROOT", "Bundle", "LeftOut", "alternatives", "collect"]

_AT_ONCE = 16 << 10
_MOST_READ = 8 << 20
"""Bytes of a file that are read; 40,000 lines of mountinfo, or 1300 mounts in mountstats."""
_MOST_KEPT = 4 << 20
"""Bytes of a file that are kept, in whole records."""
_STEPS = 400
_LEVEL = 6


NEEDS_ROOT = "needs root"
"""The reason of a file that this user may not read."""


@dataclass(frozen=True)
class LeftOut:
    """A file that a bundle lacks, or a reader that failed, and the reason."""

    what: str
    why: str


@dataclass
class Bundle:
    """The files and links of a bundle, by name below the root."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    notes: Recording = field(default_factory=Recording)
    left_out: list[LeftOut] = field(default_factory=list)
    withheld: dict[str, int] = field(default_factory=dict)
    """Of an anonymized bundle: the number of withheld values by file or program."""
    folders: dict[str, tuple[str, dict[str, str]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Where the folders of the files lead, and the links on their paths."""

    def archive(self) -> bytes:
        """The bundle as a tar archive, compressed by gzip."""
        out = io.BytesIO()
        now = int(time.time())
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, data in sorted({**self._documents(now), **self.files}.items()):
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.mode = len(data), now, 0o644
                tar.addfile(info, io.BytesIO(data))
            for name, target in sorted(self.links.items()):
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mtime = tarfile.SYMTYPE, target, now
                tar.addfile(info)
        # at once: tarfile would compress each header and each file by itself
        return gzip.compress(out.getvalue(), _LEVEL, mtime=now)

    def _documents(self, now: int) -> dict[str, bytes]:
        documents = to_facts(self.notes)
        documents[MANIFEST] |= {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            "left_out": [vars(entry) for entry in self.left_out],
            "withheld": self.withheld,
        }
        return {name: json.dumps(text, indent=1).encode() for name, text in documents.items()}


def collect(server: str = "", machine: Machine = LIVE) -> Bundle:
    """Read this host; with ``server``, also the route to it."""
    bundle = Bundle(notes=Recording(root_user=os.geteuid() == 0))
    lists = functools.partial(_read_list, machine.root)
    machine = replace(machine, server=server, notes=bundle.notes, lists=lists).once()
    # the readers themselves: what they ask programs and netlink is recorded
    inputs.ask(machine)
    for reader in (mount_state.states, serving.serving):
        try:
            reader(machine)
        except (OSError, UserError) as error:
            bundle.left_out.append(LeftOut(reader.__name__, str(error)))
    bundle.notes.programs = dict(map(_shortened, bundle.notes.programs.items()))
    _add_changelog(bundle, machine)
    _add_contents(machine, bundle)
    for port in _matching(machine, inputs.PORT):
        _add_gids(bundle, machine.root, port)
    _add_links(machine, bundle)
    hidden = (
        omission.what.lstrip("/") for omission in bundle.left_out if omission.why == NEEDS_ROOT
    )
    if all(name.startswith(("proc/", "sys/", "var/", "boot/")) for name in hidden):
        bundle.notes.facts[boot_files.FACT] = boot_files.READ
    return bundle


def _add_contents(machine: Machine, bundle: Bundle) -> None:
    """Add the files of inputs.CONTENTS, and the scripts that services run."""
    scripts = _add_scripts(machine, bundle)
    nfs = {unit.name.removesuffix(".mount") for unit in units.nfs_units(machine)}
    services = {*boot_files.services(machine, scripts), *boot_files.SERVERS, "autofs.service"}
    of_service = functools.partial(inputs.service, scripts=scripts)
    for pattern, kept in inputs.CONTENTS:
        keep = of_service if kept is inputs.service else kept
        for name in _matching(machine, pattern):
            if (
                not _of_other_mount(machine, nfs, name)
                and not _of_other_service(services, name)
                and (name not in boot_files.RC_LOCAL or boot_files.is_run(machine, name))
            ):
                _add(bundle, machine.root, name, keep)


def _add_scripts(machine: Machine, bundle: Bundle) -> set[str]:
    """Add the scripts with a command of interest that services run; returns their names."""
    try:
        scripts = boot_files.scripts(machine)
    except PermissionError as error:
        hidden = Path(str(error.filename)).relative_to(machine.root)
        bundle.left_out.append(LeftOut(f"/{hidden}", NEEDS_ROOT))
        return set()
    for name in sorted(scripts):
        _add(bundle, machine.root, name, inputs.script)
    return scripts


_OF_MOUNT = re.compile(r".*/(?P<unit>[^/]+)\.(?:mount\.d/[^/]+|automount)")


def _of_other_mount(machine: Machine, nfs: set[str], name: str) -> bool:
    """Whether a file belongs to a mount unit of another filesystem than NFS, or of an unknown one.

    A drop-in of such a unit, and its automount unit, may have what a stranger must not see.  An
    empty file or a link to /dev/null masks a unit.
    """
    match = _OF_MOUNT.fullmatch(name)
    return bool(match and match["unit"] not in nfs and machine.text(name))


_OF_SERVICE = re.compile(r".*/(?P<unit>[^/]+)\.(?:service(?:\.d/[^/]+)?|timer)")


def _of_other_service(services: set[str], name: str) -> bool:
    """Whether a file belongs to a service, or its timer, that starts nothing of interest."""
    match = _OF_SERVICE.fullmatch(name)
    if not match:
        return False
    stem, at, _ = match["unit"].partition("@")
    return f"{stem}{at}.service" not in services


def _add_changelog(bundle: Bundle, machine: Machine) -> None:
    """Add what the changelog of the kernel's RPM package says about known faults."""
    try:
        if recorded := kernel_changelog.recorded_rpm(machine):
            argv, result = recorded
            bundle.notes.programs[argv] = result
    except UserError as error:
        bundle.left_out.append(LeftOut("rpm", str(error)))


def _add_gids(bundle: Bundle, root: Path, port: str) -> None:
    """Add the GIDs of a port that are in use, with their network devices and types."""
    with contextlib.suppress(OSError):
        for number, _ in rdma_routes.places_in_use(f"{root}/{port}/gids"):
            for name in ("gids", "gid_attrs/ndevs", "gid_attrs/types"):
                if os.path.exists(f"{root}/{port}/{name}/{number}"):  # noqa: PTH110 -- many
                    _add(bundle, root, f"{port}/{name}/{number}", inputs.whole)


def _add_links(machine: Machine, bundle: Bundle) -> None:
    """Add the links to the mount points of fstab."""
    with contextlib.suppress(OSError, UserError):
        closed = mountinfo.closed(mountinfo.of(machine))
        for line in fstab.nfs_lines(machine.text("etc/fstab")):
            _, links = mountinfo.without_links(line.directory, closed, machine.root)
            for link, target in links.items():
                bundle.links[str(link.relative_to("/"))] = str(target)


def _shortened(
    entry: tuple[tuple[str, ...], Result | None],
) -> tuple[tuple[str, ...], Result | None]:
    """A program's result, of logs and packet filters only the lines that readers use."""
    argv, result = entry
    if result is None:
        return entry
    text = result.stdout
    if argv[0] in ("dmesg", "journalctl") and not argv[-1].startswith("--unit="):
        text = "\n".join(recognized_lines(text.split("\n")))
    elif argv[0] in ("nft", "iptables-legacy-save"):
        text = packet_filter.rules_of_input(text)
    elif argv[0] == "ip6tables-legacy-save":
        text = packet_filter.rules_of_input(text, "ip6")
    return argv, result._replace(stdout=text)


def _matching(machine: Machine, pattern: str) -> Iterator[str]:
    """The names below the root that match; strings, because paths cost more than the files."""
    if "{release}" in pattern:
        pattern = pattern.replace("{release}", machine.text(inputs.RELEASE).strip())
    for alternative in alternatives(pattern):
        yield from _names_below(str(machine.root), alternative)


def _names_below(root: str, pattern: str) -> list[str]:
    """The names that match, sorted; those of hidden files, too, unlike glob() of Python 3.9."""
    paths = [""]
    for part in pattern.split("/"):
        if not any(sign in part for sign in "*?["):
            paths = [f"{above}{part}/" for above in paths]
            continue
        paths = [
            f"{above}{name}/"
            for above in paths
            for name in fnmatch.filter(_listed(f"{root}/{above}"), part)
        ]
    names = (path[:-1] for path in paths)
    return sorted(name for name in names if os.path.lexists(f"{root}/{name}"))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- names
    except OSError:
        return []


def alternatives(pattern: str) -> list[str]:
    """``lib{64,32}`` as ``lib64`` and ``lib32``, of each pair of braces."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [
        alternative
        for word in match[1].split(",")
        for alternative in alternatives(before + word + after)
    ]


def _add(bundle: Bundle, root: Path, name: str, keep: inputs.Keep) -> None:
    """Add a file below the root, and each link on its path."""
    above, _, last = name.rpartition("/")
    folder, links = _folder(bundle, root, above)
    where, more = _step(root, f"{folder}/{last}" if folder else last)
    if _add_file(bundle, root, where, keep):
        bundle.links.update(links | more)


def _folder(bundle: Bundle, root: Path, name: str) -> tuple[str, dict[str, str]]:
    """Where a folder below the root leads, and the links on its path; each is read once."""
    if not name:
        return "", {}
    if name not in bundle.folders:
        above, _, last = name.rpartition("/")
        folder, links = _folder(bundle, root, above)
        where, more = _step(root, f"{folder}/{last}" if folder else last)
        bundle.folders[name] = where, links | more
    return bundle.folders[name]


def _step(root: Path, name: str) -> tuple[str, dict[str, str]]:
    """The same for a path of which only the last part may be a link."""
    # its target is the number of this process
    if name == "proc/self" or not os.path.islink(f"{root}/{name}"):  # noqa: PTH114 -- many
        return name, {}
    return _followed(root, name)


def _followed(root: Path, name: str) -> tuple[str, dict[str, str]]:
    """Where any path leads below the root, and the links on it."""
    rest, here, links = name.split("/"), list[str](), dict[str, str]()
    for _ in range(_STEPS * 10):
        if not rest:
            break
        part = rest.pop(0)
        if part == "..":
            # all parts so far are folders, not links
            here = here[:-1]
            continue
        here.append(part)
        known = "/".join(here)
        # its target is the number of this process
        if known != "proc/self" and (root / known).is_symlink():
            target = os.readlink(root / known)  # noqa: PTH115 -- the text itself
            links[known] = target
            here = [] if target.startswith("/") else here[:-1]
            rest = [*PurePosixPath(target.lstrip("/")).parts, *rest]
    return "/".join(here), links


def _add_file(bundle: Bundle, root: Path, name: str, keep: inputs.Keep) -> bool:
    """Add the part of a file that ``keep`` returns; False if it returns None."""
    path = f"{root}/{name}"
    if name in bundle.files:
        return True
    if not os.path.isfile(path):  # noqa: PTH113 -- many
        with contextlib.suppress(OSError):
            _check_kind(bundle, path, name)
        return True
    try:
        data, whole = (b"", True) if keep is inputs.nothing else _beginning(path)
    except PermissionError:
        bundle.left_out.append(LeftOut(f"/{name}", NEEDS_ROOT))
        return True
    except OSError:
        # such as EINVAL for an attribute without a value
        return True
    if not whole:
        data = _whole_records(name, data, len(data) - 1)
    if (kept := _kept(name, data, keep)) is None:
        return False
    bundle.files[name] = _whole_records(name, kept, _MOST_KEPT)
    if not whole or len(bundle.files[name]) < len(kept):
        bundle.left_out.append(LeftOut(f"/{name}", CUT))
    return True


def _check_kind(bundle: Bundle, path: str, name: str) -> None:
    """List a FIFO or a device in place of a file as left out.  OSError."""
    try:
        os.close(open_file(path))
    except NotRegularError:
        bundle.left_out.append(LeftOut(f"/{name}", NOT_REGULAR))


def _read_list(root: Path, name: str) -> str:
    """The text of a list of the kernel; of one that is too long, what the bundle keeps."""
    data, whole = _beginning(f"{root}/{name}")
    if whole and len(data) <= _MOST_KEPT:
        return os.fsdecode(data)
    kept = _kept(name, data[: data.rfind(b"\n") + 1], dict(inputs.CONTENTS).get(name, inputs.whole))
    return os.fsdecode(_whole_records(name, kept or b"", _MOST_KEPT))


def _whole_records(name: str, data: bytes, most: int) -> bytes:
    """The beginning of a file in whole records: of mountstats a mount, of others a line."""
    if len(data) <= most or name.endswith(".gz"):
        return data
    end = data.rfind(b"\ndevice ", 0, most) if name == "proc/self/mountstats" else -1
    return data[: (end if end >= 0 else data.rfind(b"\n", 0, most)) + 1]


def _beginning(path: str) -> tuple[bytes, bool]:
    """The bytes of a file up to a limit, and whether these are all."""
    handle = open_file(path)
    try:
        data = bytearray(more := os.read(handle, _AT_ONCE))
        while more and len(data) <= _MOST_READ:
            more = os.read(handle, _AT_ONCE)
            data += more
    finally:
        os.close(handle)
    whole = len(data) <= _MOST_READ
    del data[_MOST_READ:]
    return bytes(data), whole


def _unpacked(data: bytes) -> bytes:
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _MOST_READ)


def _kept(name: str, data: bytes, keep: inputs.Keep) -> bytes | None:
    packed = name.endswith(".gz")
    try:
        text = os.fsdecode(_unpacked(data) if packed else data)
    except (OSError, EOFError, zlib.error):
        return None
    if (kept := keep(text)) is None:
        return None
    return gzip.compress(os.fsencode(kept), mtime=0) if packed else os.fsencode(kept)
