# SPDX-License-Identifier: Apache-2.0
"""Makes mounts with proto=rdma and nfsd use our module, now and after reboots.

Two things persist: the source below /usr/src, which DKMS builds for each kernel, and one file
below /etc/modprobe.d.  One list of undo actions serves both: the journal of a failed attempt and
`uninstall` run the same list.

For a mount the kernel asks modprobe for "rpc" and the netid, rpcrdma or rpcrdma6 (request_module
in net/sunrpc/xprt.c).  An alias of modprobe.d takes precedence over a module of that name
(libkmod's kmod_module_new_from_lookup), so one line maps it to our module.  rdma-core loads
xprtrdma at boot for the client; nfsd requests svcrdma ("svc" and the listener's name,
svc_xprt_create).  An alias of modprobe.d names a module, never another alias, so one more alias
keeps the kernel's own module available.

On a kernel for which DKMS has built no module, the aliases alone would leave mounts and nfsd
without any: modprobe does not try the next candidate if the module of an alias has no file or does
not load.  The install command of the same file loads the kernel's own module then.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files, module_source
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError, UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.module.build import Build, cached
from nfsrdma_tools.host.state import Installed, installed_state
from nfsrdma_tools.host.transports import CONF, KERNELS, KERNELS_ALIAS
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.undo import Journal, Remove, Run

__all__ = [
    "CONF",
    "Registered",
    "check",
    "install",
    "installed",
    "installing",
    "parse_dkms_status",
    "registered",
    "source_folder",
    "uninstall",
    "uninstalling",
]

_TEXT = f"""# written by nfsrdma module install; nfsrdma module uninstall removes it
# names that the kernel requests for mounts with proto=rdma and for nfsd, and that rdma-core loads
alias {KERNELS} {OURS}
alias {KERNELS}6 {OURS}
alias svcrdma {OURS}
alias xprtrdma {OURS}
# the kernel's own module: modprobe {KERNELS_ALIAS}
alias {KERNELS_ALIAS} {KERNELS}
# the kernel's own module where {OURS} does not load, such as on a kernel without a build of it
install {OURS} /sbin/modprobe -q -i {OURS} $CMDLINE_OPTS || /sbin/modprobe {KERNELS_ALIAS}
"""
# the state directory of DKMS, and its signing key: it makes the key at its first build and never
# removes it
_DKMS = Path("/var/lib/dkms")
_DKMS_KEY = (_DKMS / "mok.key", _DKMS / "mok.pub")
_DKMS_TIMEOUT = 3600  # in seconds; it includes a build
# "nfsrdma/0.1.0, 6.12.1-amd64, x86_64: installed", or "nfsrdma/0.1.0: added"
_DKMS_LINE = re.compile(
    rf"{OURS}[/, ]+(?P<version>[^,: ]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.+)"
)


@dataclass(frozen=True)
class Registered:
    """A registered version of the module, and its state for one kernel."""

    version: str
    kernel: str
    """Empty if the version is only added."""
    state: str
    """``added``, ``built`` or ``installed``, with the remarks of DKMS."""


def installed() -> Installed | None:
    """The installation; None if there is none.  UserError if the file is damaged."""
    return installed_state.load()


def check() -> None:
    """UserError if it cannot be installed: call it before a long build."""
    _require_root()
    if installed() is None:
        _refuse_foreign(module_source.find().version)


def install(build: Build, journal: Journal) -> bool:
    """Register with DKMS for the running kernel and map mounts and nfsd to our module.

    ``build`` proves that it compiles, before anything is changed.  Nothing is loaded or unloaded.
    False if this source was already installed; another version is replaced.
    ``journal`` reverts a failed attempt.
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
        journal.add(action)
    _write(here)
    source.copy(source_folder(here.version))
    _add_and_install(here.version, build.release)
    write_atomically(CONF, _TEXT)
    _verify(build)
    return True


def installing() -> list[str]:
    """The steps of ``install``, without a build; none if this source is installed.

    Raises the errors of ``install`` that the present state causes, except that root is required.
    """
    source, release = module_source.find(), os.uname().release
    old, path = installed(), cached(release, source)
    if old and path and _in_effect(Build(release, path, fresh=False)):
        return []
    steps = [] if path else [f"build {OURS} {source.version} for {release}"]
    if old:
        steps += uninstalling()
    else:
        _refuse_foreign(source.version)
    commands = _dkms_commands(source.version, release)
    return [
        *steps,
        f"copy {source.folder} to {source_folder(source.version)}",
        *(f"run {shlex.join(command)}" for command in commands),
        f"write {CONF}",
    ]


def _undo_step(action: Remove | Run) -> str:
    """The step of an undo action in the present state; "" if it has no effect."""
    if isinstance(action, Run):
        return f"run {action}" if Path(action.when).exists() else ""
    return str(action) if os.path.lexists(action.path) else ""


