# SPDX-License-Identifier: Apache-2.0
"""Kernel modules: loaded modules, module files, and the modules that can own the netid rdma."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError, MismatchError, UserError
from nfsrdma_tools.host.machine import LIVE, Machine

if TYPE_CHECKING:
    from nfsrdma_tools.undo import Journal

__all__ = [
    "Module",
    "ModuleFile",
    "in_file",
    "load",
    "loaded",
    "on_disk",
    "parameters",
    "parse_loaded",
    "parse_modinfo",
    "remove",
    "srcversion",
    "transport_owners",
    "unload",
    "version",
]


class Module(NamedTuple):
    """A loaded module: a line of /proc/modules (kernel/module/procfs.c)."""

    name: str
    size: int
    """In bytes."""
    users: int
    used_by: tuple[str, ...]
    taint: str
    """``O`` out of tree, ``E`` unsigned, ``P`` proprietary; empty for a module of the kernel."""


class ModuleFile(NamedTuple):
    """A module file, as modinfo(8) describes it; ``path`` is empty for a built-in module."""

    name: str
    path: str
    description: str = ""
    vermagic: str = ""
    version: str = ""
    srcversion: str = ""
    intree: bool = False
    aliases: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    """As modinfo prints them: ``name:text (type)``."""
    signer: str = ""
    """The name in the certificate that signed it, else the kind of signature; "" if unsigned."""

    @property
    def builtin(self) -> bool:
        """True if the module is part of the kernel image."""
        return not self.path

    @property
    def built_for(self) -> str:
        """The release of the kernel that it was built for; "" if unknown."""
        return self.vermagic.partition(" ")[0]

    @property
    def has_symbol_versions(self) -> bool:
        """Whether the kernel compares its symbols' versions instead of the releases.

        same_magic() of kernel/module/version.c then skips the release in the version magic.
        """
        return "modversions" in self.vermagic.split()


def loaded(machine: Machine = LIVE) -> dict[str, Module]:
    """The loaded modules by name; empty on a kernel without modules."""
    try:
        return parse_loaded(machine.read("proc/modules"))
    except FileNotFoundError:
        return {}


def parse_loaded(text: str) -> dict[str, Module]:
    """Parse /proc/modules: name size users used-by state address (taint).

    UserError for another line, such as one of lsmod(8).
    """
    modules = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 6 or not words[1].isdecimal():
            raise UserError(f"invalid line in /proc/modules: {line[:80]!r}")
        name, size, users, used_by, _state, _address, *taint = words
        modules[name] = Module(
            name=name,
            size=int(size),
            users=int(users) if users.isdigit() else 0,
            # "-" means no user; "[permanent]" is not a module
            used_by=tuple(user for user in used_by.split(",") if user and user[0] not in "-["),
            taint=taint[0].strip("()") if taint else "",
        )
    return modules


def parameters(name: str, machine: Machine = LIVE) -> dict[str, str]:
    """The parameters of a loaded module; parameters that this user may not read are left out."""
    values = {}
    for path in sorted(machine.path(f"sys/module/{_key(name)}/parameters").glob("*")):
        # a parameter may be write-only, even for root
        with contextlib.suppress(OSError):
            values[path.name] = files.text(path).rstrip("\n")
    return values


def srcversion(name: str, machine: Machine = LIVE) -> str:
    """The srcversion of a loaded module, a hash of its source; "" if it has none."""
    return _attribute(name, "srcversion", machine)


def version(name: str, machine: Machine = LIVE) -> str:
    """The version of a loaded module; "" if it has none, like the kernel's own modules."""
    return _attribute(name, "version", machine)


def _attribute(name: str, attribute: str, machine: Machine) -> str:
    try:
        return files.text(machine.path(f"sys/module/{_key(name)}/{attribute}")).strip()
    except OSError as error:
        files.note_unread(error)
        return ""


def on_disk(name: str, machine: Machine = LIVE) -> ModuleFile | None:
    """The file modprobe would load for ``name`` on the running kernel; None if there is none."""
    result = machine.run("modinfo", "-0", "--", _checked(name))
    return parse_modinfo(result.stdout) if result.returncode == 0 else None


