# SPDX-License-Identifier: Apache-2.0
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.host.cpu_time import CpuTimes
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.sweep import reader, trial, workload
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.workload import Job, JobError, parse

PLAN = Plan("s:/e", file_size=1 << 20, uid="0123456789abcdef")
CELL = PLAN.cells()[0]
FAILED = json.dumps({"jobs": [{"error": 2}]})
needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")


def test_a_job_too_short_for_fios_clock_is_a_failed_trial() -> None:
    """Writes are timed in whole milliseconds: 0 of them tell no throughput."""
    with pytest.raises(UserError, match="4096 bytes took less than 1 ms"):
        trial._transfer(Job(4096, 0, 0.0, 0.0))
    assert trial._transfer(Job(4096, 1_000_000, 0.0, 0.0)).throughput == 4.096


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "words"),
    [
        ("", "fio: failed to set up\nmore", 1, "failed to set up"),
        ("{}", "", 1, "status 1"),
        ('{"jobs": []}', "", 0, "status 0"),
        ("", "\nkilled after 5 s", 124, "killed after 5 s"),
        ("nonsense {", "", 127, "status 127"),
        (f"fio: pid=7, err=2\n{FAILED}\nfio: a note\n", "", 1, "No such file"),
    ],
)
def test_what_fio_cannot_do_is_one_clear_error(
    stdout: str, stderr: str, status: int, words: str
) -> None:
    with pytest.raises(JobError, match=words):
        parse(Result(("fio",), stdout, stderr, status))


def test_a_missing_fio_is_no_error_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setpriv = shutil.which("setpriv")
    assert setpriv
    (tmp_path / "setpriv").symlink_to(setpriv)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramMissingError, match="fio is not installed"):
        workload.run_job(0, size=1)


def test_names() -> None:
    assert workload.file_name(Plan("s:/e")) == ".nfsrdma-sweep-32M"
    assert workload.file_name(replace(PLAN, direction="write")) == ".nfsrdma-sweep-0123456789ab"


def test_a_file_of_another_size_is_left_alone(tmp_path: Path) -> None:
    assert not workload.is_there(tmp_path, PLAN)
    path = tmp_path / workload.file_name(PLAN)
    path.write_bytes(b"somebody's")
    with pytest.raises(UserError, match="expected 1048576 bytes, found 10"):
        workload.is_there(tmp_path, PLAN)
    assert path.read_bytes() == b"somebody's"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # names that a shell, and fio's own parser, would take for something else
    path = tmp_path / "a b:c;$(touch pwned)%o\nd"
    path.mkdir()
    return path


@needs_fio
def test_made_read_and_checked(folder: Path) -> None:
    workload.make(folder, PLAN)
    assert [path.name for path in folder.iterdir()] == [".nfsrdma-sweep-1M"]
    assert workload.is_there(folder, PLAN)
    job = workload.read(folder, PLAN, CELL)
    assert isinstance(job, Job) and job.bytes == 1 << 20
    assert job.user_s + job.system_s > 0
    assert 0 < job.duration_ns < 10**10
    workload.verify(folder, PLAN)
    workload.check(folder, PLAN, workload.remember(folder, PLAN), PLAN.file_size)
    assert list(folder.parent.iterdir()) == [folder]
    workload.remove(folder, PLAN)
    workload.remove(folder, PLAN)
    assert not list(folder.iterdir())


@needs_fio
def test_a_killed_attempt_does_not_keep_the_sweep_from_making_its_file(folder: Path) -> None:
    draft = folder / f"{workload.file_name(PLAN)}.{PLAN.uid}"
    draft.write_bytes(b"half of it")
    workload.make(folder, PLAN)
    assert [path.name for path in folder.iterdir()] == [workload.file_name(PLAN)]
    workload.verify(folder, PLAN)


