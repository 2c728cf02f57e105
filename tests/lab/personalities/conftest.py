# SPDX-License-Identifier: Apache-2.0
"""The lab of each file of this folder."""

from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, cards_lab, serve


@pytest.fixture(scope="module")
def lab(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A solo lab with two modelled cards; our module is the client and the server."""
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    with cards_lab(pytestconfig, name) as cards:
        serve(cards, "server", OURS)
        yield cards
