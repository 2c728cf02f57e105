# SPDX-License-Identifier: Apache-2.0
"""The command line, the network and the end of a machine; its QEMU and the archive it is from."""

import contextlib
import os
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import qemu
from nfsrdma_tools.lab.architecture import ARM64
from nfsrdma_tools.lab.debian_packages import parse_targets, sources
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.kernels import Kernel
from nfsrdma_tools.lab.machine import Hardware, Lan, Machine, qemu_argv
from nfsrdma_tools.lab.qemu import Monitor


def _argv(hardware: Hardware) -> str:
    return " ".join(qemu_argv(hardware, Kernel("6.12", Path("/k")), Path("/l"), Path("/d/n"), "n"))


def test_the_instruction_clock_has_one_processor_and_counts_copies_by_8_bytes() -> None:
    argv = _argv(Hardware("6.12", "instructions", "tcg", 1, 1024))
    assert "-icount shift=0,sleep=off" in argv and "thread=single" in argv
    assert "-cpu max,erms=off,fsrm=off -smp 1" in argv


def test_a_machine_dies_with_its_parent_and_listens_on_loopback_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # whose QEMU is the system's, whatever this host's cache has
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    argv = _argv(Hardware("6.12", "wall", "tcg", 2, 1024))
    assert argv.startswith("setpriv --pdeathsig KILL qemu-system-x86_64") and "-no-reboot" in argv
    assert "hostfwd=tcp:127.0.0.1:0-:22" in argv and "icount" not in argv


def test_an_emulated_processor_copies_8_bytes_at_a_time_on_each_clock() -> None:
    argv = _argv(Hardware("6.12", "wall", "tcg", 2, 1024))
    assert "thread=multi" in argv and "-cpu max,erms=off,fsrm=off -smp 2" in argv


def test_a_machine_of_another_architecture_is_emulated_by_its_own_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    argv = _argv(Hardware("6.12-arm64-16k", "wall", "tcg", 2, 1024))
    assert "qemu-system-aarch64 -name n -machine virt " in argv and "-cpu cortex-a76 -smp 2" in argv
    assert "-append console=ttyAMA0 " in argv
    # /dev/kvm is for this host's architecture
    monkeypatch.setattr("os.access", lambda *_: True)
    assert qemu.choose_accelerator("wall", Path("/k"), Path("/i"), ARM64) == "tcg"


def test_arguments_of_the_kernel_end_its_command_line() -> None:
    argv = qemu_argv(
        Hardware("6.12", "wall", "tcg", 2, 1024, kernel_args="init_on_alloc=0 quiet"),
        Kernel("6.12", Path("/k")), Path("/l"), Path("/d/n"), "n",
    )  # fmt: skip
    line = argv[argv.index("-append") + 1]
    assert line.endswith(" init_on_alloc=0 quiet") and line.startswith("console=ttyS0 ")


@pytest.mark.parametrize(
    ("dma", "machine", "words"),
    (
        ("direct", "", ""),
        ("swiotlb", "", "swiotlb=force"),
        ("iommu", "-machine q35 -device intel-iommu,intremap=off", "iommu.strict=1"),
    ),
)
def test_a_machine_has_an_idle_function_for_cards(dma: str, machine: str, words: str) -> None:
    plain = Hardware("6.12", "wall", "tcg", 2, 1024)
    argv, other = _argv(replace(plain, dma=dma)), _argv(plain)
    # before the devices that the IOMMU is to translate for
    assert argv.index("pci-testdev,addr=0x10") < argv.index("virtio-net-pci")
    assert machine in argv and words in argv
    assert not any(word in other for word in ("pci-testdev", "iommu", "swiotlb", "-machine"))


@pytest.mark.parametrize(
    ("command", "how"), (("kill -SEGV $$", "signal 11"), ("exit 0", "exit status 0"))
)
def test_the_end_of_a_machine_says_how_qemu_ended(
    command: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hardware = Hardware("6.12", "wall", "tcg", 2, 1024)
    machine = Machine("n", hardware, Image(tmp_path), tmp_path, tmp_path)
    machine.check_qemu()
    (tmp_path / "n.qemu").write_text("its last words\n")
    with subprocess.Popen(("sh", "-c", command)) as emulator:
        emulator.wait()
    monkeypatch.setattr(machine, "_process", emulator)
    with pytest.raises(UserError, match=f"QEMU of n ended with {how}: its last words"):
        machine.check()


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


def test_debian_packages_come_from_the_mirror_that_apt_uses() -> None:
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
    messages: list[str] = []
    qemu.fetch(messages.append)
    return messages


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
    messages = _qemu(monkeypatch, tmp_path, "7.2.22", "bookworm")
    assert messages[-1].startswith("labs use QEMU 7.2.22; results differ from other versions: ")
    assert list((tmp_path / "nfsrdma/programs").iterdir()) == []
    assert qemu.qemu() == ("qemu-system-x86_64",)


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
