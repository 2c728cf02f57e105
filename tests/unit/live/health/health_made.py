# SPDX-License-Identifier: Apache-2.0
"""A made host for ``nfsrdma health``: the files of the kernel that it reads, below a folder.

The forms are those of show_mountinfo (fs/proc_namespace.c), nfs_show_stats (fs/nfs/super.c),
tasks_show and xprt_info_show (net/sunrpc/debugfs.c) and do_task_stat (fs/proc/array.c), as Linux
6.12 printed them on a client whose server was cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.host.machine import Machine, host_of_container

__all__ = ["BOOT", "ROOT_MOUNT", "Host"]

BOOT = "84e66374-ad69-4d61-b357-8ea5294443fb"
ROOT_MOUNT = "25 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"
# mangle() in fs/proc_namespace.c
_MANGLED = str.maketrans({c: f"\\{ord(c):03o}" for c in " \t\n\\#"})
CONNECTED, CONNECTING = "0x12", "0x1015"


def mangled(name: str) -> str:
    """A name as the kernel lists it."""
    return name.translate(_MANGLED)


@dataclass
class Host:
    """A host without NFS mounts, until some are added."""

    root: Path
    lines: list[str] = field(default_factory=list)
    stats: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write("proc/sys/kernel/random/boot_id", f"{BOOT}\n")
        self.line(ROOT_MOUNT)
        self.write("proc/1/mountstats", "")
        self.write("proc/modules", "")
        self.clients.mkdir(parents=True)
        (self.root / "sys/fs/nfs").mkdir(parents=True)

    @property
    def clients(self) -> Path:
        return self.root / "sys/kernel/debug/sunrpc/rpc_clnt"

    @property
    def words(self) -> list[str]:
        """The options that name this host."""
        return [
            f"--path.procfs={self.root}/proc", f"--path.sysfs={self.root}/sys",
            f"--path.rootfs={self.root}", f"--state={self.root}/state",
        ]  # fmt: skip

    @property
    def machine(self) -> Machine:
        return host_of_container(self.root / "proc", self.root / "sys", self.root)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        )
        return path

    def line(self, text: str) -> None:
        """A line of mountinfo."""
        self.lines.append(text)
        self.write("proc/1/mountinfo", "".join(f"{line}\n" for line in self.lines))

    def mount(
        self,
        where: str,
        number: int,
        proto: str = "tcp",
        address: str = "10.9.1.1",
        more: str = "",
        listed: bool = True,
        source: str = "server:/export",
    ) -> None:
        """An NFSv4.2 mount on ``where``, of superblock 0:NUMBER, whose client is NUMBER, too.

        ``listed`` has /sys/fs/nfs, as since Linux 6.5.
        """
        options = f"rw,vers=4.2,rsize=524288,hard{more},proto={proto},timeo=600,addr={address}"
        shown, escaped = mangled(source), mangled(where)
        self.line(f"{number} 25 0:{number} / {escaped} rw - nfs4 {shown} {options}")
        if listed:
            folder = self.root / f"sys/fs/nfs/0:{number}"
            folder.mkdir(parents=True)
            (folder / "nfs_client").symlink_to(f"../../../kernel/sunrpc/rpc-clients/clnt-{number}")
            switch = self.root / f"sys/kernel/sunrpc/rpc-clients/clnt-{number}"
            switch.mkdir(parents=True)
            (switch / "switch").symlink_to(f"../../xprt-switches/switch-{number}")
            self.queue(number, 0)
        self.client(number, proto, address)
        self.counters(where, number, 10, 10)

    def client(self, number: int, proto: str = "tcp", address: str = "10.9.1.1") -> None:
        """An RPC client with a connection."""
        self.write(f"sys/kernel/debug/sunrpc/rpc_clnt/{number:x}/tasks", "")
        self.connection(number, CONNECTED, proto, address)

    def connection(
        self, number: int, state: str, proto: str = "tcp", address: str = "10.9.1.1"
    ) -> None:
        text = f"netid: {proto}\naddr:  {address}\nport:  2049\nstate: {state}\n"
        self.write(f"sys/kernel/debug/sunrpc/rpc_clnt/{number:x}/xprt/info", text)

    def queue(self, number: int, pending: int) -> None:
        """The queue of the client's connection in sysfs."""
        folder = f"sys/kernel/sunrpc/xprt-switches/switch-{number}/xprt-{number}-tcp"
        self.write(f"{folder}/xprt_state", "state= CONNECTED   BOUND \n")
        self.write(f"{folder}/xprt_info", f"num_reqs=2\nsending_q_len=0\npending_q_len={pending}\n")
        self.write(f"{folder}/dstaddr", "10.9.1.1\n")

    def tasks(self, number: int, *rows: tuple[int, int], queue: str = "xprt_pending") -> None:
        """The pending RPCs of a client: number of the task, and XID."""
        text = "".join(
            f"{task:5} 8880      0 0x{number:x} 0x{xid:x}    13484 rpc_default_ops [sunrpc] "
            f"nfsv4 ACCESS a:call_status [sunrpc] q:{queue}\n"
            for task, xid in rows
        )
        self.write(f"sys/kernel/debug/sunrpc/rpc_clnt/{number:x}/tasks", text)

    def counters(self, where: str, number: int, sends: int, receives: int) -> None:
        """The counters of the mount's connection."""
        self.stats[where] = (
            f"device server:/export mounted on {mangled(where)} with fstype nfs4 statvers=1.1\n"
            f"\topts:\trw,vers=4.2\n\tage:\t24\n\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
            f"\txprt:\ttcp {900 + number} 1 2 0 24 {sends} {receives} 0 7 0 2 0 0\n"
            "\tper-op statistics\n\t        NULL: 0 0 0 0 0 0 0 0 0\n\n"
        )
        self.write("proc/1/mountstats", "".join(self.stats.values()))

    def without_debugfs(self) -> None:
        """What another user than root sees, or a host without debugfs."""
        (self.root / "sys/kernel/debug").rename(self.root / "sys/kernel/hidden")
        (self.root / "sys/kernel/debug").mkdir()

    def thread(self, number: int, function: str, switches: int, start: int = 4693) -> str:
        """A process with one thread, which is in state D; its stat."""
        rest = " ".join(["452"] * 3 + ["0"] * 13 + ["1", "0", str(start)] + ["0"] * 25)
        stat = f"{number} (a) b) D {rest}\n"
        self.write(f"proc/{number}/stat", stat)
        self.write(f"proc/{number}/wchan", function)
        self.write(f"proc/{number}/status", f"Name:\tx\nvoluntary_ctxt_switches:\t{switches}\n")
        return stat
