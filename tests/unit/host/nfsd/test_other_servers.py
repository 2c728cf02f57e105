# SPDX-License-Identifier: Apache-2.0
"""A server in place of the kernel's: whose socket it is, and what a bundle has of it."""

import os
import socket
from pathlib import Path

import pytest
from unit.doctor.bundles_made import read_back
from unit.files_made import write

from nfsrdma_tools.doctor import bundle as bundles
from nfsrdma_tools.doctor import recorded
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.checks import nfs_server
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfsd import ganesha, other_servers, serving
from nfsrdma_tools.host.nfsd.other_servers import other_server

ESTABLISHED = "   2: 076433C6:0801 086433C6:0301 01 0:0 0:0 0 0 0 4711 1\n"
LISTENING = (
    "   1: 076433C6:4E51 00000000:0000 0A 00000000:00000000 00:00000000 00000000 993 0 4712 1\n"
)


def test_the_process_of_a_socket_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        inode = str(os.fstat(held.fileno()).st_ino)
        name = other_servers._program(Path("/proc"), frozenset({inode}))
    assert name == Path("/proc/self/comm").read_text().strip()
    assert other_servers._program(Path("/proc"), frozenset({inode})) == ""


def test_a_bundle_has_the_port_and_neither_address_nor_user(tmp_path: Path) -> None:
    write(tmp_path, "proc/net/tcp", ESTABLISHED + LISTENING)
    bundle = bundles.collect(machine=Machine(tmp_path))
    assert bundle.files["proc/net/tcp"] == b"0: 0:4E51 0:0000 0A\n"
    bundle.notes.facts[other_servers.FACT] = "acme-nfsd"
    for known in (bundle, anonymized(bundle)):
        with read_back(known, tmp_path) as machine:
            server = other_server(machine)
            assert server is not None
            assert server.ports == (20049,)
            assert (server.program == "acme-nfsd") == (known is bundle)
    assert b"acme" not in repr(anonymized(bundle)).encode()


def test_the_kernels_server_stands_for_itself(tmp_path: Path) -> None:
    write(tmp_path, "proc/net/tcp", ESTABLISHED + LISTENING)
    write(tmp_path, "proc/fs/nfsd/portlist", "tcp 2049\n")
    assert other_server(Machine(tmp_path)) is None
    (tmp_path / "proc/fs/nfsd/portlist").write_text("")
    assert other_server(Machine(tmp_path)) is not None


def test_a_connection_to_a_server_elsewhere_is_no_server(tmp_path: Path) -> None:
    write(tmp_path, "proc/net/tcp", ESTABLISHED)
    (finding,) = nfs_server.listeners(Machine(tmp_path))
    assert finding.found == "no NFS server runs here"


def test_a_server_over_rdma_alone_is_named(tmp_path: Path) -> None:
    write(tmp_path, "etc/os-release", "ID=debian\n")
    bundle = bundles.collect(machine=Machine(tmp_path))
    for value, program in (("20049 ganesha.nfsd", "ganesha.nfsd"), ("20049 acme-nfsd", "")):
        bundle.notes.facts[other_servers.RDMA_FACT] = value
        with read_back(anonymized(bundle), tmp_path) as machine:
            server = other_server(machine)
        assert (server.program if server else "") == program
    assert b"acme" not in repr(anonymized(bundle)).encode()
    bundle.notes.facts[other_servers.RDMA_FACT] = "20049 acme nfsd"
    with read_back(bundle, tmp_path) as machine:
        assert str(other_server(machine)) == "acme nfsd listens on RDMA 20049"


def test_nfsd_is_not_enabled_beside_a_process_that_has_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is a real one, of a port that any user may have; /proc/net/tcp is this host's."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        monkeypatch.setattr(other_servers, "_SERVED", (port,))
        (tmp_path / "proc").symlink_to("/proc")
        machine = Machine(tmp_path, notes=Recording())
        monkeypatch.setattr(serving, "is_installed", lambda _program: True)
        monkeypatch.setattr(type(machine), "live", property(lambda _self: True))
        with pytest.raises(UserError) as error:
            serving._require_server(machine)
    name = Path("/proc/self/comm").read_text().strip()
    assert error.value.message == f"{name} listens on TCP {port}: the kernel's server cannot"
    assert error.value.hint == "stop that server first"


# ---- the configuration of nfs-ganesha

