# SPDX-License-Identifier: Apache-2.0
"""The rows of the page of tested hardware are certificates, and have no names of a host."""

from pathlib import Path

import pytest

from nfsrdma_tools.certify.result import ALL, CERTIFICATE, PASSED, Certificate
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.host.rdma.ports import SOFT_KINDS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "tools" / "tested-hardware").iterdir())
PAGE = (ROOT / "docs" / "reference" / "tested-hardware.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_row_is_a_certificate_as_a_bundle_has_it(file: Path) -> None:
    certificate = Certificate.from_json(file.read_text())
    assert {result.name for result in certificate.steps} <= {*ALL}
    made = Bundle(files={CERTIFICATE: certificate.without_texts().encode()})
    bundled = anonymized(made)
    assert bundled.withheld == {}
    assert Certificate.from_json(bundled.files[CERTIFICATE].decode()) == certificate
    assert certificate.of_status(PASSED)


def test_the_page_counts_the_real_cards() -> None:
    drivers = [Certificate.from_json(file.read_text()).row.driver for file in FILES]
    cards = [driver for driver in drivers if driver not in SOFT_KINDS]
    assert f"made these rows: {len(FILES)}, {len(cards) or 'none'} of a real card" in PAGE
