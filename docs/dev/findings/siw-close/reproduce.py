#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Close a queue pair of soft-iWARP while an RDMA Read waits for its response.

Usage, as root: reproduce.py ADDRESS, that of a link of soft-iWARP; it connects to itself.
It needs pyverbs (rdma-core) and nft, which drops the response. The queue pair goes to SQD, as
rdma_disconnect() takes it there, and then to the error state, as ib_drain_qp() does.
The exit status is 0 if the Read completes (flushed), 1 if it does not in 10 s.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from pyverbs import cm_enums, enums
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.qp import QPAttr, QPCap, QPInitAttr

PORT, SIZE = "7471", 4096
CHAIN = f"type filter hook input priority 0; tcp sport {PORT} drop;"
DROP = f"table inet reproduce {{ chain in {{ {CHAIN} }}; }}"


def information(address: str, passive: bool) -> AddrInfo:
    """The addresses of one side."""
    if passive:
        flags = cm_enums.RAI_PASSIVE
        return AddrInfo(src=address, src_service=PORT, port_space=cm_enums.RDMA_PS_TCP, flags=flags)
    return AddrInfo(dst=address, dst_service=PORT, port_space=cm_enums.RDMA_PS_TCP)


def attributes() -> QPInitAttr:
    """A small queue pair."""
    capabilities = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
    return QPInitAttr(qp_type=enums.IBV_QPT_RC, cap=capabilities, sq_sig_all=1)


def serve(address: str, listening: threading.Event, shared: dict[str, object]) -> None:
    """Accept one connection, and lend memory."""
    listener = CMID(creator=information(address, True), qp_init_attr=attributes())
    listener.listen()
    listening.set()
    peer = listener.get_request()
    shared["memory"] = peer.reg_read(SIZE)
    peer.accept(ConnParam(resources=1, depth=1))
    shared["keep"] = (listener, peer)


def main(address: str) -> int:
    """Connect, cut the way back, read, close; returns the exit status."""
    listening, shared = threading.Event(), {}
    server = threading.Thread(target=serve, args=(address, listening, shared))
    server.start()
    listening.wait()
    client = CMID(creator=information(address, False), qp_init_attr=attributes())
    client.connect(ConnParam(resources=1, depth=1))
    server.join()
    memory, remote = client.reg_msgs(SIZE), shared["memory"]
    subprocess.run(("nft", DROP), check=True)
    try:
        client.post_read(memory, SIZE, remote.buf, remote.rkey)
        # its request has left
        time.sleep(1)
        for state in (enums.IBV_QPS_SQD, enums.IBV_QPS_ERR):
            client.qp.modify(QPAttr(qp_state=state), enums.IBV_QP_STATE)
        found: list[object] = []
        waiter = threading.Thread(target=lambda: found.append(client.get_send_comp()), daemon=True)
        waiter.start()
        waiter.join(10)
    finally:
        subprocess.run(("nft", "delete table inet reproduce"), check=True)
    print("the Read was flushed" if found else "the Read was NOT flushed in 10 s", flush=True)
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
