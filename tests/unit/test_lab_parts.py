# SPDX-License-Identifier: Apache-2.0
import contextlib
import importlib.resources
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import cleanup, nodes, paths, qemu, snapshot
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.console import Console, EmulatorFaultError, KernelReportError
from nfsrdma_tools.lab.debian_packages import parse_targets, sources
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.kernels import Kernel
from nfsrdma_tools.lab.machine import Hardware, Lan, Machine, qemu_argv
from nfsrdma_tools.lab.nodes import pack
from nfsrdma_tools.lab.qemu import Monitor
from nfsrdma_tools.lab.ssh import Ssh
from nfsrdma_tools.lock import try_file_lock, try_folder_lock

REPORTS = [
    "[   12.3] Oops: general protection fault, probably for address 0x1: 0000 [#1] SMP",
    "[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "[   12.3] WARNING: CPU: 1 PID: 77 at net/sunrpc/xprt.c:100 xprt_release+0x1/0x2",
    "[   12.3] WARNING: possible circular locking dependency detected",
    "[   12.3] INFO: task kworker/0:1:9 blocked for more than 120 seconds.",
    "[   12.3] Kernel panic - not syncing: Fatal exception",
    "[   12.3] BUG: KASAN: slab-use-after-free in rpcrdma_reply_put+0x1/0x2",
    "[   12.3] BUG: KCSAN: data-race in nfr_post [nfsrdma] / nfr_reply [nfsrdma]",
    "[   12.3] BUG nfsrdma_call (Tainted: G           OE     ): Objects remaining on shutdown",
    "[   12.3] BUG: sleeping function called from invalid context at mm/slab.h:321",
    "[   12.3] [ BUG: Invalid wait context ]",
    "[   12.3] BUG: MAX_LOCKDEP_CHAINS too low!",
    "[   12.3] WARNING: inconsistent lock state",
    "[   12.3] WARNING: suspicious RCU usage",
    "[   12.3] WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected",
    "[   12.3] WARNING: bad unlock balance detected!",
    "[   12.3] WARNING: held lock freed!",
    "[   12.3] WARNING: lock held when returning to user space!",
    "[   12.3] WARNING: nfsd/77 still has locks held!",
    "[   12.3] INFO: trying to register non-static key.",
    "[   12.3] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
    "[   12.3] kmemleak: Kernel memory leak detector disabled",
    "[   12.3] kmemleak: Memory pool empty, consider increasing CONFIG_DEBUG",
    "[   12.3] DMA-API: virtio-pci 0000:00:03.0: cacheline tracking ENOMEM, dma-debug disabled",
    "[   12.3] DMA-API: debugging out of memory - disabling",
    "[   12.3] ODEBUG: free active (active state 0) object: 00000000 object type: work_struct",
    "[   12.3] list_del corruption. prev->next should be ffff8880, but was dead4ead. (prev=f)",
]


@pytest.mark.parametrize("line", REPORTS)
def test_a_report_on_the_console_is_seen_once(line: str, tmp_path: Path) -> None:
    log = tmp_path / "console"
    end = "[   12.4] ---[ end trace 0000000000000000 ]---"
    log.write_text(f"[   12.2] all is well\n{line}\n[   12.4]  in this function\n{end}\n")
    console = Console("server", log)
    with pytest.raises(KernelReportError, match=r"server reports.*in this function"):
        console.check()
    console.check()


OOPS = """[   12.3] Oops: {kind}: 0000 [#1] PREEMPT SMP NOPTI
[   12.3] RIP: 0010:kmalloc+0xd9/0x430
[   12.3] Code: 48 c7 45 c0 00 00 00 {before} <49> 8b 06 65 48 03
[   12.3] RSP: 0018:ff42cddc006d7c40 EFLAGS: {flags}
[   12.3] ---[ end trace 0000000000000000 ]---
"""


@pytest.mark.parametrize(
    ("kind", "before", "flags", "found"),
    [
        ("double fault", "00", "c66f6202", "EFLAGS c66f6202 is impossible"),
        ("general protection fault", "00", "00000244", "EFLAGS 00000244 is impossible"),
        ("int3", "0f", "00000246", "a breakpoint executed where memory has 0f"),
    ],
)
def test_what_no_processor_does_is_the_emulators_fault(
    kind: str, before: str, flags: str, found: str, tmp_path: Path
) -> None:
    log = tmp_path / "console"
    log.write_text(OOPS.format(kind=kind, before=before, flags=flags))
    with pytest.raises(EmulatorFaultError, match=f"emulator of server failed: {found}"):
        Console("server", log).check()


