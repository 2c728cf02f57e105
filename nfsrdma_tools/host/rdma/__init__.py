# SPDX-License-Identifier: Apache-2.0
"""RDMA devices: netlink, links, ports."""
