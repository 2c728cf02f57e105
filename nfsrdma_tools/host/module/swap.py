# SPDX-License-Identifier: Apache-2.0
"""Which module carries NFS over RDMA, changed: ours in place of the kernel's, and back.

There is room for one client: both register the class of the netid "rdma"; and for one server of a
name, which is "rdma" too unless asked otherwise.  Ours without a client and with another name goes
beside the kernel's.  The way back is in the journal before anything is changed, as commands that
do no harm when there is nothing to do, so it holds for any number of swaps in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError, MismatchError, UserError, one_line
from nfsrdma_tools.files import read
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module import state as module_state
from nfsrdma_tools.host.module.parameters import is_off
from nfsrdma_tools.host.module.source import OURS
from nfsrdma_tools.host.module.state import ModuleState, locked
from nfsrdma_tools.host.module.users import refuse_used
from nfsrdma_tools.host.transports import ASIDE, CARRIERS, KERNELS, owner, would_load
from nfsrdma_tools.host.tunables import Tunable
from nfsrdma_tools.undo import Journal, Remove, Run, Write

__all__ = ["beside", "check_room", "is_ready", "load", "prepare", "ready", "unload"]

_SYS = Path("/sys/module")
# parameters that are asked for when the module is loaded, and never again; with their defaults
_FIXED = {"client": "Y", "server_name": "rdma"}


def beside(settings: Mapping[str, str]) -> bool:
    """Whether ours with these parameters leaves the kernel's client and server where they are."""
    return is_off(settings.get("client", "Y")) and settings.get("server_name", "rdma") != "rdma"


def check_room(settings: dict[str, str]) -> None:
    """UserError unless ours could take the place of what carries now: before a long build."""
    _require_root()
    for name in _in_the_way(_kept() | settings):
        if name == KERNELS and name not in kernel_modules.loaded():
            hint = "boot a kernel that has it as a module"
            raise UserError(f"{KERNELS} is built into this kernel and cannot make room", hint)
        if name != OURS:
            refuse_used(name)


@locked()
def load(file: ModuleFile, settings: dict[str, str], book: Journal) -> bool:
    """Have the module in ``file`` carry NFS over RDMA; False when it did already.

    ``settings`` are checked parameters.  What is in its way is unloaded, and put back by ``book``
    when anything fails; see ``beside``.  Raises UserError that names who uses that one,
    CommandError with the kernel's words when it does not load, MismatchError when something else
    is loaded afterwards.
    """
    _require(file)
    if OURS in kernel_modules.loaded() and kernel_modules.srcversion(OURS) == file.srcversion:
        _set(settings, book)
        return False
    wanted = _kept() | settings
    state, going = module_state.load(), _in_the_way(wanted)
    first = state.before if state and OURS in going else ""
    before = next((name for name in going if name != OURS), first)
    prepare(book, file)
    for name in going:
        _take_out(name)
    module_state.save(ModuleState(file.path, wanted, before))
    _insert()
    return True


@locked()
def unload(book: Journal) -> str | None:
    """Take our module out and put back what was there before; returns that module's name.

    None when ours was not loaded.  UserError that names who uses it.
    """
    _require_root()
    if OURS not in kernel_modules.loaded():
        return None
    refuse_used(OURS)
    state = module_state.load()
    prepare(book)
    _take_out(OURS)
    if state and state.before:
        run(*_way_in(state.before))
        _prove(state.before)
    module_state.save(None)
    return state.before if state else ""


def prepare(book: Journal, file: ModuleFile | None = None) -> None:
    """Write down the way back to the module that carries now, and load what ``file`` stands on.

    To be called before the first ``ready``; one call is enough for all of them.
    """
    for name in file.depends if file else ():
        kernel_modules.load(name, book)
    state, kept = module_state.load(), str(module_state.path())
    book.add(Write(kept, read(Path(kept))) if state else Remove(kept))
    here = _carriers()
    if OURS in here:
        module_state.save(_as_loaded(state))
    for name in here:
        book.add(Run(_way_in(name), unless=str(_SYS / name)))
    for name in {KERNELS, OURS} - set(here):
        # undone first: the way in is free again
        book.add(Run(("rmmod", "--", name), when=str(_SYS / name)))


def is_ready(transport: str) -> bool:
    """Whether the right module carries ``transport`` already, or tcp, which needs none."""
    wanted, now = CARRIERS.get(transport, ""), owner()
    # a vendor's rpcrdma of another name is the kernel's, to us
    return not wanted or now == wanted or (wanted == KERNELS and now not in ("", OURS))


@locked()
def ready(transport: str) -> None:
    """Have the right module carry ``transport``; nothing to do for tcp, or when it does already.

    UserError that names who uses the other one.  ``prepare`` has noted the way back.
    """
    if is_ready(transport):
        return
    wanted, now = CARRIERS[transport], owner()
    if wanted == OURS and OURS in kernel_modules.loaded():
        raise UserError(f"{OURS} is loaded without its client", "nfsrdma module unload")
    if now:
        _take_out(now)
    if wanted == OURS:
        _insert()
    else:
        run(*_way_in(wanted))
        _prove(wanted)


