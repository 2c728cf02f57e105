# SPDX-License-Identifier: Apache-2.0
"""Export a store: CSV with a row per trial, or everything as plain values."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["as_csv", "as_facts"]


def as_csv(store: Store) -> str:
    """One row per trial; the cell's parts are columns of their own, mappings are JSON text."""
    rows = [_row(trial) for trial in store.trials()]
    names = list(rows[0]) if rows else ["plan"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_facts(store: Store) -> dict[str, Any]:
    """Plans, environments and trials as plain values, for JSON."""
    return {
        "plans": [plan.to_json() for plan in store.plans()],
        "environments": store.environments(),
        "trials": [trial.to_json() for trial in store.trials()],
    }


def _row(trial: Trial) -> dict[str, Any]:
    data = trial.to_json()
    cell = {f"cell_{name}": value for name, value in data.pop("cell").items()}
    return {name: _flat(value) for name, value in {**cell, **data}.items()}


def _flat(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | tuple | list) else value
