# SPDX-License-Identifier: Apache-2.0
"""Exports a directory persistently over TCP and RDMA, and reverts exactly that.

It writes only files of its own: one below /etc/exports.d per export,
/etc/nfs.conf.d/nfsrdma.conf for what the host's configuration does not request itself, and one
below /etc/modprobe.d for threadless reads.  It takes over an RDMA port that nfsd has, or that the
configuration requests.  systemd runs nfsd.  A running nfsd gets its listener through
/proc/fs/nfsd/portlist, without a restart; the kernel removes a listener only when the server stops,
so ``disable`` may restart it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from nfsrdma_tools import etab, files, undo
from nfsrdma_tools.command import is_installed, run
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.etab import EXPORTS_D, Exported
from nfsrdma_tools.host import kernel_modules, packages
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.host.nfsd import configuration, exports, nfsctl, threadless
from nfsrdma_tools.host.nfsd.configuration import Requested
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.nfsd.other_servers import OtherServer, other_server
from nfsrdma_tools.host.nfsd.threadless import Threadless
from nfsrdma_tools.host.nfsd_status import NfsdStatus, PendingList
from nfsrdma_tools.host.state import ServerState, server_state
from nfsrdma_tools.nfs_ports import RDMA_PORT
from nfsrdma_tools.undo import Journal, Remove, Run, Service, Unexport, Write

__all__ = [
    "CONF",
    "Enabled",
    "Serving",
    "disable",
    "disabling",
    "enable",
    "enabling",
    "serving",
    "verify",
]

CONF = Path("/etc/nfs.conf.d/nfsrdma.conf")
_VERSIONS = ("3", "4.0", "4.1", "4.2")
_UNIT = "nfs-server.service"
_PENDING = "rpc-status-get"
_POOL_MODE = "sys/module/sunrpc/parameters/pool_mode"


@dataclass(frozen=True)
class Serving:
    """The current state of this host's NFS server."""

    threads: int | None
    """None, like the listeners and the versions, if this user may not read them, or nobody recorded
    them."""
    listeners: tuple[Listener, ...] | None
    versions: tuple[str, ...] | None
    exports: tuple[Exported, ...]
    own: tuple[str, ...]
    """The paths that ``enable`` serves."""
    min_threads: int | None = None
    """The least number of threads, where the kernel adds and ends them as needed (Linux 7.0);
    ``threads`` is the greatest then.  None: it does not, or that is unknown."""
    pool_mode: str | None = None
    """How threads are divided among CPUs: ``global``, ``percpu``, ``pernode``, ``auto``."""
    pool_threads: tuple[int, ...] | None = None
    """The threads of each pool; None if this user may not read them."""
    max_block_size: int | None = None
    """The limit of rsize and wsize, in bytes; None if it is unknown."""
    io_cache_read: str | None = None
    """How nfsd reads files: ``buffered``, ``dontcache``, ``direct``, or a number that later kernels
    have.  None, like the next two: the kernel does not tell (before Linux 6.18; only root)."""
    io_cache_write: str | None = None
    splice_read: bool | None = None
    """Whether a READ may send pages of the page cache, without a copy."""
    other: OtherServer | None = None
    """The server that runs in place of the kernel's; None: none, or nobody recorded one."""
    threadless: Threadless | None = None
    """READs that module nfsrdma answers without nfsd; None: it is not loaded, or is too old."""
    pending: PendingList | None = None
    """The RPCs that threads of nfsd work on; None if that is unknown."""
    pending_unknown: str = ""
    """Why they are unknown."""


def serving(machine: Machine = LIVE) -> Serving:
    """Read the server's state from the kernel and etab: by netlink, else from /proc/fs/nfsd."""
    nfsd, status = machine.path("proc/fs/nfsd"), nfsd_status(machine)
    threads, listeners, versions = nfsctl.running(status), nfsctl.listening(status), None
    pools = status.pool_threads if threads else nfsctl.numbers(nfsd / "pool_threads")
    with contextlib.suppress(PermissionError):
        # a stopped nfsd reports the versions that it would offer, in netlink only
        if threads:
            versions = status.versions
        if versions is None and _is_known(machine, "versions"):
            versions = tuple(nfsctl.versions(machine))
        if threads is None and _is_known(machine, "threads"):
            threads = nfsctl.threads(machine)
    if listeners is None and _is_known(machine, "portlist"):
        listeners = tuple(nfsctl.listeners(machine))
    # our own state is that of this host only
    state = server_state.load() if machine.live else None
    return Serving(
        threads=threads,
        listeners=listeners,
        versions=versions,
        exports=tuple(etab.effective(machine.path("var/lib/nfs/etab"))),
        own=tuple(state.exports) if state else (),
        min_threads=status.min_threads if threads else None,
        pool_mode=status.pool_mode or machine.text(_POOL_MODE).strip() or None,
        pool_threads=pools or None,
        max_block_size=next(iter(nfsctl.numbers(nfsd / "max_block_size")), None),
        io_cache_read=nfsctl.io_mode(machine, "io_cache_read"),
        io_cache_write=nfsctl.io_mode(machine, "io_cache_write"),
        splice_read=nfsctl.splice_read(machine),
        other=other_server(machine),
        threadless=threadless.status(machine),
        pending=status.pending,
        pending_unknown=status.unknown.get(_PENDING, ""),
    )


