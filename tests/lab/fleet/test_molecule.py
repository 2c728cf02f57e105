# SPDX-License-Identifier: Apache-2.0
"""The molecule scenarios of the collection, with a lab as the driver."""

import subprocess
import sys
from pathlib import Path

import pytest
from lab.fleet.playbooks import environment

pytestmark = pytest.mark.nightly
SCENARIOS = ("short", "default", "module")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, tmp_path: Path) -> None:
    known = environment(tmp_path)
    place = Path(known["ANSIBLE_COLLECTIONS_PATH"], "ansible_collections/nfsrdma/tools")
    argv = (Path(sys.executable).with_name("molecule"), "test", "--scenario-name", scenario)
    done = subprocess.run(argv, cwd=place, env=known, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-8000:]
    # molecule also succeeds if the tags of the scenario select no task
    assert "in the requested state" in output
    assert "rolled back" in output
