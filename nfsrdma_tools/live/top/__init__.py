# SPDX-License-Identifier: Apache-2.0
"""The terminal user interface of ``nfsrdma top``."""

from __future__ import annotations
