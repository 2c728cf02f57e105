# SPDX-License-Identifier: Apache-2.0
"""Readers that check each byte against writers and faults: staleness.c, and campaigns of it."""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from lab.optimistic.exports import make_disks, restart_nfsd
from lab.optimistic.faults import break_pairs, queue_pairs, unload

from nfsrdma_tools.lab.console import EmulatorFaultError
from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import place_program
from testbed.mounts import set_to
from testbed.node.grants import (
    ACROSS,
    CARDS,
    DISK,
    EXPORT,
    HUGE,
    STRICT,
    TCP,
    mounted_export,
    nothing_in_use,
    rpc_reads,
    seeded,
)
from testbed.node.memory import meminfo
from testbed.node.mounts import HERE, SERVER, counters
from testbed.node.programs import call
from testbed.programs import place_compiled
from testbed.remote import on

PROGRAM = Path(__file__).with_name("staleness.c")
# minutes of a campaign, one seed for all its rounds
MINUTES = os.environ.get("MINUTES")
# readers through libnfsrdma in rounds of a campaign
USERS = 3 if os.environ.get("USER_LEVEL") else 0
SEED = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))


# --- in the node ---


def _remount() -> None:
    """One more mount of the server comes, reads and goes."""
    with mounted_export("vers=3,noac,nosharecache", Path("/mnt/more")) as at, suppress(OSError):
        (at / "more").read_bytes()


def _squeeze() -> None:
    """Allocate three quarters of the available memory and touch it."""
    size = meminfo("MemAvailable") * 3 // 4
    argv = ("stress-ng", "--vm", "1", "--vm-bytes", str(size), "--vm-populate", "--timeout", "2s")
    call(*argv, check=False)


FAULTS: dict[str, Callable[[], object]] = {
    "drop caches": lambda: Path("/proc/sys/vm/drop_caches").write_text("3"),
    "squeeze": _squeeze,
    "remount": _remount,
    "restart nfsd": restart_nfsd,
    "break": lambda: break_pairs(queue_pairs()[1:2]),
    "sync": os.sync,
}


def _disturb(over: threading.Event, seed: str, faults: tuple[str, ...]) -> None:
    """Do what must not harm, until the readers end."""
    chance = seeded(seed)
    while faults and not over.wait(chance.uniform(0.5, 4)):
        FAULTS[chance.choice(faults)]()


class Round(NamedTuple):
    """What staleness.c prints, and what the client and the server have counted meanwhile.

    ``user`` is of the readers through libnfsrdma.
    """

    counts: dict[str, int]
    changes: dict[str, int]
    user: dict[str, int]
    optimistic: dict[str, int]
    threadless: dict[str, int]

    @property
    def share(self) -> float:
        """The share of the reads of the mount that went by reference."""
        reads = self.counts["reads"] - self.user.get("reads", 0)
        return self.optimistic["optimistic_reads"] / reads


@on("client")
def run_program(
    seconds: int,
    seed: str,
    folder: Path,
    rest: int,
    faults: tuple[str, ...],
    writer: str,
    users: int,
) -> Round:
    """Run staleness.c with faults; no byte that a reader got was out of date."""
    root, over = folder / "stale", threading.Event()
    root.mkdir(exist_ok=True)
    root.chmod(0o777)
    for card in CARDS.iterdir():
        (card / "recoverable").write_text("Y")
    over_tcp = f"{writer},noac,lookupcache=none,{ACROSS}"
    with mounted_export(STRICT, folder=folder), mounted_export(over_tcp, TCP, folder):
        before, rpcs = counters(), rpc_reads()
        argv = ("/run/staleness", str(seconds), seed, str(rest), "4", HERE / "stale", root,
                TCP / "stale", *((f"server:{root}", str(users)) if users else ()))  # fmt: skip
        beside = threading.Thread(target=_disturb, args=(over, seed, faults))
        beside.start()
        try:
            printed = json.loads(call(*argv))
        finally:
            over.set()
            beside.join()
        after = counters()
        rpcs = rpc_reads() - rpcs
        threadless = {n: k for n, k in counters(SERVER).items() if n.startswith("threadless")}
    for file in root.iterdir():
        file.unlink()
    root.rmdir()
    for card in CARDS.iterdir():
        (card / "recoverable").write_text("N")
    nothing_in_use()
    changes, user = printed.pop("changes_at_the_server"), printed.pop("user", {})
    counts = {name: n for name, n in printed.items() if isinstance(n, int)} | {"rpcs": rpcs}
    about = f"seed {seed}: {printed}"
    assert (counts["wrong"], counts["failed"], counts["writer_errors"]) == (0, 0, 0), about
    # a copy that met a change half way is rare
    assert counts["torn"] < counts["moving"] / 10 + 10, about
    optimistic = {
        name: n - before.get(name, 0) for name, n in after.items() if name.startswith("optimistic")
    }
    return Round(counts, changes, user, optimistic, threadless)


