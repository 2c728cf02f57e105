# SPDX-License-Identifier: Apache-2.0
"""The result of each step, and the row of a certification for the page of tested hardware."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nfsrdma_tools import __version__
from nfsrdma_tools.doctor import bundle as bundles
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import rdma_routes
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.rdma.ports import SOFT_KINDS, Link
from nfsrdma_tools.json_records import INVALID, fault, typed
from nfsrdma_tools.personalities import PERSONALITIES

__all__ = [
    "ALL",
    "CERTIFICATE",
    "FAILED",
    "PASSED",
    "UNKNOWN",
    "Certificate",
    "Result",
    "Row",
    "StepName",
    "bundle_of",
    "link_of",
    "names",
    "row_of",
    "table",
]

CERTIFICATE = "var/lib/nfsrdma/certify.json"
"""The file in a bundle."""
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"
StepName = tuple[str, str]
"""A step, and the transport or the personality that it is about; "" for all."""
_FIRST: tuple[StepName, ...] = (
    ("doctor", ""), ("mount", "tcp"), ("mount", "rdma"), ("data", "tcp"), ("data", "rdma"),
    ("counts", "rdma"), ("sweep", ""),
)  # fmt: skip
_MODULE = (*(("data", name) for name in PERSONALITIES), ("counts", "nfsrdma"))
_LAST, _PULL = (("log", ""),), (("pull", "rdma"),)
ALL: tuple[StepName, ...] = (*_FIRST, *_MODULE, *_LAST, *_PULL)
_CARDS = {"rxe": "soft-RoCE", "siw": "soft-iWARP", "card": "modelled-card"}


def names(module: bool, pull: bool) -> tuple[StepName, ...]:
    """The steps of a certification in their order; ``module`` adds those of our module."""
    return (*_FIRST, *_MODULE * module, *_LAST, *_PULL * pull)


@dataclass(frozen=True)
class Result:
    """The result of a step: ``found`` is a line for this host's user, ``figures`` leave the host.

    ``seconds`` is its length.
    """

    step: str
    over: str
    status: str
    found: str
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> StepName:
        """The step that it is of."""
        return self.step, self.over

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result of ``asdict`` as JSON; UserError if it is none."""
        try:
            return typed(cls, json.loads(text))
        except INVALID as error:
            raise UserError(f"a stored result is invalid: {fault(error)}") from error


@dataclass(frozen=True)
class Row:
    """The hardware and software of a certification; "" or 0 stands for an unknown value."""

    card: str
    """Its numbers of vendor and device (PCI), or the name of a soft device."""
    driver: str
    firmware: str
    kernel: str
    protocol: str
    gbps: float
    nfsrdma: str
    date: str


@dataclass(frozen=True)
class Certificate:
    """A row and the results of its steps: the document that `nfsrdma certify` writes."""

    row: Row
    steps: tuple[Result, ...]

    def of_status(self, status: str) -> list[StepName]:
        """The steps of a status, in order; those that were not requested are unknown."""
        known = {result.name: result.status for result in self.steps}
        return [name for name in ALL if known.get(name, UNKNOWN) == status]

    @property
    def exit_status(self) -> int:
        """0 if all requested steps passed, 1 if one failed, else 3: one is unknown."""
        found = {result.status for result in self.steps}
        return 1 if FAILED in found else 3 if UNKNOWN in found else 0

    def to_json(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    def without_texts(self) -> dict[str, Any]:
        """The same without ``found``, which has names of this host."""
        steps = [{k: v for k, v in asdict(each).items() if k != "found"} for each in self.steps]
        return {**asdict(self), "steps": steps}

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate of a document of ``without_texts``; UserError if it is none."""
        try:
            plain = json.loads(text)
            steps = [{"found": "", **each} for each in plain["steps"]]
            return typed(cls, {**plain, "steps": steps})
        except INVALID as error:
            raise UserError(f"this is not a certificate: {fault(error)}") from error


def bundle_of(certificate: Certificate, server: str) -> Bundle:
    """An anonymized bundle of this host, with the certificate."""
    made = bundles.collect(server)
    made.files[CERTIFICATE] = json.dumps(certificate.without_texts()).encode()
    return anonymized(made)


def link_of(machine: Machine, target: str) -> Link | None:
    """The active RDMA port that carries the route to the server; None if there is none."""
    address = Target.parse(target).addresses()[0]
    plain, _, zone = address.partition("%")
    ports = rdma_routes.ports_of(machine, rdma_routes.route_to(machine, plain, zone)).ports
    return next((port for port in ports if port.active), None)


def row_of(machine: Machine, link: Link | None) -> Row:
    """The row of a port; without one it has the kernel only."""
    return Row(
        card=_card(machine, link) if link else "",
        driver=link.device.driver if link else "",
        firmware=link.device.firmware if link else "",
        kernel=machine.read("proc/sys/kernel/osrelease").strip(),
        protocol=link.device.protocol if link else "",
        gbps=_gbps(machine, link) if link else 0.0,
        nfsrdma=__version__,
        date=time.strftime("%Y-%m-%d"),
    )


def _card(machine: Machine, link: Link) -> str:
    if link.device.driver in SOFT_KINDS:
        return _CARDS[link.device.driver]
    ids = [_read(machine, link, f"device/{name}") for name in ("vendor", "device")]
    return ":".join(word.removeprefix("0x") for word in ids) if all(ids) else ""


def _gbps(machine: Machine, link: Link) -> float:
    # "100 Gb/sec (4X EDR)"
    word = _read(machine, link, f"ports/{link.port}/rate").partition(" ")[0]
    return float(word) if word.replace(".", "", 1).isdigit() else 0.0


def _read(machine: Machine, link: Link, name: str) -> str:
    folder = rdma_routes.folder(machine, "infiniband", link.device.name)
    try:
        return (folder / name).read_text().strip() if folder else ""
    except OSError:
        return ""


def table(certificates: Iterable[Certificate]) -> Sequence[tuple[str, ...]]:
    """The rows of the page of tested hardware; what is not known is marked so."""
    return [
        (
            *(text or UNKNOWN for text in (row.card, row.driver, row.firmware, row.kernel)),
            f"{row.protocol or UNKNOWN}, {f'{row.gbps:g} Gb/s' if row.gbps else UNKNOWN}",
            *(_listed(each.of_status(status)) for status in (PASSED, FAILED, UNKNOWN)),
            f"{row.nfsrdma}, {row.date}",
        )
        for each in certificates
        for row in (each.row,)
    ]


def _listed(steps: Sequence[StepName]) -> str:
    return ", ".join(" ".join(filter(None, step)) for step in steps) or "-"
