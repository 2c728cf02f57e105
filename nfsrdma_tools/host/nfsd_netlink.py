# SPDX-License-Identifier: Apache-2.0
"""The state of nfsd through generic netlink, the interface of nfsdctl(8); it reads only.

The messages are those of Documentation/netlink/specs/nfsd.yaml; the kernel's side is
fs/nfsd/nfsctl.c.  Linux 6.7 has the family and rpc-status-get, 6.10 threads-get, version-get and
listener-get, 6.11 pool-mode-get, and 7.0 min-threads.  Any user may read.

A thread of nfsd may end, or a COMPOUND be freed, while the kernel lists them: kernels without
"nfsd: defer vfree of compound ops to fix rpc_status UAF" read freed memory, with a tiny
probability.  So nothing reads the RPCs unattended, day after day.

The kernel replies while it holds nfsd_mutex: as /proc/fs/nfsd does, a request waits while nfsd is
started or stopped.
"""

from __future__ import annotations

import errno
import heapq
import ipaddress
import re
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from nfsrdma_tools.host.netlink import DUMP, LIST_ENDS_EARLY, Attributes, CutError, NetlinkSocket
from nfsrdma_tools.host.nfsd_status import (
    INVALID_REPLY,
    MOST_RPCS,
    NO_FAMILY,
    NfsdStatus,
    PendingList,
    PendingRpc,
    Socket,
    too_old,
)
from nfsrdma_tools.json_records import INVALID

__all__ = ["NfsdCommand", "read"]

_GENERIC = 16
"""NETLINK_GENERIC."""
_CONTROL = 0x10
"""GENL_ID_CTRL."""
_GETFAMILY = 3
_GENERIC_HEADER = 4
"""Bytes of struct genlmsghdr: command and version."""


class NfsdCommand(Enum):
    """The commands that read: enum nfsd_cmd in include/uapi/linux/nfsd_netlink.h."""

    THREADS = 3, "threads-get"
    VERSION = 5, "version-get"
    LISTENER = 7, "listener-get"
    POOL_MODE = 9, "pool-mode-get"
    # the last one: the rest of a list that is too long precedes the next reply
    RPC_STATUS = 1, "rpc-status-get"

    def __init__(self, number: int, label: str) -> None:
        self.number, self.label = number, label


class _Family(Attributes):
    KNOWN = ((1, "FAMILY_ID", "uint16"), (2, "FAMILY_NAME", "text"))


class _RpcStatus(Attributes):
    KNOWN = (
        (1, "XID", "be32"),
        (2, "FLAGS", "uint32"),
        (3, "PROG", "uint32"),
        (4, "VERSION", "uint8"),
        (5, "PROC", "uint32"),
        (6, "SERVICE_TIME", "int64"),
        (8, "SADDR4", "bytes"),
        (9, "DADDR4", "bytes"),
        (10, "SADDR6", "bytes"),
        (11, "DADDR6", "bytes"),
        (12, "SPORT", "be16"),
        (13, "DPORT", "be16"),
        (14, "COMPOUND_OPS", "uint32"),
    )


class _Threads(Attributes):
    KNOWN = ((1, "THREADS", "uint32"), (5, "MIN_THREADS", "uint32"))


class _Version(Attributes):
    KNOWN = ((1, "MAJOR", "uint32"), (2, "MINOR", "uint32"), (3, "ENABLED", "flag"))


class _Versions(Attributes):
    KNOWN = ((1, "VERSION", _Version),)


class _Sock(Attributes):
    KNOWN = ((1, "ADDR", "bytes"), (2, "TRANSPORT_NAME", "text"))


class _Listeners(Attributes):
    KNOWN = ((1, "ADDR", _Sock),)


class _PoolMode(Attributes):
    KNOWN = ((1, "MODE", "text"), (2, "NPOOLS", "uint32"))


_KINDS = {
    NfsdCommand.RPC_STATUS: _RpcStatus,
    NfsdCommand.THREADS: _Threads,
    NfsdCommand.VERSION: _Versions,
    NfsdCommand.LISTENER: _Listeners,
    NfsdCommand.POOL_MODE: _PoolMode,
}
_MOST_OPERATIONS = 64
_HALF = 8


