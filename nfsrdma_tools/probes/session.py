# SPDX-License-Identifier: Apache-2.0
"""Accounts attached to the running kernel: one program compiled once, read as often as wanted.

What is attached belongs to this process: the kernel detaches it when the process ends, however it
ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.host import packages
from nfsrdma_tools.probes import trace_events
from nfsrdma_tools.probes.program import TRANSPORTS, Missing, Program, program
from nfsrdma_tools.probes.stderr_capture import aside

__all__ = ["Session", "available", "bcc", "check", "headers", "load", "session"]

_ISSUED = "sunrpc:rpc_task_begin"
_MODULES = Path("/lib/modules")
_KHEADERS = Path("/sys/kernel/kheaders.tar.xz")
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


class Session:
    """Programs that count; ``table`` gives what they have counted since they were attached."""

    def __init__(self, bpf: Any, missing: tuple[Missing, ...]) -> None:
        self.bpf = bpf
        self.missing = missing
        # what an account keeps between readings, by its name
        self.state: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """A map of the program, as bcc shows it."""
        return self.bpf[name]


@contextlib.contextmanager
def session(accounts: Sequence[str], pid: int = 0) -> Iterator[Session]:
    """Compile, load and attach; everything is detached when the block ends.

    With ``pid``, only RPCs of that process are counted, where a probe set filters by process.
    Raises UserError that says what this machine lacks: root, bcc, headers, events.
    """
    # CPU time is spent without any transport, too
    check(carried="cpu" not in accounts)
    wanted = program(accounts, pid)
    _check_issuer(wanted, pid)
    bpf = load(wanted.text, wanted.flags)
    # bcc would do it when the program ends, perhaps while this block does
    atexit.unregister(bpf.cleanup)
    try:
        yield Session(bpf, wanted.missing)
    finally:
        bpf.cleanup()
        _forget_symbols(bpf)


def _check_issuer(wanted: Program, pid: int) -> None:
    missing = {each.event: each.reason for each in wanted.missing}
    if pid and _ISSUED in missing:
        what = f"cannot count by process: no event {_ISSUED} ({missing[_ISSUED]})"
        raise UserError(what, "omit --pid")


def _forget_symbols(bpf: Any) -> None:
    """Have bcc read the kernel's symbols anew for the next session: modules come and go."""
    from bcc.libbcc import lib

    symbols = getattr(bpf, "_sym_caches", {}).pop(-1, None)
    if symbols:
        lib.bcc_free_symcache(symbols.cache, -1)


def check(carried: bool = True) -> None:
    """Whether anything can be attached here; UserError with what is missing.

    With ``carried`` a transport has to be loaded.
    """
    if os.geteuid() != 0:
        raise UserError("only root may attach probes", "run this as root")
    if "[confidentiality]" in files.read(_LOCKDOWN):
        what = "the kernel is locked down (confidentiality): it lets nobody read what probes count"
        raise UserError(what, "boot with lockdown=integrity, or without Secure Boot")
    if not trace_events.TRACEFS.joinpath("events").is_dir():
        what = f"no trace events at {trace_events.TRACEFS}"
        raise UserError(what, f"mount -t tracefs tracefs {trace_events.TRACEFS}")
    if carried and not any(trace_events.system(name) for name in TRANSPORTS):
        what = "neither rpcrdma nor nfsrdma is loaded: nothing carries NFS over RDMA here"
        raise UserError(what, "mount something first: nfsrdma mount")


def available() -> None:
    """Whether accounts can be compiled here, loaded or not; UserError with what is missing."""
    check(carried=False)
    bcc()
    headers()


def load(text: str, flags: Sequence[str]) -> Any:
    """A program compiled and attached, as bcc's BPF; UserError with the compiler's reason."""
    compiler = bcc()
    headers()
    with aside("the probes were compiled") as said:
        try:
            return compiler.BPF(text=text, cflags=[*flags, "-Wno-macro-redefined"])
        except Exception as error:
            why = said() or printable(str(error))
            what = f"the probes cannot be attached: {why}"
            raise UserError(what, "nfsrdma doctor") from error


def bcc() -> Any:
    """The BPF compiler; UserError when it is not there, or another library of that name is."""
    try:
        import bcc as found
    except (ImportError, OSError) as error:  # OSError: one of its libraries is not there
        raise UserError(f"no bcc here: {error}", _install()) from error
    if not hasattr(found, "BPF"):
        what = f"{found.__file__} is not the BPF compiler: PyPI's bcc is a crystal-lattice library"
        raise UserError(what, f"pip uninstall bcc; {_install()}")
    return found


def _install() -> str:
    return f"{packages.install('bcc')}, and a venv with --system-site-packages"


def headers() -> None:
    """UserError without the kernel's headers: bcc's own header wants them, if no program does."""
    release = os.uname().release
    if not (_MODULES / release / "build").is_dir() and not _KHEADERS.exists():
        raise UserError(f"no headers of {release}", packages.install("headers", release))
