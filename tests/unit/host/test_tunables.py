# SPDX-License-Identifier: Apache-2.0
import errno
import os
import stat
from pathlib import Path

import pytest
from unit.files_made import write

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.tunables import Tunable, is_local
from nfsrdma_tools.undo import journal

SYSCTL = "proc/sys/sunrpc/rdma_max_inline_read"
PARAMETER = "sys/module/rpcrdma/parameters/deep.knob"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    for path, value in ((SYSCTL, "4096\n"), (PARAMETER, "N\n")):
        write(tmp_path, path, value)
    return tmp_path


def test_a_sysctl_comes_before_a_module_parameter(root: Path) -> None:
    assert Tunable.parse("sunrpc.rdma_max_inline_read", Machine(root)).get() == "4096"
    assert Tunable.parse("rpcrdma.deep.knob", Machine(root)).get() == "N"


def test_set_is_read_back_and_taken_back(root: Path) -> None:
    tunable = Tunable.parse("sunrpc.rdma_max_inline_read", Machine(root))
    with journal() as book:
        assert tunable.set("8192", book) == "8192"
        assert (root / SYSCTL).read_text() == "8192"
    assert tunable.get() == "4096"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("nfsd.threads", "proc/fs/nfsd/threads"),
        ("nfsd.io_cache_read", "sys/kernel/debug/nfsd/io_cache_read"),
        ("nfsd.disable-splice-read", "sys/kernel/debug/nfsd/disable-splice-read"),
    ],
)
def test_files_of_nfsd_are_tunables(root: Path, name: str, path: str) -> None:
    tunable = Tunable.parse(f"server:{name}", Machine(root))
    with pytest.raises(UserError, match="there is no tunable"):
        tunable.get()
    write(root, path, "8\n")
    with journal() as book:
        assert tunable.set("16", book) == "16"
    assert tunable.get() == "8"


def test_other_files_of_nfsd_are_none(root: Path) -> None:
    """A write to unlock_ip or portlist is no setting."""
    (root / "proc/fs/nfsd").mkdir(parents=True)
    for name in ("unlock_ip", "portlist"):
        (root / "proc/fs/nfsd" / name).touch()
        with pytest.raises(UserError, match="there is no tunable"):
            Tunable.parse(f"nfsd.{name}", Machine(root)).get()


# stops and starts a server whose files are below the folder $NFSD, as systemd does the real one
SYSTEMCTL = r"""#!/bin/sh
echo "$1" >> "$NFSD/log"
case $1 in
is-active) test -e "$NFSD/up" ;;
stop) rm -f "$NFSD/up"; echo 0 > "$NFSD/threads"; : > "$NFSD/portlist" ;;
start) touch "$NFSD/up"; echo 8 > "$NFSD/threads"; echo "tcp 2049" > "$NFSD/portlist" ;;
esac
"""


