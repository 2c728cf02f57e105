# SPDX-License-Identifier: Apache-2.0
"""Cost of doctor, mounts and collect on a host with many mounts and ports.

The instruction clock counts, in multiples of ``nfsrdma --help``, the commands on a recording that
``recording`` makes, and on a node with as many mounts and ports.  QEMU's own count has to agree.
With --here: this host's processor, without the kernel and without programs, counted by Valgrind.
"""

from __future__ import annotations

import compileall
import io
import json
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import markdown
from bench.instruction_count import Plugin, plugged
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.remote import on

PAGE = markdown.PAGE.with_name("cost-of-observation.md")
ROOT = Path(__file__).parents[2]
STATS = ROOT / "tests/unit/data/mountstats-6.12.txt"
MOUNTS, PORTS, SERVERS, ROUNDS = 64, 16, 8, 3
# of a port in use; a bundle has no unused ones
GIDS = 6
RELEASE = "6.12.48+deb13-amd64"
HELP = "`nfsrdma --help`"
RECORDED, LIVE = "/var/tmp/recording", "/var/tmp/bundle.tar.gz"  # noqa: S108 -- of a lab's node
COMMANDS: dict[str, tuple[str, ...]] = {
    HELP: ("--help",),
    "`doctor --from`, the recording": ("doctor", "--from", RECORDED),
    "`mounts --from`, the recording": ("mounts", "--from", RECORDED),
    "`collect`, the node": ("collect", "-o", LIVE),
    "`doctor --from`, the node's bundle": ("doctor", "--from", LIVE),
    "`doctor`, the node": ("doctor",),
    "`mounts`, the node": ("mounts",),
}
"""By their names in the table."""


# ---- the recording


def recording(folder: Path, mounts: int = MOUNTS, ports: int = PORTS) -> None:
    """Write the files of a host with ``mounts`` mounts over RDMA and ``ports`` ports of RoCE."""
    for name, text in (*_host(mounts), *_of_mounts(mounts), *_of_ports(ports)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    commands = [
        {"argv": argv, "status": 0, "stdout": text, "stderr": ""} for argv, text in _programs(ports)
    ]
    links = [_link(number) for number in range(ports)]
    documents = {
        "manifest.json": {"format": 1, "root": True, "addresses": {}, "facts": {}},
        "commands.json": commands,
        "netlink.json": {"rdma_links": links},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1))


def _options(number: int) -> str:
    return (
        "rw,relatime,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=rdma,port=20049,"
        f"timeo=600,retrans=2,sec=sys,clientaddr=192.0.2.{_server(number) + 100},"
        f"local_lock=none,addr=192.0.2.{_server(number)}"
    )


def _server(number: int) -> int:
    return number % SERVERS + 1


def _host(mounts: int) -> Iterator[tuple[str, str]]:
    yield "proc/sys/kernel/osrelease", f"{RELEASE}\n"
    yield "proc/version", f"Linux version {RELEASE} (x@y) #1 SMP Debian 6.12.48-1\n"
    yield f"boot/config-{RELEASE}", "CONFIG_SUNRPC_XPRT_RDMA=m\nCONFIG_DEBUG_INFO_BTF=y\n"
    yield "etc/os-release", "ID=debian\nVERSION_ID=13\n"
    names = ("rpcrdma", "rdma_cm", "ib_core", "mlx5_core", "mlx5_ib", "nfsv4", "nfs", "sunrpc")
    used = {"rdma_cm": "rpcrdma,", "sunrpc": "rpcrdma,nfsv4,nfs,"}
    yield (
        "proc/modules",
        "".join(
            f"{name} 16384 1 {used.get(name, '-')} Live 0x0000000000000000\n" for name in names
        ),
    )
    yield "sys/module/rpcrdma/srcversion", "0123456789ABCDEF01234567\n"
    yield "sys/kernel/btf/vmlinux", ""
    yield "sbin/mount.nfs", ""
    yield (
        "usr/lib/udev/rules.d/99-nfs.rules",
        (
            'SUBSYSTEM=="bdi", ACTION=="add", PROGRAM="/usr/libexec/nfsrahead %k", '
            'ATTR{read_ahead_kb}="%c"\n'
        ),
    )
    yield "etc/nfs.conf", "[nfsrahead]\nnfs4=15360\n"
    yield (
        "etc/fstab",
        "".join(
            f"192.0.2.{_server(number)}:/export/{number} /mnt/{number} nfs4 "
            "rw,proto=rdma,port=20049,rsize=1048576 0 0\n"
            for number in range(mounts)
        ),
    )


