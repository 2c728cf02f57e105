# SPDX-License-Identifier: Apache-2.0
"""Exports with the option secure, and the parameter server_reserved_port of our server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import PORT, SERVER, bring, program
from testbed.labs import OURS, THEIRS, ModulePair, lent
from testbed.mounts import connections, set_to
from testbed.personalities import agreed

pytestmark = pytest.mark.nightly
EXPORTS = ("secure", "insecure")
EXPORT = """
for n in secure insecure; do mkdir -p /srv/$n; echo $n > /srv/$n/file; done
exportfs -o rw,secure,no_subtree_check,fsid=91 '*:/srv/secure'
exportfs -o rw,insecure,no_subtree_check,fsid=92 '*:/srv/insecure'
"""
END = """
exportfs -u '*:/srv/secure'; exportfs -u '*:/srv/insecure'
rm -rf /srv/secure /srv/insecure
"""
LOOK = """
mkdir -p /mnt/look
mount -t nfs -o vers=4.2,proto=rdma,port=20049,soft,$1 server:/srv/$2 /mnt/look || exit
cat /mnt/look/file; said=$?
umount /mnt/look
exit $said
"""
OK, PERM = 0, 1


@pytest.fixture
def kernel_client(pair_file: ModulePair, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server with our module, and a client with the kernel's."""
    yield from lent(pair_file.bring(OURS, THEIRS), pair_file.restart, request)


@contextmanager
def exported(lab: Lab, reserved: str) -> Iterator[None]:
    """Both exports, while the server looks at ports, or does not."""
    lab.run("server", "sh", "-ec", EXPORT)
    set_to(lab, "server", "server_reserved_port", reserved)
    try:
        yield
    finally:
        set_to(lab, "server", "server_reserved_port", "N")
        lab.run("server", "sh", "-c", END)


def reads(lab: Lab, options: str) -> dict[str, bool]:
    """Which exports a mount with these options can read."""
    readable = {}
    for export in EXPORTS:
        argv = ("sh", "-c", LOOK, "sh", options, export)
        result = lab.run("client", *argv, check=False, timeout=600)
        readable[export] = (result.returncode, result.stdout) == (0, f"{export}\n")
    return readable


def peer(lab: Lab, lanes: str = "no") -> dict[str, Any]:
    bring(lab, "client")
    return program(lab, "client", "port", SERVER, PORT, lanes, *EXPORTS)


def test_a_port_decides_only_where_the_server_looks_at_it(both_ours: Lab) -> None:
    lab = both_ours
    with exported(lab, "N"):
        assert reads(lab, "noresvport") == {"secure": True, "insecure": True}
        assert peer(lab)["found"]["any"] == {"secure": OK, "insecure": OK}
    with exported(lab, "Y"):
        assert reads(lab, "resvport") == {"secure": True, "insecure": True}
        assert reads(lab, "noresvport") == {"secure": False, "insecure": True}
        answers = peer(lab)["found"]
        assert answers["any"] == {"secure": PERM, "insecure": OK}
        assert answers["reserved"] == {"secure": OK, "insecure": OK}


def test_further_connections_are_held_to_the_port_of_the_first(both_ours: Lab) -> None:
    lab = both_ours
    with agreed(lab, "pre-posted"), exported(lab, "Y"):
        assert peer(lab, "yes")["joined"] == {
            "any joins any": True,
            "reserved joins any": True,
            "any joins reserved": False,
            "reserved joins reserved": True,
        }
        assert reads(lab, "resvport") == {"secure": True, "insecure": True}


def test_the_kernels_client_has_no_reserved_port(kernel_client: Lab) -> None:
    lab = kernel_client
    with exported(lab, "N"):
        assert reads(lab, "resvport") == {"secure": True, "insecure": True}
    with exported(lab, "Y"):
        assert reads(lab, "resvport") == {"secure": False, "insecure": True}
        served = connections(lab, "server", "nfsrdma-server")
        assert {connection["privileged"] for connection in served} <= {"no"}
