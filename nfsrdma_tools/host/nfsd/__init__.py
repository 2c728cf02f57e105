# SPDX-License-Identifier: Apache-2.0
"""The NFS server: exports, listeners, its service and statistics."""
