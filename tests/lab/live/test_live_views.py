# SPDX-License-Identifier: Apache-2.0
"""top, dashboard and exporter on other kernels, and on a mount that uses our module."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from lab.live.terminal import use_top

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.dashboard import MOUNT, Scene, fetched, scene
from testbed.node.programs import until
from testbed.scrapes import scrape

# its sysfs does not list connections, and probe sets are missing whose events identify less
OLD = "5.10"
LACKS = {"registrations", "server", "readahead"}


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_other_kernels_show_the_mount(kernel: str) -> None:
    name = f"test-live-{kernel.replace('.', '-')}-{os.getpid()}"
    with Lab(LabConfig(name, kernel=kernel, extras=True)) as lab, scene(lab) as watched:
        shows(watched, "rdma")


@pytest.mark.nightly
def test_a_mount_of_our_module_is_shown(module_pair: Lab) -> None:
    with scene(module_pair) as watched:
        shows(watched, "nfsrdma")


UNLOAD = """
systemctl stop nfs-server nfs-idmapd nfsdcld
umount -a -t nfsd,rpc_pipefs
modprobe -r rpcrdma nfsd nfsv4 nfsv3 nfs auth_rpcgss lockd
modprobe -r sunrpc
test ! -d /sys/module/sunrpc
nohup nfsrdma exporter --interval 1 >/run/exporter 2>&1 </dev/null &
echo $! > /run/exporter.pid
"""
LOAD = """
modprobe rpcrdma
systemctl start nfs-server
mkdir -p /mnt/later
mount -t nfs -o vers=3,proto=rdma,port=20049,nolock server:/export /mnt/later
"""
LEAVE = """
umount /mnt/later
kill $(cat /run/exporter.pid); tail --pid=$(cat /run/exporter.pid) -f /dev/null
cat /run/exporter
"""


@pytest.mark.nightly
def test_an_exporter_attaches_to_modules_loaded_after_its_start() -> None:
    with Lab(LabConfig(f"test-live-later-{os.getpid()}", extras=True)) as lab:
        lab.run("client", "sh", "-ec", UNLOAD)
        without = 'nfsrdma_missing{what="sunrpc:rpc_request"} 1.0'
        until("the probes of a kernel without sunrpc", lambda: without in scrape(lab), 300, 0.5)
        lab.run("client", "sh", "-ec", LOAD)
        counted = 'nfsrdma_rpc_duration_seconds_count{mount="/mnt/later",op="GETATTR"'

        def looks() -> bool:
            lab.run("client", "ls", "/mnt/later")
            return counted in scrape(lab)

        until("RPCs counted by probes", looks, 300, 0.5)
        # all trace events and functions
        until("all probes", lambda: "nfsrdma_missing{" not in scrape(lab), 300, 0.5)
        assert "Traceback" not in lab.run("client", "sh", "-ec", LEAVE).stdout


def shows(watched: Scene, transport: str) -> None:
    """Dashboard, exporter and top have the load of fio on the mount, without a traceback."""
    since = watched.now()
    with watched.load(5) as account:
        job = account()["read"]
    ended = watched.now()
    until("the last frame", lambda: watched.past()["frames"][-1]["time"] > ended + 1, 300, 0.5)
    old = watched.lab.config.kernel == OLD
    dashboard_shows(watched, since, job, old)
    sets = re.findall(r'^nfsrdma_missing{what="probe set (\w+)"}', watched.metrics().decode(), re.M)
    assert set(sets) == (LACKS if old else set())
    own = f'{{mount="{MOUNT}",transport="{transport}"}}'
    for text in (
        watched.metrics().decode(),
        fetched(f"http://{watched.exporter}/metrics").decode(),
    ):
        assert value(text, f"nfsrdma_mount_read_bytes_total{own}") >= job["io_bytes"]
        users = rf'^nfsrdma_mount_xprt_info{{mount="{MOUNT}",.*,xprt="([^"]+)"}} 1.0$'
        (name,) = re.findall(users, text, re.M)
        labels = f'{{transport="{transport}",xprt="{name}"}}'
        if old:
            # device and index in place of a number
            assert re.fullmatch(r"0:\d+ 0", name)
            assert f"nfsrdma_xprt_connected{labels}" not in text
        else:
            assert name.isdecimal()
            assert value(text, f"nfsrdma_xprt_connected{labels}") == 1
    logs = watched.lab.run("client", "cat", "/run/dashboard", "/run/exporter").stdout
    for text in (logs, use_top(watched.lab)):
        assert "Traceback" not in text


def dashboard_shows(watched: Scene, since: float, job: dict[str, Any], old: bool) -> None:
    frames = [frame for frame in watched.past()["frames"] if frame["time"] > since]
    mine = [frame["subjects"].get(f"mount:{MOUNT}", {}) for frame in frames]
    read, rpcs, probed = (
        sum(each.get(key, 0) for each in mine) for key in ("read", "rpcs", "probed")
    )
    assert read == pytest.approx(job["io_bytes"], rel=0.02)
    assert rpcs >= job["total_ios"]
    # both count every RPC, but not always in the same interval
    assert probed == pytest.approx(rpcs, rel=0.02)
    mapped = sum(each.get("regions", {}).get("mapped", 0) for each in mine)
    assert (mapped == 0) if old else (mapped > 0)
    assert sum(each.get("phases", {}).get("network_and_server", 0) for each in mine) > 0
    credits = [each for frame in frames for each in frame["credits"].values()]
    assert all(0 <= each["used"] <= each["granted"] for each in credits)
    assert credits
    # ticks may count in the next interval
    busy, passed = (sum(frame["cpu"][key] for frame in frames) for key in ("busy_ns", "cpus_ns"))
    assert 0 < busy <= passed * 1.05


def value(text: str, name: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


# docs/how-to/grafana.md, step 1; the Debian package puts the program into /usr/bin
UNIT = Path(__file__).parents[3] / "playbooks/monitoring/nfsrdma-exporter.service"
START_UNIT = """
ln -s /usr/local/bin/nfsrdma /usr/bin/nfsrdma
mkdir -m 700 /etc/nfsrdma
openssl rand -hex 16 > /etc/nfsrdma/exporter.token
chmod 600 /etc/nfsrdma/exporter.token
cat > /etc/systemd/system/nfsrdma-exporter.service
systemctl daemon-reload
systemctl start nfsrdma-exporter
"""
TOKEN = ("cat", "/etc/nfsrdma/exporter.token")
END_UNIT = """
systemctl stop nfsrdma-exporter
systemctl show --property Result nfsrdma-exporter
rm -r /etc/nfsrdma /etc/systemd/system/nfsrdma-exporter.service /usr/bin/nfsrdma
systemctl daemon-reload
"""


@pytest.mark.nightly
def test_the_example_of_a_unit_runs_an_exporter_that_requires_the_token(solo: Lab) -> None:
    solo.run("client", "sh", "-ec", START_UNIT, stdin=UNIT.read_bytes())
    token = solo.run("client", *TOKEN).stdout.strip()
    try:
        until("the exporter", lambda: "nfsrdma_build_info{" in scrape(solo, token), 300, 0.5)
        assert "nfsrdma_build_info" not in scrape(solo)
    finally:
        result = solo.run("client", "sh", "-ec", END_UNIT).stdout
    assert result == "Result=success\n"
