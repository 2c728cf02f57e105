# SPDX-License-Identifier: Apache-2.0
"""The profiles of the modelled card: their source, their table and the help texts agree."""

import inspect

import card_profiles
import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.cli import lab, link


def test_the_table_has_each_member() -> None:
    assert sorted(card_profiles.ROWS.values()) == sorted(card_profiles.members())
    assert len(card_profiles.table().splitlines()) == 2 + len(card_profiles.ROWS)


def test_each_profile_has_only_members_of_the_structure() -> None:
    profiles = card_profiles.read()
    assert all(sorted(each) == sorted(card_profiles.members()) for each in profiles.values())
    assert all(each["max_wr"] and each["send_sge"] for each in profiles.values())


def test_the_program_and_the_table_read_the_same_names() -> None:
    assert module_source.card_profiles() == tuple(card_profiles.read())


@pytest.mark.parametrize("command", [link.add, lab.up])
def test_help_names_each_profile(command: object) -> None:
    text = str(inspect.signature(command).parameters["profile"])  # type: ignore[arg-type]
    assert [name for name in card_profiles.drivers() if name not in text] == []