def _of_mounts(mounts: int) -> Iterator[tuple[str, str]]:
    info = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"]
    others, _, rest = STATS.read_text().partition("device server:/export mounted on /mnt/a ")
    record = re.split(r"(?m)^device ", rest)[0]
    stats, volumes = (
        [others],
        ["NV SERVER   PORT DEV          FSID                              FSC\n"],
    )
    for number in range(mounts):
        device, server = f"0:{number + 45}", _server(number)
        source, directory = f"192.0.2.{server}:/export/{number}", f"/mnt/{number}"
        info.append(
            f"{number + 100} 22 {device} / {directory} rw - nfs4 {source} {_options(number)}\n"
        )
        stats.append(f"device {source} mounted on {directory} {record}")
        volumes.append(f"v4 c00002{server:02x} 4e51 {device:12} {number + 1:x}:0   no \n")
        yield f"sys/class/bdi/{device}/read_ahead_kb", "15360\n"
    yield "proc/self/mountinfo", "".join(info)
    yield "proc/self/mountstats", "".join(stats)
    yield "proc/fs/nfsfs/volumes", "".join(volumes)


_COUNTERS = {
    "counters": (
        "port_rcv_packets", "port_xmit_packets", "symbol_error", "port_rcv_errors", "link_downed",
        "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
    ),
    "hw_counters": (
        "out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err",
        "rnr_nak_retry_err", "np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets",
    ),
}  # fmt: skip


def _of_ports(ports: int) -> Iterator[tuple[str, str]]:
    for number in range(ports):
        port = f"sys/class/infiniband/mlx5_{number}/ports/1"
        for folder, names in _COUNTERS.items():
            for name in names:
                yield f"{port}/{folder}/{name}", "123456789\n" if "packets" in name else "0\n"
        yield f"{port}/state", "4: ACTIVE\n"
        yield f"{port}/link_layer", "Ethernet\n"
        for gid in range(GIDS):
            address = (
                f"ffff:c000:02{number + 101:02x}" if gid > 1 else f"0000:0000:{number + 1:04x}"
            )
            yield f"{port}/gids/{gid}", f"0000:0000:0000:0000:0000:{address}\n"
            yield f"{port}/gid_attrs/ndevs/{gid}", f"eth{number}\n"
            yield f"{port}/gid_attrs/types/{gid}", "RoCE v2\n"
        net = f"sys/class/net/eth{number}"
        yield f"{net}/mtu", "9000\n"
        yield f"{net}/type", "1\n"
        yield f"{net}/address", f"02:00:00:00:00:{number:02x}\n"
        yield f"{net}/ifindex", f"{number + 2}\n"
        yield f"{net}/iflink", f"{number + 2}\n"


def _link(number: int) -> dict[str, object]:
    device = {
        "index": number, "name": f"mlx5_{number}", "ports": 1, "node_type": "ca",
        "protocol": "roce", "driver": "mlx5", "firmware": "28.43", "node_guid": "0:0:0:1",
    }  # fmt: skip
    return {
        "device": device, "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP",
        "netdev": f"eth{number}",
    }  # fmt: skip


def _programs(ports: int) -> Iterator[tuple[tuple[str, ...], str]]:
    fields = (
        f"filename:       /lib/modules/{RELEASE}/kernel/net/sunrpc/xprtrdma/rpcrdma.ko",
        "alias=svcrdma", "alias=xprtrdma", "alias=rpcrdma6", "srcversion=0123456789ABCDEF01234567",
        "depends=ib_core,sunrpc,rdma_cm", "intree=Y", "name=rpcrdma", f"vermagic={RELEASE} SMP",
    )  # fmt: skip
    yield ("modinfo", "-0", "--", "rpcrdma"), "".join(f"{field}\0" for field in fields)
    yield ("dmesg",), ""
    yield ("mount.nfs", "-V"), "mount.nfs: (linux nfs-utils 2.8.3)\n"
    yield ("systemctl", "show"), ""
    links = [
        {"ifindex": number + 2, "ifname": f"eth{number}", "link_type": "ether",
         "address": f"02:00:00:00:00:{number:02x}"}
        for number in range(ports)
    ]  # fmt: skip
    yield ("ip", "-d", "-j", "link", "show"), json.dumps(links)
    for server in range(1, SERVERS + 1):
        row = {"dst": f"192.0.2.{server}", "dev": f"eth{server - 1}",
               "prefsrc": f"192.0.2.{server + 100}", "flags": []}  # fmt: skip
        yield ("ip", "-j", "route", "get", f"192.0.2.{server}"), json.dumps([row])


# ---- this host