def in_file(path: Path, machine: Machine = LIVE) -> ModuleFile:
    """The module in a file at any path.  CommandError if the file is not a module."""
    result = machine.run("modinfo", "-0", "--", str(path.absolute()))
    if result.returncode:
        hint = "name a module file such as nfsrdma.ko"
        raise CommandError(result.argv, result.returncode, result.stderr, hint)
    return parse_modinfo(result.stdout)


def parse_modinfo(text: str) -> ModuleFile:
    """Parse ``modinfo -0``: ``filename:   PATH``, then ``key=value``, each terminated by a NUL."""
    fields: dict[str, list[str]] = {}
    for row in text.split("\0"):
        if match := re.fullmatch(r"(\w+)(?::\s*|=)(.*)", row, re.DOTALL):
            fields.setdefault(match[1], []).append(match[2].strip())
    first = {key: values[0] for key, values in fields.items()}
    path = first.get("filename", "")
    return ModuleFile(
        name=first.get("name", ""),
        path="" if path == "(builtin)" else path,
        description=first.get("description", ""),
        vermagic=first.get("vermagic", ""),
        version=first.get("version", ""),
        srcversion=first.get("srcversion", ""),
        intree=first.get("intree") == "Y",
        aliases=tuple(fields.get("alias", ())),
        depends=tuple(d for d in first.get("depends", "").split(",") if d),
        parameters=tuple(fields.get("parm", ())),
        # modinfo without OpenSSL knows the kind only
        signer=first.get("signer") or first.get("sig_id", ""),
    )


def transport_owners(modules: dict[str, Module]) -> list[str]:
    """The loaded modules that can own the netid ``rdma``: they use both sunrpc and rdma_cm.

    The kernel does not list its client transport classes; the module dependencies show them.
    If sunrpc or rdma_cm is built in, only the module's name is left to decide.
    """
    if not {"sunrpc", "rdma_cm"} <= modules.keys():
        return sorted({"rpcrdma", "nfsrdma"} & modules.keys())
    return sorted(set(modules["rdma_cm"].used_by) & set(modules["sunrpc"].used_by))


def load(name: str, journal: Journal) -> bool:
    """Load a module and its dependencies; False if it was loaded.  ``journal`` gets their removal.

    CommandError if modprobe fails, MismatchError if the module is not in /proc/modules afterwards.
    """
    from nfsrdma_tools.undo import Run

    before = loaded()
    if _key(name) in before:
        return False
    new = [module for module in _needed(name) if module not in before]
    if new:
        # not modprobe -r: it would also remove modules that were idle before
        journal.add(Run(("rmmod", "--", *reversed(new))))
    run("modprobe", "--", name, hint="see: dmesg | tail")
    if new and _key(name) not in loaded():
        raise MismatchError(f"module {name}", "loaded", "not in /proc/modules")
    return bool(new)


def unload(name: str, journal: Journal) -> bool:
    """Unload a module; False if it was not loaded.  ``journal`` gets the command that reloads it.

    CommandError if it is in use, MismatchError if it is still in /proc/modules afterwards.
    """
    from nfsrdma_tools.undo import Run

    _checked(name)
    if _key(name) not in loaded():
        return False
    journal.add(Run(("modprobe", "--", name)))
    remove(name, "unmount NFS, stop nfsd or remove the RDMA links that use it")
    return True


def remove(name: str, hint: str = "") -> None:
    """Remove a loaded module; ``hint`` is for a CommandError.

    CommandError if it is in use, MismatchError if it is still in /proc/modules afterwards.
    """
    run("rmmod", "--", name, hint=hint)
    if _key(name) in loaded():
        raise MismatchError(f"module {name}", "unloaded", "still loaded after rmmod", "see: dmesg")


def _needed(name: str) -> list[str]:
    # lines are "insmod PATH [parameters]" or "builtin NAME", in load order
    text = run("modprobe", "--show-depends", "--", _checked(name)).stdout
    paths = [line.split()[1] for line in text.splitlines() if line.startswith("insmod ")]
    return [_key(Path(path).name.split(".")[0]) for path in paths]


def _key(name: str) -> str:
    return name.replace("-", "_")


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,54}", name):
        raise UserError(f"module name {name!r}: expected letters, digits, _ and -")
    return name
