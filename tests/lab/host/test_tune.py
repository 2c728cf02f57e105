# SPDX-License-Identifier: Apache-2.0
"""tune against a real fstab, udev, systemd and kernel: what lasts is what a new mount gets."""

from collections.abc import Iterator

import pytest

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

HOSTILE = "/mnt/a b;$(touch /tmp/tuned)"
FSTAB_NAME = HOSTILE.replace(" ", "\\040")
LINE = (
    f"server:/export {FSTAB_NAME} nfs vers=4.2,proto=rdma,port=20049,rsize=32768,nosharecache 0 0"
)
OTHER = "/mnt/other"
REMOUNT_OTHER = f"mount -o vers=3,proto=tcp,nosharecache server:/export {OTHER}"
UNIT = """[Mount]
What=server:/export
Where=/mnt/unit
Type=nfs
Options=vers=3,proto=tcp,rsize=32768,nosharecache
"""
TRACES = (
    "md5sum /etc/fstab; ls /etc/udev/rules.d /usr/local/lib /var/lib/nfsrdma /etc/systemd/system;"
    "test -e /tmp/tuned && echo shell; true"
)


PREPARE = f"""
cp -p /etc/fstab /root/fstab.kept
mkdir -p '{HOSTILE}' {OTHER} /mnt/unit
printf '%s\\n' '{LINE}' >> /etc/fstab
mount '{HOSTILE}' && {REMOUNT_OTHER}
"""
LEAVE = f"""
for directory in '{HOSTILE}' {OTHER} /mnt/unit; do umount "$directory"; rmdir "$directory"; done
mv /root/fstab.kept /etc/fstab
"""


@pytest.fixture
def node(solo: Lab) -> Iterator[Lab]:
    """The lab with two mounts, one by fstab; leaves fstab and folders as they were."""
    sh(solo, PREPARE)
    yield solo
    sh(solo, LEAVE)


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-c", script).stdout


def effect(lab: Lab, script: str = "true") -> dict[str, tuple[int, int]]:
    """rsize and read_ahead_kb of each NFS mount after ``script``, by the kernel's own files."""
    look = "udevadm settle; cat /proc/self/mountinfo; grep . /sys/class/bdi/0:*/read_ahead_kb"
    lines = sh(lab, f"{{ {script}\n}} >&2\n{look}").splitlines()
    kib = {line.split("/")[4]: int(line.rpartition(":")[2]) for line in lines if line[:4] == "/sys"}
    by_mount = {}
    for row in (line.split() for line in lines if ",rsize=" in line):
        rsize = int(row[-1].split("rsize=")[1].split(",")[0])
        by_mount[row[4].replace("\\040", " ")] = rsize, kib[row[2]]
    return by_mount


@pytest.mark.main
def test_tuning_outlives_a_mount_and_undo_leaves_nothing(node: Lab) -> None:
    traces, before = sh(node, TRACES), effect(node)
    assert before == {HOSTILE: (32768, 128), OTHER: (524288, 128)}
    apply = f"nfsrdma tune apply --mount '{HOSTILE}'"
    now = effect(node, f"{apply} --rsize 128k --read-ahead 4")
    assert now[HOSTILE] == (32768, 512), "read-ahead at once, rsize not before a mount"
    now = effect(node, f"mount -o remount,rsize=65536 '{HOSTILE}' || true")
    assert now[HOSTILE][0] == 32768, "remount changes rsize on this kernel: simplify tune"

    now = effect(node, f"umount '{HOSTILE}'; mount '{HOSTILE}'; umount {OTHER}; {REMOUNT_OTHER}")
    assert now == {HOSTILE: (131072, 512), OTHER: (524288, 128)}

    # more than rxe takes: refused, and the first tuning is in effect again
    now = effect(node, f"{apply} --rsize 1M --remount 2>/tmp/said && exit 1")
    assert "requested 1048576, got 524288" in sh(node, "cat /tmp/said; rm /tmp/said")
    assert now[HOSTILE] == (131072, 512)

    now = effect(node, f"nfsrdma tune undo '{HOSTILE}'")
    assert now[HOSTILE] == (131072, 128)
    assert effect(node, f"umount '{HOSTILE}'; mount '{HOSTILE}'") == before
    assert sh(node, TRACES) == traces


@pytest.mark.nightly
def test_mount_unit_gets_a_drop_in(node: Lab) -> None:
    unit = "/etc/systemd/system/mnt-unit.mount"
    sh(node, f"cat > {unit} <<'END'\n{UNIT}END\nsystemctl daemon-reload")
    traces = sh(node, f"{TRACES}; systemctl start mnt-unit.mount")
    apply = "nfsrdma tune apply --mount /mnt/unit --rsize 64k --read-ahead 16 --remount"
    assert effect(node, apply)["/mnt/unit"] == (65536, 1024)
    now = effect(node, f"cd /mnt/unit; {apply} 2>/tmp/said && exit 1; cd /")
    assert "in use by pid" in sh(node, "cat /tmp/said; rm /tmp/said")
    assert now["/mnt/unit"] == (65536, 1024)
    sh(node, "nfsrdma tune undo")
    assert sh(node, TRACES) == traces
    assert effect(node, "systemctl restart mnt-unit.mount")["/mnt/unit"] == (32768, 128)
    sh(node, f"systemctl stop mnt-unit.mount; rm {unit}; systemctl daemon-reload")
