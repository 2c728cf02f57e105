# SPDX-License-Identifier: Apache-2.0
"""Reads the state of the host, makes one change at a time and verifies it."""
