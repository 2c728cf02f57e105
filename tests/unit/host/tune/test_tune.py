# SPDX-License-Identifier: Apache-2.0
import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsrdma_tools.cli import tune as tune_cli
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.files import FileChange
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import fstab, units
from nfsrdma_tools.host.state import tune_state
from nfsrdma_tools.host.tune import definition as tune_definition
from nfsrdma_tools.host.tune import tuning, udev_helper
from nfsrdma_tools.host.tune.tuning import HELPER, RULE
from nfsrdma_tools.lock import try_folder_lock

FSTAB = (
    b"# /etc/fstab: static file system information\n"
    b"/dev/vda  /     ext4\terrors=remount-ro  0 1\n"
    b"\n"
    b"server:/export\t/mnt/data  nfs4 \tproto=rdma,port=20049,rsize=32768,hard\t0 0   # fast\n"
    b"server:/a\\040b  /mnt/with\\040blank\\134 nfs defaults\n"
    b"server:/x /mnt/\xff\xfe nfs\n"
    b"#server:/old /mnt/data nfs rw 0 0\n"
    b"server:/last /mnt/last nfs rsize=1024,ro,rsize=2048,wsize=4096 0 0"
)
DATA = Path("/mnt/data")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NFSRDMA_LIB", raising=False)
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path.parent / f"{tmp_path.name}-state"))
    for folder in ("etc", "var/lib", "usr/local/lib", "usr/bin", "etc/udev/rules.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/fstab").write_bytes(FSTAB)
    (tmp_path / "usr/bin/python3").touch()
    return tmp_path


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    contents = {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}
    folders = {str(path): (path.stat().st_mode, b"") for path in root.rglob("*") if path.is_dir()}
    return contents | folders


def lines(root: Path) -> list[bytes]:
    return (root / "etc/fstab").read_bytes().split(b"\n")


def test_apply_and_undo_leave_every_byte_as_it_was(root: Path) -> None:
    (root / "etc/fstab").chmod(0o640)
    before = everything(root)
    tuning.apply(tuning.TuneRequest(DATA, rsize=131072, read_ahead=4), Machine(root))
    assert lines(root)[3] == (
        b"server:/export\t/mnt/data  nfs4 \tproto=rdma,port=20049,rsize=131072,hard\t0 0   # fast"
    )
    assert lines(root)[:3] + lines(root)[4:] == FSTAB.split(b"\n")[:3] + FSTAB.split(b"\n")[4:]
    assert (root / "etc/fstab").stat().st_mode & 0o7777 == 0o640
    assert (root / RULE).exists() and (root / HELPER).exists()
    tuning.undo(DATA, Machine(root))
    assert everything(root) == before


@pytest.mark.parametrize(
    ("directory", "number", "line"),
    [
        (Path("/mnt/with blank\\"), 4, b"server:/a\\040b  /mnt/with\\040blank\\134 nfs defaults,"
         b"rsize=65536,wsize=8192"),
        (Path("/mnt/\udcff\udcfe"), 5, b"server:/x /mnt/\xff\xfe nfs rsize=65536,wsize=8192"),
        (Path("/mnt/last"), 7, b"server:/last /mnt/last nfs rsize=65536,ro,wsize=8192 0 0"),
    ],
)  # fmt: skip
def test_lines_of_all_kinds(root: Path, directory: Path, number: int, line: bytes) -> None:
    tuning.apply(
        tuning.TuneRequest(directory, rsize=65536, wsize=8192, read_ahead=16), Machine(root)
    )
    assert lines(root)[number] == line
    assert [Path(row.directory) for row in tune_state.load(Machine(root)) or []] == [directory]
    tuning.undo(None, Machine(root))
    assert (root / "etc/fstab").read_bytes() == FSTAB


