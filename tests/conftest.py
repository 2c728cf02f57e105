# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from hypothesis import settings

# on a busy machine an example may take any time
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    labs = parser.getgroup("labs")
    kernels = "of the pair of machines: 6.12, 6.1, 7.2, or one that checks itself: debug, kcsan"
    labs.addoption("--kernel", default="6.12", help=kernels)
    labs.addoption("--nic", default="rxe", help="RDMA devices of the pair: rxe or siw")
    labs.addoption("--cpus", default=2, type=int, help="of each machine of the pair")
    labs.addoption("--server", default="kernel", help="whose nfsd module answers: kernel or ours")
    parser.addoption("--redraw", action="store_true", help="test_top: draw its screens anew")
    labs.addoption("--long", action="store_true", help="test_module_*: minutes of each, figures")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "lab" in Path(item.path).relative_to(Path(__file__).parent).parts[0]:
            item.add_marker("lab")
