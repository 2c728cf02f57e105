# SPDX-License-Identifier: Apache-2.0
"""A lab as a fleet: plays run on it, also ones that are killed, and what its hosts are like."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from nfsrdma_tools.lab.inventory import inventory
from nfsrdma_tools.lab.nodes import Nodes

ROOT = Path(__file__).parents[2]
COLLECTION = ROOT / "playbooks"
SCENARIOS = COLLECTION / "extensions/molecule"
PROGRAM = "/usr/local/sbin/nfsrdma"
"""Not where the lab has its own."""
MOUNT = "/mnt/fleet/data"

# packages, files, modules, mounts, units, devices: all but logs, caches and what a daemon counts
LOOK = r"""
dpkg-query -W
find /etc /opt /usr/local /var/lib /var/tmp /srv /mnt /root /export -xdev \
    ! -path '*/__pycache__*' ! -path '/root/.ansible*' ! -path '/root/.cache*' ! -path /root \
    ! -path '/var/lib/systemd/*' ! -path '/var/lib/apt/*' ! -path '/var/lib/ucf/*' \
    ! -path '/var/lib/nfs/*' ! -path '/var/lib/private*' ! -path '/var/tmp*/systemd-private*' \
    -printf '%M %u %p %l\n' | sort
find /etc -xdev -type f -exec sha256sum {} + | sort
ls /usr/src
cut -d' ' -f1 /proc/modules | sort
cut -d' ' -f1-4 /proc/mounts | sort
systemctl list-unit-files --no-legend --plain | sort
systemctl list-units --no-legend --plain --all --state=active,failed --type=service,mount,target \
    | cut -d' ' -f1 | grep -v '^systemd-' | sort
rdma link show
ip -o link show eth1 | grep -o 'mtu [0-9]*'
cat /proc/fs/nfsd/portlist
test ! -d /sys/module/nf_tables || nft list ruleset
"""


class Fleet:
    """Plays run on the nodes of a lab; ``folder`` takes what they leave on the controller."""

    def __init__(self, lab: Nodes, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        (folder / "lab.json").write_text(json.dumps(inventory(lab)))
        bundle = (ROOT / "tools/bundle", folder / "toolkit.tar.gz", "--bare")
        subprocess.run(bundle, check=True, capture_output=True)

    def play(self, name: str, *words: str, check: bool = True) -> str:
        """Run a play of the collection, or a file; what it said."""
        with (self.folder / "said").open("a+") as file:
            begin = file.seek(0, os.SEEK_END)
            done = subprocess.run(
                self._argv(name, *words), **self._place, stdout=file, stderr=file, check=False
            )
            file.seek(begin)
            said = file.read()
        assert not check or done.returncode == 0, said[-6000:]
        return said

    def cut(self, name: str, task: str, *words: str, seen: tuple[str, ...] = ()) -> None:
        """Run a play and kill it when it comes to a task; ``seen`` waits on a node before that."""
        argv = self._argv(name, *words)
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(argv, **self._place, **pipe, start_new_session=True) as running:
            assert running.stdout
            came = any(line.startswith(f"TASK [{task}") for line in running.stdout)
            try:
                if came and seen:
                    self.lab.run(*seen, timeout=300)
            finally:
                os.killpg(running.pid, signal.SIGKILL)
        assert came, f"there was no task {task}"

    def look(self, node: str) -> list[str]:
        """What a host is like, line by line."""
        return self.lab.run(node, "sh", "-c", LOOK, check=False, timeout=600).stdout.splitlines()

    def _argv(self, name: str, *words: str) -> tuple[str | Path, ...]:
        inventories = ("-i", self.folder / "lab.json", "-i", SCENARIOS / "inventory/bare.yml")
        play = SCENARIOS / name if name.endswith(".yml") else f"nfsrdma.tools.{name}"
        return Path(sys.executable).with_name("ansible-playbook"), *inventories, *words, play

    @property
    def _place(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {**environment(self.folder), "PWD": str(self.folder)}}


def environment(folder: Path) -> dict[str, str]:
    """What Ansible is to know."""
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(programs.parent / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        # a third of the connections, which cost most where hosts are emulated
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_TIMEOUT": "120",
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        # scenarios' variables are relative to where molecule keeps its files
        "MOLECULE_EPHEMERAL_DIRECTORY": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }


def recap(said: str) -> dict[str, dict[str, int]]:
    """The figures of PLAY RECAP by host."""
    lines = said.rpartition("PLAY RECAP")[2].splitlines()
    rows = [re.match(r"(\S+)\s*: (ok=.*)", line) for line in lines]
    return {
        row[1]: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", row[2])}
        for row in rows
        if row
    }
