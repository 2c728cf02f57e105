# SPDX-License-Identifier: Apache-2.0
r"""Exports of nfsrdma: each has a file of its own below /etc/exports.d.

exports(5) splits at white space, and decodes ``\ooo`` to any byte of a path; nfs-utils reads it
in support/nfs/xio.c.  So ``render`` writes every byte that may be special as an escape.
"""

from __future__ import annotations

import ipaddress
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import etab
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.etab import EXPORTS_D, Exported
from nfsrdma_tools.host.nfs import mountinfo

__all__ = [
    "Export",
    "file_of",
    "previous",
    "refuse_foreign",
    "render",
    "verify",
]

_OPTIONS = ("sync", "root_squash", "no_subtree_check", "insecure")
"""Those of each export of ours."""
_PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nfsd", "proc", "pstore",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
))  # fmt: skip
"""File systems that show or control the kernel, and have no files of users."""
_HARMLESS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")
# a host, network, wildcard or netgroup of exports(5), without characters that end the word
_CLIENT = re.compile(r"[A-Za-z0-9*?@\[:][A-Za-z0-9.:/*?@_\[\]-]{0,254}")
_NETGROUP = re.compile(r"@[A-Za-z0-9][A-Za-z0-9._-]*")
# the security flavors that exports(5) once had as clients
_FLAVORS = ("gss/krb5", "gss/krb5i", "gss/krb5p")


@dataclass(frozen=True)
class Export:
    """A directory to export, and its clients."""

    path: Path
    clients: tuple[str, ...]
    """Hosts, networks or wildcards of exports(5)."""
    read_only: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The requested export options.

        ``insecure``, because an RDMA client's source port is above 1023.  ``fsid``, if the
        filesystem has no block device that identifies it (tmpfs, overlay); it never changes.
        """
        access = "ro" if self.read_only else "rw"
        options = [access, *_OPTIONS]
        if os.major(self.path.stat().st_dev) == 0:
            options.append(f"fsid={uuid.uuid5(uuid.NAMESPACE_URL, self.path.as_uri())}")
        return tuple(options)

    @property
    def entries(self) -> list[Exported]:
        """The exports of the path, one for each client."""
        options = self.options
        return [Exported(os.fspath(self.path), client, options) for client in self.clients]

    def check(self) -> None:
        """UserError unless the export can be written safely and served."""
        _check_path(self.path)
        if not self.clients:
            raise UsageError(
                "no clients given", "give the clients that may mount it: --client 192.0.2.0/24"
            )
        for client in self.clients:
            if fault := _fault(client):
                raise UsageError(f"client {client!r}: {fault}", "see: man 5 exports")
            try:
                etab.argument(client, os.fspath(self.path))
            except UserError as error:
                raise UsageError(error.message, error.hint) from error


def file_of(path: Path) -> Path:
    """The file below /etc/exports.d that holds the export of ``path``."""
    import hashlib  # readers of exports don't need it, and it loads a library

    slug = re.sub(r"[^A-Za-z0-9]+", "-", os.fspath(path)).strip("-")[:40] or "root"
    return EXPORTS_D / f"nfsrdma-{slug}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}.exports"


def render(export: Export) -> str:
    """The text of the export's file."""
    options = ",".join(export.options)
    clients = " ".join(f"{client}({options})" for client in export.clients)
    undo = "# written by nfsrdma server enable; nfsrdma server disable removes it"
    return f"{undo}\n{_escape(export.path)} {clients}\n"


def refuse_foreign(export: Export, table: Path | None = None) -> None:
    """UserError if another file exports the same path to the same client."""
    for each in etab.effective(table):
        if each.path == os.fspath(export.path) and etab.is_client(each.client, export.clients):
            raise UserError(
                f"{each.path} is already exported to {each.client}",
                "remove that export from /etc/exports or from the other file of /etc/exports.d",
            )


def previous(path: Path) -> list[Exported]:
    """The exports of this path that an earlier request has in effect."""
    file = file_of(path)
    effective, own = etab.effective(), etab.of_file(file)
    if not own and not file.exists():
        # somebody removed the file of an export that stays in effect
        elsewhere, ours = etab.named(), set(_OPTIONS)
        return [each for each in effective if each.path == os.fspath(path)
                and ours <= set(each.options) and not etab.is_named(each, elsewhere)]  # fmt: skip
    return [each for each in effective if etab.is_named(each, own)]


def verify(export: Export, hint: str = "", table: Path | None = None) -> None:
    """MismatchError unless each client has the export with the requested options."""
    requested = set(export.options)
    known = [each for each in etab.effective(table) if each.path == os.fspath(export.path)]
    for client in export.clients:
        of_client = [each for each in known if etab.is_client(each.client, [client])]
        if not any(requested <= set(each.options) for each in of_client):
            shown = " ".join(f"{e.client}({','.join(e.options)})" for e in known)
            wanted = f"{client}({','.join(export.options)})"
            raise MismatchError(f"export {export.path}", wanted, shown or "no export", hint)


def _fault(client: str) -> str:
    """Why exportfs cannot export to ``client``; "" if it can."""
    if not _CLIENT.fullmatch(client):
        return "expected a host, a network or a wildcard"
    if client.startswith("@"):
        return "" if _NETGROUP.fullmatch(client) else "expected @ and the name of a netgroup"
    name, slash, mask = client.partition("/")
    try:
        if slash and client not in _FLAVORS:
            network = ipaddress.ip_network(client, strict=False)
            # ipaddress also takes the inverse of a mask, 0.0.0.255
            if "." in mask and str(network.netmask) != mask:
                return f"{mask!r} is not a netmask"
        # a name of a host has no colon, and its last label is no number (RFC 1123, section 2.1)
        elif ":" in name or re.fullmatch(r"[0-9.]+", name):
            ipaddress.ip_address(name)
    except ValueError:
        example = "a network such as 192.0.2.0/24" if slash else "an address such as 192.0.2.1"
        return f"expected {example}"
    return ""


def _check_path(path: Path) -> None:
    text = os.fspath(path)
    if not text.isprintable() or "\\" in text:
        # mountd and the kernel pass paths as text: refuse characters that would be decoded twice
        raise UsageError(f"export path {text!r} has a backslash or control characters", "rename it")
    if not path.is_absolute():
        raise UsageError(f"export path {text!r}: expected an absolute path")
    if not path.is_dir():
        raise UserError(f"export path {text!r} is not a directory", "create it first")
    if path.resolve() != path:
        raise UserError(
            f"export path {text!r} resolves to {os.fspath(path.resolve())!r}", "give that path"
        )
    if (fstype := _fstype(path)) in _PSEUDO:
        message = f"export path {text!r} is on a pseudo file system, {fstype}"
        raise UsageError(message, "export a directory with files")


def _fstype(path: Path) -> str:
    """The type of the file system of ``path``; "" if no mount has its device, as on btrfs."""
    number = path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return next((entry.fstype for entry in mountinfo.read() if entry.device == device), "")


def _escape(path: Path) -> str:
    return "".join(chr(b) if b in _HARMLESS else f"\\{b:03o}" for b in os.fsencode(path))
