# SPDX-License-Identifier: Apache-2.0
"""NFS over RDMA with Kerberos: who one is, that nothing was changed, that nobody could read it."""

import json
from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed.kerberos import kerberos

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("pair_lab")]
SECURITY = ("krb5", "krb5i", "krb5p")
WORK = """
import json, os, subprocess, sys, time
from pathlib import Path
from nfsrdma_tools.host.nfs import mountstats

SIZE = 700_000
COUNTERS = ("read_chunk_count", "write_chunk_count", "reply_chunk_count", "nomsg_call_count")
folder = Path("/mnt/krb5")

def sh(script, user="root"):
    said = {"capture_output": True, "text": True}
    return subprocess.run(("sh", "-c", script), user=user, group=user, extra_groups=(), **said)

def worked(script, user="root"):
    done = sh(script, user)
    assert done.returncode == 0, f"{script}: {done.stderr}"

def mount(vers, sec):
    options = f"vers={vers},sec={sec},proto=rdma,port=20049"
    worked(f"mount -t nfs -o {options} server:/export /mnt")

def unmount():
    worked("umount /mnt")
    # what is still under way keeps the superblock, and with it what has been read
    for _ in range(600):
        if len(volumes := Path("/proc/fs/nfsfs/volumes").read_text().splitlines()) < 2:
            return
        time.sleep(0.1)
    raise SystemExit(f"still there a minute after umount: {volumes}")

def counters():
    stats = mountstats.read(Path("/mnt"))
    found = {name: sum(xprt.counters[name] for xprt in stats.xprts) for name in COUNTERS}
    done = {name: o.operations for name, o in stats.operations.items() if o.operations}
    return {**found, "done": done}

def measured(vers, sec):
    mount(vers, sec)
    folder.mkdir()
    folder.chmod(0o777)
    for user in ("root", "lab"):
        worked(f"cp /tmp/data {folder}/{user} && ls -l {folder} > {folder}/{user}.list", user)
    stranger = sh(f"cat {folder}/lab", "daemon")
    written = counters()
    unmount()
    mount(vers, sec)
    read = {user: (folder / user).read_bytes() == data for user in ("root", "lab")}
    row = next(line for line in Path("/proc/mounts").read_text().splitlines() if " /mnt " in line)
    found = {
        "options": row.split()[3].split(","), "read": read, "written": written,
        "counters": counters(),
        "owners": {user: (folder / user).owner() for user in ("root", "lab")},
        "stranger": [stranger.returncode, stranger.stderr],
    }
    worked(f"rm -r {folder}")
    unmount()
    return found

data = os.urandom(SIZE)
Path("/tmp/data").write_bytes(data)
print(json.dumps([measured(vers, sec) for vers, sec in json.loads(sys.argv[1])]))
"""


@pytest.fixture(params=["pair", "module_pair"])
def carrier(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A client with the kernel's module, and one with ours, both in a realm."""
    lab = request.getfixturevalue(request.param)
    with kerberos(lab):
        yield lab


def reduces(lab: Lab, written: dict[str, int], read: dict[str, int]) -> bool:
    """Whether sunrpc is sure to permit chunks for the data of krb5.

    Kernels for checking do not clear allocated memory, and sunrpc does not initialize the flags
    of an auth (docs/dev/faults-of-other-software.md).
    """
    both = written["read_chunk_count"] and read["write_chunk_count"]
    return bool(both) or lab.config.kernel not in CHECKING


def test_kerberos_over_rdma(carrier: Lab) -> None:
    # krb5p fails with EIO on 6.1, over TCP too
    security = SECURITY[:2] if carrier.config.kernel == "6.1" else SECURITY
    asked = [(vers, sec) for vers in ("3", "4.2") for sec in security]
    argv = ("python3", "-", json.dumps(asked))
    said = carrier.run("client", *argv, stdin=WORK.encode(), timeout=900).stdout
    for (vers, sec), run in zip(asked, json.loads(said), strict=True):
        assert {f"vers={vers}", f"sec={sec}", "proto=rdma"} <= set(run["options"])
        assert run["read"] == {"root": True, "lab": True}
        assert run["owners"] == {"root": "root", "lab": "lab"}
        assert run["stranger"][0] != 0
        assert "Permission denied" in run["stranger"][1]
        written, read = run["written"], run["counters"]
        if sec == "krb5" and reduces(carrier, written, read):
            assert written["read_chunk_count"] > 0, json.dumps(written)
            assert read["write_chunk_count"] > 0, json.dumps(read)
        elif sec == "krb5":
            print(f"missed: NFSv{vers} with krb5 and data in chunks of their own")
            assert written["read_chunk_count"] + written["nomsg_call_count"] > 0
            assert read["write_chunk_count"] + read["reply_chunk_count"] > 0
        else:
            # what is signed or sealed moves as a whole: no data is taken out of the message
            assert written["nomsg_call_count"] > 0
            assert read["write_chunk_count"] == 0
            assert read["reply_chunk_count"] > 0
