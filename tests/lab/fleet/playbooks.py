# SPDX-License-Identifier: Apache-2.0
"""Run playbooks on a lab, kill them at a task, and read the state of the hosts."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from unit.playbooks.ansible_modules import collections

from nfsrdma_tools.lab.nodes import Nodes, inventory

ROOT = Path(__file__).parents[3]
COLLECTION = ROOT / "playbooks"
SCENARIOS = COLLECTION / "extensions/molecule"
PROGRAM = "/usr/local/sbin/nfsrdma"
"""Not the path of the lab's own program."""
MOUNT = "/mnt/fleet/data"

# packages, files, modules, mounts, units and devices, without logs, caches and counters of daemons
# network-pre.target starts nothing (systemd.special(7)), and stays active once a unit wanted it
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
    | cut -d' ' -f1 | grep -v -e '^systemd-' -e '^network-pre.target$' | sort
rdma link show
ip -o link show eth1 | grep -o 'mtu [0-9]*'
cat /proc/fs/nfsd/portlist
test ! -d /sys/module/nf_tables || nft list ruleset
"""


class Fleet:
    """The nodes of a lab as hosts of the playbooks; ``folder`` is the controller's directory."""

    def __init__(self, lab: Nodes, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        (folder / "lab.json").write_text(json.dumps(inventory(lab)))
        bundle = (ROOT / "tools/bundle", folder / "toolkit.tar.gz", "--bare")
        subprocess.run(bundle, check=True, capture_output=True)

    def play(self, name: str, *words: str, check: bool = True) -> str:
        """Run a playbook of the collection, or a file of the scenarios; return its output."""
        with (self.folder / "said").open("a+") as file:
            begin = file.seek(0, os.SEEK_END)
            done = subprocess.run(
                self._argv(name, *words), **self._place, stdout=file, stderr=file, check=False
            )
            file.seek(begin)
            output = file.read()
        assert not check or done.returncode == 0, output[-6000:]
        return output

    def cut(self, name: str, task: str, *words: str, seen: tuple[str, ...] = ()) -> None:
        """Run a playbook and kill it at a task, after the command ``seen`` has ended on a node."""
        argv = self._argv(name, *words)
        with subprocess.Popen(
            argv, **self._place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as running:  # fmt: skip
            assert running.stdout
            came = any(line.startswith(f"TASK [{task}") for line in running.stdout)
            try:
                if came and seen:
                    self.lab.run(*seen, timeout=300)
            finally:
                os.killpg(running.pid, signal.SIGKILL)
        assert came, f"the play ended without task {task}"

    def look(self, node: str) -> list[str]:
        """The state of a host, as lines."""
        return self.lab.run(node, "sh", "-c", LOOK, check=False, timeout=600).stdout.splitlines()

    def _argv(self, name: str, *words: str) -> tuple[str | Path, ...]:
        inventories = ("-i", self.folder / "lab.json", "-i", SCENARIOS / "inventory/bare.yml")
        play = SCENARIOS / name if name.endswith(".yml") else f"nfsrdma.tools.{name}"
        return Path(sys.executable).with_name("ansible-playbook"), *inventories, *words, play

    @property
    def _place(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {**environment(self.folder), "PWD": str(self.folder)}}


def environment(folder: Path) -> dict[str, str]:
    """The environment of Ansible."""
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        # the collection of this working tree, which may not be the one of the virtual environment
        "ANSIBLE_COLLECTIONS_PATH": f"{collections(folder)}:{programs.parent / 'collections'}",
        "ANSIBLE_NOCOLOR": "1",
        # a third of the connections, which take most of the time on emulated hosts
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_TIMEOUT": "120",
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        # the variables of the scenarios are relative to molecule's directory
        "MOLECULE_EPHEMERAL_DIRECTORY": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }


def recap(output: str) -> dict[str, dict[str, int]]:
    """The counts of PLAY RECAP by host."""
    lines = output.rpartition("PLAY RECAP")[2].splitlines()
    rows = [re.match(r"(\S+)\s*: (ok=.*)", line) for line in lines]
    return {
        row[1]: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", row[2])}
        for row in rows
        if row
    }
