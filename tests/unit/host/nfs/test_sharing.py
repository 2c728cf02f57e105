# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs.sharing import connection, server, transport_numbers


def test_connections_by_the_rpc_clients_switch(tmp_path: Path) -> None:
    for clnt, switch in (("clnt-1", "switch-0"), ("clnt-2", "switch-0"), ("clnt-3", "switch-1")):
        for xprt in ("xprt-10-rdma", "xprt-9-rdma", "xprt_switch_info"):
            (tmp_path / "switches" / switch / xprt).mkdir(parents=True, exist_ok=True)
        (tmp_path / clnt).mkdir()
        (tmp_path / clnt / "switch").symlink_to(tmp_path / "switches" / switch)
    for device, clnt in (("0:45", "clnt-1"), ("0:46", "clnt-2"), ("0:47", "clnt-3")):
        folder = tmp_path / "sys/fs/nfs" / device
        folder.mkdir(parents=True)
        (folder / "nfs_client").symlink_to(tmp_path / clnt)
    machine = Machine(tmp_path)
    names = [connection(d, machine) for d in ("0:45", "0:46", "0:47")]
    assert names == ["switch-0", "switch-0", "switch-1"]
    assert transport_numbers("0:45", machine) == [9, 10]
    assert transport_numbers("0:48", machine) is None


def test_connections_by_the_list_of_volumes(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    volumes = machine.path("proc/fs/nfsfs/volumes")
    volumes.parent.mkdir(parents=True)
    volumes.write_text(
        "NV SERVER   PORT DEV          FSID                              FSC\n"
        "v4 0a090102 4e51 0:45         0:0                               no \n"
        "v3 0a090102  801 0:46         8af5c1:0                          no \n"
        "v4 fe800000000000000000000000000001 4e51 0:48 0:0               no \n"
    )
    assert connection("0:45", machine) == "v4 0a090102 4e51"
    assert connection("0:46", machine) == "v3 0a090102 801"
    assert connection("0:47", machine) is None
    assert connection("0:45", Machine(tmp_path / "none")) is None
    assert server("0:45", machine) == ("10.9.1.2", 20049)
    assert server("0:46", machine) == ("10.9.1.2", 2049)
    assert server("0:48", machine) == ("fe80::1", 20049)
    assert server("0:47", machine) is None
