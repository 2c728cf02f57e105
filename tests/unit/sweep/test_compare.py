# SPDX-License-Identifier: Apache-2.0
import pytest
from unit.sweep.trials_made import trial_of

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sweep.choice import compare
from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Trial

A, B = Cell("tcp", 8192, 0), Cell("tcp", 8192, 1)
C = Cell("rdma", 8192, 0)


def trials(**throughputs: float) -> list[Trial]:
    cells = {"a": A, "b": B, "c": C}
    return [
        trial_of("p", cells[name], 0, 0, throughput=value, busy_ns=1, bytes=1)
        for name, value in throughputs.items()
    ]


def test_differences_are_relative_and_the_largest_comes_first() -> None:
    comparison = compare(trials(a=100, b=50, c=10), trials(a=101, b=40))
    assert [d.cell for d in comparison.differences] == [B, A]
    assert [round(d.relative, 3) for d in comparison.differences] == [-0.2, 0.01]
    assert round(comparison.median, 3) == 0.105
    assert comparison.trials == (3, 2)


def test_a_recommendation_is_measured_by_the_first_sweeps_figures() -> None:
    comparison = compare(trials(a=100, b=99, c=10), trials(a=50, b=60, c=10))
    over_all, rdma, tcp = comparison.losses
    assert (over_all.winner, over_all.recommended) == (A, B)
    assert round(over_all.loss, 3) == 0.01
    assert (rdma.transport, rdma.loss) == ("rdma", 0)
    assert (tcp.transport, round(tcp.loss, 3)) == ("tcp", 0.01)


def test_sweeps_without_a_common_cell_are_refused() -> None:
    with pytest.raises(UserError, match="no cell in common"):
        compare(trials(a=1), trials(b=1))