def nfsd_status(machine: Machine) -> NfsdStatus:
    """What nfsd reports by netlink; all unknown if nobody recorded it, or it is the host's."""
    if nfsctl.is_hidden(machine):
        return NfsdStatus(unknown={_PENDING: "run this on the host"})
    try:
        return machine.nfsd_status()
    except NotRecordedError as error:
        return NfsdStatus(unknown={_PENDING: str(error)})


def _is_known(machine: Machine, name: str) -> bool:
    """Whether a missing file of nfsd means that nfsd does not run."""
    if nfsctl.is_hidden(machine):
        return False
    recording = machine.recording
    if recording is None or machine.path(f"proc/fs/nfsd/{name}").exists():
        return True
    # a bundle that another user than root made has portlist alone
    hidden = not machine.root_user and machine.path("proc/fs/nfsd/portlist").exists()
    return recording.complete and not hidden


@dataclass(frozen=True)
class Enabled:
    """The result of ``enable``."""

    changed: bool
    """False if all of it was in effect."""
    port: int
    """The RDMA port."""


def enable(
    export: Export,
    journal: Journal,
    port: int | None = None,
    versions: tuple[str, ...] = (),
    limit: int | None = None,
) -> Enabled:
    """Serve ``export`` over TCP and on RDMA ``port``, now and after each boot.

    Without ``port``, use the RDMA port that nfsd has or that is configured, else 20049.  Enabling
    ``versions`` ("3", "4.2") that are off restarts a running nfsd.  ``limit`` is that of threadless
    reads in bytes; 0 turns them off, None leaves them as they are.  ``journal`` reverts a failed
    attempt; call its keep() on success.
    Raises UserError for an export that cannot be served, MismatchError if the result differs.
    """
    _check(export, versions, limit)
    with server_state.locked():
        before = server_state.load()
        state = _planned(before, export, port, versions, limit)
        if state == before and _in_effect(export, state, limit):
            return Enabled(False, state.port)
        _note_undo(before, state, export, journal)
        server_state.save(state)
        _write_files(state)
        _serve(state)
        was = exports.previous(export.path)
        _write_export(export, was)
        verify(export, state)
        if limit is not None:
            threadless.set_limit(limit, journal)
        if limit:
            threadless.verify_port(state.port)
        return Enabled(True, state.port)


def _check(export: Export, versions: tuple[str, ...], limit: int | None) -> None:
    export.check()
    if limit is not None:
        threadless.check(limit)
    if unknown := set(versions) - set(_VERSIONS):
        raise UsageError(f"NFS version {min(unknown)!r}: expected one of {', '.join(_VERSIONS)}")
    _require_server()


def _require_server(machine: Machine = LIVE) -> None:
    """UserError unless nfs-utils' server and the kernel's nfsd are installed."""
    if not is_installed("exportfs"):
        message = "the NFS server is not installed: found no program exportfs"
        raise UserError(message, packages.install("nfs-server", machine=machine))
    if (other := other_server(machine)) and other.program:
        raise UserError(f"{other}: the kernel's server cannot", "stop that server first")
    if machine.path("sys/module/nfsd").exists() or not is_installed("modinfo"):
        return
    if kernel_modules.on_disk("nfsd", machine) is None:
        message = f"kernel {machine.release} has no module nfsd"
        raise UserError(message, "boot a kernel with CONFIG_NFSD")


def enabling(
    export: Export,
    port: int | None = None,
    versions: tuple[str, ...] = (),
    limit: int | None = None,
) -> list[str]:
    """The changes that ``enable`` would make, in order; none if all of it is in effect.

    Raises the errors of ``enable`` that the present state causes.
    """
    _check(export, versions, limit)
    try:
        before = server_state.load()
        state = _planned(before, export, port, versions, limit)
        if state == before and _in_effect(export, state, limit):
            return []
        changes = [*_file_changes(export, state), *_service_changes(state)]
        if limit not in (None, threadless.limit_of()):
            changes.append(f"set {threadless.NAME} to {limit}")
        return changes
    except PermissionError as error:
        raise UserError(f"cannot read {error.filename}", "run this as root") from error


