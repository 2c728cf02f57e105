# SPDX-License-Identifier: Apache-2.0
"""Probe sets: count NFS/RDMA events in the kernel with the programs in bpf/."""
