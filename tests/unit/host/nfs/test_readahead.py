# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs.readahead import blocks_for, get_kb, kb_for, path_of, set_kb, verify


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    host = Machine(tmp_path)
    path_of("0:45", host).parent.mkdir(parents=True)
    path_of("0:45", host).write_text("128\n")
    return host


@pytest.mark.parametrize(
    ("blocks", "rsize", "kb"),
    [(0, 1 << 20, 0), (1, 32768, 32), (4, 524288, 2048), (16, 1 << 20, 16384), (4, 1024, 4)],
)
def test_blocks_of_rsize_are_a_window(blocks: int, rsize: int, kb: int) -> None:
    assert kb_for(blocks, rsize) == kb


def test_a_window_below_a_page_is_a_page_not_none() -> None:
    assert kb_for(1, 1024) == 4
    assert kb_for(5, 1024) == 8


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 4096).map(lambda n: n * 1024))
def test_a_window_is_whole_pages_and_never_too_small(blocks: int, rsize: int) -> None:
    kb = kb_for(blocks, rsize)
    assert kb % 4 == 0
    assert blocks <= blocks_for(kb, rsize)
    assert (kb - 4) * 1024 < blocks * rsize


@pytest.mark.parametrize(("blocks", "rsize"), [(-1, 4096), (1, 0)])
def test_nonsense_is_refused(blocks: int, rsize: int) -> None:
    with pytest.raises(UserError):
        kb_for(blocks, rsize)


def test_set_then_read_back(machine: Machine) -> None:
    assert set_kb("0:45", 2048, machine) == 2048
    assert get_kb("0:45", machine) == 2048


def test_a_value_that_somebody_changed_names_both(machine: Machine) -> None:
    with pytest.raises(MismatchError, match="requested 2048, got 128") as caught:
        verify("0:45", 2048, machine)
    assert (caught.value.requested, caught.value.in_effect) == (2048, 128)


def test_a_device_that_is_gone_is_a_clear_error(machine: Machine) -> None:
    with pytest.raises(UserError, match="0:99"):
        get_kb("0:99", machine)
    with pytest.raises(UserError, match="0:99"):
        set_kb("0:99", 4, machine)