def _file_changes(export: Export, state: ServerState) -> list[str]:
    changes = [
        f"write {path}"
        for path, text in _files(export, state).items()
        if not path.exists() or files.text(path) != text
    ]
    return [*changes, *(f"remove {path}" for path in _outdated(state))]


def _files(export: Export, state: ServerState) -> dict[Path, str]:
    """The files that serve the export, and their text."""
    texts = {exports.file_of(export.path): exports.render(export)}
    if state.writes_conf:
        texts[CONF] = _conf_text(state)
    if state.threadless:
        texts[threadless.CONF] = threadless.conf_text(state.threadless)
    return texts


def _outdated(state: ServerState) -> list[Path]:
    """The files of an earlier request that the state does not have any more."""
    return [path for path in (threadless.CONF,) if state.threadless == 0 and path.exists()]


def _service_changes(state: ServerState) -> list[str]:
    changes = ["export it to each client: exportfs -i -o OPTIONS CLIENT:PATH"]
    if not _is_active():
        changes.append(f"start {_UNIT}")
    elif not set(state.versions) <= set(nfsctl.versions()):
        changes.append(f"restart {_UNIT}: nfsd changes versions only when it starts")
    elif not _has_listener(state.port):
        changes.append(f"make nfsd listen on RDMA port {state.port}")
    return changes if _starts_at_boot() else [*changes, f"enable {_UNIT} at boot"]


def disable(path: str) -> None:
    """Stop serving ``path``; after the last one, restore nfsd, its listeners and its files.

    Call it again after a failure.  UserError if ``enable`` did not export ``path``.
    """
    with server_state.locked():
        state, path = _serving_state(path)
        file = Path(state.exports[path])
        # the file is removed last: it names the clients if this is interrupted
        etab.remove(exports.previous(Path(path)), file)
        files.remove(file)
        rest = {key: file for key, file in state.exports.items() if key != path}
        if not rest:
            _restore(state)
        server_state.save(replace(state, exports=rest) if rest else None)


def _serving_state(path: str) -> tuple[ServerState, str]:
    """The state, and ``path`` as ``enable`` was given it: /srv/data for /srv/data/."""
    state = server_state.load()
    # the directory may no longer exist, or be a link by now: compare the text first
    for name in (os.path.abspath(path), os.path.realpath(path)):  # noqa: PTH100 -- with ".."
        if state is not None and name in state.exports:
            return state, name
    raise UserError(f"{path} is not served by nfsrdma", "run: nfsrdma server status")


def disabling(path: str) -> list[str]:
    """The changes that ``disable`` would make, in order."""
    state, path = _serving_state(path)
    changes = [f"remove {state.exports[path]}"]
    changes += [f"stop exporting it to {e.client}" for e in exports.previous(Path(path))]
    if len(state.exports) > 1:
        return changes
    if state.writes_conf:
        changes.append(f"remove {CONF}")
    changes += threadless.restoring(state.threadless, state.threadless_was)
    if not state.was_active:
        changes.append(f"stop {_UNIT}")
    elif state.needs_restart:
        changes.append(f"restart {_UNIT}")
    return changes if state.was_enabled else [*changes, f"disable {_UNIT} at boot"]


def verify(export: Export, state: ServerState, hint: str = "") -> None:
    """MismatchError (with ``hint``) unless listeners, versions and export are in effect."""
    listeners = nfsctl.listeners()
    if not _has_listener(state.port) or "tcp" not in {x.transport for x in listeners}:
        shown = ", ".join(map(str, listeners)) or "none"
        raise MismatchError("nfsd listeners", f"tcp and rdma {state.port}", shown, "see dmesg")
    offered = nfsctl.versions()
    if not set(state.versions) <= set(offered):
        hint = "see nfs.conf(5): another file may disable the version"
        raise MismatchError("NFS versions", ", ".join(state.versions), ", ".join(offered), hint)
    exports.verify(export, hint)


def _has_listener(port: int) -> bool:
    """Whether nfsd listens on RDMA ``port``, with any transport module."""
    return any(listener.over_rdma and listener.port == port for listener in nfsctl.listeners())


