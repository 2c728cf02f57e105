# SPDX-License-Identifier: Apache-2.0
"""The fio engine of libnfsrdma: what it writes, another engine verifies, and the other way round.

The engine is built from the source of the nodes' fio: a folder in $FIO_SOURCE, or Debian's.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools import command
from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import opened
from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import built_library
from testbed.faults import FAULTS, RESTARTED
from testbed.labs import ModulePair
from testbed.node.programs import until

TOP = Path(__file__).parents[3]
HERE, FILE = "/run/fio-engine", "fio-data"
SECONDS = 900


def source(version: str, folder: Path) -> Path:
    """The source of a version of fio; skips the test where there is none."""
    if given := os.environ.get("FIO_SOURCE"):
        return Path(given)
    tar = folder / "fio.tar"
    try:
        with opened(SUITES[KERNELS[0]], folder, kind="deb-src") as debian:
            debian.source(f"fio={version}", tar)
    except UserError:
        pytest.skip(f"no source of fio {version}: set FIO_SOURCE; missed: the fio engine")
    (folder / "fio").mkdir()
    command.run("tar", "-x", "-C", folder / "fio", "--strip-components=1", "-f", tar)
    return folder / "fio"


@pytest.fixture(scope="module")
def engine(pair_file: ModulePair, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The engine for the fio of the nodes."""
    built_library()
    query = ("dpkg-query", "--show", "--showformat=${Version}", "fio")
    version = pair_file.lab.run("client", *query).stdout
    folder = source(version, tmp_path_factory.mktemp("fio"))
    command.run("make", "-s", "-C", TOP, "fio-engine", f"FIO={folder}", timeout=600)
    return (TOP / "lib" / "build" / "fio.so").read_bytes()