def counted_here(argv: Sequence[str]) -> int:
    """The instructions of user space of a command of this tree, by Valgrind."""
    valgrind = (
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
    )
    program = ("-c", "from nfsrdma_tools.cli.main import main; main()")
    # doctor's exit status tells what it has found
    done = subprocess.run(
        (*valgrind, sys.executable, *program, *argv), capture_output=True, text=True, check=False
    )
    return int(re.findall(r"I +refs: +([0-9,]+)", done.stderr)[-1].replace(",", ""))


def count_here() -> None:
    """Print the counts of this host."""
    # an installed package has bytecode
    compileall.compile_dir(ROOT / "nfsrdma_tools", quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        recorded, file = Path(folder, "recording"), Path(folder, "bundle")
        recording(recorded)
        first = 0
        for name, argv in COMMANDS.items():
            file.unlink(missing_ok=True)
            names = {RECORDED: str(recorded), LIVE: str(file)}
            count = counted_here([names.get(word, word) for word in argv])
            first = first or count
            print(f"{name:36}{count / 1e6:10,.1f} million{count / first:8.2f}", flush=True)


# ---- a node


def packed() -> bytes:
    """The recording as a tar archive."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=buffer, mode="w") as tar:
        recording(Path(folder))
        tar.add(folder, ".")
    return buffer.getvalue()


@on("solo", timeout=3600)
def prepare(mounts: int, ports: int) -> None:
    """Make ``mounts`` mounts with a line of fstab each, and ``ports`` RDMA ports."""
    for number in range(1, ports):
        device = f"wire{number}"
        for command in (
            f"ip link add {device} mtu 9000 type dummy",
            f"ip address add 198.51.100.{number}/32 dev {device}",
            f"ip link set {device} up",
            f"rdma link add port{number} type rxe netdev {device}",
        ):
            subprocess.run(command.split(), check=True)
    options = "vers=3,proto=rdma,port=20049,nosharecache"
    with Path("/etc/fstab").open("a") as fstab:
        for number in range(mounts):
            fstab.write(f"10.9.1.1:/export /mnt/m{number} nfs {options} 0 0\n")
    for number in range(mounts):
        directory = Path(f"/mnt/m{number}")
        directory.mkdir()
        subprocess.run(("mount", directory), check=True)
    subprocess.run(("udevadm", "settle"), check=True)


@on("solo", timeout=3600)
def run(rounds: int, argv: tuple[str, ...]) -> list[float]:
    """Seconds of CPU of each run, with all that it starts."""
    seconds = []
    for _ in range(rounds):
        if "-o" in argv:
            Path(LIVE).unlink(missing_ok=True)
        before = spent()
        # doctor's exit status tells what it has found
        done = subprocess.run(("nfsrdma", *argv), capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout, done.stderr
        assert not done.stderr, done.stderr
        seconds.append(spent() - before)
    return seconds


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def executed(lab: Lab, plugin: Plugin, argv: tuple[str, ...]) -> float:
    """Millions of instructions of a run, by QEMU's plugin, without those of a run of nothing."""
    totals = []
    for rounds in (0, 1):
        before = sum(plugin.counts().values())
        run(lab, rounds, argv)
        totals.append(sum(plugin.counts().values()) - before)
    return (totals[1] - totals[0]) / 1e6


def main(kernel: str = KERNELS[0], here: bool = False) -> None:
    """Count the commands in a node, or of this host by Valgrind (``here``)."""
    if here:
        count_here()
        return
    config = LabConfig("bench-field", clock="instructions", link="none", kernel=kernel, cpus=1)
    rows: list[list[object]] = [
        ["", "the node's clock, millions", "of `--help`", "QEMU's count", "of `--help`"]
    ]
    with plugged() as plugin, Lab(config) as lab:
        about = markdown.conditions(lab, "rxe", "make bench NAME=field", link=False)
        lab.run("solo", "tar", "-x", "--one-top-level=" + RECORDED, stdin=packed())
        prepare(lab, MOUNTS, PORTS)
        first: list[float] = []
        for name, argv in COMMANDS.items():
            counts = [statistics.median(run(lab, ROUNDS, argv)) * 1e3, executed(lab, plugin, argv)]
            first = first or counts
            ratios = [count / base for count, base in zip(counts, first, strict=True)]
            pairs = zip(counts, ratios, strict=True)
            cells = [cell for count, ratio in pairs for cell in (f"{count:,.0f}", f"{ratio:.2f}")]
            rows.append([name, *cells])
            print(rows[-1], flush=True)
        lab.check()
    markdown.write("field", [about, "", *markdown.table(rows)], PAGE)
