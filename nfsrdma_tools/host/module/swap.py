# SPDX-License-Identifier: Apache-2.0
"""Swaps the transport module of NFS over RDMA: ours in place of the kernel's, and back.

Only one module can be the client, because both register the class of the netid "rdma"; and only
one can be the server of a name, which is "rdma" by default for both.  Ours without a client and
with another server name can be loaded beside the kernel's.  Before any change, the journal gets
the undo, as commands that do nothing if there is nothing to do, so it holds for any number of
swaps.

Each client connection, and each listener and connection of nfsd, holds a reference to its
transport module, so it can be unloaded only when it has no users.  A mount in another namespace,
or one unmounted lazily, holds a reference that cannot be seen in mountinfo; /sys/kernel/sunrpc has
the addresses of its server.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nfsrdma_tools import files, module_source
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError, MismatchError, UserError, one_line
from nfsrdma_tools.files import read
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module.parameters import checked, is_off
from nfsrdma_tools.host.module.users import STOP, UNSEEN, ending, users
from nfsrdma_tools.host.rdma.ports import NoRdmaError
from nfsrdma_tools.host.state import ModuleState, module_state
from nfsrdma_tools.host.transports import (
    KERNELS,
    KERNELS_ALIAS,
    TRANSPORT_MODULES,
    alias_target,
    owner,
)
from nfsrdma_tools.host.tunables import Tunable
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.undo import Journal, Remove, Run, Write

__all__ = [
    "beside",
    "check_room",
    "is_ready",
    "load",
    "loading",
    "prepare",
    "ready",
    "unload",
    "unloading",
]

_SYS = Path("/sys/module")
# parameters that are fixed when the module is loaded, with their defaults
_FIXED = {"client": "Y", "server_name": "rdma"}
_SWITCHES = Path("/sys/kernel/sunrpc/xprt-switches")
# after the last unmount the kernel closes its connections asynchronously
_PATIENCE_S = 10.0
_STEP_S = 0.1


def beside(settings: Mapping[str, str]) -> bool:
    """Whether ours with these parameters can be loaded beside the kernel's module."""
    return is_off(settings.get("client", "Y")) and settings.get("server_name", "rdma") != "rdma"


def check_room(settings: dict[str, str]) -> None:
    """UserError unless ours can replace the loaded module: call it before a long build."""
    _require_root()
    _refuse_obstacles(settings)


def _refuse_obstacles(settings: dict[str, str]) -> None:
    for name in _to_unload(_fixed_parameters() | settings):
        if name == KERNELS and name not in kernel_modules.loaded():
            hint = "boot a kernel that builds it as a module"
            raise UserError(f"{KERNELS} is built into this kernel and cannot be unloaded", hint)
        if name != OURS:
            _refuse_used(name)


@module_state.locked()
def load(file: ModuleFile, settings: dict[str, str], journal: Journal) -> bool:
    """Make the module in ``file`` the transport module; False if it is already.

    ``settings`` are checked parameters.  Unloads the modules in its way; on failure ``journal``
    reloads them; see ``beside``.  Raises UserError that names the users of such a module,
    CommandError with the kernel's message if the module does not load, MismatchError if another
    module is loaded afterwards.
    """
    _require(file)
    if OURS in kernel_modules.loaded() and kernel_modules.srcversion(OURS) == file.srcversion:
        _set(settings, journal)
        return False
    wanted = _fixed_parameters() | settings
    state, going = module_state.load(), _to_unload(wanted)
    first = state.before if state and OURS in going else ""
    before = next((name for name in going if name != OURS), first)
    prepare(journal, file)
    for name in going:
        _remove(name)
    module_state.save(ModuleState(file.path, wanted, before))
    _insert()
    return True


def loading(path: Path | None, settings: Sequence[str]) -> list[str]:
    """The steps of ``load`` with a module file, or with the build of this source (None).

    Raises the errors of ``load`` that the present state causes, except that root is required.
    Builds nothing: without a cached build, the names and values of ``settings`` are not checked,
    and the modules that the build will need are unknown.
    """
    given = dict(setting.partition("=")[::2] for setting in settings)
    _refuse_obstacles(given)
    release, steps = os.uname().release, []
    if path is None:
        source = module_source.find()
        path = module_build.path_of(release, source)
        if not path.is_file():
            steps.append(f"build {path} for {release}")
    if not steps:
        file = kernel_modules.in_file(path)
        _require_running(file)
        given = checked(settings, file)
        if OURS in kernel_modules.loaded() and kernel_modules.srcversion(OURS) == file.srcversion:
            return [f"set {OURS}.{name} to {value}" for name, value in _differing(given)]
        path, here = Path(file.path), kernel_modules.loaded()
        needed = (name for name in file.depends if name not in here)
        steps += [f"run modprobe -- {name}" for name in needed]
    wanted = _fixed_parameters() | given
    insmod = shlex.join(_insmod(ModuleState(str(path), wanted)))
    return [*steps, *(f"run rmmod -- {name}" for name in _to_unload(wanted)), f"run {insmod}"]