def _planned(
    before: ServerState | None,
    export: Export,
    port: int | None,
    versions: tuple[str, ...],
    limit: int | None = None,
) -> ServerState:
    state = before or _first(port)
    if port not in (None, state.port):
        raise UserError(
            f"nfsd already serves RDMA on port {state.port}", f"use --rdma-port {state.port}"
        )
    if str(export.path) not in state.exports:
        exports.refuse_foreign(export)
    running = nfsctl.threads() > 0
    if running and not _is_active():
        raise UserError("nfsd runs, but nfs-server.service is inactive", "stop nfsd: rpc.nfsd 0")
    wanted = tuple(sorted({*state.versions, *versions}))
    lacks = running and not _offers(state.port, wanted)
    # after the first export, our own drop-in may be what requests the port
    ours = (state.writes_conf and state.requests_rdma) or not _requests(state.port)
    if limit is not None:
        earlier = threadless.limit_of() or 0
        was = earlier if state.threadless is None else state.threadless_was
        state = replace(state, threadless=limit, threadless_was=was)
    return replace(
        state,
        writes_conf=state.writes_conf or ours or any(map(_is_disabled, wanted)),
        requests_rdma=ours,
        needs_restart=state.needs_restart or (lacks and state.was_active),
        versions=wanted,
        exports={**state.exports, str(export.path): str(exports.file_of(export.path))},
    )


def _first(port: int | None) -> ServerState:
    asked = configuration.requested()
    listeners = [listener for listener in nfsctl.listeners() if listener.over_rdma]
    return ServerState(
        was_active=_is_active(),
        was_enabled=_starts_at_boot(),
        port=_chosen_port(asked, listeners, port),
        made=tuple(str(folder) for folder in (EXPORTS_D, CONF.parent) if not folder.exists()),
        listeners=tuple(
            str(listener) for listener in listeners if listener.port != asked.rdma_port
        ),
    )


def _chosen_port(asked: Requested, listeners: list[Listener], wanted: int | None) -> int:
    """The configured RDMA port, else one that nfsd has; UserError if another one is wanted."""
    places = {listener.port: f"nfsd listens on {listener}" for listener in listeners}
    if asked.rdma_port:
        places = {asked.rdma_port: f"{asked.rdma_source} requests it"}
    elif asked.fault:
        raise UserError(f"{asked.rdma_source}: {asked.fault}", f"set rdma-port={RDMA_PORT} there")
    if not places or wanted in places:
        return wanted or RDMA_PORT
    known = RDMA_PORT if RDMA_PORT in places else min(places)
    if wanted is None:
        return known
    message = f"RDMA port {wanted}: nfsd already has port {known} ({places[known]})"
    raise UserError(message, f"use --rdma-port {known}")


def _offers(port: int, versions: tuple[str, ...]) -> bool:
    return _has_listener(port) and set(versions) <= set(nfsctl.versions())


def _in_effect(export: Export, state: ServerState, limit: int | None = None) -> bool:
    if limit not in (None, threadless.limit_of()) or _outdated(state):
        return False
    try:
        verify(export, state)
    except MismatchError:
        return False
    texts = _files(export, state).items()
    return _starts_at_boot() and all(p.exists() and files.text(p) == text for p, text in texts)


def _note_undo(
    before: ServerState | None, state: ServerState, export: Export, journal: Journal
) -> None:
    """Record in the journal how to revert a failed attempt: files first, then the service."""
    file = server_state.path()
    if not file.parent.exists():
        journal.add(Remove(str(file.parent)))
    journal.add(undo.restoring(file))
    if before is None:
        for directory in state.made:
            journal.add(Remove(directory))
        if not state.was_enabled:
            journal.add(Run(("systemctl", "disable", "--quiet", _UNIT)))
        if not state.was_active:
            journal.add(Service("stop", _UNIT))
    if state.needs_restart and not (before and before.needs_restart):
        _note_restart(state, journal)
    _note_exports(export, journal)
    _note_files(_files(export, state) | dict.fromkeys(_outdated(state), ""), journal)


def _note_exports(export: Export, journal: Journal) -> None:
    was, file = exports.previous(export.path), str(exports.file_of(export.path))
    for each in export.entries:
        if not any(etab.is_client(old.client, [each.client]) for old in was):
            journal.add(Unexport(each.path, each.client, each.options, file))
    for each in was:
        journal.add(undo.Export(each.path, each.client, each.options))


def _note_restart(state: ServerState, journal: Journal) -> None:
    # in reverse: the restart removes these listeners
    for listener in state.listeners:
        journal.add(Write(str(nfsctl.PORTLIST), f"{listener}\n"))
    journal.add(Service("restart", _UNIT))


def _note_files(texts: dict[Path, str], journal: Journal) -> None:
    for path, text in texts.items():
        journal.add(undo.restoring(path, text))


