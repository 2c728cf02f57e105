# SPDX-License-Identifier: Apache-2.0
"""The main path on two machines that both use our module: data, probe, dashboard, hostile peer.

The module is loaded once for all tests here. ``make test`` runs them; the files of each subject
have the rest.
"""

import json

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.browser import opened
from testbed.dashboard import MOUNT, scene
from testbed.hostile import attacked
from testbed.module_data import carried
from testbed.mounts import HERE, mounted
from testbed.node.programs import until
from testbed.peers.calls import CASES
from testbed.tracing import SAID, tracing

pytestmark = pytest.mark.main

READS, READ_SIZE = 23, 65536
READ_DIRECT = f"dd if={HERE}/counted of=/dev/null bs={READ_SIZE} count={READS} iflag=direct"


def test_module_carries_data_between_two_machines(both_ours: Lab) -> None:
    """``nfsrdma mount`` gets our module; what is written is the same on both sides."""
    for node in ("server", "client"):
        status = json.loads(both_ours.run(node, "nfsrdma", "module", "status", "--json").stdout)
        assert (status["owner"], status["loaded_is_this_source"]) == ("nfsrdma", True)
    mount = ("nfsrdma", "mount", "server:/export", "/mnt", "--transport", "nfsrdma")
    assert "nfsrdma" in both_ours.run("client", *mount).stdout
    both_ours.run("client", "umount", "/mnt")
    sizes = [1, 4096, READ_SIZE, 1 << 20]
    assert carried(both_ours, "vers=4.2", sizes, 1, ("buffered", "direct")).bytes > 0


def test_probe_counts_each_read(both_ours: Lab) -> None:
    """``nfsrdma trace chunks`` counts 23 reads of 64 KiB as 23 RPCs with a Write chunk each."""
    both_ours.run(
        "server", "sh", "-c", f"head -c {READS * READ_SIZE} /dev/urandom > /export/counted"
    )
    with mounted(both_ours, f"vers=3,rsize={READ_SIZE}"), tracing(both_ours, "client", "chunks"):
        both_ours.run("client", "sh", "-ec", READ_DIRECT)
        # one more interval would show what was counted twice
        until("as many READs as were done", lambda: counted(both_ours)["rpcs"] >= READS, 300, 0.5)
        intervals = said(both_ours)
        until("another interval", lambda: len(said(both_ours)) > len(intervals), 300, 0.5)
        counts = counted(both_ours)
    both_ours.run("server", "rm", "/export/counted")
    assert counts == {"rpcs": READS, "replies_write": READS, "write_bytes": READS * READ_SIZE}


def said(lab: Lab) -> list[str]:
    """The complete lines of ``nfsrdma trace`` but the first, which lists missing events."""
    return lab.run("client", "cat", SAID).stdout.rpartition("\n")[0].splitlines()[1:]


def counted(lab: Lab) -> dict[str, int]:
    """Sum the intervals until now for READ."""
    rows = [row for line in said(lab) for row in json.loads(line)["rows"]]
    reads = [row for row in rows if (row["mount"], row["procedure"]) == (HERE, "READ")]
    return {name: sum(r[name] for r in reads) for name in ("rpcs", "replies_write", "write_bytes")}


def test_dashboard_in_a_browser_shows_what_fio_reads(both_ours: Lab) -> None:
    with scene(both_ours) as watched, opened(watched.url) as browser:
        since = watched.now()
        with watched.load(5) as account:
            job = account()["read"]
        last = watched.now()
        until("a later frame", lambda: browser.state("frames.at(-1).time") > last + 1, 300, 0.5)
        assert browser.shown(since) == pytest.approx(job["io_bytes"], rel=0.02)
        row = browser.text("#mounts tbody")
        assert MOUNT in row
        assert "nfsrdma v4.2" in row
        assert browser.said == []


def test_hostile_client_gets_nothing_with_foreign_keys(both_ours: Lab) -> None:
    """The cases of the table that name keys; then 40 guesses, and honest work beside them."""
    outcomes = attacked(both_ours, "8166", range(0), "key")
    assert set(outcomes.by_hand) == {name for name in CASES if "key" in name}
    assert outcomes.guesses == 40
    assert outcomes.rounds > len(outcomes.by_hand) > 10
