# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma health` in eleven hangs: each is found within its age, and no mount is accessed.

While it runs, the kernel's function tracer records which functions of the NFS client it calls.  A
run that lists mounts calls those that print a mount's options, and an access calls others.
"""

import contextlib
import importlib
import itertools
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.exports import DISK, disk_export
from testbed.kerberos import kerberos
from testbed.labs import ModulePair
from testbed.node import channel
from testbed.node.ftrace import calls
from testbed.node.programs import until
from testbed.remote import RemoteError, Running, on

pytestmark = pytest.mark.nightly

PAIR = ("server", "client")
RDMA, TCP = "/mnt/rdma", "/mnt/tcp"
LIMIT = 4.0
STATE = "/run/health-state"
# names of no file that no test before has looked up: the client caches that a file does not exist
NEW = itertools.count()
BEGIN = f"""
mkdir -p {RDMA} {TCP}
grep -q ' {RDMA} ' /proc/mounts ||
	mount -t nfs -o vers=4.2,proto=rdma,port=20049 server:/export {RDMA}
grep -q ' {TCP} ' /proc/mounts || mount -t nfs -o vers=3,proto=tcp,nolock server:/export {TCP}
"""
TIDY = f"""
systemctl kill --signal KILL 'hang-*' || true
for mount in $(awk '$3 ~ /^nfs4?$/ && $2 != "{RDMA}" && $2 != "{TCP}" {{print $2}}' /proc/mounts)
do until umount $mount; do sleep 0.2; done; done
rm -rf {STATE}
"""
END = f"""
for mount in {RDMA} {TCP}; do until umount $mount; do sleep 0.2; done; done
"""
WAITS = """
until grep -qs '^State:.D' /proc/$(pgrep -x "$1")/status; do sleep 0.1; done
cat /proc/$(pgrep -x "$1")/wchan
"""
# on a busy host, threads wait for more than the 120 s after which the kernel reports them
PATIENT = """
sysctl kernel.hung_task_timeout_secs > /run/patient
sysctl -qw kernel.hung_task_timeout_secs=0
"""
IMPATIENT = "sysctl -qp /run/patient; rm /run/patient"
# fs/nfs/super.c and fs/nfs/namespace.c: what prints a mount into mountinfo and mountstats
PRINTS = re.compile(r"nfs_show_\w+(\.\w+)*|nfs_path|show_\w+|nfs4?_show\w*|__nfs_list\w*")
TRACING = Path("/sys/kernel/tracing/instances/health")
# what a check imports: starting Python takes most of the time of a check in an emulated machine
CHECK = ("nfsrdma_tools.cli.main", "nfsrdma_tools.cli.health", "nfsrdma_tools.live.health.check")


class Traced(NamedTuple):
    """A command's output and exit status, and the functions of the NFS client that it called."""

    text: str
    status: int
    called: list[str]


@on("client")
def checks() -> None:
    """Run each command that the test sends in a child; an empty one is the end."""
    with tracer():
        for name in CHECK:
            importlib.import_module(name)
        while command := channel.receive():
            channel.send(traced(command))


@contextlib.contextmanager
def tracer() -> Iterator[None]:
    """Record which functions of the NFS client this process and its children call."""
    TRACING.mkdir()
    try:
        # adds the children of a process, and takes out those that end
        (TRACING / "trace_options").write_text("function-fork")
        (TRACING / "set_ftrace_pid").write_text(str(os.getpid()))
        for module in ("nfs", "nfsv3", "nfsv4"):
            with (TRACING / "set_ftrace_filter").open("a") as functions:
                functions.write(f"*:mod:{module}")
        (TRACING / "current_tracer").write_text("function")
        yield
    finally:
        (TRACING / "current_tracer").write_text("nop")
        TRACING.rmdir()