@module_state.locked()
def unload(journal: Journal) -> str | None:
    """Unload our module and reload the one before it; returns that module's name.

    None if ours was not loaded.  UserError that names its users.
    """
    _require_root()
    if OURS not in kernel_modules.loaded():
        return None
    _refuse_used(OURS)
    state = module_state.load()
    prepare(journal)
    _remove(OURS)
    if state and state.before:
        run(*_load_command(state.before))
        _verify_owner(state.before)
    module_state.save(None)
    return state.before if state else ""


def unloading() -> list[str]:
    """The steps of ``unload``; none if ours was not loaded.  UserError that names its users."""
    if OURS not in kernel_modules.loaded():
        return []
    _refuse_used(OURS)
    state = module_state.load()
    before = state.before if state else ""
    return [f"unload the module {OURS}", *([f"load the module {before}"] if before else [])]


def prepare(journal: Journal, file: ModuleFile | None = None) -> None:
    """Record how to reload the current transport module, and load the modules ``file`` needs.

    Call it once before the first ``ready``.
    """
    for name in file.depends if file else ():
        kernel_modules.load(name, journal)
    state, kept = module_state.load(), str(module_state.path())
    journal.add(Write(kept, read(Path(kept))) if state else Remove(kept))
    here = _loaded_modules()
    if OURS in here:
        module_state.save(_as_loaded(state))
    for name in here:
        journal.add(Run(_load_command(name), unless=str(_SYS / name)))
    for name in {KERNELS, OURS} - set(here):
        # undone first, so that the other module can be loaded again
        journal.add(Run(("rmmod", "--", name), when=str(_SYS / name)))


def is_ready(transport: str) -> bool:
    """Whether the right module for ``transport`` is loaded; True for tcp, which needs none."""
    wanted, now = TRANSPORT_MODULES.get(transport, ""), owner()
    # treat a vendor's rpcrdma of another name as the kernel's
    return not wanted or now == wanted or (wanted == KERNELS and now not in ("", OURS))


@module_state.locked()
def ready(transport: str) -> None:
    """Load the right module for ``transport``; does nothing for tcp, or if it is loaded.

    UserError that names the users of the other module.  Call ``prepare`` before.
    """
    if is_ready(transport):
        return
    wanted, now = TRANSPORT_MODULES[transport], owner()
    if wanted == OURS and OURS in kernel_modules.loaded():
        raise UserError(f"{OURS} is loaded without its client", "run: nfsrdma module unload")
    if now:
        _remove(now)
    if wanted == OURS:
        _insert()
    else:
        run(*_load_command(wanted))
        _verify_owner(wanted)


def _require(file: ModuleFile) -> None:
    _require_root()
    _require_running(file)


def _require_running(file: ModuleFile) -> None:
    built_for, running = file.vermagic.split(" ")[0], os.uname().release
    if file.name != OURS:
        raise UserError(
            f"{file.path} is module {file.name!r}, expected {OURS}", "give another file"
        )
    if built_for != running:
        message = f"{file.path} was built for kernel {built_for}, but {running} is running"
        raise UserError(message, "build it for this one: nfsrdma module build")


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UserError("only root may load and unload modules", "run this as root")


def _loaded_modules() -> list[str]:
    """The loaded transport modules: the kernel's, ours, or both."""
    modules = [owner(), *({KERNELS, OURS} & kernel_modules.loaded().keys())]
    return sorted(set(filter(None, modules)), reverse=True)


def _to_unload(settings: Mapping[str, str]) -> list[str]:
    """The modules to unload before ours is loaded with these parameters."""
    return [name for name in _loaded_modules() if name == OURS or not beside(settings)]


def _fixed_parameters() -> dict[str, str]:
    """The fixed parameters of our loaded module, which another build of it keeps."""
    now = kernel_modules.parameters(OURS) if OURS in kernel_modules.loaded() else {}
    return {name: now[name] for name in _FIXED if now.get(name, _FIXED[name]) != _FIXED[name]}


def _set(settings: Mapping[str, str], journal: Journal) -> None:
    for name, value in _differing(settings):
        Tunable.parse(f"{OURS}.{name}").set(value, journal)