@needs_fio
def test_damage_anywhere_is_found(folder: Path) -> None:
    workload.make(folder, PLAN)
    path = folder / workload.file_name(PLAN)
    whole, content = path.read_bytes(), workload.remember(folder, PLAN)
    for damaged in (
        whole[:70000] + b"x" + whole[70001:],
        whole[8192:16384] + whole[:8192] + whole[16384:],
        whole[:-8192] + bytes(8192),
    ):
        path.write_bytes(damaged)
        with pytest.raises(JobError, match="not the data written"):
            workload.verify(folder, PLAN)
        with pytest.raises(JobError, match="not the data written"):
            workload.check(folder, PLAN, content, PLAN.file_size)


@pytest.mark.parametrize("direct", [False, True])
def test_a_share_of_the_file_is_read_and_checked(tmp_path: Path, direct: bool) -> None:
    plan = replace(PLAN, rsizes=(8192, 32768), read_aheads=(0, 1), whole_from=32768, direct=direct)
    whole = os.urandom(1 << 20)
    (tmp_path / workload.file_name(plan)).write_bytes(whole)
    content = workload.remember(tmp_path, plan)
    sizes = {256 << 10, 1 << 20} if direct else {128 << 10, 256 << 10, 1 << 20}
    assert {plan.bytes_moved(cell) for cell in plan.cells()} == sizes
    for cell in plan.cells():
        assert workload.read(tmp_path, plan, cell).bytes == plan.bytes_moved(cell)
        workload.check(tmp_path, plan, content, plan.bytes_moved(cell))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("place", [0, (1 << 20) - 1, 65 << 20, (66 << 20) + 8191])
def test_another_byte_anywhere_in_a_large_file_is_found(
    tmp_path: Path, place: int, direct: bool
) -> None:
    # blocks that are kept, one of which only the checksum is, and a last one that is not whole
    plan = replace(PLAN, rsizes=(8192,), file_size=(66 << 20) + 8192, direct=direct)
    path = tmp_path / workload.file_name(plan)
    path.write_bytes(os.urandom(1 << 20) * 66 + bytes(8192))
    content = workload.remember(tmp_path, plan)
    workload.check(tmp_path, plan, content, plan.file_size)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(JobError, match="not the data written"):
        workload.check(tmp_path, plan, content, plan.file_size)


@pytest.mark.parametrize(
    ("direct", "seconds", "requests"),
    [
        # the clock is read before the first request, and before each of them
        (False, 0.01, 9), (True, 0.01, 9),
        # 128 requests, then the end of the file
        (False, 0.5, 128), (False, 0.0, 128), (True, 0.0, 128),
        # the loop that begins with the file again makes no request, three times
        (True, 0.5, 499 - 3),
    ],
)  # fmt: skip
def test_a_read_ends_after_its_time_and_a_direct_one_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool, seconds: float, requests: int
) -> None:
    # a clock that goes on by a millisecond each time that it is read
    clock = SimpleNamespace(monotonic_ns=itertools.count(1_000_000, 1_000_000).__next__)
    monkeypatch.setattr(reader, "time", clock)
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    moved, took, *_ = map(int, reader.main(str(path), 1 << 20, 8192, direct, seconds).split())
    assert moved == requests * 8192
    assert took >= (seconds * 1e9 if moved != 1 << 20 else 0)


@pytest.mark.parametrize("direct", [False, True])
def test_a_timed_read_of_an_empty_file_ends(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "file"
    path.touch()
    assert reader.main(str(path), 1 << 20, 8192, direct, 600).startswith("0 ")


def test_a_trial_by_time_reads_warms_up_and_checks(tmp_path: Path) -> None:
    plan = replace(PLAN, seconds=0.1, rsizes=(8192,))
    (tmp_path / workload.file_name(plan)).write_bytes(os.urandom(1 << 20))
    workload.warm_up(tmp_path, plan, CELL)
    assert 0 < workload.read(tmp_path, plan, CELL).bytes <= 1 << 20
    again = workload.read(tmp_path, replace(plan, direct=True), CELL)
    assert again.bytes > 0 and again.duration_ns >= 10**8
    content = workload.remember(tmp_path, plan)
    workload.check(tmp_path, plan, content, workload.checked_part(plan, again.bytes))


def uring() -> bool:
    """Whether this kernel and fio have io_uring."""
    disabled = Path("/proc/sys/kernel/io_uring_disabled")
    engines = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, check=False)
    return "io_uring" in engines.stdout and not (
        disabled.exists() and disabled.read_text().strip() == "2"
    )


