# SPDX-License-Identifier: Apache-2.0
"""Pages read ahead, used and dropped, against what was read and what mountstats counts."""

import os
from typing import Any

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes import probe_sets
from testbed.node.mounts import drop_caches, mounted
from testbed.node.programs import call, until
from testbed.remote import on

SIZE, PIECE, PAGE = 4 << 20, 8192, 4096


@on("client", timeout=900)
def read_half(name: str) -> None:
    """Read 4 MiB of a file of 8, and drop the page cache."""
    probe_set = probe_sets.probe_set("readahead")
    with mounted("vers=4.2,rsize=65536") as folder:
        call("udevadm", "settle")
        with probe_sets.attached(["readahead"]) as counting:
            before = mountstats.read(folder)
            file = os.open(folder / name, os.O_RDONLY)
            for _ in range(SIZE // PIECE):
                assert len(os.read(file, PIECE)) == PIECE
            os.close(file)
            pages = mountstats.difference(mountstats.read(folder), before).bytes.read_pages
            (read,) = probe_set.records(probe_set.read(counting), {})

            def dropped() -> dict[str, Any]:
                """The row once no page waits: one that is being read stays in the cache."""
                drop_caches()
                (row,) = probe_set.records(probe_set.read(counting), {})
                return {} if row["waiting"] else row

            end = until("a cache without pages that wait", dropped, pause=0.2)
            assert not counting.missing
    assert read["mount"] == str(folder)
    # each page was demanded, or was in the cache already
    assert read["demanded"] + read["used"] == SIZE // PAGE
    assert read["demanded"] + read["ahead"] == pages
    assert 0 <= read["late"] <= read["used"]
    # the window went on past what was read; without use it goes with the cache
    assert read["waiting"] == end["dropped"] > 0
    assert read["dropped"] == 0


def test_what_became_of_pages_that_were_read_ahead(pair: Lab) -> None:
    pair.run("server", "sh", "-c", "head -c 8M /dev/urandom > /export/ahead")
    try:
        read_half(pair, "ahead")
    finally:
        pair.run("server", "rm", "/export/ahead")
