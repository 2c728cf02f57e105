# SPDX-License-Identifier: Apache-2.0
"""Serving for real: what is enabled is mounted over RDMA, what is disabled leaves no trace."""

import json

import pytest

from nfsrdma_tools.lab.lab import Lab

# the machine as far as serving goes; times of folders are left out, a rename touches them
SNAPSHOT = """
import contextlib, json, os, subprocess, sys
from pathlib import Path
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfsd import nfsctl, serving
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.files import make_state_dir
from nfsrdma_tools.undo import journal, recover

def sh(script):
    subprocess.run(("sh", "-ec", script), check=True, stdout=sys.stderr)

def said(*argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout

def snapshot():
    places = ("/etc/exports", "/etc/exports.d", "/etc/nfs.conf", "/etc/nfs.conf.d",
              "/var/lib/nfsrdma")
    files = [p for place in map(Path, places) for p in (place, *sorted(place.rglob("*")))]
    return {
        "files": {str(p): p.read_text() if p.is_file() else "" for p in files if p.exists()},
        "journals": os.listdir(make_state_dir()),
        "exports": said("exportfs", "-v"),
        "portlist": sorted(Path("/proc/fs/nfsd/portlist").read_text().split("\\n")),
        "threads": Path("/proc/fs/nfsd/threads").read_text(),
        # a stopped nfsd remembers what it offered last; each start sets them anew
        "versions": nfsctl.versions() if nfsctl.threads() else [],
        "service": said("systemctl", "is-active", "nfs-server"),
        "boot": said("systemctl", "is-enabled", "nfs-server"),
    }

def enable(path, *clients, versions=(), **options):
    with journal() as book:
        export = Export(Path(path), clients, **options)
        result = serving.enable(export, book, versions=versions)
        book.keep()
    return result.changed

def refused(path, *clients):
    try:
        enable(path, *clients)
    except UserError as error:
        return str(error)

def same(before):
    after = snapshot()
    assert after == before, [(k, before[k], after[k]) for k in before if before[k] != after[k]]
"""

HOSTILE = (
    SNAPSHOT
    + r"""
paths = ['/srv/a b#(ro)"', "/srv/$(reboot);'%s", "/export/tmpfs", "/srv/-o"]
before = snapshot()
shown = []
for path in paths:
    Path(path).mkdir()
    Path(path, "here").write_text(path)
    assert enable(path, "10.9.1.0/24", "client"), path
    assert not enable(path, "10.9.1.0/24", "client"), path
    options = "proto=rdma,port=20049,vers=3"
    said("mount", "-t", "nfs", "-o", options, "server:" + path, "/mnt")
    shown.append([Path("/mnt/here").read_text(), [m for m in
                  Path("/proc/mounts").read_text().split("\n") if " /mnt nfs" in m]])
    said("umount", "/mnt")
own = list(serving.serving().own)
here = [e for e in serving.serving().exports if e.client == "10.9.1.0/24"]
options = {e.path: list(e.options) for e in here}
enable("/srv/-o", "10.9.1.0/24", read_only=True)
read_only = [e.client for e in serving.serving().exports if "ro" in e.options]
foreign = refused("/export", "*")
strange = [refused("/srv/new\nline", "*"), refused("/srv/-o", "a b"), refused("/srv/none", "*")]
for path in paths:
    serving.disable(path)
    Path(path, "here").unlink()
    Path(path).rmdir()
same(before)
print(json.dumps([shown, own, options, read_only, foreign, strange]))
"""
)


@pytest.mark.main
def test_any_directory_is_served_over_rdma_and_taken_back(solo: Lab) -> None:
    said = solo.run("server", "python3", "-", stdin=HOSTILE.encode()).stdout
    shown, own, options, read_only, foreign, strange = json.loads(said)
    paths = ['/srv/a b#(ro)"', "/srv/$(reboot);'%s", "/export/tmpfs", "/srv/-o"]
    assert [text for text, _mounts in shown] == own == paths
    assert all("proto=rdma" in mounts[0] for _text, mounts in shown)
    assert all({"rw", "insecure", "root_squash"} <= set(options[path]) for path in paths)
    assert any(option.startswith("fsid=") for option in options["/export/tmpfs"])
    assert read_only == ["10.9.1.0/24"]
    assert "is already exported to *" in foreign
    assert [text.partition(":")[0] for text in strange] == [
        "export path '/srv/new\\nline' has a backslash or control characters (rename it)",
        "client 'a b'",
        "export path '/srv/none' is not a directory (create it first)",
    ]


SERVICE = (
    SNAPSHOT
    + r"""
conf = Path("/etc/nfs.conf.d/lab.conf")
plain = conf.read_text()
begin = snapshot()
try:
    conf.write_text("[nfsd]\nthreads=8\nvers3=n\n")
    sh("systemctl restart nfs-server; mkdir /srv/plain")
    running = snapshot()

    # killed in the middle: the next start takes it back, with a restart, and again, harmlessly
    if os.fork() == 0:
        with journal() as book:
            serving.enable(Export(Path("/srv/plain"), ("client",)), book)
            os.kill(os.getpid(), 9)
    os.wait()
    killed = snapshot()
    recover()
    same(running)

    # an nfsd that runs gets its listener without a restart, and loses it with one
    pids = said("pgrep", "nfsd")
    enable("/srv/plain", "client")
    live = snapshot()
    kept = said("pgrep", "nfsd") == pids
    serving.disable("/srv/plain")
    same(running)

    sh("systemctl stop nfs-server")
    stopped = snapshot()
    enable("/srv/plain", "client", versions=("3",))
    started = snapshot()
    serving.disable("/srv/plain")
    same(stopped)

    # somebody else's file has the last word: nothing is left of the attempt
    Path("/etc/nfs.conf.d/zz.conf").write_text("[nfsd]\nrdma=n\n")
    overridden = snapshot()
    why = refused("/srv/plain", "client")
    same(overridden)
finally:
    Path("/etc/nfs.conf.d/zz.conf").unlink(missing_ok=True)
    conf.write_text(plain)
    sh("rmdir /srv/plain; systemctl restart nfs-server")
same(begin)
print(json.dumps([running, killed, live, kept, started, why]))
"""
)


