# SPDX-License-Identifier: Apache-2.0
import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs import fstab
from nfsrdma_tools.sweep.plan import PRESETS, Cell, Plan, preset


def test_quick_is_32_cells_of_3_runs() -> None:
    plan = preset("quick", "server:/export")
    assert len(plan.cells()) == len(set(plan.cells())) == 32
    assert (plan.runs, plan.file_size, plan.mode) == (3, 32 << 20, "racing")


def test_cells_with_little_read_ahead_read_a_share_of_the_file() -> None:
    plan = preset("quick", "s:/e")
    shares = {(0, 8): 8, (0, 512): 8, (1, 8): 4, (4, 8): 1, (1, 32): 1, (16, 512): 1}
    for (ahead, kib), share in shares.items():
        assert plan.bytes_moved(Cell("tcp", kib << 10, ahead)) == plan.file_size // share
    slow = Cell("tcp", 8192, 0)
    assert plan.bytes_moved(replace(slow, transport="rdma")) == plan.bytes_moved(slow)
    assert replace(plan, direction="write").bytes_moved(slow) == plan.file_size
    assert preset("quick", "s:/e", whole_from=0).bytes_moved(slow) == plan.file_size
    assert preset("paper2003", "s:/e").bytes_moved(slow) == 1 << 30
    assert replace(plan, file_size=8192).bytes_moved(slow) == 8192


def test_by_time_no_cell_reads_a_share_and_only_direct_reads_repeat() -> None:
    plan = preset("quick", "s:/e", seconds=5.0)
    assert {plan.bytes_moved(cell) for cell in plan.cells()} == {plan.file_size}
    cell = Cell("tcp", 8192, 0)
    assert not plan.reads_again(cell)
    assert replace(plan, direct=True).reads_again(cell)
    assert not replace(plan, direct=True, direction="write").reads_again(cell)
    assert not replace(plan, direct=True, seconds=0.0).reads_again(cell)
    beside = replace(plan, with_direct=True)
    assert not beside.reads_again(cell) and beside.reads_again(replace(cell, direct=True))


@given(st.integers(1, 512), st.integers(0, 64), st.sampled_from([512, 4096, 8192]), st.booleans())
def test_a_share_is_a_whole_number_of_requests(
    blocks: int, ahead: int, block_size: int, direct: bool
) -> None:
    plan = Plan("s:/e", rsizes=(4096,), file_size=blocks * 8192, block_size=block_size,
                whole_from=32768, direct=direct)  # fmt: skip
    cell = Cell("rdma", 4096, ahead)
    size = plan.bytes_moved(cell)
    assert plan.request_size(cell) <= size <= plan.file_size
    assert size % plan.request_size(cell) == 0


def test_a_plan_of_an_older_store_reads_the_whole_file() -> None:
    stored = preset("quick", "s:/e").to_json()
    del stored["whole_from"]
    plan = Plan.from_json(stored)
    assert {plan.bytes_moved(cell) for cell in plan.cells()} == {plan.file_size}


def test_paper2003_is_the_papers_grid() -> None:
    plan = preset("paper2003", "server:/export")
    assert plan.read_aheads == (0, 1, 2, 4, 8, 16)
    assert (plan.rsizes[0], plan.rsizes[1], plan.rsizes[-1]) == (512, 1024, 1 << 20)
    assert (plan.file_size, plan.runs) == (1 << 30, 3)


def test_changes_go_on_top_of_the_preset() -> None:
    plan = preset("full", "server:/export", runs=5, rsizes=None)
    assert plan.runs == 5
    assert plan.rsizes == PRESETS["full"]["rsizes"]
    with pytest.raises(UserError, match="quick, full, hardware, paper2003"):
        preset("fast", "server:/export")


