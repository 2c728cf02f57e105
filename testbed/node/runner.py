# SPDX-License-Identifier: Apache-2.0
"""Runs the function of a test in a node: see testbed/remote.py, which starts it.

The first line of the standard input is the request, other lines are what the test sends.  Each
line of the standard output is a message; what the function prints goes to the standard error.
"""

from __future__ import annotations
import __future__

import importlib
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from testbed.node import channel
from testbed.node.values import pack, unpack

__all__ = ["main"]

# of the values of the variables where an assertion fails
_LONGEST = 200
_NAMES = 30


class Sources:
    """Finds the modules that came with the request; their parents are packages without a file."""

    def __init__(self, modules: dict[str, tuple[str, str]]) -> None:
        self.modules = modules

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        if name in self.modules:
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        is_parent = any(other.startswith(f"{name}.") for other in self.modules)
        if is_parent and name not in ("testbed", "nfsrdma_tools"):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, _: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self.modules:
            file, source = self.modules[module.__name__]
            flags = __future__.annotations.compiler_flag
            exec(compile(source, file, "exec", flags, dont_inherit=True), vars(module))  # noqa: S102

    def failure(self, error: BaseException) -> dict[str, str]:
        """Its type, its message, its traceback, and the variables where an assertion failed."""
        import linecache
        import traceback

        files: dict[str, str] = dict(self.modules.values())
        for file, source in files.items():
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        first = error.__traceback__
        while first and not _is_tested(first, files):
            first = first.tb_next
        lines = traceback.format_exception(type(error), error, first or error.__traceback__)
        if isinstance(error, AssertionError):
            lines += _variables(first, files)
        return {"type": type(error).__name__, "message": str(error), "traceback": "".join(lines)}


def _is_tested(traceback: Any, files: dict[str, str]) -> bool:
    """Whether an entry is of a file of the test, or of a peer."""
    file = traceback.tb_frame.f_code.co_filename
    return file in files or "/testbed/peers/" in file


def _variables(traceback: Any, files: dict[str, str]) -> list[str]:
    """Each variable of the innermost frame of the test's files, a line each."""
    frame = None
    while traceback:
        if _is_tested(traceback, files):
            frame = traceback.tb_frame
        traceback = traceback.tb_next
    variables = dict(list(frame.f_locals.items())[:_NAMES]) if frame else {}
    return [f"    {name} = {_shown(value)}\n" for name, value in variables.items()]


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__name__}, whose repr() raises {type(error).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def main() -> None:
    """Run the request; the process ends, and does not wait for threads and processes it made.

    The call in the test waits for processes that hold the standard output or error of this one.
    """
    # children get neither the messages nor the results
    lines, channel._output[:] = os.fdopen(os.dup(0)), [os.fdopen(os.dup(1), "w")]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    request, pid = json.loads(lines.readline()), os.getpid()
    if request["talks"]:
        # a command of ssh leads a session of its own already
        if os.getpid() != os.getpgrp():
            os.setsid()
        import threading

        threading.Thread(target=channel.listen, args=(lines,), daemon=True).start()
    sources = Sources(request["modules"])
    sys.meta_path.insert(0, sources)
    # of a program that runs as `python -m`, in place of the one that runs here
    here = sys.modules.pop("__main__") if "__main__" in sources.modules else None
    try:
        for name in request["modules"]:
            importlib.import_module(name)
        function = getattr(importlib.import_module(request["module"]), request["function"])
        arguments, named = unpack(request["arguments"])
        result = function(*arguments, **named)
        if os.getpid() != pid:
            sys.exit(f"{request['function']} returned in a child process that it forked")
        message = ("result", pack(result))
    except BaseException as error:
        if os.getpid() != pid:
            raise
        message = ("error", sources.failure(error))
    del here
    channel.write(*message)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(0)