def _require(file: ModuleFile) -> None:
    _require_root()
    built_for, running = file.vermagic.split(" ")[0], os.uname().release
    if file.name != OURS:
        raise UserError(f"{file.path} is the module {file.name!r}, not {OURS}", "name another file")
    if built_for != running:
        what = f"{file.path} was built for kernel {built_for}, {running} is running"
        raise UserError(what, "build it for this one: nfsrdma module build")


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UserError("only root is allowed to load and unload modules", "run this as root")


def _carriers() -> list[str]:
    """What is loaded of the kernel's module and ours."""
    found = [owner(), *({KERNELS, OURS} & kernel_modules.loaded().keys())]
    return sorted(set(filter(None, found)), reverse=True)


def _in_the_way(settings: Mapping[str, str]) -> list[str]:
    """What has to be unloaded before ours is loaded with these parameters."""
    return [name for name in _carriers() if name == OURS or not beside(settings)]


def _kept() -> dict[str, str]:
    """What ours was loaded as, if it is: also another build of it stays that."""
    now = kernel_modules.parameters(OURS) if OURS in kernel_modules.loaded() else {}
    return {name: now[name] for name in _FIXED if now.get(name, _FIXED[name]) != _FIXED[name]}


def _set(settings: Mapping[str, str], book: Journal) -> None:
    now = kernel_modules.parameters(OURS)
    for name, value in settings.items():
        if name in _FIXED and now.get(name) != value:
            what = f"{OURS} is loaded with {name}={now.get(name, '')}, and keeps that"
            raise UserError(what, "nfsrdma module unload, then do this again")
        if name not in _FIXED:
            Tunable.parse(f"{OURS}.{name}").set(value, book)


def _take_out(name: str) -> None:
    refuse_used(name)
    run("rmmod", "--", name)
    if name in kernel_modules.loaded():
        raise MismatchError(f"module {name}", "unloaded", "still in /proc/modules")


def _insert() -> None:
    """Load ours as the state says, or this source's build, and prove that it is what is loaded."""
    state = module_state.load() or ModuleState(str(module_build.build().path))
    log = _kernel_log()
    try:
        run(*_insmod(state))
    except CommandError as error:
        said = one_line(error.stderr) + _said_since(log)
        raise CommandError(error.argv, error.returncode, said) from error
    if not is_off(state.parameters.get("client", "Y")):
        _prove(OURS)
    wanted, found = (
        kernel_modules.in_file(Path(state.file)).srcversion,
        kernel_modules.srcversion(OURS),
    )
    if found != wanted:
        raise MismatchError(f"srcversion of {OURS}", wanted, found)
    values = kernel_modules.parameters(OURS)
    for name, value in state.parameters.items():
        if values.get(name) != value:
            raise MismatchError(f"{OURS}.{name}", value, values.get(name, "nothing"))


def _prove(name: str) -> None:
    if owner() != name:
        raise MismatchError("the module for proto=rdma", name, owner() or "none")


def _way_in(name: str) -> tuple[str, ...]:
    """The command that loads a carrier of NFS over RDMA, however it is called."""
    if name == OURS:
        return _insmod(module_state.load() or _as_loaded(None))
    # after `module install` the name rpcrdma leads to ours
    aside = name == KERNELS and would_load() == OURS
    return ("modprobe", "--", ASIDE if aside else name)


def _insmod(state: ModuleState) -> tuple[str, ...]:
    return ("insmod", state.file, *(f"{key}={value}" for key, value in state.parameters.items()))


def _as_loaded(state: ModuleState | None) -> ModuleState:
    """How to load ours again just as it is; UserError when its file is not there any more."""
    installed = kernel_modules.on_disk(OURS)
    places = [Path(x.file) for x in (state,) if x] + [Path(x.path) for x in (installed,) if x]
    places += module_build.all_cached(os.uname().release)
    for file in map(kernel_modules.in_file, filter(Path.is_file, places)):
        if file.srcversion == kernel_modules.srcversion(OURS):
            return ModuleState(
                file.path, kernel_modules.parameters(OURS), state.before if state else ""
            )
    what = f"the file that the loaded {OURS} came from is gone, it could not be put back"
    raise UserError(what, f"rmmod {OURS}, then do this again")


def _kernel_log() -> list[str]:
    return run("dmesg", check=False).stdout.splitlines()


def _said_since(log: list[str]) -> str:
    """The last that the kernel said of our module since, in brackets; "" when it said nothing."""
    old = set(log)
    new = (line for line in _kernel_log() if line not in old and f"{OURS}:" in line)
    last = next((line for line in reversed(list(new)) if "taint" not in line), "")
    return last and f" (the kernel: {last.partition('] ')[2] or last})"
