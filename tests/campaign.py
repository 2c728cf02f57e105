# SPDX-License-Identifier: Apache-2.0
"""Campaigns: tests that take long, or another kernel, seed or device than those of ``make test``.

``python -m campaign`` lists them, ``python -m campaign NAME --help`` has the options of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from nfsrdma_tools.lab.config import CHECKING

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
KERNEL = "6.12"
TIMES = ("--durations", "25", "--durations-min", "0.01")
FAULTS = ("--reruns", "1", "--only-rerun", "EmulatorFaultError")
PARALLEL = ("-n", "2", "--dist", "worksteal")
Kernel = Annotated[str, typer.Option(help="6.12, 6.1, 7.2, 5.10, debug or kcsan.")]
Dma = Annotated[str, typer.Option(help="direct, swiotlb or iommu (default: virtual DMA).")]
Seed = Annotated[str, typer.Option(help="Seed of the random choices (default: a new one).")]

app = typer.Typer(add_completion=False, no_args_is_help=True)


def files(*names: str) -> list[str]:
    """The test files with these names or patterns, without ``.py``."""
    matches = [sorted(TESTS.glob(f"**/{name}.py")) for name in names]
    if not all(matches):
        raise SystemExit(f"no test files: {names}")
    return [str(path) for paths in matches for path in paths]


def lab_files(*names: str) -> list[str]:
    """Those of the lab."""
    return [path for path in files(*names) if "/lab/" in path]


def call(*argv: str, **environment: object) -> int:
    """Run a program in the checkout; returns its exit status."""
    path = os.pathsep.join((str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")))
    known = {**os.environ, "PYTHONPATH": path} | {k: str(v) for k, v in environment.items()}
    return subprocess.run(argv, check=False, cwd=ROOT, env=known).returncode


def pytest(*argv: str, **environment: object) -> None:
    """Run tests, and end with their exit status."""
    raise SystemExit(call(sys.executable, "-m", "pytest", "-q", *argv, **environment))


def module(name: str, *argv: object) -> None:
    """Run a module of tests/, and end with its exit status."""
    raise SystemExit(call(sys.executable, "-m", name, *map(str, argv)))


def setup(purpose: str) -> None:
    """Install what a campaign needs."""
    if call(str(ROOT / "tools" / "setup"), purpose):
        raise SystemExit(1)


@app.command()
def undo(count: int = 2000) -> None:
    """Random failures, kills and changes of others, then the undo: COUNT of them."""
    # over server, tune, mount, packages and the mounts of playbooks
    pytest(*PARALLEL, *files("test_undo_sequences"), UNDO_SEQUENCES=(count + 4) // 5)


@app.command()
def canaries(hosts: int = 200) -> None:
    """Plant canaries in made hosts; none may be in an anonymized bundle."""
    pytest(*files("test_canaries"), CANARY_HOSTS=hosts)


@app.command()
def fuzz(seconds: int = 600) -> None:
    """libFuzzer over the module's header code."""
    setup("fuzz")
    module("wire.fuzz", seconds)


@app.command()
def replies(messages: int = 10000, seed: int = 8166) -> None:
    """Mutated replies to libnfsrdma in process, of NFSv3 and NFSv4.1, under ASan and UBSan."""
    module("wire.hostile_replies", messages, seed)


@app.command()
def interrupts(count: int = 1000) -> None:
    """Interrupts of the Python client's calls at random places, over a device of user space."""
    module("device.interrupts", count)


@app.command()
def threads(seconds: int = 600, sanitizer: str = "thread") -> None:
    """16 threads that use sessions while those are closed; sanitizer: thread or address."""
    module("device.threads", sanitizer, 1, seconds)


@app.command(name="module")
def life(
    kernel: Kernel = KERNEL, server: str = "kernel", personality: str = "", long: bool = False
) -> None:
    """Life, faults and data of the module, with server kernel or ours; a personality needs ours."""
    names = ["test_module_faults", "test_module_data"]
    chosen = ["--personality", personality] if personality else files("test_module_life")
    pytest("--kernel", kernel, "--server", server, *(["--long"] * long), *chosen, *files(*names))


@app.command()
def cards(kernel: Kernel = KERNEL, profile: str = "", long: bool = False) -> None:
    """Tests of modelled cards, with the limits and behaviours of a driver: --profile bnxt."""
    names = ["test_card", "test_card_dma", "test_bypass", "test_connection_ends"]
    pytest("--kernel", kernel, "--profile", profile, *(["--long"] * long), *files(*names))


@app.command()
def debug(flavour: str = "debug") -> None:
    """The module's tests on a kernel that checks itself, debug or kcsan, by soft-RoCE and siw."""
    build(flavour)
    others = ("interoperation", "krb5", "wire_capture", "soak")
    chosen = lab_files("test_module", "test_module_*", *(f"test_{name}" for name in others))
    chosen = [path for path in chosen if not path.endswith("_warnings.py")]
    options = ("--kernel", flavour, "--server", "ours")
    tests = (sys.executable, "-m", "pytest", "-q", *options, *chosen)
    raise SystemExit(max(call(*tests, "--nic", nic) for nic in ("rxe", "siw")))