@pytest.fixture(params=("pair", pytest.param("both_ours", marks=pytest.mark.nightly)))
def server(engine: bytes, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A server and a client, which has the engine and its job files."""
    lab: Lab = request.getfixturevalue(request.param)
    lab.run("client", "mkdir", "-p", f"{HERE}/lib/build")
    lab.run("client", "tee", f"{HERE}/lib/build/fio.so", stdin=engine)
    for job in (TOP / "lib" / "fio").glob("*.fio"):
        lab.run("client", "tee", f"{HERE}/{job.name}", stdin=job.read_bytes())
    yield lab
    lab.run("server", "rm", "-f", f"/export/{FILE}")
    lab.run("client", "rm", "-r", HERE)


def argv(job: str, size: str, *more: str) -> Sequence[str]:
    names = ("TARGET=server:/export", f"FILE={FILE}", f"SIZE={size}")
    return ("env", "-C", HERE, *names, "fio", "--output-format=json+", job, *more)


def run(lab: Lab, job: str, size: str, *more: str, check: bool = True) -> Result:
    return lab.run("client", *argv(job, size, *more), timeout=SECONDS, check=check)


def ended(output: str) -> tuple[dict[str, Any], str]:
    """The result of the job, which had no error, and the engine's line."""
    line, _, rest = output.partition("{")
    (job,) = json.loads("{" + rest.rpartition("}")[0] + "}")["jobs"]
    assert job["error"] == 0, output
    return job, line


# of any order of writes
VERIFY = ("--rw=read", "--bs=64k", "--verify=crc32c", "--verify_fatal=1", "--verify_header_seed=0")


def of_server(lab: Lab, size: str, *words: str) -> bool:
    """Have the server's own fio verify the file, or write it; whether that succeeded."""
    where = (f"--filename=/export/{FILE}", f"--size={size}", *(words or VERIFY))
    argv = ("fio", "--name=file", "--ioengine=psync", *where)
    return not lab.run("server", *argv, timeout=SECONDS, check=False).returncode


def test_what_the_engine_writes_another_engine_verifies(server: Lab) -> None:
    job, line = ended(run(server, "verify.fio", "8m").stdout)
    assert job["write"]["io_kbytes"] == job["read"]["io_kbytes"] == 8 << 10
    # both ways, RDMA moved the data itself
    assert ", copied 0\n" in line, line
    assert of_server(server, "8m")
    # a byte of a block's data, which only the sum finds
    damage = f"printf x | dd of=/export/{FILE} bs=1 seek=5000000 conv=notrunc"
    server.run("server", "sh", "-c", damage)
    assert not of_server(server, "8m")


@pytest.mark.parametrize("kind", ((), ("--thread",)), ids=("processes", "threads"))
def test_jobs_write_parts_of_a_new_file(server: Lab, kind: Sequence[str]) -> None:
    more = ("--numjobs=4", "--offset_increment=2m", "--group_reporting", *kind)
    job, lines = ended(run(server, "verify.fio", "2m", *more).stdout)
    assert job["write"]["io_kbytes"] == job["read"]["io_kbytes"] == 8 << 10
    # each job has its own session
    assert lines.count(": connects 1, ") == lines.count(", copied 0\n") == 4, lines
    assert of_server(server, "8m")


ENGINE = ("--ioengine=external:lib/build/fio.so", "--target=server:/export", f"--filename={FILE}")


def engine_job(lab: Lab, *words: str) -> Result:
    """Run a job without a job file, for options that those do not have."""
    argv = ("env", "-C", HERE, "fio", "--output-format=json+", "--name=job", *ENGINE, *words)
    return lab.run("client", *argv, timeout=SECONDS, check=False)


@pytest.mark.parametrize("depth", (1, 8))
def test_a_job_reads_and_writes_a_new_file(server: Lab, depth: int) -> None:
    words = ("--rw=randrw", "--bs=64k", "--size=8m", "--fsync=8", f"--iodepth={depth}")
    job, _ = ended(engine_job(server, *words).stdout)
    # no read found the end of the file
    assert job["read"]["io_bytes"] + job["write"]["io_bytes"] == 8 << 20
    # one COMMIT at a time: together they take no longer than the job
    assert job["sync"]["total_ios"] > 0
    lasted = job["sync"]["lat_ns"]["mean"] * job["sync"]["lat_ns"]["N"]
    assert 0 < lasted < job["job_runtime"] * 1e6


def test_nfs41_writes_and_reads(server: Lab) -> None:
    words = ("--nfs_version=41", "--size=8m", "--iodepth=8")
    write = ("--rw=write", "--bs=64k", "--do_verify=0", "--verify=crc32c", "--end_fsync=1")
    job, line = ended(engine_job(server, *words, *write).stdout)
    assert job["write"]["io_kbytes"] == 8 << 10
    job, line = ended(engine_job(server, *words, *VERIFY).stdout)
    assert job["read"]["io_kbytes"] == 8 << 10
    assert ", copied 0\n" in line, line


@pytest.mark.parametrize("job", ("read-one.fio", "read-batch.fio"))
def test_what_another_engine_wrote_is_read_and_verified(server: Lab, job: str) -> None:
    write = ("--rw=write", "--bs=64k", "--verify_interval=4k", "--do_verify=0")
    assert of_server(server, "64m", *write, "--verify=crc32c")
    # each block says where it belongs; what the job file says itself is as it is
    result, line = ended(run(server, job, "64m", "--number_ios=1600", *VERIFY).stdout)
    assert result["read"]["total_ios"] == 1600
    doorbells = int(line.partition("doorbells ")[2].split(",")[0])
    # a few more for the file's attributes and the mount protocol
    assert doorbells < 1600 / 16 + 30 if job == "read-batch.fio" else doorbells >= 1600, line


def test_errors_say_what_is_missing(server: Lab) -> None:
    done = run(server, "read-one.fio", "64m", check=False)
    assert done.returncode
    assert f"nfsrdma: stat {FILE}: " in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("size", "parts"), [("48m", 6), pytest.param("1g", 16, marks=pytest.mark.nightly)]
)
def test_data_is_verified_under_faults(server: Lab, size: str, parts: int) -> None:
    """All of the file is written and read back while servers restart and links go down.

    A fault comes before each part of the data that the server moves.
    """
    part = 2 * SIZES[size] // parts
    survived = []
    start = moved(server)
    words = server.ssh("client").argv(*argv("verify.fio", size))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        wait_until_moved(server, sum(start) + 1, process)
        for fault in itertools.cycle((RESTARTED, FAULTS["server's link down"])):
            before = moved(server)
            server.run(fault.node, "sh", "-c", fault.script, timeout=SECONDS)
            wait_until_moved(server, sum(before) + part, process)
            if process.poll() is not None:
                break
            survived.append((fault, "written" if before[0] == start[0] else "read"))
        output, _ = process.communicate()
    job, line = ended(output)
    assert job["read"]["io_bytes"] == job["write"]["io_bytes"] == SIZES[size]
    assert {phase for _, phase in survived} == {"written", "read"}
    restarts = sum(fault is RESTARTED for fault, _ in survived)
    assert int(line.partition("connects ")[2].split(",")[0]) > restarts > 0, line
    assert of_server(server, size)


SIZES = {"48m": 48 << 20, "1g": 1 << 30}


def moved(lab: Lab) -> tuple[int, int]:
    """Bytes that the server has read and written for clients."""
    line = lab.run("server", "grep", "^io ", "/proc/net/rpc/nfsd").stdout
    _, read, written = line.split()
    return int(read), int(written)


def wait_until_moved(lab: Lab, least: int, process: "subprocess.Popen[str]") -> None:
    """Wait until the server has moved that much in all, or the job has ended."""

    def is_moved() -> bool:
        return process.poll() is not None or sum(moved(lab)) >= least

    until(f"{least} bytes moved", is_moved, SECONDS, 0.3)