LOST_TIMER = """[ {time}.28] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
[ {time}.28] rcu: \tPossible timer handling issue on cpu=0 timer-softirq=39
"""


def test_a_timer_interrupt_is_lost_when_it_is_missed_twice(tmp_path: Path) -> None:
    """Once may be the host's: a processor that it did not run for as long."""
    log = tmp_path / "console"
    console = Console("server", log)
    log.write_text(LOST_TIMER.format(time=107))
    console.check()
    with log.open("a") as file:
        file.write(LOST_TIMER.format(time=128))
    with pytest.raises(EmulatorFaultError, match="processor 0 gets no timer interrupt"):
        console.check()


def test_a_boot_that_the_emulator_failed_is_done_again() -> None:
    boots, said = iter((EmulatorFaultError("no timer"), None)), list[str]()

    def boot() -> None:
        if fault := next(boots):
            raise fault

    snapshot._boot_again(boot, said.append)
    assert said == ["no timer: booting again"]


def test_a_boot_that_the_emulator_fails_three_times_is_an_error() -> None:
    boots = []

    def boot() -> None:
        boots.append(1)
        raise EmulatorFaultError("no timer")

    with pytest.raises(EmulatorFaultError):
        snapshot._boot_again(boot, lambda text: None)
    assert len(boots) == 3


@pytest.mark.parametrize(
    ("kind", "before", "flags"), [("double fault", "00", "003f7fd7"), ("int3", "cc", "00000246")]
)
def test_what_a_processor_may_do_is_the_kernels_fault(
    kind: str, before: str, flags: str, tmp_path: Path
) -> None:
    log = tmp_path / "console"
    log.write_text(OOPS.format(kind=kind, before=before, flags=flags))
    with pytest.raises(KernelReportError, match="the kernel of server reports") as met:
        Console("server", log).check()
    assert not isinstance(met.value, EmulatorFaultError)


def test_an_oops_is_judged_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "console"
    lines = OOPS.format(kind="double fault", before="00", flags="c66f6202").splitlines(True)
    log.write_text(lines[0])

    def rest() -> None:
        with log.open("a") as file:
            file.writelines(lines[1:])

    later = threading.Timer(0.2, rest)
    later.start()
    with pytest.raises(EmulatorFaultError, match="EFLAGS c66f6202"):
        Console("server", log).check()
    later.join()


def test_an_oops_without_an_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfsrdma_tools.lab.console._OOPS_SECONDS", 0.2)
    log = tmp_path / "console"
    log.write_text(f"{REPORTS[0]}\n[   12.4]  in this function\n")
    with pytest.raises(KernelReportError, match=r"server reports.*in this function"):
        Console("server", log).check()


def test_a_defect_that_is_known_is_kept_and_others_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text(
        "[   12.3] WARNING: CPU: 1 PID: 39 at rxe_comp.c:827 rxe_completer+0xb9f/0xe40\n"
    )
    console = Console("server", log)
    console.known = re.compile("rxe_completer")
    console.check()
    assert len(console.met) == 1
    with log.open("a") as file:
        file.write("[   12.4] WARNING: CPU: 1 PID: 39 at rxe_req.c:1 rxe_requester+0xb9f/0xe40\n")
    with pytest.raises(KernelReportError, match="rxe_requester"):
        console.check()


def test_a_line_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text("[   12.3] BU")
    console = Console("server", log)
    console.check()
    with log.open("a") as file:
        file.write("G: kernel NULL pointer dereference\n")
    with pytest.raises(KernelReportError):
        console.check()