@app.command()
def kernels(kernel: str = "") -> None:
    """NFS over RDMA, doctor, probes and dashboard on other kernels, all or one."""
    chosen = "(other_kernels or kernels_count or no_warning)" + (f" and {kernel}]" * bool(kernel))
    pytest("--long", *TIMES, *FAULTS, "-m", "nightly", "-k", chosen, str(TESTS / "lab"))


def build(kernel: str) -> None:
    """Build a kernel that Debian does not have: 15 minutes the first time."""
    if call(sys.executable, "-m", "nfsrdma_tools", "lab", "build", "--kernel", kernel):
        raise SystemExit(1)


@app.command()
def arm64(pages: Literal["", "4k", "16k", "64k"] = "") -> None:
    """Tools, probes and our module on arm64, with pages of this size, or of 4 and 16 KiB.

    64k builds a kernel the first time, which needs root; built, it is one of the default's.
    """
    setup("arm64")
    if pages == "64k":
        build("6.12-arm64-64k")
    kernel = f"6.12-arm64-{pages}".removesuffix("-4k")
    chosen = ["-k", f"[{kernel}]"] if pages else []
    pytest("--long", *TIMES, *FAULTS, *chosen, *files("test_arm64"))


@app.command()
def tables() -> None:
    """pandas, pyarrow and zarr read and write by fsspec; installs them into .venv."""
    if call(sys.executable, "-m", "pip", "-q", "install", "-e", ".[tables]"):
        raise SystemExit(1)
    pytest(*files("unit/client/test_tables"))


@app.command()
def client(kernel: Kernel = KERNEL, nic: str = "rxe") -> None:
    """Libnfsrdma with another kernel, or over siw."""
    pytest("--kernel", kernel, "--nic", nic, *lab_files("test_client"))


@app.command()
def dma(kernel: Kernel = KERNEL, form: str = "", long: bool = False) -> None:
    """Both modules over cards that do DMA: direct, swiotlb and iommu, all forms or one."""
    if kernel in CHECKING:
        build(kernel)
    chosen = ["-k", form] if form else []
    pytest(*(["--long"] * long), *TIMES, *FAULTS, "--kernel", kernel, *chosen,
           *lab_files("test_card_dma", "test_dma_control"))  # fmt: skip


@app.command()
def hangs(kernel: Kernel = KERNEL) -> None:
    """Hangs that nfsrdma health finds without accessing a mount."""
    pytest("--long", *TIMES, *FAULTS, "--kernel", kernel, *lab_files("test_health"))


@app.command()
def kerberos(kernel: Kernel = KERNEL) -> None:
    """krb5, krb5i and krb5p over RDMA, by our client and the kernel's."""
    pytest("--long", *TIMES, *FAULTS, "--kernel", kernel, *files("test_krb5"))


@app.command()
def races(seed: int = 8166, kernel: Kernel = KERNEL) -> None:
    """Connections that are left at every stage, and a listener that stops."""
    pytest("--long", *TIMES, *FAULTS, "--kernel", kernel, "-k", "come_and_go or stops_under_load",
           *files("test_hostile_peers"), SEED=seed)  # fmt: skip


@app.command()
def hostile(
    messages: int = 10000,
    seed: int = 8166,
    first: int = 0,
    only: str = "",
    threadless: str = "",
    kernel: Kernel = KERNEL,
) -> None:
    """Peers that break the protocol, both ways: mutated messages each way, from the FIRST one."""
    pytest("-s", "-x", "--long", "--kernel", kernel, *(["-k", only] if only else []),
           *files("test_hostile_peers"), MESSAGES=messages, SEED=seed, FROM=first,
           THREADLESS=threadless)  # fmt: skip


@app.command()
def soak(minutes: int = 15, seed: Seed = "", kernel: Kernel = KERNEL) -> None:
    """Two clients, verified load, faults of all kinds at random."""
    pytest("-s", "--long", "--kernel", kernel, *files("test_soak"),
           SECONDS_OF_SOAK=60 * minutes, SEED=seed)  # fmt: skip


@app.command()
def staleness(
    minutes: int = 60,
    seed: Seed = "",
    threadless: bool = False,
    user: bool = False,
    kernel: Kernel = KERNEL,
    dma: Dma = "",
) -> None:
    """Readers that check each byte, by optimistic or threadless reads, against writers.

    USER adds readers through libnfsrdma.
    """
    chosen = lab_files("test_threadless" if threadless else "test_optimistic")
    pytest("-s", "--long", "--kernel", kernel, "--dma", dma, "-k", "staleness_campaign", *chosen,
           MINUTES=minutes, SEED=seed, USER_LEVEL="1" * user)  # fmt: skip


@app.command()
def docs() -> None:
    """The commands of README.md and docs/, as printed, in a lab for each page."""
    pytest("--long", *TIMES, *FAULTS, *files("test_docs"))


@app.command()
def distributions() -> None:
    """Packages, wheel and zipapp in Debian 11 to unstable; needs root (15 minutes)."""
    pytest(str(TESTS / "distributions"))


@app.command()
def fleet() -> None:
    """The playbooks on a lab of a server and three clients."""
    pytest("--long", *lab_files("test_fleet", "test_molecule"))


@app.command()
def live() -> None:
    """The dashboard with other kernels, a pulled cable, and loads for each bottleneck."""
    setup("browser")
    pytest("--long", *lab_files("test_live", "test_live_views", "test_live_bottleneck"))


if __name__ == "__main__":
    app(prog_name="python -m campaign")
