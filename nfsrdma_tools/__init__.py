# SPDX-License-Identifier: Apache-2.0
"""Mount NFS over RDMA, prove what it is, sweep it, and see inside it."""

__version__ = "0.1.0"
