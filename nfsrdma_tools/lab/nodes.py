# SPDX-License-Identifier: Apache-2.0
"""The nodes of running labs, from any process: state, commands, link, toolkit, inventory.

Commands run over one shared ssh connection (a new one costs 2 s under emulation).
"""

from __future__ import annotations

import contextlib
import importlib.resources
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from nfsrdma_tools import identity, module_source
from nfsrdma_tools.command import Result, kill, run
from nfsrdma_tools.errors import CommandError, UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.lab import image, paths
from nfsrdma_tools.lab.config import LabConfig, Link, clock_name
from nfsrdma_tools.lab.console import Console, KernelReportError
from nfsrdma_tools.lab.qemu import kvm_works, version
from nfsrdma_tools.lock import try_file_lock

__all__ = [
    "LabState",
    "Nodes",
    "Ssh",
    "attach",
    "interactive",
    "inventory",
    "pack",
    "read_state",
    "status",
    "table",
]

# the paths of the toolkit and of the lab's facts in a node
_SOURCE, _FACTS = "opt/nfsrdma/src", "etc/nfsrdma-lab.json"
# has libibverbs load the providers in the folder $1 that its package does not have: a file of its
# configuration $2 names each.  Removes the files that named a provider that is gone, of which
# libibverbs warns in each program
_PROVIDERS = """
for known in "$2"/*.driver; do
	test -e "$known" || continue
	provider=$(sed -n "s|^driver \\($1/.*\\)|\\1|p" "$known")
	test -z "$provider" || ls "$provider"-rdmav*.so >/dev/null 2>&1 || rm "$known"
done
for file in "$1"/*-rdmav*.so; do
	provider=${file%-rdmav*.so}
	known=$2/${provider##*/lib}.driver
	test ! -e "$file" || test -e "$known" || echo "driver $provider" > "$known"
done
"""
# sets the clock to $1 and unpacks the toolkit; then the module goes to where `nfsrdma module build`
# of root keeps its builds, and libibverbs learns of the providers
_REFRESH = f"""
lab-refresh "$1"
cd /opt/nfsrdma/src
if test -d modules; then
	kept=/var/cache/nfsrdma/modules/$(uname -r)
	mkdir -p "$kept"
	cp -r modules/. "$kept"
	rm -r modules
fi
mkdir -p /etc/libibverbs.d
set -- "$PWD/lib/build" /etc/libibverbs.d
{_PROVIDERS}"""
# between two looks at the consoles during a command
_CHECK_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
_PYTHON = f"/{_SOURCE}/nfsrdma_tools/lab/node/python3"


class LabState(TypedDict, total=False):
    """The state of a lab, which its supervisor writes for other processes."""

    phase: str
    """"starting" or "ready"."""
    owner: str
    """The identity of the owner's process."""
    accel: str
    keys: str
    config: dict[str, Any]
    report: str
    """An error that a kernel reported."""


class Nodes:
    """The nodes of a running lab. ``run`` fails if a kernel reported an error."""

    def __init__(self, config: LabConfig, accel: str, keys: Path) -> None:
        self.config, self.accel, self.keys = config, accel, keys
        self.folder = paths.lab_dir(config.name)
        self.consoles = {n: Console(n, self.folder / f"{n}.console") for n in config.nodes}

    def ssh(self, node: str) -> Ssh:
        """The ssh connection to a node."""
        return Ssh(self.folder, self.config.machine_of(node), self.keys)

    def run(
        self, node: str, *command: str, stdin: bytes = b"", timeout: float = 600, check: bool = True
    ) -> Result:
        """Run a command in a node; KernelReportError if a kernel reported an error meanwhile."""
        try:
            ssh = self.ssh(node)
            return ssh.run(
                *command,
                stdin=stdin,
                timeout=timeout * self.config.patience,
                check=check,
                watch=self.check,
            )
        finally:
            self.check()

    def check(self) -> None:
        """Raise KernelReportError if a kernel has reported an error since the last check."""
        for console in self.consoles.values():
            console.check()

    def set_link(self, text: str) -> None:
        """Change the link of all nodes, and their records of it."""
        self.config = self.config.with_link(text)
        for node in self.config.nodes:
            self.run(node, "lab-link", *Link.parse(text).words)
            self.run(node, "tee", f"/{_FACTS}", stdin=json.dumps(self.facts).encode())
        self.save_state()

    def refresh(self, build: Path | None = None, client: Path | None = None) -> None:
        """Copy the working tree's toolkit into every node, and set their clocks.

        ``build`` is our module as compiled from this tree, its name as in the cache of kernels:
        ``nfsrdma module build`` finds its work done.  ``client`` is a folder with libnfsrdma,
        which the toolkit finds where a checkout has it.
        """
        added: dict[str, Path] = {}
        if build:
            module, _, state = build.stem.rpartition("-")
            added[f"modules/{state}/{module}.ko"] = build
        if client:
            added.update({f"lib/build/{file.name}": file for file in client.iterdir()})
        tar = pack(self.facts, added)
        # a machine that resumes a snapshot has the time of day at which QEMU took it
        for node in self.config.nodes:
            self.run(node, "sh", "-ec", _REFRESH, "sh", f"{time.time():.0f}", stdin=tar)

    @property
    def facts(self) -> dict[str, Any]:
        """The lab's facts for a node and for the conditions of a measurement."""
        config = self.config
        return {
            **{"name": config.name, "shape": config.shape, "kernel": config.kernel},
            **{"clock": config.clock, "link": str(config.wire), "accel": self.accel},
            **{"nic": config.nic, "dma": config.dma, "profile": config.profile},
            "kernel_args": config.kernel_args,
            # the instruction count depends on the emulator, too
            "qemu": version(),
        }

    def save_state(self, **changes: object) -> None:
        """Update the state that ``lab status`` and other processes read."""
        state = {**_state(self.config.name), **changes, "config": self.config.to_dict()}
        write_atomically(self.folder / "state.json", json.dumps(state))


