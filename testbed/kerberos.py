# SPDX-License-Identifier: Apache-2.0
"""Kerberos between the nodes of a lab, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["kerberos"]


@contextmanager
def kerberos(lab: Nodes) -> Iterator[None]:
    """A realm with its KDC on the server; root and the user ``lab`` of each client are in it.

    /export is there by krb5, krb5i and krb5p too.
    """
    clients = lab.config.client_nodes
    try:
        keytab = lab.run("server", "lab-krb5", "server", *clients).stdout.encode()
        for client in clients:
            lab.run(client, "lab-krb5", "client", stdin=keytab)
        yield
    finally:
        for node in (*clients, "server"):
            lab.run(node, "lab-krb5", "off")
