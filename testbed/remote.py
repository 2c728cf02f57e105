# SPDX-License-Identifier: Apache-2.0
"""Functions that run in a node of a lab, beside the assertions that need them.

    @on("client")
    def size(path: str) -> int:
        return Path(path).stat().st_size

    def test_it(pair: Lab) -> None:
        assert size(pair, "/export/file") == 0

A call sends the lines of the module that the function needs (source.py) to a new Python process in
the node, over the lab's connection, and returns the result.  Arguments and results are values of
testbed/node/values.py.  An exception there is a RemoteError here, with its traceback and, of a
failed assertion, the variables.  Each call starts from the source: no state is left between two.
The node runs the top of the module again, with its own environment.

``started`` runs the function beside the block of a ``with``: both talk, by Running here and by
testbed/node/channel.py there.

Not execnet, RPyC or mitogen: their one interpreter per connection keeps state from test to test,
and a task that hangs in the kernel, as tests of faults want it, takes it along; execnet sends a
function without what it names, mitogen imports pytest there.  Not cloudpickle: its bytecode is of
one version of Python, and a node has another than the host.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import json
import queue
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from nfsrdma_tools.command import Result, kill
from nfsrdma_tools.lab.config import LabConfig
from testbed.node.values import pack, unpack
from testbed.source import MODELS, modules_of

__all__ = ["Remote", "RemoteError", "Running", "on"]

P = ParamSpec("P")
R = TypeVar("R")
# the folder of a node's copies of testbed/node, each by its digest
FOLDER = "/opt/nfsrdma/testbed"
_MISSING = 77
# the status of a command that lab.run killed at its limit
_KILLED = 124
# exits with _MISSING if this node has no copy yet; $1 is its folder
_START = f"""
import os, sys
os.path.isdir(sys.argv[1]) or sys.exit({_MISSING})
sys.path.insert(0, sys.argv[1])
from testbed.node.runner import main
main()
"""
# the folder is complete as soon as it has its name; another call may have made it meanwhile
_COPY = """
draft=$1.$$
mkdir -p "$draft"
tar -xC "$draft"
mv -T "$draft" "$1" || test -d "$1"
"""
_SHOWN = 2000
_LOOK_SECONDS = 0.2
_END_SECONDS = 20


class Shell(Protocol):
    """The connection to a node."""

    def argv(self, *command: str) -> tuple[str, ...]:
        """The command line that runs a command there."""


class Machines(Protocol):
    """The part of a lab that calls use."""

    config: LabConfig

    def run(
        self, node: str, *command: str, stdin: bytes = ..., timeout: float = ..., check: bool = ...
    ) -> Result:
        """Run a command in a node."""

    def ssh(self, node: str) -> Shell:
        """The connection to a node."""

    def check(self) -> None:
        """Raise if a kernel has reported an error."""


class RemoteError(AssertionError):
    """A function failed in a node: ``type`` and ``message`` of its exception, and its traceback.

    ``type`` is empty if the process ended without a result.
    """

    def __init__(self, where: str, kind: str, message: str, traceback: str) -> None:
        self.type, self.message = kind, message
        head = ": ".join(part for part in (where, kind, message) if part)
        super().__init__(f"{head}\n\n{traceback}".rstrip())


class Remote(Generic[P, R]):
    """A function that runs in a node when it is called with a lab in front of its arguments."""

    def __init__(self, function: Callable[P, R], node: str, timeout: float) -> None:
        self.function, self.node, self.timeout = function, node, timeout
        functools.update_wrapper(self, function)

    def at(self, node: str = "", timeout: float = 0) -> Remote[P, R]:
        """The same function in another node, or with another limit in seconds."""
        return Remote(self.function, node or self.node, timeout or self.timeout)

    def __call__(self, lab: Machines, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it and wait for its result; RemoteError if it fails."""
        request = self._request(args, kwargs, talks=False)
        argv = ("python3", "-c", _START, _folder())
        for _ in range(2):
            done = lab.run(self.node, *argv, stdin=request, timeout=self.timeout, check=False)
            if done.returncode != _MISSING:
                break
            _copy(lab, self.node)
        _show(self.node, done.stderr)
        for message in _messages(done.stdout.encode().splitlines(keepends=True)):
            if "value" not in message:
                result = cast(R, self._result(message))
                if done.returncode == _KILLED:
                    raise self._failed(
                        "it returned, but a process that it left held its output open until the "
                        f"limit of {self.timeout:g} s: start such a process with stdout=DEVNULL "
                        "and stderr=DEVNULL"
                    )
                return result
        raise self._ended(done.returncode, done.stderr)

    @contextlib.contextmanager
    def started(self, lab: Machines, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Running[R]]:
        """Run it beside the block; at the end of the block, wait for its result.

        If the block raises, the function and all processes that it started are killed.
        """
        request = self._request(args, kwargs, talks=True)
        if lab.run(self.node, "test", "-d", _folder(), check=False).returncode:
            _copy(lab, self.node)
        argv = lab.ssh(self.node).argv("python3", "-c", _START, _folder())
        pipe = subprocess.PIPE
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors)
            running: Running[R] = Running(self, lab, process, errors)
            try:
                running.write(request)
                yield running
                running.end()
                running.result()
            finally:
                running.close()

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, talks: bool) -> bytes:
        try:
            arguments = pack((args, kwargs))
        except TypeError as error:
            raise TypeError(f"{self._name}: an argument cannot go to a node: {error}") from None
        # of the function itself, not of a decorator in another file
        file = Path(inspect.unwrap(self.function).__code__.co_filename)
        module = self.function.__module__
        modules = modules_of(file, module, self._name, *_records(arguments))
        request = {
            **{"modules": modules, "module": module},
            **{"function": self._name, "arguments": arguments, "talks": talks},
        }
        return json.dumps(request).encode() + b"\n"

    @property
    def _name(self) -> str:
        return self.function.__name__

    def _result(self, message: dict[str, Any]) -> Any:
        if "result" in message:
            return unpack(message["result"])
        raise RemoteError(
            f"{self._name} in {self.node}",
            message["error"]["type"], message["error"]["message"], message["error"]["traceback"],
        )  # fmt: skip

    def _ended(self, status: int, stderr: str) -> RemoteError:
        text = f"the process ended without a result, exit status {status}"
        return self._failed(text, stderr[-_SHOWN:])

    def _failed(self, text: str, output: str = "") -> RemoteError:
        return RemoteError(f"{self._name} in {self.node}", "", text, output)


