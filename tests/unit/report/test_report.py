# SPDX-License-Identifier: Apache-2.0
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.sweep.trials_made import trial_of, with_columns

from nfsrdma_tools.cli import results
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.report import build, canvas, captions, comparison, recommendation
from nfsrdma_tools.report.section import Section, Table, render
from nfsrdma_tools.report.study import load, machine, merged, wire_speed
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import NOT_OFFERED, Store, Trial

HOSTILE = "<script>alert(1)</script>'\"&$\\frac{1}{0}$\x1b[31m\x00\u202e"
LAB = {"kernel": "6.12.107", "cpu model": "QEMU", "lab clock": "instructions",
       "lab link": "1gbit/100us", "module rdma_rxe": "1"}  # fmt: skip
KIB = 1024


def rate(cell: Cell) -> float:
    """A made-up wire: latency first, then 120 MB/s; RDMA has an optimum at 4 ahead."""
    ahead = (
        cell.read_ahead if cell.transport == "tcp" else min(cell.read_ahead, 8 - cell.read_ahead)
    )
    return 1 / (1 / 120 + 10e3 / (cell.rsize * (1 + max(ahead, 0))))


def trial(plan: Plan, cell: Cell, run: int, **changes: Any) -> Trial:
    speed = rate(cell) * (1 + 1e-4 * run)
    busy = int(plan.file_size * (3 + 8192 / cell.rsize))
    made = trial_of(
        plan.uid, cell, run, run, started="2026-11-20T06:00:00+00:00", bytes=plan.file_size,
        throughput=speed, busy_ns=busy, wall_ns=busy * 2, cpu_share=0.5, reader_system_s=0.1,
        rtt_ms=0.2, ceiling=cell.rsize / 200, verified=True,
    )  # fmt: skip
    return with_columns(made, **changes)


def store(path: Path, plan: Plan, facts: dict[str, str] = LAB, runs: int = 2) -> Path:
    with Store(path) as made:
        made.add_plan(plan)
        uid = made.add_environment(facts)
        for run in range(1, runs + 1):
            for cell in plan.cells():
                bad = cell.transport == "rdma" and cell.rsize > 512 * KIB
                changes = {"status": NOT_OFFERED, "reason": "too large"} if bad else {}
                made.add_trial(trial(plan, cell, run, environment=uid, **changes))
    return path


