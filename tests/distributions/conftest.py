# SPDX-License-Identifier: Apache-2.0
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributions import roots
from distributions.roots import RELEASES, Root

from nfsrdma_tools.errors import UserError

MakeRoot = Callable[[str], Root]


def cached(number: str) -> Root:
    """The root of a release; the test is skipped, with the reason, where it cannot be made."""
    if lacks := roots.missing():
        pytest.skip(f"no {RELEASES[number].name}: this needs {lacks}")
    try:
        return roots.cached(RELEASES[number])
    except UserError as error:
        pytest.skip(f"no {RELEASES[number].name}: {error}")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeRoot]:
    """Copies of roots that the tests of a session share: none installs anything in them."""
    copies: dict[str, Root] = {}
    with contextlib.ExitStack() as stack:

        def make(number: str) -> Root:
            if number not in copies:
                folder = tmp_path_factory.mktemp("roots")
                copies[number] = stack.enter_context(roots.copy_of(cached(number), folder))
            return copies[number]

        yield make


@pytest.fixture
def root(request: pytest.FixtureRequest, made: MakeRoot) -> Root:
    """The root of the release that is the test's parameter."""
    return made(request.param)


@pytest.fixture
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """A root of its own for the test, of the release that is its parameter."""
    with roots.copy_of(cached(request.param), tmp_path) as copy:
        yield copy
