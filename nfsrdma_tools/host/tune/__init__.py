# SPDX-License-Identifier: Apache-2.0
"""Transfer sizes and read-ahead of a mount that last across reboots."""
