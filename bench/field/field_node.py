# SPDX-License-Identifier: Apache-2.0
"""Part of bench/field that runs in a node: makes mounts and ports, and runs commands."""

import json
import resource
import subprocess
import sys
from pathlib import Path

BUNDLE = Path("/var/tmp/bundle.tar.gz")  # noqa: S108 -- of a lab's node


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


def run(rounds: int, *argv: str) -> list[float]:
    """Seconds of CPU of each run, with all that it starts."""
    seconds = []
    for _ in range(rounds):
        if "-o" in argv:
            BUNDLE.unlink(missing_ok=True)
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


def main() -> None:
    step, *words = sys.argv[1:]
    if step == "prepare":
        prepare(*map(int, words))
    elif step == "run":
        print(json.dumps(run(int(words[0]), *words[1:])))


main()
