# SPDX-License-Identifier: Apache-2.0
"""Loads libnfsrdma with cffi; its declarations are those of lib/nfsrdma.h and lib/load.h.

In a wheel and on a lab node the headers are part of the package (``data/lib``), in a checkout they
are in the folder ``lib`` beside the package.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import shipped

__all__ = ["Interrupts", "Library", "declarations", "load"]

_NAME = "libnfsrdma.so.0"
_VARIABLE = "NFSRDMA_LIBRARY"
_HINT = "apt install libnfsrdma0, or in a clone: make -C lib"

# struct stat of the C library, which has the layout of the kernel's asm/stat.h
_TYPES = """
typedef unsigned int mode_t;
struct timespec { long tv_sec; long tv_nsec; };
struct stat {
    unsigned long st_dev, st_ino; %s unsigned long st_rdev; %s
    struct timespec st_atim, st_mtim, st_ctim; %s
};
"""
_STATS = {
    **dict.fromkeys(
        ("x86_64", "ppc64le"),
        (
            "unsigned long st_nlink; unsigned int st_mode, st_uid, st_gid, __pad0;",
            "long st_size, st_blksize, st_blocks;",
            "long __unused[3];",
        ),
    ),
    **dict.fromkeys(
        ("aarch64", "riscv64", "loongarch64"),
        (
            "unsigned int st_mode, st_nlink, st_uid, st_gid;",
            "unsigned long __pad1; long st_size; int st_blksize, __pad2; long st_blocks;",
            "int __unused[2];",
        ),
    ),
}


class Interrupts:
    """Runs Python's signal handlers while a function of the library waits.

    The library calls ``callback`` after a signal and five times a second.  What a handler raises,
    such as KeyboardInterrupt, is kept for check(), and the function returns -EINTR.
    """

    def __init__(self, ffi: Any) -> None:
        # its arguments are the type, value and traceback of what a handler raised.  __init__ is a
        # function in C: no second signal is handled before it has stored them
        self._kept = Exception()
        keep = self._kept.__init__  # type: ignore[misc]
        self.callback = ffi.callback("int(void *)", _go_on, error=1, onerror=keep)
        """options.interrupted of the library."""

    def check(self) -> None:
        """Raise what a handler raised in a call of this thread that has returned now."""
        # handlers run in the main thread only
        if self._kept.args and threading.current_thread() is threading.main_thread():
            try:
                raise self._kept.args[1]
            finally:
                self._kept.args = ()


def _go_on(data: object) -> int:
    # the interpreter runs the handlers when it enters a function
    del data
    return 0


class Library(NamedTuple):
    """The loaded library: cffi's FFI, and the functions."""

    ffi: Any
    functions: Any
    interrupts: Interrupts

    def error(self, status: int, path: str = "") -> OSError:
        """The exception for a negative errno value that a function returned just now.

        Raises what a signal handler raised in the function.
        """
        self.interrupts.check()
        text = self.ffi.string(self.functions.nfsrdma_message()).decode(errors="replace")
        return OSError(-status, text or os.strerror(-status), *((path,) if path else ()))

    def sized(self, name: str) -> Any:
        """A new struct of the library that begins with its size, which tells it our version."""
        kind = f"struct nfsrdma_{name}"
        return self.ffi.new(f"{kind} *", {"size": self.ffi.sizeof(kind)})


def declarations() -> str:
    """The declarations of the headers as cffi's cdef() needs them.  UserError on other machines."""
    machine = platform.machine()
    if machine not in _STATS:
        raise UserError(f"the Python binding does not know struct stat of {machine}")
    text = _header().read_text() + shipped("lib/load.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r'^#.*$|^extern "C" \{\n|^\}\n', "", text, flags=re.MULTILINE)
    return _TYPES % _STATS[machine] + text


def _header_version() -> int:
    """NFSRDMA_VERSION of the header: one octet each for major, minor and patch."""
    text = _header().read_text()
    parts = re.findall(r"^#define NFSRDMA_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)$", text, re.M)
    major, minor, patch = map(int, parts)
    return major << 16 | minor << 8 | patch


def _text_of(version: int) -> str:
    return f"{version >> 16}.{version >> 8 & 0xFF}.{version & 0xFF}"


def _check_version(functions: Any, name: str) -> None:
    """UserError unless the library has the version that this package knows, or a later patch."""
    wanted = _header_version()
    try:
        loaded = functions.nfsrdma_version()
    except AttributeError:
        loaded = 0
    if loaded >> 8 == wanted >> 8 and loaded >= wanted:
        return
    version = _text_of(loaded) if loaded else "before 0.1.0"
    expected = f"{_text_of(wanted)} or a later {wanted >> 16}.{wanted >> 8 & 0xFF}"
    text = f"{name}: found version {version}, expected {expected}"
    raise UserError(text, "install libnfsrdma0 and nfsrdma-tools of one release")


def _header() -> Path:
    return shipped("lib/nfsrdma.h")


@functools.cache
def load() -> Library:
    """Load the library: $NFSRDMA_LIBRARY, the installed one, or the one built in this clone.

    UserError if there is none, or if it has a version that this package does not know.
    """
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations())
    built = Path(__file__).parents[2] / "lib" / "build" / _NAME
    names = [os.environ.get(_VARIABLE, "")] if os.environ.get(_VARIABLE) else [_NAME]
    if names == [_NAME] and built.is_file():
        names.append(str(built))
    reasons = []
    for name in names:
        try:
            functions = ffi.dlopen(name)
        except OSError as error:
            reasons.append(str(error))
            continue
        _check_version(functions, name)
        return Library(ffi, functions, Interrupts(ffi))
    # cffi adds what it tried instead
    raise UserError(reasons[0].partition(".  Additionally")[0], _HINT)
