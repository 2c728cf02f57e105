# SPDX-License-Identifier: Apache-2.0
"""After each test of optimistic and threadless reads, the server keeps nothing for READs."""

from collections.abc import Iterator

import pytest

from testbed.labs import FAILED
from testbed.node import grants
from testbed.remote import on


@on("client")
def nothing_in_use() -> None:
    grants.nothing_in_use()


@pytest.fixture(autouse=True)
def at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cards" in request.fixturenames and not request.node.stash.get(FAILED, False):
        nothing_in_use(request.getfixturevalue("cards"))
