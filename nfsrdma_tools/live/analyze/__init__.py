# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks, stalls and events of connections, from snapshots."""
