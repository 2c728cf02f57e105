# SPDX-License-Identifier: Apache-2.0
"""Our module made the one that mounts with proto=rdma and nfsd get, now and after reboots.

Two things outlive a reboot: the source below /usr/src, which DKMS builds for each kernel, and one
file below /etc/modprobe.d.  All of it is one list of what takes it back: the journal of a failed
attempt, and `uninstall`, run the same one.

For a mount the kernel asks modprobe for "rpc" and the netid, rpcrdma or rpcrdma6 (request_module
in net/sunrpc/xprt.c).  An alias of modprobe.d goes before a module of that name (libkmod's
kmod_module_new_from_lookup), so one line leads it to ours.  xprtrdma is what rdma-core loads at
boot for the client, svcrdma what nfsd asks for ("svc" and the listener's name, svc_xprt_create).
An alias of modprobe.d names a module, never another alias: so one more has the kernel's own stay
in reach.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError, UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.host import dkms, module_source, modules
from nfsrdma_tools.host.module_build import Build
from nfsrdma_tools.host.module_source import OURS
from nfsrdma_tools.host.transports import ASIDE, KERNELS
from nfsrdma_tools.undo import Journal, Remove, Run

__all__ = ["CONF", "Installed", "check", "install", "installed", "uninstall"]

CONF = Path("/etc/modprobe.d/nfsrdma.conf")
_TEXT = f"""# written by nfsrdma module install; it goes with nfsrdma module uninstall
# what a mount with proto=rdma and nfsd have the kernel ask for, and what rdma-core loads at boot
alias {KERNELS} {OURS}
alias {KERNELS}6 {OURS}
alias svcrdma {OURS}
alias xprtrdma {OURS}
# the kernel's own: modprobe {ASIDE}
alias {ASIDE} {KERNELS}
"""


@dataclass(frozen=True)
class Installed:
    """What `install` did, as /var/lib/nfsrdma/module.json keeps it."""

    version: str
    made: tuple[str, ...] = ()
    """What was not there and does not go with ``dkms remove``, folders before what is in them."""


def installed() -> Installed | None:
    """What is installed; None when nothing is, UserError when the file makes no sense."""
    try:
        row = json.loads(_state_file().read_text())
        return Installed(row["version"], tuple(row["made"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        what = f"{_state_file()} is damaged: {error!r}"
        raise UserError(what, "mend it or move it away") from error


def check() -> None:
    """UserError where it cannot be installed: before a long build."""
    _require_root()
    if installed() is None:
        _refuse_foreign(module_source.find().version)


def install(build: Build, book: Journal) -> bool:
    """Register with DKMS for the running kernel and lead mounts and nfsd to our module.

    ``build`` shows that it compiles, before anything is changed.  Nothing is loaded or unloaded.
    False when this source was installed already; another one is replaced.
    ``book`` takes a failed attempt back.
    """
    _require_root()
    source = module_source.find()
    if (old := installed()) and _in_effect(build):
        return False
    if old:
        uninstall()
    _refuse_foreign(source.version)
    here = Installed(source.version, _missing())
    for action in _way_back(here):
        book.add(action)
    _write(here)
    source.copy(dkms.source_folder(here.version))
    dkms.add_and_install(here.version, build.release)
    CONF.parent.mkdir(exist_ok=True)
    write_atomically(CONF, _TEXT)
    _verify(build)
    return True


def uninstall() -> Installed | None:
    """Take all of it back; None when nothing is installed.  May be repeated after a failure."""
    _require_root()
    here = installed()
    if here is None:
        return None
    kept = dkms.KEY if dkms.others() else ()
    for action in reversed(_way_back(here, kept)):
        action.undo()
    left = [str(path) for path in (CONF, dkms.source_folder(here.version)) if path.exists()]
    left += [f"dkms {x.version}" for x in dkms.registered() or [] if x.version == here.version]
    if left:
        raise MismatchError(f"{OURS} {here.version}", "gone", ", ".join(left))
    return here


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UserError("only root is allowed to install modules", "run this as root")


def _state_file() -> Path:
    return Path(os.environ.get("NFSRDMA_LIB", "/var/lib/nfsrdma")) / "module.json"


def _refuse_foreign(version: str) -> None:
    if dkms.registered() is None:
        raise ProgramMissingError("dkms")
    for path in (CONF, dkms.source_folder(version), dkms.TREE / OURS):
        if path.exists():
            what = f"{path} is there, and not by nfsrdma module install"
            other = f"move it away, or: dkms remove {OURS}/{version} --all"
            raise UserError(what, f"apt remove nfsrdma-dkms, if that is installed; else {other}")


def _missing() -> tuple[str, ...]:
    paths = (_state_file().parent, CONF.parent, *dkms.KEY)
    return tuple(str(path) for path in paths if not path.exists())


def _write(here: Installed) -> None:
    _state_file().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_state_file(), json.dumps(asdict(here), indent=1) + "\n")
    dkms.source_folder(here.version).mkdir(parents=True, exist_ok=True)


def _way_back(here: Installed, kept: tuple[Path, ...] = ()) -> list[Remove | Run]:
    """What takes the installation back, to be done from the last to the first."""
    folder = dkms.source_folder(here.version)
    return [
        *(Remove(path) for path in here.made if Path(path) not in kept),
        Remove(str(_state_file())),
        Run(("rm", "-r", "--", str(folder)), when=str(folder)),
        Run(dkms.remove(here.version), when=str(dkms.TREE / OURS / here.version)),
        Remove(str(CONF)),
    ]


def _in_effect(build: Build) -> bool:
    try:
        _verify(build)
    except MismatchError:
        return False
    return CONF.exists() and CONF.read_text() == _TEXT


def _verify(build: Build) -> None:
    """MismatchError unless modprobe leads mounts and nfsd to this build."""
    wanted = modules.in_file(build.path).srcversion
    for name in (KERNELS, f"{KERNELS}6", "svcrdma"):
        said = run("modprobe", "--show-depends", "--", name, check=False).stdout
        last = said.split()[-1] if said.split() else "nothing"
        if Path(last).name.split(".")[0] != OURS:
            hint = "does another file of modprobe.d speak of it?"
            raise MismatchError(f"the module for {name}", OURS, last, hint)
    file = modules.on_disk(OURS)
    if file is None or file.srcversion != wanted:
        found = f"{file.path} with {file.srcversion}" if file else "none"
        raise MismatchError(f"srcversion of the installed {OURS}", wanted, found)
