# SPDX-License-Identifier: Apache-2.0
"""The systems of the papers, one in each row: the figure there, and the one here.

The numbers are those of the stores of bench/papers, optimistic and optimistic_user, so that a row
needs no measurement of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import markdown, published
from bench.cells import KIB, named
from bench.optimistic import measure as optimistic
from bench.optimistic import page as optimistic_page
from bench.optimistic_user import measure as user
from bench.optimistic_user import page as user_page
from bench.papers import measure as papers
from bench.papers import page as papers_page
from bench.papers.reads import Cell
from bench.sequential_reads.measure import OLD, TODAY
from nfsrdma_tools.lab.config import KERNELS

__all__ = ["SYSTEMS", "main"]

_LIBRARY = "[libnfsrdma](../how-to/client.md)"
_BY_REFERENCE = (
    f"{_LIBRARY}, [option `optimistic`](../how-to/client.md#read-the-servers-page-cache)"
)
_THREADLESS = f"{_LIBRARY} with [`server_threadless`](threadless-reads.md)"


class Stores:
    """The results of a kernel; KeyError for one that is not there."""

    def __init__(self, kernel: str) -> None:
        self.papers = papers.Store(papers.RESULTS / kernel)
        self.mounts = optimistic.Store(optimistic.RESULTS / f"{kernel}-card")
        self.user = optimistic.Store(user.RESULTS / kernel)


@dataclass(frozen=True)
class System:
    """A system of a paper.

    ``used`` is how to use it here, ``there`` the paper's figure, ``here`` ours, and ``why`` the
    reason of a difference.
    """

    name: str
    figure: str
    used: str
    there: str
    here: Callable[[Stores], str]
    why: str


def _rate(figure: str, curve: str) -> str:
    return f"{published.point(figure, curve)['rate']:.0f} MB/s"


def _us(curve: str) -> str:
    return f"{published.point('Table 3', curve)['us'][0]:.0f} us"


def _highest(stores: Stores, name: str) -> str:
    cells = papers_page.part("ahead").cells
    best = max(stores.papers.value("ahead", name, cell, papers_page.rate) for cell in cells)
    return f"{best:.0f} MB/s"


def _block(part: str, **values: int) -> Cell:
    """The cell of a part of the papers with some values."""
    cells = papers_page.part(part).cells
    (block,) = (cell for cell in cells if values.items() <= cell._asdict().items())
    return block


def _blocks(stores: Stores, curve: str, part: str = "blocks") -> str:
    cell = _block(part, record=64 * KIB)
    return f"{stores.papers.value(part, curve, cell, papers_page.rate):.1f} MB/s"


def _share_of_application(stores: Stores) -> str:
    cell = _block("user", record=64 * KIB)
    share = stores.papers.value("user", papers.DAFS, cell, papers_page.own_share)
    return f"{share:.0f} %"


def _of_2002(stores: Stores) -> str:
    cell = _block("2002", record=128 * KIB, depth=papers.ALONE)
    return f"{stores.papers.value('2002', papers.DAFS, cell, papers_page.rate):.1f} MB/s"


def _read(stores: Stores, way: str) -> str:
    (cell,) = user_page.cells("response", link=optimistic.NEAR, memory="direct")
    return f"{stores.user.get('response', way, cell)['us']:.1f} us"


def _share() -> str:
    share = published.point("18", "RDMA : TCP")["ratio"]
    return f"{share[0]:.0%} to {share[1]:.0%} of the CPU time of TCP"


def _ratios(stores: Stores) -> str:
    shares = [share for _, share in papers_page.ratios(stores.papers, "read-write")]
    return f"{shares[0]:.2f} for 8 KiB and {shares[-1]:.2f} for {papers.SIZES[-1] // KIB} KiB"


def _files(stores: Stores) -> str:
    (cell,) = user_page.cells("files", link=optimistic.NEAR, files="one", hits=50)
    ours, direct = (
        user_page.second(stores.user.get("files", way, cell))
        for way in (user.OPTIMISTIC, user.DIRECT)
    )
    return f"{ours / direct:.2f} of DAFS"


def _stream(stores: Stores, way: str) -> str:
    (cell,) = user_page.cells("streams", block=4 * KIB)
    return f"{user_page.speed(stores.user.get('streams', way, cell)):.1f} MB/s"


def _mounted(stores: Stores) -> str:
    (cell,) = (c for c in named(optimistic.parts(), "wire").cells if c["way"] == "direct")
    return f"{optimistic_page.us(stores.mounts.get('wire', optimistic.OURS_NAME, cell)):.1f} us"


SYSTEMS = (
    System(
        "NFS over TCP, 2003", "15", "`nfsrdma mount --transport tcp`", _rate("15", "TCP"),
        lambda s: f"{_highest(s, OLD)}; with today's offloads {_highest(s, TODAY)}",
        "the paper's CPUs of 750 MHz were the limit; here the wire is",
    ),
    System(
        "NFS over RDMA, read-read", "16", "`nfsrdma mount --personality read-read`",
        _rate("16", "RDMA"), lambda s: _highest(s, "read-read"), "here the wire is the limit",
    ),
    System(
        "NFS over RDMA, read-write", "18", "`nfsrdma mount --personality read-write`", _share(),
        _ratios,
        "of both ends here, of the client there; requests of 8 KiB cost the same RPC over both",
    ),
    System(
        "NFS", "3", "`nfsrdma mount --transport tcp`", _rate("3", "NFS"), lambda s: _blocks(s, OLD),
        "NFS over UDP there, limited by copies of the client; here reads go past its page cache",
    ),
    System(
        "NFS pre-posting", "3", "`nfsrdma mount --personality pre-posted`",
        _rate("3", "NFS pre-posting"), lambda s: _blocks(s, "pre-posted"),
        "the wire is the limit of both",
    ),
    System(
        "NFS hybrid", "3", "`nfsrdma mount --personality cached`", _rate("3", "NFS hybrid"),
        lambda s: _blocks(s, "cached"), "the wire is the limit of both",
    ),
    System(
        "DAFS", "3", _THREADLESS, _rate("3", "DAFS"),
        lambda s: _blocks(s, papers.DAFS, "user"),
        "the wire is the limit of both",
    ),
    System(
        "DAFS, CPU of the client", "4", _THREADLESS,
        f"at most {published.point('4', 'DAFS')['cpu']:.0%}",
        _share_of_application,
        "the application polls here, and its one CPU has the work of the server and of the card",
    ),
    System(
        "DAFS server in a kernel, 2002", "3, 2002", _THREADLESS, _rate("3, 2002", "synchronous"),
        _of_2002,
        "a thread for each request there, none here; the paper proposes that",
    ),
    System(
        "DAFS, inline RPC", "Table 3", f"{_LIBRARY} with the defaults",
        _us("RPC in-line read"), lambda s: _read(s, user.INLINE),
        "faster CPU here, which is also that of the server",
    ),
    System(
        "DAFS, direct RPC", "Table 3", f"{_LIBRARY}, option `inline_size`",
        _us("RPC direct read"), lambda s: _read(s, user.DIRECT), "the same",
    ),
    System(
        "Optimistic DAFS", "Table 3", _BY_REFERENCE, _us("ORDMA read"),
        lambda s: _read(s, user.OPTIMISTIC), "the same; the server has no work with either",
    ),
    System(
        "Optimistic DAFS, small files", "6", _BY_REFERENCE,
        f"{published.point('6', 'ODAFS : DAFS')['ratio']:.2f} of DAFS",
        _files,
        "one CPU has the work of both ends here, so that less work of the server counts more",
    ),
    System(
        "DAFS and Optimistic DAFS, two clients with blocks of 4 KiB", "7", _BY_REFERENCE,
        f"DAFS {_rate('7', 'DAFS, 4 KiB blocks, polling')}",
        lambda s: f"DAFS {_stream(s, user.INLINE)}, ODAFS {_stream(s, user.OPTIMISTIC)}",
        "a CPU for each client and the server there, one for all here",
    ),
    System(
        "ORDMA below NFS", "Table 3", "`nfsrdma mount --optimistic`", _us("ORDMA read"),
        _mounted,
        "the paper measured it with DAFS; here the client of the kernel has it, too",
    ),
)  # fmt: skip
HEAD = ("system", "figure", "how to use it here", "the paper", "here", "why they differ")


def main(kernel: str = KERNELS[0]) -> None:
    """Write the rows from the stores of papers, optimistic and optimistic-user.

    SystemExit if one of them lacks a result; the page stays as it is.
    """
    stores = Stores(kernel)
    try:
        rows = [(s.name, s.figure, s.used, s.there, s.here(stores), s.why) for s in SYSTEMS]
    except KeyError as missing:
        raise SystemExit(f"{missing.args[0]}: run papers, optimistic and optimistic-user") from None
    markdown.write("papers systems", markdown.table([HEAD, *rows]), papers_page.PAGE)