@pytest.mark.parametrize(
    ("name", "changes", "vers"),
    [
        ("quick", {}, "4.2"),
        ("quick", {"vers": "4.1"}, "4.1"),
        ("quick", {"transports": ("nfsrdma",), "axes": (("personality", ("cached",)),)}, "4.2"),
        ("quick", {"transports": ("nfsrdma",),
                   "axes": (("personality", ("cached", "optimistic")),)}, "3"),
        ("paper2003", {}, "3"),
        ("paper2003", {"vers": "4.2"}, "4.2"),
    ],
)  # fmt: skip
def test_the_version_is_that_of_mount_unless_a_personality_or_the_paper_has_another(
    name: str, changes: dict[str, Any], vers: str
) -> None:
    assert preset(name, "s:/e", **changes).vers == vers


@pytest.mark.parametrize(
    ("changes", "cell", "options"),
    [({}, Cell("tcp", 8192, 4), "vers=4.2,proto=tcp,rsize=8192"),
     ({"vers": "3"}, Cell("nfsrdma", 1 << 20, 4, nconnect=4),
      "vers=3,proto=rdma,port=20049,rsize=1048576,nconnect=4"),
     ({"direction": "write"}, Cell("tcp", 8192, 0), "vers=4.2,proto=tcp,wsize=8192"),
     ({"target": "[fe80::1]:/e"}, Cell("tcp", 8192, 0), "vers=4.2,proto=tcp6,rsize=8192")],
)  # fmt: skip
def test_a_cell_as_mount_options(changes: dict[str, Any], cell: Cell, options: str) -> None:
    plan = replace(Plan("s:/e"), **changes)
    assert plan.mount_options(cell) == options


def test_a_line_of_fstab_and_a_command_for_a_target_with_blanks() -> None:
    plan, cell = Plan("s:/a b\\c"), Cell("tcp", 8192, 0)
    line = plan.fstab_line(cell, "/mnt/x\ty")
    (parsed,) = fstab.nfs_lines(line)
    assert (parsed.source, str(parsed.directory)) == ("s:/a b\\c", "/mnt/x\ty")
    assert parsed.options == plan.mount_options(cell)
    assert shlex.split(plan.mount_command(cell, "/mnt/x\ty"))[-2:] == ["s:/a b\\c", "/mnt/x\ty"]


def test_axes_multiply_the_grid() -> None:
    axes = (("sunrpc.rdma_max_inline_read", ("4096", "8192")), ("server:a.b", ("1", "2", "3")))
    plan = Plan("s:/e", transports=("rdma",), rsizes=(8192,), read_aheads=(1,), axes=axes)
    assert len(plan.cells()) == 6
    assert plan.cells()[1].axes == (("sunrpc.rdma_max_inline_read", "4096"), ("server:a.b", "2"))


def test_jobs_and_depths_multiply_the_grid_and_depths_that_of_direct_reads_only() -> None:
    plan = Plan("s:/e", transports=("rdma",), rsizes=(65536,), read_aheads=(4,), jobs=(1, 4),
                depths=(1, 8), nconnects=(1, 2))  # fmt: skip
    assert [str(cell) for cell in plan.cells()] == [
        "rdma 64k, 4 ahead", "rdma 64k, 4 ahead, 4 jobs", "rdma 64k, 4 ahead, nconnect 2",
        "rdma 64k, 4 ahead, 4 jobs, nconnect 2",
    ]  # fmt: skip
    direct = replace(plan, direct=True)
    assert len(direct.cells()) == len(set(direct.cells())) == 8
    assert str(direct.cells()[-1]) == "rdma 64k, 0 ahead, 4 jobs, depth 8, nconnect 2"
    cell = plan.cells()[0]
    assert (plan.engine(cell), direct.engine(cell)) == ("psync", "io_uring")
    assert replace(direct, depths=(1,)).engine(cell) == "psync"
    assert replace(plan, jobs=(1,)).engine(cell) == ""


