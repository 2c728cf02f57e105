# SPDX-License-Identifier: Apache-2.0
"""The module builds for each kernel of the lab without a warning of make W=1."""

import os
from pathlib import Path

import built
import pytest

from nfsrdma_tools.command import run
from nfsrdma_tools.host import module_source
from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.config import KERNELS

# no vmlinux lies beside the headers, so a module gets no types of its own
EXPECTED = ("Skipping BTF generation",)


@pytest.mark.skipif(os.geteuid() != 0, reason="no W=1 build: the image is mounted for it by root")
@pytest.mark.parametrize(
    "kernel", (KERNELS[0], *(pytest.param(k, marks=pytest.mark.nightly) for k in KERNELS[1:]))
)
def test_no_warning(kernel: str, tmp_path: Path) -> None:
    base, booted = image.build(extras=True), kernels.build(kernel)
    source = module_source.find().folder
    argv = (base.disk, booted.modules, booted.release, source, tmp_path / "nfsrdma.ko", "W=1")
    result = run("unshare", "-m", "sh", built.SCRIPT, *argv, timeout=1800)
    said = (result.stdout + result.stderr).splitlines()
    assert [line for line in said if not line.startswith(EXPECTED)] == []