def test_ordinary_lines_are_no_report(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_text(
        "[    1.0] systemd[1]: Starting debug things...\n"
        "[    2.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n"
        "[    2.0] BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!\n"
        "[    2.0] INFO: rcu_preempt detected stalls on CPUs/tasks:\n"
        "[    2.0] BUG: KCSAN: data-race in xprt_transmit [sunrpc] / xs_tcp_write_space [sunrpc]\n"
        "[    2.0] kmemleak: Kernel memory leak detector initialized (mem pool available: 39000)\n"
        "[    2.0] DMA-API: preallocated 65536 debug entries\n"
        "[    2.0] DMA-API: debugging enabled by kernel config\n"
        "[    3.0] rpcrdma: 'frwr' mode, 32 MRs per connection\n"
    )
    Console("server", log).check()


def _argv(hardware: Hardware) -> str:
    return " ".join(qemu_argv(hardware, Kernel("6.12", Path("/k")), Path("/l"), Path("/d/n"), "n"))


def test_the_instruction_clock_has_one_processor_and_counts_copies_by_8_bytes() -> None:
    argv = _argv(Hardware("6.12", "instructions", "tcg", 1, 1024))
    assert "-icount shift=0,sleep=off" in argv
    assert "thread=single" in argv
    assert "-cpu max,erms=off,fsrm=off -smp 1" in argv


def test_a_machine_dies_with_its_parent_and_listens_on_loopback_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # whose QEMU is the system's, whatever this host's cache has
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    argv = _argv(Hardware("6.12", "wall", "tcg", 2, 1024))
    assert argv.startswith("setpriv --pdeathsig KILL qemu-system-x86_64")
    assert "hostfwd=tcp:127.0.0.1:0-:22" in argv
    assert "icount" not in argv


class StuckProcess:
    """SIGKILL does not end it: it waits in the kernel."""

    pid = 7

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired("qemu", timeout)


def test_a_machine_that_cannot_be_killed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(
        "n", Hardware("6.12", "wall", "tcg", 2, 1024), Image(tmp_path), tmp_path, tmp_path
    )
    emulator, master = StuckProcess(), StuckProcess()
    monkeypatch.setattr(machine, "_process", emulator)
    monkeypatch.setattr(machine.ssh, "_master", master)
    machine.ssh.control.touch()
    with pytest.raises(UserError, match="process 7 has not ended"):
        machine.stop()
    assert emulator.killed
    assert master.killed
    assert not machine.ssh.control.exists()
    machine.stop()


def test_arguments_reach_a_node_as_they_are() -> None:
    ssh = Ssh(Path("/l"), "n", Path("/k"))
    assert ssh.argv("echo", "a b;$(reboot)")[-1] == "echo 'a b;$(reboot)'"


@pytest.mark.parametrize(
    ("stdin", "stdout", "terminal"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_command_gets_a_terminal_unless_its_input_or_output_is_a_file(
    stdin: bool, stdout: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal in the node would change each newline of a store that goes to a file."""

    def argv(*command: str, tty: bool = False) -> tuple[str, ...]:
        return ("sh", "-c", f"exit {int(tty)}")

    node = SimpleNamespace(argv=argv)
    lab = SimpleNamespace(config=LabConfig("demo"), ssh=lambda _: node, check=lambda: None)
    monkeypatch.setattr(nodes, "attach", lambda _: lab)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: stdin))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: stdout))
    assert nodes.interactive("demo", ["cat", "sweep.db"]) == int(terminal)


def test_the_mirror_is_the_one_apt_uses() -> None:
    text = (
        "Docker|https://example.org/docker/\n"
        "Debian|http://mirror.example/debian/\nDebian|http://second.example/debian/\n"
        "Debian-Security|file:///cdrom\n"
    )
    assert parse_targets(text) == {"Debian": "http://mirror.example/debian"}


def test_the_mirror_is_known_before_the_first_update() -> None:
    text = "|http://mirror.example/debian/\n|http://mirror.example/debian-security/\n"
    assert parse_targets(text) == {
        "Debian": "http://mirror.example/debian",
        "Debian-Security": "http://mirror.example/debian-security",
    }


def test_a_mirror_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFSRDMA_MIRROR", "http://mine.example/debian/")
    assert sources(("trixie-backports", "trixie-security"), "[x=y] ").splitlines() == [
        "deb [x=y] http://mine.example/debian trixie-backports main",
        "deb [x=y] http://mine.example/debian-security trixie-security main",
    ]


def _qemu(monkeypatch: pytest.MonkeyPatch, cache: Path, number: str, codename: str) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(qemu, "_version", lambda program: f"{number} (of {program})")
    monkeypatch.setattr(qemu, "_codename", lambda: codename)
    said: list[str] = []
    qemu.fetch(said.append)
    return said


@pytest.mark.parametrize(
    ("number", "codename"), [("10.0.2", "trixie"), ("10.1.0", "bookworm"), ("6.2.0", "jammy")]
)
def test_a_qemu_that_will_do_or_has_no_newer_one_stays(
    number: str, codename: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _qemu(monkeypatch, tmp_path, number, codename) == []
    assert qemu.qemu() == ("qemu-system-x86_64",)


def test_a_newer_qemu_is_for_all_labs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unpacked(packages: tuple[str, ...], suite: str, folder: Path) -> None:
        assert (packages[0], suite) == ("qemu-system-x86", "bookworm-backports")
        (folder / "usr").mkdir(parents=True)

    monkeypatch.setattr(qemu, "unpack_once", unpacked)
    assert len(_qemu(monkeypatch, tmp_path, "7.2.22", "bookworm")) == 1
    assert qemu.qemu()[0].startswith(str(tmp_path))
    assert _qemu(monkeypatch, tmp_path, "7.2.22", "bookworm") == []


def test_without_a_newer_qemu_labs_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's archive is not there, and nothing is left of the attempt."""
    monkeypatch.setenv("NFSRDMA_MIRROR", "http://127.0.0.1:1/debian")
    # by default apt tries three times, 1, 2 and 4 s apart
    (tmp_path / "apt.conf").write_text('Acquire::Retries "0";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    said = _qemu(monkeypatch, tmp_path, "7.2.22", "bookworm")
    assert said[-1].startswith("labs use QEMU 7.2.22; results differ from other versions: ")
    assert list((tmp_path / "nfsrdma/programs").iterdir()) == []
    assert qemu.qemu() == ("qemu-system-x86_64",)


def test_the_toolkit_is_packed_without_bytecode_and_with_the_labs_facts() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack({"clock": "wall"}))) as tar:
        names = tar.getnames()
        facts = tar.extractfile("etc/nfsrdma-lab.json")
        assert facts is not None
        assert facts.read() == b'{"clock": "wall"}'
    assert "opt/nfsrdma/src/nfsrdma_tools/cli/main.py" in names
    assert "opt/nfsrdma/src/nfsrdma_tools/data/kmod/Kbuild" in names
    assert "opt/nfsrdma/src/nfsrdma_tools/data/bpf/README.md" in names
    assert not [n for n in names if "__pycache__" in n]


def test_what_a_build_of_the_module_left_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, kmod = tmp_path / "nfsrdma_tools", tmp_path / "kmod"
    for folder in (package, kmod, tmp_path / "bpf"):
        folder.mkdir()
    (tmp_path / "pyproject.toml").touch()
    left = (
        *("nfsrdma.ko", "wire.o", "nfsrdma.mod", "nfsrdma.mod.c", ".wire.o.cmd"),
        *("Module.symvers", "modules.order", "features.h"),
    )
    for name in ("Kbuild", "wire.c", "wire.h", "features.sh", *left):
        (kmod / name).touch()
    monkeypatch.setattr(importlib.resources, "files", lambda _: package)
    with tarfile.open(fileobj=io.BytesIO(pack({}))) as tar:
        packed = {Path(name).name for name in tar.getnames() if "/data/kmod/" in name}
    assert packed == {"Kbuild", "wire.c", "wire.h", "features.sh"}


def test_two_machines_are_joined_directly_and_more_through_a_switch() -> None:
    with contextlib.closing(Lan(("client1",))) as lan:
        (server,), (client,) = lan.descriptors("server"), lan.descriptors("client1")
        assert lan.arguments("server") == ("-netdev", f"socket,id=lan,fd={server}")
        assert lan.arguments("client1") == ("-netdev", f"socket,id=lan,fd={client}")
        os.write(server, b"packet")
        assert os.read(client, 10) == b"packet"
    with contextlib.closing(Lan(("client1", "client2"))) as lan:
        first, second = lan.descriptors("server")
        assert lan.arguments("server") == (
            *("-netdev", "hubport,id=lan,hubid=1"),
            *("-netdev", f"socket,id=client1,fd={first}"),
            *("-netdev", "hubport,id=client1-hub,hubid=1,netdev=client1"),
            *("-netdev", f"socket,id=client2,fd={second}"),
            *("-netdev", "hubport,id=client2-hub,hubid=1,netdev=client2"),
        )


GREETING = (
    b'{"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}}, "capabilities": []}}\n'
)


def test_a_control_socket_is_there_before_qemu_listens(tmp_path: Path) -> None:
    path, tries, done = tmp_path / "qmp", [], threading.Event()
    with socket.socket(socket.AF_UNIX) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(GREETING)
                connection.recv(1000)
                connection.sendall(b'{"return": {}}\n')
                done.wait()

        server.bind(str(path))
        thread = threading.Thread(target=answer)

        def alive() -> None:
            tries.append("refused")
            if len(tries) == 2:
                server.listen()
                thread.start()

        monitor = Monitor(path)
        monitor.connect(60, alive)
        monitor.close()
        done.set()
        thread.join()
    assert len(tries) >= 2


def test_what_killed_owners_left_goes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("dead", "alive", "elsewhere"):
        for folder in (paths.lab_dir(name), paths.disks_dir() / name):
            paths.create_lab_folder(folder)
            (folder / "disk").write_bytes(bytes(8192))
    # brought up with another XDG_RUNTIME_DIR
    shutil.rmtree(paths.lab_dir("elsewhere"))
    with (
        try_file_lock(paths.lab_lock("alive")) as alive,
        try_folder_lock(paths.disks_dir() / "elsewhere") as elsewhere,
    ):
        assert alive
        assert elsewhere
        assert cleanup.remove_stale_labs() >= 8192
        assert cleanup.remove_stale_labs() == 0
        assert sorted(path.name for path in paths.disks_dir().iterdir()) == ["alive", "elsewhere"]
        assert sorted(path.name for path in paths.labs_dir().iterdir()) == ["alive", "alive.lock"]
    assert cleanup.remove_stale_labs() >= 8192
    assert list(paths.labs_dir().iterdir()) == []


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "home/thesis").mkdir(parents=True)
    (tmp_path / "home/thesis/text").write_text("kept")
    return tmp_path


def test_a_link_in_place_of_the_labs_is_refused(homes: Path) -> None:
    """Anyone can make the name first in /tmp."""
    (homes / "nfsrdma-labs").symlink_to(homes / "home")
    for use in (paths.labs_dir, cleanup.remove_stale_labs, lambda: paths.lab_lock("x")):
        with pytest.raises(UserError, match=r"nfsrdma-labs: expected a directory .*found lrwx"):
            use()
    assert (homes / "home/thesis/text").read_text() == "kept"
    (homes / "nfsrdma-labs").unlink()
    (homes / "nfsrdma-labs").symlink_to(homes / "nothing")
    with pytest.raises(UserError, match="found lrwx"):
        paths.labs_dir()


def test_a_folder_of_labs_that_others_reach_is_refused(homes: Path) -> None:
    labs = paths.labs_dir()
    assert labs.stat().st_mode & 0o777 == 0o700
    labs.chmod(0o750)
    with pytest.raises(UserError, match="found drwxr-x---"):
        paths.labs_dir()
    labs.chmod(0o700)
    homes.chmod(0o777)
    with pytest.raises(UserError, match="found drwxrwxrwx"):
        paths.labs_dir()
    homes.chmod(0o1777)
    assert paths.labs_dir() == labs
    paths.cache_dir().chmod(0o777)
    with pytest.raises(UserError, match=r"found drwxrwxrwx .*set XDG_CACHE_HOME"):
        paths.cache_dir()


def test_the_cache_may_be_a_link_to_a_folder(homes: Path) -> None:
    (homes / "cache").mkdir()
    (homes / "cache/nfsrdma").symlink_to(homes / "home")
    assert paths.cache_dir() == homes / "cache/nfsrdma"
    (homes / "home").rename(homes / "away")
    with pytest.raises(UserError, match="found lrwx"):
        paths.cache_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_folder_of_labs_of_another_user_is_refused(homes: Path) -> None:
    for folder in (paths.labs_dir(), homes, paths.cache_dir()):
        os.chown(folder, 1000, 1000)
        with pytest.raises(UserError, match="of uid 1000"):
            cleanup.remove_stale_labs()
        os.chown(folder, 0, 0)
    assert cleanup.remove_stale_labs() == 0


def test_only_folders_of_labs_are_removed(homes: Path) -> None:
    other, link = paths.labs_dir() / "thesis", paths.disks_dir() / "link"
    paths.disks_dir().mkdir()
    shutil.copytree(homes / "home/thesis", other)
    link.symlink_to(homes / "home")
    (paths.labs_dir() / "empty").mkdir()
    assert cleanup.remove_stale_labs() == 0
    assert sorted(path.name for path in paths.labs_dir().iterdir()) == ["thesis"]
    assert link.is_symlink()
    for folder in (other, link):
        with pytest.raises(UserError, match="expected a folder of a lab"):
            cleanup.remove_folder(folder)
    assert (other / "text").read_text() == (homes / "home/thesis/text").read_text() == "kept"


def test_a_link_in_a_cache_is_removed_but_not_its_target(homes: Path) -> None:
    (homes / "link").symlink_to(homes / "home")
    cleanup._remove(homes / "link")
    assert not (homes / "link").is_symlink()
    assert (homes / "home/thesis/text").read_text() == "kept"


def test_a_folder_that_is_still_written_to_stays_a_folder_of_a_lab(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = paths.lab_dir("x")
    paths.create_lab_folder(folder)
    rmdir = Path.rmdir

    def write_while_removing(path: Path) -> None:
        (path / "console").touch()
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", write_while_removing)
    with pytest.raises(OSError, match="not empty"):
        cleanup.remove_folder(folder)
    monkeypatch.undo()
    assert paths.is_lab_folder(folder)
    cleanup.remove_folder(folder)
    assert not folder.exists()
