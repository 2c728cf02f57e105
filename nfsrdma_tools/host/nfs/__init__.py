# SPDX-License-Identifier: Apache-2.0
"""NFS mounts: their state in the kernel, mounting, and read-ahead."""
