# SPDX-License-Identifier: Apache-2.0
"""The programs of Debian 11 in a node with soft-RoCE and mounts, under our parsers.

The node is Debian 13; each program runs with the libraries of its own release.
"""

import io
import json
import tarfile
from pathlib import Path

import pytest
from distributions.conftest import cached
from distributions.roots import Root, copy_of

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.nightly

PROGRAMS = (
    "/sbin/mount.nfs", "/sbin/umount.nfs", "/usr/sbin/nfsconf", "/usr/sbin/exportfs", "/bin/ip",
    "/usr/bin/ibv_devinfo", "/sbin/modinfo", "/sbin/modprobe", "/usr/sbin/nft",
)  # fmt: skip
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
# names of hosts, which Debian 11 has in a library of its own
NAMES = ("/lib/x86_64-linux-gnu/libnss_files.so.2", "/lib/x86_64-linux-gnu/libnss_dns.so.2")


def archive(root: Root, place: str) -> bytes:
    """A tar with programs of a root and their libraries, below a folder, with a starter of each."""
    there = [name for name in PROGRAMS if root.run("test", "-x", name, check=False).returncode == 0]
    words = root.run("ldd", *there, check=False).stdout.split()
    named = {word for word in words if word.startswith("/") and not word.endswith(":")}
    libraries = sorted(named | {name for name in NAMES if (root.folder / name[1:]).exists()})
    # links may be absolute, and lead out of the root
    names = [*libraries, *there]
    real = dict(zip(names, root.run("realpath", *names).stdout.split(), strict=True))
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as tar:
        for name in libraries:
            tar.add(root.folder / real[name][1:], f"{place}/lib/{Path(name).name}")
        for name in there:
            program = Path(name).name
            tar.add(root.folder / real[name][1:], f"{place}/real/{program}")
            text = (
                f"#!/bin/sh\nexec /{place}/lib/ld-linux-x86-64.so.2 --library-path /{place}/lib"
                f' /{place}/real/{program} "$@"\n'
            ).encode()
            entry = tarfile.TarInfo(f"{place}/bin/{program}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text))
        for provider in (root.folder / PROVIDERS[1:]).glob("librxe*"):
            tar.add(provider, f"{place}/providers/{provider.name}")
    return data.getvalue()


@pytest.fixture(params=["11"])
def path(request: pytest.FixtureRequest, solo: Lab, tmp_path: Path) -> str:
    """The PATH with which the node's client finds the programs of a release first."""
    with copy_of(cached(request.param), tmp_path) as root:
        place = f"opt/programs-{root.release.suite}"
        data = archive(root, place)
    solo.run("client", "tar", "-xzf", "-", "-C", "/", stdin=data)
    # each version of libibverbs loads the providers of its own
    solo.run("client", "sh", "-c", f"cp -n /{place}/providers/* {PROVIDERS}/")
    return f"/{place}/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(lab: Lab, path: str, *argv: str) -> str:
    return lab.run("client", "env", f"PATH={path}", *argv, check=False).stdout


def doctor(lab: Lab, path: str) -> dict[str, dict[str, str]]:
    lab.run("client", "dmesg", "--clear")
    report = run(lab, path, "/usr/local/bin/nfsrdma", "doctor", "server", "--json")
    return {row.pop("name"): row for row in json.loads(report)["findings"]}


def test_doctor_finds_the_same_with_the_programs_of_each_release(solo: Lab, path: str) -> None:
    own, others = doctor(solo, "/usr/sbin:/usr/bin:/sbin:/bin"), doctor(solo, path)
    assert own.pop("mount.nfs") != others.pop("mount.nfs")
    # a round trip, and counts of packets
    for rows in (own, others):
        for name in [name for name in rows if name.startswith(("rdma server", "wire "))]:
            assert rows.pop(name)["status"] == "ok"
    assert others == own


MOUNTS = """
export PATH={path}
nfsrdma() {{ /usr/local/bin/nfsrdma "$@" 2>&1 || echo "status $?"; }}
for transport in rdma tcp; do
    nfsrdma mount server:/export /mnt --transport $transport --vers 4.2 --rsize 512k
    nfsrdma umount /mnt
    nfsrdma mount server:/none /mnt --transport $transport
    nfsrdma mount server:/none /mnt --transport $transport --vers 3
    nfsrdma mount server:/export /mnt --transport $transport -o no_such_option
done
nfsrdma mount server:/export /mnt --transport tcp --port 9
"""


def test_mounts_and_their_refusals_are_as_with_other_versions(solo: Lab, path: str) -> None:
    own = "/usr/sbin:/usr/bin:/sbin:/bin"
    texts = [run(solo, each, "sh", "-c", MOUNTS.format(path=each)) for each in (own, path)]
    # mount.nfs 1.3.4 says that the server does not answer, where newer ones say that it refuses
    assert [text.rpartition("nfsrdma: ")[0] for text in texts[1:]] == [
        texts[0].rpartition("nfsrdma: ")[0]
    ]
    assert all("tcp" in text and "port 9" in text.rpartition("nfsrdma: ")[2] for text in texts)
    assert texts[0].count("has no export") + texts[0].count("does not export") == 4
    assert texts[0].count("rejects no_such_option") == 2
