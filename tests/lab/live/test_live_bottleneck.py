# SPDX-License-Identifier: Apache-2.0
"""What `nfsrdma top` calls the bottleneck, under a load that makes it true, and one that does not.

Each load that is almost one has the same resource busy for half of the time or more.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.remote import on

pytestmark = pytest.mark.nightly

TOP = ("nfsrdma", "top", "--batch", "--json", "--no-probes")
MOUNT = "/mnt/bottleneck"
# snapshots that must name the bottleneck, and snapshots to read at most
NAMED, MOST = 3, 300
# the speed of a network device that reports none (SPEED_UNKNOWN in linux/ethtool.h)
UNKNOWN = 0xFFFFFFFF
# snapshots to read of a load that is almost a bottleneck
ALMOST = 8


def end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@on("client", timeout=900)
def sentences(begins: str, load: str, most: int, is_server: bool) -> list[str]:
    """What `nfsrdma top` prints about the mount, or about the server, under a load for sh(1).

    Up to the third sentence that begins so, and for ``most`` snapshots.
    """
    load_of_shell = subprocess.Popen(("sh", "-ec", load), start_new_session=True, stdout=sys.stderr)
    top = subprocess.Popen(TOP, stdout=subprocess.PIPE, start_new_session=True)
    printed: list[str] = []
    try:
        for line in top.stdout or ():
            snapshot = json.loads(line)
            parts = (snapshot.get("server", {}),) if is_server else snapshot.get("mounts", ())
            printed += [part.get("limit", "") for part in parts]
            named = sum(sentence.startswith(begins) for sentence in printed)
            if load_of_shell.poll() is not None or len(printed) >= most or named >= NAMED:
                break
        assert load_of_shell.poll() is None
    finally:
        end(top)
        end(load_of_shell)
    return printed


def is_named(lab: Lab, begins: str, load: str, node: str = "client") -> str:
    """The sentence; AssertionError unless three snapshots name this bottleneck.

    The mount of the client is judged, or nfsd on the server.
    """
    printed = sentences.at(node)(lab, begins, load, MOST, node == "server")
    named = [sentence for sentence in printed if sentence.startswith(begins)]
    assert len(named) >= NAMED, printed
    return named[-1]


def is_not_named(lab: Lab, begins: str, load: str, node: str = "client") -> None:
    """AssertionError if more than one snapshot names it: the load may begin with a burst."""
    printed = sentences.at(node)(lab, begins, load, ALMOST, node == "server")
    assert len(printed) >= ALMOST, printed
    assert sum(sentence.startswith(begins) for sentence in printed) <= 1, printed
    assert not all(sentence.startswith("Idle") for sentence in printed), printed


@contextlib.contextmanager
def mounted(lab: Lab, options: str, path: str = "/export") -> Iterator[None]:
    address = "server:" + path
    lab.run("client", "mkdir", "-p", MOUNT)
    lab.run("client", "mount", "-t", "nfs", "-o", options, address, MOUNT)
    try:
        yield
    finally:
        lab.run("client", "umount", MOUNT)
        lab.run("client", "rmdir", MOUNT)


@pytest.fixture
def data(pair: Lab) -> Iterator[Lab]:
    """A file of 16 MiB."""
    pair.run("server", "sh", "-c", "head -c 16M /dev/zero > /export/bottleneck")
    yield pair
    pair.run("server", "rm", "/export/bottleneck")


@pytest.fixture
def wire(pair: Lab) -> Iterator[Lab]:
    """The wire is as it was afterwards."""
    before = str(pair.config.wire)
    yield pair
    pair.set_link(before)


# reads a file from the page cache, again and again; each open(2) sends a GETATTR.  Then it waits
# for the time that it needed, multiplied by IDLE.  It opens rarely: a server on a busy host is slow
READER = """
import os, time
while True:
    began = time.monotonic()
    file = os.open("/mnt/bottleneck/bottleneck", os.O_RDONLY)
    while time.monotonic() - began < 0.9:
        os.lseek(file, 0, os.SEEK_SET)
        while os.read(file, 1 << 20):
            pass
    time.sleep((time.monotonic() - began) * IDLE)
    os.close(file)