def test_depths_of_direct_reads_are_beside_read_aheads_of_buffered_ones_not_times_them() -> None:
    plan = Plan("s:/e", transports=("rdma",), rsizes=(65536,), read_aheads=(0, 4), depths=(1, 8),
                with_direct=True)  # fmt: skip
    assert [str(cell) for cell in plan.cells()] == [
        "rdma 64k, 0 ahead", "rdma 64k, 4 ahead", "rdma 64k, direct, depth 1",
        "rdma 64k, direct, depth 8",
    ]  # fmt: skip
    buffered, *_, direct = plan.cells()
    assert (plan.has_read_ahead(buffered), plan.has_read_ahead(direct)) == (True, False)
    assert (plan.is_direct(buffered), plan.is_direct(direct)) == (False, True)
    assert (plan.request_size(buffered), plan.request_size(direct)) == (8192, 65536)
    # io_uring would hand buffered reads to threads of the kernel
    assert (plan.engine(buffered), plan.engine(direct)) == ("psync", "io_uring")
    shallow = replace(plan, depths=(1,))
    assert {shallow.engine(cell) for cell in shallow.cells()} == {""}
    shares = replace(plan, whole_from=32768)
    assert shares.bytes_moved(buffered) == plan.file_size // 8
    assert shares.bytes_moved(direct) == plan.file_size
    for cell in plan.cells():
        assert Cell.from_key(cell.key) == cell
    assert replace(plan, jobs=(1, 4), nconnects=(1, 2)).cells()[-1].jobs == 4
    assert len(replace(plan, jobs=(1, 4), nconnects=(1, 2)).cells()) == 16


def test_each_job_has_an_equal_part_of_whole_requests() -> None:
    plan = Plan("s:/e", rsizes=(65536,), jobs=(1, 3), direct=True, file_size=1 << 20)
    of_one, of_three = (cell for cell in plan.cells() if cell.transport == "tcp")
    assert (plan.part(of_one), plan.bytes_moved(of_one)) == (1 << 20, 1 << 20)
    assert (plan.part(of_three), plan.bytes_moved(of_three)) == (5 * 65536, 15 * 65536)
    # a share of the file, for cells with little read-ahead
    shared = replace(plan, direct=False, whole_from=32768, read_aheads=(0,), jobs=(4,))
    (cell, *_) = shared.cells()
    assert (shared.part(cell), shared.bytes_moved(cell)) == (1 << 18, 1 << 17)


def test_keys_of_cells_with_one_job_are_those_of_older_stores() -> None:
    cell = Cell("tcp", 8192, 0)
    assert json.loads(cell.key) == {
        "axes": [], "nconnect": 1, "read_ahead": 0, "rsize": 8192, "transport": "tcp",
    }  # fmt: skip
    for loaded in (replace(cell, jobs=4), replace(cell, depth=4), replace(cell, direct=True)):
        assert Cell.from_key(loaded.key) == loaded
        assert loaded.key != cell.key


def test_only_our_transport_has_personalities() -> None:
    axes = (("a.b", ("1", "2")), ("personality", ("read-write", "cached")))
    plan = Plan("s:/e", transports=("tcp", "nfsrdma"), rsizes=(8192,), read_aheads=(1,), axes=axes)
    tcp, ours = ([c for c in plan.cells() if c.transport == t] for t in plan.transports)
    assert [cell.axes for cell in tcp] == [(("a.b", "1"),), (("a.b", "2"),)]
    assert [cell.personality for cell in (*tcp, *ours)] == [None] * 2 + ["read-write", "cached"] * 2
    assert {cell.tunables for cell in ours} == {(("a.b", "1"),), (("a.b", "2"),)}
    assert str(ours[1]) == "nfsrdma 8k, 1 ahead, a.b=1, personality=cached"
    assert Cell.from_key(ours[1].key) == ours[1]


def test_read_ahead_is_no_dimension_where_nothing_is_read_ahead() -> None:
    for plan in (Plan("s:/e", direct=True), Plan("s:/e", direction="write")):
        assert {cell.read_ahead for cell in plan.cells()} == {0}
        assert len(plan.cells()) == 8


