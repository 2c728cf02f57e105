# SPDX-License-Identifier: Apache-2.0
"""The labs that tests share. A kernel's report on a console fails the test that was running."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import built
import leaks
import pytest
from carriers import OURS, THEIRS, serve

from nfsrdma_tools.lab.config import CHECKING, LabConfig
from nfsrdma_tools.lab.lab import Lab

FAILED = pytest.StashKey[bool]()
# NFS mounts, journals of undos, RDMA links, addresses, listeners and exports of nfsd, who carries
# proto=rdma
TRACES = """
grep ' nfs4\\? ' /proc/mounts
ls /run/nfsrdma
rdma link show | cut -d' ' -f1-9
ip -4 -o addr show dev eth1 | cut -d' ' -f7
sort /proc/fs/nfsd/portlist
exportfs -s
grep -oE '^(rpcrdma|nfsrdma) ' /proc/modules
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have one worker take all tests of a lab, so that there is one lab of a kind in all."""
    for item in (item for item in items if item.path.parent == Path(__file__).parent):
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if config.getoption("--long") and "long" in item.fixturenames:
            item.add_marker("nightly")


def _group(item: pytest.Item) -> str:
    """The session lab of a test; the file's name where it brings up labs of its own."""
    assert isinstance(item, pytest.Function)
    labs = {"solo_lab": "solo", "pair_lab": "pair"}
    own = vars(item.module)
    used = (group for lab, group in labs.items() if lab in item.fixturenames and lab not in own)
    return next(used, item.path.stem)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any lab is brought up."""
    kernel = item.config.getoption("--kernel")
    if item.get_closest_marker("checking") and kernel not in CHECKING:
        pytest.skip(f"kernel {kernel} does not check itself; missed: {item.name}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What a long run measured is what it was made for."""
    for report in terminalreporter.getreports("passed") if config.getoption("--long") else ():
        figures = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        terminalreporter.line(f"{config.getoption('--kernel')} {report.nodeid}: {figures}")


@pytest.fixture(scope="session")
def solo_lab() -> Iterator[Lab]:
    """One kernel that is server and client."""
    with Lab(LabConfig(f"test-solo-{os.getpid()}", extras=True)) as lab:
        yield lab


@pytest.fixture(scope="session")
def pair_lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A server and a client, a kernel each."""
    asked = {name: pytestconfig.getoption(f"--{name}") for name in ("kernel", "nic", "cpus")}
    with Lab(LabConfig(f"test-pair-{os.getpid()}", shape="pair", extras=True, **asked)) as lab:
        yield lab
        if lab.config.kernel in CHECKING:
            leaks.check(lab)


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """Whether there are minutes for each thing, as in ``make module-campaign LONG=1``."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture
def solo(solo_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """One kernel that is server and client; tests share it and leave it as they found it."""
    yield from lent(solo_lab, request)


@pytest.fixture
def pair(pair_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server and a client; tests share them and leave them as they found them."""
    yield from lent(pair_lab, request)


@pytest.fixture
def module_pair(pair: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server with the kernel's module, and a client with ours."""
    built.load(pair)
    yield pair
    if not failed(request):
        pair.run("client", "nfsrdma", "module", "unload")


@pytest.fixture(scope="session")
def ready(pytestconfig: pytest.Config) -> Callable[[Lab], None]:
    """Brings our module into a pair: into the client, and with --server ours the server too."""

    def bring(lab: Lab) -> None:
        if pytestconfig.getoption("--server") == "ours":
            serve(lab, "server", OURS)
        built.load(lab)

    return bring


@pytest.fixture(scope="module")
def module_lab(
    pytestconfig: pytest.Config, pair_lab: Lab, ready: Callable[[Lab], None]
) -> Iterator[Lab]:
    """A client with our module for all tests of a file, which leave nothing but the module."""
    before = traces(pair_lab)
    ready(pair_lab)
    yield pair_lab
    pair_lab.run("client", "nfsrdma", "module", "unload")
    if pytestconfig.getoption("--server") == "ours":
        serve(pair_lab, "server", THEIRS)
    assert traces(pair_lab) == before, "the tests left something behind in the lab"


@pytest.fixture
def ours(
    module_lab: Lab, ready: Callable[[Lab], None], request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """The same; one that a test broke is brought up anew for the next."""
    yield module_lab
    if failed(request):
        module_lab.restart()
        ready(module_lab)
    module_lab.check()


def lent(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab that a test leaves as it was; one that it broke is brought up anew for the next."""
    before = traces(lab)
    yield lab
    if failed(request):
        lab.restart()
        return
    try:
        lab.check()
        assert traces(lab) == before, "the test left something behind in the lab"
    except BaseException:
        lab.restart()
        raise


def failed(request: pytest.FixtureRequest) -> bool:
    """Whether the test has failed, and what it left is not worth a second complaint."""
    return request.node.stash.get(FAILED, False)


def traces(lab: Lab) -> list[str]:
    return [lab.run(node, "sh", "-c", TRACES, check=False).stdout for node in lab.config.nodes]
