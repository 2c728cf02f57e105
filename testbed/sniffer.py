# SPDX-License-Identifier: Apache-2.0
"""The RDMA Sends that pass a client of a pair lab, while something is done."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from wire import capture
from wire.capture import Send

from nfsrdma_tools.lab.lab import Lab

__all__ = ["FILE", "listening"]

FILE = "/run/wire.pcap"
# Sends and the connection's management, not the data that moves by RDMA: the opcode is the
# first byte after UDP's eight; 0-5 Send, 22-23 Send With Invalidate, 100 a datagram's Send
FILTER = "udp port 4791 and (udp[8] < 6 or udp[8] > 21)"
# immediate: what came last is in the file, and not in a buffer, when tcpdump is ended
START = f"""
set -eu
rm -f /run/wire.said
setsid tcpdump -i eth1 --immediate-mode -U -w {FILE} '{FILTER}' \\
    2>/run/wire.said </dev/null >/dev/null &
echo $! > /run/wire.pid
for i in $(seq 600); do grep -q listening /run/wire.said && exit 0; sleep 0.1; done
cat /run/wire.said >&2; exit 1
"""
STOP = "kill $(cat /run/wire.pid); tail --pid=$(cat /run/wire.pid) -f /dev/null"


def listening(lab: Lab, work: Callable[[], object]) -> list[Send]:
    """Capture the Sends while ``work`` runs; the capture stays in the client as FILE."""
    if lab.config.nic != "rxe":
        pytest.skip("the filter and the reader of the capture know RoCE")
    lab.run("client", "sh", "-c", START)
    try:
        work()
    finally:
        lab.run("client", "sh", "-c", STOP, check=False)
    return list(capture.sends(base64.b64decode(lab.run("client", "base64", FILE).stdout)))
