# SPDX-License-Identifier: Apache-2.0
"""Packages of roles, with stand-ins for apt-get and for rpm."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

from unit.playbooks.ansible_modules import imported, program, run_module
from unit.playbooks.package_stand_in import Packages

STAND_IN = """\
import sys
sys.path.insert(0, {tests!r})
from unit.playbooks.package_stand_in import main
main({root!r})
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    text = STAND_IN.format(tests=str(Path(__file__).parents[2]), root=str(tmp_path))
    for name in ("apt-get", "apt-mark", "apt-config", "dpkg-query"):
        program(tmp_path, name, text)
    program(tmp_path, "systemctl", f"#!/bin/sh\necho $* >> {tmp_path}/systemctl.said\n")
    host(tmp_path, "python3", "keyutils")
    return tmp_path


def host(root: Path, *there: str, lists: bool = False, **more: object) -> None:
    manual = json.loads(file.read_text())["manual"] if (file := root / "host.json").exists() else []
    file.write_text(json.dumps({"there": there, "manual": manual, "lists": lists, **more}))


def by_hand(root: Path, verb: str, *names: str) -> None:
    """An administrator runs apt-get."""
    words = ["apt-get", verb, "-y", "--", *names]
    Packages(root).put(lists=True, breaks=False, absent="")
    assert Packages(root).run(words).status == 0


def there(root: Path) -> set[str]:
    return set(json.loads((root / "host.json").read_text())["there"])


def packages(root: Path, role: str, *names: str, **args: Any) -> dict[str, Any]:
    return run_module(root, "nfsrdma_packages", role=role, names=list(names), **args)


def test_the_last_role_removes_all_packages_that_roles_brought_and_no_others(root: Path) -> None:
    assert packages(root, "client", "nfs-common", check=True)["changed"]
    assert there(root) == {"python3", "keyutils"}
    assert packages(root, "client", "nfs-common")["changed"]
    assert there(root) == {"python3", "keyutils", "nfs-common", "rpcbind"}
    assert not packages(root, "client", "nfs-common")["changed"]
    assert packages(root, "server", "nfs-kernel-server", "python3")["changed"]
    assert packages(root, "client", state="absent")["changed"]
    assert "nfs-common" in there(root)
    checked = packages(root, "server", state="absent", check=True)
    assert checked["diff"]["before"] == "nfs-common\nnfs-kernel-server\nrpcbind\n"
    assert packages(root, "server", state="absent")["diff"] == checked["diff"]
    assert there(root) == {"python3", "keyutils"}
    units = "-- nfs-common.service nfs-kernel-server.service rpcbind.service\n"
    assert (root / "systemctl.said").read_text() == f"stop {units}reset-failed {units}"
    assert not (root / "records").exists()
    assert not packages(root, "server", state="absent")["changed"]


def test_a_package_that_another_depends_on_is_kept_and_reported(root: Path) -> None:
    packages(root, "server", "nfs-kernel-server")
    known = json.loads((root / "host.json").read_text())
    host(root, *known["there"], "autofs")
    done = packages(root, "server", state="absent")
    assert done["kept"] == ["nfs-common", "rpcbind"]
    assert "nfs-common, rpcbind" in str(done["warnings"])
    assert there(root) == {"python3", "keyutils", "autofs", "nfs-common", "rpcbind"}


@pytest.mark.parametrize("again", [True, False])
def test_an_interrupted_installation_is_removed_too(root: Path, again: bool) -> None:
    host(root, "python3", breaks=True, lists=True)
    message = packages(root, "client", "nfs-common")["msg"]
    assert message == "cannot install nfs-common: E: it broke"
    assert there(root) == {"python3", "rpcbind", "keyutils"}
    host(root, *there(root))
    if again:
        assert packages(root, "client", "nfs-common")["changed"]
        assert "nfs-common" in there(root)
    packages(root, "client", state="absent")
    assert there(root) == {"python3"}


def test_packages_installed_after_a_failed_attempt_are_not_removed(root: Path) -> None:
    host(root, "python3", absent="rpcbind", lists=True)
    assert packages(root, "client", "nfs-common")["failed"]
    by_hand(root, "install", "postgresql")
    assert packages(root, "client", "nfs-common")["changed"]
    assert not packages(root, "client", state="absent")["kept"]
    assert there(root) == {"python3", "postgresql", "postgresql-common"}
    assert not (root / "records").exists()


def test_a_record_of_an_earlier_version_removes_what_it_names_alone(root: Path) -> None:
    """It lists all packages before a failed attempt, of a time when others were not installed."""
    (root / "records").mkdir()
    old = {"wanted": {"client": ["nfs-common"]}, "added": ["rpcbind"], "before": ["python3"]}
    (root / "records/packages.json").write_text(json.dumps(old))
    host(root, "python3", "rpcbind", "postgresql")
    packages(root, "client", state="absent")
    assert there(root) == {"python3", "postgresql"}


