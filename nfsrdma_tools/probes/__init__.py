# SPDX-License-Identifier: Apache-2.0
"""Accounts of what NFS/RDMA does, counted in the kernel by the programs of bpf/."""