def _differing(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings that our loaded module does not have; UserError for one that is fixed."""
    now = kernel_modules.parameters(OURS)
    for name, value in settings.items():
        if name in _FIXED and now.get(name) != value:
            message = (
                f"{OURS} is loaded with {name}={now.get(name, '')}, and keeps that until unload"
            )
            raise UserError(message, "run nfsrdma module unload, then try again")
    return [(name, value) for name, value in settings.items() if now.get(name) != value]


def _remove(name: str) -> None:
    _refuse_used(name)
    kernel_modules.remove(name)


def _insert() -> None:
    """Load ours from the state, or this source's build, and verify that it is loaded."""
    state = module_state.load() or ModuleState(str(module_build.build().path))
    log = _kernel_log()
    try:
        run(*_insmod(state))
    except CommandError as error:
        message = one_line(error.stderr) + _last_message_since(log)
        raise CommandError(error.argv, error.returncode, message) from error
    if not is_off(state.parameters.get("client", "Y")):
        _verify_owner(OURS)
    wanted, loaded = (
        kernel_modules.in_file(Path(state.file)).srcversion,
        kernel_modules.srcversion(OURS),
    )
    if loaded != wanted:
        raise MismatchError(f"srcversion of {OURS}", wanted, loaded)
    values = kernel_modules.parameters(OURS)
    for name, value in state.parameters.items():
        if values.get(name) != value:
            raise MismatchError(f"{OURS}.{name}", value, values.get(name, "nothing"))


def _verify_owner(name: str) -> None:
    if owner() != name:
        raise MismatchError("the transport module for proto=rdma", name, owner() or "none")


def _load_command(name: str) -> tuple[str, ...]:
    """The command that loads a transport module, whatever its name."""
    if name == OURS:
        return _insmod(module_state.load() or _as_loaded(None))
    # after `module install` modprobe maps the name rpcrdma to ours
    aliased = name == KERNELS and alias_target() == OURS
    return ("modprobe", "--", KERNELS_ALIAS if aliased else name)


def _insmod(state: ModuleState) -> tuple[str, ...]:
    # the kernel splits parameters at blanks: a table has several entries, one word each
    words = (
        f"{key}={each}" for key, value in state.parameters.items() for each in value.split(" ")
    )
    return ("insmod", state.file, *words)


def _as_loaded(state: ModuleState | None) -> ModuleState:
    """How to reload ours as it is loaded now.  UserError if its file is gone."""
    installed = kernel_modules.on_disk(OURS)
    places = [Path(x.file) for x in (state,) if x] + [Path(x.path) for x in (installed,) if x]
    places += module_build.all_cached(os.uname().release)
    for file in map(kernel_modules.in_file, filter(Path.is_file, places)):
        if file.srcversion == kernel_modules.srcversion(OURS):
            return ModuleState(
                file.path, kernel_modules.parameters(OURS), state.before if state else ""
            )
    message = f"the file of the loaded {OURS} is gone, so nfsrdma could not reload it"
    raise UserError(message, f"run rmmod {OURS}, then try again")


def _kernel_log() -> list[str]:
    return run("dmesg", check=False).stdout.splitlines()


def _last_message_since(log: list[str]) -> str:
    """The kernel's last message about our module since, in brackets; "" if there is none."""
    old = set(log)
    new = (line for line in _kernel_log() if line not in old and f"{OURS}:" in line)
    last = next((line for line in reversed(list(new)) if "taint" not in line), "")
    return last and f" (the kernel: {last.partition('] ')[2] or last})"


def _refuse_used(name: str) -> None:
    """UserError that names the users of a module; waits while connections are closing."""
    end = time.monotonic() + _PATIENCE_S
    while not (holders := users(name)) and _references(name):
        if time.monotonic() > end:
            holders = [_unseen(name)]
            break
        time.sleep(_STEP_S)
    if holders:
        raise UserError(f"module {name} is in use by {', '.join(holders)}", _way_out(holders))
    while left := _forgotten(name):
        if time.monotonic() > end:
            message = f"module {name} has {left} connections that its server has forgotten"
            hint = "reboot: their device would call the module after it is gone"
            raise UserError(message, hint)
        time.sleep(_STEP_S)


def _forgotten(name: str) -> int:
    """The connections of a module without users.

    The kernel's server keeps those that were not accepted yet when nfsd stopped.  Their events
    crash the kernel once the module is gone.
    """
    from nfsrdma_tools.host.rdma import nldev

    try:
        return nldev.owned(name)
    except NoRdmaError:
        return 0


def _way_out(holders: list[str]) -> str:
    steps = ", then ".join(ending(holders))
    again = ", try again, then systemctl start nfs-server" if STOP in steps else ", then try again"
    return steps + again


def _references(name: str) -> int:
    module = kernel_modules.loaded().get(name)
    return module.users if module else 0


def _unseen(name: str) -> str:
    to = f" to {', '.join(servers)}" if (servers := _servers()) else ""
    count = _references(name)
    return f"{count} reference{'s' * (count > 1)}: {UNSEEN.format(to=to)}"


def _servers() -> list[str]:
    paths = _SWITCHES.glob("*/xprt-*-rdma/dstaddr")
    return sorted({files.text(path).strip() for path in paths})
