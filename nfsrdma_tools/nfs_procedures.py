# SPDX-License-Identifier: Apache-2.0
"""The names of NFS procedures and operations: RFC 1813, 7530, 8881, 7862, 8276."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["COMPOUND", "NFS", "compound", "name"]

NFS = 100003
"""The program number of NFS."""
COMPOUND = 1
"""The procedure of NFSv4 that has operations."""
_PROGRAMS = {
    NFS: "NFS", 100005: "MOUNT", 100021: "NLM", 100227: "NFSACL", 0x40000000: "NFS CB"
}  # fmt: skip
_NFS3 = (
    *("NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "WRITE", "CREATE"),
    *("MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK", "READDIR", "READDIRPLUS"),
    *("FSSTAT", "FSINFO", "PATHCONF", "COMMIT"),
)
_OPERATIONS = {
    3: "ACCESS", 4: "CLOSE", 5: "COMMIT", 6: "CREATE", 7: "DELEGPURGE", 8: "DELEGRETURN",
    9: "GETATTR", 10: "GETFH", 11: "LINK", 12: "LOCK", 13: "LOCKT", 14: "LOCKU", 15: "LOOKUP",
    16: "LOOKUPP", 17: "NVERIFY", 18: "OPEN", 19: "OPENATTR", 20: "OPEN_CONFIRM",
    21: "OPEN_DOWNGRADE", 22: "PUTFH", 23: "PUTPUBFH", 24: "PUTROOTFH", 25: "READ",
    26: "READDIR", 27: "READLINK", 28: "REMOVE", 29: "RENAME", 30: "RENEW", 31: "RESTOREFH",
    32: "SAVEFH", 33: "SECINFO", 34: "SETATTR", 35: "SETCLIENTID", 36: "SETCLIENTID_CONFIRM",
    37: "VERIFY", 38: "WRITE", 39: "RELEASE_LOCKOWNER", 40: "BACKCHANNEL_CTL",
    41: "BIND_CONN_TO_SESSION", 42: "EXCHANGE_ID", 43: "CREATE_SESSION", 44: "DESTROY_SESSION",
    45: "FREE_STATEID", 46: "GET_DIR_DELEGATION", 47: "GETDEVICEINFO", 48: "GETDEVICELIST",
    49: "LAYOUTCOMMIT", 50: "LAYOUTGET", 51: "LAYOUTRETURN", 52: "SECINFO_NO_NAME",
    53: "SEQUENCE", 54: "SET_SSV", 55: "TEST_STATEID", 56: "WANT_DELEGATION",
    57: "DESTROY_CLIENTID", 58: "RECLAIM_COMPLETE", 59: "ALLOCATE", 60: "COPY",
    61: "COPY_NOTIFY", 62: "DEALLOCATE", 63: "IO_ADVISE", 64: "LAYOUTERROR", 65: "LAYOUTSTATS",
    66: "OFFLOAD_CANCEL", 67: "OFFLOAD_STATUS", 68: "READ_PLUS", 69: "SEEK", 70: "WRITE_SAME",
    71: "CLONE", 72: "GETXATTR", 73: "SETXATTR", 74: "LISTXATTRS", 75: "REMOVEXATTR",
}  # fmt: skip
# not worth a name: SEQUENCE and PUTFH, in front of what a COMPOUND is for
_COMMON = {53, 22}
_MOST_NAMES = 4


def name(program: int, version: int, procedure: int, operations: Sequence[int] = ()) -> str:
    """A procedure as text: ``NFSv3 READ``, ``NFSv4 READ`` for a COMPOUND with ``operations``."""
    known = _PROGRAMS.get(program, f"program {program}")
    if program == NFS and version == 3 and procedure < len(_NFS3):
        return f"NFSv3 {_NFS3[procedure]}"
    if procedure == 0:
        return f"{known}v{version} NULL"
    if program == NFS and version == 4 and procedure == COMPOUND:
        return f"NFSv4 {compound(operations)}"
    return f"{known}v{version} procedure {procedure}"


def compound(operations: Sequence[int]) -> str:
    """The operations of a COMPOUND without those that each has: ``READ GETATTR``."""
    shown = [op for op in operations if op not in _COMMON] or operations
    texts = [_OPERATIONS.get(op, f"operation {op}") for op in shown]
    many = f"{texts[0]} x {len(texts)}" if len(texts) > 1 and len(set(texts)) == 1 else ""
    return many or " ".join(texts[:_MOST_NAMES]) or "COMPOUND"
