# SPDX-License-Identifier: Apache-2.0
"""The profiles of the modelled card: their source, their table and the help texts agree."""

import inspect
import re

import card_profiles
import pytest

from nfsrdma_tools.cli import lab, link


def test_the_table_has_each_member() -> None:
    assert sorted(card_profiles.ROWS.values()) == sorted(card_profiles.members())
    assert len(card_profiles.table().splitlines()) == 2 + len(card_profiles.ROWS)


def test_each_profile_has_only_members_of_the_structure() -> None:
    profiles = card_profiles.read()
    assert all(sorted(each) == sorted(card_profiles.members()) for each in profiles.values())
    assert all(each["max_wr"] and each["send_sge"] for each in profiles.values())


def test_profiles_of_a_family_share_each_equal_member() -> None:
    families: dict[str, list[dict[str, str]]] = {}
    for name, (shared, own) in card_profiles.stated().items():
        assert not {*shared} & {*own}, name
        families.setdefault(re.split(r"[\d-]", name)[0], []).append(own)
    del families["model"]
    assert [len(profiles) for profiles in families.values()] == [2, 2, 2]
    for one, other in families.values():
        assert not {*one.items()} & {*other.items()}


@pytest.mark.parametrize("command", [link.add, lab.up])
def test_help_names_each_profile(command: object) -> None:
    text = str(inspect.signature(command).parameters["profile"])  # type: ignore[arg-type]
    assert [name for name in card_profiles.drivers() if name not in text] == []
