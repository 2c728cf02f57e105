# SPDX-License-Identifier: Apache-2.0
"""Probe sets attached to the running kernel: one program, compiled once and read repeatedly.

The probes belong to this process: the kernel detaches them when the process ends, however it
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
from nfsrdma_tools.probes.stderr_capture import captured_stderr

__all__ = ["Session", "available", "bcc", "check", "headers", "load", "session"]

_ISSUED = "sunrpc:rpc_task_begin"
_MODULES = Path("/lib/modules")
_KHEADERS = Path("/sys/kernel/kheaders.tar.xz")
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


class Session:
    """Attached programs; ``table`` has their counts since they were attached."""

    def __init__(self, bpf: Any, missing: tuple[Missing, ...]) -> None:
        self.bpf = bpf
        self.missing = missing
        # state of probe sets between readings, by name
        self.state: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """A map of the program, as bcc shows it."""
        return self.bpf[name]


@contextlib.contextmanager
def session(sets: Sequence[str], pid: int = 0) -> Iterator[Session]:
    """Compile, load and attach; the probes are detached at the end of the block.

    With ``pid``, only RPCs of that process are counted, where a probe set filters by process.
    Raises UserError that names what this host lacks: root, bcc, headers, events.
    """
    # the probe set cpu needs no transport
    check(carried="cpu" not in sets)
    wanted = program(sets, pid)
    _check_issuer(wanted, pid)
    bpf = load(wanted.text, wanted.flags)
    # bcc would detach when the program ends, perhaps while this block does
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
    """Check that probes can be attached here; UserError with what is missing.

    With ``carried`` a transport module has to be loaded.
    """
    if os.geteuid() != 0:
        raise UserError("only root may attach probes", "run this as root")
    if "[confidentiality]" in files.read(_LOCKDOWN):
        what = "the kernel is locked down (confidentiality), so probes cannot be read"
        raise UserError(what, "boot with lockdown=integrity, or without Secure Boot")
    if not trace_events.TRACEFS.joinpath("events").is_dir():
        what = f"no trace events at {trace_events.TRACEFS}"
        raise UserError(what, f"mount -t tracefs tracefs {trace_events.TRACEFS}")
    if carried and not any(trace_events.system(name) for name in TRANSPORTS):
        what = "no transport module is loaded: neither rpcrdma nor nfsrdma"
        raise UserError(what, "mount first: nfsrdma mount")


def available() -> None:
    """Check that probe sets can be compiled here; UserError with what is missing."""
    check(carried=False)
    bcc()
    headers()


def load(text: str, flags: Sequence[str]) -> Any:
    """Compile and attach a program, as bcc's BPF; UserError with the compiler's error."""
    compiler = bcc()
    headers()
    with captured_stderr("the probes were compiled") as said:
        try:
            return compiler.BPF(text=text, cflags=[*flags, "-Wno-macro-redefined"])
        except Exception as error:
            why = said() or printable(str(error))
            what = f"cannot attach the probes: {why}"
            raise UserError(what, "run: nfsrdma doctor") from error


def bcc() -> Any:
    """The BPF compiler.  UserError if it is missing, or is another library of that name."""
    try:
        import bcc as found
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise UserError(f"cannot import bcc: {error}", _install()) from error
    if not hasattr(found, "BPF"):
        what = f"{found.__file__} is not the BPF compiler: PyPI's bcc is a crystal-lattice library"
        raise UserError(what, f"pip uninstall bcc; {_install()}")
    return found


def _install() -> str:
    return f"{packages.install('bcc')}, and a venv with --system-site-packages"


def headers() -> None:
    """UserError without the kernel headers, which bcc's own header includes."""
    release = os.uname().release
    if not (_MODULES / release / "build").is_dir() and not _KHEADERS.exists():
        raise UserError(f"no headers of kernel {release}", packages.install("headers", release))
