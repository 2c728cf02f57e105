# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/dev/suites.md: numbers of results, differences from TCP, failures over TCP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from bench import markdown
from bench.suites.formats import FAILED, OUTCOMES, PASSED, SUITES, Suite, Verdict, lists
from bench.suites.measure import (
    DEFAULT_DEVICE,
    DEVICES,
    TRANSPORTS,
    VERSIONS,
    Store,
    chosen,
    differs,
    jobs,
    lab_config,
    needed,
    repeats,
    results_of,
    work,
)
from nfsrdma_tools.lab.config import CHECKING, KERNELS

__all__ = ["differences", "failures", "main", "numbers", "reason", "write"]

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "suites.md"
UNEXPLAINED = "not explained"
# characters of a failure that a row shows
_SHOWN = 160


def says(results: Sequence[Verdict]) -> str:
    """The results of a test in words, each outcome with its number of runs."""
    counts = Counter(result.outcome for result in results)
    of = f" ({len(results)} runs)" if len(results) > 1 else ""
    if len(counts) == 1:
        return f"{next(iter(counts))}{of}"
    return ", ".join(f"{outcome} {count} of {len(results)}" for outcome, count in counts.items())


def why(results: Sequence[Verdict]) -> str:
    """The first line of the first failure."""
    lines = [line for result in results for line in result.lines if result.outcome != PASSED]
    text = lines[0].replace("|", "\\|").replace("`", "'") if lines else ""
    return f": `{text[:_SHOWN]}`" if text else ""


def reason(suite: str, transport: str, vers: str, test: str) -> str:
    """The reason of a difference, from suites.toml."""
    for entry in lists(suite).get("reason", []):
        if (
            fnmatch(test, entry["test"])
            and fnmatch(transport, entry.get("transport", "*"))
            and fnmatch(vers, entry.get("vers", "*"))
        ):
            return str(entry["why"])
    return UNEXPLAINED


def columns(store: Store) -> Iterator[tuple[str, str]]:
    """Versions and transports that have results, TCP first."""
    for vers in VERSIONS:
        for transport in TRANSPORTS.values():
            if vers in transport.versions:
                yield vers, transport.name


def differences(store: Store, suite: str, tests: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows: test, where, over TCP, there, reason; transports with equal results in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for test in tests:
        for vers, transport in columns(store):
            if transport != "tcp" and differs(store, vers, transport, test):
                here = store.results(vers, transport, test)
                key = (test, f"NFSv{vers}", says(store.results(vers, "tcp", test)),
                       says(here) + why(here), reason(suite, transport, vers, test))  # fmt: skip
                rows.setdefault(key, []).append(transport)
    return [
        (test, f"{vers}, {', '.join(where)}", over_tcp, here, because)
        for (test, vers, over_tcp, here, because), where in rows.items()
    ]


def failures(store: Store, suite: str, tests: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows: test, versions, what failed over TCP, reason; of tests that never passed there."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for test in tests:
        for vers in VERSIONS:
            over_tcp = store.results(vers, "tcp", test)
            if over_tcp and all(result.outcome == FAILED for result in over_tcp):
                key = (test, says(over_tcp) + why(over_tcp), reason(suite, "tcp", vers, test))
                rows.setdefault(key, []).append(f"NFSv{vers}")
    return [
        (test, ", ".join(vers), failure, because) for (test, failure, because), vers in rows.items()
    ]


def numbers(store: Store, tests: Sequence[str]) -> list[tuple[object, ...]]:
    """Rows: NFS version, transport, tests by outcome of the first run, those that differ."""
    rows: list[tuple[object, ...]] = []
    for vers, transport in columns(store):
        results = [store.results(vers, transport, test) for test in tests]
        counts = Counter(runs[0].outcome for runs in results if runs)
        if not counts:
            continue
        differ = sum(differs(store, vers, transport, test) for test in tests)
        left = [test for test, runs in zip(tests, results, strict=True) if not runs]
        missing = len(needed(store, TRANSPORTS[transport], vers, left))
        rows.append((vers, transport, *(counts[outcome] for outcome in OUTCOMES),
                     "-" if transport == "tcp" else differ, missing))  # fmt: skip
    return rows


def lines(store: Store, suite: str, tests: Sequence[str]) -> list[str]:
    """The section of a suite and a kernel."""
    head = ("NFS", "transport", *OUTCOMES, "differ from TCP", "not run yet")
    counts = numbers(store, tests)
    section = [store.about, "", *markdown.table([head, *counts]), ""]
    rows = differences(store, suite, tests)
    if rows:
        section += markdown.table([("test", "over", "over TCP", "there", "reason"), *rows])
    elif {transport for _, transport, *_ in counts} == {"tcp"}:
        section.append("No test ran over RDMA yet.")
    else:
        section.append("No test that ran over both differs from TCP.")
    fails = failures(store, suite, tests)
    if fails:
        names = ("fails over TCP too", "NFS", "over TCP", "reason")
        section += ["", *markdown.table([names, *fails])]
    left = left_to_kvm(suite)
    if left:
        section += ["", f"Left to KVM: {left}."]
    return section


def left_to_kvm(suite: str) -> str:
    """The patterns of tests that are left to KVM, with the reason after those that share it."""
    names: dict[str, list[str]] = {}
    for test, because in lists(suite).get("kvm", {}).items():
        names.setdefault(because, []).append(f"`{test}`")
    return "; ".join(f"{', '.join(tests)} ({because})" for because, tests in names.items())


def write(store: Store, suite: Suite, name: str, tests: Sequence[str]) -> None:
    """Write the section of this name, or print it if the page has none."""
    text = lines(store, suite.name, tests)
    if f"<!-- begin: {name} -->" in PAGE.read_text():
        markdown.write(name, text, PAGE)
    else:
        print("\n".join([f"not written, because the page has no section: {name}", *text]))


def main(
    suite: str,
    source: Path,
    kernel: str = KERNELS[0],
    minutes: float = 50,
    transports: str = "*",
    tests: str = "",
    *,
    nic: str = DEFAULT_DEVICE,
    dma: str = "",
) -> None:
    """Run SUITE (fstests, cthon, nfstest, pjdfstest), whose clone is in the folder SOURCE.

    ``transports`` and ``tests`` are patterns, with commas between them.
    ``dma`` is that of modelled cards: direct, swiotlb or iommu.
    """
    for option, value, known in (
        ("SUITE", suite, SUITES),
        ("--kernel", kernel, (*KERNELS, *CHECKING)),
        ("--nic", nic, DEVICES),
    ):
        if value not in known:
            raise SystemExit(f"{option}: found {value}, expected one of {', '.join(known)}")
    if not source.is_dir():
        raise SystemExit(f"SOURCE: expected the folder of a clone of {suite}, found {source}")
    selected, only = SUITES[suite], tests.split(",") if tests else []
    some = [t for t in TRANSPORTS if any(fnmatch(t, p) for p in transports.split(","))]
    every = chosen(selected, source, kernel, only)
    config = lab_config(kernel, nic, dma)
    store = results_of(selected, source, config)
    if minutes and (jobs(store, every, some) or repeats(store, every, some)):
        work(store, selected, source, config, minutes, some, every)
    left = jobs(store, every, some) or repeats(store, every, some)
    if left:
        print(f"{sum(len(job.tests) for job in left)} results are missing: run it again")
    names = [suite, *(["soft-RoCE"] if nic == "rxe" else []), *([f"DMA {dma}"] if dma else [])]
    section = ", ".join([*names, f"Linux {kernel}"])
    write(store, selected, section, chosen(selected, source, kernel))
