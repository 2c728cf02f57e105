# SPDX-License-Identifier: Apache-2.0
"""Both modules build for each kernel of the lab without a warning of make W=1, or of sparse."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.config import MODULE_KERNELS

# no vmlinux lies beside the headers, so a module gets no types of its own
EXPECTED = ("Skipping BTF generation",)
# sparse has warnings of the kernel's headers, too; the source is in /opt/kmod
HEADERS = re.compile(r"(?!/opt/kmod/)\S+:\d+:\d+: ")
Find = Callable[[], module_source.Source]
MODULES = pytest.mark.parametrize(
    "find", (module_source.find, module_source.find_card), ids=("nfsrdma", "nfsrdma_card")
)


@pytest.mark.parametrize(
    "kernel",
    (MODULE_KERNELS[0], *(pytest.param(k, marks=pytest.mark.nightly) for k in MODULE_KERNELS[1:])),
)
@MODULES
def test_no_warning(kernel: str, find: Find, tmp_path: Path) -> None:
    checks = kernel == MODULE_KERNELS[0] and shutil.which("sparse")
    said = built_with(kernel, find().folder, tmp_path, "W=1", *(("C=2",) if checks else ()))
    assert [line for line in said if not (line.startswith(EXPECTED) or HEADERS.match(line))] == []
    if kernel == MODULE_KERNELS[0] and not checks:
        pytest.skip("no sparse; missed: address spaces, locks and constants of kmod")


def built_with(kernel: str, source: Path, folder: Path, *words: str) -> list[str]:
    """The output of a build of a module; ``words`` go to make."""
    base, booted = image.build(extras=True), kernels.build(kernel)
    result = kernels.compile_module(source, booted, base, folder / "built.ko", *words)
    return (result.stdout + result.stderr).splitlines()
