# SPDX-License-Identifier: Apache-2.0
"""The certificate: a row about hardware and software, and the result of each step."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NoReturn

from nfsrdma_tools import __version__
from nfsrdma_tools.errors import UserError, one_line
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
    "link_of",
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
# RDMA netlink and sysfs have none of these; no interface has the length of a list of pages
_LIMIT = re.compile(r"(?m)^\s*(max_qp_wr|max_sge|max_sge_rd|max_qp_rd_atom):\s*(\d{1,10})$")


@dataclass(frozen=True)
class Result:
    """The result of a step: ``found`` is a line for this host's user, ``figures`` leave the host.

    ``seconds`` is its length.
    """

    step: str
    over: str
    status: str
    found: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> StepName:
        """The step that it is of."""
        return self.step, self.over


@dataclass(frozen=True)
class Row:
    """The hardware and software of a certification; "" or 0 stands for an unknown value."""

    kernel: str
    nfsrdma: str
    date: str
    card: str = ""
    """Its numbers of vendor and device (PCI), or the name of a soft device."""
    driver: str = ""
    firmware: str = ""
    protocol: str = ""
    link_layer: str = ""
    gbps: float = 0.0
    limits: dict[str, int] = field(default_factory=dict)
    """Of the device, by the names of ibv_query_device(3)."""


@dataclass(frozen=True)
class Certificate:
    """A row and the results of its steps: the document that `nfsrdma certify` writes.

    ``module`` and ``pull`` are the optional steps that the user requested.
    """

    row: Row
    steps: tuple[Result, ...] = ()
    module: bool = False
    pull: bool = False

    @property
    def requested(self) -> tuple[StepName, ...]:
        """The steps that the user requested, in their order."""
        return (*_FIRST, *_MODULE * self.module, *_LAST, *_PULL * self.pull)

    def of_status(self, status: str) -> list[StepName]:
        """The steps of a status, in order; those that were not requested are unknown."""
        known = {result.name: result.status for result in self.steps}
        return [name for name in ALL if known.get(name, UNKNOWN) == status]

    @property
    def exit_status(self) -> int:
        """0 if all requested steps passed, 1 if one failed, else 3: one is unknown."""
        found = {result.status for result in self.steps}
        return 1 if FAILED in found else 3 if UNKNOWN in found else 0

    def without_texts(self) -> str:
        """A JSON document without ``found``, which has names of this host."""
        steps = [{k: v for k, v in asdict(each).items() if k != "found"} for each in self.steps]
        return json.dumps({**asdict(self), "steps": steps})

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate of a document, also without texts; UserError if it is none."""
        try:
            made: Certificate = typed(cls, json.loads(text, parse_constant=_no_number))
            for result in made.steps:
                if result.status not in (PASSED, FAILED, UNKNOWN):
                    raise ValueError(f"{one_line(result.status)!r} is no status of a step")
        except INVALID as error:
            raise UserError(f"this is not a certificate: {fault(error)}") from error
        return made


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of a certificate")


def link_of(machine: Machine, target: str) -> Link | None:
    """The active RDMA port that carries the route to the server; None if none is known."""
    try:
        address, _, zone = Target.parse(target).addresses()[0].partition("%")
        route = rdma_routes.route_to(machine, address, zone)
        ports = rdma_routes.ports_of(machine, route).ports
    except (UserError, OSError):
        return None
    return next((port for port in ports if port.active), None)


def row_of(machine: Machine, target: str) -> Row:
    """The row of the port that carries the route to a server; without one, of the kernel only."""
    kernel = machine.read("proc/sys/kernel/osrelease").strip()
    row = Row(kernel, __version__, time.strftime("%Y-%m-%d"))
    if not (link := link_of(machine, target)):
        return row
    device = link.device
    sysfs = f"sys/class/infiniband/{device.name}"
    ids = [machine.text(f"{sysfs}/device/{name}").strip()[2:] for name in ("vendor", "device")]
    # "100 Gb/sec (4X EDR)"
    rate = re.match(r"\d{1,6}(\.\d{1,6})?", machine.text(f"{sysfs}/ports/{link.port}/rate"))
    return replace(
        row,
        card=_CARDS[device.driver] if device.driver in SOFT_KINDS else ":".join(ids) * all(ids),
        driver=device.driver,
        firmware=device.firmware,
        protocol=device.protocol,
        link_layer=machine.text(f"{sysfs}/ports/{link.port}/link_layer").strip(),
        gbps=float(rate[0]) if rate else 0.0,
        limits=_limits(machine, device.name),
    )


def _limits(machine: Machine, device: str) -> dict[str, int]:
    try:
        text = machine.run("ibv_devinfo", "-v", "-d", device, timeout=10).stdout
    except UserError:
        # it is not installed
        return {}
    return {name: int(number) for name, number in _LIMIT.findall(text)}


def table(certificates: Iterable[Certificate]) -> Sequence[tuple[str, ...]]:
    """The rows of the page of tested hardware; an unknown value is marked as unknown."""
    return [
        (
            *(text or UNKNOWN for text in (row.card, row.driver, row.firmware, row.kernel)),
            ", ".join((row.protocol or UNKNOWN, row.link_layer or UNKNOWN,
                       f"{row.gbps:g} Gb/s" if row.gbps else UNKNOWN)),
            ", ".join(f"{name} {number}" for name, number in row.limits.items()) or UNKNOWN,
            *(_listed(each.of_status(status)) for status in (PASSED, FAILED, UNKNOWN)),
            f"{row.nfsrdma}, {row.date}",
        )
        for each in certificates
        for row in (each.row,)
    ]  # fmt: skip


def _listed(steps: Sequence[StepName]) -> str:
    return ", ".join(" ".join(filter(None, step)) for step in steps) or "-"
