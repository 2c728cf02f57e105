# SPDX-License-Identifier: Apache-2.0
"""Starts labs with modelled cards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

__all__ = ["cards_lab"]


@contextmanager
def cards_lab(
    pytestconfig: pytest.Config,
    name: str,
    *,
    clock: str = "wall",
    link: str = "",
) -> Iterator[Lab]:
    """A solo lab with two modelled cards."""
    kernel, cpus = (pytestconfig.getoption(f"--{option}") for option in ("kernel", "cpus"))
    name = f"test-{name}-{os.getpid()}"
    config = LabConfig(
        name, kernel=kernel, cpus=cpus, nic="card", clock=clock, link=link, extras=True
    )
    with Lab(config) as lab:
        yield lab
