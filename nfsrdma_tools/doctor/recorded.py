# SPDX-License-Identifier: Apache-2.0
"""Reads the files of another host, for ``--from``: a bundle of ``nfsrdma collect``, or a folder.

A bundle is a tar archive of the files below their paths, and of three JSON files at the top:
``manifest.json``, ``commands.json`` and ``netlink.json``.  A folder has the same form.  It may also
hold files as people paste them into reports: ``fstab``, ``mountinfo``, ``rdma-link.txt`` and so on
(``PASTED``).

Both are hostile: names and links may lead out of the folder, and files may be devices or larger
than the disk.  So everything is first copied into a private folder: regular files of a limited
size, and links that cannot leave it.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor.bundle_documents import COMMANDS, CUT, FORMAT, MANIFEST, NETLINK
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.files import opened_regular
from nfsrdma_tools.host.kernel_log.encodings import utf8_blocks
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfsd import ganesha
from nfsrdma_tools.host.nfsd_status import MOST_RPCS, NfsdStatus
from nfsrdma_tools.host.rdma.ports import Device, Link, parse_links
from nfsrdma_tools.host.rdma_routes import parse_routes
from nfsrdma_tools.json_records import INVALID, fault, record, typed

if TYPE_CHECKING:
    import tarfile

__all__ = ["PASTED", "opened"]

PASTED = {
    "fstab": "etc/fstab",
    "mountinfo": "proc/self/mountinfo",
    "mountstats": "proc/self/mountstats",
    "modules": "proc/modules",
    "osrelease": "proc/sys/kernel/osrelease",
    "version": "proc/version",
    "nfs.conf": "etc/nfs.conf",
    "nfsmount.conf": "etc/nfsmount.conf",
    "exports": "etc/exports",
    "etab": "var/lib/nfs/etab",
    "hosts": "etc/hosts",
    "os-release": "etc/os-release",
    "portlist": "proc/fs/nfsd/portlist",
    "threads": "proc/fs/nfsd/threads",
    "versions": "proc/fs/nfsd/versions",
}
"""Names of pasted files, with or without ``.txt``, and the files of a host that they are."""
_PROGRAMS = {
    "dmesg": ("dmesg",),
    "journal": ("dmesg",),
    "ip-link": ("ip", "-d", "-j", "link", "show"),
    "ip-address": ("ip", "-j", "address", "show"),
    "systemctl-show": ("systemctl", "show"),
    "ip-route": ("ip", "-j", "route", "show", "table", "all"),
    "ibv_devinfo": ("ibv_devinfo",),
}
"""Names of pasted outputs, and the programs whose output they are."""
_NUMBERS = ("index", "port", "ports")
_ERROR_PARTS = 2
_VERSION = re.compile(rb"Linux version (\S{1,64}) ")
_MODINFO = re.compile(r"modinfo-([A-Za-z0-9_-]{1,55})")
_WITH_NUL = re.compile(r"modinfo-.*|dmesg|journal")
"""Texts with NUL: modinfo -0 separates by it, and a crash leaves some in a log."""
_RULE = re.compile(r"(?:(etc|run|usr-local-lib|usr-lib|lib)-udev-)?([\w.+-]{1,200}\.rules)")
# "[root@node ~]# cat /etc/fstab" above what it prints, and the next prompt below
_COMMAND_LINE = re.compile(
    rb"(?:\S.{0,119})?[$#%>] {1,2}(?:sudo +)?(?:/\S{1,60}/)?(?:cat|more|less|head|grep|ip|rdma|"
    rb"dmesg|ibv_devinfo|modinfo|journalctl|systemctl)(?: .*)?"
)
_PROMPT = re.compile(rb"\[?[\w.-]{1,64}@[^$#%]{0,120}[$#%] *")
_MOST_FILES = 50_000
_MOST_BYTES = 64 << 20
_MOST_IN_FILE = 8 << 20
_GANESHA = ganesha.CONF.split("/")
_MOST_FOLDERS = 200
_HEADERS = (b"L", b"K", b"x", b"g", b"X")
"""Types of headers of GNU tar (long name, long link) and pax, that of Solaris included."""
_MOST_HEADER = 64 << 10
"""Bytes of a header of pax or GNU tar, such as a long name."""
_MOST_UNPACKED = _MOST_BYTES + _MOST_FILES * 1024
"""Bytes of an archive, with its headers."""
_CUT_ARCHIVE = "it ends in the middle"
_TOO_MUCH = f"more than {_MOST_FILES} files or {_MOST_BYTES >> 20} MiB"
_MAKE = "make one with: nfsrdma collect -o FILE"
_FEW = 16 << 10
_LINK_PARTS = 40
_KINDS = {b"5": "a folder", b"6": "a FIFO", b"1": "a hard link", b"3": "a device", b"4": "a device"}
"""Names of the kinds of members of a tar archive, by type."""


@contextlib.contextmanager
def opened(path: Path, server: str = "") -> Iterator[Machine]:
    """The host whose files a bundle or a folder has.  UserError if it is neither."""
    with tempfile.TemporaryDirectory(prefix="nfsrdma-from-") as folder:
        copy = _Copy(Path(folder))
        if path.is_dir():
            copy.folder(path)
        else:
            copy.archive(path)
        copy.make_links()
        if not any(Path(folder).iterdir()) and not copy.odd:
            raise UserError(f"{path} is no bundle: it has no files", _MAKE)
        yield Machine(Path(folder), server, _recording(Path(folder), copy.odd))


class _Unpacked:
    """A stream of bytes, unpacked if gzip packed it, that has a limit."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._next = file.read(_FEW)
        if not self._next:
            raise EOFError("it is empty")
        packed = self._next[:2] == b"\x1f\x8b"
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if packed else None
        self._count = 0

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; b"" at the end.  UserError behind the limit."""
        data = b""
        while not data and (packed := self._next or self._file.read(_FEW)):
            self._next = b""
            if self._unpacker is None:
                data, self._next = packed[:size], packed[size:]
            else:
                data = self._unpacker.decompress(packed, size)
                self._next = self._unpacker.unconsumed_tail
                if self._unpacker.eof:
                    # what follows the packed data is no part of it
                    self._file.seek(0, os.SEEK_END) if self._file.seekable() else None
                    if not data:
                        break
        if self._unpacker is not None and not data and not self._unpacker.eof and self._count:
            raise EOFError(_CUT_ARCHIVE)
        self._count += len(data)
        if self._count > _MOST_UNPACKED:
            raise UserError(_TOO_MUCH, _MAKE)
        return data


def _member() -> type[tarfile.TarInfo]:
    """The members of a tar archive, with a limit for the headers that name them."""
    import tarfile

    class Member(tarfile.TarInfo):
        """A member whose headers of pax and GNU tar are short."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            """The member that a block describes; ReadError if it is a long header, or sparse.

            TarFile takes the end of the file, and an invalid block, for the end of the archive,
            which is a block of zeros.
            """
            try:
                member = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if len(buf) < tarfile.BLOCKSIZE:
                    raise tarfile.ReadError(_CUT_ARCHIVE) from error
                if any(buf):
                    raise tarfile.ReadError(f"a header is invalid: {error}") from error
                raise
            if member.type in _HEADERS and not 0 <= member.size <= _MOST_HEADER:
                raise tarfile.ReadError(
                    f"a header has {member.size} bytes, expected {_MOST_HEADER}"
                )
            if member.type == tarfile.GNUTYPE_SPARSE or member.size < 0:
                raise tarfile.ReadError("it has a sparse member")
            return member

    return Member


class _Copy:
    """A private copy of files that may be hostile."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._links: list[tuple[str, str]] = []
        self._made = {""}
        self.odd: dict[str, str] = {}
        """What is no regular file, and has the name of a pasted one."""
        self._files = self._bytes = 0

    def folder(self, source: Path) -> None:
        """Copy the files below a folder, without following links."""
        pending = [""]
        while pending:
            below = pending.pop()
            try:
                entries = list(os.scandir(source / below))
            except OSError:
                # a folder that this user may not read has no files
                continue
            for entry in entries:
                name = f"{below}{entry.name}"
                if entry.is_symlink():
                    self._links.append((name, os.readlink(entry.path)))  # noqa: PTH115 -- the text
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                    self._note(name, "a folder")
                elif entry.is_file(follow_symlinks=False):
                    self._copy_one(entry.path, name)
                else:
                    self._note(name, "a FIFO, a socket or a device")

    def _note(self, name: str, kind: str) -> None:
        parts = _parts(name)
        is_pasted = len(parts) == 1 and _pasted_as(_stem(parts[0]))
        if (is_pasted or parts == _GANESHA) and len(self.odd) < _MOST_FILES:
            self.odd["/".join(parts)] = kind

    def _copy_one(self, path: str, name: str) -> None:
        try:
            with opened_regular(path, os.O_RDONLY) as handle:
                data = os.read(handle, _FEW)
                # a buffer of the whole limit costs more than most files
                if len(data) == _FEW:
                    data += os.read(handle, _MOST_IN_FILE - _FEW)
                self._write(name, data)
        except PermissionError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error

    def archive(self, path: Path) -> None:
        """Extract a tar archive, plain or compressed by gzip."""
        import tarfile

        try:
            # a stream: an archive in a FIFO or on standard input is read once
            with path.open("rb") as file:  # noqa: SIM117 -- one line each
                with tarfile.open(
                    fileobj=cast(BinaryIO, _Unpacked(file)), mode="r|", tarinfo=_member()
                ) as tar:
                    for count, member in enumerate(tar):
                        if count >= _MOST_FILES:
                            raise UserError(_TOO_MUCH, _MAKE)
                        if member.size < 0:
                            # by a header of pax, which frombuf does not see
                            raise tarfile.ReadError(f"a member has {member.size} bytes")
                        if member.issym():
                            self._links.append((member.name, member.linkname))
                        elif member.isreg() and (data := tar.extractfile(member)):
                            self._write(member.name, data.read(_MOST_IN_FILE))
                        else:
                            self._note(member.name, _KINDS.get(member.type, "no regular file"))
                        # a stream keeps all that it has read
                        tar.members.clear()  # type: ignore[attr-defined]
        # RecursionError: tarfile reads a header that describes the next one by a recursion
        except (tarfile.TarError, EOFError, ValueError, RecursionError, zlib.error) as error:
            message = f"{path} is neither a folder nor a bundle: {one_line(str(error))}"
            raise UserError(message, _MAKE) from error
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error

    def _write(self, name: str, data: bytes) -> None:
        self._files += 1
        self._bytes += len(data)
        if self._files > _MOST_FILES or self._bytes > _MOST_BYTES:
            raise UserError(_TOO_MUCH, _MAKE)
        parts = _parts(name)
        if not parts:
            return
        # no link exists yet, so no part of this path can lead elsewhere
        where = "/".join(parts[:-1])
        with contextlib.suppress(OSError, ValueError):
            self._make_folder(where)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(f"{self._root}/{where}/{parts[-1]}", flags, 0o600)
            try:
                while data:
                    data = data[os.write(handle, data) :]
            finally:
                os.close(handle)

    def _make_folder(self, where: str) -> None:
        if where not in self._made:
            self._make_folder(where.rpartition("/")[0])
            os.mkdir(f"{self._root}/{where}")  # noqa: PTH102 -- many
            self._made.add(where)

    def make_links(self) -> None:
        """Make the links that stay inside, the last step."""
        for name, target in self._links[:_MOST_FILES]:
            parts = _parts(name)
            inside = _inside(parts, target)
            if inside is None:
                self._note(name, "a link that leads out of the folder")
                continue
            path = self._root.joinpath(*parts)
            with contextlib.suppress(OSError, ValueError):
                path.parent.mkdir(parents=True, exist_ok=True)
                # below another link, ".." would count from elsewhere
                if path.parent.resolve() == path.parent:
                    path.symlink_to(inside)
            if not path.exists():
                self._note(name, "a link to a file that is missing")


