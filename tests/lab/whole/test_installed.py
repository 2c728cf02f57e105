# SPDX-License-Identifier: Apache-2.0
"""The released files, installed as a user does it: the wheel in a new venv, Debian's packages."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import released
from released import ROOT, environment, output

from nfsrdma_tools import __version__
from nfsrdma_tools.lab import client_library
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.nightly

# Debian as it is: nothing of the lab's toolkit, man pages are installed, packages are in an archive
PLAIN = """
rm /etc/dpkg/dpkg.cfg.d/99mmdebstrap /usr/local/bin/nfsrdma
rm -r /opt/nfsrdma /usr/local/lib/python3.13/dist-packages/nfsrdma.pth
echo 'deb [trusted=yes] file:/opt/archive ./' > /etc/apt/sources.list.d/0000sources.list
apt-get -qq update
"""
# /var/cache/man is man-db's, which forgets removed pages by a timer
OURS = """
find / -xdev \\( -path /root -o -path /var/cache/man \\) -prune -o -name '*nfsrdma*' -print | sort
"""
COPY = """
head -c 3000000 /dev/urandom > /mnt/data; sync /mnt/data; cp /mnt/data /tmp
echo 3 > /proc/sys/vm/drop_caches; cmp /mnt/data /tmp/data
rm /mnt/data /tmp/data
umount /mnt
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    output(sys.executable, "-m", "venv", tmp_path / "venv")
    return tmp_path / "venv"


def test_a_wheel_has_each_file_of_the_package_and_what_goes_with_it(wheel: Path) -> None:
    places = ("nfsrdma_tools", "bpf", "kmod", "playbooks", "lib/*.[chx]", "lib/Makefile")
    known = output("git", "ls-files", *places, ":!lib/fio", ":!lib/man").split()
    wanted = {f if f.startswith("nfsrdma") else f"nfsrdma_tools/data/{f}" for f in known}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted - names == set()
    assert f"nfsrdma_tools-{__version__}.data/data/share/man/man1/nfsrdma-lab-up.1" in names


def test_the_wheel_works_in_a_new_venv_and_finds_its_sources(wheel: Path, venv: Path) -> None:
    output(venv / "bin/pip", "install", "-q", f"{wheel}[all]")
    python = venv / "bin/python"
    script = "from nfsrdma_tools import module_source as s; print(s.find().folder)"
    assert Path(output(python, "-P", "-c", script).strip()).is_relative_to(venv)
    # builds of the library have names by the digests of its sources; with them, their packages
    script = "from nfsrdma_tools.lab import client_library as c; print(*c.current())"
    assert {*output(python, "-P", "-c", script).split()} == client_library.current()
    assert "Usage" in output(venv / "bin/nfsrdma", "--help")
    assert output(python, "-m", "pip", "check") == "No broken requirements found.\n"
    rooms = ("report.canvas", "live.web.server", "live.top.app")
    # lab/qemu.py imports its library late
    modules = ("qemu.qmp.legacy", *(f"nfsrdma_tools.{room}" for room in rooms))
    output(python, "-P", "-c", f"import {', '.join(modules)}")


def test_the_core_alone_names_the_extra_that_a_command_needs(wheel: Path, venv: Path) -> None:
    output(venv / "bin/pip", "install", "-q", wheel)
    for words in (("top",), ("exporter", "--web.listen-address", ":0")):
        argv = (venv / "bin/nfsrdma", *words)
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "pip install 'nfsrdma-tools[live]'" in done.stderr


READ = """
import importlib.metadata
import os

from device import FOLDER, Device, build

path = build()
device = Device(path)
device.put("/export", kind=FOLDER)
device.put("/export/data", b"data")
os.environ["NFSRDMA_LIBRARY"] = str(path)

from nfsrdma_tools import client

with client.connect("server:/export") as session, session.open("data") as file:
    print(file.pread(4, 0).decode())
print(client.__file__)
print(*sorted(each.name for each in importlib.metadata.distributions()))
"""


def test_the_client_alone_needs_no_other_package_than_cffi(wheel: Path, venv: Path) -> None:
    output(venv / "bin/pip", "install", "-q", "--no-deps", wheel)
    output(venv / "bin/pip", "install", "-q", "cffi")
    printed = output(venv / "bin/python", "-P", "-c", READ, PYTHONPATH=str(ROOT / "tests"))
    data, place, packages = printed.splitlines()
    assert data == "data"
    assert Path(place).is_relative_to(venv)
    # a venv brings pip, and setuptools before Python 3.12
    assert {*packages.split()} - {"setuptools"} == {"cffi", "nfsrdma-tools", "pip", "pycparser"}


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    packages = released.debs(tmp_path_factory.mktemp("debs"))
    # the library's packages have no test here: nodes lack what they depend on
    return [path for path in packages if path.name.startswith("nfsrdma-")]


@pytest.fixture
def node() -> Iterator[Lab]:
    """A pair of its own; the client has the packages that Debian's are made of, and no network."""
    with Lab(LabConfig(f"test-debs-{os.getpid()}", shape="pair", extras=True)) as lab:
        sh(lab, PLAIN)
        yield lab


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-c", f"set -e\n{script}", timeout=3600).stdout


def test_debians_packages_are_installed_used_and_removed(node: Lab, debs: list[Path]) -> None:
    assert [path.name for path in debs] == [
        f"nfsrdma-{name}_{__version__}_all.deb" for name in ("dkms", "tools")
    ]
    before = sh(node, OURS)
    for path in debs:
        copy = ("sh", "-c", f"cat > /root/{path.name}")
        node.run("client", *copy, stdin=path.read_bytes())
    sh(node, "apt-get -qq -y --no-install-recommends install man-db /root/*.deb")

    assert "nfsrdma-mount - " in sh(node, "man nfsrdma-mount")
    assert "Usage: nfsrdma" in sh(node, "nfsrdma --help")
    ended = node.run("client", "nfsrdma", "doctor", "server", "--json", check=False)
    rows = {row["name"]: row["status"] for row in json.loads(ended.stdout)["findings"]}
    assert "error" not in rows.values(), rows
    ended = node.run("client", "nfsrdma", "exporter", check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "(apt install python3-" in ended.stderr
    sh(node, f"nfsrdma mount server:/export /mnt --transport rdma\n{COPY}")

    release = sh(node, "uname -r").strip()
    assert f"nfsrdma/{__version__}, {release}, x86_64: installed" in sh(node, "dkms status")
    loaded = sh(node, 'nfsrdma module load "$(modinfo -n nfsrdma)"')
    assert loaded.startswith(f"nfsrdma {__version__} ")
    sh(node, f"nfsrdma mount server:/export /mnt --transport nfsrdma\n{COPY}")
    sh(node, "nfsrdma module unload")

    sh(node, "apt-get -qq -y purge nfsrdma-tools nfsrdma-dkms")
    assert sh(node, "dkms status") == ""
    assert sh(node, OURS).splitlines() == before.splitlines()
