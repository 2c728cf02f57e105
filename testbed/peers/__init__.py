# SPDX-License-Identifier: Apache-2.0
"""Peers that break the protocol on purpose; docs/dev/testing-the-module.md says what they do.

``verbs`` and ``peer`` are an RDMA connection in user space; ``rpc`` is what honest messages are
made of. ``calls`` is the table of what a hostile client sends, ``replies`` of what a hostile
server answers to an ``application``, ``mutate`` makes more of them. All modules are there in the
nodes of a lab (testbed/remote.py); what takes long sends its steps by testbed/node/channel.py.
"""
