# SPDX-License-Identifier: Apache-2.0
"""Packages of roles, with stand-ins for apt-get and for rpm."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

from unit.ansible_modules import program, run_module

# the dependencies of each package
ARCHIVE = {
    "nfs-common": ["rpcbind", "keyutils"],
    "nfs-kernel-server": ["nfs-common"],
    "autofs": ["nfs-common"],
}
APT = """\
import json, pathlib, sys
file = pathlib.Path({root!r}, "host.json")
host, needs, words = json.loads(file.read_text()), json.loads({archive!r}), sys.argv[1:]
names = words[words.index("--") + 1 :] if "--" in words else []
def all_of(names, step):
    more = {{one for name in names for one in step(name)}} - set(names)
    return all_of([*names, *more], step) if more else names
if words[0] == "update":
    host["lists"] = True
elif words[0] == "install":
    assert "--no-install-recommends" in words
    if not host["lists"]:
        sys.exit("E: Unable to locate package " + names[0])
    brought = all_of(names, lambda name: needs.get(name, []))
    if host.get("breaks"):
        host["there"] += [name for name in brought if name not in names]
        file.write_text(json.dumps(host))
        sys.exit("E: it broke")
    host["there"] += [name for name in brought if name not in host["there"]]
else:
    users = lambda name: [user for user in host["there"] if name in needs.get(user, [])]
    gone = all_of(names, users)
    print("".join(f"Purg {{name}}:amd64 [1]\\n" for name in gone))
    if "--simulate" not in words:
        host["there"] = [name for name in host["there"] if name not in gone]
file.write_text(json.dumps(host))
"""
QUERY = """\
import json, pathlib, sys
if "-L" in sys.argv:
    for name in sys.argv[sys.argv.index("--") + 1 :]:
        print("/usr/lib/systemd/system/" + name + ".service", "/usr/bin/" + name, sep="\\n")
        print("/usr/lib/systemd/system/" + name + "@.service")
    sys.exit()
for name in json.loads(pathlib.Path({root!r}, "host.json").read_text())["there"]:
    print("installed", name)
print("config-files removed-but-not-purged")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    program(tmp_path, "apt-get", APT.format(root=str(tmp_path), archive=json.dumps(ARCHIVE)))
    program(tmp_path, "dpkg-query", QUERY.format(root=str(tmp_path)))
    program(tmp_path, "systemctl", f"#!/bin/sh\necho $* >> {tmp_path}/systemctl.said\n")
    host(tmp_path, "python3", "keyutils")
    return tmp_path


def host(root: Path, *there: str, **more: bool) -> None:
    (root / "host.json").write_text(json.dumps({"there": there, "lists": False, **more}))


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
    said = packages(root, "client", "nfs-common")["msg"]
    assert said == "cannot install nfs-common: E: it broke"
    assert there(root) == {"python3", "rpcbind", "keyutils"}
    host(root, *there(root))
    if again:
        assert packages(root, "client", "nfs-common")["changed"]
        assert "nfs-common" in there(root)
    packages(root, "client", state="absent")
    assert there(root) == {"python3"}


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
if words[0] == "-qa":
    print(*host["there"], sep="\\n")
elif words[0] == "-y":
    host["there"] += [*words[words.index("--") + 1 :], "rpcbind"]
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
    if needed:
        host(root, *there(root), "autofs")
    done = packages(root, "client", state="absent")
    assert done["kept"] == (["nfs-utils", "rpcbind"] if needed else [])
    assert ("nfs-utils" in there(root)) == needed
