# SPDX-License-Identifier: Apache-2.0
"""A lab as a fleet: its inventory, plays run on it, and what its hosts are like."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from nfsrdma_tools.lab.lab import Lab

ROOT = Path(__file__).parents[2]
PROGRAM = "/usr/local/sbin/nfsrdma"
"""Not where the lab has its own."""
MOUNT = "/mnt/fleet/data"

# what the lab's own set-up has made of a node is taken away: roles have to do it
BARE = """
umount /mnt 2>/dev/null
systemctl stop nfs-server 2>/dev/null
rm -f /etc/exports /etc/nfs.conf.d/lab.conf
rdma link delete rxe0
modprobe -r rpcrdma; modprobe -r rdma_rxe
systemctl reset-failed
lsmod
"""
# packages, files, modules, mounts, units, devices: all but logs, caches and what a daemon counts
LOOK = r"""
dpkg-query -W
find /etc /opt /usr/local /var/lib /var/tmp /srv /mnt /root -xdev \
    ! -path '*/__pycache__*' ! -path '/root/.ansible*' ! -path '/root/.cache*' ! -path /root \
    ! -path '/var/lib/systemd/*' ! -path '/var/lib/nfs/*' ! -path '/var/lib/private*' \
    ! -path '/var/tmp*/systemd-private*' \
    -printf '%M %u %p %l\n' | sort
find /etc -xdev -type f -exec sha256sum {} + | sort
cut -d' ' -f1 /proc/modules | sort
cut -d' ' -f1-4 /proc/mounts | sort
systemctl list-unit-files --no-legend --plain | sort
systemctl list-units --no-legend --plain --all --state=active,failed --type=service,mount,target \
    | cut -d' ' -f1 | grep -v '^systemd-' | sort
rdma link show
ip -o link show eth1 | grep -o 'mtu [0-9]*'
cat /proc/fs/nfsd/portlist
"""


class Fleet:
    """Plays run on the nodes of a lab; ``folder`` takes what they leave on the controller."""

    def __init__(self, lab: Lab, folder: Path, archive: Path) -> None:
        self.lab, self.folder = lab, folder
        self._inventory = folder / "inventory.json"
        self._inventory.write_text(json.dumps(self._hosts(archive)))

    def play(self, name: str, *words: str, check: bool = True) -> str:
        """Run a play of the collection; what it said."""
        program = Path(sys.executable).with_name("ansible-playbook")
        argv = (program, "-i", self._inventory, *words, f"nfsrdma.tools.{name}")
        place = Path(sys.executable).parents[1] / "collections"
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(place),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_TIMEOUT": "120",
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            argv, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        (self.folder / "said").open("a").write(said)
        assert not check or done.returncode == 0, said[-6000:]
        return said

    def look(self, node: str) -> list[str]:
        """What a host is like, line by line."""
        return self.lab.run(node, "sh", "-c", LOOK, check=False, timeout=600).stdout.splitlines()

    def _hosts(self, archive: Path) -> dict[str, object]:
        clients = self.lab.config.client_nodes
        return {
            "all": {
                "vars": _variables(archive),
                "hosts": {name: self._way(name) for name in ("server", *clients)},
            },
            "nfsrdma_servers": {"hosts": {"server": {}}},
            "nfsrdma_clients": {"hosts": {name: {} for name in clients}},
            "nfsrdma_monitors": {},
        }  # fmt: skip

    def _way(self, node: str) -> dict[str, str]:
        ssh = self.lab.ssh(node)
        options = " ".join(ssh._options)
        return {
            "ansible_host": "lab",
            "ansible_user": "root",
            "ansible_ssh_args": f"{options} -o ControlPath={ssh.control}",
        }


def _variables(archive: Path) -> dict[str, object]:
    return {
        "ansible_python_interpreter": "/usr/bin/python3",
        "toolkit_archive": str(archive),
        "toolkit_command": PROGRAM,
        "rdma_link_soft": [{"name": "rxe0", "netdev": "eth1"}],
        "server_exports": [{"path": "/export", "clients": ["10.9.1.0/24"]}],
        "client_mounts": [{"src": "server:/export", "path": MOUNT, "rsize": 131072}],
        "nfsrdma_server": "server",
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
