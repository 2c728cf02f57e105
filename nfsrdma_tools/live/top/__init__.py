# SPDX-License-Identifier: Apache-2.0
"""The face in a terminal."""

from __future__ import annotations
