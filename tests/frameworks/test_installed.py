# SPDX-License-Identifier: Apache-2.0
"""The adapters under the frameworks: each release is installed in a venv of its own.

The frameworks themselves come without what they depend on, which would be several GB of libraries
for GPUs; what their modules import on a machine without a GPU is in ``FRAMEWORKS``.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from unit.device_fixtures import device_library

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError

__all__ = ["device_library"]

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
MINUTES = 30
# of this checkout's binding and of the tests
_COMMON = ("cffi>=1.15", "pytest>=8,<9.2", "numpy")


class Framework(NamedTuple):
    """A package, and those that its modules import."""

    package: str
    imports: tuple[str, ...]


FRAMEWORKS = [
    Framework("fastsafetensors", ("safetensors", "typer")),
    Framework(
        "lmcache",
        (
            "aiofile", "aiohttp", "cachetools", "cryptography", "msgspec", "numba",
            "prometheus-client", "psutil", "py-cpuinfo", "pyyaml", "pyzmq", "requests",
            "sortedcontainers", "transformers",
        ),
    ),
    Framework(
        "vllm",
        (
            "aiohttp", "cachetools", "cbor2", "cloudpickle", "fastapi", "llguidance", "msgspec",
            "openai", "openai-harmony", "partial-json-parser", "pillow", "prometheus-client",
            "psutil", "py-cpuinfo", "pybase64", "pyzmq", "regex", "requests", "transformers",
            "uvloop", "xgrammar",
        ),
    ),
]  # fmt: skip


@pytest.fixture(scope="session")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyTorch for the CPU: from the folders and pages of links that pip is configured with."""
    folder = tmp_path_factory.mktemp("torch")
    words = ("download", "-q", "--no-index", "--no-deps", "-d", folder, "torch")
    try:
        run(sys.executable, "-m", "pip", *words, timeout=60 * MINUTES)
    except CommandError:
        pytest.skip(
            "no PyTorch for the CPU: pip has no find-links with one, and the index has the one for "
            "GPUs, of more than 3 GB; missed: the adapters under their frameworks"
        )
    return next(folder.iterdir())


@pytest.fixture
def venv() -> Iterator[Path]:
    """A new venv; pytest would keep the folders of several runs, and each has GBs."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder, timeout=60 * MINUTES)
        yield Path(folder)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda each: each.package)
def test_the_adapter_passes(
    framework: Framework, torch: Path, device_library: Path, venv: Path
) -> None:
    del device_library
    python = venv / "bin" / "python"
    install = (python, "-m", "pip", "install", "-q")
    run(*install, torch, *_COMMON, *framework.imports, timeout=60 * MINUTES)
    try:
        run(*install, "--no-deps", framework.package, timeout=60 * MINUTES)
    except CommandError as error:
        pytest.skip(f"no {framework.package} for this Python and machine: {error}")
    script = Path(__file__).parent / f"{framework.package}_tests.py"
    words = ("-q", "-c", os.devnull, "--rootdir", script.parent, "--noconftest")
    options = ("--import-mode=importlib", "-p", "no:cacheprovider")
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = run(
        python, "-m", "pytest", *words, *options, script, env=environment, timeout=60 * MINUTES
    )
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert "skipped" not in done.stdout
