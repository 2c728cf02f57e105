# SPDX-License-Identifier: Apache-2.0
"""DKMS' status of the module, and the list that reverts an installation."""

import json
from pathlib import Path

import pytest

from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.host.module import dkms
from nfsrdma_tools.host.module import install as module_install
from nfsrdma_tools.host.module.dkms import Registered, parse
from nfsrdma_tools.host.module.install import installed
from nfsrdma_tools.host.state import Installed


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


def test_mounts_and_nfsd_are_led_to_ours_and_one_way_is_left_to_the_kernels() -> None:
    lines = [x.split() for x in module_install._TEXT.splitlines() if not x.startswith("#")]
    leads = {word: to for _, word, to in lines}
    assert leads.pop("kernels-rpcrdma") == "rpcrdma"
    assert leads == dict.fromkeys(("rpcrdma", "rpcrdma6", "svcrdma", "xprtrdma"), "nfsrdma")
