# SPDX-License-Identifier: Apache-2.0
"""Faults of other software fail their reproducers as it is, and pass them with its patch.

docs/dev/findings has a folder for each.
"""

import os
from pathlib import Path

import pytest
from lab.card.test_card_dma import bounced

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.kernel_modules import NFSD, XPRTRDMA, serve_rebuilt
from testbed.labs import cards_lab

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("findings")]

FINDINGS = Path(__file__).parents[3] / "docs/dev/findings"


def wrong_reads(lab: Lab) -> int:
    """The exit status of the reproducer, 1 if bytes differ."""
    file = FINDINGS / "nfsd-several-reads/reproduce.py"
    lab.run("server", "tee", "/run/reproduce.py", stdin=file.read_bytes())
    lab.run("server", "sh", "-c", "head -c 65536 /dev/urandom > /export/random")
    argv = ("python3", "/run/reproduce.py", "localhost", "/export/random")
    return lab.run("server", *argv, check=False).returncode


def test_nfsd_returns_several_reads(pytestconfig: pytest.Config) -> None:
    kernel = pytestconfig.getoption("--kernel")
    with Lab(LabConfig(f"test-several-reads-{os.getpid()}", kernel=kernel, extras=True)) as lab:
        assert wrong_reads(lab) == (kernel != "6.1")
        if kernel != "6.1":
            serve_rebuilt(lab, "server", FINDINGS / "nfsd-several-reads", NFSD)
            assert wrong_reads(lab) == 0


def test_svcrdma_stores_data_of_bounce_buffers(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--kernel") == "6.1":
        pytest.skip("the fault came with 6.8; missed: nothing")
    with cards_lab(pytestconfig, "bounce-buffers", dma="swiotlb") as lab:
        assert bounced(lab) == (True, False)
        serve_rebuilt(lab, "server", FINDINGS / "svcrdma-bounce-buffers", XPRTRDMA)
        assert bounced(lab) == (True, True)