def _parts(name: str) -> list[str]:
    """The parts of a name below the root; [] if it leads elsewhere, or is none.

    UserError for one of more folders than any file of a host has.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > _MOST_FOLDERS + 1:
        message = f"a name in it has {len(parts) - 1} folders, expected at most {_MOST_FOLDERS}"
        raise UserError(message, _MAKE)
    return [] if name.startswith("/") or ".." in parts else parts


def _inside(parts: Sequence[str], target: str) -> str | None:
    """A relative target, of a link below the root, that cannot leave the root, or None.

    ``..`` is allowed at the beginning only: behind a name that is a link itself it would count
    from that link's target.
    """
    depth = len(parts) - 1
    target_parts = PurePosixPath(target).parts
    if target_parts and target_parts[0] == "/":
        # a link of the host's own root
        target_parts = (*[".."] * depth, *target_parts[1:])
    up = 0
    while up < len(target_parts) and target_parts[up] == "..":
        up += 1
    outside = up > depth or ".." in target_parts[up:] or len(target_parts) > _LINK_PARTS + depth
    return None if outside or not target_parts or not parts else "/".join(target_parts)


def _recording(folder: Path, odd: dict[str, str]) -> Recording:
    with _read(MANIFEST):
        manifest = _document(folder / MANIFEST, dict) or {}
    if manifest.get("format", FORMAT) != FORMAT:
        message = f"the bundle has format {manifest['format']!r}, expected {FORMAT}"
        raise UserError(message, "read it with the version of nfsrdma that wrote it")
    with _read(COMMANDS):
        rows = _document(folder / COMMANDS, list) or []
        programs = {tuple(row["argv"]): _result(row) for row in rows}
    with _read(NETLINK):
        netlink = _document(folder / NETLINK, dict) or {}
        links, nfsd = _links(netlink), _nfsd(netlink)
    with _read(MANIFEST):
        recording = Recording(
            programs=programs,
            links=links,
            nfsd=nfsd,
            addresses=_addresses(manifest.get("addresses", {})),
            facts={str(name): str(value) for name, value in manifest.get("facts", {}).items()},
            complete=bool(manifest),
            collected="toolkit" in manifest,
            root_user=manifest.get("root"),
            cut=frozenset(
                str(row["what"]).removeprefix("/")
                for row in manifest.get("left_out", ())
                if row["why"] == CUT
            ),
        )
    _add_pasted(folder, recording)
    for name, kind in odd.items():
        of = _pasted_as(_stem(name)) or f"/{name}"
        if not (folder / of.removeprefix("/")).exists():
            recording.unread.setdefault(of, f"cannot read {name}: it is {kind}, expected text")
    return recording


@contextlib.contextmanager
def _read(name: str) -> Iterator[None]:
    """Raise UserError with the document's name if it has another form."""
    try:
        yield
    except INVALID as error:
        raise UserError(f"{name} of the bundle is invalid: {fault(error)}", _MAKE) from error


