# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma mount``, ``umount`` and ``mounts``."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from nfsrdma_tools.cli.options import (
    DryRun,
    From,
    Json,
    Timeout,
    Verbose,
    argument,
    complete_mount,
    complete_personality,
    complete_transport,
    flag,
    machine_of,
    option,
    read_ahead_kb_option,
    read_ahead_option,
    rsize_option,
    vers_option,
    wsize_option,
)
from nfsrdma_tools.cli.output import print_changes, print_json, print_table
from nfsrdma_tools.errors import UsageError, UserError, printable
from nfsrdma_tools.host.nfs.personality import default_vers
from nfsrdma_tools.personalities import OPTIMISTIC, PERSONALITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nfsrdma_tools.host.machine import Machine
    from nfsrdma_tools.host.nfs.mount_state import MountState
    from nfsrdma_tools.host.nfs.mounting import MountRequest
    from nfsrdma_tools.host.nfs.mounts import Mount
    from nfsrdma_tools.host.nfs.requirements import Difference

__all__ = ["mount", "mounts", "parse_options", "umount"]

_NEGOTIATED = "the largest that client and server support"
_UNSET = "that of the kernel or of a udev rule"


def mount(
    target: Annotated[str, argument("SERVER:/PATH", "Export to mount.")],
    directory: Annotated[str, argument("DIR", "Mount point.")],
    options: Annotated[
        list[str] | None,
        option(
            "A,B=C,...",
            "Mount options of mount(8) and nfs(5), separated by commas; repeatable "
            "(default: none).",
            "--options",
            "-o",
        ),
    ] = None,
    transport: Annotated[
        str | None,
        option(
            "NAME",
            "rdma (module rpcrdma of the kernel), nfsrdma (module of this project) or tcp; append "
            "6, as in rdma6, to require IPv6. Without it, IPv4 is used if the server has it "
            "(default: rdma; nfsrdma with --personality or --optimistic).",
            complete=complete_transport,
        ),
    ] = None,
    vers: Annotated[str | None, vers_option("4.2; 3 with personality optimistic")] = None,
    rsize: Annotated[str | None, rsize_option(_NEGOTIATED)] = None,
    wsize: Annotated[str | None, wsize_option(_NEGOTIATED)] = None,
    nconnect: Annotated[
        int | None,
        option(
            "N",
            "Number of connections. The kernel's own client takes up to 16, vendors' clients more "
            "(default: 1).",
        ),
    ] = None,
    read_ahead: Annotated[int | None, read_ahead_option(_UNSET)] = None,
    read_ahead_kb: Annotated[int | None, read_ahead_kb_option(_UNSET)] = None,
    personality: Annotated[
        str | None,
        option(
            "NAME",
            "Protocol variant of transport nfsrdma, which the server has to accept: "
            f"{', '.join(PERSONALITIES)} (default: parameter personality of the module).",
            complete=complete_personality,
        ),
    ] = None,
    optimistic: Annotated[
        bool,
        flag(
            "Read the server's page cache by RDMA Read, without its CPU: short for "
            f"--personality {OPTIMISTIC}; NFSv3 only.",
            "--optimistic",
        ),
    ] = False,
    port: Annotated[
        int | None,
        option(
            "PORT",
            "Port of the server (default: 20049 for RDMA; for TCP 2049, with NFSv3 the port "
            "that the server's rpcbind reports).",
        ),
    ] = None,
    timeout: Timeout = 60,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Mount an export and verify the values in effect.

    Read each requested value back from the kernel.  If one differs, print both values, unmount, and
    exit with status 1.  Values that are not given are the defaults of the kernel and the server.
    """
    from nfsrdma_tools.host.nfs import mounting
    from nfsrdma_tools.undo import journal

    given = {
        "transport": transport,
        "personality": _personality_of(personality, optimistic),
        "vers": vers,
        "rsize": rsize,
        "wsize": wsize,
        "nconnect": str(nconnect) if nconnect is not None else None,
        "port": str(port) if port is not None else None,
    }
    values, others = parse_options(options or (), given)
    if "personality" in values:
        values.setdefault("transport", "nfsrdma")
    values.setdefault("vers", default_vers([values.get("personality", "")]))
    request = _request(target, directory, values, (read_ahead, read_ahead_kb), others)
    if dry_run:
        print_changes(mounting.mounting(request), as_json)
        return
    with journal() as changes:
        current = mounting.mount(request, changes, timeout)
        changes.keep()
    print_json(current.facts()) if as_json else _table([current])


def _personality_of(name: str | None, optimistic: bool) -> str | None:
    if not optimistic:
        return name
    if name not in (None, OPTIMISTIC):
        message = f"personality is both {OPTIMISTIC} (--optimistic) and {name} (--personality)"
        raise UsageError(message, "give one of the two")
    return OPTIMISTIC


# options of nfs(5), and the options of `nfsrdma mount` that mean the same
_EQUIVALENTS = {
    **{name: name for name in ("nconnect", "port", "rsize", "vers", "wsize")},
    "nfsvers": "vers",
    "proto": "transport",
}
_EQUIVALENT_FLAGS = {"rdma": "transport", "tcp": "transport"}


def parse_options(
    lists: Iterable[str], given: Mapping[str, str | None]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Parse comma lists of mount(8), such as ``vers=4.1,proto=rdma,rsize=64k,noatime``.

    Returns the values of `nfsrdma mount`'s own options by name, and all other mount options.
    ``given`` are the values of the command line's own options.  Raises UsageError when an option
    has two different values.
    """
    from nfsrdma_tools.host.nfs.mountinfo import split_options

    values = {name: value for name, value in given.items() if value is not None}
    others = []
    for word in (word for text in lists for word in split_options(text)):
        name, equals, value = word.partition("=")
        own = (_EQUIVALENTS if equals else _EQUIVALENT_FLAGS).get(name)
        if not own:
            others.append(word)
            continue
        before, now = values.get(own, value or name), value or name
        values[own] = _one_transport(before, now) if own == "transport" else now
        if before != now and own != "transport":
            raise UsageError(f"{own} is both {before} and {now}", "give one value")
    return values, tuple(others)


def _one_transport(before: str, now: str) -> str:
    """The transport that two words mean: rdma and rdma6 is rdma6, nfsrdma and rdma is nfsrdma."""
    plain = {before.removesuffix("6"), now.removesuffix("6")}
    if plain == {"nfsrdma", "rdma"}:
        # proto=rdma is the kernel's name of both
        plain = {"nfsrdma"}
    if len(plain) > 1:
        raise UsageError(f"transport is both {before} and {now}", "give one value")
    return plain.pop() + ("6" if "6" in before + now else "")


def _request(
    target: str,
    directory: str,
    values: dict[str, str],
    read_ahead: tuple[int | None, int | None],
    others: tuple[str, ...],
) -> MountRequest:
    from pathlib import Path

    from nfsrdma_tools.host.nfs.mounting import MountRequest
    from nfsrdma_tools.host.nfs.target import Target
    from nfsrdma_tools.host.transports import split_family
    from nfsrdma_tools.sizes import parse_size

    parsers: dict[str, Callable[[str], Any]] = {
        "rsize": parse_size,
        "wsize": parse_size,
        "nconnect": partial(_number, "nconnect"),
        "port": partial(_number, "port"),
    }
    fields = {name: parsers.get(name, str)(value) for name, value in values.items()}
    if "transport" in fields:
        fields["transport"], fields["ipv6"] = split_family(fields["transport"])
    blocks, kb = read_ahead
    return MountRequest(
        Target.parse(target),
        Path(directory),
        **fields,
        read_ahead=blocks,
        read_ahead_kb=kb,
        options=others,
    )


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}, not a number")
    return int(text)