"""
# a job that is a process would leave the process group of the load, and outlive it
FIO = (
    "exec fio --thread --name=j --filename=/mnt/bottleneck/bottleneck --rw={rw} --bs={bs} "
    "--direct=1 --ioengine=libaio --iodepth={depth} --size=16M --time_based --runtime=900 {more}"
)


def fio(depth: int, rw: str = "read", bs: str = "64k", more: str = "") -> str:
    return FIO.format(rw=rw, bs=bs, depth=depth, more=more)


def read_by(idle: float) -> str:
    return "exec python3 -c " + shlex.quote(READER.replace("IDLE", str(idle)))


def test_a_reader_that_uses_all_of_a_cpu(data: Lab) -> None:
    with mounted(data, "vers=3,proto=tcp,nolock"):
        sentence = is_named(data, "Thread: python3 (pid ", read_by(0))
        assert "O_DIRECT" in sentence
        is_not_named(data, "Thread:", read_by(0.5))


# another thread that is full does not use the mount
SPINNER = "python3 -c 'while True: pass' & "


def test_a_full_thread_that_does_not_use_the_mount_is_not_named(data: Lab) -> None:
    with mounted(data, "vers=3,proto=tcp,nolock"):
        is_not_named(data, "Thread:", SPINNER + fio(1, more="--thinktime=20000"))


# each packet passes RULES rules where it arrives, in a softirq of the CPU that sends it
PACKETS = """
import os, socket, time
os.sched_setaffinity(0, {1})
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    began = time.monotonic()
    for _ in range(50):
        out.sendto(b"", ("127.0.0.1", 9))
    time.sleep((time.monotonic() - began) * IDLE)
"""
RULES = """
{ echo "table inet slow { chain rules {"
for i in $(seq 2000); do echo "udp sport $((i % 9 + 1)) drop"; done
echo "meta l4proto udp drop; }"
echo "chain arrive { type filter hook input priority 0; iifname lo meta l4proto udp jump rules; }"
echo "}"
} | nft -f -
"""


def packets(idle: float) -> str:
    sender = shlex.quote(PACKETS.replace("IDLE", str(idle)))
    return f"python3 -c {sender} & {fio(1, more='--thinktime=20000')}"


def test_a_cpu_that_is_full_of_interrupts(data: Lab) -> None:
    data.run("client", "sh", "-ec", RULES)
    try:
        with mounted(data, "vers=3,proto=tcp,nolock"):
            sentence = is_named(data, "CPU: CPU 1 is ", packets(0))
            assert "in interrupts" in sentence
            is_not_named(data, "CPU: CPU 1", packets(0.5))
    finally:
        data.run("client", "nft", "delete", "table", "inet", "slow")


def test_a_full_link(data: Lab, wire: Lab) -> None:
    """The network device reports 40 Mb/s, and the wire carries that, or two thirds of it."""
    speed = ("ethtool", "-s", "eth1", "speed")
    data.run("client", *speed, "40")
    try:
        with mounted(data, "vers=3,proto=tcp,nolock"):
            wire.set_link("40mbit/100us")
            sentence = is_named(data, "Link: eth1 receives ", fio(8))
            assert sentence.endswith("of its 40 Mb/s.")
            wire.set_link("26mbit/100us")
            is_not_named(data, "Link:", fio(8))
    finally:
        data.run("client", *speed, str(UNKNOWN))


def test_all_slots_in_use(data: Lab, wire: Lab) -> None:
    """The wire takes 20 ms, so that a CPU is not the bottleneck."""
    names = ("sunrpc.tcp_slot_table_entries", "sunrpc.tcp_max_slot_table_entries")
    before = data.run("client", "sysctl", "-n", *names).stdout.split()
    four = [f"{name}=4" for name in names]
    data.run("client", "sysctl", "-qw", *four)
    try:
        with mounted(data, "vers=3,proto=tcp,nolock,rsize=65536"):
            wire.set_link("1gbit/20ms")
            assert "nconnect" in is_named(data, "Slots: ", fio(16, bs="16k"))
            is_not_named(data, "Slots:", fio(4, bs="16k"))
    finally:
        old = [f"{name}={value}" for name, value in zip(names, before, strict=True)]
        # the least number must not be above the greatest
        data.run("client", "sysctl", "-qw", *reversed(old))


def test_all_credits_in_use(data: Lab, wire: Lab) -> None:
    grants = "sunrpc.svc_rdma.max_requests"
    before = data.run("server", "sysctl", "-n", grants).stdout.strip()
    data.run("server", "sysctl", "-qw", f"{grants}=8")
    try:
        with mounted(data, "vers=3,proto=rdma,port=20049,nolock,rsize=65536"):
            wire.set_link("1gbit/20ms")
            sentence = is_named(data, "Credits: all ", fio(32, bs="16k"))
            assert "max_requests" in sentence
            is_not_named(data, "Credits:", fio(6, bs="16k"))
    finally:
        data.run("server", "sysctl", "-qw", f"{grants}={before}")


@contextlib.contextmanager
def loaded(lab: Lab, script: str) -> Iterator[None]:
    """A load in the client, for a server that is watched."""
    begin = f"nohup sh -c {shlex.quote(script)} >/dev/null 2>&1 </dev/null & echo $! >/run/load.pid"
    lab.run("client", "sh", "-ec", begin)
    try:
        yield
    finally:
        end = "kill $(cat /run/load.pid); tail --pid=$(cat /run/load.pid) -f /dev/null"
        lab.run("client", "sh", "-c", end)


WAIT = "exec sleep 900"
# a block device whose requests take $1 milliseconds, and the same below an overlay, which hides it
DISK = """
modprobe configfs
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
modprobe null_blk nr_devices=0
mkdir /sys/kernel/config/nullb/nullb0
cd /sys/kernel/config/nullb/nullb0
echo 1 > memory_backed; echo 128 > size; echo 2 > irqmode; echo ${1}000000 > completion_nsec
echo 1 > power
mke2fs -q -t ext4 -O ^has_journal -E nodiscard /dev/nullb0
mkdir -p /srv/slow /srv/hidden
mount /dev/nullb0 /srv/slow
mkdir /srv/slow/lower /srv/slow/upper /srv/slow/work
head -c 16M /dev/zero > /srv/slow/bottleneck
head -c 16M /dev/zero > /srv/slow/upper/bottleneck
sync -f /srv/slow
mount -t overlay overlay /srv/hidden -o index=on,nfs_export=on,\
lowerdir=/srv/slow/lower,upperdir=/srv/slow/upper,workdir=/srv/slow/work
exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=44 '*:/srv/slow'
exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=45 '*:/srv/hidden'
"""
NO_DISK = """
exportfs -u '*:/srv/hidden' || true
exportfs -u '*:/srv/slow' || true
exportfs -f
for each in hidden slow; do
	! mountpoint -q /srv/$each || until umount /srv/$each; do sleep 0.2; done
	rmdir /srv/$each
