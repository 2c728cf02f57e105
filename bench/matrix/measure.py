# SPDX-License-Identifier: Apache-2.0
"""Which clients and servers work together: each pair does the same."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from nfsrdma_tools.lab.config import MODULE_KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.personalities import DEFAULT, PERSONALITIES
from testbed.kerberos import kerberos
from testbed.labs import OURS, THEIRS, WHOSE, carry, serve
from testbed.mounts import set_to
from testbed.node.mounts import connections, drop_caches
from testbed.remote import on

__all__ = ["cell"]

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
# for a delegation, and for one that nobody gets over TCP, in seconds
PATIENT, BRIEF = 60.0, 10.0
# what our client may request of a server, and the versions that are tried with it
REQUESTED = tuple(name for name in PERSONALITIES if name != DEFAULT)
FEW = ("3", "4.2")
Key = tuple[str, str, str, str]
OverTcp = dict[tuple[str, str], dict[str, str]]


# --- in the client ---

HERE, OTHER = Path("/mnt/matrix"), Path("/mnt/other")
SIZES = (1, 1023, 4096, 5000, 65536, 262_145, 1 << 20, 3_000_001)
NAMES = 400
# before this the server would take a delegation away by force
FORCE = 60.0


@on("client", timeout=900)
def cell(
    proto: str, vers: str, sec: str, wait: float = PATIENT, personality: str = ""
) -> dict[str, str]:
    """The results of a client by kind of work: "ok", or the error.

    ``wait``: seconds for a delegation.  The connection must have the personality, if one is given.
    An NFSv3 mount over TCP plays another client.
    """
    port = 20049 if proto == "rdma" else 2049
    options, folder = f"vers={vers},sec={sec},proto={proto},port={port}", HERE / "cell"
    works: dict[str, Callable[[], None]] = {
        "data": lambda: data(folder),
        "metadata": lambda: metadata(folder),
        "locks": lambda: locks(folder),
    }
    if vers != "3":
        works["delegation"] = lambda: delegation(folder, wait)
    if personality:
        works["personality"] = lambda: has_personality(personality)
    for place in (HERE, OTHER):
        place.mkdir(exist_ok=True)
    call("mount", "-t", "nfs", "-o", "vers=3,proto=tcp,noac", "server:/export", OTHER)
    try:
        call("mount", "-t", "nfs", "-o", options, "server:/export", HERE)
        folder.mkdir()
        results = {name: tried(work) for name, work in works.items()}
        call("rm", "-r", folder)
        call("umount", HERE)
    except RuntimeError as error:
        results = {"mount": str(error)}
    call("umount", OTHER)
    return results


def call(*argv: str | Path) -> None:
    """Run a program; RuntimeError has the text of its error, and no more."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{argv[0]} failed")


def data(folder: Path) -> None:
    noise = {size: os.urandom(size) for size in SIZES}
    for size, content in noise.items():
        (folder / f"data-{size}").write_bytes(content)
    drop_caches()
    for size, content in noise.items():
        assert (folder / f"data-{size}").read_bytes() == content, f"{size} bytes differ"
        theirs = OTHER / folder.name / f"data-{size}"
        assert theirs.read_bytes() == content, f"{size} bytes differ on the server"


def metadata(folder: Path) -> None:
    many = folder / "many"
    many.mkdir()
    for number in range(NAMES):
        (many / f"a-name-that-is-long-enough-{number}").touch()
    (many / "link").symlink_to("x" * 1500)
    (many / "a-name-that-is-long-enough-0").rename(folder / "renamed")
    drop_caches()
    assert len(list(many.iterdir())) == NAMES, "names are missing"
    assert str((many / "link").readlink()) == "x" * 1500
    os.link(folder / "renamed", folder / "linked")
    assert (folder / "linked").stat().st_nlink == 2, "no second link"
    os.truncate(folder / "linked", 12345)
    (folder / "linked").chmod(0o640)
    assert (OTHER / folder.name / "renamed").stat().st_size == 12345


def locks(folder: Path) -> None:
    mine, theirs = folder / "locked", OTHER / folder.name / "locked"
    mine.write_text("locked\n")
    with mine.open("r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert lockable(theirs) == "no", "two clients have the lock"
        fcntl.lockf(held, fcntl.LOCK_UN)
    assert lockable(theirs) == "yes", "the lock was not given back"


LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("yes")
    except BlockingIOError:
        print("no")
"""


def lockable(path: Path) -> str:
    """By another process: a process never stands in its own way."""
    argv = (sys.executable, "-c", LOCK, path)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def operation(name: str) -> int:
    rows = Path("/proc/self/mountstats").read_text().split(f" mounted on {HERE} ")[1].splitlines()
    return next((int(r.split()[1]) for r in rows if r.split()[:1] == [f"{name}:"]), 0)


def delegation(folder: Path, seconds: float) -> None:
    """Opened by us, written to by another client: the server calls us back first."""
    end = time.monotonic() + seconds
    number = 0
    # the server gives none before it knows that it can call
    while not operation("DELEGRETURN"):
        assert time.monotonic() < end, "no delegation was given"
        recalled(folder, f"delegated-{number}")
        number += 1
        time.sleep(0.5)


def recalled(folder: Path, name: str) -> None:
    mine, theirs = folder / name, OTHER / folder.name / name
    theirs.write_text("before\n")
    with mine.open() as file:
        file.read()
        start = time.monotonic()
        theirs.write_text("after\n")
        took = time.monotonic() - start
    assert mine.read_text() == "after\n", "the other client's write is not seen"
    assert took < FORCE, "the delegation was not given back when it was recalled"


def has_personality(expected: str) -> None:
    """In effect, on each of our connections; callbacks have none of their own."""
    in_effect = {row["personality"] for row in connections() if "personality" in row}
    assert in_effect == {expected}, f"found {', '.join(sorted(in_effect))}, expected {expected}"


def tried(work: Callable[[], None]) -> str:
    try:
        work()
    except (AssertionError, OSError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return "ok"


# --- all cells ---


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
