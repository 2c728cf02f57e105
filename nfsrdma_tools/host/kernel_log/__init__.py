# SPDX-License-Identifier: Apache-2.0
"""The kernel's log: which messages concern NFS over RDMA, and what they mean."""