def plan(**changes: Any) -> Plan:
    base = Plan("server:/export", rsizes=(8 * KIB, 128 * KIB, 1024 * KIB), read_aheads=(0, 1, 4),
                file_size=1 << 20, uid="p1")  # fmt: skip
    return replace(base, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> build.Report:
    folder = tmp_path_factory.mktemp("report")
    return build.build(store(folder / "s.db", plan()), folder / "out")


def test_comparison_is_of_transports_in_words(tmp_path: Path) -> None:
    three = plan(transports=("tcp", "nfsrdma"), axes=(("personality", ("read-write", "padded")),))
    path = tmp_path / "s.db"
    with Store(path) as opened:
        opened.add_plan(three)
        uid = opened.add_environment(LAB)
        speed = {None: 100.0, "read-write": 150.0, "padded": 120.0}
        for cell in three.cells():
            fast = speed[cell.personality] * (cell.read_ahead + 1)
            costs = {"throughput": fast, "busy_ns": int(three.file_size * 600 / fast)}
            opened.add_trial(trial(three, cell, 1, environment=uid, **costs))
    with Store(path, read_only=True) as opened:
        drawing = comparison.draw(load(opened))
    assert drawing
    ours = "RDMA, this project's module"
    title = f"Read throughput over that of TCP: 1.20 ({ours}, padded), 1.50 ({ours})"
    assert drawing.title.splitlines() == [title, "emulated CPU, soft-RoCE"]
    left, right = drawing.figure.axes
    for ax in (left, right):
        names = {text.get_text().replace("\n", " ") for text in ax.texts}
        assert names == {"TCP", ours, f"{ours}, padded"}
    # each size at its best read-ahead, here 4
    heights = {tuple(np.asarray(line.get_ydata())) for line in left.lines}
    assert heights >= {(500.0,) * 3, (600.0,) * 3, (750.0,) * 3}


def test_a_study_of_one_transport_has_nothing_to_compare(tmp_path: Path) -> None:
    with Store(store(tmp_path / "s.db", plan(transports=("tcp",))), read_only=True) as opened:
        assert comparison.draw(load(opened)) is None


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> build.Report:
    folder = tmp_path_factory.mktemp("hostile")
    odd = plan(target=f"server:/{HOSTILE}", axes=((HOSTILE, ("1", HOSTILE)),))
    facts = LAB | {HOSTILE: HOSTILE, "cpu model": HOSTILE, "kernel": HOSTILE, "rdma x": HOSTILE}
    path = store(folder / "s.db", odd, facts, runs=1)
    with Store(path) as opened:
        cell = replace(odd.cells()[0], rsize=4096)
        opened.add_trial(trial(odd, cell, 9, status="failed", reason=HOSTILE))
    return build.build(path, folder / "out")


class Reader(HTMLParser):
    """Collects what a page holds and fails when elements are not closed in order."""

    VOID = ("meta", "br", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page(report: build.Report) -> Reader:
    return Reader(report.files[0].read_text(encoding="utf-8"))


def test_figures_are_there_and_whole(made: build.Report) -> None:
    names = {path.name for path in made.files}
    assert made.files[0].name == "index.html"
    for stem in ("fig15-throughput-tcp", "fig16-throughput-rdma", "fig17-cpu-throughput",
                 "map-tcp", "map-rdma"):  # fmt: skip
        assert {f"{stem}.png", f"{stem}.svg"} <= names
    for path in made.files[1:]:
        if path.suffix == ".png":
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        else:
            ElementTree.parse(path)  # noqa: S314 -- made by this test


def test_our_transport_has_a_name_a_colour_and_a_marker_of_its_own(tmp_path: Path) -> None:
    three = plan(transports=("tcp", "rdma", "nfsrdma"))
    facts = LAB | {"module nfsrdma": "0.1.0 ABCDEF0123456789 OE"}
    report = build.build(store(tmp_path / "s.db", three, facts), tmp_path / "out")
    files = {path.name: path for path in report.files}
    assert {"fig16b-throughput-nfsrdma.svg", "map-nfsrdma.svg"} <= files.keys()
    assert len({canvas.transport_colour(name) for name in three.transports}) == 3
    assert len({canvas.marker_of(three.transports, name) for name in three.transports}) == 3
    text = files["fig17-cpu-throughput.svg"].read_text()
    assert "RDMA," in text and "this project's module" in text
    assert "nfsrdma 0.1.0 ABCDEF01" in re.sub(r"\s+", " ", text)
    assert canvas.transport_colour("nfsrdma") in text


def test_every_figure_carries_its_conditions(made: build.Report) -> None:
    for path in made.files[1:]:
        if path.suffix == ".svg":
            text = " ".join(ElementTree.parse(path).getroot().itertext())  # noqa: S314
            text = re.sub(r"\s+", " ", text)
            for fact in ("6.12.107", "instructions", "1gbit/100us", "2026-11-20", "2 runs"):
                assert fact in text, (path.name, fact)


@pytest.mark.parametrize("which", ["made", "hostile"])
def test_page_loads_nothing_and_runs_nothing(which: str, request: pytest.FixtureRequest) -> None:
    parsed = page(request.getfixturevalue(which))
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(parsed.tags)
    for element, name, value in parsed.attributes:
        assert not name.startswith("on") and name != "style", (element, name)
        if name in ("href", "xlink:href", "src", "action"):
            assert value.startswith("#")
        if name not in ("xmlns", "xmlns:xlink"):
            assert "http" not in value.lower().replace("http-equiv", ""), (element, name, value)
    css = re.sub(r"http://www\.w3\.org\S*", "", "".join(parsed.texts))
    assert "url(http" not in css and "@import" not in css


def test_page_has_a_strict_policy_that_fits_its_sheet(made: build.Report) -> None:
    text = made.files[0].read_text()
    sheet = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert sheet and policy and text.count("<style") == 1
    digest = base64.b64encode(hashlib.sha256(sheet[1].encode()).digest()).decode()
    assert "default-src 'none'" in unescape(policy[1]) and f"sha256-{digest}" in policy[1]
    assert "unsafe" not in policy[1]


def test_ids_are_unique(made: build.Report) -> None:
    ids = [value for _, name, value in page(made).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_hostile_text_stays_text(hostile: build.Report) -> None:
    raw = hostile.files[0].read_text(encoding="utf-8")
    assert "<script" not in raw and "\x1b" not in raw and "\x00" not in raw and "\u202e" not in raw
    assert "".join(page(hostile).texts).count("<script>alert(1)</script>") > 5
    for path in hostile.files[1:]:
        if path.suffix == ".svg":
            text = " ".join(ElementTree.parse(path).getroot().itertext())  # noqa: S314
            assert "$\\frac{1}{0}$" in text, "mathtext read a dollar sign as a formula"


def test_same_store_gives_same_bytes(made: build.Report, tmp_path: Path) -> None:
    source = made.files[0].parent.parent / "s.db"
    environ = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    argv = (sys.executable, "-m", "nfsrdma_tools", "report", source, "-o", tmp_path, "--json")
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["page"] == str(tmp_path / "index.html")
    for path in made.files:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_advice_comes_first_in_plain_words(made: build.Report) -> None:
    text = " ".join("".join(page(made).texts).split())
    told = text.index("TCP: rsize 1 MiB with 4 reads ahead (4 MiB)")
    assert told < text.index("The figures") < text.index("All cells")
    assert "soft-RoCE emulates the RDMA card in software" in text
    assert "clock counts instructions" in text
    assert "nfsrdma tune apply --mount /MOUNT/POINT --rsize 128k --read-ahead 4" in text
    assert "too large" in text and "not offered" in text


@pytest.mark.parametrize(("facts", "there"), [(LAB, False), ({"kernel": "6.12.107"}, True)])
def test_the_best_cell_as_a_mount_outside_of_a_lab(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, str], there: bool
) -> None:
    results.report(store(tmp_path / "s.db", plan(), facts, runs=1), None, "", as_json=False)
    output = capsys.readouterr().out
    page = Reader((tmp_path / "report/index.html").read_text(encoding="utf-8"))
    text = " ".join("".join(page.texts).split())
    best = "server:/export  /MOUNT/POINT  nfs  vers=4.2,proto=tcp,rsize=1048576  0 0"
    command = "mount -t nfs -o vers=4.2,proto=tcp,rsize=1048576 server:/export /MOUNT/POINT"
    assert (f"fstab: {best}\nmount: {command}\n" in output) == there
    assert (" ".join(best.split()) in text) == (command in text) == there


def test_the_page_describes_a_modelled_card(tmp_path: Path) -> None:
    facts = LAB | {"rdma card0": "modelled card, rate 1000000000, latency 50000"}
    report = build.build(store(tmp_path / "s.db", plan(), facts, runs=1), tmp_path / "out")
    text = " ".join("".join(page(report).texts).split())
    assert "The RDMA card is a model" in text and "soft-RoCE" not in text
    assert "modelled card, link 1gbit/100us" in machine(report.study.conditions)


def test_advice_knows_default_ties_and_thrift(made: build.Report) -> None:
    tcp, rdma = recommendation.advice(made.study)
    assert (tcp.transport, rdma.transport) == ("tcp", "rdma")
    assert rdma.best.cell == Cell("rdma", 128 * KIB, 4)
    # 128 KiB ahead, in the largest blocks that fit: what Linux does unasked
    assert rdma.default and rdma.default.cell == Cell("rdma", 128 * KIB, 1)
    assert rdma.gain is not None
    assert rdma.gain == pytest.approx(rate(rdma.best.cell) / rate(rdma.default.cell) - 1)
    assert f"{100 * rdma.gain:+.1f} % over" in recommendation.over_default(made.study, rdma)
    tie = replace(rdma, tied=(rdma.default,))
    sentence = recommendation.over_default(made.study, tie)
    assert sentence.startswith(
        "No significant difference from Linux's default read-ahead of 128 KiB"
    )
    assert rdma.thrifty in (rdma.best, *rdma.tied)
    assert rdma.front[0] == rdma.best


def test_a_transport_that_failed_altogether(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store(path) as opened:
        opened.add_plan(plan())
        for cell in plan().cells():
            bad = {"status": "failed", "reason": "no route"} if cell.transport == "rdma" else {}
            opened.add_trial(trial(plan(), cell, 1, **bad))
    report = build.build(path, tmp_path / "out")
    assert [a.transport for a in recommendation.advice(report.study)] == ["tcp"]
    assert "no route" in report.files[0].read_text()


@pytest.mark.parametrize(
    ("changes", "title", "option"),
    [
        ({"direct": True}, "TCP: direct read throughput over rsize", "--rsize"),
        ({"direction": "write"}, "TCP: write throughput over wsize", "--wsize"),
    ],
)
def test_captions_name_other_kinds_of_io(
    tmp_path: Path, changes: dict[str, object], title: str, option: str
) -> None:
    small = plan(transports=("tcp",), **changes)
    report = build.build(store(tmp_path / "s.db", small), tmp_path)
    assert not [path for path in report.files if path.name.startswith("map")]
    assert captions.title(report.study, "tcp") == title
    command = recommendation.tune_command(report.study, recommendation.advice(report.study)[0])
    assert option in command and "--read-ahead" not in command


def test_further_axes_become_panels(hostile: build.Report, tmp_path: Path) -> None:
    assert len(hostile.study.variants) == 2
    wide = plan(transports=("tcp",), nconnects=(1, 4))
    report = build.build(store(tmp_path / "s.db", wide), tmp_path)
    assert report.study.variants == ["nconnect 1", "nconnect 4"]
    svg = (tmp_path / "fig15-throughput-tcp.svg").read_text()
    assert "nconnect 1" in svg and "nconnect 4" in svg


def test_direct_reads_beside_buffered_ones_are_panels_and_the_advice_compares_them(
    tmp_path: Path,
) -> None:
    both = plan(transports=("tcp",), depths=(1, 8), with_direct=True)
    report = build.build(store(tmp_path / "s.db", both), tmp_path)
    assert report.study.variants == ["buffered", "direct, depth 1", "direct, depth 8"]
    lines = (tmp_path / "fig15-throughput-tcp.svg").read_text()
    assert all(f">{variant}<" in lines for variant in report.study.variants)
    # only buffered reads have a read-ahead
    assert ">buffered<" in (tmp_path / "map-tcp.svg").read_text()
    for name in ("map-tcp", "fig17-cpu-throughput", "fig18-reader-cpu"):
        assert "direct, depth" not in (tmp_path / f"{name}.svg").read_text()
    (advice,) = recommendation.advice(report.study)
    assert advice.other_kind
    assert (advice.best.cell.direct, advice.other_kind.cell.direct) == (False, True)
    assert advice.default
    assert not advice.default.cell.direct
    sentence = recommendation.over_other_kind(report.study, advice)
    assert re.match(r"Buffered reads: 1\.\d\d times as fast as direct reads, which reached .* MB/s "
                    r"\(1 MiB, direct, depth \d\)\.$", sentence)  # fmt: skip
    assert sentence in report.files[0].read_text()
    facts = recommendation.as_json(report.study, advice)
    assert [facts[name]["direct"] for name in ("best", "other_kind")] == [False, True]  # type: ignore[index]
    assert "8 KiB per call, or rsize (O_DIRECT); server" in captions.workload(report.study)


def test_personalities_are_panels_with_the_other_transports_beside_them(tmp_path: Path) -> None:
    names = ("read-write", "cached")
    wide = plan(transports=("tcp", "nfsrdma"), axes=(("personality", names),))
    report = build.build(store(tmp_path / "s.db", wide), tmp_path)
    ours = ["personality=cached", "personality=read-write"]
    assert report.study.variants == [*ours, ""]
    assert report.study.variants_of("nfsrdma") == ours
    shown = report.study.side_by_side(report.study.points)
    assert list(shown) == ours
    for name, points in shown.items():
        cells = {(p.cell.transport, p.variant) for p in points}
        assert cells == {("tcp", ""), ("nfsrdma", name)}
    tcp, mine = ((tmp_path / f"fig{name}.svg").read_text()
                 for name in ("15-throughput-tcp", "16b-throughput-nfsrdma"))  # fmt: skip
    assert [text.count(ours[0]) > 0 for text in (tcp, mine)] == [False, True]
    cpu = (tmp_path / "fig17-cpu-throughput.svg").read_text()
    for colour in (*map(canvas.personality_colour, names), canvas.transport_colour("tcp")):
        assert colour in cpu
    # of two cells with Linux's read-ahead, the default has the module's personality
    (advice,) = (a for a in recommendation.advice(report.study) if a.transport == "nfsrdma")
    assert advice.default
    assert advice.default.cell.personality == "read-write"


def test_bad_input_ends_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no store"):
        build.build(tmp_path / "none.db", tmp_path)
    path = tmp_path / "s.db"
    with Store(path) as opened:
        opened.add_plan(plan())
        opened.add_trial(trial(plan(), plan().cells()[0], 1, status="failed", reason="no route"))
    with pytest.raises(UserError, match=r"none of 1 trials .*no route"):
        build.build(path, tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the report"):
        build.build(store(tmp_path / "t.db", plan()), tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("link", "speed"),
    [("1gbit/100us", 125), ("10gbit/20us", 1250), ("100mbit/1ms", 12.5), ("none", None)],
)
def test_speed_of_the_wire(link: str, speed: float | None) -> None:
    assert wire_speed({"lab link": link}) == speed
    assert wire_speed({}) is None


def test_environments_that_differ_are_all_told() -> None:
    two = {"a": {"kernel": "6.1", "cpus": "2"}, "b": {"kernel": "6.12", "cpus": "2"}}
    trials = [trial(plan(), plan().cells()[0], i, environment=uid) for i, uid in enumerate("ab")]
    assert merged(two, trials) == {"kernel": "6.1 / 6.12", "cpus": "2"}


@given(st.lists(st.floats(0, 1), max_size=9), st.floats(0.01, 0.1))
def test_labels_do_not_touch(places: list[float], gap: float) -> None:
    from nfsrdma_tools.report.canvas import apart

    moved = apart(sorted(places), gap)
    assert len(moved) == len(places)
    assert all(b - a >= gap - 1e-9 for a, b in pairwise(moved))
    # nine labels have room, so none is above the panel, where the title is
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in moved)


def rendered(text: str) -> Reader:
    """The page with ``text`` in each place."""
    table = Table((text,), [(text,)])
    words = ("policy", "title", "css", "note", "wide", "small_print")
    return Reader(
        render(
            **dict.fromkeys(words, text),
            summary=[text],
            cards=[{"title": text, "rate": text, "texts": [text]}],
            persistent=[(text, [text])],
            figures=[dict.fromkeys(("name", "svg", "alt", "caption"), text)],
            sections=[Section(text, [text], [table])],
            plan=table,
        )
    )


@given(st.text(min_size=1))
def test_the_template_escapes_each_text(text: str) -> None:
    escaped, plain = rendered(text), rendered("x")
    assert escaped.tags == plain.tags
    # a cell of numbers, or a long one, has a class
    assert {name for _, name, _ in escaped.attributes} == {name for _, name, _ in plain.attributes}


@pytest.mark.parametrize(("whole_from", "amount"), [(0, "1 MiB"), (32 * KIB, "128 KiB to 1 MiB")])
def test_the_small_print_says_how_much_was_read(
    made: build.Report, whole_from: int, amount: str
) -> None:
    study = replace(made.study, plan=plan(whole_from=whole_from))
    assert captions.workload(study).startswith(
        f"NFSv4.2, {amount} read sequentially, 8 KiB per call;"
    )
