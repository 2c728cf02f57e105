# SPDX-License-Identifier: Apache-2.0
import datetime
import functools
import os
from pathlib import Path

import field_archive
import pytest
from hypothesis import settings

# on a busy machine an example may take any time
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


LOAD = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    labs = parser.getgroup("labs")
    kernels = (
        "of the shared machines: 6.12, 6.1, 7.2, 5.10, or one that checks itself: debug, kcsan"
    )
    labs.addoption("--kernel", default="6.12", help=kernels)
    labs.addoption("--nic", default="rxe", help="RDMA devices of shared machines: rxe, siw, card")
    labs.addoption("--profile", default="", help="driver whose limits modelled cards have")
    forms = "DMA of modelled cards: direct, swiotlb or iommu (default: virtual)"
    labs.addoption("--dma", default="", help=forms)
    labs.addoption("--cpus", default=2, type=int, help="of each shared machine")
    labs.addoption("--server", default="kernel", help="whose nfsd module answers: kernel or ours")
    labs.addoption(
        "--personality", default="read-write", help="of our module's client: --server ours"
    )
    parser.addoption("--redraw", action="store_true", help="test_top: draw its screens anew")
    labs.addoption("--long", action="store_true", help="minutes of each long form, and its figures")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LOAD] = os.getloadavg()[0]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The state of the machine goes with the durations that stand above it."""
    first, last = config.stash[LOAD], os.getloadavg()[0]
    load = f"load average {first:.1f} at the start, {last:.1f} at the end"
    day = datetime.datetime.now(datetime.UTC).date()
    terminalreporter.line(f"machine: {os.cpu_count()} processors, {load}, {day}")


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory) -> field_archive.Unpacked:
    """The files of hosts of tests/field, unpacked at most once: tests must not change them."""
    folder = tmp_path_factory.mktemp("field")

    @functools.cache
    def unpacked(case: str) -> Path:
        field_archive.unpack(field_archive.read(field_archive.FIELD / f"{case}.txt"), folder / case)
        return folder / case

    return unpacked


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "lab" in Path(item.path).relative_to(Path(__file__).parent).parts[0]:
            item.add_marker("lab")
