# SPDX-License-Identifier: Apache-2.0
"""Functions that run in a node: here a Python process without any environment of this one."""

import ast
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.config import LabConfig
from testbed import remote, source
from testbed.faults import AGAIN
from testbed.mounts import HERE
from testbed.node import channel
from testbed.node.values import pack, unpack
from testbed.peers import mutate, rpc
from testbed.remote import RemoteError, on

ROOT = Path(__file__).parents[3]
# not this file, whose functions miss something on purpose
USERS = [
    file
    for folder in ("testbed", "tests", "bench")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if "from testbed.remote import" in file.read_text() and file != Path(__file__)
]
PYTHON = "/usr/bin/python3"
REFUSED = {"set", "frozenset", "bytearray"}
"""Types that values.pack refuses, as test_values_that_cannot_go_are_refused shows of one."""
pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="no Python of the system")


class Here:
    """A lab whose nodes are this machine; their Python knows nothing of this repository."""

    config = LabConfig("unit")

    def __init__(self) -> None:
        self.programs: list[str] = []

    def argv(self, *command: str) -> tuple[str, ...]:
        program, *words = command
        return (PYTHON, "-I", *words) if program == "python3" else command

    def ssh(self, node: str) -> "Here":
        return self

    def run(
        self, node: str, *command: str, stdin: bytes = b"", timeout: float = 600, check: bool = True
    ) -> Result:
        self.programs.append(command[0])
        argv = self.argv(*command)
        done = subprocess.run(
            argv, input=stdin, capture_output=True, check=check, timeout=timeout, env={}
        )
        return Result(command, done.stdout.decode(), done.stderr.decode(), done.returncode)

    def check(self) -> None:
        pass


class Late(Here):
    """Each command is killed at its limit: nfsrdma_tools.command.run has what came until then."""

    def run(self, *words: Any, **options: Any) -> Result:
        return super().run(*words, **options)._replace(returncode=124)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr(remote, "FOLDER", str(tmp_path / "copies"))
    return Here()


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass(frozen=True)
class Facts:
    name: str
    pairs: list[Pair] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Sums:
    """A constructor that is not to run again, and annotations that are not of fields."""

    values: list[int]
    start: dataclasses.InitVar[int] = 0
    total: int = dataclasses.field(init=False)
    UNIT: ClassVar[str] = "s"

    def __post_init__(self, start: int) -> None:
        self.values = [value + start for value in self.values]
        self.total = sum(self.values)


class Marked(NamedTuple("Word", [("word", str)])):
    """A tuple whose constructor changes what it gets."""

    def __new__(cls, word: str) -> "Marked":
        return super().__new__(cls, f"{word}!")


class Kind(NamedTuple):
    """Its field has the name of a kind of packed values."""

    record: int


BASE = 40
OFFSET = BASE + 2
COUNTS = {"calls": 0}


def helper(value: int) -> int:
    COUNTS["calls"] += 1
    return value + OFFSET


