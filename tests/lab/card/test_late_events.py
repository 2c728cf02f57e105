# SPDX-License-Identifier: Apache-2.0
"""Connections of the server that are freed while an event of rdma_cm about them is handled."""

import os
from pathlib import Path

import pytest

from testbed import kernel_modules
from testbed.labs import OURS, THEIRS, cards_lab, serve
from testbed.node.mounts import mounted
from testbed.node.programs import call, until
from testbed.remote import on

DELAYS = Path(__file__).parents[1] / "delays"
THERE = "/run/nfsrdma_delays.ko"
# the step that follows uses what the connections of a client share
BEFORE = "nfr_svc_sink_leave"
CONNECTIONS = Path("/sys/kernel/debug/nfsrdma-server")
pytestmark = [pytest.mark.nightly, pytest.mark.checking]


@on("client", timeout=1800)
def ended(delay_us: int) -> tuple[int, list[str]]:
    """End a connection with the handling of the event delayed; returns delays and functions."""
    call("insmod", THERE, f"names={BEFORE}", "task=kworker", f"delay_us={delay_us}")
    try:
        with mounted("vers=3") as folder:
            list(folder.iterdir())
        until("the end of all connections", lambda: not connections(), 600)
        facts = Path("/sys/module/nfsrdma_delays/parameters")
        return int((facts / "delays").read_text()), (facts / "functions").read_text().split()
    finally:
        call("rmmod", "nfsrdma_delays")


def connections() -> list[str]:
    return [path.name for path in CONNECTIONS.iterdir() if path.is_dir()]


@pytest.mark.skipif(os.geteuid() != 0, reason="no module is built: root mounts the image")
def test_what_a_clients_connections_share_outlives_their_events(
    pytestconfig: pytest.Config,
) -> None:
    """KASAN would report that the handler uses it after nfsd has freed the connection."""
    if pytestconfig.getoption("--kernel") != "debug":
        pytest.skip("the kernel has no KASAN; missed: memory used after it was freed")
    with cards_lab(pytestconfig, "late-events") as lab:
        kernel_modules.place(lab, DELAYS, THERE, "client")
        serve(lab, "server", OURS)
        delays, functions = ended(lab, 2_000_000)
        lab.check()
        serve(lab, "server", THEIRS)
    assert (delays > 0, functions) == (True, ["1"])
