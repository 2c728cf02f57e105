# SPDX-License-Identifier: Apache-2.0
"""Modules loaded and unloaded for real, each taken back exactly."""

from collections.abc import Callable

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.undo import Journal, journal
from testbed.remote import on


def refused(action: Callable[[str, Journal], object], name: str) -> str:
    """The error of an action."""
    try:
        with journal() as changes:
            action(name, changes)
    except UserError as error:
        return str(error)
    return ""


@on("client")
def load_and_unload() -> None:
    before = set(kernel_modules.loaded())
    with journal() as changes:
        assert kernel_modules.load("rds-rdma", changes)
        assert not kernel_modules.load("rds_rdma", changes)
        assert set(kernel_modules.loaded()) - before == {"rds", "rds_rdma"}
    assert set(kernel_modules.loaded()) == before
    with journal() as changes:
        kernel_modules.load("dummy", changes)
        with journal() as inner:
            assert kernel_modules.unload("dummy", inner)
            assert not kernel_modules.unload("dummy", inner)
            assert "dummy" not in kernel_modules.loaded()
        assert "dummy" in kernel_modules.loaded()
    assert set(kernel_modules.loaded()) == before
    assert kernel_modules.parameters("sunrpc")["max_resvport"].isdigit()
    assert "rmmod -- rpcrdma exited with status 1" in refused(kernel_modules.unload, "rpcrdma")
    assert "no_such_module" in refused(kernel_modules.load, "no_such_module")
    file = kernel_modules.on_disk("rpcrdma")
    assert file
    assert {"svcrdma", "xprtrdma"} <= set(file.aliases)
    assert "rdma_cm" in file.depends
    assert kernel_modules.transport_owners(kernel_modules.loaded()) == ["rpcrdma"]


def test_loading_and_unloading_leave_exactly_what_was_there(solo: Lab) -> None:
    load_and_unload(solo)
