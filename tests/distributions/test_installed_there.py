# SPDX-License-Identifier: Apache-2.0
"""The released files in plain roots of Debian 11, 12 and 13: packages, the wheel, the zipapp.

What reads a recorded host must answer there as it does in this checkout.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import released
from distribution_tables import distributions
from distributions.roots import HOST, Root
from field_archive import Unpacked
from released import ROOT, common, output
from unit.sweep.trials_made import trial_of

from nfsrdma_tools import __version__
from nfsrdma_tools.host.module.install import parse_dkms_status
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import Store

pytestmark = pytest.mark.nightly

GLIBCS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17")
LOG = ROOT / "tests/unit/kernel_records/allocation-nfsd-atomic-3.10.log"
PLAN = Plan("server:/export", uid="p1")
TRIAL = trial_of("p1", Cell("rdma", 8192, 4), 1, 0, throughput=119.5, rdma={"recvs": 7})
HOSTS = ("rhel9-bond-vlan-roce", "rhel10-image-mode-mount-units", "sles15-quiet-history")
Commands = tuple[tuple[str, ...], ...]


@pytest.fixture
def reading(field: Unpacked) -> Commands:
    """Commands that read a recorded host."""
    words = (("doctor",), ("doctor", "--after-reboot"), ("mounts",), ("server", "status"))
    return (
        ("--help",),
        *((*some, "--from", str(field(name)), "--json") for some in words for name in HOSTS),
        ("explain", str(LOG), "--json"),
        ("explain", "--kernel", "--from", str(field("rhel9-bond-vlan-roce")), "--json"),
    )


Answer = tuple[int, str, str]


def answer(status: int, stdout: str, stderr: str) -> Answer:
    """An answer without the folder that a root has before the paths of this checkout."""
    before = rf"/{HOST}(?=/)"
    return status, re.sub(before, "", stdout), re.sub(before, "", stderr)


def here(words: tuple[str, ...]) -> Answer:
    """The answer of this checkout."""
    done = subprocess.run(
        (sys.executable, "-m", "nfsrdma_tools", *words),
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "dumb"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return answer(done.returncode, done.stdout, done.stderr)


def check_answers(root: Root, program: str | Path, commands: Commands) -> None:
    """Compare the answers of a program in a root with those of this checkout."""
    for words in commands:
        moved = [f"/{HOST}{word}" if word.startswith("/") else word for word in words]
        done = root.run(program, *moved, check=False, COLUMNS="100", TERM="dumb")
        theirs = answer(done.returncode, done.stdout, done.stderr)
        assert theirs == here(words), words
        assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the packages."""
    return released.debs(tmp_path_factory.mktemp("debs"))[0].parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released.wheel(tmp_path_factory.mktemp("wheel"))


Download = Callable[[str], Path]


@pytest.fixture
def download(wheel: Path, tmp_path: Path) -> Download:
    """The wheel and what it needs, for a version of Python, by this machine's pip."""

    def fetch(version: str) -> Path:
        folder = tmp_path / "wheels"
        platforms = [f"--platform={glibc}_x86_64" for glibc in GLIBCS]
        output(
            *(sys.executable, "-m", "pip", "download", "-q", "-d", folder),
            *("--python-version", version, "--implementation", "cp", "--only-binary=:all:"),
            *platforms, f"{wheel}[all]",
        )  # fmt: skip
        return folder

    return fetch


@pytest.mark.parametrize("new", ["13"], indirect=True)
def test_the_package_of_debian_13_installs_and_answers(
    new: Root, debs: Path, reading: Commands
) -> None:
    done = new.packages(f"/{HOST}{debs}/nfsrdma-tools_{__version__}_all.deb")
    assert done.returncode == 0, done.stderr
    check_answers(new, "/usr/bin/nfsrdma", reading)
    new.run("apt-get", "-qq", "-y", "purge", "nfsrdma-tools")
    assert new.run("dpkg-query", "-W", "nfsrdma-tools", check=False).returncode


@pytest.mark.parametrize("new", ["12"], indirect=True)
def test_debian_12_refuses_the_package_and_names_the_libraries(new: Root, debs: Path) -> None:
    done = new.packages(f"/{HOST}{debs}/nfsrdma-tools_{__version__}_all.deb")
    assert done.returncode
    named = re.findall(r"Depends: python3-(\w+) \(>= [\d.]+\)", done.stdout + done.stderr)
    assert sorted(named) == ["psutil", "pyroute2", "typer"], done


