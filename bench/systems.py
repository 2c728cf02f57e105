# SPDX-License-Identifier: Apache-2.0
"""The systems of the papers, one in each row: the figure there, and the one here.

The figures are those of the generated tables of two pages, so that a row needs no measurement of
its own: papers.py, optimistic.py and optimistic_user.py write the rows after they have written
their tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import page, published
from bench.optimistic import NEAR
from bench.paper import OLD, TODAY
from bench.papers import DAFS

__all__ = ["SECTION", "SYSTEMS", "lines", "write"]

_PAGES = Path(__file__).parents[1] / "docs" / "explanation"
PAPERS, OPTIMISTIC = _PAGES / "papers.md", _PAGES / "optimistic-reads.md"
SECTION = "papers systems"
MISSING = "not measured yet"
_NEAR = {NEAR: "2 Gb/s, round trip 20 us"}[NEAR]
_LIBRARY = "[libnfsrdma](../how-to/client.md)"
_BY_REFERENCE = (
    f"{_LIBRARY}, [option `optimistic`](../how-to/client.md#read-the-servers-page-cache)"
)
_THREADLESS = f"{_LIBRARY} with [`server_threadless`](threadless-reads.md)"


def _section(path: Path, name: str) -> str:
    """The generated lines of a section."""
    start, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    return path.read_text().split(start, 1)[1].split(end, 1)[0]


def _tables(text: str) -> Iterator[list[list[str]]]:
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.split("\n")]
        yield [rows[0], *rows[2:-1]]


def entry(path: Path, section: str, row: Sequence[str], column: str) -> str:
    """A cell of a generated table, by the first cells of its row; KeyError if there is none."""
    for head, *rows in _tables(_section(path, section)):
        for cells in rows:
            if column in head and cells[: len(row)] == list(row):
                return cells[head.index(column)]
    raise KeyError(f"{section}: {row}, {column}")


def said(path: Path, section: str, pattern: str) -> str:
    """The group of a pattern in a generated text; KeyError if there is none."""
    found = re.search(pattern, _section(path, section))
    if not found:
        raise KeyError(f"{section}: {pattern}")
    return found[1]


@dataclass(frozen=True)
class System:
    """A system of a paper.

    ``used`` is how to use it here, ``there`` the paper's figure, ``here`` what finds ours, and
    ``why`` the reason of a difference.
    """

    name: str
    figure: str
    used: str
    there: str
    here: Callable[[], str]
    why: str


def _rate(figure: str, curve: str) -> str:
    return f"{published.point(figure, curve)['rate']:.0f} MB/s"


def _us(curve: str) -> str:
    return f"{published.point('Table 3', curve)['us'][0]:.0f} us"


def _highest(name: str) -> str:
    return said(PAPERS, "papers 2003", rf"[:,] {re.escape(name)} (\d+) MB/s") + " MB/s"


def _blocks(column: str) -> str:
    return entry(PAPERS, "papers blocks", ("64 KiB",), f"{column}, MB/s") + " MB/s"


def _read(column: str) -> str:
    row = f"{_NEAR}: into registered memory, us"
    return entry(OPTIMISTIC, "optimistic user-response", (row,), column) + " us"


def _share() -> str:
    share = published.point("18", "RDMA : TCP")["ratio"]
    return f"{share[0]:.0%} to {share[1]:.0%} of the CPU time of TCP"


def _ratios() -> str:
    return said(PAPERS, "papers direct", r"read-write ([\d.]+ for 8 KiB and [\d.]+ for \d+ KiB)")


def _stream(system: str) -> str:
    column = f"{system}, MB/s"
    return entry(OPTIMISTIC, "optimistic user-streams", ("4 KiB",), column) + " MB/s"


SYSTEMS = (
    System(
        "NFS over TCP, 2003", "15", "`nfsrdma mount --transport tcp`", _rate("15", "TCP"),
        lambda: f"{_highest(OLD)}; with today's offloads {_highest(TODAY)}",
        "the paper's CPUs of 750 MHz were the limit; here the wire is",
    ),
    System(
        "NFS over RDMA, read-read", "16", "`nfsrdma mount --personality read-read`",
        _rate("16", "RDMA"), lambda: _highest("read-read"), "here the wire is the limit",
    ),
    System(
        "NFS over RDMA, read-write", "18", "`nfsrdma mount --personality read-write`", _share(),
        _ratios,
        "of both ends here, of the client there; requests of 8 KiB cost the same RPC over both",
    ),
    System(
        "NFS", "3", "`nfsrdma mount --transport tcp`", _rate("3", "NFS"), lambda: _blocks(OLD),
        "NFS over UDP there, limited by copies of the client; here reads go past its page cache",
    ),
    System(
        "NFS pre-posting", "3", "`nfsrdma mount --personality pre-posted`",
        _rate("3", "NFS pre-posting"), lambda: _blocks("pre-posted"),
        "the wire is the limit of both",
    ),
    System(
        "NFS hybrid", "3", "`nfsrdma mount --personality cached`", _rate("3", "NFS hybrid"),
        lambda: _blocks("cached"), "the wire is the limit of both",
    ),
    System(
        "DAFS", "3", _THREADLESS, _rate("3", "DAFS"),
        lambda: entry(PAPERS, "papers user", ("64 KiB",), f"{DAFS}, MB/s") + " MB/s",
        "the wire is the limit of both",
    ),
    System(
        "DAFS, CPU of the client", "4", _THREADLESS,
        f"at most {published.point('4', 'DAFS')['cpu']:.0%}",
        lambda: entry(PAPERS, "papers user", ("64 KiB",), f"{DAFS}, CPU of the application"),
        "the application polls here, and its one CPU has the work of the server and of the card",
    ),
    System(
        "DAFS server in a kernel, 2002", "3, 2002", _THREADLESS, _rate("3, 2002", "synchronous"),
        lambda: entry(PAPERS, "papers 2002", ("128 KiB",), f"{DAFS}, one at a time, MB/s")
        + " MB/s",
        "a thread for each request there, none here; the paper proposes that",
    ),
    System(
        "DAFS, inline RPC", "Table 3", f"{_LIBRARY} with the defaults",
        _us("RPC in-line read"), lambda: _read("DAFS, inline"),
        "faster CPU here, which is also that of the server",
    ),
    System(
        "DAFS, direct RPC", "Table 3", f"{_LIBRARY}, option `inline_size`",
        _us("RPC direct read"), lambda: _read("DAFS, direct"), "the same",
    ),
    System(
        "Optimistic DAFS", "Table 3", _BY_REFERENCE, _us("ORDMA read"), lambda: _read("ODAFS"),
        "the same; the server has no work with either",
    ),
    System(
        "Optimistic DAFS, small files", "6", _BY_REFERENCE,
        f"{published.point('6', 'ODAFS : DAFS')['ratio']:.2f} of DAFS",
        lambda: entry(OPTIMISTIC, "optimistic user-files", ("4 KiB", _NEAR, "50 %"),
                      "ODAFS : DAFS, direct") + " of DAFS",
        "one CPU has the work of both ends here, so that less work of the server counts more",
    ),
    System(
        "DAFS and Optimistic DAFS, two clients with blocks of 4 KiB", "7", _BY_REFERENCE,
        f"DAFS {_rate('7', 'DAFS, 4 KiB blocks, polling')}",
        lambda: f"DAFS {_stream('DAFS, inline')}, ODAFS {_stream('ODAFS')}",
        "a CPU for each client and the server there, one for all here",
    ),
    System(
        "ORDMA below NFS", "Table 3", "`nfsrdma mount --optimistic`", _us("ORDMA read"),
        lambda: entry(OPTIMISTIC, "optimistic response", ("modelled card, 2 Gb/s: response, us",),
                      "optimistic") + " us",
        "the paper measured it with DAFS; here the client of the kernel has it, too",
    ),
)  # fmt: skip


def _row(system: System) -> list[str]:
    try:
        found = [system.here(), system.why]
    except KeyError:
        found = [MISSING, ""]
    return [system.name, system.figure, system.used, system.there, *found]


def lines() -> list[str]:
    """The table."""
    head = ["system", "figure", "how to use it here", "the paper", "here", "why they differ"]
    return page.table([head, *map(_row, SYSTEMS)])


def write() -> None:
    """Write the rows into the page *What RDMA saves*."""
    page.write(SECTION, lines(), PAPERS)
