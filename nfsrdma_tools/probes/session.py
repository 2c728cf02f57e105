# SPDX-License-Identifier: Apache-2.0
"""Probe sets attached to the running kernel: one program, compiled once and read repeatedly.

The probes belong to this process: the kernel detaches them when the process ends, however it
ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError, one_line, printable
from nfsrdma_tools.host import packages
from nfsrdma_tools.probes import kallsyms
from nfsrdma_tools.probes import program as programs
from nfsrdma_tools.probes.program import (
    NAMES,
    TRANSPORTS,
    Missing,
    Program,
    has_system,
    program,
    unreadable,
)

__all__ = ["Session", "available", "bcc", "captured_stderr", "check", "load", "session"]

_ISSUED = "sunrpc:rpc_task_begin"
# bcc's variable: a folder of kernel headers
_HEADERS = "BCC_KERNEL_SOURCE"
_FIRST_HEADER = "include/linux/kconfig.h"
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


class Session:
    """Attached programs; ``table`` has their counts since they were attached."""

    def __init__(self, bpf: Any, missing: tuple[Missing, ...], sets: tuple[str, ...] = ()) -> None:
        self.bpf = bpf
        self.missing = missing
        # the probe sets that this kernel has
        self.sets = sets
        # state of probe sets between readings, by name
        self.state: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """A map of the program, as bcc shows it."""
        return self.bpf[name]

    def attach_kprobe(self, function: str, program: str) -> None:
        """Run a program at each entry of the function; listed as missing if it does not exist."""
        if self._has_function(function):
            self.bpf.attach_kprobe(event=function, fn_name=program)

    def attach_kretprobe(self, function: str, program: str) -> None:
        """Run a program at each return of the function."""
        if self._has_function(function):
            self.bpf.attach_kretprobe(event=function, fn_name=program)

    def _has_function(self, function: str) -> bool:
        # check first, because bcc would print a message and raise.  By name: bcc finds no function
        # whose address the kernel hides, but the kernel itself attaches by name
        exists = function in kallsyms.addresses((function,))
        missing = Missing(f"kprobe:{function}", "this kernel has no such function")
        if not exists and missing not in self.missing:
            self.missing += (missing,)
        return exists


@contextlib.contextmanager
def session(sets: Sequence[str], pid: int = 0) -> Iterator[Session]:
    """Compile, load and attach; the probes are detached at the end of the block.

    With ``pid``, only RPCs of that process are counted, where a probe set filters by process.
    Raises UserError that names what this host lacks: root, bcc, events.
    """
    # the probe set cpu needs no transport
    check(transport="cpu" not in sets)
    wanted = program(sets, pid)
    _check_sets(wanted, sets)
    _check_issuer(wanted, pid)
    bpf = load(wanted.text, wanted.flags)
    # bcc would detach when the program ends, perhaps while this block does
    atexit.unregister(bpf.cleanup)
    try:
        yield Session(bpf, wanted.missing, wanted.sets)
    finally:
        bpf.cleanup()
        _forget_symbols(bpf)


def _check_sets(wanted: Program, sets: Sequence[str]) -> None:
    """UserError if the kernel has none of the probe sets."""
    if sets and not wanted.sets:
        lacks = wanted.missing[-1]
        lacking = unreadable(NAMES)
        here = ", ".join(name for name in NAMES if name not in lacking)
        hint = f"Linux 6.1 to 7.2 have it; this kernel has probe sets {here}"
        raise UserError(f"cannot attach {lacks.event}: {lacks.reason}", hint)


def _check_issuer(wanted: Program, pid: int) -> None:
    missing = {event.event: event.reason for event in wanted.missing}
    if pid and _ISSUED in missing:
        message = f"cannot count by process: no event {_ISSUED} ({missing[_ISSUED]})"
        raise UserError(message, "omit --pid")


def _forget_symbols(bpf: Any) -> None:
    """Have bcc read the kernel's symbols anew for the next session: modules come and go."""
    from bcc.libbcc import lib

    symbols = getattr(bpf, "_sym_caches", {}).pop(-1, None)
    if symbols:
        lib.bcc_free_symcache(symbols.cache, -1)


