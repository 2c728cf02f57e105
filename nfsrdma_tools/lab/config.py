# SPDX-License-Identifier: Apache-2.0
"""The configuration of a lab: shape, kernel, clock, link and RDMA devices."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from nfsrdma_tools import module_source
from nfsrdma_tools.errors import UsageError

__all__ = [
    "BUILT",
    "CHECKING",
    "FOREIGN",
    "KERNELS",
    "MODULE_KERNELS",
    "LabConfig",
    "Link",
    "clock_name",
]

# our modules build for these, and the image has the compiler of their headers
MODULE_KERNELS = ("6.12", "6.1", "7.2")
KERNELS = (*MODULE_KERNELS, "5.10")
# those of another architecture than the host's, with pages of 4, 16 and 64 KiB
FOREIGN = ("6.12-arm64", "6.12-arm64-16k", "6.12-arm64-64k")
# with KASAN and more, or with KCSAN
CHECKING = ("debug", "kcsan")
# compiled from Debian's source (kernels.py): Debian has no such kernels
BUILT = (*CHECKING, "6.12-arm64-64k")
_NICS = ("rxe", "siw", "card")
_SHAPES = ("solo", "pair")
_CLOCKS = ("wall", "instructions", "counted")
# how addresses of modelled cards get to memory, see machine.py
_DMA = ("direct", "swiotlb", "iommu")
_LINK = re.compile(r"(\d{1,4}[kmg]bit)/(\d{1,6})(us|ms)")


def clock_name(clock: str) -> str:
    """Words for messages: the clock ``instructions`` is the instruction clock."""
    return f"{clock.removesuffix('s')} clock"


@dataclass(frozen=True)
class Link:
    """The link: a rate for tc(8), and a round trip in microseconds; rate "": no limit."""

    rate: str = "1gbit"
    round_trip_us: int = 100

    @classmethod
    def parse(cls, text: str) -> Link:
        """Parse "1gbit/100us" (rate and round trip) or "none"."""
        if text == "none":
            return cls("", 0)
        match = _LINK.fullmatch(text)
        if not match:
            raise UsageError(f"{text!r} is not a link", "examples: 1gbit/100us, none")
        rate, number, unit = match.groups()
        return cls(rate, int(number) * (1000 if unit == "ms" else 1))

    def __str__(self) -> str:
        return f"{self.rate}/{self.round_trip_us}us" if self.rate else "none"

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of lab-link in the node: half of the round trip at each end."""
        return (self.rate, f"{self.round_trip_us / 2:g}us") if self.rate else ("none",)


@dataclass(frozen=True)
class LabConfig:
    """Configuration of a lab.  ``memory`` is in MiB per node.

    Each node has ``cpus`` CPUs on the wall clock, one CPU on the other clocks.
    With ``extras`` nodes have more programs, see image.py.
    """

    name: str
    shape: str = "solo"
    kernel: str = KERNELS[0]
    clock: str = "wall"
    link: str = ""
    clients: int = 1
    memory: int = 3072
    nic: str = _NICS[0]
    cpus: int = 2
    extras: bool = False
    kernel_args: str = ""
    """Added to the kernel's command line, such as "init_on_alloc=0"."""
    dma: str = ""
    """How modelled cards access memory: direct, swiotlb or iommu; "": by virtual DMA."""
    profile: str = ""
    """Driver whose limits and behaviours modelled cards have; "": those of the model."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", self.name):
            raise UsageError(
                f"{self.name!r} is not a lab name", "use a-z, 0-9 and -, up to 32 characters"
            )
        _one_of("shape", self.shape, _SHAPES)
        _one_of("kernel", self.kernel, KERNELS + CHECKING + FOREIGN)
        _one_of("clock", self.clock, _CLOCKS)
        _one_of("nic", self.nic, _NICS)
        if not 1 <= self.clients <= 16:
            raise UsageError(f"clients is {self.clients}", "it can be 1 to 16")
        if not 1 <= self.cpus <= 8:
            raise UsageError(f"cpus is {self.cpus}", "it can be 1 to 8")
        if len(self.kernel_args) > 1024 or not re.fullmatch(r"[!-~ ]*", self.kernel_args):
            raise UsageError(
                f"the kernel's arguments are {self.kernel_args!r}",
                "use up to 1,024 ASCII characters",
            )
        if not 512 <= self.memory <= 65536:
            raise UsageError(f"memory is {self.memory} MiB", "it can be 512 to 65536")
        self._check_machines()
        Link.parse(str(self.wire))

    def _check_machines(self) -> None:
        if self.kernel in FOREIGN and (self.clock, self.nic) != ("wall", _NICS[0]):
            raise UsageError(
                f"labs of {self.kernel} have the wall clock and soft-RoCE only",
                f"leave out --clock {self.clock} and --nic {self.nic}",
            )
        if self.shape == "pair" and self.clock == "instructions":
            raise UsageError(
                "two machines cannot share an instruction clock",
                "use --shape solo, or --clock counted or wall",
            )
        self._check_nic()
        Link.parse(str(self.wire))

    def _check_nic(self) -> None:
        if self.nic != _NICS[0] and self.kernel not in MODULE_KERNELS + CHECKING:
            raise UsageError(
                f"no module of {self.nic} devices can be built for kernel {self.kernel}",
                f"use --nic {_NICS[0]}",
            )
        if self.nic == "card" and self.shape != "solo":
            raise UsageError(
                "modelled cards connect only devices of one kernel",
                "use --shape solo with --nic card, or --nic rxe",
            )
        if self.dma:
            _one_of("dma", self.dma, _DMA)
        if self.profile:
            _one_of("profile", self.profile, module_source.card_profiles())
        for name, value in (("dma", self.dma), ("profile", self.profile)):
            if value and self.nic != "card":
                raise UsageError(
                    f"{name} is {value!r}, and only modelled cards have one",
                    f"use --nic card, or leave out --{name} {value}",
                )

    @property
    def wire(self) -> Link:
        """The requested link; the default is 1 Gb/s and 100 us for a solo lab, none for a pair."""
        default = "1gbit/100us" if self.shape == "solo" else "none"
        return Link.parse(self.link or default)

    @property
    def patience(self) -> int:
        """The factor for timeouts: kernels with run-time checks are slower."""
        return 5 if self.kernel in CHECKING else 1

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the machines, the server first."""
        if self.shape == "solo":
            return ("solo",)
        return ("server", *self.client_nodes)

    @property
    def client_nodes(self) -> tuple[str, ...]:
        """The machines that are only clients; none in a solo lab."""
        count = self.clients if self.shape == "pair" else 0
        return tuple(f"client{n}" for n in range(1, count + 1))

    @property
    def names(self) -> dict[str, str]:
        """All names of nodes, and the machine of each."""
        first = "solo" if self.shape == "solo" else "client1"
        server = "solo" if self.shape == "solo" else "server"
        aliases = {"server": server, "client": first, "client1": first}
        return {**aliases, **{node: node for node in self.nodes}}

    def machine_of(self, node: str) -> str:
        """The machine of a node name; in a solo lab all names mean the same machine."""
        if node not in self.names:
            raise UsageError(f"unknown node {node!r}", f"the nodes are {', '.join(self.names)}")
        return self.names[node]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    def with_link(self, link: str) -> LabConfig:
        """The same configuration with another link."""
        return replace(self, link=str(Link.parse(link)))


def _one_of(setting: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{setting} is {value!r}", f"it can be {', '.join(known)}")