def _document(path: Path, kind: type) -> Any:
    if not path.is_file():
        return None
    document = json.loads(path.read_bytes())
    if not isinstance(document, kind):
        raise ValueError(f"expected a JSON {'array' if kind is list else 'object'}")
    return document


def _result(row: dict[str, Any]) -> Result | None:
    if row.get("missing"):
        return None
    argv, status = row["argv"], row["status"]
    texts = row["stdout"], row["stderr"], *argv
    if not isinstance(argv, list) or not isinstance(status, int):
        raise ValueError(f"status {status!r} of {argv!r}")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"an output of {argv!r} is no text")
    return Result(tuple(argv), row["stdout"], row["stderr"], status)


def _links(document: dict[str, Any]) -> list[Link] | UserError | None:
    if "rdma_error" in document:
        error = document["rdma_error"]
        if not isinstance(error, list) or len(error) != _ERROR_PARTS:
            raise ValueError(f"rdma_error is {error!r}, expected a message and a hint")
        message, hint = error
        return UserError(str(message), str(hint))
    if "rdma_links" not in document:
        return None
    links = []
    for row in document["rdma_links"]:
        device = record(Device, row["device"])
        links.append(record(Link, {**row, "device": device}))
        for name, value in (vars(links[-1]) | {"device": ""} | vars(device)).items():
            if not isinstance(value, int if name in _NUMBERS else str):
                raise ValueError(f"{name} of an RDMA link is {value!r}")
    return links


