# SPDX-License-Identifier: Apache-2.0
"""Pages read ahead, used and dropped, against what was read and what mountstats counts."""

import json

from nfsrdma_tools.lab.lab import Lab
from testbed.scripts import node_script

NODE = node_script("trace_ahead")
PAGES = (4 << 20) // 4096


def test_what_became_of_pages_that_were_read_ahead(pair: Lab) -> None:
    pair.run("server", "sh", "-c", "head -c 8M /dev/urandom > /export/ahead")
    said = json.loads(pair.run("client", "python3", "-", stdin=NODE, timeout=900).stdout)
    pair.run("client", "umount", "/mnt")
    pair.run("server", "rm", "/export/ahead")
    (read,), (dropped,) = said["read"], said["dropped"]
    assert said["missing"] == []
    assert read["mount"] == "/mnt"
    # each page was demanded, or was in the cache already
    assert read["demanded"] + read["used"] == PAGES
    assert read["demanded"] + read["ahead"] == said["pages"]
    assert 0 <= read["late"] <= read["used"]
    # the window went on past what was read; without use it goes with the cache
    assert read["waiting"] == dropped["dropped"] > 0
    assert (read["dropped"], dropped["waiting"]) == (0, 0)
