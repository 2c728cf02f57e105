# SPDX-License-Identifier: Apache-2.0
"""All released files have one version; Debian's packages name the libraries of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

from nfsrdma_tools import __version__

ROOT = Path(__file__).parents[2]
CONTROL = (ROOT / "debian/control").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("kmod/dkms.conf", r'^PACKAGE_VERSION="(.*)"$'),
        ("kmod/module.c", r'^MODULE_VERSION\("(.*)"\);$'),
        ("playbooks/galaxy.yml", r"^version: (.*)$"),
    ],
)
def test_files_that_other_programs_read_have_the_version_of_the_package(
    file: str, pattern: str
) -> None:
    assert re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE) == [__version__]


# dh_python3 names those of the core
@pytest.mark.parametrize("extra", ["report", "live"])
def test_debians_package_recommends_the_libraries_of_an_extra(extra: str) -> None:
    recommended = re.search(r"^Recommends:\n((?: .*\n)+)", CONTROL, re.MULTILINE)
    assert recommended
    named = set(re.findall(r"[\w.-]+", recommended[1]))
    # Debian's name of PyYAML is python3-yaml
    libraries = {re.split("[<>=]", each)[0].removeprefix("py") for each in EXTRAS[extra]}
    assert {f"python3-{each}" for each in libraries} <= named
