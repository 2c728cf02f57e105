# SPDX-License-Identifier: Apache-2.0
"""A lab of virtual machines with soft-RoCE. Depends on QEMU; independent of NFS."""
