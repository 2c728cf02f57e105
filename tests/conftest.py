# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "lab" in Path(item.path).relative_to(Path(__file__).parent).parts[0]:
            item.add_marker("lab")