# --- here ---


def misreads_holes(kernel: str, folder: Path) -> bool:
    """nfsd of 6.1 does, in a tmpfs: docs/dev/faults-of-other-software.md."""
    return kernel == "6.1" and folder != DISK


def stale(
    lab: Lab,
    seconds: float,
    seed: str,
    folder: Path,
    rest: int,
    faults: tuple[str, ...] = (),
    writer: str = "vers=3",
    *,
    users: int = 0,
    enough: Callable[[Round], bool] = lambda _: True,
) -> Round:
    """Run staleness.c in a folder of the server; no byte that a reader got was out of date.

    ``writer`` is the NFS version of the client over TCP; ``users`` is the number of readers
    through libnfsrdma beside those of the mount.  In a short run on a slow machine, few reads meet
    a change, or too few files stay unchanged for as long as a grant needs.  So there are up to
    three runs, until reads meet changes and ``enough`` is true.  AssertionError if that happens in
    none of them, or if a reader gets an old byte in any.
    """
    if users:
        place_program(lab, "client", PROGRAM, "/run/staleness", "-DUSER_LEVEL", "-pthread")
    else:
        place_compiled(lab, "client", PROGRAM, "/run/staleness", "-pthread")
    run = run_program.at(timeout=seconds + 900)
    for _ in range(3):
        result = run(lab, int(seconds), seed, folder, rest, faults, writer, users)
        if result.counts["moving"] > 0 and enough(result):
            return result
    raise AssertionError(f"seed {seed}: {result}")


# microseconds between the changes of a writer
RESTS = (100_000, 400_000, 1_000_000)
SUMMED = ("reads", "sectors", "moving", "torn", "denied", "stale", "wrong", "rpcs")


def campaign(
    lab: Lab,
    parameters: Mapping[str, Sequence[int]],
    faults: tuple[str, ...],
    prepare: Callable[[Lab], None],
    writers: Sequence[str] = ("vers=3",),
    *,
    users: int = 0,
) -> tuple[dict[str, int], Round]:
    """MINUTES of rounds with faults, each with other parameters, and the module loaded again.

    Returns the sums of all, and the round with the last value of each parameter, the first one.
    """
    folders = [p for p in (EXPORT, DISK, HUGE) if not misreads_holes(lab.config.kernel, p)]
    print(f"seed {SEED}, in {', '.join(map(str, folders))}", flush=True)
    chance, sums, number, first = seeded(SEED), Counter[str](), 0, None
    end = time.monotonic() + 60 * float(MINUTES or 10)
    while time.monotonic() < end or number < 2:
        folder, writer = folders[number % len(folders)], chance.choice(writers)
        seconds = min(120.0, max(20.0, end - time.monotonic()))
        # a file that changed in the last second is read by nfsd
        draw: Callable[[Sequence[int]], int] = chance.choice if first else itemgetter(-1)
        values = {name: draw(choices) for name, choices in parameters.items()}
        rest = draw(RESTS)
        some = chance.choice((faults, faults, ("drop caches", "squeeze"), ()))
        seed = f"{SEED}{number:03}"
        number += 1
        try:
            for name, value in values.items():
                set_to(lab, "client", name, str(value))
            result = stale(lab, seconds, seed, folder, rest, some, writer, users=users)
        except EmulatorFaultError as error:
            print(f"round {seed} is void: {error}", flush=True)
            lab.restart()
            prepare(lab)
            make_disks(lab)
            continue
        sums.update({name: result.counts[name] for name in SUMMED})
        sums.update(result.optimistic | result.threadless)
        sums.update({f"user_{name}": count for name, count in result.user.items()})
        about = (folder, writer, f"{rest} us", values, some)
        print(time.strftime("%X"), f"round {number - 1}", *about, dict(sums), flush=True)
        first = first or result
        if number % 4 == 0:
            lab.run("server", "systemctl", "stop", "nfs-server")
            unload_module(lab)
            prepare(lab)
    assert first
    return dict(sums), first


@on("client")
def unload_module() -> None:
    unload()
