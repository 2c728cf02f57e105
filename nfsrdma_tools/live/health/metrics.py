# SPDX-License-Identifier: Apache-2.0
"""Metrics of the check, for the textfile collector of node_exporter.

The age has the name and the labels that it has in ``nfsrdma exporter``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nfsrdma_tools.host import transports
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.live.health.verdicts import NAMES, OK, Report, worst
from nfsrdma_tools.live.prometheus.families import FAMILIES
from nfsrdma_tools.live.prometheus.labels import cleaned

__all__ = ["metrics"]

_AGE = "nfsrdma_mount_oldest_rpc_seconds"
_MOUNT = "nfsrdma_mount_health_status"
_HOST = "nfsrdma_health_status"
_CODES = ", ".join(f"{code} {name.upper()}" for code, name in enumerate(NAMES))
_HELP = {
    _AGE: FAMILIES[_AGE].help,
    _MOUNT: f"Result of nfsrdma health for the mount: {_CODES}.",
    _HOST: f"Result of nfsrdma health for the host: {_CODES}.",
}


def metrics(report: Report, machine: Machine) -> str:
    """The metrics of a report in the text format of Prometheus."""
    owner = transports.owner(machine)
    ages: dict[str, float] = {}
    statuses: dict[str, int] = {}
    for verdict in report.verdicts:
        # one of another mount namespace may have the same path
        if verdict.where and not verdict.process:
            labels = _labels(verdict.where, transports.named(verdict.transport, owner))
            # mounts above each other have one path
            ages[labels] = max(verdict.age, ages.get(labels, 0.0))
            statuses[labels] = worst((verdict.status, statuses.get(labels, OK)))
    return "".join(
        [*_family(_AGE, ages), *_family(_MOUNT, statuses), *_family(_HOST, {"": report.status})]
    )


def _labels(*values: str) -> str:
    pairs = zip(FAMILIES[_AGE].labels, cleaned(values))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(name: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n"
    for labels, value in values.items():
        yield f"{name}{labels} {value:g}\n"
