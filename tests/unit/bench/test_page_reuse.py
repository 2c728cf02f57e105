# SPDX-License-Identifier: Apache-2.0
"""The table of page reuse has medians, ratios of a round, and what is left without clearing."""

from bench.instructions.measure import Costs
from bench.page_reuse import measure


def test_a_ratio_without_clearing_is_that_of_the_other_functions() -> None:
    def costs(other: float, cleared: float) -> Costs:
        return {("svc_recv", "sunrpc"): other, (measure.CLEARS[0], ""): cleared}

    form: dict[str, list[tuple[float, Costs]]] = {
        measure.DEBIAN: [(1, costs(90, 10))] * 3,
        measure.REBUILT: [(100, costs(80, 20)), (200, costs(160, 40)), (100, costs(80, 20))],
        measure.PATCHED: [(50, costs(60, 0)), (50, costs(80, 0)), (60, costs(40, 0))],
    }
    rounds = {(load, name): values for load in measure.RUNS for name, values in form.items()}
    first = list(measure.table(rounds))[2]
    cells = [cell.strip() for cell in first.split("|")[2:-1]]
    assert cells == [
        *("100.0", "100.0", "60.0", "0.400 (0.400 to 0.600)"),
        *("20.0", "0.0", "0.500 (0.500 to 0.750)"),
        *("100.0", "50.0", "0.500 (0.250 to 0.600)"),
    ]
