# SPDX-License-Identifier: Apache-2.0
"""The labs that tests share. A kernel's report on a console fails the test that was running."""

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.lab.config import CHECKING, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed import leaks
from testbed.labs import FAILED, OURS, THEIRS, ModulePair, Record, lent, running, traces
from testbed.mounts import connections, mounted
from testbed.personalities import agreed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have one worker take all tests that need the same lab with the same modules.

    A worker has one solo lab and one pair at most, and changes the pair's modules between groups.
    The groups of pairs take longest. They come first, so that no worker waits for one at the end.
    """
    for item in (item for item in items if item.path.is_relative_to(Path(__file__).parent)):
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(_group(item)))
        if config.getoption("--long") and "long" in _fixtures(item):
            item.add_marker("nightly")
    items.sort(key=lambda item: (not _needs_pair(item), _modules(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail at once if workers do not group tests: each would change modules all the time."""
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "xdist ignores xdist_group"


def _group(item: pytest.Item) -> str:
    """The session lab of a test, and its modules; the file's name where it has labs of its own."""
    labs = {"solo_lab": "solo", "pair_lab": f"pair-{('theirs', 'client', 'both')[_modules(item)]}"}
    own = vars(item.module) if isinstance(item, pytest.Function) else {}
    used = (group for lab, group in labs.items() if lab in _fixtures(item) and lab not in own)
    return next(used, item.path.stem)


def _needs_pair(item: pytest.Item) -> bool:
    return "pair_lab" in _fixtures(item)


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


def _modules(item: pytest.Item) -> int:
    """0 for the kernel's modules or no pair, 1 for our module in the client, 2 in both."""
    fixtures = [*_fixtures(item), *map(str, _parameters(item))]
    needed = {"module_pair": 1, "ours": 1, "our_server": 2, "both_ours": 2}
    return max((needed.get(name, 0) for name in fixtures), default=0)


def _parameters(item: pytest.Item) -> list[object]:
    """Its values: a test may be given the name of a fixture."""
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any lab is brought up."""
    kernel = item.config.getoption("--kernel")
    if item.get_closest_marker("checking") and kernel not in CHECKING:
        pytest.skip(f"kernel {kernel} does not check itself; missed: {item.name}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the figures of a long run, which are its purpose."""
    for report in terminalreporter.getreports("passed") if config.getoption("--long") else ():
        figures = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        terminalreporter.line(f"{config.getoption('--kernel')} {report.nodeid}: {figures}")


def asked(config: pytest.Config) -> dict[str, Any]:
    """The options that configure the shared machines."""
    options = {name: config.getoption(f"--{name}") for name in ("kernel", "nic", "cpus")}
    # tests that need two machines have soft-RoCE with any profile
    cards = options["nic"] == "card"
    return {**options, "profile": config.getoption("--profile") if cards else ""}


@pytest.fixture
def record_property(record_property: Record) -> Record:
    """Pytest's, for values of any type: its workers send only plain ones."""
    return lambda name, value: record_property(name, str(value))


@pytest.fixture(scope="session")
def solo_lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """One kernel that is server and client."""
    with Lab(LabConfig(f"test-solo-{os.getpid()}", extras=True, **asked(pytestconfig))) as lab:
        lab.pause()
        yield lab


@pytest.fixture(scope="session")
def pair_lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A server and a client, a kernel each."""
    config = LabConfig(f"test-pair-{os.getpid()}", shape="pair", extras=True, **asked(pytestconfig))
    with Lab(config) as lab:
        lab.pause()
        yield lab
        if lab.config.kernel in CHECKING:
            with running(lab):
                leaks.check(lab)


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """Whether there are minutes for each thing, as in campaigns."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture
def mutants(long: bool) -> int:
    """Number of messages made at random for a personality: MESSAGES, or 1,000 with --long."""
    return int(os.environ.get("MESSAGES") or (1000 if long else 60))


@pytest.fixture(scope="module")
def solo_file(solo_lab: Lab) -> Iterator[Lab]:
    """The solo lab for the tests of a file, which leave nothing behind in it."""
    with running(solo_lab):
        before = traces(solo_lab)
        yield solo_lab
        try:
            assert traces(solo_lab) == before, "the tests of this file left something behind"
        except BaseException:
            solo_lab.restart()
            raise


@pytest.fixture
def solo(solo_file: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """One kernel that is server and client; tests share it and leave it as they found it."""
    yield from lent(solo_file, solo_file.restart, request)


@pytest.fixture(scope="session")
def carriers(pair_lab: Lab) -> ModulePair:
    """The pair, and whose modules it has."""
    with running(pair_lab):
        return ModulePair(pair_lab)


@pytest.fixture(scope="module")
def pair_file(carriers: ModulePair) -> Iterator[ModulePair]:
    """The pair for the tests of a file, which leave nothing behind in it."""
    with running(carriers.lab):
        yield carriers
        carriers.check()


@pytest.fixture
def pair(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server and a client with the kernel's module each."""
    yield from lent(pair_file.bring(THEIRS, THEIRS), pair_file.restart, request)


@pytest.fixture
def module_pair(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server with the kernel's module, and a client with ours."""
    yield from lent(pair_file.bring(THEIRS, OURS), pair_file.restart, request)


@pytest.fixture
def both_ours(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server and a client with our module each."""
    yield from lent(pair_file.bring(OURS, OURS), pair_file.restart, request)


@pytest.fixture
def ours(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A client with our module, and the server and the personality that the options ask for."""
    server = OURS if request.config.getoption("--server") == "ours" else THEIRS
    name: str = request.config.getoption("--personality")
    for lab in lent(pair_file.bring(server, OURS), pair_file.restart, request):
        with personality(lab, name) if name != "read-write" else contextlib.nullcontext():
            yield lab


@contextlib.contextmanager
def personality(lab: Lab, name: str) -> Iterator[None]:
    """Mounts have a personality: the client requests it, and the server accepts it."""
    with agreed(lab, name):
        with mounted(lab, "vers=3"):
            assert {connection["personality"] for connection in connections(lab)} == {name}
        yield
