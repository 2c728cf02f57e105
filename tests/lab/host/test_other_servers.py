# SPDX-License-Identifier: Apache-2.0
"""Our clients with a server that nobody here wrote: nfs-ganesha, where $GANESHA names one."""

import json

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed import ganesha
from testbed.scripts import node_script

pytestmark = pytest.mark.usefixtures("pair_lab")
SECONDS = 900
MANY = """
mkdir /export/many
seq -f %0200.0f 999 | (cd /export/many && xargs touch)
"""
# what the commands copy there is what they copy and print back
COMMANDS = """
cd $(mktemp -d)
head -c 3000003 /dev/urandom > data
nfsrdma cp data server:/export/copied
nfsrdma cp server:/export/copied back
cmp data back
nfsrdma cat server:/export/copied | cmp - data
nfsrdma ls server:/export
nfsrdma stat server:/export/copied | grep ^size
"""


@pytest.fixture(scope="module")
def programs() -> bytes:
    return ganesha.installed()


@pytest.fixture(params=("pair", "module_pair"))
def client(request: pytest.FixtureRequest) -> Lab:
    """The kernel's module in the client, or ours."""
    lab: Lab = request.getfixturevalue(request.param)
    return lab


def equal(lab: Lab, way: str, vers: str) -> None:
    """Compare the files that the client wrote and read with those of the server's file system."""
    script = node_script("other_servers")
    said = lab.run("client", "python3", "-", way, vers, stdin=script, timeout=SECONDS).stdout
    wanted: dict[str, str] = json.loads(said)
    rows = lab.run("server", "sh", "-c", f"cd /export/{way}-{vers} && sha256sum [dfrn]*").stdout
    found = (row.split("  ", 1) for row in rows.splitlines())
    assert {name: digest for digest, name in found} == wanted


def test_the_library_and_its_commands(programs: bytes, pair: Lab) -> None:
    with ganesha.serving(pair, "server", programs):
        pair.run("server", "sh", "-ec", MANY)
        found = json.loads(pair.run("client", "nfsrdma", "ping", "server", "--json").stdout)
        assert (found["private_data"], found["extended"]) == (False, False)
        assert found["credits"] > 1
        equal(pair, "library", "3")
        said = pair.run("client", "sh", "-ec", COMMANDS, timeout=SECONDS).stdout.splitlines()
        assert {"copied", "many", "size      3000003"} <= set(said)


def test_the_library_with_sessions(programs: bytes, pair: Lab) -> None:
    with ganesha.serving(pair, "server", programs) as versions:
        if "4.1" not in versions:
            pytest.skip("this nfs-ganesha has no NFSv4.1 over RDMA; missed: the library with it")
        pair.run("server", "sh", "-ec", MANY)
        equal(pair, "library", "4.1")


def test_mounts(programs: bytes, client: Lab) -> None:
    with ganesha.serving(client, "server", programs) as versions:
        client.run("server", "sh", "-ec", MANY)
        for vers in versions.split(", "):
            equal(client, "mount", vers)