def twice(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return 2 * function(*args)

    return wrapper


@contextmanager
def noted(notes: list[str]) -> Iterator[None]:
    notes.append("begin")
    try:
        yield
    finally:
        notes.append("end")


@on("client")
def echo(value: Any) -> Any:
    return value


@on("client")
def named(value: int, *, times: int = 1) -> int:
    return sum(helper(value) for _ in range(times))


@on("client")
@twice
def decorated(value: int) -> int:
    notes: list[str] = []
    with noted(notes):
        pass
    return helper(value) + len(notes)


@on("client")
def calls_another() -> tuple[int, int]:
    return decorated(1), COUNTS["calls"]  # type: ignore[arg-type]


@on("client")
def facts(name: str) -> Facts:
    return Facts(name, [Pair(1, "one"), Pair(2, "two")])


@on("client")
def fails(path: Path) -> bytes:
    return path.read_bytes()


@on("client")
def asserts(expected: int) -> None:
    counted = helper(1)
    assert counted == expected


@on("client")
def prints() -> str:
    print("not the result")
    subprocess.run(("echo", "nor this"), check=True)
    return "the result"


@on("client")
def killed() -> None:
    print("before", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@on("client")
def killed_in_a_line() -> None:
    channel._output[0].write('{"value": "a')
    channel._output[0].flush()
    os.kill(os.getpid(), signal.SIGKILL)


@on("client")
def forks() -> int:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return child


@on("client")
@functools.cache
def cached(value: int) -> int:
    return helper(value)


@on("client")
def needs_pytest() -> None:
    pytest.fail("there is none")


@on("client")
def needs_a_file() -> str:
    return __file__


@on("client")
def uses_another_module() -> tuple[str, str]:
    return HERE, f"{AGAIN:.1}"


@on("client")
def returns_a_set() -> set[int]:
    return {1}


@on("client", timeout=30)
def adds() -> int:
    total = 0
    while (value := channel.receive(20)) is not None:
        total += value
        channel.send(total)
    return total


@on("client", timeout=30)
def sends(count: int) -> str:
    for number in range(count):
        channel.send(number)
    return "sent"


@on("client", timeout=30)
def until_the_end(file: Path) -> str:
    file.touch()
    channel.send("ready")
    return "ended" if channel.wait(20) else "still running"


@on("client", timeout=30)
def starts_a_child() -> None:
    child = subprocess.Popen(("sleep", "600"))
    channel.send(child.pid)
    child.wait()


@pytest.mark.parametrize(
    "value",
    (
        None, True, -1, 2**70, 1.5, "", '\udc80\x00\u2028 \N{PILE OF POO} {"result": 1}\n',
        b"\xff\n",
        Path("/a b"), [1, [2]], (1, (2, [3])), {}, {"record": 1}, {1: "a", ("b", 2): b"c"},
        {"path": "/"}, Pair(1, "x"), Facts("é", [Pair(2, "y")]), Kind(1),
        Sums([1, 2], 5), Marked("é"),
    ),
    ids=repr,
)  # fmt: skip
def test_values_arrive_as_they_were(lab: Here, value: object) -> None:
    arrived = echo(lab, value)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)


def test_all_that_a_function_names_goes_along(lab: Here) -> None:
    assert named(lab, 1, times=3) == 3 * 43
    assert decorated(lab, 1) == 2 * 45
    assert calls_another(lab) == (90, 1)
    assert facts(lab, "n") == Facts("n", [Pair(1, "one"), Pair(2, "two")])


def test_names_of_other_modules_go_along(lab: Here) -> None:
    assert uses_another_module(lab) == (HERE, "\n")


def test_a_function_that_each_node_has(lab: Here) -> None:
    assert on("client")(mutate.shown)(lab, 3, b"ab") == "mutant 3: 6162"
    with pytest.raises(RemoteError, match="data_of in client: AssertionError: 78") as failure:
        on("client")(rpc.data_of)(lab, b"x")
    assert "assert place, reply.hex()" in str(failure.value)
    assert "    reply = b'x'\n" in str(failure.value)


def test_a_function_of_a_program(lab: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    # python -m bench.subject
    monkeypatch.setattr(named.function, "__module__", "__main__")
    assert named(lab, 1) == 43


def test_no_state_is_left_between_calls(lab: Here) -> None:
    assert [calls_another(lab)[1] for _ in range(2)] == [1, 1]
    assert COUNTS["calls"] == 0


def test_the_modules_of_a_node_are_copied_once(lab: Here) -> None:
    assert [echo(lab, n) for n in range(3)] == [0, 1, 2]
    assert lab.programs == ["python3", "sh", "python3", "python3", "python3"]


def test_a_large_result(lab: Here) -> None:
    assert echo(lab, "é" * 3_000_000) == "é" * 3_000_000


def test_an_exception_has_the_traceback_of_the_node(lab: Here, tmp_path: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        fails(lab, tmp_path / "none")
    assert caught.value.type == "FileNotFoundError"
    assert str(tmp_path / "none") in caught.value.message
    text = str(caught.value)
    assert text.startswith("fails in client: FileNotFoundError: ")
    line = next(
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line == "    return path.read_bytes()"
    )
    assert f'tests/unit/testbed/test_remote.py", line {line}, in fails\n' in text
    assert "    return path.read_bytes()\n" in text
    assert "runner.py" not in text


def test_a_failed_assertion_names_the_variables(lab: Here) -> None:
    with pytest.raises(AssertionError) as caught:
        asserts(lab, 1)
    text = str(caught.value)
    assert "assert counted == expected" in text
    assert "\n    expected = 1\n    counted = 43" in text


def test_what_a_function_prints_is_not_its_result(
    lab: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prints(lab) == "the result"
    assert "not the result" in (shown := capsys.readouterr().err)
    assert "nor this" in shown


def test_a_killed_process_is_named_with_its_output(lab: Here) -> None:
    with pytest.raises(RemoteError, match=r"killed in client: .*without a result.*-9") as caught:
        killed(lab)
    assert str(caught.value).endswith("before")


def test_a_line_that_is_cut_off_is_no_message(lab: Here) -> None:
    with pytest.raises(RemoteError, match="without a result, exit status -9"):
        killed_in_a_line(lab)
    with pytest.raises(RemoteError, match="without a result"), killed_in_a_line.started(lab):
        pass


def test_the_result_is_not_that_of_a_forked_child(
    lab: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forks(lab) > 0
    assert "forks returned in a child process that it forked" in capsys.readouterr().err


def test_a_process_that_holds_the_output_until_the_limit_is_an_error(lab: Here) -> None:
    assert echo(lab, 1) == 1
    with pytest.raises(RemoteError, match=r"held its output open until the limit of 600 s: start"):
        echo(Late(), 1)
    with pytest.raises(RemoteError, match="FileNotFoundError"):
        fails(Late(), Path("/none"))


def test_a_decorator_of_another_file(lab: Here) -> None:
    assert cached(lab, 1) == 43


def test_what_no_node_has_is_refused(lab: Here) -> None:
    with pytest.raises(TypeError, match=r"test_remote.py:\d+: no node has pytest"):
        needs_pytest(lab)
    with pytest.raises(TypeError, match="no node knows __file__"):
        needs_a_file(lab)


@pytest.mark.parametrize(
    "file", USERS, ids=[str(file.relative_to(ROOT).with_suffix("")) for file in USERS]
)
def test_each_function_for_a_node_has_what_it_needs(file: Path) -> None:
    for name in source.remote_functions(file):
        modules = source.modules_of(file, "of_the_test", name)
        for path, text in modules.values():
            compile(text, path, "exec")


@pytest.mark.parametrize(
    "file", USERS, ids=[str(file.relative_to(ROOT).with_suffix("")) for file in USERS]
)
def test_each_function_for_a_node_returns_what_can_leave_it(file: Path) -> None:
    assert refused_results(file) == []


def test_a_set_cannot_leave_a_node() -> None:
    assert refused_results(Path(__file__)) == ["returns_a_set: set"]


def refused_results(file: Path) -> list[str]:
    """The built-in types in annotated results of functions for a node that ``pack`` refuses."""
    names = source.remote_functions(file)
    nodes = ast.parse(file.read_text()).body
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name in names]
    return [
        f"{function.name}: {word.id}"
        for function in functions
        for word in (ast.walk(function.returns) if function.returns else ())
        if isinstance(word, ast.Name) and word.id in REFUSED
    ]


def test_closures_are_refused() -> None:
    def inner() -> None: ...

    for function in (inner, lambda: None, Here.check):
        with pytest.raises(TypeError, match="cannot run in a node: expected a function at the top"):
            on("client")(function)


def test_values_that_cannot_go_are_refused(lab: Here) -> None:
    with pytest.raises(TypeError, match="echo: an argument cannot go to a node: object: found"):
        echo(lab, [object()])
    with pytest.raises(RemoteError, match=r"set: found \{1\}, expected None, bool"):
        returns_a_set(lab)


@pytest.mark.parametrize("name", ("Here", "os", "none"))
def test_only_records_are_made_of_what_a_node_sends(name: str) -> None:
    with pytest.raises(LookupError, match="expected a data class or a NamedTuple"):
        unpack({"record": [__name__, name, {}]})


def test_packed_values_are_json_of_ascii() -> None:
    assert pack({"a": (1,)}) == {"dict": [["a", {"tuple": [1]}]]}


def test_a_function_and_a_test_talk(lab: Here) -> None:
    with adds.started(lab) as running:
        for number, total in ((1, 1), (2, 3), (4, 7)):
            running.send(number)
            assert running.receive() == total
        assert not running.done()
        running.send(None)
        assert running.result() == 7


def test_a_function_sees_the_end_of_the_block(lab: Here, tmp_path: Path) -> None:
    with until_the_end.started(lab, tmp_path / "made") as running:
        assert running.receive() == "ready"
        assert (tmp_path / "made").exists()
    assert running.result() == "ended"


def test_a_failure_beside_a_block_is_raised_at_its_end(lab: Here, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="fails in client: FileNotFoundError"):  # noqa: SIM117
        with fails.started(lab, tmp_path / "none"):
            pass
    with pytest.raises(RemoteError, match="FileNotFoundError"):  # noqa: SIM117
        with fails.started(lab, tmp_path / "none") as running:
            running.receive()


def test_values_come_until_the_function_ends(lab: Here, tmp_path: Path) -> None:
    with sends.started(lab, 3) as running:
        assert list(running) == [0, 1, 2]
        assert running.result() == "sent"
    with (
        pytest.raises(RemoteError, match="FileNotFoundError"),
        fails.started(lab, tmp_path / "none") as failing,
    ):
        list(failing)


def test_a_function_that_returned_sends_nothing_more(lab: Here) -> None:
    with (
        echo.started(lab, 1) as running,
        pytest.raises(RemoteError, match="it returned, and sent no other value"),
    ):
        running.receive()


def test_a_killed_process_beside_a_block(lab: Here) -> None:
    with pytest.raises(RemoteError, match="without a result"), killed.started(lab):
        pass


def test_a_block_that_fails_ends_all_that_the_function_started(lab: Here) -> None:
    child = 0
    with pytest.raises(ZeroDivisionError), starts_a_child.started(lab) as running:
        child = running.receive()
        raise ZeroDivisionError
    end = time.monotonic() + 60
    while Path(f"/proc/{child}/status").exists() and "(zombie)" not in state(child):
        assert time.monotonic() < end
        time.sleep(0.02)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return "(zombie)"


def test_a_silent_function_is_an_error_after_the_time(lab: Here, tmp_path: Path) -> None:
    with (
        pytest.raises(TimeoutError, match=r"until_the_end in client: nothing in 0\.1 s"),
        until_the_end.started(lab, tmp_path / "made") as running,
    ):
        assert running.receive() == "ready"
        running.receive(timeout=0.1)


def test_another_node_and_another_limit(lab: Here) -> None:
    assert (echo.node, echo.timeout) == ("client", 600)
    other = echo.at("server", timeout=5)
    assert (other.node, other.timeout) == ("server", 5)
    assert other(lab, 1) == 1
