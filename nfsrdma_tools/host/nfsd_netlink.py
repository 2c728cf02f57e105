# SPDX-License-Identifier: Apache-2.0
"""The state of nfsd through generic netlink, the interface of nfsdctl(8); it reads only.

The messages are those of Documentation/netlink/specs/nfsd.yaml; the kernel's side is
fs/nfsd/nfsctl.c.  Linux 6.7 has the family and rpc-status-get, 6.10 threads-get, version-get and
listener-get, 6.11 pool-mode-get, and 7.0 min-threads.  Any user may read.

A thread of nfsd may end, or a COMPOUND be freed, while the kernel lists them: kernels without
"nfsd: defer vfree of compound ops to fix rpc_status UAF" read freed memory, with a tiny
probability.  So nothing reads the RPCs unattended, day after day.

pyroute2 encodes and decodes the messages.  The socket is our own: before "nfsd: fix netlink dumpit
error handling for rpc_status_get", a long list ends in a part of a message and without an end, for
which pyroute2's socket waits for ever.

The kernel replies while it holds nfsd_mutex: as /proc/fs/nfsd does, a request waits while nfsd is
started or stopped.
"""

from __future__ import annotations

import errno
import heapq
import ipaddress
import os
import re
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, ctrlmsg, genlmsg, nla

from nfsrdma_tools.host.nfsd_status import (
    INVALID_REPLY,
    LIST_ENDS_EARLY,
    LIST_TOO_LONG,
    MOST_RPCS,
    NO_FAMILY,
    NfsdStatus,
    PendingList,
    PendingRpc,
    Socket,
    too_old,
)
from nfsrdma_tools.json_records import INVALID

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["NfsdCommand", "read"]

_GENERIC = 16
"""NETLINK_GENERIC."""
_CONTROL = 0x10
"""GENL_ID_CTRL."""
_GETFAMILY = 3
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_AT_ONCE = 32 << 10
"""Bytes of a datagram.  The kernel fills as much of a list at once as the last reader wanted: so
the family's number is read with this size, too (max_recvmsg_len in net/netlink/af_netlink.c)."""
_MOST_BYTES = 4 << 20
"""Bytes of a reply: 8192 threads (NFSD_MAXSERVS in fs/nfsd/nfssvc.c) of 300 bytes have fewer."""
_SECONDS = 5.0
"""The time for a reply."""
_MOST_TEXT = 64


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


class _RpcStatus(genlmsg):  # type: ignore[misc]
    nla_map = (
        (1, "XID", "be32"),
        (2, "FLAGS", "uint32"),
        (3, "PROG", "uint32"),
        (4, "VERSION", "uint8"),
        (5, "PROC", "uint32"),
        (6, "SERVICE_TIME", "int64"),
        (8, "SADDR4", "cdata"),
        (9, "DADDR4", "cdata"),
        (10, "SADDR6", "cdata"),
        (11, "DADDR6", "cdata"),
        (12, "SPORT", "be16"),
        (13, "DPORT", "be16"),
        (14, "COMPOUND_OPS", "uint32"),
    )


class _Threads(genlmsg):  # type: ignore[misc]
    nla_map = ((1, "THREADS", "uint32"), (5, "MIN_THREADS", "uint32"))


class _Version(nla):  # type: ignore[misc]
    nla_map = ((1, "MAJOR", "uint32"), (2, "MINOR", "uint32"), (3, "ENABLED", "flag"))


class _Versions(genlmsg):  # type: ignore[misc]
    nla_map = ((1, "VERSION", "version"),)
    version = _Version


class _Sock(nla):  # type: ignore[misc]
    nla_map = ((1, "ADDR", "cdata"), (2, "TRANSPORT_NAME", "asciiz"))


class _Listeners(genlmsg):  # type: ignore[misc]
    nla_map = ((1, "ADDR", "sock"),)
    sock = _Sock


class _PoolMode(genlmsg):  # type: ignore[misc]
    nla_map = ((1, "MODE", "asciiz"), (2, "NPOOLS", "uint32"))


_KINDS = {
    NfsdCommand.RPC_STATUS: _RpcStatus,
    NfsdCommand.THREADS: _Threads,
    NfsdCommand.VERSION: _Versions,
    NfsdCommand.LISTENER: _Listeners,
    NfsdCommand.POOL_MODE: _PoolMode,
}
_MOST_OPERATIONS = 64
_HALF = 8


class _CutError(Exception):
    """The rest of a reply is missing, or no netlink message."""


class _InvalidError(Exception):
    """A reply that is not what the specification says."""


class _Reply(NamedTuple):
    """The messages of a reply, and why some are missing, "" if none is."""

    messages: list[bytes]
    cut: str = ""


