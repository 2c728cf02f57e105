# SPDX-License-Identifier: Apache-2.0
"""Both modules build for each kernel of the lab without a warning of make W=1, or of sparse."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.config import KERNELS

# no vmlinux lies beside the headers, so a module gets no types of its own
EXPECTED = ("Skipping BTF generation",)
Find = Callable[[], module_source.Source]
MODULES = pytest.mark.parametrize(
    "find", (module_source.find, module_source.find_card), ids=("nfsrdma", "nfsrdma_card")
)


@pytest.mark.parametrize(
    "kernel", (KERNELS[0], *(pytest.param(k, marks=pytest.mark.nightly) for k in KERNELS[1:]))
)
@MODULES
def test_no_warning(kernel: str, find: Find, tmp_path: Path) -> None:
    said = built_with(kernel, find().folder, tmp_path, "W=1")
    assert [line for line in said if not line.startswith(EXPECTED)] == []


@MODULES
def test_no_warning_of_sparse(find: Find, tmp_path: Path) -> None:
    if not shutil.which("sparse"):
        pytest.skip("no sparse; missed: address spaces, locks and constants of kmod")
    said = built_with(KERNELS[0], find().folder, tmp_path, "C=2")
    # the kernel's headers have warnings of their own
    assert [line for line in said if "/opt/kmod/" in line] == []


def built_with(kernel: str, source: Path, folder: Path, *words: str) -> list[str]:
    """The output of a build of a module; ``words`` go to make."""
    base, booted = image.build(extras=True), kernels.build(kernel)
    result = kernels.compile_module(source, booted, base, folder / "built.ko", *words)
    return (result.stdout + result.stderr).splitlines()