done
echo 0 > /sys/kernel/config/nullb/nullb0/power
rmdir /sys/kernel/config/nullb/nullb0
modprobe -r null_blk
"""


@pytest.fixture
def slow(pair: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server that exports a disk with that many milliseconds for each request."""
    try:
        pair.run("server", "sh", "-ec", DISK, "sh", str(request.param))
        yield pair
    finally:
        pair.run("server", "sh", "-c", NO_DISK)


def writes(depth: int, more: str = "") -> str:
    """Each write is on the disk before its reply."""
    return fio(depth, "randwrite", "4k", f"--sync=1 {more}")


@pytest.mark.parametrize("slow", (100,), indirect=True)
def test_a_disk_that_is_busy_all_the_time(slow: Lab) -> None:
    with mounted(slow, "vers=3,proto=tcp,nolock", "/srv/slow"):
        with loaded(slow, writes(8)):
            is_named(slow, "Disk: nullb0 (/srv/slow) ", WAIT, "server")
        with loaded(slow, writes(1, "--thinktime=100000")):
            is_not_named(slow, "Disk:", WAIT, "server")


@pytest.mark.parametrize("slow", (8,), indirect=True)
def test_all_threads_of_nfsd_busy(slow: Lab) -> None:
    """They wait for a disk that the server cannot see."""
    before = slow.run("server", "cat", "/proc/fs/nfsd/threads").stdout.strip()
    set_to = ("sh", "-c", "echo $1 > /proc/fs/nfsd/threads", "sh")
    options = "vers=3,proto=tcp,nolock,nconnect=4"
    try:
        # the sampler looks at the disks of exports
        slow.run("server", "exportfs", "-u", "*:/srv/slow")
        slow.run("server", *set_to, "1")
        with mounted(slow, options, "/srv/hidden"), loaded(slow, writes(8)):
            sentence = is_named(slow, "nfsd threads: ", WAIT, "server")
            assert "all 1 threads" in sentence
            slow.run("server", *set_to, "16")
            is_not_named(slow, "nfsd threads:", WAIT, "server")
    finally:
        slow.run("server", *set_to, before)
