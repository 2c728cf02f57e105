# SPDX-License-Identifier: Apache-2.0
"""The requests of nfsd's configuration, in the forms of the distributions.

The cases of nfs.conf are what nfsconf(8) of nfs-utils 2.6.2 prints for the same files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.files_made import write_all

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import ProgramMissingError
from nfsrdma_tools.host.machine import Machine, NotRecordedError, Recording
from nfsrdma_tools.host.nfsd.configuration import NfsConf, Requested, Setting, is_on, requested

UNIT = "usr/lib/systemd/system/nfs-server.service"


def host(
    root: Path, files: dict[str, str], complete: bool = True, nfsconf: str | None = None
) -> Machine:
    """A recorded host; ``nfsconf`` is its answer for each key, None: it was not recorded."""
    write_all(root, files)
    programs: dict[tuple[str, ...], Result | None] = {}
    if nfsconf is not None:
        for key in ("rdma", "rdma-port", "tcp", "threads", "port"):
            argv = ("nfsconf", "--get", "nfsd", key)
            programs[argv] = Result(argv, nfsconf, "", 0 if nfsconf else 1)
    return Machine(root, recording=Recording(programs=programs, complete=complete))


def value(machine: Machine, key: str) -> str | None:
    entry = NfsConf(machine).get(key)
    return entry.value if entry else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[nfsd]\nrdma=y\n", "y"),
        ("\t[ NFSD ] junk\n  RDMA\t= y # comment\n", "y"),
        ("[nfsd]\nrdma=y;comment\n", "y"),
        ("[nfsd]\nrdma=\"y # no comment\" junk\n", "y # no comment"),
        ("[nfsd]\nrdma='y'\n", "y"),
        ("[nfsd]\nrdma=a = b\n", "a = b"),
        ("[nfsd]\nrdma = n\nrdma = y\n", "y"),
        # the last value that is none does not count
        ("[nfsd]\nrdma=y\nrdma=\n", "y"),
        ("[nfsd]\nrdma=y\nrdma=\"open\n", "y"),
        ("[nfsd]\n#rdma=y\n;rdma=y\n", None),
        ("rdma=y\n", None),
        ("[nfsd\nrdma=y\n", None),
        ("[mountd]\nrdma=y\n", None),
        # another section, which removes the value of this one
        ("[nfsd \"x\"]\nrdma=y\n", None),
        ("[nfsd]\nrdma=y\n[nfsd \"x\"]\nrdma=n\n", None),
        ("[nfsd]\nrdma=\\\ny\n", "y"),
        # the last line needs its newline
        ("[nfsd]\nrdma=n\nrdma=y", "n"),
        ("[environment]\nUSE=y\n[nfsd]\nrdma=$USE\n", "y"),
        ("[environment]\nA=$B\nB=$A\n[nfsd]\nrdma=$A\n", None),
        ("[nfsd]\nrdma=$UNSET\n", None),
    ],
)  # fmt: skip
def test_nfs_conf_is_read_as_nfsconf_reads_it(
    tmp_path: Path, text: str, expected: str | None
) -> None:
    assert value(host(tmp_path, {"etc/nfs.conf": text}), "rdma") == expected


def test_files_are_included_in_place(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        {
            "etc/nfs.conf": "[environment]\ninclude=/etc/sysconfig/nfs\n"
            "[nfsd]\nthreads=$NUMBER\nrdma=n\ninclude=-nfs.conf.local\nport=2049\n",
            "etc/sysconfig/nfs": '# comment\nNUMBER="16"\n',
            "etc/nfs.conf.local": "rdma=y\nport=1\ninclude=../../../etc/loop\n",
            "etc/loop": "include=loop\nrdma-port=20050\n",
        },
    )
    wanted = {"threads": "16", "rdma": "y", "port": "2049", "rdma-port": "20050"}
    assert {key: value(machine, key) for key in wanted} == wanted
    rdma = NfsConf(machine).get("rdma")
    assert rdma == Setting("y", "/etc/nfs.conf.local")


def test_no_file_outside_the_recording_is_included(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("rdma=y\n")
    machine = host(tmp_path / "root", {"etc/nfs.conf": "[nfsd]\ninclude=../../secret\n"})
    assert value(machine, "rdma") is None


def test_drop_ins_come_in_the_order_of_versions(tmp_path: Path) -> None:
    names = ["000", "00", "01", "010", "09", "0", "1", "9", "9a", "10", "B", "b9", "b10"]
    files = {f"etc/nfs.conf.d/{name}.conf": f"[nfsd]\nport={at}\n" for at, name in enumerate(names)}
    files |= {
        "etc/nfs.conf.d/z.conf~": "[nfsd]\nport=x\n",
        "etc/nfs.conf.d/.z.conf": "[nfsd]\nport=x\n",
    }
    machine = host(tmp_path, files)
    assert NfsConf(machine).files == [f"etc/nfs.conf.d/{name}.conf" for name in names]
    assert value(machine, "port") == str(len(names) - 1)


def test_etc_replaces_what_usr_etc_has(tmp_path: Path) -> None:
    files = {
        "usr/etc/nfs.conf": "[nfsd]\nrdma=y\nthreads=4\n",
        "usr/etc/nfs.conf.d/a.conf": "[nfsd]\nport=1\n",
    }
    machine = host(tmp_path, files)
    assert (value(machine, "rdma"), value(machine, "port")) == ("y", "1")
    machine = host(tmp_path, {"etc/nfs.conf": "[nfsd]\nthreads=8\n"})
    assert [value(machine, key) for key in ("rdma", "port", "threads")] == [None, None, "8"]


def test_nfsconf_decides_where_it_can_run(tmp_path: Path) -> None:
    files = {"etc/nfs.conf": "[nfsd]\nrdma=y\n"}
    assert NfsConf(host(tmp_path, files, nfsconf="y\n")).get("rdma") == Setting(
        "y", "/etc/nfs.conf"
    )
    assert NfsConf(host(tmp_path, files, nfsconf="")).get("rdma") is None
    machine = host(tmp_path, files)
    assert machine.recording is not None
    machine.recording.programs["nfsconf", "--get", "nfsd", "rdma"] = None
    with pytest.raises(ProgramMissingError):
        machine.run("nfsconf", "--get", "nfsd", "rdma")
    assert value(machine, "rdma") == "y"


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("1", True),
        ("T", True),
        ("Yes", True),
        ("on", True),
        ("0", False),
        ("no", False),
        ("", False),
    ],
)
def test_booleans(text: str, on: bool) -> None:
    assert is_on(text) == on
    assert is_on("nonsense", default=True)


@pytest.mark.parametrize(
    ("text", "port", "fault"),
    [
        ("rdma=y", 20049, ""),
        ("rdma=TRUE\nrdma-port=20050", 20050, ""),
        ("rdma=t\nrdma-port=nfsrdma", 20049, ""),
        # the port itself, before nfs-utils 2.4.2
        ("rdma=20051", 20051, ""),
        ("rdma=nfsrdma\nrdma-port=1", 20049, ""),
        ("rdma=n\nrdma-port=20049", 0, ""),
        ("rdma-port=20049", 0, ""),
        ("rdma=y\nrdma-port=70000", 0, "cannot interpret port '70000'"),
        ("rdma=wat", 0, "cannot interpret port 'wat'"),
    ],
)
def test_the_port_of_nfs_conf(tmp_path: Path, text: str, port: int, fault: str) -> None:
    request = requested(host(tmp_path, {"etc/nfs.conf": f"[nfsd]\n{text}\n"}))
    assert (request.rdma_port, request.rdma) == (port, bool(port or fault))
    assert fault in request.fault
    assert request.rdma_source == ("" if text.startswith("rdma-port") else "/etc/nfs.conf")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", (0, True, 2049, None)),
        ("16", (0, True, 2049, 16)),
        ("--rdma", (20049, True, 2049, None)),
        ("--rdma=20050 -p 2050 8", (20050, True, 2050, 8)),
        ("-r --port=nfs -T -- 4", (20049, False, 2049, 4)),
        ("-R 20051 -N 3 32", (20051, True, 2049, 32)),
        ("-sr -N3 -P2051 --no-nfs-version 3 8", (20049, True, 2051, 8)),
        ("--no-tcp --tcp -H 192.0.2.1 8", (0, True, 2049, 8)),
    ],
)  # fmt: skip
def test_options_of_rpc_nfsd(
    tmp_path: Path, options: str, wanted: tuple[int, bool, int, int | None]
) -> None:
    text = f"[Unit]\nExecStart=x\n[Service]\nExecStart=-/usr/sbin/rpc.nfsd {options}\n"
    request = requested(host(tmp_path, {UNIT: text}))
    assert (request.rdma_port, request.tcp, request.port, request.threads) == wanted


def test_options_precede_nfs_conf(tmp_path: Path) -> None:
    request = requested(
        host(
            tmp_path,
            {
                "etc/nfs.conf": "[nfsd]\nrdma=n\nthreads=8\ntcp=n\nport=2050\n",
                f"etc/systemd/system/{UNIT.rpartition('/')[2]}.d/rdma.conf": (
                    "[Service]\nExecStart=\nExecStart=/usr/sbin/rpc.nfsd --rdma=20050\n"
                ),
                UNIT: "[Service]\nExecStart=/usr/sbin/rpc.nfsd --rdma=1 64\n",
            },
        )
    )
    place = "/etc/systemd/system/nfs-server.service.d/rdma.conf"
    assert request == Requested(20050, place, tcp=False, port=2050, threads=8)


ENV = (
    "[Service]\nEnvironmentFile=-/run/sysconfig/nfs-utils\n"
    "ExecStart=/usr/sbin/rpc.nfsd $RPCNFSDARGS\n"
)
SYSTEMS: dict[str, tuple[dict[str, str], Requested]] = {
    "Debian 11": (
        {
            UNIT: ENV,
            "etc/default/nfs-kernel-server": (
                'RPCNFSDCOUNT=16\nRPCNFSDPRIORITY=0\nRPCNFSDOPTS="--rdma=20050"\n'
            ),
        },
        Requested(20050, "RPCNFSDOPTS of /etc/default/nfs-kernel-server", threads=16),
    ),
    "Red Hat 7, as it was generated": (
        {
            UNIT: ENV,
            "etc/sysconfig/nfs": 'RPCNFSDARGS=""\n',
            "run/sysconfig/nfs-utils": 'RPCNFSDARGS="-r  8"\nSTATDARGS=""\n',
        },
        Requested(20049, "RPCNFSDARGS of /etc/sysconfig/nfs", threads=8),
    ),
    "SUSE": (
        {
            UNIT: "[Service]\nExecStart=/usr/sbin/rpc.nfsd\n",
            f"{UNIT}.d/options.conf": (
                "[Service]\nEnvironmentFile=/etc/sysconfig/nfs\nExecStart=\n"
                "ExecStart=/usr/sbin/rpc.nfsd $NFSD_OPTIONS\n"
            ),
            "etc/nfs.conf": (
                "[environment]\ninclude = /etc/sysconfig/nfs\n"
                "[nfsd]\nthreads= $USE_KERNEL_NFSD_NUMBER\n"
            ),
            "etc/sysconfig/nfs": 'USE_KERNEL_NFSD_NUMBER="32"\nNFSD_OPTIONS="-r"\n',
        },
        Requested(20049, "NFSD_OPTIONS of /etc/sysconfig/nfs", threads=32),
    ),
    "variables without a unit": (
        {"etc/sysconfig/nfs": 'export RPCNFSDARGS="--rdma" # x\nRPCNFSDCOUNT=64\nNFSD_PORT=2050\n'},
        Requested(20049, "RPCNFSDARGS of /etc/sysconfig/nfs", port=2050, threads=64),
    ),
    "a variable of the unit": (
        {UNIT: '[Service]\nEnvironment="ARGS=--rdma 4" X=y\nExecStart=/sbin/rpc.nfsd ${ARGS}\n'},
        Requested(20049, f"ARGS of /{UNIT}", threads=4),
    ),
    "nfsdctl": (
        {
            UNIT: (
                "[Service]\n"
                "ExecStart=/bin/sh -c '/usr/sbin/nfsdctl autostart || /usr/sbin/rpc.nfsd'\n"
            ),
            "etc/nfs.conf": "[nfsd]\nrdma=20049\n",
        },
        Requested(
            20049, "/etc/nfs.conf", fault="nfsdctl takes a port as the value of rdma for no"
        ),
    ),
    "nfsdctl listener": (
        {
            UNIT: "[Service]\nExecStart=/usr/sbin/rpc.nfsd\n",
            f"{UNIT}.d/rdma.conf": (
                "[Service]\nExecStartPost=/usr/sbin/nfsdctl listener +rdma:[2001:db8::1]:20052\n"
            ),
        },
        Requested(20052, f"/{UNIT}.d/rdma.conf"),
    ),
    "portlist": (
        {
            UNIT: (
                "[Service]\nExecStart=/usr/sbin/rpc.nfsd\n"
                "ExecStartPost=/bin/sh -c 'echo rdma 20049 > /proc/fs/nfsd/portlist'\n"
            )
        },
        Requested(20049, f"/{UNIT}"),
    ),
    "a unit that does not use the variables": (
        {
            UNIT: "[Service]\nExecStart=/usr/sbin/rpc.nfsd\n",
            "etc/sysconfig/nfs": 'RPCNFSDARGS="-r"\nRDMA_PORT=20049\n',
        },
        Requested(
            ignored=(
                "RPCNFSDARGS of /etc/sysconfig/nfs is -r, which nfs-server.service does not use",
                "RDMA_PORT of /etc/sysconfig/nfs is 20049, which nfs-server.service does not use",
            )
        ),
    ),
    "a file without its last newline": (
        {"etc/nfs.conf": "[nfsd]\nrdma=y"},
        Requested(ignored=("/etc/nfs.conf has rdma=y without a newline, which no reader takes",)),
    ),
    "hostile": (
        {
            UNIT: "[Service]\nEnvironmentFile=../../../../etc/passwd\nExecStart=-@\nExecStart='\n",
            "etc/default/nfs-kernel-server": "RPCNFSDOPTS='\nRPCNFSDCOUNT=$RPCNFSDCOUNT\n",
        },
        Requested(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_forms_of_the_distributions(tmp_path: Path, system: str) -> None:
    files, wanted = SYSTEMS[system]
    assert requested(host(tmp_path, files)) == wanted


def test_a_pasted_file_may_have_lost_its_last_newline(tmp_path: Path) -> None:
    machine = host(tmp_path, {"etc/nfs.conf": "[nfsd]\nrdma=y"}, complete=False)
    assert requested(machine).rdma_port == 20049


def test_what_was_not_recorded_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(NotRecordedError):
        requested(host(tmp_path, {}, complete=False))
    assert requested(host(tmp_path, {})) == Requested()