_Answer = TypeVar("_Answer", bound=Attributes)


class _InvalidError(Exception):
    """A reply that is not what the specification says."""


class _Reply(NamedTuple):
    """The messages of a reply, and why some are missing, "" if none is."""

    messages: list[bytes]
    cut: str = ""


class _Socket(NetlinkSocket):
    """A netlink socket, and the number of the family nfsd.

    Raises OSError: ENOENT if the kernel has no family nfsd, or module nfsd is not loaded.
    """

    def __init__(self) -> None:
        super().__init__(_GENERIC)
        try:
            self._family = self._number()
        except BaseException:
            self.close()
            raise

    def _number(self) -> int:
        request = _Family.of(FAMILY_NAME="nfsd").encoded()
        with _decoding():
            replies = list(self.ask(_CONTROL, _generic(_GETFAMILY) + request))
            return int(_decoded(_Family, replies[0]).get_attr("FAMILY_ID"))

    def reply(self, command: NfsdCommand) -> _Reply:
        """The reply to a command.  OSError if the kernel refuses it, or does not know it."""
        flags = DUMP if command is NfsdCommand.RPC_STATUS else 0
        found: list[bytes] = []
        try:
            found.extend(self.ask(self._family, _generic(command.number), flags))
        except CutError as error:
            return _Reply(found, str(error))
        except OSError:
            # of a list, the kernel may send a part before the error
            if not found:
                raise
            return _Reply(found, LIST_ENDS_EARLY)
        return _Reply(found)


def _generic(command: int) -> bytes:
    return bytes((command, 1, 0, 0))


def read(commands: Collection[NfsdCommand] = tuple(NfsdCommand)) -> NfsdStatus:
    """The replies of nfsd to ``commands``; one that fails has the reason in ``unknown``."""
    found: dict[str, Any] = {}
    unknown = {}
    try:
        with _Socket() as opened:
            for command in commands:
                try:
                    found |= _value(command, opened.reply(command))
                except OSError as error:
                    if command is NfsdCommand.RPC_STATUS and error.errno == errno.ENODEV:
                        # nfsd does not run
                        found["pending"] = PendingList()
                    else:
                        unknown[command.label] = _reason(command, error)
                except _InvalidError as error:
                    unknown[command.label] = str(error)
    except _InvalidError as error:
        unknown = {command.label: str(error) for command in commands}
    except OSError as error:
        why = NO_FAMILY if error.errno == errno.ENOENT else _text(error)
        unknown = {command.label: why for command in commands}
    return NfsdStatus(**found, unknown=unknown)


def _reason(command: NfsdCommand, error: OSError) -> str:
    if error.errno == errno.EOPNOTSUPP:
        return too_old(command.label)
    return _text(error)


def _text(error: OSError) -> str:
    return error.strerror or str(error)


def _value(command: NfsdCommand, reply: _Reply) -> dict[str, Any]:
    """The fields of NfsdStatus that a reply has."""
    if command is NfsdCommand.RPC_STATUS:
        return {"pending": _pending(reply)}
    if not reply.messages:
        raise _InvalidError(reply.cut)
    with _decoding():
        return _READERS[command](_decoded(_KINDS[command], reply.messages[0]))


@contextmanager
def _decoding() -> Iterator[None]:
    """Raise _InvalidError for what the readers raise for an invalid message."""
    try:
        yield
    except (struct.error, CutError, *INVALID) as error:
        raise _InvalidError(INVALID_REPLY) from error


def _decoded(kind: type[_Answer], message: bytes) -> _Answer:
    if len(message) < _GENERIC_HEADER:
        raise ValueError(f"a message of {len(message)} bytes")
    return kind.decoded(message[_GENERIC_HEADER:])


def _threads(answer: Attributes) -> dict[str, Any]:
    threads = tuple(answer.get_attrs("THREADS"))
    if not threads:
        raise ValueError("no number of threads")
    return {"pool_threads": threads, "min_threads": answer.get_attr("MIN_THREADS") or None}


