# SPDX-License-Identifier: Apache-2.0
"""The lab itself: nodes that know each other, a wire that can be changed, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nfsrdma_tools.lab import paths
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import read_state

READ_BACK = """
mount -t nfs -o vers={vers},proto={proto},port={port} server:/export /mnt
grep ' /mnt ' /proc/mounts
head -c 3000000 /dev/urandom > /mnt/lab-data
umount /mnt
mount -t nfs -o vers={vers},proto={proto},port={port} server:/export /mnt
md5sum < /mnt/lab-data
rm /mnt/lab-data.none 2>/dev/null
umount /mnt
"""


def carry(lab: Lab, proto: str, vers: str) -> None:
    """Write through a mount of the server and read back through another one."""
    port = 20049 if proto == "rdma" else 2049
    script = "set -e\n" + READ_BACK.format(vers=vers, proto=proto, port=port)
    printed = lab.run("client", "sh", "-c", script.replace("rm /", ": /")).stdout
    assert f"proto={proto}" in printed
    there = lab.run("server", "sh", "-c", "md5sum < /export/lab-data; rm /export/lab-data").stdout
    assert printed.splitlines()[-1] == there.strip()


@pytest.mark.parametrize(("proto", "vers"), [("tcp", "3"), ("rdma", "3"), ("rdma", "4.2")])
def test_a_solo_lab_carries_data(solo: Lab, proto: str, vers: str) -> None:
    carry(solo, proto, vers)


def test_the_wire_is_met_by_both_transports_and_can_be_changed(solo: Lab) -> None:
    solo.set_link("100mbit/2ms")
    try:
        wire = solo.run("client", "sh", "-c", "tc qdisc show dev v0; cat /etc/nfsrdma-lab.json")
        assert "delay 1ms rate 100Mbit" in wire.stdout
        assert json.loads(wire.stdout.splitlines()[-1])["link"] == "100mbit/2000us"
    finally:
        solo.set_link("1gbit/100us")
    assert "delay 50us rate 1Gbit" in solo.run("server", "tc", "qdisc", "show", "dev", "v1").stdout


def test_a_lab_whose_connections_ended_in_a_pause_goes_on(solo: Lab) -> None:
    """As they do after 25 minutes."""
    solo.pause()
    solo.machines["solo"].ssh.close()
    solo.resume()
    assert solo.run("server", "hostname").stdout == "solo\n"


def test_a_pair_carries_data_between_two_kernels(pair: Lab) -> None:
    assert pair.run("server", "hostname").stdout == "server\n"
    assert pair.run("client", "hostname").stdout == "client1\n"
    carry(pair, "rdma", "4.2")


def test_packets_of_a_pair_arrive_in_order(pair: Lab) -> None:
    """Soft-RoCE takes a swap of two for a loss, and sends again all that came after."""
    script = (
        "set -e; mount -t nfs -o vers=4.2,proto=rdma,port=20049 server:/export /mnt;"
        "truncate -s 64M /mnt/data; dd if=/mnt/data of=/dev/null bs=1M iflag=direct 2>/dev/null;"
        "rm /mnt/data; umount /mnt"
    )
    before = missed(pair)
    pair.run("client", "sh", "-c", script)
    assert missed(pair) == before


def missed(lab: Lab) -> str:
    path = "/sys/class/infiniband/rxe0/ports/1/hw_counters/out_of_seq_request"
    return lab.run("client", "cat", path).stdout


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != KERNELS[0]])
def test_the_other_kernels_do_nfs_over_rdma(kernel: str) -> None:
    name = f"test-{kernel.replace('.', '-')}-{os.getpid()}"
    with Lab(LabConfig(name, kernel=kernel, extras=True)) as lab:
        assert lab.run("client", "uname", "-r").stdout.startswith(kernel + ".")
        carry(lab, "rdma", "3")


def test_an_oops_is_reported_at_once_with_the_consoles_lines() -> None:
    crash = ("sh", "-c", "echo c > /proc/sysrq-trigger")
    message = r"kernel of solo reports: .*sysrq"
    # the command itself would hang until its time limit: the report has to end it
    with (
        Lab(LabConfig(f"test-oops-{os.getpid()}", extras=True)) as lab,
        pytest.raises(KernelReportError, match=message),
    ):
        lab.run("client", *crash, timeout=3600)


def test_nothing_outlives_a_killed_owner() -> None:
    name = f"test-owner-{os.getpid()}"
    code = (
        "import sys, time\n"
        "from nfsrdma_tools.lab.config import LabConfig\n"
        "from nfsrdma_tools.lab.lab import Lab\n"
        f"with Lab(LabConfig({name!r}, extras=True)):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    owner = subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    assert _processes(name)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    end = time.monotonic() + 60
    while _processes(name) and time.monotonic() < end:
        time.sleep(0.05)
    assert _processes(name) == []
    assert read_state(name) == {}
    with Lab(LabConfig(name, extras=True)) as again:
        assert again.run("client", "true").returncode == 0
    assert not paths.lab_dir(name).exists()


def _processes(name: str) -> list[str]:
    programs = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(f"/{name}/" in word for word in words):
            programs.append(words[0])
    return programs


@pytest.mark.main
def test_up_status_and_down_from_the_command_line() -> None:
    name = f"test-cli-{os.getpid()}"
    up = _nfsrdma("lab", "up", name)
    assert f"{name} is up" in up.stdout
    try:
        labs = json.loads(_nfsrdma("lab", "status", "--json").stdout)["labs"]
        assert [lab["phase"] for lab in labs if lab["name"] == name] == ["ready"]
        assert _nfsrdma("lab", "ssh", name, "--", "nfsrdma", "--help").stdout.startswith("Usage")
        again = _nfsrdma("lab", "up", name, check=False)
        assert again.returncode == 1
        assert again.stderr.count("\n") == 1
        assert "already up" in again.stderr
    finally:
        _nfsrdma("lab", "down", name)
    assert _processes(name) == []
    assert not paths.lab_dir(name).exists()


def _nfsrdma(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "nfsrdma_tools", *words)
    return subprocess.run(
        argv, capture_output=True, text=True, check=check, stdin=subprocess.DEVNULL
    )