def _nfsd(document: dict[str, Any]) -> NfsdStatus | None:
    status = typed(NfsdStatus | None, document.get("nfsd"))  # type: ignore[arg-type]
    listed = len(status.pending.rpcs) if status and status.pending else 0
    if listed > MOST_RPCS:
        raise ValueError(f"nfsd has {listed} pending RPCs, expected {MOST_RPCS}")
    return status


def _addresses(document: dict[str, Any]) -> dict[str, list[str]]:
    return {str(name): list(map(str, addresses)) for name, addresses in document.items()}


def _place(name: str) -> str | None:
    """The file of a host that a pasted file is; a rule of udev may have its folder in its name."""
    if match := _RULE.fullmatch(name):
        return f"{(match[1] or 'etc').replace('-', '/')}/udev/rules.d/{match[2]}"
    if name.endswith((".mount", ".automount")):
        return f"etc/systemd/system/{name}"
    return PASTED.get(name)


def _stem(name: str) -> str:
    return name.removesuffix(".txt").removesuffix(".json")


def _pasted_as(name: str) -> str:
    """The file or the program of a host whose text a pasted file is; empty for another file."""
    if where := _place(name):
        return f"/{where}"
    if argv := _PROGRAMS.get(name):
        return " ".join(argv)
    if match := _MODINFO.fullmatch(name):
        return f"modinfo -0 -- {match[1]}"
    return {"rdma-link": "rdma link", "ip-route-get": "ip -j route get"}.get(name, "")