def on(node: str, *, timeout: float = 600) -> Callable[[Callable[P, R]], Remote[P, R]]:
    """Have a function of a module run in a node: "client", "server", "solo", "client2".

    Functions of testbed/node and testbed/peers, which each node has: ``on("client")(function)``.
    TypeError for a function that is not at the top of its module: it may need what surrounds it.
    """

    def decorate(function: Callable[P, R]) -> Remote[P, R]:
        if "." in function.__qualname__ or not function.__name__.isidentifier():
            raise TypeError(
                f"{function.__qualname__} cannot run in a node: expected a function at the top of "
                "its module; pass what surrounds it as arguments"
            )
        return Remote(function, node, timeout)

    return decorate


class Running(Generic[R]):
    """A function that runs in a node beside a test."""

    def __init__(
        self, remote: Remote[Any, R], lab: Machines, process: subprocess.Popen[bytes], errors: Any
    ) -> None:
        self._remote, self._lab, self._process, self._errors = remote, lab, process, errors
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last: dict[str, Any] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for message in _messages(lines):
                self._messages.put(message)
        self._messages.put(None)

    def send(self, value: object) -> None:
        """Send a value, which ``channel.receive`` returns there."""
        self.write(json.dumps({"value": pack(value)}).encode() + b"\n")

    def receive(self, timeout: float = 60) -> Any:
        """Wait for a value of ``channel.send``; TimeoutError, or RemoteError if it has ended."""
        message = self._next(timeout)
        if "value" in message:
            return unpack(message["value"])
        self._last = message
        self._remote._result(message)
        raise self._remote._ended(0, "it returned, and sent no other value")

    def __iter__(self) -> Iterator[Any]:
        """The values of ``channel.send``, until the function ends; RemoteError if it fails."""
        while self._last is None:
            message = self._next(self._remote.timeout)
            if "value" in message:
                yield unpack(message["value"])
            else:
                self._last = message
        self._remote._result(self._last)

    def done(self) -> bool:
        """Whether the function has ended."""
        return self._process.poll() is not None

    def result(self) -> R:
        """Wait for the result; values that nobody received are dropped."""
        for _ in self:
            pass
        assert self._last
        return cast(R, self._remote._result(self._last))

    def end(self) -> None:
        """Tell the function that the block has ended (``channel.ended``)."""
        self.write(b'{"end": true}\n')

    def write(self, line: bytes) -> None:
        """Write a line; a function that has ended gets none."""
        assert self._process.stdin
        # its result, or its failure, is there already
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def close(self) -> None:
        """Close the connection, upon which a function that still runs is killed there."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        kill(self._process)
        self._reader.join()

    def _next(self, timeout: float) -> dict[str, Any]:
        end = time.monotonic() + timeout * self._lab.config.patience
        while True:
            self._lab.check()
            try:
                message = self._messages.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{self._remote._name} in {self._remote.node}: nothing in {timeout:g} s"
                    ) from None
                continue
            if message is not None:
                return message
            self._errors.seek(0)
            stderr = self._errors.read().decode(errors="replace")
            raise self._remote._ended(self._process.wait(), stderr)


def _messages(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The messages of lines; a line that the end of the process cut off is none."""
    return (json.loads(line) for line in lines if line.endswith(b"\n"))


def _records(packed: Any) -> Iterator[tuple[str, str]]:
    """Module and name of the class of each record in a packed value."""
    if isinstance(packed, dict) and "record" in packed:
        module, name, fields = packed["record"]
        yield module, name
        packed = list(fields.values())
    elif isinstance(packed, dict):
        packed = list(packed.values())
    for inner in packed if isinstance(packed, list) else ():
        yield from _records(inner)


def _show(node: str, text: str) -> None:
    """Print what a function printed: pytest shows it if the test fails."""
    if text:
        print(f"{node}: {text}", file=sys.stderr)


@functools.cache
def _archive() -> bytes:
    """A tar for a node: testbed/node, testbed/peers, and the models of messages that these use."""
    buffer, here = io.BytesIO(), Path(__file__).parent
    own = (here / "__init__.py", *here.glob("node/*.py"), *here.glob("peers/*.py"))
    files = {f"testbed/{path.relative_to(here)}": path for path in own}
    models = [f"wire/{name}.py" for name in ("__init__", *MODELS)]
    files |= {name: here.parent / "tests" / name for name in models}
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, path in sorted(files.items()):
            entry, data = tarfile.TarInfo(name), path.read_bytes()
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _folder() -> str:
    return f"{FOLDER}/{hashlib.sha256(_archive()).hexdigest()[:16]}"


def _copy(lab: Machines, node: str) -> None:
    lab.run(node, "sh", "-ec", _COPY, "sh", _folder(), stdin=_archive())
