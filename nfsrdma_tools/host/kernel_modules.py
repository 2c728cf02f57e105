# SPDX-License-Identifier: Apache-2.0
"""Kernel modules: what is loaded, what lies on disk, whether it is real, who carries NFS over RDMA.

Vendor RDMA stacks (OFED, DOCA) replace modules they do not build with empty ones of the same name,
described as "rpcrdma dummy kernel module".  Such a module loads without an error and does nothing.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.undo import Journal, Run

__all__ = [
    "Module",
    "ModuleFile",
    "doubts",
    "in_file",
    "load",
    "loaded",
    "on_disk",
    "parameters",
    "parse_loaded",
    "parse_modinfo",
    "srcversion",
    "transport_owners",
    "unload",
    "version",
]


@dataclass(frozen=True)
class Module:
    """A loaded module, as a line of /proc/modules says (kernel/module/procfs.c)."""

    name: str
    size: int
    """In bytes."""
    users: int
    used_by: tuple[str, ...]
    taint: str
    """``O`` out of tree, ``E`` unsigned, ``P`` proprietary; empty for one of the kernel's own."""


@dataclass(frozen=True)
class ModuleFile:
    """A module that can be loaded, as modinfo(8) says; ``path`` is empty when it is built in."""

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
    """As modinfo has them: ``name:text (type)``."""

    @property
    def builtin(self) -> bool:
        """True when it is part of the kernel image."""
        return not self.path


def loaded(proc: Path = Path("/proc")) -> dict[str, Module]:
    """The loaded modules by name; empty on a kernel without modules."""
    try:
        return parse_loaded((proc / "modules").read_text())
    except FileNotFoundError:
        return {}


def parse_loaded(text: str) -> dict[str, Module]:
    """Parse /proc/modules: name size users used-by state address (taint)."""
    found = {}
    for line in text.splitlines():
        name, size, users, used_by, _state, _address, *taint = line.split()
        found[name] = Module(
            name=name,
            size=int(size),
            users=int(users) if users.isdigit() else 0,
            # "-" is nobody; "[permanent]" is no module
            used_by=tuple(user for user in used_by.split(",") if user and user[0] not in "-["),
            taint=taint[0].strip("()") if taint else "",
        )
    return found


def parameters(name: str, sys: Path = Path("/sys")) -> dict[str, str]:
    """The parameters of a loaded module; those this user may not read are left out."""
    found = {}
    for path in sorted((sys / "module" / _key(name) / "parameters").glob("*")):
        # a parameter may be write-only, even for root
        with contextlib.suppress(OSError):
            found[path.name] = path.read_text().rstrip("\n")
    return found


def srcversion(name: str, sys: Path = Path("/sys")) -> str:
    """The hash of its source that a loaded module was built with; "" for one without."""
    return _attribute(name, "srcversion", sys)


def version(name: str, sys: Path = Path("/sys")) -> str:
    """The version a loaded module gives itself; "" for one without, as the kernel's own are."""
    return _attribute(name, "version", sys)


def _attribute(name: str, what: str, sys: Path) -> str:
    try:
        return (sys / "module" / _key(name) / what).read_text().strip()
    except OSError:
        return ""


def on_disk(name: str) -> ModuleFile | None:
    """The file modprobe would load for ``name`` on the running kernel; None when there is none."""
    result = run("modinfo", "-0", "--", _checked(name), check=False)
    return parse_modinfo(result.stdout) if result.returncode == 0 else None


def in_file(path: Path) -> ModuleFile:
    """A module that lies anywhere; CommandError when the file is no module."""
    hint = "name a module file such as nfsrdma.ko"
    return parse_modinfo(run("modinfo", "-0", "--", path.absolute(), hint=hint).stdout)


def parse_modinfo(text: str) -> ModuleFile:
    """Parse ``modinfo -0``: ``filename:   PATH``, then ``key=value``, each ended by a NUL."""
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
    )


def doubts(file: ModuleFile, release: str) -> list[str]:
    """Why ``file``, that should be rpcrdma for kernel ``release``, cannot do its work; [] if none.

    The real one carries the aliases svcrdma and xprtrdma (net/sunrpc/xprtrdma/module.c) and uses
    the connection manager; a dummy does neither.
    """
    if file.builtin:
        return []
    found = []
    if "dummy" in file.description.lower():
        found.append(f"it calls itself {file.description!r}")
    if not {"svcrdma", "xprtrdma"} & set(file.aliases):
        found.append("it has no alias svcrdma or xprtrdma")
    if "rdma_cm" not in file.depends:
        found.append("it does not use rdma_cm")
    built_for = file.vermagic.split(" ")[0]
    if built_for != release:
        found.append(f"it was built for kernel {built_for or '(unknown)'}, {release} is running")
    return found


def transport_owners(modules: dict[str, Module]) -> list[str]:
    """The loaded modules that can own the netid ``rdma``: they use both sunrpc and rdma_cm.

    The kernel has no list of its client transport classes; this follows from who uses what.
    With one of these two built in, only the name tells.
    """
    if not {"sunrpc", "rdma_cm"} <= modules.keys():
        return sorted({"rpcrdma", "nfsrdma"} & modules.keys())
    return sorted(set(modules["rdma_cm"].used_by) & set(modules["sunrpc"].used_by))


def load(name: str, book: Journal) -> bool:
    """Load a module and what it needs; False when it was there.  Their removal goes to ``book``.

    CommandError when modprobe refuses, MismatchError when it is not in /proc/modules afterwards.
    """
    before = loaded()
    if _key(name) in before:
        return False
    new = [module for module in _needed(name) if module not in before]
    if new:
        # not modprobe -r: it would take along modules that were idle before
        book.add(Run(("rmmod", "--", *reversed(new))))
    run("modprobe", "--", name, hint="see: dmesg | tail")
    if new and _key(name) not in loaded():
        raise MismatchError(f"module {name}", "loaded", "not in /proc/modules")
    return bool(new)


def unload(name: str, book: Journal) -> bool:
    """Unload a module; False when it was not loaded.  Loading it again goes to ``book``.

    CommandError when it is in use, MismatchError when it is still there afterwards.
    """
    _checked(name)
    if _key(name) not in loaded():
        return False
    book.add(Run(("modprobe", "--", name)))
    run("rmmod", "--", name, hint="unmount, or stop nfsd, or remove the links that use it")
    if _key(name) in loaded():
        raise MismatchError(f"module {name}", "unloaded", "still in /proc/modules")
    return True


def _needed(name: str) -> list[str]:
    # lines are "insmod PATH [parameters]" or "builtin NAME", in the order of loading
    text = run("modprobe", "--show-depends", "--", _checked(name)).stdout
    paths = [line.split()[1] for line in text.splitlines() if line.startswith("insmod ")]
    return [_key(Path(path).name.split(".")[0]) for path in paths]


def _key(name: str) -> str:
    return name.replace("-", "_")


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,54}", name):
        raise UserError(f"module name {name!r}: expected letters, digits, _ and -")
    return name
