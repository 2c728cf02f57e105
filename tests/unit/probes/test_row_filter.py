# SPDX-License-Identifier: Apache-2.0
"""Filters of `nfsrdma trace`: which rows pass, and which probe set has which filter."""

import os
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.row_filter import Filter

ROOT = Path(__file__).parents[3]
ROWS: list[dict[str, Any]] = [
    {"mount": "/mnt, /srv", "procedure": "READ", "peer": "10.9.1.11"},
    {"mount": "/mnt", "procedure": "READ xid 0x00000001", "peer": "[2001:db8::1]"},
    {"mount": "/other", "procedure": "READDIR", "peer": "10.9.2.1"},
    {"mount": "unattributed", "procedure": "RENEW", "peer": ""},
]


@pytest.mark.parametrize(
    ("words", "mount", "passed"),
    [
        ({}, None, [0, 1, 2, 3]),
        ({}, "/srv", [0]),
        ({"procedures": ("read",)}, None, [0, 1]),
        ({"procedures": ("READ", "RENEW")}, None, [0, 1, 3]),
        ({"client": "10.9.1.11"}, None, [0]),
        ({"client": "10.9.0.0/16"}, None, [0, 2]),
        ({"client": "2001:db8::/32"}, None, [1]),
        ({"procedures": ("READ",), "client": "10.9.1.0/24"}, "/mnt", [0]),
    ],
)
def test_rows_that_pass(words: dict[str, Any], mount: str | None, passed: list[int]) -> None:
    assert Filter(**words).select(ROWS, mount) == [ROWS[number] for number in passed]


# what rows have: a filter without its key in the rows would fail, or pass everything
KEYS = {"mount": "mount", "procedures": "procedure", "client": "peer"}


@pytest.mark.parametrize("name", probe_sets.NAMES)
def test_a_probe_set_has_the_filters_that_its_source_supports(name: str) -> None:
    probe_set = probe_sets.probe_set(name)
    source = (ROOT / f"nfsrdma_tools/probes/sets/{name}.py").read_text(encoding="utf-8")
    for each in probe_set.filters:
        assert each == "pid" or f'"{KEYS[each]}": ' in source
    program = (ROOT / "bpf" / f"{name}.c").read_text(encoding="utf-8")
    assert ("pid" in probe_set.filters) == ("issued(" in program)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("registrations", {"pid": 1}, "trace registrations has no filter --pid"),
        ("readahead", {"procedures": ("READ",)}, r"no filter --procedure \(its filters: --mount"),
        ("chunks", {"client": "10.0.0.1"}, "no filter --client"),
        ("server", {"mount": Path("/mnt")}, "trace server has no filter --mount"),
        ("cpu", {"pid": 1}, "it has no filters"),
        ("server", {"client": "10.0.0.0/33"}, "is not an address or network"),
        ("server", {"client": "somebody"}, "is not an address or network"),
    ],
)
def test_a_filter_that_a_probe_set_lacks_is_a_usage_error(
    name: str, words: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Filter(**words).check(name, probe_sets.probe_set(name).filters)


def test_a_process_and_a_mount_have_to_exist(tmp_path: Path) -> None:
    Filter(pid=os.getpid()).check("chunks", ("pid",))
    gone = os.fork() or os._exit(0)
    os.waitpid(gone, 0)
    with pytest.raises(UserError, match=f"no process {gone}"):
        Filter(pid=gone).check("chunks", ("pid",))
    with pytest.raises(UserError, match="is not an NFS mount point"):
        Filter(mount=tmp_path).mount_point()