@needs_fio
@pytest.mark.parametrize("seconds", [0.0, 0.1])
@pytest.mark.parametrize(
    ("jobs", "depth", "direct"), [(1, 1, False), (3, 1, False), (4, 1, True), (1, 8, True),
                                  (4, 8, True)],
)  # fmt: skip
def test_several_jobs_and_requests(
    folder: Path, seconds: float, jobs: int, depth: int, direct: bool
) -> None:
    if depth > 1 and not uring():
        pytest.skip("io_uring is not available")
    plan = replace(PLAN, rsizes=(8192,), read_aheads=(4,), jobs=(jobs, 2), depths=(depth,),
                   direct=direct, seconds=seconds)  # fmt: skip
    workload.make(folder, plan)
    workload.verify(folder, plan)
    content = workload.remember(folder, plan)
    cell = next(c for c in plan.cells() if (c.jobs, c.depth) == (jobs, depth))
    job = workload.read(folder, plan, cell)
    if plan.reads_again(cell):
        assert job.duration_ns >= 0.098 * 1e9 and job.first > 0
    else:
        assert job.bytes == plan.bytes_moved(cell) == jobs * (128 // jobs) * 8192
        assert job.first == job.bytes // jobs
    assert job.has_workers == (depth > 1)
    workload.check(folder, plan, content, workload.checked_part(plan, job.first))


@needs_fio
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_buffered_and_direct_reads_of_one_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    if not uring():
        pytest.skip("io_uring is not available")
    plan = replace(PLAN, rsizes=(65536,), read_aheads=(4,), depths=(1, 8), with_direct=True,
                   transports=("tcp",), seconds=seconds)  # fmt: skip
    workload.make(folder, plan)
    content = workload.remember(folder, plan)
    given = list[tuple[str, ...]]()
    run_job = workload.run_job

    def recorded(file: int, *options: str, size: int) -> Job:
        given.append(options)
        return run_job(file, *options, size=size)

    monkeypatch.setattr(workload, "run_job", recorded)
    for cell in plan.cells():
        workload.warm_up(folder, plan, cell)
        job = workload.read(folder, plan, cell)
        assert job.bytes >= PLAN.file_size and job.has_workers == cell.direct
        workload.check(folder, plan, content, PLAN.file_size, cell)
    wanted = [
        {"--direct=1", "--time_based", "--bs=65536", "--bs=8192", "--ioengine=io_uring",
         "--ioengine=psync", "--iodepth=8"} & set(options) for options in given
    ]  # fmt: skip
    again = {"--time_based"} if seconds else set()
    direct = {"--direct=1", "--bs=65536", "--ioengine=io_uring", *again}
    assert wanted == [{"--bs=8192", "--ioengine=psync"}, direct, {*direct, "--iodepth=8"}]


@needs_fio
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_several_jobs_write_a_part_each(folder: Path, seconds: float) -> None:
    plan = replace(PLAN, direction="write", jobs=(4,), seconds=seconds, file_size=64 << 20)
    cell = plan.cells()[0]
    job = workload.write(folder, plan, cell)
    assert 0 < job.first <= plan.part(cell)
    assert seconds or (job.first, job.bytes) == (16 << 20, 64 << 20)
    workload.verify(folder, plan, cell, workload.checked_part(plan, job.first))
    if not seconds:
        workload.verify(folder, plan, cell)


def test_a_job_of_several_threads_is_as_long_as_the_longest() -> None:
    common = {"error": 0, "job_runtime": 1000, "usr_cpu": 1, "sys_cpu": 10}
    none = {"io_bytes": 0, "runtime": 0}
    jobs = [
        {**common, "read": {"io_bytes": size, "runtime": ms}, "write": none}
        for size, ms in ((100, 900), (300, 1000))
    ]
    job = parse(Result(("fio",), json.dumps({"jobs": jobs}), "", 0))
    assert (job.bytes, job.first, job.duration_ns) == (400, 100, 10**9)
    assert (job.user_s, job.system_s) == pytest.approx((0.02, 0.2))
    jobs[1]["error"] = 84
    with pytest.raises(JobError) as caught:
        parse(Result(("fio",), json.dumps({"jobs": jobs}), "", 1))
    assert caught.value.number == 84


@pytest.mark.parametrize(("value", "refused"), [("0\n", False), ("2\n", True), (None, False)])
def test_a_kernel_that_forbids_io_uring_is_a_clear_error(
    tmp_path: Path, value: str | None, refused: bool
) -> None:
    setting = tmp_path / "proc/sys/kernel/io_uring_disabled"
    setting.parent.mkdir(parents=True)
    if value is not None:
        setting.write_text(value)
    deep = replace(PLAN, direct=True, depths=(1, 8))
    workload.require_engine(replace(deep, depths=(1,)), Machine(tmp_path))
    error = pytest.raises(UserError, match=r"kernel\.io_uring_disabled is 2")
    with error if refused else contextlib.nullcontext():
        workload.require_engine(deep, Machine(tmp_path))


def test_the_workers_of_io_uring_are_work_of_the_mount() -> None:
    """Their time is in the process', and in no thread's: without it no cost of the harness."""
    times = CpuTimes(busy_ns=900, task_ns=900, wall_ns=1000, cpus=1, modes={})
    job = Job(4096, 1000, 1e-7, 2e-7)
    assert trial._cpu_usage(times, 700, job).busy_ns == 500
    assert trial._cpu_usage(times, 700, replace(job, has_workers=True)).busy_ns == 900


def test_a_trial_by_time_verifies_what_came_first() -> None:
    small, large = (replace(PLAN, seconds=5.0, file_size=size << 20) for size in (16, 4096))
    assert workload.checked_part(small, 100 << 20) == 16 << 20
    assert workload.checked_part(large, 8192) == 8192
    assert workload.checked_part(large, 4096 << 20) == 256 << 20
    assert workload.checked_part(replace(large, seconds=0.0), 4096 << 20) == 4096 << 20


@needs_fio
def test_a_write_by_time_is_verified_as_far_as_it_came(folder: Path) -> None:
    plan = replace(PLAN, direction="write", seconds=0.1, file_size=1 << 30)
    workload.warm_up(folder, plan, CELL)
    job = workload.write(folder, plan, CELL)
    assert 0 < job.bytes <= plan.file_size
    workload.verify(folder, plan, CELL, workload.checked_part(plan, job.bytes))
    with (folder / workload.file_name(plan)).open("r+b") as file:
        file.write(b"x" * 9000)
    with pytest.raises(JobError, match="not the data written"):
        workload.verify(folder, plan, CELL, workload.checked_part(plan, job.bytes))


def test_a_file_that_is_cut_is_not_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / workload.file_name(PLAN)
    path.write_bytes(bytes(PLAN.file_size))
    content = workload.remember(tmp_path, PLAN)
    for size in (PLAN.file_size - 1, 0):
        os.truncate(path, size)
        with pytest.raises(JobError, match="not the data written"):
            workload.check(tmp_path, PLAN, content, PLAN.file_size)


def test_a_file_that_became_shorter_is_not_read_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / workload.file_name(PLAN)).write_bytes(bytes(8192))
    with pytest.raises(JobError, match="8192 bytes were read instead of 1048576"):
        workload.read(tmp_path, PLAN, CELL)