@pytest.fixture
def nfsd(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a running nfsd with 16 threads, and a listener made by hand."""
    folder = root / "proc/fs/nfsd"
    folder.mkdir(parents=True)
    (root / "systemctl").write_text(SYSTEMCTL)
    (root / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")
    monkeypatch.setenv("NFSD", str(folder))
    (folder / "up").touch()
    texts = {"max_block_size": "1048576", "threads": "16", "portlist": "tcp 2049\nnfr 20050"}
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def test_the_largest_block_is_set_while_nfsd_is_stopped(root: Path, nfsd: Path) -> None:
    tunable = Tunable.parse("server:nfsd.max_block_size", Machine(root))
    with journal() as book:
        assert tunable.set("262144", book) == "262144"
        calls = (nfsd / "log").read_text().split()
        assert [call for call in calls if call != "is-active"] == ["stop", "reset-failed", "start"]
        # another number of threads for this trial: the undo restores the one of before
        (nfsd / "threads").write_text("64\n")
    assert tunable.get() == "1048576"
    assert (nfsd / "threads").read_text().strip() == "16"
    # a file, unlike the kernel's, has only the line that was written last
    assert (nfsd / "portlist").read_text() == "nfr 20050\n"


def test_an_undo_of_the_largest_block_starts_a_stopped_nfsd(root: Path, nfsd: Path) -> None:
    """As after a kill -9 between stop and start; and what runs twice does nothing more."""
    tunable = Tunable.parse("nfsd.max_block_size", Machine(root))
    with journal() as book:
        tunable.set("262144", book)
        (undo,) = book.actions
        (nfsd / "up").unlink()
        undo.undo()
        assert (nfsd / "up").exists()
        assert tunable.get() == "1048576"
        starts = (nfsd / "log").read_text().split().count("start")
    assert (nfsd / "log").read_text().split().count("start") == starts


def test_a_refused_largest_block_leaves_nfsd_running(root: Path, nfsd: Path) -> None:
    (nfsd / "max_block_size").unlink()
    (nfsd / "max_block_size").mkdir()
    tunable = Tunable.parse("nfsd.max_block_size", Machine(root))
    with pytest.raises(UserError, match="max_block_size"):
        tunable._put(str(nfsd / "max_block_size"), "1")
    assert (nfsd / "up").exists()


def test_the_largest_block_needs_an_nfsd_of_systemd(root: Path, nfsd: Path) -> None:
    (nfsd / "up").unlink()
    with pytest.raises(UserError, match="does not run on the server"), journal() as book:
        Tunable.parse("nfsd.max_block_size", Machine(root)).set("262144", book)
    assert "stop" not in (nfsd / "log").read_text()
    assert (nfsd / "max_block_size").read_text() == "1048576\n"


def test_an_empty_value_is_written_as_a_line(root: Path) -> None:
    """The kernel does not see a write of no bytes: the list would keep its old value."""
    (root / PARAMETER).write_text("\n")
    tunable = Tunable.parse("rpcrdma.deep.knob", Machine(root))
    with journal() as book:
        assert tunable.set("cached", book) == "cached"
        assert tunable.set("", book) == ""
        assert (root / PARAMETER).read_text() == "\n"
        tunable.set("cached", book)
    assert (root / PARAMETER).read_text() == "\n"


def test_several_numbers_are_compared_as_numbers_not_as_blanks(root: Path) -> None:
    (root / SYSCTL).write_text("4096\t131072\t6291456\n")
    with journal() as book:
        assert Tunable.parse("sunrpc.rdma_max_inline_read", Machine(root)).set(
            "4096 131072 6291456", book
        )
        assert book.actions == []


def test_a_kernel_that_clamps_is_an_error_with_both_values(root: Path) -> None:
    tunable = Tunable.parse("sunrpc.rdma_max_inline_read", Machine(root))

    class Clamping(Tunable):
        def _write(self, path: str, value: str) -> None:
            Path(path).write_text("65536\n")

    clamping = Clamping(tunable.name, machine=Machine(root))
    with pytest.raises(MismatchError, match="requested 99999, got 65536"), journal() as book:
        clamping.set("99999", book)
    assert tunable.get() == "4096"


def test_a_kernel_that_refuses_a_value_is_the_same_error(root: Path) -> None:
    class Refusing(Tunable):
        def _put(self, path: str, value: str) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with pytest.raises(MismatchError, match="requested 1, got 4096"), journal() as book:
        Refusing("sunrpc.rdma_max_inline_read", machine=Machine(root)).set("1", book)


def test_a_refusal_is_a_clear_error(root: Path) -> None:
    (root / SYSCTL).unlink()
    (root / SYSCTL).symlink_to("/dev/full")
    with pytest.raises(UserError), journal() as book:
        Tunable.parse("sunrpc.rdma_max_inline_read", Machine(root)).set("1", book)
    with pytest.raises(UserError, match=r"no tunable sunrpc\.none"):
        Tunable.parse("sunrpc.none", Machine(root)).get()


@pytest.mark.parametrize(
    "text",
    ["", "x", "../../etc/passwd", "a./b", "a..b", "a.b;reboot", "a.$(x)", "a.b c", "a.b\n",],
)  # fmt: skip
def test_hostile_names_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a tunable name"):
        Tunable.parse(text)


def test_the_servers_tunables_are_local_when_the_server_is(root: Path) -> None:
    tunable = Tunable.parse("server:sunrpc.rdma_max_inline_read", Machine(root))
    assert str(tunable) == "server:sunrpc.rdma_max_inline_read"
    assert tunable.on("127.0.0.1").get() == "4096"
    with pytest.raises(UserError, match="--server-ssh"):
        tunable.on("192.0.2.1")
    with pytest.raises(UserError, match="--server-ssh"):
        tunable.on("192.0.2.1", "-oProxyCommand=reboot")
    assert tunable.on("192.0.2.1", "root@host").ssh == "root@host"


def test_a_client_tunable_stays_on_the_client(root: Path) -> None:
    assert Tunable.parse("a.b", Machine(root)).on("192.0.2.1", "host").ssh == ""


def test_over_ssh(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # an ssh that runs what a login shell on the other side would be given
    fake = root / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    tunable = Tunable.parse("server:sunrpc.rdma_max_inline_read", Machine(root)).on(
        "192.0.2.1", "host"
    )
    hostile = "$(touch pwned) `touch pwned` ; touch pwned 'x"
    with journal() as book:
        assert tunable.set(hostile, book) == hostile
    assert tunable.get() == "4096"
    assert not list(Path().glob("pwned"))


def test_local_is_what_can_be_bound() -> None:
    assert is_local("localhost")
    assert not is_local("192.0.2.1")
    assert not is_local("no such host")
