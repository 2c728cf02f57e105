# SPDX-License-Identifier: Apache-2.0
"""Captures of RPC-over-RDMA: write what the kernel's probes saw as frames, and read captures."""
