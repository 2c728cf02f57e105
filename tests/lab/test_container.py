# SPDX-License-Identifier: Apache-2.0
"""The image of ``make container`` and the manifest for Kubernetes, run by podman in a node.

Needs dist/nfsrdma-tools-VERSION-container.tar.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nfsrdma_tools import __version__
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / f"dist/nfsrdma-tools-{__version__}-container.tar"
IMAGE = f"localhost/nfsrdma-tools:{__version__}"
MOST_PACKED, MOST_UNPACKED = 160e6, 450e6
TOKEN = "a-token-of-a-test-0123"  # noqa: S105 -- of a lab
HOST = "--rm --network host -v /proc:/host/proc:ro -v /sys:/host/sys:ro -v /:/host/root:ro"
TRACING = "-v /sys/kernel/tracing:/sys/kernel/tracing:ro"
PROBES = "--cap-drop ALL --cap-add BPF --cap-add PERFMON --cap-add SYS_ADMIN"
SCRAPE = f"""
import urllib.request
request = urllib.request.Request(
    "http://127.0.0.1:29949/metrics", headers={{"Authorization": "Bearer {TOKEN}"}}
)
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
READ = "dd if=/mnt/data of=/dev/null bs=64K count=1 iflag=direct status=none"
READS = f"for i in 1 2 3 4 5; do {READ}; done"


@pytest.fixture(scope="module")
def node() -> Iterator[Lab]:
    """A pair; the client has the image and a mount over RDMA."""
    if not ARCHIVE.exists():
        pytest.fail(f"{ARCHIVE} is missing: run make container")
    with Lab(LabConfig(f"test-image-{os.getpid()}", shape="pair", extras=True)) as lab:
        load = "cat > /root/image.tar; podman load -q -i /root/image.tar; rm /root/image.tar"
        lab.run("client", "sh", "-c", load, stdin=ARCHIVE.read_bytes(), timeout=1800)
        sh(lab, "nfsrdma mount server:/export /mnt --transport rdma")
        sh(lab, "dd if=/dev/urandom of=/mnt/data bs=64K count=1 conv=fsync status=none")
        yield lab


def sh(lab: Lab, script: str, check: bool = True) -> str:
    return lab.run("client", "sh", "-c", script, timeout=1800, check=check).stdout


def reads(lab: Lab) -> int:
    """The READs of the mount, as mountstats counts them."""
    row = re.search(r"^\s*READ: (\d+) ", sh(lab, "cat /proc/self/mountstats"), re.MULTILINE)
    assert row
    return int(row[1])


def test_the_archive_is_small(node: Lab) -> None:
    assert ARCHIVE.stat().st_size <= MOST_PACKED
    (found,) = json.loads(sh(node, f"podman image inspect {IMAGE}"))
    assert found["Size"] <= MOST_UNPACKED


def test_doctor_reads_the_mount_of_the_node(node: Lab) -> None:
    told = sh(node, f"podman run {HOST} --cap-drop ALL {IMAGE} doctor --json", check=False)
    rows = {row["name"]: row for row in json.loads(told)["findings"]}
    assert "error" not in {row["status"] for row in rows.values()}, told
    assert "mounted over RDMA" in rows["route to server"]["found"]


def test_trace_counts_what_mountstats_counts(node: Lab) -> None:
    words = f"podman run {HOST} {TRACING} {PROBES} {IMAGE} trace latency --count 3 --interval 8 -j"
    before = reads(node)
    # a line names missing events; the next one is the first interval, so the probes are attached
    attached = "while test $(wc -l < /tmp/trace) -lt 2; do kill -0 $!; sleep 0.1; done"
    told = sh(node, f"set -e; {words} > /tmp/trace & {attached}; {READS}; wait $!; cat /tmp/trace")
    counted = sum(
        row["count"]
        for line in told.splitlines()
        for row in json.loads(line).get("rows", [])
        if row.get("procedure") == "READ" and "count" in row
    )
    assert (counted, reads(node) - before) == (5, 5), told


def manifest() -> list[dict[str, Any]]:
    """The manifest with the image of the node, and its secret."""
    document = yaml.safe_load((ROOT / "playbooks/monitoring/daemonset.yml").read_text())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    container["image"] = IMAGE
    secret = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nfsrdma-exporter"},
        "stringData": {"token": TOKEN},
    }  # fmt: skip
    return [secret, document]


def metrics(lab: Lab) -> dict[str, float]:
    """The exporter's metrics; none before it listens."""
    told = lab.run("client", "python3", "-c", SCRAPE, check=False, timeout=120).stdout
    rows = (line.rsplit(" ", 1) for line in told.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in rows}


def test_the_manifest_runs_without_privileges(node: Lab) -> None:
    text = yaml.safe_dump_all(manifest())
    node.run("client", "sh", "-c", "cat > /root/pod.yml", stdin=text.encode())
    sh(node, "podman kube play -q /root/pod.yml")
    try:
        for _ in range(300):
            found = metrics(node)
            # before the first sample, there is no mount
            if any(name.startswith('nfsrdma_mount_info{mount="/mnt"') for name in found):
                break
            sh(node, "sleep 1")
        else:
            pytest.fail("\n".join(found))
        (container,) = json.loads(sh(node, "podman inspect nfsrdma-exporter-pod-exporter"))
        assert not container["HostConfig"]["Privileged"]
        assert not container["EffectiveCaps"]
    finally:
        sh(node, "podman kube down /root/pod.yml", check=False)
