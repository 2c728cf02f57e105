# SPDX-License-Identifier: Apache-2.0
"""Mount NFS over RDMA, verify the mount, measure it, and trace it."""

__version__ = "0.1.0"