class _Socket:
    """A netlink socket, and the number of the family nfsd.

    Raises OSError: ENOENT if the kernel has no family nfsd, or module nfsd is not loaded.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _GENERIC)
        self._sequence = 0
        try:
            self._socket.bind((0, 0))
            self._family = self._number()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _number(self) -> int:
        request = ctrlmsg()
        request["cmd"], request["version"] = _GETFAMILY, 1
        request["attrs"] = [("CTRL_ATTR_FAMILY_NAME", "nfsd")]
        reply = self._ask(request, _CONTROL, NLM_F_REQUEST)
        with _decoding():
            return int(_decoded(ctrlmsg, reply.messages[0]).get_attr("CTRL_ATTR_FAMILY_ID"))

    def ask(self, command: NfsdCommand) -> _Reply:
        """The reply to a command.  OSError if the kernel refuses it, or does not know it."""
        request = genlmsg()
        request["cmd"], request["version"] = command.number, 1
        dump = NLM_F_DUMP if command is NfsdCommand.RPC_STATUS else 0
        return self._ask(request, self._family, NLM_F_REQUEST | dump)

    def _ask(self, request: Any, family: int, flags: int) -> _Reply:
        self._sequence += 1
        header = request["header"]
        header["type"], header["flags"] = family, flags
        header["sequence_number"], header["pid"] = self._sequence, 0
        request.encode()
        self._socket.sendto(bytes(request.data), (0, 0))
        messages: list[bytes] = []
        try:
            for message in self._answers(family):
                messages.append(message)
                if not flags & NLM_F_DUMP:
                    break
        except _CutError as error:
            return _Reply(messages, str(error))
        except OSError:
            # of a list, the kernel may send a part before the error
            if not messages:
                raise
            return _Reply(messages, LIST_ENDS_EARLY)
        return _Reply(messages)

    def _answers(self, family: int) -> Iterator[bytes]:
        """The messages of the family, to the end of the list."""
        size = 0
        for kind, message in self._received(time.monotonic() + _SECONDS):
            if kind in (_ERROR, _DONE):
                _raise_for(message)
            if kind == _DONE:
                return
            if kind == family:
                size += len(message)
                if size > _MOST_BYTES:
                    raise _CutError(LIST_TOO_LONG)
                yield message
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _received(self, deadline: float) -> Iterator[tuple[int, bytes]]:
        """Type and message of each message from the kernel to the last request."""
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data, (sender, _) = self._socket.recvfrom(_AT_ONCE)
            # before Python 3.10, no TimeoutError
            except socket.timeout:
                return
            if sender == 0:
                yield from _messages(data, self._sequence)


def _messages(data: bytes, sequence: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise _CutError(LIST_ENDS_EARLY)
        length, kind, _, of_request, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise _CutError(LIST_ENDS_EARLY)
        # what another request left behind
        if of_request == sequence:
            yield kind, data[at : at + length]
        at += (length + 3) & ~3


def _raise_for(message: bytes) -> None:
    """Raise OSError for the error number in a message."""
    if len(message) < _HEADER.size + 4:
        raise _CutError(LIST_ENDS_EARLY)
    (code,) = struct.unpack_from("=i", message, _HEADER.size)
    if code < 0:
        raise OSError(-code, os.strerror(-code))


def read(commands: Collection[NfsdCommand] = tuple(NfsdCommand)) -> NfsdStatus:
    """The replies of nfsd to ``commands``; one that fails has the reason in ``unknown``."""
    values: dict[str, Any] = {}
    unknown = {}
    try:
        with _Socket() as opened:
            for command in commands:
                try:
                    values |= _value(command, opened.ask(command))
                except OSError as error:
                    if command is NfsdCommand.RPC_STATUS and error.errno == errno.ENODEV:
                        # nfsd does not run
                        values["pending"] = PendingList()
                    else:
                        unknown[command.label] = _reason(command, error)
                except _InvalidError as error:
                    unknown[command.label] = str(error)
    except _InvalidError as error:
        unknown = {command.label: str(error) for command in commands}
    except OSError as error:
        why = NO_FAMILY if error.errno == errno.ENOENT else _text(error)
        unknown = {command.label: why for command in commands}
    return NfsdStatus(**values, unknown=unknown)


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
    """Raise _InvalidError for what pyroute2 and the readers raise for an invalid message."""
    try:
        yield
    except (struct.error, *INVALID) as error:
        raise _InvalidError(INVALID_REPLY) from error


def _decoded(kind: type, message: bytes) -> Any:
    answer = kind(message)
    answer.decode()
    return answer


def _threads(answer: Any) -> dict[str, Any]:
    threads = tuple(answer.get_attrs("THREADS"))
    if not threads:
        raise ValueError("no number of threads")
    return {"pool_threads": threads, "min_threads": answer.get_attr("MIN_THREADS") or None}


def _versions(answer: Any) -> dict[str, Any]:
    versions = set()
    for version in answer.get_attrs("VERSION"):
        major, minor = version.get_attr("MAJOR"), version.get_attr("MINOR")
        if version.get_attr("ENABLED") is not None:
            versions.add(f"4.{minor}" if major == 4 else str(major))
    # as nfsctl.versions() reads them: NFSv2 counts as none
    return {"versions": tuple(sorted(versions - {"2"}))}


def _listeners(answer: Any) -> dict[str, Any]:
    listeners = set()
    for listener in answer.get_attrs("ADDR"):
        name, address = listener.get_attr("TRANSPORT_NAME"), listener.get_attr("ADDR")
        if not re.fullmatch(r"[\w-]{1,32}", name):
            raise ValueError(f"transport {name!r:.40}")
        listeners.add(Socket(name, *_socket_address(address)))
    return {"listeners": tuple(sorted(listeners))}


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


def _pool_mode(answer: Any) -> dict[str, Any]:
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
    rpcs, cut = [], reply.cut
    for message in reply.messages:
        try:
            with _decoding():
                rpcs.append(_rpc(_decoded(_RpcStatus, message), now))
        except _InvalidError:
            # the beginning of a message that did not fit
            cut = LIST_ENDS_EARLY
            break
    first = heapq.nlargest(MOST_RPCS, rpcs, key=lambda rpc: rpc.age_us)
    return PendingList(tuple(first), len(rpcs), cut)


def _rpc(answer: Any, now: int) -> PendingRpc:
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


def _number(answer: Any, name: str) -> int:
    value = answer.get_attr(name)
    if not isinstance(value, int):
        raise ValueError(f"{name} is missing")
    return value


def _endpoints(answer: Any) -> tuple[str, str]:
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
