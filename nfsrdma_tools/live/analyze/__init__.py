# SPDX-License-Identifier: Apache-2.0
"""What snapshots mean: bottlenecks, stalls, events of connections."""
