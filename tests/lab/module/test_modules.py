# SPDX-License-Identifier: Apache-2.0
"""Modules loaded and unloaded for real, each taken back exactly."""

import json

from nfsrdma_tools.lab.lab import Lab

LOADING = """
import json
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.undo import journal

def refused(action, name):
    try:
        with journal() as book:
            action(name, book)
    except UserError as error:
        return str(error)

before = set(kernel_modules.loaded())
with journal() as book:
    assert kernel_modules.load("rds-rdma", book)
    assert not kernel_modules.load("rds_rdma", book)
    new = sorted(set(kernel_modules.loaded()) - before)
between = set(kernel_modules.loaded())
with journal() as book:
    kernel_modules.load("dummy", book)
    with journal() as inner:
        assert kernel_modules.unload("dummy", inner)
        assert not kernel_modules.unload("dummy", inner)
        gone = "dummy" not in kernel_modules.loaded()
    back = "dummy" in kernel_modules.loaded()
    there = kernel_modules.parameters("sunrpc")
assert before == between == set(kernel_modules.loaded())
in_use = refused(kernel_modules.unload, "rpcrdma")
missing = refused(kernel_modules.load, "no_such_module")
file = kernel_modules.on_disk("rpcrdma")._asdict()
owners = kernel_modules.transport_owners(kernel_modules.loaded())
print(json.dumps([new, gone, back, there, in_use, missing, file, owners]))
"""


def test_loading_and_unloading_leave_exactly_what_was_there(solo: Lab) -> None:
    said = solo.run("client", "python3", "-", stdin=LOADING.encode()).stdout
    new, gone, back, there, in_use, missing, file, owners = json.loads(said)
    assert new == ["rds", "rds_rdma"]
    assert gone
    assert back
    assert there["max_resvport"].isdigit()
    assert "rmmod -- rpcrdma exited with status 1" in in_use
    assert "no_such_module" in missing
    assert {"svcrdma", "xprtrdma"} <= set(file["aliases"])
    assert "rdma_cm" in file["depends"]
    assert owners == ["rpcrdma"]