def _write_export(export: Export, was: list[Exported]) -> None:
    """Export to the clients, and no longer to those of an earlier request."""
    file = exports.file_of(export.path)
    files.write_atomically(file, exports.render(export))
    etab.add(export.entries)
    etab.remove([e for e in was if not etab.is_client(e.client, export.clients)])


def _write_files(state: ServerState) -> None:
    for path in _outdated(state):
        files.remove(path)
    if state.threadless:
        files.write_atomically(threadless.CONF, threadless.conf_text(state.threadless))
    if state.writes_conf:
        files.write_atomically(CONF, _conf_text(state))
        hint = f"another file of {CONF.parent}, or an option of rpc.nfsd, overrides {CONF.name}"
        if not _requests(state.port):
            port = configuration.requested().rdma_port
            raise MismatchError("nfs.conf", f"rdma-port={state.port}", port, hint)
        for version in filter(_is_disabled, state.versions):
            raise MismatchError("nfs.conf", f"vers{version}=y", "n", hint)


def _serve(state: ServerState) -> None:
    if not _is_active():
        _systemctl("start")
    elif not set(state.versions) <= set(nfsctl.versions()):
        # the kernel changes versions only on a stopped server
        _restart(state)
    if not _has_listener(state.port):
        nfsctl.listen("rdma", state.port)
    if not _starts_at_boot():
        _set_boot(True)


def _restore(state: ServerState) -> None:
    if state.writes_conf:
        files.remove(CONF)
    threadless.restore(state.threadless, state.threadless_was)
    if not state.was_active:
        _systemctl("stop")
    elif state.needs_restart:
        _restart(state)
    if not state.was_enabled:
        _set_boot(False)
    for directory in map(Path, state.made):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
    kept = {int(listener.rpartition(" ")[2]) for listener in state.listeners}
    wanted = configuration.requested().rdma_port == state.port or state.port in kept
    if _has_listener(state.port) and state.needs_restart and not wanted:
        hint, listeners = "run: systemctl restart nfs-server", nfsctl.listeners()
        raise MismatchError("RDMA listener of nfsd", "none", ", ".join(map(str, listeners)), hint)


def _restart(state: ServerState) -> None:
    """Restart the NFS server, and let it listen again where nothing but portlist had it listen."""
    _systemctl("restart")
    for listener in state.listeners:
        transport, _, port = listener.partition(" ")
        if Listener(transport, int(port)) not in nfsctl.listeners():
            nfsctl.listen(transport, int(port))


def _is_active() -> bool:
    """Whether systemd has started the NFS server."""
    return run("systemctl", "is-active", "--quiet", _UNIT, check=False).returncode == 0


def _starts_at_boot() -> bool:
    """Whether systemd starts the NFS server at boot."""
    return run("systemctl", "is-enabled", "--quiet", _UNIT, check=False).returncode == 0


def _systemctl(verb: str) -> None:
    """``start``, ``stop`` or ``restart`` the NFS server; MismatchError if that failed."""
    with undo.keeping_exports(verb):
        run("systemctl", verb, _UNIT, hint=f"see: journalctl -u {_UNIT}")
    if _is_active() != (verb != "stop"):
        raise MismatchError(
            _UNIT,
            "inactive" if verb == "stop" else "active",
            "active" if _is_active() else "inactive",
            f"see: journalctl -u {_UNIT}",
        )


def _set_boot(on: bool) -> None:
    """Enable or disable the NFS server at boot."""
    run("systemctl", "enable" if on else "disable", "--quiet", _UNIT)
    if _starts_at_boot() != on:
        words = ("enabled", "disabled") if on else ("disabled", "enabled")
        raise MismatchError(f"{_UNIT} at boot", *words, f"see: systemctl status {_UNIT}")


def _requests(port: int) -> bool:
    """Whether the host's configuration makes nfsd listen on RDMA ``port``."""
    asked = configuration.requested()
    return asked.rdma_port == port and not asked.fault


def _conf_text(state: ServerState) -> str:
    """The text of a drop-in of nfs.conf with the RDMA port, unless others request it."""
    rdma = ("rdma=y", f"rdma-port={state.port}") if state.requests_rdma else ()
    lines = [
        "# written by nfsrdma server enable; nfsrdma server disable removes it",
        "[nfsd]",
        *rdma,
        *(f"vers{version}=y" for version in state.versions),
    ]
    return "\n".join(lines) + "\n"


def _is_disabled(version: str) -> bool:
    """Whether nfs.conf turns an NFS version off."""
    conf = configuration.NfsConf()
    values = (conf.get(key) for key in (f"vers{version}", f"vers{version[0]}"))
    return any(setting and not configuration.is_on(setting.value) for setting in values)