def read_state(name: str) -> LabState:
    """The last state written by a lab's owner; empty if the lab is not up.

    Without the key "owner" if the owner has not written anything yet.
    """
    lock = paths.lab_lock(name)
    if not lock.exists():
        return {}
    with try_file_lock(lock) as free:
        if free:
            return {}
    state = _state(name)
    # an owner that was killed leaves its state, until the next one has the lock and removes it
    current = identity.is_running(str(state.get("owner", "")))
    return state if current else {"phase": "starting"}


def _state(name: str) -> LabState:
    try:
        state: LabState = json.loads((paths.lab_dir(name) / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return state


def attach(name: str) -> Nodes:
    """The nodes of a lab that another process runs."""
    state = read_state(name)
    if state.get("phase") != "ready":
        phase = state.get("phase", "down")
        raise UserError(f"the lab {name} is {phase}", f"run: nfsrdma lab up {name}")
    nodes = Nodes(LabConfig(**state["config"]), state["accel"], Path(state["keys"]))
    for console in nodes.consoles.values():
        console.skip()
    return nodes


def interactive(name: str, words: list[str]) -> int:
    """Run ``[node] command...`` with this process' own input and output; returns its status.

    The default node is the client. Ends the command and raises KernelReportError as soon as a
    kernel of the lab reports a problem.
    """
    nodes = attach(name)
    named = bool(words) and words[0] in nodes.config.names
    node, command = (words[0], words[1:]) if named else ("client", words)
    # a terminal of its own would change line ends in output that goes to a file
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    ssh = nodes.ssh(node)
    argv = ssh.argv(*command, tty=terminal)
    process = subprocess.Popen(argv, env={**os.environ, "LC_ALL": "C.UTF-8"})
    try:
        status = None
        while status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_CHECK_SECONDS)
            # a command does not end by itself in a kernel that panicked
            nodes.check()
    except KernelReportError:
        ssh.hang_up_if_dead()
        raise
    finally:
        process.terminate()
        process.wait()
    return status


def status() -> dict[str, Any]:
    """The labs that are up, whether KVM works here (None: not tested yet), the image's folder."""
    names = sorted(path.stem for path in paths.labs_dir().glob("*.lock"))
    built = image.find() or image.find(extras=True)
    return {
        "labs": [{"name": name, **state} for name in names if (state := read_state(name))],
        "kvm": kvm_works(),
        "image": str(built.folder) if built else None,
    }


def table(status: dict[str, Any]) -> str:
    """The status as a table."""
    kvm = {True: "works here", False: "does not work here", None: "not tried yet"}[status["kvm"]]
    lines = [f"KVM {kvm}; image: {status['image'] or 'not built yet (nfsrdma lab build)'}"]
    for lab in status["labs"]:
        config = lab.get("config", {})
        words = [lab["name"], lab["phase"], *(str(config.get(k)) for k in ("shape", "kernel"))]
        words += [
            lab.get("accel", ""),
            clock_name(str(config.get("clock"))),
            config.get("link") or "default link",
        ]
        lines.append("  ".join(words) + (f"  REPORT: {lab['report']}" if "report" in lab else ""))
    return "\n".join(lines if status["labs"] else [*lines, "no lab is up"])


def inventory(nodes: Nodes) -> dict[str, Any]:
    """Server and clients in the groups of the playbooks, as JSON for Ansible.

    It is valid while the lab is up: commands use the ssh connection that the lab keeps open.
    """
    config = nodes.config
    # in a solo lab one machine is server and client
    servers = [config.nodes[0]]
    return {
        "all": {
            "hosts": {node: _connection(nodes.ssh(node)) for node in config.nodes},
            "vars": {
                "ansible_python_interpreter": _PYTHON,
                "ansible_pipelining": True,
                "nfsrdma_server": "server",
            },
        },
        "nfsrdma_servers": {"hosts": {node: {} for node in servers}},
        "nfsrdma_clients": {"hosts": {node: {} for node in config.client_nodes or servers}},
        "nfsrdma_monitors": {},
    }


def _connection(ssh: Ssh) -> dict[str, str]:
    return {
        "ansible_host": "lab",
        "ansible_user": "root",
        "ansible_ssh_args": " ".join((*ssh.options, "-o", f"ControlPath={ssh.control}")),
    }


def pack(facts: Mapping[str, object], added: Mapping[str, Path] | None = None) -> bytes:
    """A tar of the package and of the lab's facts for a node, to be unpacked at /.

    ``added`` are more files, by their paths beside the package.
    """
    package = Path(str(importlib.resources.files("nfsrdma_tools")))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(package, f"{_SOURCE}/nfsrdma_tools", filter=_packed)
        # in a wheel the kernel sources are part of the package
        if (package.parent / "pyproject.toml").is_file():
            data, kmod = f"{_SOURCE}/nfsrdma_tools/data", package.parent / "kmod"
            tar.add(package.parent / "bpf", f"{data}/bpf", filter=_packed)
            for path in module_source.files_below(kmod):
                tar.add(kmod / path, f"{data}/kmod/{path}", filter=_packed)
            for header in ("lib/nfsrdma.h", "lib/load.h"):
                tar.add(package.parent / header, f"{data}/{header}", filter=_packed)
        for place, file in (added or {}).items():
            tar.add(file, f"{_SOURCE}/{place}", filter=_packed)
        text = json.dumps(facts).encode()
        entry = tarfile.TarInfo(_FACTS)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def _packed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The entry, owned by root; None for files that a node does not need."""
    parts = Path(entry.name).parts
    if "__pycache__" in parts or "recipe" in parts or parts[-1].startswith("."):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


class Ssh:
    """The ssh connection to a node."""

    def __init__(self, folder: Path, node: str, keys: Path) -> None:
        self.control = folder / f"{node}.ssh"
        self.options = (
            *("-F", "none", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"),
            *("-o", f"IdentityFile={keys / 'user'}", "-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={keys / 'known_hosts'}", "-o", "HostKeyAlias=lab"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=20"),
        )
        self._master: subprocess.Popen[bytes] | None = None

    def open(self, port: int, seconds: float, alive: Callable[[], None]) -> None:
        """Connect, retrying until the node answers; ``alive`` raises if the machine has ended."""
        end = time.monotonic() + seconds
        while not self._try_open(port, alive):
            if time.monotonic() > end:
                raise UserError(f"the node did not answer ssh within {seconds:g} s")
            time.sleep(0.1)

    def _try_open(self, port: int, alive: Callable[[], None]) -> bool:
        argv = (
            # as for QEMU: it ends with this process, also after a kill -9
            *("setpriv", "--pdeathsig", "KILL", "ssh", "-M", "-N", "-S", str(self.control)),
            *(*self.options, "-p", str(port), "root@127.0.0.1"),
        )
        null = subprocess.DEVNULL
        self._master = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
        while self._master.poll() is None:
            alive()
            if self.control.exists():
                return True
            time.sleep(0.02)
        return False

    def argv(self, *command: str, tty: bool = False) -> tuple[str, ...]:
        """The ssh command line that runs ``command`` in the node; a login without a command."""
        flags = ("-t",) if tty else ()
        # ssh passes one string to the remote shell: quote to keep the arguments separate
        remote = (shlex.join(command),) if command else ()
        return ("ssh", *self.options, "-S", str(self.control), *flags, "--", "root@lab", *remote)

    def run(
        self,
        *command: str,
        stdin: bytes = b"",
        timeout: float = 600,
        check: bool = True,
        watch: Callable[[], None] | None = None,
    ) -> Result:
        """Run a command in the node; CommandError has the command as run in the node."""
        argv = self.argv(*command)
        done = run(*argv, stdin=stdin, timeout=timeout, check=False, watch=watch)
        result = Result(command, done.stdout, done.stderr, done.returncode)
        if check and result.returncode:
            raise CommandError(command, result.returncode, result.stderr or result.stdout)
        return result

    def answers(self) -> bool:
        """Whether the node answers over the shared connection."""
        return not self.run("true", timeout=_ANSWER_SECONDS, check=False).returncode

    def hang_up_if_dead(self) -> None:
        """End the shared connection if the node does not answer.

        Its process keeps the output of a command that was killed until the node has answered.
        """
        if not self.answers():
            run("ssh", "-S", str(self.control), "-O", "exit", "root@lab", timeout=_ANSWER_SECONDS,
                check=False)  # fmt: skip

    def close(self) -> None:
        """End the shared connection; UserError if its process remains."""
        master, self._master = self._master, None
        # a killed master leaves its socket
        self.control.unlink(missing_ok=True)
        if master is not None:
            kill(master)