def traced(command: tuple[str, ...]) -> Traced:
    """Run a command, or ``nfsrdma`` without starting Python."""
    # which empties it
    (TRACING / "trace").write_text("")
    # no pipe: a child of the command may wait in the kernel, and a reader of this does not
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            become(command, output.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        text = output.read()
    return Traced(text, status, calls((TRACING / "trace").read_text()))


def become(command: tuple[str, ...], output: int) -> NoReturn:
    """Be the command from here on."""
    status = 1
    try:
        os.dup2(output, 1)
        if command[0] != "nfsrdma":
            os.execvp(command[0], command)  # noqa: S606
        sys.argv = list(command)
        importlib.import_module(CHECK[0]).main()
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # of the runner, only the parent has all threads
        os._exit(status)


@dataclass
class Client:
    """The client of a lab, and what hangs on it."""

    lab: Lab
    checks: Running[None]

    def sh(self, script: str, *words: str, node: str = "client") -> str:
        """Run a script; its standard output."""
        argv = ("timeout", "500", "bash", "-ec", script, "bash", *words)
        return self.lab.run(node, *argv).stdout

    @property
    def names_mounts(self) -> bool:
        """Whether the kernel names the RPC clients of a mount (since Linux 6.5)."""
        return [int(part) for part in self.sh("uname -r").split(".")[:2]] >= [6, 5]

    def waits_in(self, program: str) -> str:
        """The function in which a program waits; "0" if the kernel does not say it."""
        return self.sh(WAITS, program).strip()

    def check(self, *words: str, program: tuple[str, ...] = ("nfsrdma",)) -> dict[str, Any]:
        """The report; AssertionError if the check accessed a mount."""
        # on a busy host, minutes may pass
        options = ("--json", "--state", STATE, "--max-rpc-age", f"{LIMIT:g}s", "--timeout", "90")
        text, status, accesses = self.traced(*program, "health", *options, *words)
        assert accesses == set()
        report: dict[str, Any] = json.loads(text)
        assert report["exit_status"] == status
        return report

    def traced(self, *command: str) -> tuple[str, int, set[str]]:
        """What a command prints, its status, and the functions by which it accesses mounts."""
        self.checks.send(command)
        # on a busy host, minutes may pass
        text, status, called = self.checks.receive(timeout=300)
        return text, status, {name for name in called if not PRINTS.fullmatch(name)}

    def hangs(self, *mounts: str | None, most: int = 2) -> list[dict[str, Any]]:
        """Check until each mount's age is above the limit: each status is that of its age.

        None is what has no mount.  ``most`` is the status that the oldest age has.
        """

        def late() -> list[dict[str, Any]] | None:
            findings = [
                finding for finding in self.check()["findings"] if finding["mount"] in mounts
            ]
            for finding in findings:
                age = finding["age_seconds"]
                expected = min(2 if age >= LIMIT else 1 if age >= LIMIT / 2 else 0, most)
                assert finding["status"] == ("ok", "warning", "critical")[expected], finding
            old = [finding for finding in findings if finding["age_seconds"] >= LIMIT]
            by_mount = {finding["mount"]: finding for finding in reversed(old)}
            return [by_mount[mount] for mount in mounts] if by_mount.keys() == {*mounts} else None

        hung: list[dict[str, Any]] = until(f"an old RPC on {mounts}", late, 60, 0.5)
        return hung

    def recovers(self) -> None:
        """Check until all is well."""
        until("no RPC is late", lambda: self.check()["exit_status"] == 0, 120, 0.5)

    def access(self, command: str) -> None:
        """Start a command that accesses a mount, and do not wait for it."""
        self.sh('systemd-run --quiet --collect --unit "hang-$RANDOM" -- sh -c "$1"', command)


class Prepared:
    """A client, and what is done in a lab once, because it takes longer than a test."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._stack = lab, contextlib.ExitStack()
        self._client: Client | None = None

    def client(self) -> Client:
        """The client; another one after a restart of the lab."""
        if self._client is None or self._client.checks.done():
            self.end()
            self._client = self._stack.enter_context(prepared_client(self._lab))
        return self._client

    def end(self) -> None:
        """Remove what is there; a restart of the lab has removed all."""
        restarted = self._client is not None and self._client.checks.done()
        with contextlib.suppress(RemoteError) if restarted else contextlib.nullcontext():
            self._stack.close()


@contextlib.contextmanager
def prepared_client(lab: Lab) -> Iterator[Client]:
    """A client that runs checks; both kernels do not report threads that wait for long."""
    with checks.started(lab) as running:
        client = Client(lab, running)
        for node in PAIR:
            client.sh(PATIENT, node=node)
        # the tracer sees an access
        assert client.traced("stat", TCP)[2] > {"nfs_getattr"}
        # the program itself
        assert client.check(program=("env", "nfsrdma"))["exit_status"] == 0
        yield client
        running.send(())
    client.sh(END)
    for node in PAIR:
        client.sh(IMPATIENT, node=node)


@pytest.fixture(scope="module")
def prepared(pair_file: ModulePair) -> Iterator[Prepared]:
    """The client for the tests of this file."""
    preparation = Prepared(pair_file.lab)
    yield preparation
    preparation.end()


@pytest.fixture
def client(pair: Lab, prepared: Prepared) -> Iterator[Client]:
    """A client with a mount over RDMA and one over TCP; each test leaves them well."""
    pair.run("client", "sh", "-ec", BEGIN)
    mounted_client = prepared.client()
    try:
        yield mounted_client
    finally:
        mounted_client.sh(TIDY)


CUT = """
nft 'add table inet cut; add chain inet cut in { type filter hook input priority 0; };
add rule inet cut in tcp dport 2049 drop; add rule inet cut in udp dport 4791 drop'
"""


@contextlib.contextmanager
def cut_off(client: Client) -> Iterator[None]:
    """The server gets nothing from the clients in the block."""
    client.sh(CUT, node="server")
    try:
        yield
    finally:
        client.sh("nft delete table inet cut", node="server")


def test_a_server_that_is_cut_off_and_comes_back(client: Client) -> None:
    with cut_off(client):
        client.access(f"ls {RDMA}/{next(NEW)} {TCP}/{next(NEW)}")
        client.access(f"ls {TCP}/{next(NEW)}")
        over_rdma, over_tcp = client.hangs(RDMA, TCP)
        assert (over_rdma["transport"], over_rdma["vers"]) == ("rdma", "4.2")
        assert (over_tcp["transport"], over_tcp["vers"]) == ("tcp", "3")
        assert {over_rdma["server"], over_tcp["server"]} == {"server:/export"}
        # one of them may be named
        assert [finding["mount"] for finding in client.check(TCP)["findings"]] == [TCP]
    client.recovers()


def test_threads_of_nfsd_that_hang(client: Client) -> None:
    with disk_export(client.lab, "server"):
        client.sh(f"mkdir -p /mnt/disk; mount -t nfs -o vers=3,nolock server:{DISK} /mnt/disk")
        client.sh(f"fsfreeze -f {DISK}", node="server")
        try:
            client.access("echo text > /mnt/disk/new")
            (finding,) = client.hangs("/mnt/disk")
            assert (finding["connection"], finding["rpc"]["procedure"]) == ("connected", "CREATE")
            # the other mounts of this server are well
            if client.names_mounts:
                assert client.check(RDMA, TCP)["exit_status"] == 0
        finally:
            client.sh(f"fsfreeze -u {DISK}", node="server")
        client.recovers()
        client.sh("until umount /mnt/disk; do sleep 0.2; done")


# forwards RPCs over TCP (RFC 5531, section 11), and keeps one Reply while the file exists
PROXY = """
import os, socket, struct, threading, time
listener = socket.create_server(("127.0.0.1", 4049))

def whole(source, size):
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise SystemExit
        data += part
    return data

def forward(source, target, replies):
    while True:
        head = whole(source, 4)
        body = whole(source, struct.unpack(">I", head)[0] & 0x7fffffff)
        while replies and os.path.exists("/run/keep"):
            time.sleep(0.1)
        target.sendall(head + body)

while True:
    near, _ = listener.accept()
    far = socket.create_connection(("server", 2049))
    threading.Thread(target=forward, args=(near, far, False), daemon=True).start()
    threading.Thread(target=forward, args=(far, near, True), daemon=True).start()
"""


def test_a_reply_that_is_lost(client: Client) -> None:
    client.lab.run("client", "sh", "-c", "cat > /run/proxy.py", stdin=PROXY.encode())
    client.sh("systemd-run --quiet --collect --unit hang-proxy -- python3 /run/proxy.py")
    # clients share connections per minor version
    options = "vers=4.1,proto=tcp,port=4049"
    client.sh(
        "until ss -ltn | grep -q :4049; do sleep 0.1; done; mkdir -p /mnt/lossy\n"
        f"mount -t nfs -o {options} 127.0.0.1:/export /mnt/lossy; touch /run/keep"
    )
    client.access("stat /mnt/lossy/none")
    (finding,) = client.hangs("/mnt/lossy")
    assert finding["connection"] == "connected"
    assert finding["rpc"]["queue"] == "xprt_pending"
    client.sh("rm /run/keep")
    client.recovers()
    client.sh("umount /mnt/lossy; rm /run/proxy.py")


ASK = """
import contextlib, os, threading

def ask():
    while True:
        with contextlib.suppress(OSError):
            os.statvfs("/mnt/soft")

# an RPC of one of them waits
for _ in range(3):
    threading.Thread(target=ask).start()
"""


def test_a_soft_mount_whose_server_is_dead(client: Client) -> None:
    soft = "vers=3,proto=tcp,nolock,soft,timeo=5,retrans=1"
    client.sh(f"mkdir -p /mnt/soft; mount -t nfs -o {soft} server:/export /mnt/soft")
    with cut_off(client):
        client.access(f"exec python3 -c '{ASK}'")
        client.hangs("/mnt/soft")
        client.sh("systemctl kill --signal KILL 'hang-*'")
    client.access("while true; do stat -f /mnt/soft; sleep 0.1; done")
    client.recovers()


UNIT = """
cat > /run/systemd/system/mnt-auto.mount <<end
[Mount]
What=server:/export
Where=/mnt/auto
Type=nfs
Options=vers=3,proto=tcp,nolock
end
cat > /run/systemd/system/mnt-auto.automount <<end
[Automount]
Where=/mnt/auto
end
systemctl daemon-reload
systemctl start mnt-auto.automount
"""


def test_autofs_is_not_triggered(client: Client) -> None:
    client.sh(UNIT)
    try:
        with cut_off(client):
            (finding,) = client.check("/mnt/auto")["findings"]
            assert (finding["status"], "autofs" in finding["reason"]) == ("ok", True)
            # of the others, that of NFSv4 may wait for its lease to be renewed
            mounts = {row["mount"] for row in client.check()["findings"]}
            assert {RDMA, TCP} <= mounts
            assert "/mnt/auto" not in mounts
        assert client.sh("grep -c ' /mnt/auto ' /proc/mounts").strip() == "1"
        client.sh("ls /mnt/auto")
        (finding,) = client.check("/mnt/auto")["findings"]
        assert (finding["status"], finding["vers"]) == ("ok", "3")
    finally:
        client.sh(
            "systemctl stop mnt-auto.automount mnt-auto.mount\n"
            "rm /run/systemd/system/mnt-auto.*; systemctl daemon-reload"
        )


def test_what_a_lazy_unmount_leaves(client: Client) -> None:
    with cut_off(client):
        client.access(f"ls {RDMA}/{next(NEW)}")
        client.hangs(RDMA)
        client.sh(f"umount -l {RDMA}")
        (finding,) = client.hangs(None, most=1)
        assert "umount -l" in finding["reason"]
        if client.names_mounts:
            assert finding["advice"].startswith("end it: echo 1 > /sys/fs/nfs/0:")
        # only what is named is judged
        assert client.check(TCP)["exit_status"] == 0
    client.recovers()


def test_a_mount_of_another_mount_namespace(client: Client) -> None:
    mount = "mount -t nfs -o vers=3,nolock,nosharecache server:/export /mnt/pod"
    client.sh("mkdir -p /mnt/pod")
    client.access(
        f"exec unshare --mount sh -c '{mount}; touch /run/pod-is-up; "
        "until [ -e /run/pod-goes-on ]; do sleep 0.1; done; ls /mnt/pod/none'"
    )
    client.sh("until [ -e /run/pod-is-up ]; do sleep 0.1; done")
    with cut_off(client):
        client.sh("touch /run/pod-goes-on")
        if client.names_mounts:
            (finding,) = client.hangs("/mnt/pod")
            process = finding["namespace_of_process"]
            assert client.sh(f"cat /proc/{process}/comm").strip() in ("sh", "ls")
        else:
            (finding,) = client.hangs(TCP)
            assert "for this mount or another one of its server" in finding["reason"]
    client.recovers()
    client.sh("rm -f /run/pod-*")


def test_recovery_of_state_that_hangs(client: Client) -> None:
    client.sh(f"touch {RDMA}/open")
    client.access(f"exec sh -c 'exec 3< {RDMA}/open; sleep infinity'")
    client.sh("until ls /proc/[0-9]*/fd -l 2>/dev/null | grep -q /open; do sleep 0.1; done")
    # the client notices at its next RPC, and nfsd asks nfsdcld before the client may go on
    client.sh(
        "for c in /proc/fs/nfsd/clients/*/ctl; do echo expire > $c; done\n"
        "systemctl kill --signal STOP nfsdcld",
        node="server",
    )
    try:
        client.access(f"cat {RDMA}/open; ls {RDMA}/{next(NEW)}")
        (finding,) = client.hangs(RDMA)
        assert finding["connection"] == "connected"
    finally:
        client.sh("systemctl kill --signal CONT nfsdcld", node="server")
    client.recovers()


def test_a_server_that_refuses_connections(client: Client) -> None:
    client.sh("systemctl stop nfs-server", node="server")
    try:
        client.access(f"ls {RDMA}/{next(NEW)}")
        client.access(f"ls {TCP}/{next(NEW)}")
        for finding in client.hangs(RDMA, TCP):
            assert finding["connection"] != "connected"
    finally:
        client.sh("systemctl start nfs-server", node="server")
        client.sh("echo Y > /proc/fs/nfsd/v4_end_grace || true", node="server")
    client.recovers()


def test_an_rpc_that_waits_for_gssd(client: Client) -> None:
    with kerberos(client.lab):
        options = "vers=4.2,sec=krb5,proto=tcp"
        client.sh(f"mkdir -p /mnt/krb5; mount -t nfs -o {options} server:/export /mnt/krb5")
        client.sh("systemctl kill --signal STOP rpc-gssd")
        try:
            client.access("exec setpriv --reuid lab --clear-groups ls /mnt/krb5")
            (finding,) = client.hangs("/mnt/krb5")
            assert "rpc.gssd" in finding["reason"] + finding["advice"], finding
        finally:
            client.sh("systemctl kill --signal CONT rpc-gssd")
        client.recovers()
        client.sh("until umount /mnt/krb5; do sleep 0.2; done")


def test_without_the_list_of_rpcs(client: Client) -> None:
    """Counters and threads show that the server does not reply."""
    client.sh("umount /sys/kernel/debug")
    try:
        # for the counters, which do not count a Call before there is a connection
        client.sh(f"stat -f {TCP}")
        assert client.check()["exit_status"] == 0
        with cut_off(client):
            client.access(f"ls {TCP}/{next(NEW)}")
            # if the kernel does not say it, the Call may be that of a process that was killed
            says = client.waits_in("ls") != "0"
            (finding,) = client.hangs(TCP, most=2 if says else 1)
            assert finding["reason"].startswith("Calls and no reply for at least ")
            not_seen = client.check()["not_seen"]
            assert "debugfs is not mounted" in not_seen[0]
            assert says or not_seen[1].startswith("where a thread waits: ")
    finally:
        client.sh("mount -t debugfs debugfs /sys/kernel/debug")
    client.recovers()
