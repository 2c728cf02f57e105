# SPDX-License-Identifier: Apache-2.0
"""libnfsrdma over an RDMA device and an NFS server in this process: see device.h.

``build()`` compiles the unchanged sources of lib/ with both; ``Device`` is what a test sets, reads
and breaks.  A form with a sanitizer loads into a Python that was started with ``preloaded()``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.command import run
from nfsrdma_tools.lock import file_lock

__all__ = ["COMPILER", "SANITIZER", "Change", "Device", "build", "preloaded"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "lib"
COMPILER = shutil.which("gcc")
SANITIZER = os.environ.get("NFSRDMA_SANITIZER", "")
"""address or thread: the form that the tests load."""
_WIRE = [ROOT / "kmod" / "wire" / f"{name}.c" for name in ("header", "private", "nfs3", "notice")]
_FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_LINKED = ("-Wl,-z,defs", "-Wl,--wrap=getaddrinfo", "-ltirpc", "-lpthread", "-lm")
_RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
# Python frees nothing at its end
_OPTIONS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66"},
    "thread": {"TSAN_OPTIONS": f"exitcode=66:suppressions={HERE / 'tsan.supp'}"},
}
FILE, FOLDER, LINK = 1, 2, 5
ANY = 2**64 - 1
GETATTR, LOOKUP, READ, WRITE, CREATE, MKDIR, REMOVE, RENAME = 1, 3, 6, 7, 8, 9, 12, 14
READDIRPLUS, COMMIT = 17, 21
OPERATION = 0x10000
"""Added to the number of an operation of NFSv4.1, where a procedure of NFSv3 could stand."""
GRACE_CLIENTS, GRACE_FOREVER = 2**64 - 2, 2**64 - 1
_FAULTS = 8192
_FOLDER = ROOT / "out" / "device"


class Change(NamedTuple):
    """A fault that a test puts into a source of the library, in place of a line of it."""

    source: str
    line: str
    fault: str


def build(sanitizer: str = "", change: Change | None = None) -> Path:
    """The library; each source is compiled once, for all tests and workers."""
    assert COMPILER
    # rpcgen's files, and nothing else; two makes at once would remove each other's
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with file_lock(_FOLDER / "generated.lock"):
        run("make", "-s", "-C", LIBRARY, "build/nfs3_xdr.o", timeout=600)
    generated = LIBRARY / "build"
    sources = [*sorted(LIBRARY.glob("*.c")), *_WIRE, *sorted(HERE.glob("*.c"))]
    headers = [*LIBRARY.glob("*.h"), *HERE.glob("*.h"), *(ROOT / "kmod" / "wire").glob("*.h")]
    tirpc = run("pkg-config", "--cflags", "libtirpc").stdout.split()
    include = (f"-I{LIBRARY}", f"-I{generated}", f"-I{ROOT / 'kmod'}", *tirpc)
    # gcc warns of other things where it adds checks
    kind = (f"-fsanitize={sanitizer}", "-O1") if sanitizer else ("-O2", "-Werror")
    words = (*_FLAGS, *kind, *include)
    common = "".join((*words, *(each.read_text() for each in sorted(headers))))
    objects = [generated / "nfs3_xdr.o"]
    for source in sources:
        text = source.read_text()
        if change and change.source == source.name:
            assert text.count(change.line) == 1, change
            # what the change leaves unused is no error
            text = text.replace(change.line, change.fault)
            objects.append(_compiled(source.name, text, common, (*words, "-w")))
        else:
            objects.append(_compiled(source.name, text, common, words))
    linked: tuple[str | Path, ...] = (*kind, "-shared", *objects, *_LINKED)
    return _made(f"libnfsrdma-{_digest(*map(str, linked))}.so", linked)


def _compiled(name: str, text: str, common: str, words: tuple[str, ...]) -> Path:
    """The object of a source."""
    stem = f"{Path(name).stem}-{_digest(text, common)}"
    source = _FOLDER / f"{stem}.c"
    if not source.is_file():
        with tempfile.TemporaryDirectory(dir=_FOLDER) as made:
            new = Path(made) / source.name
            new.write_text(f'#line 1 "{name}"\n{text}')
            new.rename(source)
    return _made(f"{stem}.o", (*words, f"-I{HERE}", "-c", source))


def _made(name: str, words: tuple[str | Path, ...]) -> Path:
    """The file that the compiler makes; it is made once."""
    path = _FOLDER / name
    if not path.is_file():
        assert COMPILER
        with tempfile.TemporaryDirectory(dir=_FOLDER) as made:
            new = Path(made) / name
            run(COMPILER, *words, "-o", new, timeout=600)
            new.rename(path)
    return path


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def preloaded(sanitizer: str) -> tuple[list[str], dict[str, str]] | None:
    """Command and environment of a Python that loads a form with a sanitizer; None without it."""
    assert COMPILER
    name = _RUNTIMES[sanitizer]
    runtime = run(COMPILER, f"-print-file-name={name}").stdout.strip()
    if runtime == name:
        return None
    environment = {
        **os.environ,
        **_OPTIONS[sanitizer],
        # the sanitizers look for the functions of XDR behind themselves, when they are loaded
        "LD_PRELOAD": f"{runtime} libtirpc.so.3",
        "NFSRDMA_SANITIZER": sanitizer,
        # each object has memory of its own, and so its own red zone
        "PYTHONMALLOC": "malloc",
    }
    # libtsan of gcc 12 refuses the address space of newer kernels
    fixed = ["setarch", "-R"] if sanitizer == "thread" and shutil.which("setarch") else []
    return [*fixed, sys.executable], environment


class Device:
    """The device and the server of this process; attributes are those of device.h."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions = ctypes.CDLL(str(path))
        self.functions.device_get.restype = ctypes.c_int64
        self.functions.device_get_file.restype = ctypes.c_int64
        self.functions.device_signal_at.restype = ctypes.c_int64
        self.opcode = self.functions.device_opcode
        self.opcode.argtypes = [ctypes.py_object] * 3
        self.opcode.restype = None
        self.functions.device_reset()

    def __getattr__(self, name: str) -> int:
        value = int(self.functions.device_get(name.encode()))
        if name.startswith("_") or value < 0:
            raise AttributeError(name)
        return value

    def set(self, **settings: int) -> None:
        """Settings of the device and of the server, see struct settings."""
        for name, value in settings.items():
            assert not self.functions.device_set(name.encode(), ctypes.c_uint64(value)), name

    def hold(self, *procedures: int) -> None:
        """Keep the replies of these procedures, and send all others that were kept."""
        self.set(hold=sum(1 << each for each in procedures))

    def hold4(self, *operations: int) -> None:
        """The same of COMPOUNDs that have one of these operations."""
        self.set(hold4=sum(1 << each for each in operations))

    def fail(self, step: str, error: int, after: int = 0, times: int = 1) -> None:
        """Fail a step of verbs or rdma_cm."""
        words = (ctypes.c_uint64(after), ctypes.c_uint64(times))
        self.functions.device_fail(step.encode(), error, *words)

    def heal(self) -> None:
        """Have all steps succeed."""
        self.fail("", 0, times=0)

    def error(self, procedure: int, status: int, offset: int = ANY, times: int = 1) -> None:
        """Answer the next calls of a procedure, or operations, with a status of the RFCs."""
        words = (ctypes.c_uint32(procedure), ctypes.c_uint64(offset), ctypes.c_uint32(status))
        self.functions.device_error(*words, ctypes.c_uint64(times))

    def no_errors(self) -> None:
        """Forget the errors that no call has had yet."""
        self.error(0, 0, times=0)

    def end_connections(self) -> None:
        """End all connections, as a server that restarts without loss does."""
        self.functions.device_end()

    def restart(self) -> None:
        """Restart the server: what no COMMIT or stable write has put on its disk is lost."""
        self.functions.device_restart()

    def expire(self, path: str = "", admin: bool = False, forgotten: bool = False) -> None:
        """Revoke the state of all clients, or the opens of a file.

        Their use has NFS4ERR_EXPIRED, with ``admin`` NFS4ERR_ADMIN_REVOKED; SEQUENCE reports it
        until FREE_STATEID.  The server has no trace of what is ``forgotten``.
        """
        words = (os.fsencode(path) or None, ctypes.c_bool(admin), ctypes.c_bool(forgotten))
        self.functions.device_expire(*words)

    def discard_clients(self) -> None:
        """Discard all clients of NFSv4.1 and their sessions, as a server may do without leases."""
        self.functions.device_discard_clients()

    def put(self, path: str, data: bytes = b"", kind: int = FILE, mode: int = 0o644) -> None:
        """Make a file, a directory or a link on the server, and the directories above it."""
        words = (os.fsencode(path), kind, mode, data, ctypes.c_uint64(len(data)))
        assert not self.functions.device_put(*words), path

    def put_name(self, path: str, name: bytes) -> None:
        """Put a file into a directory by a name that no path has, such as one with a slash."""
        assert not self.functions.device_put_name(os.fsencode(path), name), path

    def set_time(self, path: str, ns: int) -> None:
        """Set the times of a file, in nanoseconds."""
        assert not self.functions.device_set_time(os.fsencode(path), ctypes.c_uint64(ns)), path

    def get(self, path: str, disk: bool = False) -> bytes | None:
        """The bytes of a file; None if there is none."""
        words = (os.fsencode(path), ctypes.c_bool(disk))
        size = self.functions.device_get_file(*words, None, ctypes.c_uint64(0))
        if size < 0:
            return None
        data = ctypes.create_string_buffer(size + 1)
        self.functions.device_get_file(*words, data, ctypes.c_uint64(size))
        return data.raw[:size]

    def names(self, path: str) -> list[str]:
        """The names in a directory; none if there is no directory."""
        text = ctypes.create_string_buffer(_FAULTS)
        words = (os.fsencode(path), text, ctypes.c_size_t(_FAULTS))
        assert self.functions.device_names(*words) >= 0, path
        return os.fsdecode(text.value).splitlines()

    @property
    def faults(self) -> list[str]:
        """Calls and messages of the library that verbs or the RFCs forbid."""
        text = ctypes.create_string_buffer(_FAULTS)
        self.functions.device_faults(text, ctypes.c_size_t(_FAULTS))
        return text.value.decode().splitlines()

    @property
    def objects(self) -> dict[str, int]:
        """Objects of the device that exist, without those of which there is none."""
        kinds = ("contexts", "pds", "mrs", "cqs", "qps", "channels", "ids", "event_channels")
        counts = {kind: getattr(self, kind) for kind in kinds}
        return {kind: count for kind, count in counts.items() if count}

    def reset(self) -> None:
        """All settings, counts, files and faults as at the start."""
        self.functions.device_reset()

    def signal_at(self, number: int) -> int:
        """Have SIGINT arrive at this opcode, counted from now; returns those that were counted."""
        return int(self.functions.device_signal_at(ctypes.c_int64(number)))

    def tracing(self, frame: Any, event: str, arg: Any) -> Any:
        """For sys.settrace(): counts the opcodes of the package, and of nothing else."""
        del event, arg
        if "nfsrdma_tools" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.opcode
