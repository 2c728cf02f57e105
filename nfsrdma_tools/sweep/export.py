# SPDX-License-Identifier: Apache-2.0
"""A store's contents for other programs: CSV (a row per trial) and JSON (everything)."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["as_csv", "as_json"]


def as_csv(store: Store) -> str:
    """One row per trial; the cell's parts are columns of their own, mappings are JSON text."""
    rows = [_row(trial) for trial in store.trials()]
    names = list(rows[0]) if rows else ["plan"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(store: Store) -> str:
    """Plans, environments and trials as one JSON document."""
    content = {
        "plans": [plan.to_json() for plan in store.plans()],
        "environments": store.environments(),
        "trials": [trial.to_json() for trial in store.trials()],
    }
    return json.dumps(content, indent=1)


def _row(trial: Trial) -> dict[str, Any]:
    data = trial.to_json()
    cell = {f"cell_{name}": value for name, value in data.pop("cell").items()}
    return {name: _flat(value) for name, value in {**cell, **data}.items()}


def _flat(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | tuple | list) else value