def check(transport: bool = True) -> None:
    """Check that probes can be attached here; UserError with what is missing.

    With ``transport`` a transport module has to be loaded.
    """
    if os.geteuid() != 0:
        raise UserError("only root may attach probes", "run this as root")
    if "[confidentiality]" in files.read(_LOCKDOWN):
        message = "the kernel is locked down (confidentiality), so probes cannot be read"
        raise UserError(message, "boot with lockdown=integrity, or without Secure Boot")
    if not programs.TRACEFS.joinpath("events").is_dir():
        message = f"no trace events at {programs.TRACEFS}"
        raise UserError(message, f"mount -t tracefs tracefs {programs.TRACEFS}")
    if transport and not any(has_system(name) for name in TRANSPORTS):
        message = "no transport module is loaded: neither rpcrdma nor nfsrdma"
        raise UserError(message, "mount first: nfsrdma mount")


def available() -> None:
    """Check that probe sets can be compiled here; UserError with what is missing."""
    check(transport=False)
    bcc()


def load(text: str, flags: Sequence[str]) -> Any:
    """Compile and attach a program, as bcc's BPF; UserError with the compiler's error.

    bcc includes the headers of bpf/headers, or those of the folder that the environment variable
    BCC_KERNEL_SOURCE names.
    """
    compiler = bcc()
    with _headers(), captured_stderr("the probes were compiled") as reason:
        # bcc's command line and a kernel's compiler-clang.h both define __HAVE_BUILTIN_BSWAP32__
        # and its like, so each compilation would warn
        try:
            return compiler.BPF(text=text, cflags=[*flags, "-Wno-macro-redefined"])
        except Exception as error:
            message = f"cannot attach the probes: {reason() or printable(str(error))}"
            raise UserError(message, "run: nfsrdma doctor") from error


def bcc() -> Any:
    """The BPF compiler.  UserError if it is missing, or is another library of that name."""
    try:
        import bcc as library
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise UserError(f"cannot import bcc: {error}", _install()) from error
    if not hasattr(library, "BPF"):
        message = (
            f"{library.__file__} is not the BPF compiler: PyPI's bcc is a crystal-lattice library"
        )
        raise UserError(message, f"pip uninstall bcc; {_install()}")
    return library


def _install() -> str:
    return f"{packages.install('bcc')}, and a venv with --system-site-packages"


@contextlib.contextmanager
def _headers() -> Iterator[None]:
    """Within the block bcc includes our headers, unless the user's environment names others."""
    if named := os.environ.get(_HEADERS):
        if not Path(named, _FIRST_HEADER).is_file():
            message = f"{_HEADERS}: {named} has no kernel headers: no {_FIRST_HEADER}"
            raise UserError(message, f"unset {_HEADERS}: probes need no kernel headers")
        yield
        return
    os.environ[_HEADERS] = str(programs.source() / "headers")
    try:
        yield
    finally:
        del os.environ[_HEADERS]


@contextlib.contextmanager
def captured_stderr(activity: str) -> Iterator[Callable[[], str]]:
    """Redirect descriptor 2 to a file; yields a function that returns the reason in it, or "".

    ``activity`` describes the block, as in "ended while ACTIVITY".  LLVM ends the process on a
    fatal error (``llvm::report_fatal_error``: abort, or exit): no Python code runs after that.  A
    child process waits until the block ends, and prints the reason if this process dies.
    """
    # in memory: a container may have no folder that can be written
    file = os.memfd_create("stderr")
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        kept = os.dup(2)
        stack.callback(os.close, kept)
        stack.enter_context(_report_death(file, kept, activity))
        os.dup2(file, 2)
        stack.callback(os.dup2, kept, 2)
        yield lambda: _reason(file)


def _reason(file: int) -> str:
    text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    # the lines after the error are details
    errors = (printable(line) for line in text.splitlines() if "error" in line.lower())
    return next(errors, one_line(text))


@contextlib.contextmanager
def _report_death(file: int, stderr: int, activity: str) -> Iterator[None]:
    """If this process ends in the block, a child prints why, in one line."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        _wait(read, file, stderr, activity)
    os.close(read)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            os.write(write, b".")
        os.close(write)
        os.waitpid(child, 0)


def _wait(done: int, file: int, stderr: int, activity: str) -> None:
    """In the child: wait until the parent reports success or has died."""
    try:
        # the parent handles these signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(done, 1):
            why = _reason(file) or "no message"
            os.write(stderr, f"nfsrdma: ended while {activity}: {why}\n".encode())
    finally:
        os._exit(0)
