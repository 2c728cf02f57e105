# SPDX-License-Identifier: Apache-2.0
"""The toolkit on arm64, with pages of 4, 16 and 64 KiB, in a machine that is server and client."""

import json
import os
import shutil
from collections.abc import Iterator

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import kernels
from nfsrdma_tools.lab.config import BUILT, FOREIGN, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.client_files import files
from testbed.labs import OURS, THEIRS, serve
from testbed.module_data import around, carried
from testbed.mounts import connections, mounted
from testbed.probe_counts import DONE, by_procedure, count_alike

pytestmark = pytest.mark.nightly

PAGES = dict(zip(FOREIGN, (4096, 16384, 65536), strict=True))
# where data fills the pages of one of the kernels, and the messages of the transports
SIZES = around(1, 1024, *PAGES.values(), 1 << 20)
STORE = "/root/sweep.db"
SWEEP = ("--vers", "3", "--file-size", "1M", "--runs", "1", "--exhaustive", "--no-probes")


@pytest.fixture(scope="module", params=FOREIGN)
def arm64(request: pytest.FixtureRequest) -> Iterator[Lab]:
    name = f"test-{request.param.replace('.', '-')}-{os.getpid()}"
    missing = [p for p in ("arch-test", "qemu-aarch64-static") if not shutil.which(p)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed; missed: {request.param}")
    if request.param in BUILT:
        try:
            kernels.find(request.param)
        except UserError as error:
            pytest.skip(f"{error}: {error.hint}; missed: {request.param}")
    with Lab(LabConfig(name, kernel=request.param)) as lab:
        yield lab


def test_the_machine_has_the_pages_of_its_kernel(arm64: Lab) -> None:
    words = arm64.run("client", "sh", "-c", "uname -m; getconf PAGE_SIZE").stdout.split()
    assert words == ["aarch64", str(PAGES[arm64.config.kernel])]


def test_the_kernels_module_carries_data(arm64: Lab) -> None:
    assert carried(arm64, "vers=4.2", SIZES, 1, ("buffered", "direct-skewed")).bytes > 0


def test_doctor_finds_no_error(arm64: Lab) -> None:
    ended = arm64.run("client", "nfsrdma", "doctor", "--json", check=False, timeout=1800)
    report = json.loads(ended.stdout)
    assert [finding for finding in report["findings"] if finding["status"] == "error"] == []


def test_a_sweep_of_two_cells(arm64: Lab) -> None:
    axes = ("--transport", "rdma", "--rsize", "64k,1M", "--read-ahead", "4")
    sweep = ("sweep", "server:/export", "--output", STORE, *SWEEP, *axes)
    arm64.run("client", "nfsrdma", *sweep, timeout=3600)
    words = ("results", "export", STORE, "--format", "json")
    trials = json.loads(arm64.run("client", "nfsrdma", *words).stdout)["trials"]
    assert len({json.dumps(trial["cell"], sort_keys=True) for trial in trials}) == 2


def count_reads_alike(lab: Lab, *ways: str) -> None:
    """In each way the probes count the RPCs that mountstats counts, at both ends, and lose none."""
    counted = count_alike.at(timeout=3600)(lab, 0, *ways)
    rpcs = by_procedure(counted.buffered["chunks"], "rpcs")["READ"]
    # client and server are one machine; a slow one transmits some Calls twice
    calls = by_procedure(counted.buffered["server"], "calls")["READ"]
    assert DONE["READ"] < rpcs <= calls <= counted.transmissions["READ"]


def test_probes_count_alike_with_headers_and_without(arm64: Lab) -> None:
    count_reads_alike(arm64, "with", "without")


def test_the_library_reads_and_writes(arm64: Lab) -> None:
    files(arm64)


@pytest.fixture(scope="module")
def loaded(arm64: Lab) -> Iterator[Lab]:
    """The machine with our module, for client and server."""
    serve(arm64, "server", OURS)
    yield arm64
    serve(arm64, "server", THEIRS)


def test_our_module_carries_data(loaded: Lab) -> None:
    assert carried(loaded, "vers=3", SIZES, 2, ("buffered", "direct-skewed")).bytes > 0
    assert carried(loaded, "vers=4.2,nconnect=4", [(8 << 20) - 1], 3, ("direct",)).bytes > 0


def test_probes_count_our_module(loaded: Lab) -> None:
    """The client's XIDs count up in its byte order, and many of its READs are at the server."""
    count_reads_alike(loaded, "without")


def test_health_is_ok(loaded: Lab) -> None:
    with mounted(loaded, "vers=4.2"):
        assert connections(loaded)
        assert loaded.run("client", "nfsrdma", "health", "--timeout", "60").stdout.startswith(
            "NFS OK"
        )