@pytest.mark.parametrize("new", ["12", "13"], indirect=True)
def test_the_wheel_installs_in_a_venv_and_answers(
    new: Root, download: Download, reading: Commands
) -> None:
    version = new.run("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    wheels = download(version.stdout.strip())
    new.sh("python3 -m venv /opt/nfsrdma")
    install = ("/opt/nfsrdma/bin/pip", "install", "-q", "--no-index", "--find-links")
    new.run(*install, f"/{HOST}{wheels}", "nfsrdma-tools[all]")
    check_answers(new, "/opt/nfsrdma/bin/nfsrdma", reading)
    # live, among this release's programs
    assert "Traceback" not in new.run("/opt/nfsrdma/bin/nfsrdma", "doctor", check=False).stderr


@pytest.mark.parametrize("new", ["12", "13"], indirect=True)
def test_a_wheel_takes_the_place_of_an_older_one_and_back(
    new: Root, wheel: Path, download: Download, tmp_path: Path
) -> None:
    version = new.run("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    wheels = download(version.stdout.strip())
    older = released.wheel(tmp_path / "older", released.oldest(tmp_path / "tree"))
    folder = "/opt/nfsrdma"
    new.run("python3", "-m", "venv", folder)
    pip = f"{folder}/bin/pip"
    traces = f"{pip} list; find {folder}/ -name '*nfsrdma*'"
    before = new.sh(traces).stdout
    install = (pip, "install", "-q", "--no-index", "--find-links", f"/{HOST}{wheels}")
    new.run(*install, "nfsrdma-tools[all]")
    written = tmp_path / "written.db"
    with Store(written) as store:
        store.add_plan(PLAN)
        store.add_trial(TRIAL)
    export = (f"{folder}/bin/nfsrdma", "results", "export", f"/{HOST}{written}", "--format", "json")
    trials = []
    for path in (older, wheel, older):
        new.run(*install, "--force-reinstall", "--no-deps", f"/{HOST}{path}")
        trials.append(json.loads(new.run(*export).stdout)["trials"])
    assert trials[0]
    assert trials[0] == trials[2] == common(trials[1], trials[0])
    installed = new.run(pip, "freeze").stdout
    names = re.findall(r"^[\w.-]+", installed, re.MULTILINE)
    assert "nfsrdma-tools" in names
    new.run(pip, "uninstall", "-q", "-y", *names)
    assert new.sh(traces).stdout == before


@pytest.mark.parametrize("new", ["11"], indirect=True)
def test_the_wheel_names_the_python_that_debian_11_lacks(new: Root, wheel: Path) -> None:
    new.sh("python3 -m venv /opt/nfsrdma")
    install = ("/opt/nfsrdma/bin/pip", "install", "-q", "--no-index", "--no-deps")
    done = new.run(*install, f"/{HOST}{wheel}", check=False)
    assert done.returncode
    assert "requires a different Python: 3.9" in done.stderr


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released.zipapp(tmp_path_factory.mktemp("zipapp"))


@pytest.mark.parametrize("root", ["11", "12", "13"], indirect=True)
def test_the_zipapp_collects_by_the_release_own_python(root: Root, zipapp: Path) -> None:
    program = ("python3", f"/{HOST}{zipapp}")
    assert "collect" in root.run(*program, "--help").stdout
    root.run(*program, "collect", "--output", "/root/bundle.tar.gz")
    bundle = root.folder / "root/bundle.tar.gz"
    done = here(("doctor", "--from", str(bundle), "--json"))
    assert done[0] in (0, 1), done[2]
    state = ("health", "--state", "/root/state")
    # in a chroot, as in a container, it reads the host's files by these options only
    alone = root.run(*program, *state, check=False)
    assert (alone.returncode, alone.stderr) == (3, ""), alone
    assert "these are the mounts of a container" in alone.stdout
    paths = ("procfs=/{0}/proc", "sysfs=/{0}/sys", "rootfs=/{0}")
    options = (f"--path.{path.format(HOST)}" for path in paths)
    health = root.run(*program, *state, *options, check=False)
    assert (health.returncode, health.stderr) == (0, ""), health


@pytest.mark.parametrize(("new", "built"), [("11", ()), ("12", ("6.1",)), ("13", ("6.12",))],
                         indirect=["new"])  # fmt: skip
def test_dkms_builds_the_module_for_the_release_kernel(
    new: Root, built: tuple[str, ...], debs: Path
) -> None:
    headers = new.packages("linux-headers-amd64")
    assert headers.returncode == 0, headers.stderr
    (row,) = [row for row in distributions() if row.name == new.release.name]
    (kernel,) = [path.name for path in (new.folder / "lib/modules").iterdir()]
    assert kernel.startswith(f"{row.kernel}.")
    done = new.packages(f"/{HOST}{debs}/nfsrdma-dkms_{__version__}_all.deb")
    assert done.returncode == 0, done.stdout[-3000:]
    status = new.run("dkms", "status", "-m", "nfsrdma").stdout
    rows = parse_dkms_status(status)
    assert rows, status
    kernels = [row.kernel for row in rows if row.state.startswith("installed")]
    assert tuple(re.findall(r"^\d+\.\d+", kernel)[0] for kernel in kernels) == built, status