GANESHA = """\
# NFS_CORE_PARAM { Protocols = 3; }
%include "/etc/ganesha/more.conf"
EXPORT { Export_Id = 1; Path = "/srv/acme"; Protocols = 4; Transports = TCP, RDMA;
\tFSAL { Name = VFS; } }
nfs_core_param {
\tprotocols = 3, 4 , NFSRDMA; # NFS_RDMA_Port = 1;
\tBind_addr = 192.0.2.7;
\tNFS_RDMA_Port = 20050;
\tnfs_rdma_protocol_versions = 4.0,v4.1;
}
%dir /etc/ganesha/acme.d
RADOS_KV { secret_access_key = "s3cr3t; } NFS_CORE_PARAM { Protocols = 9P"; }
"""
REQUESTS = "/etc/ganesha/ganesha.conf requests "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GANESHA, "RDMA on port 20050 for NFS 4.0, v4.1; it includes /etc/ganesha/more.conf and 1 "
         "more, not read"),
        ("NFS_Core_Param{Protocols=4,rpcrdma;}", "RDMA on port 20049"),
        ("NFS_CORE_PARAM { NFS_Protocols = nfsrdma; }", "RDMA on port 20049"),
        # the port alone opens no listener
        ("NFS_CORE_PARAM { NFS_RDMA_Port = 20049; }", "no RDMA"),
        ("NFS_CORE_PARAM { Protocols = nfsrdma; NFS_RDMA_Protocol_Versions = NONE; }", "no RDMA"),
        ("EXPORT { NFS_CORE_PARAM { Protocols = nfsrdma; } }", "no RDMA"),
        ("NFS_CORE_PARAM { # Protocols = nfsrdma;\n }", "no RDMA"),
        ("", "no RDMA"),
        ("}}};;{ = , NFS_CORE_PARAM { Protocols = nfsrdma; }", "no RDMA"),
        ("}}};; NFS_CORE_PARAM { Protocols = 'nfsrdma'; \"", "RDMA on port 20049"),
        ("NFS_CORE_PARAM { Protocols = nfsrdma; NFS_RDMA_Port = x; }", "RDMA on port 20049"),
        ("%url rados://pool/object\nNFS_CORE_PARAM { Protocols = nfsrdma; }",
         "RDMA on port 20049; it includes rados://pool/object, not read"),
        ("NFS_CORE_PARAM { Protocols = nfsrdma; }" + "#" * (1 << 20),
         "RDMA on port 20049; only its first MiB is read"),
        ("%include", "no RDMA"),
    ],
)  # fmt: skip
def test_ganeshas_configuration_says_whether_it_requests_rdma(text: str, words: str) -> None:
    assert str(ganesha.parse(text)) == REQUESTS + words


def _with_ganesha(root: Path, text: str) -> None:
    write(root, "proc/net/tcp", LISTENING)
    write(root, ganesha.CONF, text)


def test_doctor_and_status_name_what_ganesha_requests(tmp_path: Path) -> None:
    _with_ganesha(tmp_path, GANESHA)
    bundle = bundles.collect(machine=Machine(tmp_path))
    bundle.notes.facts[other_servers.FACT] = "ganesha.nfsd"
    secret = (b"acme", b"s3cr3t", b"192.0.2.7")
    for known in (bundle, anonymized(bundle)):
        data = known.files[ganesha.CONF]
        assert not any(word in data for word in (secret if known is not bundle else secret[1:]))
        with read_back(known, tmp_path) as machine:
            (finding,) = nfs_server.listeners(machine)
            status = serving.serving(machine)
        assert f"({REQUESTS}RDMA on port 20050 for NFS 4.0, v4.1; it includes " in finding.found
        assert status.other
        assert status.other.configured in finding.found
    bundle.notes.facts[other_servers.FACT] = "haproxy"
    with read_back(bundle, tmp_path) as machine:
        (finding,) = nfs_server.listeners(machine)
    assert "ganesha" not in finding.found


def test_a_configuration_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    _with_ganesha(tmp_path, "")
    (tmp_path / ganesha.CONF).unlink()
    assert ganesha.configured(Machine(tmp_path)) is None
    os.mkfifo(tmp_path / ganesha.CONF)
    reason = f"cannot read /{ganesha.CONF}: "
    assert str(ganesha.configured(Machine(tmp_path))) == f"{reason}not a regular file"
    pasted = f"cannot read {ganesha.CONF}: it is "
    assert _of_folder(tmp_path) == f"{pasted}a FIFO, a socket or a device, expected text"
    (tmp_path / ganesha.CONF).unlink()
    (tmp_path / ganesha.CONF).symlink_to("../../../outside")
    assert _of_folder(tmp_path) == f"{pasted}a link that leads out of the folder, expected text"
    (tmp_path / ganesha.CONF).unlink()
    (tmp_path / ganesha.CONF).mkdir()
    assert str(ganesha.configured(Machine(tmp_path))) == f"{reason}Is a directory"
    assert _of_folder(tmp_path) == f"{pasted}a folder, expected text"


def _of_folder(folder: Path) -> str:
    with recorded.opened(folder) as machine:
        return str(ganesha.configured(machine))


def test_a_configuration_in_utf_16_is_not_read(tmp_path: Path) -> None:
    _with_ganesha(tmp_path, "")
    (tmp_path / ganesha.CONF).write_text("NFS_CORE_PARAM { Protocols = nfsrdma; }", "utf-16")
    reason = f"cannot read /{ganesha.CONF}: it has NUL bytes, expected text"
    assert str(ganesha.configured(Machine(tmp_path))) == reason
    known = bundles.collect(machine=Machine(tmp_path))
    for bundle in (known, anonymized(known)):
        with read_back(bundle, tmp_path) as machine:
            assert str(ganesha.configured(machine)) == reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("%include a.conf\n", "it includes a.conf, not read"),
        ("#" * (1 << 20) + "\n", "only its first MiB is read"),
    ],
)
def test_a_file_that_is_not_read_whole_proves_no_absence(text: str, why: str) -> None:
    assert str(ganesha.parse(text)) == f"whether /{ganesha.CONF} requests RDMA is unknown; {why}"
