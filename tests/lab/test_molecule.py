# SPDX-License-Identifier: Apache-2.0
"""The collection's molecule scenarios, with a lab as the delegated driver."""

import subprocess
import sys
from pathlib import Path

import pytest
from fleet import environment

pytestmark = pytest.mark.nightly
SCENARIOS = ("short", "default", "module")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, tmp_path: Path) -> None:
    known = environment(tmp_path)
    place = Path(known["ANSIBLE_COLLECTIONS_PATH"], "ansible_collections/nfsrdma/tools")
    argv = (Path(sys.executable).with_name("molecule"), "test", "--scenario-name", scenario)
    done = subprocess.run(argv, cwd=place, env=known, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-8000:]
    # tasks that its tags leave out succeed too
    assert "all is as asked" in said
    assert "all is taken back" in said
