# SPDX-License-Identifier: Apache-2.0
"""Which clients and servers work together: each pair does the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from nfsrdma_tools.lab.config import MODULE_KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.personalities import DEFAULT, PERSONALITIES
from testbed.interoperation import PATIENT, cell
from testbed.kerberos import kerberos
from testbed.labs import OURS, THEIRS, WHOSE, carry, serve
from testbed.mounts import set_to

VERSIONS = ("3", "4.0", "4.1", "4.2")
SYS, KERBEROS = ("sys",), ("krb5", "krb5i", "krb5p")
PAGE = Path(__file__).parents[2] / "docs" / "dev" / "interoperation.md"
START, END = "<!-- table: make bench NAME=matrix -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Place:
    """Where cells are tried: a kernel, a kind of RDMA devices, Kerberos' flavours, and versions."""

    kernel: str
    nic: str = "rxe"
    kerberos: tuple[str, ...] = KERBEROS
    versions: tuple[str, ...] = VERSIONS

    def __str__(self) -> str:
        return f"{self.kernel}, {self.nic}"


PLACES = {kernel: Place(kernel) for kernel in MODULE_KERNELS}
# Debian builds no soft-iWARP, the debug kernel has it, and is slow
PLACES["siw"] = Place("debug", "siw", ("krb5p",), ("3", "4.2"))
# the kernel's own client and server, without RDMA: what fails there too is no transport's fault
TCP = "over TCP"
# for a delegation that nobody gets over TCP, in seconds
BRIEF = 10.0
# what our client may request of a server, and the versions that are tried with it
REQUESTED = tuple(name for name in PERSONALITIES if name != DEFAULT)
FEW = ("3", "4.2")
Key = tuple[str, str, str, str]
OverTcp = dict[tuple[str, str], dict[str, str]]


def verdict(results: dict[str, str], over_tcp: dict[str, str]) -> str:
    words = [
        f"{work}: {text}" + (f" ({TCP} too)" if over_tcp.get(work) == text else "")
        for work, text in results.items()
        if text != "ok"
    ]
    return "; ".join(words) or "ok"


def cells(lab: Nodes, place: Place) -> Iterator[tuple[Key, str]]:
    """Each cell as it is done: client, server, version and security, and its verdict."""
    over_tcp: OverTcp = {}
    for server, client in product((THEIRS, OURS), (THEIRS, OURS)):
        serve(lab, "server", server)
        carry(lab, "client", client)
        yield from of_pair(lab, (client, server), place.versions, SYS, over_tcp)
        yield from of_personalities(lab, (client, server), over_tcp)
        # nfsd forgets its exports when it is restarted
        with kerberos(lab):
            yield from of_pair(lab, (client, server), place.versions, place.kerberos, over_tcp)
        carry(lab, "client", THEIRS)


def of_pair(
    lab: Nodes,
    pair: tuple[str, str],
    versions: tuple[str, ...],
    security: tuple[str, ...],
    over_tcp: OverTcp,
) -> Iterator[tuple[Key, str]]:
    for sec, vers in product(security, versions):
        if (vers, sec) not in over_tcp:
            over_tcp[vers, sec] = tcp = cell(lab, "tcp", vers, sec)
            yield (TCP, TCP, vers, sec), verdict(tcp, {})
        yield (*pair, vers, sec), one(lab, vers, sec, over_tcp[vers, sec])


def of_personalities(
    lab: Nodes, pair: tuple[str, str], over_tcp: OverTcp
) -> Iterator[tuple[Key, str]]:
    """Our client requests each personality, and our server accepts each: with a peer that does, and
    with one that has none, where the connection must be read-write.
    """
    client, server = pair
    accepting = accepts_all(server)
    if server == OURS:
        set_to(lab, "server", "server_personalities", ",".join(REQUESTED))
    if client == OURS:
        for name, vers in product(REQUESTED, FEW):
            set_to(lab, "client", "personality", name)
            got = name if server == OURS else DEFAULT
            key = (requests(name), accepting, vers, *SYS)
            yield key, one(lab, vers, *SYS, over_tcp[vers, *SYS], got)
        set_to(lab, "client", "personality", DEFAULT)
    elif server == OURS:
        for vers in FEW:
            yield (client, accepting, vers, *SYS), one(lab, vers, *SYS, over_tcp[vers, *SYS])
    if server == OURS:
        set_to(lab, "server", "server_personalities", "")


def requests(personality: str) -> str:
    return f"{OURS}, requests {personality}"


def accepts_all(server: str) -> str:
    return f"{OURS}, accepts each" if server == OURS else server


def one(lab: Nodes, vers: str, sec: str, over_tcp: dict[str, str], personality: str = "") -> str:
    wait = BRIEF if over_tcp.get("delegation", "ok") != "ok" else PATIENT
    return verdict(cell(lab, "rdma", vers, sec, wait, personality), over_tcp)


def rows(place: Place, verdicts: dict[Key, str]) -> Iterator[str]:
    pairs = [(TCP, TCP), *product(WHOSE, WHOSE)]
    asked = [(requests(name), accepts_all(server)) for server in WHOSE for name in REQUESTED]
    asked.append((THEIRS, accepts_all(OURS)))
    for (client, server), sec in [*product(pairs, SYS + place.kerberos), *product(asked, SYS)]:
        words = [verdicts.get((client, server, vers, sec), "not tried") for vers in VERSIONS]
        yield "| " + " | ".join((str(place), client, server, sec, *words)) + " |"


def replaced(text: str, place: Place, lines: list[str]) -> str:
    """The page with these rows of a place, and the others as they were."""
    before, rest = text.split(START)
    old, after = rest.split(END)
    head, rule, *rows = old.strip().splitlines()
    kept = [row for row in rows if not row.startswith(f"| {place} |")]
    order = [f"| {name} |" for name in PLACES.values()]
    every = sorted(kept + lines, key=lambda row: [row.startswith(p) for p in order].index(True))
    return before + "\n".join((START, head, rule, *every, END)) + after


def run(place: Place) -> None:
    verdicts = {}
    config = LabConfig(
        f"matrix-{os.getpid()}", "pair", kernel=place.kernel, nic=place.nic, extras=True
    )
    try:
        with Lab(config) as lab:
            for key, text in cells(lab, place):
                verdicts[key] = text
                print(place, *key, text, flush=True)
            lab.check()
    finally:
        # also what a run found that did not come to its end; another one may have written meanwhile
        if verdicts:
            PAGE.write_text(replaced(PAGE.read_text(), place, list(rows(place, verdicts))))


def main(kernel: str = "") -> None:
    """Test all pairs on a kernel, or over siw; default: on all kernels."""
    if kernel and kernel not in PLACES:
        raise SystemExit(f"--kernel: found {kernel}, expected one of {', '.join(PLACES)}")
    for name in [kernel] if kernel else [*PLACES]:
        run(PLACES[name])
