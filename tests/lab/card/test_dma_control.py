# SPDX-License-Identifier: Apache-2.0
"""The instruments of the tests of DMA: the form that a lab has, and reports of wrong mappings."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.machine import IDLE_FUNCTION
from testbed import kernel_modules
from testbed.labs import cards_lab

VERBS, THERE = Path(__file__).with_name("card_verbs"), "/run/card_verbs.ko"
UNBIND = f"echo {IDLE_FUNCTION} > /sys/bus/pci/drivers/nfsrdma_card/unbind"
# the kernel's report, by the number of times that a mapping is ended
REPORTS = {
    0: "device driver has pending DMA allocations while released from device",
    1: "",
    2: "device driver tries to free DMA memory it has not allocated",
}
pytestmark = pytest.mark.nightly


# the last word of the kernel's command line takes effect
@pytest.mark.parametrize(
    ("dma", "kernel_args", "found"),
    [("iommu", "iommu.strict=0", "DMA-FQ"), ("direct", "swiotlb=force", "swiotlb")],
)
def test_a_lab_in_another_form_does_not_start(
    pytestconfig: pytest.Config, dma: str, kernel_args: str, found: str
) -> None:
    name, kernel = f"test-form-{os.getpid()}", pytestconfig.getoption("--kernel")
    config = LabConfig(
        name, kernel=kernel, nic="card", extras=True, dma=dma, kernel_args=kernel_args
    )
    with pytest.raises(UserError, match=f"requested {dma}, got {found}"), Lab(config):
        pass


@pytest.mark.checking
@pytest.mark.skipif(os.geteuid() != 0, reason="no verbs module: only root can build it")
@pytest.mark.parametrize("times", REPORTS)
def test_mappings_that_do_not_end_once_are_reported(
    pytestconfig: pytest.Config, times: int
) -> None:
    if pytestconfig.getoption("--kernel") != "debug":
        pytest.skip("the kernel has no CONFIG_DMA_API_DEBUG; missed: wrong mappings")
    report = REPORTS[times]
    expected = pytest.raises(KernelReportError, match=report) if report else nullcontext()
    # an IOMMU reports the second end of a mapping itself, and first
    with cards_lab(pytestconfig, "unmaps", dma="direct") as lab:
        kernel_modules.place(lab, VERBS, THERE, "client")
        with expected:
            lab.run("client", "insmod", THERE, f"unmaps={times}", timeout=1800)
            lab.run("client", "rmmod", "card_verbs")
            lab.run("client", "sh", "-c", UNBIND)
