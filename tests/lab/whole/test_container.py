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
from testbed.node.programs import until
from testbed.scrapes import scrape

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
ARCHIVE = ROOT / f"dist/nfsrdma-tools-{__version__}-container.tar"
IMAGE = f"localhost/nfsrdma-tools:{__version__}"
MOST_PACKED, MOST_UNPACKED = 160e6, 450e6
TOKEN = "a-token-of-a-test-0123"  # noqa: S105 -- of a lab
HOST = (
    "--rm --network host -v /proc:/host/proc:ro,rslave -v /sys:/host/sys:ro,rslave "
    "-v /:/host/root:ro,rslave"
)
PATHS = "--path.procfs=/host/proc --path.sysfs=/host/sys --path.rootfs=/host/root"
TRACING = "-v /sys/kernel/tracing:/sys/kernel/tracing:ro"
NAMED = "BPF", "PERFMON", "SYSLOG", "SYS_ADMIN"
PROBES = "--cap-drop ALL --cap-add BPF --cap-add PERFMON --cap-add SYS_ADMIN"
MISSING = 'nfsrdma_missing{what="probes"}'
READ_COUNT = 'nfsrdma_rpc_duration_seconds_count{mount="/mnt",op="READ",transport="rdma"}'
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
    (image,) = json.loads(sh(node, f"podman image inspect {IMAGE}"))
    assert image["Size"] <= MOST_UNPACKED


def doctor(lab: Lab, options: str, paths: str) -> tuple[dict[str, dict[str, Any]], str]:
    """The findings by name, and the whole text."""
    words = f"podman run {options} --cap-drop ALL {IMAGE} doctor {paths} --json"
    told = sh(lab, words, check=False)
    return {row["name"]: row for row in json.loads(told)["findings"]}, told


def test_doctor_reads_the_mount_of_the_node(node: Lab) -> None:
    rows, told = doctor(node, HOST, PATHS)
    assert "error" not in {row["status"] for row in rows.values()}, told
    assert "mounted over RDMA" in rows["route to server"]["found"]
    assert "mounts" not in rows
    # the names that the node has
    assert "read-ahead /mnt" in rows, told
    assert "/host/" not in told


def test_doctor_without_the_files_of_the_node_says_so(node: Lab) -> None:
    rows, told = doctor(node, "--rm --network host", "")
    assert rows["mounts"]["status"] == "unknown", told
    assert "--path.procfs" in rows["mounts"]["remedy"]
    assert "error" not in {row["status"] for row in rows.values()}, told


POD = "0a1b2c3d-1111-2222-3333-444455556666"
VOLUME = f"/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~csi/data/mount"
CUT = """
nft 'add table inet cut; add chain inet cut in { type filter hook input priority 0; };
add rule inet cut in tcp dport 2049 drop; add rule inet cut in udp dport 4791 drop'
"""
LIMIT = 4


def health(lab: Lab, options: str, words: str) -> dict[str, Any]:
    """The report of a run in a container, which keeps what it saw in a folder of the node."""
    kept = "-v /run/health:/run/nfsrdma"
    told = sh(lab, f"podman run {options} {kept} {IMAGE} health --json {words}", check=False)
    report: dict[str, Any] = json.loads(told)
    return report


def test_health_finds_a_server_that_is_cut_off(node: Lab) -> None:
    """The pod, its namespace and the volume are those of the mount's path."""
    words = f"{PATHS} --max-rpc-age {LIMIT}s --timeout 60"
    sh(
        node,
        f"mkdir -p /run/health {VOLUME} /var/log/pods/shop_web-0_{POD}\n"
        f"mount -t nfs -o vers=3,proto=tcp,nolock,nosharecache server:/export {VOLUME}",
    )
    try:
        well = health(node, HOST, words)
        assert {row["mount"]: row["status"] for row in well["findings"]} == {
            "/mnt": "ok", VOLUME: "ok",
        }, well  # fmt: skip
        node.run("server", "sh", "-c", CUT)
        try:
            sh(node, f"systemd-run --quiet --collect --unit hangs -- ls {VOLUME}/none")

            def critical() -> dict[str, Any] | None:
                report = health(node, HOST, words)
                (row,) = (row for row in report["findings"] if row["mount"] == VOLUME)
                return row if row["status"] == "critical" else None

            finding = until("a critical finding", critical, 300, 0.5)
        finally:
            node.run("server", "nft", "delete", "table", "inet", "cut")
        assert finding["age_seconds"] >= LIMIT
        assert (finding["server"], finding["transport"]) == ("server:/export", "tcp")
        volume = finding["volume"]
        assert (volume["namespace"], volume["pod"], volume["pod_uid"], volume["name"]) == (
            "shop", "web-0", POD, "data",
        )  # fmt: skip
        until("the server", lambda: health(node, HOST, words)["exit_status"] == 0, 300, 0.5)
    finally:
        sh(node, f"until umount {VOLUME}; do sleep 0.2; done; rm -r /var/log/pods/shop_*")