def test_the_service_is_put_back_as_it_was(solo: Lab) -> None:
    said = solo.run("server", "python3", "-", stdin=SERVICE.encode(), timeout=300).stdout
    running, killed, live, kept, started, why = json.loads(said)
    assert not any("rdma" in line for line in running["portlist"])
    for state in (killed, live, started):
        assert "rdma 20049" in state["portlist"]
        assert "/srv/plain" in state["exports"]
        assert state["boot"] == "enabled\n"
        assert "rdma-port=20049" in state["files"]["/etc/nfs.conf.d/nfsrdma.conf"]
    assert kept
    assert "/var/lib/nfsrdma/server.json" in killed["files"]
    assert started["service"] == "active\n"
    assert [("3" in state["versions"]) for state in (running, live, started)] == [
        False,
        False,
        True,
    ]
    assert "requested rdma-port=20049, got 0" in why


BY_HAND = (
    SNAPSHOT
    + r"""
conf = Path("/etc/nfs.conf.d/lab.conf")
plain = conf.read_text()

def access(name):
    # without the kernel's cache of exports, nfsd asks mountd again
    sh("exportfs -f")
    Path("/mnt", name).write_text(name)
    return Path("/srv/by hand", name).read_text()

def by_hand():
    return [line for line in Path("/var/lib/nfs/etab").read_text().split("\n")
            if line.startswith("/srv/by\\040hand")]

try:
    conf.write_text("[nfsd]\nthreads=8\n")
    sh("systemctl restart nfs-server; mkdir -p '/srv/by hand' /srv/plain")
    sh("exportfs -i -o rw,insecure,no_root_squash,fsid=77 '10.9.1.0/24:/srv/by hand'")
    sh("mount -t nfs -o vers=3,nolock 'server:/srv/by hand' /mnt")
    states = [(by_hand(), access("before"))]
    enable("/srv/plain", "client")
    states.append((by_hand(), access("enabled")))
    enable("/srv/plain", "client", "10.9.1.0/24", read_only=True)
    states.append((by_hand(), access("again")))
    # the listener of RDMA goes with a restart
    pids = said("pgrep", "nfsd")
    serving.disable("/srv/plain")
    restarted = said("pgrep", "nfsd") != pids
    states.append((by_hand(), access("disabled")))
    left = [line for line in Path("/var/lib/nfs/etab").read_text().split("\n") if "plain" in line]
finally:
    conf.write_text(plain)
    sh("umount -f /mnt || true; exportfs -u '10.9.1.0/24:/srv/by hand' || true")
    sh("rm -r '/srv/by hand' /srv/plain; systemctl restart nfs-server")
print(json.dumps([states, restarted, left]))
"""
)


def test_an_export_by_hand_survives_enable_and_disable(solo: Lab) -> None:
    said = solo.run("server", "python3", "-", stdin=BY_HAND.encode(), timeout=300).stdout
    states, restarted, left = json.loads(said)
    assert [text for _rows, text in states] == ["before", "enabled", "again", "disabled"]
    rows = [row for row, _text in states]
    assert len(rows[0]) == 1
    assert rows == [rows[0]] * 4
    assert restarted
    assert not left


BESIDE = (
    SNAPSHOT
    + r"""
TCP = '''
import socket, sys
held = socket.create_server(("", 2049))
print(flush=True)
sys.stdin.read()
'''
RDMA = '''
import ctypes, socket, sys
cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
channel, held = ctypes.c_void_p(cm.rdma_create_event_channel()), ctypes.c_void_p()
# RDMA_PS_TCP
assert cm.rdma_create_id(channel, ctypes.byref(held), None, 0x106) == 0
address = socket.AF_INET.to_bytes(2, "little") + (20049).to_bytes(2, "big") + bytes(12)
assert cm.rdma_bind_addr(held, address) == 0, ctypes.get_errno()
assert cm.rdma_listen(held, 1) == 0, ctypes.get_errno()
print(flush=True)
sys.stdin.read()
'''

def beside(program):
    words = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen((sys.executable, "-c", program), **words) as held:
        held.stdout.readline()
        why = refused("/srv/plain", "client")
        status = json.loads(said("nfsrdma", "server", "status", "--json"))
        held.stdin.close()
    same(stopped)
    return why, status["other"]

begin = snapshot()
try:
    sh("systemctl stop nfs-server; mkdir /srv/plain")
    stopped = snapshot()
    found = [beside(program) for program in (TCP, RDMA)]
    enable("/srv/plain", "client")
    serving.disable("/srv/plain")
    same(stopped)
finally:
    sh("rmdir /srv/plain; systemctl restart nfs-server")
print(json.dumps(found))
"""
)


def test_nfsd_is_not_enabled_beside_another_server(solo: Lab) -> None:
    said = solo.run("server", "python3", "-", stdin=BESIDE.encode(), timeout=300).stdout
    for (why, other), port in zip(json.loads(said), ("TCP 2049", "RDMA 20049"), strict=True):
        expected = f"python3 listens on {port}: the kernel's server cannot"
        assert why == f"{expected} (stop that server first)"
        assert other["program"] == "python3"
