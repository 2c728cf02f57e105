# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.config import FOREIGN, LabConfig, Link


def test_a_solo_lab_is_one_machine_with_two_names() -> None:
    lab = LabConfig("a")
    assert lab.nodes == ("solo",)
    assert lab.machine_of("server") == lab.machine_of("client") == "solo"
    assert str(lab.wire) == "1gbit/100us"


def test_a_pair_can_have_several_clients() -> None:
    lab = LabConfig("a", shape="pair", clients=3)
    assert lab.nodes == ("server", "client1", "client2", "client3")
    assert lab.machine_of("client") == "client1"
    assert str(lab.wire) == "none"
    with pytest.raises(UserError, match="client4"):
        lab.machine_of("client4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("none", ("none",)),
        ("1gbit/100us", ("1gbit", "50us")),
        ("10gbit/25us", ("10gbit", "12.5us")),
        ("100mbit/2ms", ("100mbit", "1000us")),
    ],
)
def test_half_of_the_round_trip_is_on_each_end(text: str, words: tuple[str, ...]) -> None:
    assert Link.parse(text).words == words


@pytest.mark.parametrize(
    "text", ["", "1gbit", "1gbit/100us;reboot", "-1gbit/1us", "1gbit/us", "$(x)"]
)
def test_a_link_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="link"):
        Link.parse(text)


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a", "A", "a" * 33, "a\n"])
def test_a_name_that_would_leave_its_folder_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="name"):
        LabConfig(name)


def test_instructions_are_counted_in_one_machine_only() -> None:
    with pytest.raises(UserError, match="instruction clock"):
        LabConfig("a", shape="pair", clock="instructions")


def test_modelled_cards_need_the_shape_solo() -> None:
    with pytest.raises(UserError, match="one kernel"):
        LabConfig("a", shape="pair", nic="card")
    assert LabConfig("a", nic="card").nic == "card"


@pytest.mark.parametrize(("setting", "value"), [("dma", "iommu"), ("profile", "bnxt")])
def test_only_cards_have_a_form_of_dma_and_a_profile(setting: str, value: str) -> None:
    right: dict[str, Any] = {setting: value}
    wrong: dict[str, Any] = {setting: "virtual"}
    config = replace(LabConfig("a", nic="card"), **right)
    assert getattr(config, setting) == value
    with pytest.raises(UserError, match="only modelled cards"):
        replace(config, nic="rxe")
    with pytest.raises(UserError, match=f"{setting} is 'virtual'"):
        replace(config, **wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", "ring"),
        ("kernel", "5.4"),
        ("clock", "sun"),
        ("clients", 0),
        ("memory", 1),
        ("kernel_args", "é"),
    ],
)
def test_what_cannot_be_had_is_named(field: str, value: object) -> None:
    with pytest.raises(UserError, match=str(value)):
        LabConfig("a", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ({"clock": "counted"}, {"nic": "siw"}, {"nic": "card"}))
def test_machines_of_another_architecture_have_one_clock_and_one_device(
    other: dict[str, str],
) -> None:
    for kernel in FOREIGN:
        assert LabConfig("a", kernel=kernel, shape="pair").kernel == kernel
        with pytest.raises(UserError, match=f"{kernel} have the wall clock and soft-RoCE only"):
            LabConfig("a", kernel=kernel, **other)  # type: ignore[arg-type]