def test_health_without_the_proc_of_the_node_is_unknown_in_one_line(node: Lab) -> None:
    told = sh(node, f"podman run --rm --network host {IMAGE} health; echo status $?")
    line, status = told.splitlines()
    assert line.startswith("NFS UNKNOWN: ") and "--path.procfs" in line
    assert status == "status 3"


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


def test_without_addresses_of_the_kernel_no_stacks_are_sampled(node: Lab) -> None:
    words = f"podman run {HOST} {TRACING} {PROBES} {IMAGE} trace cpu --count 1 --interval 2 -j"
    told = sh(node, words)
    assert "perf:cpu-clock" in told and "CAP_SYSLOG" in told, told


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
    lines = scrape(lab, TOKEN).splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
    return {name: float(value) for name, value in rows}


@pytest.fixture(scope="module")
def exporter(node: Lab) -> Iterator[dict[str, Any]]:
    """The manifest's container, as podman describes it, once its probes are attached."""
    text = yaml.safe_dump_all(manifest())
    node.run("client", "sh", "-c", "cat > /root/pod.yml", stdin=text.encode())
    sh(node, "podman kube play -q /root/pod.yml")
    try:

        def attached() -> bool:
            """The first sample is there, and the probes are attached."""
            names = "\n".join(metrics(node))
            return 'nfsrdma_mount_info{mount="/mnt"' in names and MISSING not in names

        until("all probes", attached, 600, 0.5)
        (container,) = json.loads(sh(node, "podman inspect nfsrdma-exporter-pod-exporter"))
        yield container
    finally:
        sh(node, "podman kube down /root/pod.yml", check=False)


def test_the_manifest_counts_what_mountstats_counts_without_privileges(
    node: Lab, exporter: dict[str, Any]
) -> None:
    samples = metrics(node)
    names = "\n".join(samples)
    # stacks are sampled
    assert "perf:cpu-clock" not in names and "kprobe:nfs_start_io_read" not in names
    before, counted = reads(node), samples.get(READ_COUNT, 0)
    sh(node, READS)
    assert reads(node) - before == 5
    until("the five READs", lambda: metrics(node).get(READ_COUNT, 0) >= counted + 5, 300, 0.5)
    assert metrics(node)[READ_COUNT] == counted + 5
    assert not exporter["HostConfig"]["Privileged"]
    assert set(exporter["EffectiveCaps"]) == {f"CAP_{name}" for name in NAMED}


def test_the_manifest_is_filtered_and_its_mounts_are_read_only(
    node: Lab, exporter: dict[str, Any]
) -> None:
    """podman 5.4 ignores ``recursiveReadOnly``: what is below /host/sys stays writable."""
    process = f"/proc/{exporter['State']['Pid']}"
    status = dict(line.split(":", 1) for line in sh(node, f"cat {process}/status").splitlines())
    # proc_pid_status(5): SECCOMP_MODE_FILTER
    assert status["Seccomp"].strip() == "2"
    rows = [line.split() for line in sh(node, f"cat {process}/mountinfo").splitlines()]
    kept = {row[4]: "ro" in row[5].split(",") for row in rows}
    of_manifest = ("/", "/host/proc", "/host/sys", "/host/root", "/etc/nfsrdma")
    assert {path: kept[path] for path in of_manifest} == dict.fromkeys(of_manifest, True)