def _versions(answer: Attributes) -> dict[str, Any]:
    found = set()
    for one in answer.get_attrs("VERSION"):
        major, minor = one.get_attr("MAJOR"), one.get_attr("MINOR")
        if one.get_attr("ENABLED") is not None:
            found.add(f"4.{minor}" if major == 4 else str(major))
    # as nfsctl.versions() reads them: NFSv2 counts as none
    return {"versions": tuple(sorted(found - {"2"}))}


def _listeners(answer: Attributes) -> dict[str, Any]:
    found = set()
    for one in answer.get_attrs("ADDR"):
        name, address = one.get_attr("TRANSPORT_NAME"), one.get_attr("ADDR")
        if not re.fullmatch(r"[\w-]{1,32}", name):
            raise ValueError(f"transport {name!r:.40}")
        found.add(Socket(name, *_socket_address(address)))
    return {"listeners": tuple(sorted(found))}


def _socket_address(data: bytes) -> tuple[str, int]:
    """Address and port of a struct sockaddr_storage; ValueError for another family than IP's."""
    (family,) = struct.unpack_from("=H", data)
    (port,) = struct.unpack_from(">H", data, 2)
    if family == socket.AF_INET:
        return _address(data[4:8]), port
    if family == socket.AF_INET6:
        return _address(data[8:24]), port
    raise ValueError(f"address family {family}")


def _address(data: bytes) -> str:
    if len(data) not in (4, 16):
        raise ValueError(f"an address of {len(data)} bytes")
    return str(ipaddress.ip_address(data))


def _pool_mode(answer: Attributes) -> dict[str, Any]:
    mode = answer.get_attr("MODE")
    if not re.fullmatch(r"[a-z]{1,16}", mode):
        raise ValueError(f"pool mode {mode!r:.40}")
    return {"pool_mode": mode}


_READERS = {
    NfsdCommand.THREADS: _threads,
    NfsdCommand.VERSION: _versions,
    NfsdCommand.LISTENER: _listeners,
    NfsdCommand.POOL_MODE: _pool_mode,
}


def _pending(reply: _Reply) -> PendingList:
    # rq_stime is ktime_get(), in microseconds
    now = time.monotonic_ns() // 1000
    found, cut = [], reply.cut
    for message in reply.messages:
        try:
            with _decoding():
                found.append(_rpc(_decoded(_RpcStatus, message), now))
        except _InvalidError:
            # the beginning of a message that did not fit
            cut = LIST_ENDS_EARLY
            break
    first = heapq.nlargest(MOST_RPCS, found, key=lambda rpc: rpc.age_us)
    return PendingList(tuple(first), len(found), cut)


def _rpc(answer: Attributes, now: int) -> PendingRpc:
    client, server = _endpoints(answer)
    return PendingRpc(
        xid=_number(answer, "XID"),
        program=_number(answer, "PROG"),
        version=_number(answer, "VERSION"),
        procedure=_number(answer, "PROC"),
        age_us=max(now - _number(answer, "SERVICE_TIME"), 0),
        client=client,
        client_port=answer.get_attr("SPORT") or 0,
        server=server,
        server_port=answer.get_attr("DPORT") or 0,
        operations=tuple(answer.get_attrs("COMPOUND_OPS")[:_MOST_OPERATIONS]),
    )


def _number(answer: Attributes, name: str) -> int:
    found = answer.get_attr(name)
    if not isinstance(found, int):
        raise ValueError(f"{name} is missing")
    return found


def _endpoints(answer: Attributes) -> tuple[str, str]:
    """The addresses of client and server, "" if the kernel reports none."""
    four = answer.get_attr("SADDR4"), answer.get_attr("DADDR4")
    if None not in four:
        return _address(four[0]), _address(four[1])
    client, server = answer.get_attr("SADDR6"), answer.get_attr("DADDR6")
    if client is None or server is None:
        return "", ""
    # before "nfsd: widen nfsd_genl_rqstp address fields to sockaddr_storage" the kernel has half of
    # an address, and reports what is behind it in struct nfsd_genl_rqstp: the flags
    flags = struct.pack("@L", _number(answer, "FLAGS"))
    if client[_HALF : _HALF + len(flags)] == flags:
        return _network(client), _network(server)
    return _address(client), _address(server)


def _network(data: bytes) -> str:
    """The network of the first half of an IPv6 address."""
    return f"{_address(data[:_HALF] + bytes(_HALF))}/64"