def _add_pasted(folder: Path, recording: Recording) -> None:
    """Give pasted files their place, and take pasted outputs for those of programs."""
    for path in sorted(folder.iterdir()):
        name = _stem(path.name)
        of = _pasted_as(name)
        if not of or not path.is_file():
            continue
        data = path.read_bytes()
        data = b"".join(utf8_blocks(io.BytesIO(data), _MOST_IN_FILE))
        if b"\0" in data and not _WITH_NUL.fullmatch(name):
            reason = f"cannot read {path.name}: it has NUL bytes, expected text"
            recording.unread.setdefault(of, reason)
            continue
        printed = _as_printed(data)
        where = _place(name)
        if where and not (place := folder / where).exists():
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(printed)
        text = printed.decode(errors="replace")
        if name == "rdma-link" and recording.links is None:
            # without a device, rdma(8) prints nothing
            links = parse_links(text)
            recording.links = links if links or not text.strip() else None
            if recording.links is None:
                reason = f"cannot read {path.name}: no line of it is one that rdma link prints"
                recording.unread["rdma link"] = reason
        for result in _pasted_outputs(name, text):
            recording.programs.setdefault(result.argv, result)
    _add_release(folder)


def _add_release(folder: Path) -> None:
    """Add the kernel's release from /proc/version, which people paste in place of uname -r."""
    release, version = folder / PASTED["osrelease"], folder / PASTED["version"]
    if release.exists() or not version.is_file():
        return
    if match := _VERSION.match(version.read_bytes()[:_FEW]):
        with contextlib.suppress(OSError):
            release.parent.mkdir(parents=True, exist_ok=True)
            release.write_bytes(match[1] + b"\n")


def _as_printed(data: bytes) -> bytes:
    """Remove a byte order mark, carriage returns, and a shell's lines around the output."""
    *lines, last = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if lines and all(line.endswith(b"\r") for line in lines):
        lines = [line[:-1] for line in lines]
    lines.append(last)
    if _COMMAND_LINE.fullmatch(lines[0]):
        del lines[0]
    end = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].strip()), 0)
    if lines and _PROMPT.fullmatch(lines[end]):
        lines[end:] = [b""]
    return b"\n".join(lines)


def _pasted_outputs(name: str, text: str) -> Iterator[Result]:
    """The results of the programs whose output a pasted file is, as they would print it."""
    if argv := _PROGRAMS.get(name):
        yield Result(argv, text, "", 0)
    elif name == "ip-route-get":
        for row in parse_routes(text):
            argv = ("ip", "-j", "route", "get", str(row.get("dst")))
            yield Result(argv, json.dumps([row]), "", 0)
    elif match := _MODINFO.fullmatch(name):
        argv = ("modinfo", "-0", "--", match[1])
        if "filename:" in text:
            # -0 separates by NUL what is a line without it
            yield Result(argv, text if "\0" in text else text.replace("\n", "\0"), "", 0)
        elif " not found" in text:
            yield Result(argv, "", text, 1)