def test_a_package_that_somebody_wants_by_name_is_kept(root: Path) -> None:
    packages(root, "client", "nfs-common")
    by_hand(root, "install", "rpcbind")
    done = packages(root, "client", state="absent")
    assert done["kept"] == ["rpcbind"]
    assert "others installed by name: rpcbind" in str(done["warnings"])
    assert there(root) == {"python3", "keyutils", "rpcbind"}


def test_a_package_that_somebody_removed_and_installed_again_is_kept(root: Path) -> None:
    packages(root, "client", "nfs-common")
    by_hand(root, "purge", "nfs-common")
    by_hand(root, "install", "nfs-common")
    # a log of last month
    with gzip.open(root / "history.log.1.gz", "wt") as file:
        file.write((root / "history.log").read_text())
    (root / "history.log").write_text("")
    assert packages(root, "client", state="absent")["kept"] == ["nfs-common", "rpcbind"]
    assert there(root) == {"python3", "keyutils", "nfs-common", "rpcbind"}


def test_an_installation_that_apt_does_not_log_is_not_removed(root: Path) -> None:
    program(root, "apt-config", "print(\"LOG='/dev/null'\")\n")
    done = packages(root, "client", "nfs-common")
    assert "the log of apt has no entry" in str(done["warnings"])
    packages(root, "client", state="absent")
    assert "nfs-common" in there(root)


def test_the_log_of_a_real_apt_is_read() -> None:
    """Of apt 3.0 in Debian 13, as roles client and server installed their packages."""
    module = imported("modules.nfsrdma_packages")
    log = Path(__file__).parents[1] / "data" / "apt-history-13.log"
    apt = module.Apt(module=None)
    apt._logs = lambda: [str(log)]
    server, client, purge = apt.transactions()
    assert module._mark("f280e461360a4f2e9154493350741233") in server[0]
    assert server[1] == {"nfs-kernel-server": False}
    assert module._mark("a53b06cab5ac495dbd76c86e4d1357e5") in client[0]
    dependencies = dict.fromkeys(("keyutils", "rpcbind", "libnfsidmap1"), True)
    assert client[1] == {"nfs-common": False, **dependencies}
    assert purge == ("apt-get purge -y nfs-common rpcbind libnfsidmap1 keyutils", {})


def test_an_empty_list_does_nothing(root: Path) -> None:
    (root / "bin/apt-get").unlink()
    assert not packages(root, "client")["changed"]
    assert not packages(root, "client", state="absent")["changed"]


@pytest.mark.parametrize("name", ["-o", "a b", "$(x)", "", "a\n", "../x"])
def test_an_invalid_name_is_refused(root: Path, name: str) -> None:
    assert "is not a package name" in packages(root, "client", name)["msg"]


RPM = """\
import json, pathlib, sys
file = pathlib.Path({root!r}, "host.json")
host, words = json.loads(file.read_text()), sys.argv[1:]
log = host.setdefault("log", [])
if words[0] == "-qa":
    print(*host["there"], sep="\\n")
elif "repoquery" in words:
    print(*host["manual"], sep="\\n\\n")
elif "list" in words:
    print("ID     | Command line | Date and time    | Action(s) | Altered")
    for number in range(len(log), 0, -1):
        print(f"     {{number}} | install      | 2026-11-29 08:00 | Install   |    2")
elif "info" in words:
    print(log[int(words[-1]) - 1])
elif words[0] == "-y":
    names = words[words.index("--") + 1 :]
    host["there"] += [*names, "rpcbind"]
    host["manual"] += names
    log.append("Command Line   : " + " ".join(words) + "\\nPackages Altered:\\n" + "".join(
        f"    Install {{name}}-1:2.5.4-18.el9.x86_64 @baseos\\n" for name in [*names, "rpcbind"]))
elif "autofs" in host["there"]:
    sys.exit("error: Failed dependencies:\\n\\tnfs-utils is needed by (installed) autofs-5.1")
else:
    host["there"] = [name for name in host["there"] if name not in words]
file.write_text(json.dumps(host))
"""


@pytest.mark.parametrize("needed", [False, True])
def test_rpms_are_installed_and_removed(
    root: Path, needed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("apt-get", "dpkg-query"):
        (root / "bin" / name).unlink()
    for name in ("rpm", "dnf"):
        program(root, name, RPM.format(root=str(root)))
    # this machine may run Debian
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages(root, "client", "nfs-utils")["changed"]
    assert there(root) == {"python3", "keyutils", "nfs-utils", "rpcbind"}
    known = json.loads((root / "host.json").read_text())
    more = ["autofs"] if needed else ["postgresql"]
    (root / "host.json").write_text(json.dumps({**known, "there": [*known["there"], *more]}))
    done = packages(root, "client", state="absent")
    assert done["kept"] == (["nfs-utils", "rpcbind"] if needed else [])
    assert ("nfs-utils" in there(root)) == needed
    assert {*more} < there(root)
