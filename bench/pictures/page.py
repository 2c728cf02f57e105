# SPDX-License-Identifier: Apache-2.0
"""Remake the pictures of docs/img.

Figures come from stores in out/ (``make sweep`` writes the first one), all others from a lab of a
server and a client, whose dashboard a browser opens.  docs/img/module.svg is a drawing: its source
is the picture itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.pictures import wireshark as window
from nfsrdma_tools.capture.files import frames
from nfsrdma_tools.capture.follow import Follower, exchanges
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.dashboard import _forwarded as forwarded
from testbed.programs import chromium

ROOT = Path(__file__).parents[2]
IMAGES, OUT = ROOT / "docs" / "img", ROOT / "out"
PROGRAM = str(Path(sys.executable).with_name("nfsrdma"))
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 850}
MOUNT = """
set -e
mkdir -p /mnt
mount -t nfs -o vers=4.2,proto=rdma,port=20049,rsize=65536,wsize=65536 server:/export /mnt
dd if=/dev/urandom of=/mnt/file bs=1M count=64 status=none
echo 3 > /proc/sys/vm/drop_caches
nohup nfsrdma dashboard --record /run/pictures.json >/run/dashboard 2>&1 </dev/null &
echo $! > /run/dashboard.pid
"""
UNMOUNT = """
kill $(cat /run/dashboard.pid); tail --pid=$(cat /run/dashboard.pid) -f /dev/null
umount /mnt; rm -f /run/pictures.json /run/dashboard*
"""
FIO = "fio --name=j --filename=/mnt/file --size=64M --time_based --ioengine=libaio --direct=1"
MIXED = f"{FIO} --rw=randrw --rwmixread=75 --bs=64k --iodepth=4 --runtime="
# fio would have the kernel double the window (posix_fadvise)
BUFFERED = (
    "fio --name=j --filename=/mnt/file --size=64M --rw=read --bs=8k --fadvise_hint=0"
    " --time_based --runtime="
)
DEEP = f"{FIO} --rw=randread --bs=64k --iodepth=48 --runtime="
# a picture, and the benchmark that draws it
DRAWN_BY = {
    "wires": "link-speeds", "served": "client", "loader": "loader", "papers-2003": "papers",
    "papers-user": "papers", "papers-2002": "papers", "papers-direct": "papers",
    "papers-blocks": "papers", "papers-records": "papers", "papers-padded": "papers",
    "papers-why": "papers", "optimistic-files": "optimistic", "optimistic-refused": "optimistic",
    "optimistic-streams": "optimistic", "optimistic-user-files": "optimistic-user",
    "optimistic-user-streams": "optimistic-user",
}  # fmt: skip
CREDITS = "sysctl -qw sunrpc.svc_rdma.max_requests={}; systemctl restart nfs-server"
FLAP = """
sysctl -qw net.ipv6.conf.eth1.keep_addr_on_down=1
for n in 1 2 3; do
	sleep 10; ip link set eth1 down; sleep 10; ip link set eth1 up
	rdma link delete rxe0; rdma link add rxe0 type rxe netdev eth1
done
"""


def figures() -> None:
    """The chart of the README, from the store of ``make sweep``."""
    _report(OUT / "sweep.db", "transports")


def overhead() -> None:
    """CPU time per read over its size, from a sweep of O_DIRECT reads."""
    store = OUT / "overhead.db"
    if not store.exists():
        # over soft-RoCE, whose time the report leaves out
        sizes = ("--direct", "--rsize", "4k..512k", "--runs", "3", "--exhaustive")
        argv = (
            PROGRAM,
            "sweep",
            "--lab",
            "--lab-nic",
            "rxe",
            "--vers=3",
            *sizes,
            "--output",
            store,
        )
        subprocess.run(argv, check=True)
    _report(store, "overhead")


def _report(store: Path, *names: str) -> None:
    folder = OUT / "pictures"
    subprocess.run((PROGRAM, "report", store, "--output", folder), check=True)
    for name in names:
        shutil.copy(folder / f"{name}.png", IMAGES)


def dashboard() -> None:
    """A client that reads and writes: light, dark, and on a phone."""
    with _watched() as (lab, url), _load(lab, MIXED + "150"):
        time.sleep(120)
        _shoot(url, "dashboard", DESK)
        _shoot(url, "dashboard-dark", DESK, color_scheme="dark")
        _shoot(url, "dashboard-phone", PHONE, device_scale_factor=2, whole=False)


def ahead() -> None:
    """A read-ahead window that is too small."""
    with _watched() as (lab, url), _load(lab, BUFFERED + "90"):
        time.sleep(60)
        _shoot(url, "fault-ahead", {"width": 1280, "height": 560}, whole=False)


def used_up() -> None:
    """All credits in use, in the dashboard and in top."""
    with _watched("server", CREDITS.format(16)) as (lab, url), _load(lab, DEEP + "90"):
        time.sleep(60)
        _shoot(url, "fault-credits", {"width": 1280, "height": 1350}, whole=False)
        # the first line says what the file is
        parts = "head -n 1 /run/pictures.json; tail -n 40 /run/pictures.json"
        record = lab.run("client", "sh", "-c", parts).stdout
    _top(record)


def flapping() -> None:
    """A server's link that goes down again and again."""
    with _watched() as (lab, url), _load(lab, DEEP + "90"):
        lab.run("server", "sh", "-ec", FLAP, timeout=300)
        time.sleep(20)
        _shoot(url, "fault-link", DESK)


