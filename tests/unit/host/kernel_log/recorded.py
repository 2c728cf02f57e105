# SPDX-License-Identifier: Apache-2.0
"""The collection of kernel log records: tests/unit/kernel_records/records.toml describes it."""

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "kernel_records"
TABLE: dict[str, Any] = tomllib.loads((FOLDER / "records.toml").read_text())
ENTRIES: list[dict[str, Any]] = [{**TABLE["defaults"], **entry} for entry in TABLE["record"]]
"""The records, with the values that the table leaves out."""
