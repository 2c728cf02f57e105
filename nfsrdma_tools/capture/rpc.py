# SPDX-License-Identifier: Apache-2.0
"""RPC messages, as far as captures need them: RFC 5531, and the names of NFS procedures.

All functions read what a stranger sent, and raise ValueError for what is no such message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nfsrdma_tools import nfs_procedures
from nfsrdma_tools.capture.xdr import Reader
from nfsrdma_tools.nfs_procedures import COMPOUND, NFS

__all__ = ["CALL", "REPLY", "Rpc", "name", "result_positions", "rpc"]

CALL, REPLY = 0, 1
_ACCEPTED = ("", "no such program", "no such version", "no such procedure", "garbage arguments")
_MOST_OPERATIONS = 256
# operations of NFSv4
_ACCESS, _GETATTR, _GETFH, _PUTFH, _READ, _SEQUENCE = 3, 9, 10, 22, 25, 53
# arguments and results of a fixed length, in bytes
_ARGUMENTS = {_SEQUENCE: 32, 24: 0, 31: 0, 32: 0, _ACCESS: 4, _GETFH: 0, _READ: 28}
_RESULTS = {_SEQUENCE: 36, _PUTFH: 0, 24: 0, 31: 0, 32: 0, 15: 0, _ACCESS: 8}


class Rpc(NamedTuple):
    """The head of a message: a Call has program, version and procedure, a Reply its ``error``.

    ``body`` is where arguments or results begin.
    """

    xid: int
    kind: int
    program: int = 0
    version: int = 0
    procedure: int = 0
    error: str = ""
    body: int = 0


def rpc(message: bytes) -> Rpc:
    """The head of an RPC message."""
    reader = Reader(message)
    xid, kind = reader.word(), reader.word()
    if kind == CALL:
        return _call(reader, xid, len(message))
    if kind == REPLY:
        return _reply(reader, xid)
    raise ValueError(f"message type {kind}")


def _call(reader: Reader, xid: int, size: int) -> Rpc:
    version, program, program_version, procedure = (reader.word() for _ in range(4))
    if version != 2:
        raise ValueError(f"RPC version {version}")
    try:
        for _ in range(2):
            reader.word()
            reader.opaque()
        body = reader.at
    except ValueError:
        # the capture has no more of it
        body = size
    return Rpc(xid, CALL, program, program_version, procedure, body=body)


def _reply(reader: Reader, xid: int) -> Rpc:
    denied = reader.word()
    if denied == 1:
        return Rpc(xid, REPLY, error="denied", body=reader.at)
    if denied:
        raise ValueError(f"reply state {denied}")
    reader.word()
    reader.opaque()
    accepted = reader.word()
    error = _ACCEPTED[accepted] if accepted < len(_ACCEPTED) else f"accept state {accepted}"
    return Rpc(xid, REPLY, error=error, body=reader.at)


def name(head: Rpc, message: bytes) -> str:
    """The procedure of a Call as text: ``NFSv3 READ``, ``NFSv4 READ GETATTR``."""
    if (head.program, head.version, head.procedure) == (NFS, 4, COMPOUND):
        operations = _operations(message[head.body :])
    else:
        operations = []
    return nfs_procedures.name(head.program, head.version, head.procedure, operations)


def _operations(arguments: bytes) -> list[int]:
    """The operations of a COMPOUND, up to the first whose length is not known."""
    reader = Reader(arguments)
    operations: list[int] = []
    try:
        reader.opaque()
        reader.word()
        for _ in range(min(reader.word(), _MOST_OPERATIONS)):
            operations.append(reader.word())
            _skip_arguments(reader, operations[-1])
    except ValueError:
        pass
    return operations


def _skip_arguments(reader: Reader, operation: int) -> None:
    if operation in _ARGUMENTS:
        reader.skip(_ARGUMENTS[operation])
    elif operation in (_PUTFH, 15):
        reader.opaque()
    elif operation == _GETATTR:
        reader.skip(4 * reader.word())
    else:
        raise ValueError("length unknown")


def result_positions(reply: bytes, lengths: Sequence[int]) -> list[int] | None:
    """Where the data of Write chunks belong in a reduced Reply of a COMPOUND of NFSv4.

    ``lengths`` are the bytes in each chunk; the result has a position for each.  None if the Reply
    has an operation that this function does not know in front of one of them.
    """
    try:
        head = rpc(reply)
        return _read_positions(Reader(reply, head.body), lengths, len(reply))
    except ValueError:
        return None


def _read_positions(reader: Reader, lengths: Sequence[int], size: int) -> list[int] | None:
    positions: list[int] = []
    reader.word()
    reader.opaque()
    for _ in range(min(reader.word(), _MOST_OPERATIONS)):
        operation, status = reader.word(), reader.word()
        if status or len(positions) == len(lengths):
            break
        if operation == _READ:
            reader.word()
            length = reader.word()
            positions.append(reader.at)
            if length != lengths[len(positions) - 1]:
                reader.skip(length)
        else:
            _skip_result(reader, operation)
    # chunks behind the operation that failed are empty
    missing = len(lengths) - len(positions)
    if any(lengths[len(positions) :]):
        return None
    return positions + [size] * missing


def _skip_result(reader: Reader, operation: int) -> None:
    if operation in _RESULTS:
        reader.skip(_RESULTS[operation])
    elif operation == _GETFH:
        reader.opaque()
    elif operation == _GETATTR:
        reader.skip(4 * reader.word())
        reader.opaque()
    else:
        raise ValueError("length unknown")
