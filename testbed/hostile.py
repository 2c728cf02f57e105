# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/hostile in the nodes of a lab, and checks of the results they print."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfsrdma_tools.command import stream
from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import FAULTS
from testbed.mounts import HERE, mounted, nothing_lost
from testbed.scripts import beside

__all__ = ["FOLDER", "PORT", "SERVER", "argv_of", "bring", "damageable", "hostile_client",
           "hostile_server", "listener_stops", "listens", "of_personality", "program",
           "races"]  # fmt: skip

TESTS = Path(__file__).parents[1] / "tests"
WIRE_FILES = (
    "__init__.py", "rpcrdma.py", "rdma2003.py", "rdma5666.py", "notices.py", "nfs3.py",
    "siphash.py",
)  # fmt: skip
WIRE = tuple(TESTS / "wire" / name for name in WIRE_FILES)
THERE = "/run/hostile"
LIMIT = 14400.0
SERVER, PORT = "10.9.1.1", "20049"
# of what is made at random
SEED = os.environ.get("SEED", "8166")
# of hostile servers, and of the conversations with them: several, as calls are mostly waited for
PAIRS = tuple((str(port), str(port + 1)) for port in range(20050, 20058, 2))
# below /export: a file, and so many names that their list is some 7,000 bytes
FOLDER = "hostile"
MAKE = f"""
rm -rf /export/{FOLDER} && mkdir /export/{FOLDER} && cd /export/{FOLDER}
head -c 65536 /dev/urandom > data
for i in $(seq 60); do : > $(printf 'a-name-%0100d' $i); done
"""
# $1 is its port, $2 that of the conversation
SERVE = f"""
cd {THERE} && rm -f said-$1 last-$2
PYTHONPATH=. setsid python3 hostile/server_node.py $1 $2 >said-$1 2>&1 </dev/null &
for i in $(seq 600); do grep -q listening {THERE}/said-$1 && exit 0; sleep 0.1; done
cat {THERE}/said-$1 >&2; exit 1
"""
# what the hostile servers said, and the last message that each made
LAST = f"cd {THERE} && tail -n 20 said-* last-*"


def hostile_server(
    lab: Nodes, seed: str, numbers: range, only: str = "", client: str = ""
) -> dict[str, Any]:
    """Mount hostile servers with our client, or give them to the client "library".

    ``numbers`` are mutants.
    """
    with nothing_lost(lab, "client"), serving(lab):
        bring(lab, "client")
        ports = ",".join(":".join(pair) for pair in PAIRS)
        words = (SERVER, ports, seed, *_numbers(numbers), only, client)
        report = program(lab, "client", "victim", *words)
    nothing_failed(report, seed)
    return report


@contextmanager
def listens(lab: Nodes, program: str, *words: str) -> Iterator[None]:
    """A program of tests/hostile in the server, which prints nothing but that it listens."""
    bring(lab, "server")
    output = f"/run/{program}"
    start = f"{' '.join(argv_of(program, *words))} > {output} 2>&1 & echo $!"
    number = lab.run("server", "sh", "-c", start).stdout.strip()
    wait = f"until grep -q listening {output}; do kill -0 {number} || break; sleep 1; done"
    # the next program may listen at its port
    end = f"kill {number}; timeout 60 tail --pid={number} -f /dev/null"

    def prints_that() -> None:
        printed = lab.run("server", "cat", output).stdout
        assert printed == "listening\n", printed

    try:
        lab.run("server", "sh", "-c", wait)
        prints_that()
        yield
        prints_that()
    finally:
        lab.run("server", "sh", "-c", end, check=False)


def hostile_client(lab: Nodes, seed: str, numbers: range, only: str = "") -> dict[str, Any]:
    """Send messages of a hostile client to a server; ``numbers`` are mutants.

    The client's mount uses the module that is loaded.
    """
    kind = server_kind(lab)
    with nothing_lost(lab, "server"), damageable(lab), mounted(lab, "vers=3"):
        bring(lab, "client")
        words = (SERVER, PORT, FOLDER, HERE, kind, seed, *_numbers(numbers), only)
        report = program(lab, "client", "client", *words)
    nothing_failed(report, seed)
    return report


def _numbers(numbers: range) -> tuple[str, str]:
    return str(numbers.start), str(len(numbers))


def races(lab: Nodes, seed: str, count: int) -> dict[str, Any]:
    """Connections to a busy server that are left at every stage: nothing of them stays."""
    with nothing_lost(lab, "server"), damageable(lab), mounted(lab, "vers=3"):
        bring(lab, "client")
        report = program(lab, "client", "races", *_race(seed, count))
    assert report["refused"] == {}, f"seed {seed}"
    assert sum(report["left"].values()) == count
    honest_work_went_on(report)
    return report


