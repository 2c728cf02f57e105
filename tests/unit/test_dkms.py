# SPDX-License-Identifier: Apache-2.0
"""What DKMS says of the module, and the list that takes an installation back."""

import json
from pathlib import Path

import pytest

from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.host import dkms, module_install, nfsd, service
from nfsrdma_tools.host.dkms import Registered, parse
from nfsrdma_tools.host.module_install import Installed, installed, serves
from nfsrdma_tools.host.nfsd import Listener


@pytest.fixture(autouse=True)
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path))
    return tmp_path


def test_both_forms_of_its_status_are_read() -> None:
    text = (
        "nfsrdma/0.1.0, 6.12.117+deb13-amd64, x86_64: installed\n"
        "nfsrdma, 0.0.9, 6.1.0-56-amd64, x86_64: built\n"
        "nfsrdma/0.2.0: added\n"
        "nfsrdma/0.1.0, 6.1.0, x86_64: installed (WARNING! Diff between built and installed!)\n"
        "zfs/2.3, 6.1.0, x86_64: installed\n"
    )
    assert parse(text) == [
        Registered("0.1.0", "6.12.117+deb13-amd64", "installed"),
        Registered("0.0.9", "6.1.0-56-amd64", "built"),
        Registered("0.2.0", "", "added"),
        Registered("0.1.0", "6.1.0", "installed (WARNING! Diff between built and installed!)"),
    ]


def test_without_dkms_nothing_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ProgramMissingError("dkms")

    monkeypatch.setattr(dkms, "run", missing)
    assert dkms.registered() is None
    assert not dkms.others()


@pytest.mark.parametrize(
    ("listeners", "runs", "port", "why"),
    [
        ([Listener("rdma", 20049)], False, 0, "nfsd listens on rdma 20049"),
        ([Listener("tcp", 2049)], True, 20049, "nfs.conf has rdma-port 20049"),
        ([Listener("tcp", 2049)], True, 0, ""),
        ([], False, 20049, ""),
    ],
)
def test_a_server_is_told_by_its_listener_or_by_what_it_will_start_with(
    listeners: list[Listener], runs: bool, port: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nfsd, "listeners", lambda: listeners)
    for name, answer in {"active": False, "enabled": runs, "rdma_port": port}.items():
        monkeypatch.setattr(service, name, lambda answer=answer: answer)
    assert serves().startswith(why)
    assert bool(serves()) == bool(why)


def test_what_was_installed_is_remembered(lib: Path) -> None:
    assert installed() is None
    (lib / "module.json").write_text(json.dumps({"version": "0.1.0", "made": ["/a", "/a/b"]}))
    assert installed() == Installed("0.1.0", ("/a", "/a/b"))
    (lib / "module.json").write_text("[]")
    with pytest.raises(UserError, match="is damaged"):
        installed()


def test_the_way_back_ends_where_the_way_in_began(monkeypatch: pytest.MonkeyPatch) -> None:
    key = tuple(map(str, dkms.KEY))
    steps = [str(x) for x in module_install._way_back(Installed("0.1.0", ("/var/lib/x", *key)))]
    assert "/var/lib/x" in steps[0]
    assert "modprobe.d/nfsrdma.conf" in steps[-1]
    kept = module_install._way_back(Installed("0.1.0", ("/var/lib/x", *key)), dkms.KEY)
    assert len(kept) == len(steps) - 2
    assert not any("mok" in str(step) for step in kept)


def test_nfsds_own_way_to_the_kernels_module_is_left_open() -> None:
    lines = [x.split() for x in module_install._TEXT.splitlines() if not x.startswith("#")]
    assert {(word, to) for _, word, to in lines} == {
        (name, "nfsrdma") for name in ("rpcrdma", "rpcrdma6", "xprtrdma")
    }
