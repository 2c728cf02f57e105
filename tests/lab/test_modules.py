# SPDX-License-Identifier: Apache-2.0
"""Modules loaded and unloaded for real, each taken back exactly."""

import json

from nfsrdma_tools.lab.lab import Lab

LOADING = """
import json
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import modules
from nfsrdma_tools.undo import journal

def refused(action, name):
    try:
        with journal() as book:
            action(name, book)
    except UserError as error:
        return str(error)

before = set(modules.loaded())
with journal() as book:
    assert modules.load("rds-rdma", book)
    assert not modules.load("rds_rdma", book)
    new = sorted(set(modules.loaded()) - before)
between = set(modules.loaded())
with journal() as book:
    modules.load("dummy", book)
    with journal() as inner:
        assert modules.unload("dummy", inner)
        assert not modules.unload("dummy", inner)
        gone = "dummy" not in modules.loaded()
    back = "dummy" in modules.loaded()
    there = modules.parameters("sunrpc")
assert before == between == set(modules.loaded())
in_use = refused(modules.unload, "rpcrdma")
missing = refused(modules.load, "no_such_module")
file = vars(modules.on_disk("rpcrdma"))
owners = modules.transport_owners(modules.loaded())
print(json.dumps([new, gone, back, there, in_use, missing, file, owners]))
"""


def test_loading_and_unloading_leave_exactly_what_was_there(solo: Lab) -> None:
    said = solo.run("client", "python3", "-", stdin=LOADING.encode()).stdout
    new, gone, back, there, in_use, missing, file, owners = json.loads(said)
    assert new == ["rds", "rds_rdma"]
    assert gone
    assert back
    assert there["max_resvport"].isdigit()
    assert "rmmod -- rpcrdma ended with status 1" in in_use
    assert "no_such_module" in missing
    assert {"svcrdma", "xprtrdma"} <= set(file["aliases"])
    assert "rdma_cm" in file["depends"]
    assert owners == ["rpcrdma"]
