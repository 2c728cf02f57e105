# SPDX-License-Identifier: Apache-2.0
"""NFS mounts: what the kernel says of them, how one is made, and its read-ahead."""