def test_windows_in_kib_are_blocks_of_each_rsize_that_divides_them() -> None:
    plan = Plan("s:/e", transports=("rdma",), rsizes=(64 << 10, 256 << 10),
                read_ahead_kbs=(0, 128, 1024))  # fmt: skip
    windows = [(cell.rsize >> 10, cell.read_ahead) for cell in plan.cells()]
    assert windows == [(64, 0), (64, 2), (64, 16), (256, 0), (256, 4)]
    assert {c.read_ahead for c in replace(plan, direct=True).cells()} == {0}
    stored = plan.to_json()
    del stored["read_ahead_kbs"]
    assert Plan.from_json(stored).read_ahead_kbs == ()


def test_requests_are_small_unless_direct() -> None:
    cell = Cell("tcp", 1 << 20, 0)
    assert Plan("s:/e").request_size(cell) == 8192
    assert Plan("s:/e", direct=True).request_size(cell) == 1 << 20


def test_plans_and_cells_survive_json() -> None:
    plan = replace(Plan("s:/e"), axes=(("a.b", ("1", "2")),))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    for cell in plan.cells():
        assert Cell.from_key(cell.key) == cell
    assert len({cell.key for cell in plan.cells()}) == len(plan.cells())


@pytest.mark.parametrize(
    "wrong",
    [
        {"transports": ("udp",)}, {"transports": ()}, {"rsizes": ()}, {"vers": "2"},
        {"mode": "fast"}, {"runs": 0}, {"file_size": 1000}, {"file_size": 12 << 10},
        {"file_size": 0}, {"seconds": -1.0}, {"seconds": 3601.0}, {"seconds": float("nan")},
        {"seconds": 5.0, "file_size": 0, "block_size": 3000}, {"nconnects": (0,)}, {"jobs": (0,)},
        {"jobs": (257,)}, {"depths": (0,), "direct": True}, {"depths": (1025,), "direct": True},
        {"jobs": (8,), "file_size": 32768}, {"minutes": -1.0}, {"axes": (("a.b", ()),)},
        {"axes": (("a.b", ("1", "1")),)}, {"axes": (("personality", ("cached",)),)},
        {"axes": (("personality", ("fast",)),), "transports": ("nfsrdma",)},
        {"axes": (("personality", ("optimistic",)),), "transports": ("nfsrdma",), "vers": "4.2"},
        {"direct": True, "rsizes": (1000,)}, {"with_direct": True, "rsizes": (1000,)},
        {"with_direct": True, "block_size": 3000}, {"with_direct": True, "direct": True},
        {"with_direct": True, "direction": "write"},
        {"with_direct": True, "rsizes": (1 << 20,), "read_ahead_kbs": (128,)},
        {"rsizes": (1 << 20,), "read_ahead_kbs": (128,)},
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_a_clear_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        replace(Plan("s:/e"), **wrong)


def test_foreign_json_is_no_plan() -> None:
    with pytest.raises(UserError, match="not a plan"):
        Plan.from_json({"target": "s:/e", "colour": "green"})


def test_cells_are_named_as_people_name_them() -> None:
    assert str(Cell("rdma", 128 << 10, 4)) == "rdma 128k, 4 ahead"
    assert str(Cell("tcp", 1 << 20, 0, 4, (("a.b", "1"),))) == "tcp 1M, 0 ahead, nconnect 4, a.b=1"


@pytest.mark.parametrize("uid", ["", "../x", "/etc", "a b", "a\n", "x" * 65, "\u00e9", 5, None])
def test_a_uid_is_part_of_names_of_files(uid: Any) -> None:
    data = Plan("server:/export").to_json() | {"uid": uid}
    with pytest.raises(UserError, match="uid: expected letters and digits"):
        Plan.from_json(data)