def listener_stops(lab: Nodes, seed: str, times: int) -> dict[str, Any]:
    """The server stops listening, and starts again, while connections come and go."""
    with nothing_lost(lab, "server"), damageable(lab), mounted(lab, "vers=3"):
        bring(lab, "client")
        argv = argv_of("races", *_race(seed, 0))
        lab.run("client", "rm", "-f", BEGUN, STOP)
        with beside(lab, "client", *argv, timeout=LIMIT) as work:
            lab.run("client", "sh", "-c", f"until test -e {BEGUN}; do sleep 0.1; done")
            for _ in range(times):
                time.sleep(2)
                assert not work.done(), "the load ended before the faults"
                lab.run("server", "sh", "-ec", FAULTS["server restarted"].script)
            lab.ssh("client").run("touch", STOP)
        report: dict[str, Any] = json.loads(work.result().stdout)
    honest_work_went_on(report)
    return report


# what races_node.py makes when it works, and where it looks for its end
BEGUN, STOP = "/run/races.begun", "/run/races.stop"


def _race(seed: str, count: int) -> tuple[str, ...]:
    return SERVER, PORT, FOLDER, HERE, seed, str(count)


def nothing_failed(report: dict[str, Any], seed: str) -> None:
    assert report["failures"] == [], f"seed {seed}"
    honest_work_went_on(report)


def honest_work_went_on(report: dict[str, Any]) -> None:
    assert report["bystander"]["errors"] == []
    assert report["bystander"]["rounds"] > 0


def server_kind(lab: Nodes) -> str:
    """The module of the server: "ours" or "kernel"."""
    there = lab.run("server", "test", "-e", "/sys/module/nfsrdma", check=False)
    return "kernel" if there.returncode else "ours"


def of_personality(
    lab: Nodes, name: str, words: tuple[str, ...], seed: str, count: int
) -> dict[str, Any]:
    """Run a program of a personality with ``count`` mutated messages, of which none may do harm."""
    report = program(lab, "client", name, *words, seed, str(count))
    assert report["failures"] == [], f"seed {seed}"
    counts = report.get("answers") or report["outcomes"]
    assert sum(counts.values()) == count
    print(name, counts)
    return report


# --- programs in nodes ---


def bring(lab: Nodes, node: str) -> None:
    """Put the programs there."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in (*sorted(TESTS.glob("hostile/*.py")), *WIRE):
            tar.add(path, str(path.relative_to(TESTS)))
    script = f"mkdir -p {THERE} && tar -xC {THERE}"
    lab.run(node, "sh", "-c", script, stdin=buffer.getvalue())


def argv_of(name: str, *words: str) -> tuple[str, ...]:
    return (
        "env",
        f"PYTHONPATH={THERE}:/opt/nfsrdma/src",
        "python3",
        f"{THERE}/hostile/{name}_node.py",
        *words,
    )


def program(lab: Nodes, node: str, name: str, *words: str) -> dict[str, Any]:
    """Run a program that ``bring`` put there, and print its progress; returns its result."""
    progress = Progress()
    limit = ("timeout", str(LIMIT * lab.config.patience))
    argv = lab.ssh(node).argv(*limit, *argv_of(name, *words))
    try:
        for line in stream(*argv, watch=lab.check):
            progress.take(json.loads(line))
    except BaseException:
        print(f"{name} {' '.join(words)}, the last of it: {list(progress.recent)}", flush=True)
        raise
    finally:
        lab.check()
    return progress.answer


class Progress:
    """Lines that a program prints while it works; prints failures and progress."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=8)
        self.count, self.began = 0, time.monotonic()

    def take(self, line: dict[str, Any]) -> None:
        if "failure" in line:
            print(f"FAILED: {json.dumps(line['failure'])}", flush=True)
        elif "did" in line or "sent" in line:
            self.recent.append(line)
            self._did(line)
        else:
            self.answer = line

    def _did(self, line: dict[str, Any]) -> None:
        self.count += "did" in line
        if "did" in line and self.count % 250 == 0:
            seconds = time.monotonic() - self.began
            print(f"{self.count} done in {seconds:.0f} s, {line['did']}", flush=True)


@contextmanager
def serving(lab: Nodes) -> Iterator[None]:
    """Hostile servers in the server node; each ends with the conversation on its control port."""
    bring(lab, "server")
    for pair in PAIRS:
        lab.run("server", "sh", "-c", SERVE, "sh", *pair)
    try:
        yield
    except BaseException:
        # a machine that died says nothing more
        print(lab.ssh("server").run("sh", "-c", LAST, check=False, timeout=60).stdout, flush=True)
        raise
    printed = lab.run("server", "sh", "-c", f"cat {THERE}/said-*").stdout
    assert printed == "listening\n" * len(PAIRS), printed


@contextmanager
def damageable(lab: Nodes) -> Iterator[None]:
    """A folder on the server that may be damaged."""
    lab.run("server", "sh", "-c", MAKE)
    try:
        yield
    finally:
        lab.run("server", "rm", "-r", f"/export/{FOLDER}")