def test_applying_again_still_remembers_the_first_line(root: Path) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536, wsize=65536), Machine(root))
    tuning.apply(tuning.TuneRequest(DATA, rsize=131072, read_ahead=1), Machine(root))
    assert b"rsize=131072,hard\t" in lines(root)[3]
    assert len(tune_state.load(Machine(root)) or []) == 1
    tuning.undo(DATA, Machine(root))
    assert (root / "etc/fstab").read_bytes() == FSTAB


def test_rule_stays_as_long_as_a_mount_needs_it(root: Path) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536, read_ahead=4), Machine(root))
    tuning.apply(tuning.TuneRequest(Path("/mnt/last"), rsize=65536, read_ahead=4), Machine(root))
    tuning.undo(DATA, Machine(root))
    assert (root / RULE).exists()
    tuning.undo(Path("/mnt/last"), Machine(root))
    assert not (root / RULE).exists() and not (root / HELPER).parent.exists()
    assert not tune_state.path(Machine(root)).exists()


def test_refuses_a_line_that_somebody_changed(root: Path) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536), Machine(root))
    changed = (root / "etc/fstab").read_bytes().replace(b",hard", b",soft")
    (root / "etc/fstab").write_bytes(changed)
    with pytest.raises(MismatchError, match=r"hard.*soft"):
        tuning.undo(DATA, Machine(root))
    assert (root / "etc/fstab").read_bytes() == changed
    assert tune_state.load(Machine(root)), "what is needed to undo was lost"
    with pytest.raises(MismatchError):
        tuning.apply(tuning.TuneRequest(DATA, rsize=131072), Machine(root))
    assert (root / "etc/fstab").read_bytes() == changed


def test_a_changed_line_does_not_keep_other_mounts_tuned(root: Path) -> None:
    """The mount in the middle cannot be restored, the mounts before and after it can."""
    others = (Path("/mnt/with blank\\"), Path("/mnt/last"))
    for directory in (others[0], DATA, others[1]):
        tuning.apply(tuning.TuneRequest(directory, rsize=65536, read_ahead=4), Machine(root))
    changed = (root / "etc/fstab").read_bytes().replace(b",hard", b",soft")
    (root / "etc/fstab").write_bytes(changed)
    with pytest.raises(tuning.PartlyUndoneError, match=r"/mnt/data is still tuned.*hard") as error:
        tuning.undo(None, Machine(root))
    assert [Path(row.directory) for row in error.value.undone] == [*others]
    assert "restored: /mnt/with blank\\, /mnt/last" in str(error.value)
    assert [Path(row.directory) for row in tune_state.load(Machine(root)) or []] == [DATA]
    expected = FSTAB.replace(b",rsize=32768,hard", b",rsize=65536,soft")
    assert (root / "etc/fstab").read_bytes() == expected
    assert (root / RULE).exists()


def test_undoing_lists_what_undo_changes_and_changes_nothing(root: Path) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536), Machine(root))
    tuning.apply(tuning.TuneRequest(Path("/mnt/last"), rsize=65536, read_ahead=4), Machine(root))
    before = everything(root)
    lines_before = [line.decode(errors="surrogateescape") for line in FSTAB.split(b"\n")]
    changes, failures = tuning.undoing(None, Machine(root))
    assert changes == [
        f"restore in {root}/etc/fstab: {lines_before[3]}",
        f"restore in {root}/etc/fstab: {lines_before[7]}",
        f"remove {root / RULE}",
        f"remove {root / HELPER}",
    ]
    assert not failures
    assert tuning.undoing(DATA, Machine(root))[0] == changes[:1]
    (root / "etc/fstab").write_bytes((root / "etc/fstab").read_bytes().replace(b",hard", b",soft"))
    changes, failures = tuning.undoing(None, Machine(root))
    assert (len(changes), [*failures]) == (3, [str(DATA)])
    (root / "etc/fstab").write_bytes(FSTAB)
    assert tuning.undoing(DATA, Machine(root)) == ([], {})
    (root / "etc/fstab").write_bytes(before[str(root / "etc/fstab")][1])
    assert everything(root) == before


