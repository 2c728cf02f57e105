# SPDX-License-Identifier: Apache-2.0
"""The check of our transport module: installed, loaded, its build, its source, its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.host import kernel_modules, rpcrdma
from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.transports import CONF, KERNELS
from nfsrdma_tools.module_source import OURS

__all__ = ["judge", "module"]


def module(machine: Machine) -> Iterator[Finding]:
    """An installed nfsrdma has a build for this kernel; a loaded one was built from this source."""
    installed = machine.path(str(CONF.relative_to("/"))).exists()
    if installed and kernel_modules.on_disk(OURS, machine) is None:
        yield _unbuilt(machine.release)
        return
    machine.require("proc/modules")
    path = machine.fact("module build", lambda: _build(machine.release))
    built = kernel_modules.in_file(Path(path), machine) if path else None
    there = OURS in kernel_modules.loaded(machine.path("proc"))
    running = kernel_modules.srcversion(OURS, machine.path("sys")) if there else None
    values = kernel_modules.parameters(OURS, machine.path("sys"))
    yield judge(built, running, values, rpcrdma.signature_rule(machine))


def _build(release: str) -> str:
    # of a recording, this is a fact
    from nfsrdma_tools import module_source
    from nfsrdma_tools.host.module import build as module_build

    return str(module_build.cached(release, module_source.find()) or "")


def _unbuilt(release: str) -> Finding:
    found = f"installed, but DKMS has no build for {release}: mounts and nfsd use {KERNELS}"
    remedy = f"install the headers of {release}, then: dkms autoinstall -k {release}"
    return Finding(OURS, "warning", found, f"{OURS}.ko for {release}", remedy)


def judge(
    built: ModuleFile | None, running: str | None, values: dict[str, str], signed_only: str = ""
) -> Finding:
    """Judge our module by its cached build and the loaded srcversion (None: not loaded).

    ``signed_only`` is why the kernel loads signed modules only, "" if it does not.
    """
    if running is None:
        if built and signed_only and not built.signer:
            found = f"not loaded, and the build is not signed: {signed_only}"
            remedy = f"sign {built.path} with a key of the machine's owner (MOK)"
            return Finding(OURS, "warning", found, "a signed module", remedy)
        state = "built for this kernel" if built else "not built for this kernel"
        return Finding(OURS, "ok", f"not loaded, {state}")
    if built is None:
        remedy = "run nfsrdma module build to compare it with this source"
        return Finding(OURS, "ok", f"loaded, srcversion {running}; not built here", "", remedy)
    if running != built.srcversion:
        found = f"loaded with srcversion {running}, this source has {built.srcversion}"
        return Finding(OURS, "warning", found, "the same srcversion", "nfsrdma module load")
    from nfsrdma_tools.host.module import parameters as module_parameters

    changed = module_parameters.changed(values, built)
    tuned = ", ".join(f"{name}={value}" for name, value in changed.items()) or "none"
    return Finding(OURS, "ok", f"loaded, built from this source; changed parameters: {tuned}")