def test_reading_never_makes_a_file(folder: Path) -> None:
    with pytest.raises(JobError, match="No such file"):
        workload.read(folder, PLAN, CELL)
    assert not list(folder.iterdir())


@needs_fio
@pytest.mark.parametrize("block", [4096, 8192, 65536])
def test_written_and_checked(folder: Path, block: int) -> None:
    plan = replace(PLAN, direction="write", block_size=block)
    (folder / workload.file_name(plan)).write_bytes(b"of the last run")
    assert workload.write(folder, plan, CELL).bytes == 1 << 20
    workload.verify(folder, plan, CELL)


def test_removing_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / workload.file_name(PLAN)).symlink_to(precious)
    workload.remove(tmp_path, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    assert precious.read_text() == "kept"


@needs_fio
def test_a_file_that_cannot_be_made_leaves_nothing(folder: Path) -> None:
    with pytest.raises(UserError):
        workload.make(folder / "no folder", PLAN)
    (folder / f"{workload.file_name(PLAN)}.{PLAN.uid}").mkdir()
    with pytest.raises(UserError, match=r"\.nfsrdma-sweep-1M"):
        workload.make(folder, PLAN)


@pytest.fixture
def hostile_fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Before fio starts, another writer of the export puts a link in place of each test file."""
    precious, folder = tmp_path / "precious", tmp_path / "programs"
    precious.write_text("kept")
    folder.mkdir()
    script = folder / "fio"
    swap = f'for file in "{tmp_path}"/export/.nfs*; do ln -sfn "{precious}" "$file"; done'
    script.write_text(f'#!/bin/sh\n{swap}\nexec {shutil.which("fio")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (tmp_path / "export").mkdir()
    return precious


@needs_fio
def test_writing_follows_no_link(tmp_path: Path, hostile_fio: Path) -> None:
    export, plan = tmp_path / "export", replace(PLAN, direction="write")
    assert workload.write(export, plan, CELL).bytes == 1 << 20
    assert (export / workload.file_name(plan)).is_symlink()
    assert hostile_fio.read_text() == "kept"
    with pytest.raises(JobError, match="symbolic links"):
        workload.verify(export, plan, CELL)


@needs_fio
def test_making_follows_no_link(tmp_path: Path, hostile_fio: Path) -> None:
    export = tmp_path / "export"
    workload.make(export, PLAN)
    assert hostile_fio.read_text() == "kept"
    with pytest.raises(UserError, match="not a regular file"):
        workload.is_there(export, PLAN)


@needs_fio
def test_verifying_follows_no_link(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload.make(folder, PLAN)
    other = tmp_path / "other"
    (folder / workload.file_name(PLAN)).rename(other)
    (folder / workload.file_name(PLAN)).symlink_to(other)
    with pytest.raises(JobError, match="symbolic links"):
        workload.verify(folder, PLAN)


def test_removing_keeps_the_content_of_a_linked_file(tmp_path: Path) -> None:
    """The server lets any writer of the export link any file of it."""
    precious, path = tmp_path / "precious", tmp_path / workload.file_name(PLAN)
    precious.write_text("kept")
    path.hardlink_to(precious)
    workload.remove(tmp_path, PLAN)
    assert not path.exists()
    assert precious.read_text() == "kept"


def test_a_fifo_in_place_of_the_file_blocks_nothing(tmp_path: Path) -> None:
    path = tmp_path / workload.file_name(PLAN)
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file"):
        workload.is_there(tmp_path, PLAN)
    with pytest.raises(JobError, match="not a regular file"):
        workload.remember(tmp_path, PLAN)
    workload.remove(tmp_path, PLAN)
    assert not path.exists()