@pytest.mark.parametrize("wanted", [b"", FSTAB])
def test_nothing_to_put_back_when_the_line_is_gone_or_as_before(root: Path, wanted: bytes) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536), Machine(root))
    (root / "etc/fstab").write_bytes(wanted)
    tuning.undo(DATA, Machine(root))
    assert (root / "etc/fstab").read_bytes() == wanted


def test_refuses_what_it_cannot_do(root: Path) -> None:
    before = everything(root)
    with pytest.raises(UserError, match="no mount unit"):
        tuning.apply(tuning.TuneRequest(Path("/mnt/none"), rsize=65536), Machine(root))
    with pytest.raises(UserError, match="give --rsize or mount"):
        tuning.apply(tuning.TuneRequest(DATA, read_ahead=4), Machine(root))
    with pytest.raises(UserError, match="nothing is tuned for /mnt/none"):
        tuning.undo(Path("/mnt/none"), Machine(root))
    with pytest.raises(UserError, match="Linux would round it"):
        tuning.TuneRequest(DATA, rsize=5000)
    (root / "etc/fstab").write_bytes(FSTAB + b"\nserver:/2 /mnt/data nfs rw 0 0\n")
    with pytest.raises(UserError, match="2 lines"):
        tuning.apply(tuning.TuneRequest(DATA, rsize=65536), Machine(root))
    (root / "etc/fstab").write_bytes(FSTAB)
    assert everything(root) == before


def test_failure_on_the_way_takes_everything_back(root: Path) -> None:
    before = everything(root)
    (root / "etc/udev/rules.d").rmdir()
    (root / "etc/udev/rules.d").write_text("a file in the way")
    with pytest.raises(UserError, match=r"cannot write .*rules\.d/99-zz-nfsrdma.rules: "):
        tuning.apply(tuning.TuneRequest(DATA, rsize=65536, read_ahead=4), Machine(root))
    (root / "etc/udev/rules.d").unlink()
    (root / "etc/udev/rules.d").mkdir()
    assert everything(root) == before


READ_ONLY = """
import sys
from pathlib import Path
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.tune import tuning
root, mount = map(Path, sys.argv[1:])
host = Machine(root)
values = tuning.TuneRequest(mount, rsize=65536, read_ahead=4)
for change in (lambda: tuning.apply(values, host), lambda: tuning.undo(None, host)):
    try:
        change()
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize("tuned", [False, True])
def test_a_read_only_etc_is_one_line(root: Path, tuned: bool) -> None:
    other = Path("/mnt/last")
    if tuned:
        for mount in (DATA, other):
            tuning.apply(tuning.TuneRequest(mount, rsize=131072, read_ahead=4), Machine(root))
    before = everything(root)
    bind = 'mount --bind "$1/etc" "$1/etc"; mount -o remount,ro,bind "$1/etc"; '
    bind += 'exec "$0" -c "$3" "$1" "$2"'
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of mounts here")
    words = ("unshare", "-rm", "sh", "-ec", bind, sys.executable, root, DATA, READ_ONLY)
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    applied, undone = done.stdout.splitlines()
    assert applied == f"cannot write {root}/etc/fstab: Read-only file system"
    if tuned:
        assert f"{DATA} is still tuned: cannot write" in undone
        assert f"{other} is still tuned: cannot write" in undone
    else:
        assert "nothing is tuned" in undone
    assert everything(root) == before


def test_show_names_a_damaged_state(root: Path) -> None:
    tune_state.path(Machine(root)).parent.mkdir()
    tune_state.path(Machine(root)).write_text('{"mounts": [{"no": 1}]}')
    with pytest.raises(UserError, match=r"tune\.json is damaged"):
        tuning.show(Machine(root))


def test_root_runs_the_systems_python_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `uv tool install` by a user, this interpreter and its folder belong to the user."""
    monkeypatch.setattr("sys.executable", str(root / "home/user/bin/python3"))
    tuning.apply(tuning.TuneRequest(DATA, read_ahead_kb=64), Machine(root))
    assert 'PROGRAM="/usr/bin/python3 -IS /' in (root / RULE).read_text()
    # Python 3.9, of RHEL 9, is the oldest of a supported distribution
    ast.parse((root / HELPER).read_text(), feature_version=(3, 9))


