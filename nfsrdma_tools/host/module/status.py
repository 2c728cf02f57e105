# SPDX-License-Identifier: Apache-2.0
"""Whose module carries NFS over RDMA here, and how ours stands: read, never changed."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module import dkms, server_debugfs
from nfsrdma_tools.host.module import install as module_install
from nfsrdma_tools.host.module import source as module_source
from nfsrdma_tools.host.module.dkms import Registered
from nfsrdma_tools.host.module.parameters import Parameter, known
from nfsrdma_tools.host.module.server_debugfs import Server
from nfsrdma_tools.host.module.source import OURS
from nfsrdma_tools.host.module.users import users
from nfsrdma_tools.host.transports import owner

__all__ = ["ParameterValue", "Status", "status"]


@dataclass(frozen=True)
class ParameterValue:
    """A parameter of our module, or else of the carrier; of ours also what it may be."""

    name: str
    value: str
    about: Parameter | None = None


@dataclass(frozen=True)
class Status:
    """All that `nfsrdma module status` shows."""

    release: str
    owner: str
    """The module that carries mounts over RDMA; "" when none is loaded."""
    version: str
    srcversion: str
    """Of the owner as it is loaded."""
    ours: str
    """The srcversion of our module as it is loaded, also beside the owner; "" when it is not."""
    server: Server | None
    """What our module serves; None when it is not loaded, or not as a server."""
    source: Path
    source_hash: str
    built: Path | None
    """Our module as this source was built for this kernel; None when it was not."""
    built_srcversion: str
    tunables: tuple[ParameterValue, ...]
    users: tuple[str, ...]
    registered: tuple[Registered, ...] | None
    """What DKMS knows; None when there is no DKMS."""
    installed: str
    """The version that `module install` made last; "" when none."""

    @property
    def current(self) -> bool | None:
        """Whether what is loaded is this source's build; None when ours is not loaded or built."""
        if not self.ours or not self.built_srcversion:
            return None
        return self.ours == self.built_srcversion


def status() -> Status:
    """Look at modules, source, cache and DKMS.  Works for any user."""
    release, source, carrier = platform.release(), module_source.find(), owner()
    built = module_build.cached(release, source)
    here = None
    with contextlib.suppress(UserError):
        here = module_install.installed()
    registered = dkms.registered()
    ours = OURS if OURS in kernel_modules.loaded() else ""
    return Status(
        release=release,
        owner=carrier,
        version=kernel_modules.version(carrier) if carrier else "",
        srcversion=kernel_modules.srcversion(carrier) if carrier else "",
        ours=kernel_modules.srcversion(ours) if ours else "",
        server=server_debugfs.server(),
        source=source.folder,
        source_hash=source.hash,
        built=built,
        built_srcversion=kernel_modules.in_file(built).srcversion if built else "",
        tunables=_tunables(ours or carrier, built),
        users=tuple(user for name in sorted({carrier, ours}) for user in users(name)),
        registered=None if registered is None else tuple(registered),
        installed=here.version if here else "",
    )


def _tunables(name: str, built: Path | None) -> tuple[ParameterValue, ...]:
    values = kernel_modules.parameters(name) if name else {}
    about = known(file) if name == OURS and (file := _description(built)) else {}
    return tuple(ParameterValue(name, value, about.get(name)) for name, value in values.items())


def _description(built: Path | None) -> ModuleFile | None:
    return kernel_modules.in_file(built) if built else kernel_modules.on_disk(OURS)
