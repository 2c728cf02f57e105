# SPDX-License-Identifier: Apache-2.0
"""A client that is watched: a mount, a dashboard and an exporter, and ways to them from here."""

import contextlib
import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.lab.lab import Lab
from testbed.node.programs import until

__all__ = ["MOUNT", "Scene", "fetched", "scene"]

MOUNT = "/mnt/<b>watched"
"""A name that would be bold if it were taken for more than text."""
# not by the client: on 6.1 soft-RoCE ends the connection of a write under load again and again
# (docs/dev/faults-of-other-software.md), and dd would wait for 32 MiB longer than 120 s
FILE = "dd", "if=/dev/zero", "of=/export/watched", "bs=1M", "count=32", "status=none"
BEGIN = """
set -e
mkdir -p "$1"
mount -t nfs -o vers=4.2,proto=rdma,port=20049,rsize=65536,wsize=65536 server:/export "$1"
nohup nfsrdma dashboard --record /run/watched.json >/run/dashboard 2>&1 </dev/null &
echo $! > /run/dashboard.pid
nohup nfsrdma exporter --interval 1 --no-probes >/run/exporter 2>&1 </dev/null &
echo $! > /run/exporter.pid
"""
END = """
for each in exporter dashboard; do
	kill $(cat /run/$each.pid); tail --pid=$(cat /run/$each.pid) -f /dev/null
done
umount "$1"; rmdir "$1"; rm -f /run/watched.json /run/dashboard* /run/exporter*
"""
FIO = """
cd "$1"
fio --name=j --filename=watched --rw=read --bs=64k --direct=1 --ioengine=libaio --iodepth=4 \\
	--size=32M --time_based --runtime="$2" --output-format=json > /run/fio.json
"""


def fetched(url: str) -> bytes:
    """The body of an answer."""
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - an address of ours
        body: bytes = answer.read()
    return body


@dataclass
class Scene:
    """The lab, and on this host the addresses of the dashboard and an exporter without probes."""

    lab: Lab
    url: str
    exporter: str

    def past(self) -> dict[str, Any]:
        """The hour as the dashboard has it."""
        hour: dict[str, Any] = json.loads(fetched(f"{self.url}past"))
        return hour

    def now(self) -> float:
        """The time by the client's clock, in seconds."""
        return float(self.lab.run("client", "date", "+%s.%N").stdout)

    def metrics(self) -> bytes:
        """The metrics, as Prometheus reads them."""
        return fetched(f"{self.url}metrics")

    @contextlib.contextmanager
    def load(self, seconds: int) -> Iterator[Callable[[], dict[str, Any]]]:
        """Run fio meanwhile; yields a function that waits for its end and returns its report."""
        argv = self.lab.ssh("client").argv("sh", "-c", FIO, "sh", MOUNT, str(seconds))
        fio = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

        def account() -> dict[str, Any]:
            assert fio.wait(timeout=600) == 0
            report = json.loads(self.lab.run("client", "cat", "/run/fio.json").stdout)
            job: dict[str, Any] = report["jobs"][0]
            return job

        try:
            yield account
        finally:
            fio.wait(timeout=600)


@contextlib.contextmanager
def scene(lab: Lab) -> Iterator[Scene]:
    """Everything is there within the block, and gone after it."""
    lab.run("server", *FILE)
    lab.run("client", "sh", "-c", BEGIN, "sh", MOUNT, timeout=600)
    try:
        with _forwarded(lab, 8949) as page, _forwarded(lab, 29949) as metrics:
            dashboard = Scene(lab, f"http://127.0.0.1:{page}/", f"127.0.0.1:{metrics}")
            until("the dashboard's first frames", lambda: _answers(dashboard), 300, 0.5)
            # all the probes are attached, which takes the compiler a while here
            missing = b'nfsrdma_missing{what="probes"}'
            until("probes", lambda: missing not in dashboard.metrics(), 600, 0.5)
            yield dashboard
    finally:
        lab.run("client", "sh", "-c", END, "sh", MOUNT, timeout=600)


def _answers(dashboard: Scene) -> bool:
    try:
        return bool(dashboard.past()["frames"])
    except OSError:
        return False


@contextlib.contextmanager
def _forwarded(lab: Lab, port: int) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = free.getsockname()[1]
    ssh = lab.ssh("client")
    way = f"{here}:127.0.0.1:{port}"
    control = ("ssh", "-F", "none", "-S", str(ssh.control))
    subprocess.run((*control, "-O", "forward", "-L", way, "root@lab"), check=True)
    try:
        yield here
    finally:
        subprocess.run((*control, "-O", "cancel", "-L", way, "root@lab"), check=False)