def test_the_rule_needs_a_python_of_the_system(root: Path) -> None:
    (root / "usr/bin/python3").unlink()
    before = everything(root)
    with pytest.raises(UserError, match=r"usr/bin/python3 does not exist.*install"):
        tuning.apply(tuning.TuneRequest(DATA, rsize=65536, read_ahead=4), Machine(root))
    assert everything(root) == before


def test_rule_names_no_mount_and_sorts_after_nfs_utils(root: Path) -> None:
    hostile = root / "etc/fstab"
    hostile.write_bytes(b'server:/x /mnt/$(id)";RUN+="/bin/sh nfs rw 0 0\n')
    tuning.apply(
        tuning.TuneRequest(Path('/mnt/$(id)";RUN+="/bin/sh'), rsize=65536, read_ahead=1),
        Machine(root),
    )
    rule = (root / RULE).read_text()
    assert "mnt" not in rule and rule.count("\n") == 2
    assert 'KERNEL=="0:*"' in rule and f"/{HELPER} %k" in rule
    assert RULE.name > "99-nfs.rules" and "-IS" in rule


OPTION = st.text(st.characters(exclude_characters=',"', exclude_categories=["Cs"]), min_size=1)


@given(st.lists(OPTION), st.integers(1024, 1 << 20))
def test_other_options_stay_in_their_order(options: list[str], size: int) -> None:
    after = fstab.with_sizes(",".join(options), size, None).split(",")
    others = [option for option in options if option.partition("=")[0] != "rsize"]
    assert [option for option in after if option.partition("=")[0] != "rsize"] == others
    assert after.count(f"rsize={size}") == 1


def test_commas_between_quotes_do_not_split() -> None:
    options = 'context="system_u:object_r:nfs_t:s0:c1,rsize=1",ro'
    assert fstab.with_sizes(options, 4096, None) == f"{options},rsize=4096"


UNIT = """# /etc/systemd/system/mnt-data.mount
[Unit]
Options=not this
[Mount]
What=server:/export
Options=ro
# /etc/systemd/system/mnt-data.mount.d/10.conf
[Mount]
Options = proto=rdma,\\
  x-systemd.device-timeout=5%%
"""


def test_the_last_options_of_a_unit_count() -> None:
    assert tune_definition.is_written_by_hand(UNIT)
    text = tune_definition.dropin_text(UNIT, 65536, None)
    assert text.endswith(
        "[Mount]\nOptions=proto=rdma,   x-systemd.device-timeout=5%%,rsize=65536\n"
    )


@pytest.mark.parametrize("text", ["", "# /run/systemd/generator/mnt-data.mount\n[Mount]\n"])
def test_units_made_of_fstab_are_not_units_by_hand(text: str) -> None:
    assert not tune_definition.is_written_by_hand(text)


@pytest.mark.parametrize(
    ("fstype", "source", "mounted"),
    [
        ("auto", "server:/export", "nfs"),
        ("", "server.example.com:/", "nfs"),
        ("auto", "[2001:db8::1]:/a\nb", "nfs"),
        ("nfs4", "server:/export", "nfs4"),
        ("fuse.sshfs", "server:/export", "fuse.sshfs"),
        ("auto,ext4", "server:/export", "auto,ext4"),
        ("auto", "/dev/disk/by-path/pci-0000:00:1f.2-ata-2", "auto"),
        ("auto", "/odd:/name", "auto"),
        ("auto", "LABEL=odd:/name", "auto"),
        ("auto", "//server/share", "auto"),
        ("", "server", ""),
    ],
)
def test_mount_takes_a_source_with_a_host_for_nfs(fstype: str, source: str, mounted: str) -> None:
    assert fstab.mounted_type(fstype, source) == mounted