def umount(
    # not a Path: typer checks paths, and hangs when the server is gone
    directory: Annotated[str, argument("DIR", "Mount point.", complete=complete_mount)],
    timeout: Timeout = 60,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Unmount an NFS mount and verify that it is gone.

    If the mount is busy, name the processes that use it.  Never force.
    """
    from pathlib import Path

    from nfsrdma_tools.host.nfs.mounting import unmount

    unmount(Path(directory), timeout=timeout)
    if as_json:
        print_json({"unmounted": directory})


def mounts(
    # not a Path: typer checks paths, and hangs when the server is gone
    directory: Annotated[
        str | None,
        argument("DIR", "Mount point (default: all NFS mounts).", complete=complete_mount),
    ] = None,
    require: Annotated[
        list[str] | None,
        option(
            "A=B,C,...",
            "Print only the mounts that do not have these values in effect: transport, vers, "
            "rsize, connections or another key of --json, or a mount option; repeatable "
            "(default: print all mounts).",
        ),
    ] = None,
    pid: Annotated[
        int | None,
        option("PID", "Read the mount namespace of a process (default: this one's).", least=1),
    ] = None,
    source: From = None,
    as_json: Json = False,
) -> None:
    """List the NFS mounts with the values in effect.

    MODULE is the module that serves proto=rdma, and its origin.

    Exit status: with --require 0 when all values are in effect, 1 when one is not, 2 when there is
    no answer: there is no such mount, it cannot be read, or the command line is wrong.
    transport=rdma is module rpcrdma, proto=rdma is either module; rdma6 requires IPv6. vers=4 is
    any 4.x, sec=krb5i:krb5p either. A name without a value is a flag, such as hard.
    """
    if source and pid:
        raise UsageError("--from and --pid exclude each other", "omit one of them")
    try:
        with machine_of(source, process=str(pid or "self")) as machine:
            if require:
                _check(machine, directory, require, as_json)
            else:
                _list(machine, directory, as_json)
    except (OSError, UserError) as error:
        problem = _unreadable(error, pid) if isinstance(error, OSError) else error
        if require:
            # 1 means that a mount does not meet the requirements
            problem.status = UsageError.status
        raise problem from error


def _unreadable(error: OSError, pid: int | None) -> UserError:
    if pid and isinstance(error, (FileNotFoundError, ProcessLookupError)):
        return UserError(f"there is no process {pid}")
    whose = f"process {pid}" if pid else "this host"
    return UserError(f"cannot read the mounts of {whose}: {error.strerror}")


def _list(machine: Machine, directory: str | None, as_json: bool) -> None:
    from nfsrdma_tools.host.nfs.mount_state import states
    from nfsrdma_tools.host.transports import loaded_origin, owner

    current = states(machine)
    if directory is not None:
        places = [_place(mount) for mount in _chosen(machine, directory)]
        current = [state for state in current if _place(state.mount) in places]
    over_rdma = any(map(_is_over_rdma, current))
    name = owner(machine) if over_rdma else ""
    origin = loaded_origin(name, machine)
    if as_json:
        none = {"module": "", "module_origin": ""}
        serves = {"module": name, "module_origin": origin}
        rows = [
            {**state.facts(), **(serves if _is_over_rdma(state) else none)} for state in current
        ]
        print_json({"mounts": rows})
        return
    module = f"{name} {origin}" if name else "unknown"
    _table(current, [module if _is_over_rdma(state) else "-" for state in current])


def _is_over_rdma(state: MountState) -> bool:
    return state.mount.transport in ("rdma", "nfsrdma")


def _place(mount: Mount) -> tuple[Path, str]:
    return mount.directory, mount.device


def _chosen(machine: Machine, directory: str | None) -> list[Mount]:
    """The mount on a directory, or all.  UserError if there is none on it."""
    from pathlib import Path

    from nfsrdma_tools.host.nfs import mounts

    if directory is None:
        return mounts.mounts(machine)
    nfs_mount = mounts.find(Path(directory), machine)
    if nfs_mount is None:
        raise UserError(f"{directory} is not an NFS mount point", "see `nfsrdma mounts`")
    return [nfs_mount]


def _check(machine: Machine, directory: str | None, require: list[str], as_json: bool) -> None:
    """Print the mounts that lack a required value, and exit with status 1 if there is one."""
    from nfsrdma_tools.host.nfs import requirements

    required = requirements.required_values(require)
    chosen = _chosen(machine, directory)
    if not chosen:
        raise UserError("there is no NFS mount", "mount one, or name its mount point")
    rows = [
        (mount, requirements.differences(of, required))
        for mount, of in _with_states(machine, chosen, required)
    ]
    met = not any(differences for _, differences in rows)
    if as_json:
        print_json({"met": met, "mounts": [_facts(*row) for row in rows]})
    else:
        for mount, differences in rows:
            if differences:
                print(printable(f"{mount.directory}: {'; '.join(map(str, differences))}"))
    if not met:
        sys.exit(1)


def _with_states(
    machine: Machine, chosen: list[Mount], required: Mapping[str, str]
) -> Iterator[tuple[Mount, Mount | MountState]]:
    """Each mount with its state, if a required value needs it: mountinfo can always be read."""
    from nfsrdma_tools.host.nfs import mount_state, requirements

    if required.keys().isdisjoint(requirements.OF_STATE):
        yield from ((mount, mount) for mount in chosen)
        return
    why = "was not recorded" if machine.recording else "cannot be read"
    states = {_place(state.mount): state for state in mount_state.states(machine)}
    for mount in chosen:
        if _place(mount) not in states:
            raise UserError(f"the counters of {mount.directory} cannot be read", "try again")
        state = states[_place(mount)]
        for name in ("connections", "read_ahead_kb"):
            if name in required and getattr(state, name) is None:
                raise UserError(f"{name} of {mount.directory} {why}")
        yield mount, state


def _facts(mount: Mount, differences: Sequence[Difference]) -> dict[str, object]:
    return {
        "directory": str(mount.directory),
        "target": str(mount.target),
        "differences": [difference._asdict() for difference in differences],
    }


def _table(states: Sequence[MountState], modules: Sequence[str] = ()) -> None:
    head: tuple[str, ...] = _HEAD
    rows = [*map(_row, states)]
    if modules or not states:
        head = (*head, "MODULE")
        rows = [(*row, printable(module)) for row, module in zip(rows, modules, strict=True)]
    print_table([head, *rows])


def _personality(state: MountState) -> str:
    if state.mount.transport != "nfsrdma":
        return "-"
    if not state.personality:
        return "unknown" if state.personality is None else "not connected"
    paused = " (paused)" if state.figures.get("optimistic_paused") else ""
    return f"{state.personality}{paused}"


_HEAD = (
    "DIRECTORY", "TARGET", "TRANSPORT", "VERS", "RSIZE", "WSIZE", "CONNECTIONS",
    "READ-AHEAD", "PERSONALITY", "SHARES WITH",
)  # fmt: skip


def _transport(mount: Mount) -> str:
    """The transport, with a 6 if it is used over IPv6."""
    return mount.transport + ("6" if mount.options.get("proto", "").endswith("6") else "")


_MOST_ADDRESSES = 4


def _connections(state: MountState) -> str:
    """Their number by the server's address, such as "16 to 192.0.2.1, 16 to 192.0.2.2"."""
    by_address = state.addresses
    if state.connections is None and not by_address:
        return "unknown"
    if by_address is None:
        known = state.mount.options.get("addr")
        return f"{len(state.xprts)} to {f'{known} and others' if known else 'unknown addresses'}"
    if len(by_address) > _MOST_ADDRESSES:
        first, *_, last = by_address
        counted = sum(by_address.values())
        return f"{counted} to {len(by_address)} addresses, {first} to {last}"
    return ", ".join(f"{count} to {address}" for address, count in by_address.items())


def _row(state: MountState) -> tuple[str, ...]:
    mount = state.mount
    blocks = state.read_ahead_blocks
    ahead = "unknown" if blocks is None else f"{state.read_ahead_kb} KiB = {blocks:g} blocks"
    cells = (
        mount.directory, mount.target, _transport(mount), mount.vers, mount.rsize, mount.wsize,
        _connections(state), ahead, _personality(state),
        ", ".join(map(str, state.shares_with)) or "-",
    )  # fmt: skip
    # a path may contain control characters
    return tuple(printable(str(cell)) for cell in cells)
