# SPDX-License-Identifier: Apache-2.0
"""Virtual machines with soft-RoCE in which everything runs. Knows QEMU, and nothing of NFS."""