def test_a_line_of_type_auto_is_tuned(root: Path) -> None:
    text = FSTAB + b"\nserver:/guessed /mnt/guessed auto rw 0 0\n/dev/sr0 /mnt/cd auto ro 0 0\n"
    (root / "etc/fstab").write_bytes(text)
    tuning.apply(tuning.TuneRequest(Path("/mnt/guessed"), rsize=131072), Machine(root))
    assert lines(root)[8] == b"server:/guessed /mnt/guessed auto rw,rsize=131072 0 0"
    tuning.undo(Path("/mnt/guessed"), Machine(root))
    assert (root / "etc/fstab").read_bytes() == text
    with pytest.raises(UserError, match="mounts NFS on /mnt/cd"):
        tuning.apply(tuning.TuneRequest(Path("/mnt/cd"), rsize=131072), Machine(root))


MOUNTINFO = (
    "22 1 254:1 / / rw,relatime - ext4 /dev/vda rw\n"
    "61 22 0:45 / /mnt/data rw shared:1 master:2 - nfs4 server:/export rw,vers=4.2\n"
    "62 22 0:46 / /mnt/it\\040is\\012here\\134 rw - nfs server:/export rw,vers=3\n"
    "63 22 0:47 / /mnt/tmp rw - tmpfs tmpfs rw\n"
    "64 22 0:48 / /mnt/other rw - nfs server:/other rw\n"
)
VOLUMES = (Path(__file__).parents[2] / "data" / "nfsfs-volumes-6.1.txt").read_text()
TUNED = {"/mnt/data": 4096, "/mnt/it is\nhere\\": 0, "/mnt/tmp": 64, "/mnt/other": None}


@pytest.mark.parametrize(
    ("device", "stdout", "status"),
    [("0:45", "4096\n", 0), ("0:46", "0\n", 0), ("0:47", "", 1), ("0:48", "", 1), ("0:99", "", 1)],
)
def test_udev_helper_knows_tuned_mounts_only(
    tmp_path: Path, device: str, stdout: str, status: int
) -> None:
    config, mountinfo = tmp_path / "tune.json", tmp_path / "mountinfo"
    rows = [{"directory": path, "read_ahead_kb": kib} for path, kib in TUNED.items()]
    config.write_text(json.dumps({"mounts": rows}))
    volumes = tmp_path / "volumes"
    mountinfo.write_text(MOUNTINFO)
    volumes.write_text(VOLUMES.replace("0:44", "0:46"))
    argv = [sys.executable, "-IS", udev_helper.__file__, device]
    argv += map(str, (config, mountinfo, volumes))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (stdout, status)
    assert not done.stderr


def test_udev_helper_without_a_state_file_says_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-IS", udev_helper.__file__, "0:45", str(tmp_path / "none")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1


class Poll:
    """select.poll on a clock of its own; a mount appears when it shows ``then``."""

    def __init__(self, mountinfo: Path, appears_at: float = math.inf) -> None:
        self.now, self.mountinfo, self.appears_at = 0.0, mountinfo, appears_at

    def register(self, *_: object) -> None: ...

    def poll(self, ms: int) -> list[object]:
        self.now += ms / 1000
        if self.now < self.appears_at:
            return []
        self.mountinfo.write_text(MOUNTINFO)
        return [self]