@contextlib.contextmanager
def _watched(node: str = "client", before: str = "true") -> Iterator[tuple[Lab, str]]:
    """A pair with a mount and a dashboard, and the dashboard's address here."""
    with Lab(LabConfig(f"pictures-{os.getpid()}", shape="pair", extras=True)) as lab:
        lab.run(node, "sh", "-ec", before)
        lab.run("client", "sh", "-c", MOUNT, timeout=600)
        try:
            with forwarded(lab, 8949) as port:
                # the probes are attached, which takes the compiler a while
                time.sleep(60)
                yield lab, f"http://127.0.0.1:{port}/"
        finally:
            lab.run("client", "sh", "-c", UNMOUNT, timeout=600)


@contextlib.contextmanager
def _load(lab: Lab, command: str) -> Iterator[None]:
    """Run a command in the client meanwhile."""
    argv = lab.ssh("client").argv("sh", "-c", command)
    load = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        load.wait(timeout=600)


@contextlib.contextmanager
def _page(**options: Any) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser.new_context(**options).new_page()
        browser.close()


def _shoot(
    url: str, name: str, viewport: dict[str, int], *, whole: bool = True, **options: Any
) -> None:
    with _page(viewport=viewport, **options) as page:
        page.goto(url)
        page.wait_for_selector("#mounts tbody tr", timeout=600_000)
        time.sleep(5)
        page.screenshot(path=IMAGES / f"{name}.png", full_page=whole)


def _svg(svg: str, name: str, width: int) -> None:
    with _page(viewport={"width": width, "height": 800}) as page:
        page.set_content(f"<body style='margin:0'>{svg}</body>")
        page.locator("svg").first.screenshot(path=IMAGES / f"{name}.png")


def _top(record: str) -> None:
    """The mount's screen of ``nfsrdma top``, which textual saves as SVG."""
    folder = OUT / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(record)
    screen = {"TEXTUAL_SCREENSHOT": "30", "TEXTUAL_SCREENSHOT_LOCATION": str(folder)}
    saved = {"TEXTUAL_SCREENSHOT_FILENAME": "top.svg", "TEXTUAL_PRESS": "wait:5000,enter"}
    size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    command = f"timeout 60 {PROGRAM} top --replay {folder / 'record.json'}"
    argv = ("script", "-qec", command, "/dev/null")
    subprocess.run(
        argv, env={**os.environ, **screen, **saved, **size}, check=False, stdin=subprocess.DEVNULL
    )
    _svg((folder / "top.svg").read_text(), "top-credits", 1000)


def wireshark() -> None:
    """Wireshark's window: READs of out/wireshark.pcapng, which a lab writes if it is missing."""
    missing = window.missing()
    if missing:
        print(f"pictures: missed wireshark: {missing}", file=sys.stderr)
        return
    store = OUT / "wireshark.pcapng"
    if not store.exists():
        with Lab(LabConfig(f"pictures-{os.getpid()}", shape="pair", extras=True)) as lab:
            store.parent.mkdir(exist_ok=True)
            store.write_bytes(window.captured(lab))
            lab.check()
    file = store.read_bytes()
    calls = exchanges(frames(io.BytesIO(file)), Follower())
    number = next(call.frame for call in calls if call.procedure == "NFSv3 READ")
    window.shoot(file, number, (IMAGES / "wireshark").with_suffix(".png"))


def benchmarks() -> None:
    """The pictures that benchmarks draw with their tables."""
    for name in dict.fromkeys(DRAWN_BY.values()):
        subprocess.run((sys.executable, "-m", "bench", name), check=True, cwd=ROOT)


PICTURES: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (figures, overhead, dashboard, ahead, used_up, flapping, wireshark, benchmarks)
}


def main(only: str = "") -> None:
    """Make some pictures (``only``: names, with commas between them) or all."""
    for name in only.split(",") if only else PICTURES:
        print(f"pictures: {name}", flush=True)
        PICTURES[name]()
