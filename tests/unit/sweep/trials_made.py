# SPDX-License-Identifier: Apache-2.0
"""Trials from the columns that a store has for them."""

from dataclasses import asdict
from typing import Any

from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Trial


def trial_of(plan: str, cell: Cell, run: int = 1, order: int = 0, /, **columns: Any) -> Trial:
    """The trial with these columns."""
    names = {"plan": plan, "cell": asdict(cell), "run": run, "order": order}
    return Trial.from_json(names | columns)


def with_columns(trial: Trial, **columns: Any) -> Trial:
    """The trial with other values of some columns; a cell is a Cell."""
    if "cell" in columns:
        columns["cell"] = asdict(columns["cell"])
    return Trial.from_json(trial.to_json() | columns)