@pytest.mark.parametrize(
    ("device", "volumes", "appears_at", "seconds", "expected"),
    [
        # FUSE has a bdi of the same kind, and so has an NFS of another network namespace
        ("0:50", VOLUMES, math.inf, 0.0, []),
        ("0:50", None, math.inf, 0.0, []),
        ("0:45", VOLUMES, 0.5, 0.5, ["/mnt/data"]),
        ("0:45", VOLUMES, math.inf, 5.0, []),
    ],
)
def test_udev_helper_waits_for_nfs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, volumes: str | None,
    appears_at: float, seconds: float, expected: list[str],
) -> None:  # fmt: skip
    mountinfo, listed = tmp_path / "mountinfo", tmp_path / "volumes"
    mountinfo.write_text("")
    if volumes:
        listed.write_text(volumes)
    poll = Poll(mountinfo, appears_at)
    monkeypatch.setattr("select.poll", lambda: poll)
    monkeypatch.setattr("time.monotonic", lambda: poll.now)
    monkeypatch.setattr("os.path.exists", lambda _: True)
    assert udev_helper.wait_for(device, str(mountinfo), str(listed)) == expected
    assert poll.now == seconds


@pytest.fixture
def refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files below ``root`` are those of the host, whose udev and systemd fail on request."""
    monkeypatch.setattr(tuning, "SLASH", root)
    monkeypatch.setattr(tune_definition, "SYSTEMD", root)
    programs = root.parent / f"{root.name}-programs"
    programs.mkdir()
    for name in ("udevadm", "systemctl"):
        (programs / name).write_text(
            f'#!/bin/sh\necho "$@" >> {programs}/ran\ntest ! -e {programs}/broken-{name}\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


@pytest.mark.parametrize("broken", ["udevadm", "systemctl"])
def test_a_refused_reload_reverts_apply(root: Path, refused: Path, broken: str) -> None:
    before = everything(root)
    (refused / f"broken-{broken}").touch()
    with pytest.raises(UserError, match=rf"{broken} .*exited with status 1") as caught:
        tuning.apply(tuning.TuneRequest(DATA, rsize=65536, read_ahead_kb=64), Machine(root))
    assert str(caught.value).count("exited with status 1") == 1
    assert everything(root) == before
    with pytest.raises(UserError, match="nothing is tuned"):
        tuning.undo(None, Machine(root))


@pytest.mark.parametrize("broken", ["udevadm", "systemctl"])
def test_a_refused_reload_does_not_keep_a_mount_tuned(
    root: Path, refused: Path, broken: str
) -> None:
    before = everything(root)
    for directory in (DATA, Path("/mnt/last")):
        tuning.apply(tuning.TuneRequest(directory, rsize=65536, read_ahead_kb=64), Machine(root))
    (refused / f"broken-{broken}").touch()
    with pytest.raises(tuning.PartlyUndoneError, match=rf"{broken} .*status 1.*restored") as caught:
        tuning.undo(None, Machine(root))
    assert [row.directory for row in caught.value.undone] == ["/mnt/data", "/mnt/last"]
    assert not caught.value.failures
    assert everything(root) == before
    with pytest.raises(UserError, match="nothing is tuned"):
        tuning.undo(None, Machine(root))


@pytest.mark.parametrize("broken", ["udevadm", "systemctl"])
def test_a_refused_reload_keeps_the_first_values(root: Path, refused: Path, broken: str) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536, read_ahead_kb=64), Machine(root))
    tuned = everything(root)
    (refused / f"broken-{broken}").touch()
    with pytest.raises(UserError, match=f"{broken} "):
        tuning.apply(tuning.TuneRequest(DATA, rsize=131072, read_ahead_kb=128), Machine(root))
    assert everything(root) == tuned


def test_only_what_reads_a_changed_file_reloads(root: Path, refused: Path) -> None:
    tuning.apply(tuning.TuneRequest(DATA, rsize=65536), Machine(root))
    assert (refused / "ran").read_text() == "daemon-reload\n"
    tuning.apply(tuning.TuneRequest(Path("/mnt/last"), read_ahead_kb=64), Machine(root))
    assert (refused / "ran").read_text() == "daemon-reload\ncontrol --reload\n"


@pytest.mark.parametrize(
    "tuned",
    [
        None,
        tuning.TuneRequest(DATA, rsize=32768, read_ahead_kb=64),
        tuning.TuneRequest(DATA, wsize=8192),
    ],
)
@pytest.mark.parametrize(
    "request_",
    [
        tuning.TuneRequest(DATA, rsize=131072, read_ahead_kb=256),
        tuning.TuneRequest(DATA, rsize=131072),
        tuning.TuneRequest(DATA, read_ahead_kb=256),
    ],
)
def test_dry_run_prints_the_changes_that_apply_makes(
    root: Path, refused: Path, tuned: tuning.TuneRequest | None, request_: tuning.TuneRequest
) -> None:
    if tuned:
        tuning.apply(tuned, Machine(root))
    (refused / "ran").unlink(missing_ok=True)
    before = everything(root)
    changes = tuning.applying(request_, Machine(root))
    assert everything(root) == before
    assert not (refused / "ran").exists()
    tuning.apply(request_, Machine(root))
    after, state = everything(root), str(tune_state.path(Machine(root)))
    for change in changes:
        if isinstance(change, FileChange):
            for text, there in ((change.before, before), (change.after, after)):
                bytes_ = there.get(str(change.path), (0, None))[1]
                assert bytes_ == (None if text is None else text.encode(errors="surrogateescape"))
    files = {path for path, (_, text) in (before | after).items() if text and path != state}
    assert {path for path in files if before.get(path) != after.get(path)} == {
        str(change.path) for change in changes if isinstance(change, FileChange)
    }
    ran = dict.fromkeys((refused / "ran").read_text().splitlines())
    steps = [change.split(" ", 2)[2] for change in changes if isinstance(change, str)]
    assert sorted(steps) == sorted(ran)


def test_dry_run_needs_no_root_and_prints_a_diff(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(tune_cli, "_require_root", pytest.fail)
    changes = tuning.applying(tuning.TuneRequest(DATA, rsize=131072), Machine(root))
    monkeypatch.setattr(tuning, "applying", lambda *_, **__: changes)
    monkeypatch.setattr(tuning, "apply", pytest.fail)
    tune_cli.apply(mount=DATA, rsize="128k", dry_run=True)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == [
        f"would change {root}/etc/fstab",
        f"--- {root}/etc/fstab",
        f"+++ {root}/etc/fstab",
    ]
    changed = [line.split() for line in printed[3:] if line[0] in "+-"]
    assert [(words[0][0], words[3].split(",")[2]) for words in changed] == [
        ("-", "rsize=32768"), ("+", "rsize=131072"),
    ]  # fmt: skip


def test_dry_run_has_the_errors_of_apply(root: Path) -> None:
    with pytest.raises(UserError, match="mounts NFS on /mnt/none"):
        tuning.applying(tuning.TuneRequest(Path("/mnt/none"), rsize=65536), Machine(root))
    (root / "usr/bin/python3").unlink()
    with pytest.raises(UserError, match="the udev rule needs it"):
        tuning.applying(tuning.TuneRequest(DATA, read_ahead_kb=64), Machine(root))


def test_a_lock_on_etc_blocks_nothing(root: Path) -> None:
    with try_folder_lock(root / "etc"):
        tuning.apply(tuning.TuneRequest(DATA, rsize=65536), Machine(root))
        tuning.undo(DATA, Machine(root))


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("/", "-.mount"),
        ("/srv/data-raw", "srv-data\\x2draw.mount"),
        ("//srv/./a b/", "srv-a\\x20b.mount"),
        ("/.hidden/.x", "\\x2ehidden-.x.mount"),
        ("/mnt/fü:_", "mnt-f\\xc3\\xbc:_.mount"),
        ("/mnt/\udcff", "mnt-\\xff.mount"),
    ],
)
def test_a_mount_has_the_unit_name_of_systemd(directory: str, name: str) -> None:
    assert units.unit_name(directory) == name