def uninstall() -> Installed | None:
    """Revert the installation; None if there is none.  Call it again after a failure."""
    _require_root()
    here = installed()
    if here is None:
        return None
    kept = _DKMS_KEY if _has_other_modules() else ()
    for action in reversed(_way_back(here, kept)):
        action.undo()
    left = [str(path) for path in (CONF, source_folder(here.version)) if path.exists()]
    left += [f"dkms {x.version}" for x in registered() or [] if x.version == here.version]
    if left:
        raise UserError(f"not removed: {', '.join(left)}", "repeat nfsrdma module uninstall")
    return here


def uninstalling() -> list[str]:
    """The steps of ``uninstall``; none if nothing is installed."""
    here = installed()
    if here is None:
        return []
    kept = _DKMS_KEY if _has_other_modules() else ()
    return [text for x in reversed(_way_back(here, kept)) if (text := _undo_step(x))]


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UserError("only root may install modules", "run this as root")


def _refuse_foreign(version: str) -> None:
    if registered() is None:
        raise ProgramMissingError("dkms")
    for path in (CONF, source_folder(version), _DKMS / OURS):
        if path.exists():
            message = f"{path} exists, and nfsrdma module install did not make it"
            other = f"move it away, or: dkms remove {OURS}/{version} --all"
            raise UserError(message, f"apt remove nfsrdma-dkms, if that is installed; else {other}")


def _missing() -> tuple[str, ...]:
    paths = (installed_state.path().parent, CONF.parent, *_DKMS_KEY)
    return tuple(str(path) for path in paths if not path.exists())


def _write(here: Installed) -> None:
    installed_state.save(here)
    source_folder(here.version).mkdir(parents=True, exist_ok=True)


def _way_back(here: Installed, kept: tuple[Path, ...] = ()) -> list[Remove | Run]:
    """The undo actions of the installation; run them from the last to the first."""
    folder = source_folder(here.version)
    return [
        *(Remove(path) for path in here.made if Path(path) not in kept),
        Remove(str(installed_state.path())),
        Run(("rm", "-r", "--", str(folder)), when=str(folder)),
        Run(_dkms_remove(here.version), when=str(_DKMS / OURS / here.version)),
        Remove(str(CONF)),
    ]


def _in_effect(build: Build) -> bool:
    try:
        _verify(build)
    except MismatchError:
        return False
    return CONF.exists() and files.text(CONF) == _TEXT


def _verify(build: Build) -> None:
    """MismatchError unless modprobe loads this build for mounts and nfsd."""
    wanted = kernel_modules.in_file(build.path).srcversion
    for name in (KERNELS, f"{KERNELS}6", "svcrdma"):
        # without -i, it prints the install command instead of the module
        output = run("modprobe", "--show-depends", "-i", "--", name, check=False).stdout
        last = output.split()[-1] if output.split() else "nothing"
        if Path(last).name.split(".")[0] != OURS:
            hint = "look for its name in the other files of modprobe.d"
            raise MismatchError(f"the module that modprobe loads for {name}", OURS, last, hint)
    file = kernel_modules.on_disk(OURS)
    if file is None or file.srcversion != wanted:
        actual = f"{file.path} with {file.srcversion}" if file else "none"
        raise MismatchError(f"srcversion of the installed {OURS}", wanted, actual)


def registered() -> list[Registered] | None:
    """The registered versions of the module; None if DKMS is not installed."""
    try:
        return parse_dkms_status(run("dkms", "status", "-m", OURS, check=False).stdout)
    except ProgramMissingError:
        return None


def _has_other_modules() -> bool:
    """Whether DKMS has other modules than ours; False if it is not installed."""
    try:
        lines = run("dkms", "status", check=False).stdout.splitlines()
    except ProgramMissingError:
        return False
    return any(line.strip() and not _DKMS_LINE.fullmatch(line.strip()) for line in lines)


def parse_dkms_status(text: str) -> list[Registered]:
    """Parse ``dkms status``."""
    matches = (_DKMS_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [Registered(m["version"], m["kernel"] or "", m["state"]) for m in matches if m]


def source_folder(version: str) -> Path:
    """The directory in which DKMS expects the source."""
    return Path(f"/usr/src/{OURS}-{version}")


def _dkms_commands(version: str, release: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands that register the source folder, and build and install it for a kernel."""
    words = ("-m", OURS, "-v", version)
    return ("dkms", "add", *words), ("dkms", "install", *words, "-k", release)


def _add_and_install(version: str, release: str) -> None:
    """Have DKMS build and install the source folder for a kernel, and verify it."""
    hint = f"see {_DKMS}/{OURS}/{version}/build/make.log"
    add, install = _dkms_commands(version, release)
    run(*add)
    run(*install, timeout=_DKMS_TIMEOUT, hint=hint)
    builds = [r for r in registered() or [] if (r.version, r.kernel) == (version, release)]
    if not builds or not builds[0].state.startswith("installed"):
        state = builds[0].state if builds else "not registered"
        raise MismatchError(f"{OURS}/{version} for {release}", "installed", state, hint)


def _dkms_remove(version: str) -> tuple[str, ...]:
    """The command that removes a version with its modules for all kernels."""
    return ("dkms", "remove", "-m", OURS, "-v", version, "--all")
