# SPDX-License-Identifier: Apache-2.0
"""RDMA devices, links and ports, from netlink and sysfs."""
