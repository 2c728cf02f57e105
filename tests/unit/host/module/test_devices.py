# SPDX-License-Identifier: Apache-2.0
"""What RDMA devices lack for our module, as its debugfs has it, and how it is shown."""

from pathlib import Path

import pytest

from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.module.devices import devices

# a device that can do everything
FULL = {
    "region_pages": "257 of 257",
    "region_pages_needed": "16",
    "lane_read": "1048576 of 1048576",
    "optimistic_elements": "32 of 32",
    "optimistic_read": "1048576 of 1048576",
    "lane_reply": "1048576 of 1048576",
    "grants": "yes",
}


def read(folder: Path, *each: dict[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Each device of the file that the module makes of these, with its limits."""
    file = Machine(folder).path("sys/kernel/debug/nfsrdma-devices")
    file.parent.mkdir(parents=True)
    parts = (
        f"device dev{number}\n" + "".join(f"{name} {value}\n" for name, value in values.items())
        for number, values in enumerate(each)
    )
    file.write_text("".join(parts))
    return [(device.name, device.limits) for device in devices(Machine(folder))]


def test_a_device_without_limits_and_one_that_is_unusable(tmp_path: Path) -> None:
    shown = read(tmp_path, FULL, {**FULL, "region_pages": "0 of 257"})
    assert shown == [
        ("dev0", ()),
        ("dev1", ("unusable: it registers 0 pages at once, expected at least 16",)),
    ]


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({"region_pages": "64 of 257"}, "registers 64 of 257 pages at once"),
        (
            {"optimistic_elements": "6 of 32", "optimistic_read": "24576 of 1048576"},
            "optimistic reads: up to 24k of pages that lie apart (6 elements)",
        ),
        (
            {"optimistic_elements": "0 of 32", "optimistic_read": "0 of 1048576"},
            "no optimistic reads: iWARP",
        ),
        ({"lane_read": "0 of 1048576"}, "no READs of clients on lanes"),
        (
            {"lane_reply": "901120 of 1048576"},
            "replies of the server on lanes (pre-posted): up to 880k",
        ),
        ({"grants": "copies"}, "grants nothing to clients (optimistic): it would read copies"),
        ({"grants": "caches"}, "grants nothing to clients (optimistic): it bypasses"),
        ({"grants": "stuck"}, "grants nothing to clients (optimistic): it has refused"),
    ],
)
def test_a_limit_has_a_line(tmp_path: Path, values: dict[str, str], limit: str) -> None:
    ((_, limits),) = read(tmp_path, {**FULL, **values})
    assert len(limits) == 1
    assert limits[0].startswith(limit)


def test_without_the_module_no_device_is_known(tmp_path: Path) -> None:
    assert devices(Machine(tmp_path)) == []
