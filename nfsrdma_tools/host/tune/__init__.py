# SPDX-License-Identifier: Apache-2.0
"""Persistent transfer sizes and read-ahead of a mount."""
