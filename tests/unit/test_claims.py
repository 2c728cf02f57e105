# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ claim agrees with the code and with the tables of measurements."""

import re

from pages import ROOT

from nfsrdma_tools.host.nfs.personality import PERSONALITIES
from nfsrdma_tools.lab.config import KERNELS

README = (ROOT / "README.md").read_text()


def state_of(part: str) -> list[str]:
    """The cells of a part's row in README's table of states."""
    (row,) = re.findall(rf"^\| {part} \|.*\|$", README, re.M)
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_readme_states_how_far_each_personality_is() -> None:
    rows = re.findall(r"^\| (?:module, |personality )`([\w-]+)` \| (\w+)", README, re.M)
    assert {name for name, _ in rows} == set(PERSONALITIES)
    assert dict(rows)["read-write"] == "experimental"
    assert all(state == "research" for name, state in rows if name != "read-write")


def test_readme_names_the_kernels_of_the_lab() -> None:
    for part in ("module, `read-write`", "lab"):
        named = re.findall(r"\d\.\d+", state_of(part)[2])
        assert set(named) == set(KERNELS)
