# SPDX-License-Identifier: Apache-2.0
"""Which transport module serves NFS over RDMA here, and the status of ours (read only)."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import module_source
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module import install as module_install
from nfsrdma_tools.host.module import server_debugfs
from nfsrdma_tools.host.module.devices import DeviceLimits, devices
from nfsrdma_tools.host.module.install import Registered
from nfsrdma_tools.host.module.parameters import Parameter, known
from nfsrdma_tools.host.module.server_debugfs import ServerTransport
from nfsrdma_tools.host.module.users import users
from nfsrdma_tools.host.nfs.personality import ClientTransport, client_transports
from nfsrdma_tools.host.transports import owner
from nfsrdma_tools.module_source import OURS

__all__ = ["ParameterValue", "Status", "status"]


@dataclass(frozen=True)
class ParameterValue:
    """A parameter of our module (with its bounds) or of the other transport module."""

    name: str
    value: str
    about: Parameter | None = None


@dataclass(frozen=True)
class Status:
    """The data that `nfsrdma module status` prints."""

    release: str
    owner: str
    """The transport module that owns the netid rdma; "" if none is loaded."""
    version: str
    srcversion: str
    """Of the loaded owner."""
    origin: str
    """Whose the owner is: "of the kernel", "of vastnfs 4.0.34"; "" if none is loaded."""
    ours: str
    """The srcversion of our loaded module, whether or not it is the owner; "" if not loaded."""
    server: ServerTransport | None
    """Our module as a server; None if it is not loaded or has no server."""
    source: Path
    source_hash: str
    built: Path | None
    """The cached build of this source for this kernel; None if there is none."""
    built_srcversion: str
    tunables: tuple[ParameterValue, ...]
    users: tuple[str, ...]
    registered: tuple[Registered, ...] | None
    """Versions registered with DKMS; None if DKMS is not installed."""
    installed: str
    """The version that `module install` installed; "" if none."""
    transports: tuple[ClientTransport, ...] = ()
    """The client transports of our module; () for users other than root."""
    devices: tuple[DeviceLimits, ...] = ()
    """RDMA devices and their limits for our module, if it is loaded; () for users other than
    root."""

    @property
    def too_old(self) -> bool:
        """Whether the kernel is before those that our module builds for."""
        return module_source.is_too_old(self.release)

    @property
    def current(self) -> bool | None:
        """Whether the loaded module is this source's build; None if not loaded or not built."""
        if not self.ours or not self.built_srcversion:
            return None
        return self.ours == self.built_srcversion


def status() -> Status:
    """Read modules, source, cache and DKMS.  Works for any user."""
    release, source, module = platform.release(), module_source.find(), owner()
    built = module_build.cached(release, source)
    here = None
    with contextlib.suppress(UserError):
        here = module_install.installed()
    registered = module_install.registered()
    ours = OURS if OURS in kernel_modules.loaded() else ""
    return Status(
        release=release,
        owner=module,
        version=kernel_modules.version(module) if module else "",
        srcversion=kernel_modules.srcversion(module) if module else "",
        origin=transports.loaded_origin(module),
        ours=kernel_modules.srcversion(ours) if ours else "",
        server=server_debugfs.server(),
        source=source.folder,
        source_hash=source.hash,
        built=built,
        built_srcversion=kernel_modules.in_file(built).srcversion if built else "",
        tunables=_tunables(ours or module, built),
        users=tuple(user for name in sorted({module, ours}) for user in users(name)),
        registered=None if registered is None else tuple(registered),
        installed=here.version if here else "",
        transports=tuple(client_transports()),
        devices=tuple(devices()),
    )


def _tunables(name: str, built: Path | None) -> tuple[ParameterValue, ...]:
    values = kernel_modules.parameters(name) if name else {}
    about = known(file) if name == OURS and (file := _description(built)) else {}
    return tuple(ParameterValue(name, value, about.get(name)) for name, value in values.items())


def _description(built: Path | None) -> ModuleFile | None:
    return kernel_modules.in_file(built) if built else kernel_modules.on_disk(OURS)
