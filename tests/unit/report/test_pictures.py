# SPDX-License-Identifier: Apache-2.0
"""What is drawn can be read: no text covers another text, and no name of a line covers a line."""

import math
import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from unit.bench.test_papers import fill
from unit.report import test_report

from bench.figures import plot
from bench.loader import measure as loader
from bench.optimistic import measure as optimistic
from bench.optimistic import page as optimistic_page
from bench.optimistic_user import measure as optimistic_user
from bench.optimistic_user import page as optimistic_user_page
from bench.papers import page as papers_page
from bench.papers.measure import Store
from nfsrdma_tools.personalities import PERSONALITIES
from nfsrdma_tools.probes.cpu_layers import LAYERS
from nfsrdma_tools.report import canvas, cpu_figures, throughput
from nfsrdma_tools.report.canvas import Drawing, name_line, panels
from nfsrdma_tools.report.study import load
from nfsrdma_tools.sweep.store import Store as SweepStore


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with matplotlib.rc_context(canvas.RC):
        yield


def texts(figure: Figure) -> list[Text]:
    """All visible texts of a figure with words, ticks and legends included."""
    FigureCanvasAgg(figure).draw()
    all_texts = [each for each in figure.findobj() if isinstance(each, Text)]
    hidden = {
        id(tick.label1)
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [
        each
        for each in all_texts
        if each.get_visible() and each.get_text().strip() and id(each) not in hidden
    ]


def overprinted(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of texts that cover each other by more than a pixel."""
    # an annotation's own extent includes its arrow
    boxes = [(each.get_text(), Text.get_window_extent(each)) for each in texts(figure)]
    return [
        (first, second)
        for (first, a), (second, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


def points(line: Line2D) -> list[tuple[float, float]]:
    xs, ys = (np.asarray(line.get_data()[axis], float) for axis in (0, 1))
    return list(zip(map(float, xs), map(float, ys), strict=True))


def crossed(ax: Axes, name: str) -> bool:
    """Whether a line of the axes passes below a text."""
    (text,) = [each for each in ax.texts if each.get_text() == name]
    box = text.get_window_extent()
    for line in ax.lines:
        corners = ax.transData.transform(points(line))
        for begin, end in pairwise(corners):
            steps = np.linspace(begin, end, 500)
            if any(box.contains(*each) for each in steps):
                return True
    return False


@pytest.fixture
def store(tmp_path: Path) -> Store:
    results = Store(tmp_path / "6.12")
    results.describe("`make bench NAME=papers`, made up.")
    for number in range(2):
        fill(results, number)
    return results


PAPERS = [(name, draw) for name, draw, _, _ in papers_page.FIGURES if draw]


@pytest.mark.parametrize(("name", "draw"), PAPERS, ids=[name for name, _ in PAPERS])
def test_no_text_of_a_papers_figure_covers_another(
    name: str, draw: Callable[[Store], Drawing], store: Store
) -> None:
    assert overprinted(draw(store).figure) == []


def test_labels_stand_at_the_ends_of_their_lines_below_a_high_star(store: Store) -> None:
    figure = papers_page.draw_2003(store).figure
    FigureCanvasAgg(figure).draw()
    for ax in figure.axes[:2]:
        (height,) = {points(line)[-1][1] for line in ax.lines if len(points(line)) > 1}
        end = ax.transData.transform((1, height))[1]
        labels = [each for each in ax.texts if each.get_text().endswith("ahead")]
        nearest = min(abs(Text.get_window_extent(each).y0 - end) for each in labels[:3])
        assert nearest < 30


def test_name_line_avoids_lines_and_texts() -> None:
    _, (ax,) = panels([""])
    ax.set(xlim=(0, 10), ylim=(0, 10))
    limit = [(x / 10, x / 10) for x in range(101)]
    ax.plot(*zip(*limit, strict=True), ":")
    for y in (2, 2.6, 3.2, 3.8):
        ax.plot((0, 10), (y, y))
    name_line(ax, limit, "rsize / round trip")
    assert not crossed(ax, "rsize / round trip")


def test_draw_lines_passes_none_below_the_name_of_the_dotted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # lines beside the dotted one, where it is a third as high as the scale
    monkeypatch.setattr(
        test_report,
        "rate",
        lambda cell: 25 + 5 * cell.read_ahead + 5 * math.log2(cell.rsize / 8192),
    )
    with SweepStore(
        test_report.store(tmp_path / "s.db", test_report.plan()), read_only=True
    ) as opened:
        study = load(opened)
    named = 0
    for transport in study.transports:
        drawing = throughput.draw_lines(study, transport)
        assert overprinted(drawing.figure) == []
        for ax in drawing.figure.axes:
            if any(each.get_text() == "rsize / round trip" for each in ax.texts):
                named += 1
                assert not crossed(ax, "rsize / round trip")
    assert named


def test_a_line_without_room_has_no_name() -> None:
    _, (ax,) = panels([""])
    ax.set(xlim=(0, 10), ylim=(0, 10))
    for y in np.arange(0, 10, 0.1):
        ax.plot((0, 10), (y, y))
    name_line(ax, [(x, x) for x in range(11)], "rsize / round trip")
    assert [each.get_text() for each in ax.texts] == []


def test_lines_of_one_figure_differ_in_colour_or_dashes() -> None:
    names = list(optimistic_user_page.LOOKS)
    looks = [(color, mark.endswith("-")) for color, mark in optimistic_user_page.LOOKS.values()]
    assert len(set(looks)) == len(names)
    _, (ax,) = panels([""])
    plot(
        ax, {name: [(0, i), (1, 2 * i)] for i, name in enumerate(names)}, optimistic_user_page.LOOKS
    )
    drawn = {(each.get_color(), each.get_linestyle()) for each in ax.lines}
    assert len(drawn) == len(names)
    assert set(optimistic_user.WAYS) == set(optimistic_user_page.SYSTEMS)


def test_no_line_of_the_refused_reads_leads_to_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimistic, "RESULTS", tmp_path)
    stores = optimistic_page.Stores("6.12")
    stores.card.describe("`make bench NAME=optimistic`, made up.")
    for name in ("refused", "bursts", "response"):
        part = optimistic_page.part(name)
        for at, cell in enumerate(part.cells):
            for curve in part.curves:
                stores.card.put(name, curve, cell, {"ns": 40_000 + 500 * at})
    figure = optimistic_page.draw_refused(stores).figure
    (ax,) = figure.axes
    legend = ax.get_legend()
    assert legend and len(legend.get_texts()) == len(ax.lines) >= 4
    assert list(ax.texts) == []
    assert overprinted(figure) == []


def test_a_point_below_a_logarithmic_scale_is_drawn_hollow_at_its_bottom() -> None:
    sizes = (4096.0, 65536.0, 524288.0)
    costs = (20_000.0, 0.0, 30_000.0)
    line = cpu_figures.fit(sizes, costs, (1e5, 1e5, 1e5))
    assert line
    _, (ax,) = panels([""])
    ax.set(xscale="log", yscale="log", ylim=(10, 100))
    drawn = cpu_figures.Line("rdma", "client", tuple(zip(sizes, costs, strict=True)), line)
    cpu_figures.draw_line(ax, drawn, "s")
    marks = [each for each in ax.lines if each.get_marker() == "s"]
    shown = {
        (x, y, each.get_markerfacecolor() == canvas.PAPER)
        for each in marks
        for x, y in points(each)
    }
    assert shown == {(4096, 20, False), (65536, 10, True), (524288, 30, False)}


def test_the_loaders_sentence_names_the_row_that_it_is_about() -> None:
    seconds = dict(zip((way.name for way in loader.WAYS), (5, 15, 12, 11, 8, 7), strict=True))
    drawing = loader.draw({name: [(s, s)] for name, s in seconds.items()}, "`make`, made up.")
    (finding,) = [each for each in texts(drawing.figure) if "adds" in each.get_text()]
    assert finding.get_text().startswith("libnfsrdma, server nfsrdma, adds 20%")
    assert overprinted(drawing.figure) == []


def test_personality_colour_is_one_in_all_pictures() -> None:
    colours = {name: canvas.personality_colour(name) for name in PERSONALITIES}
    assert len({*colours.values(), canvas.transport_colour("other")}) == len(PERSONALITIES) + 1
    for looks in (papers_page.LOOKS, papers_page.WAYS, optimistic_page.LOOKS):
        drawn = {name: look[0] for name, look in looks.items() if name in colours}
        assert drawn.items() <= colours.items()


WEB = Path(__file__).parents[3] / "nfsrdma_tools" / "live" / "web" / "page"


def test_each_layer_of_the_dashboard_has_a_colour_of_its_own() -> None:
    (number,) = re.findall(r"^const COLOURS = (\d+);", (WEB / "charts.js").read_text(), re.M)
    listed = re.search(r"LAYERS = \[(.*?)\];", (WEB / "series.js").read_text(), re.S)
    assert listed
    names = re.findall(r'"([^"]+)"', listed[1])
    assert names == [name for name in LAYERS if name != "idle"]
    # "busy" stands for all layers until the first reading of the probes
    assert int(number) >= len(names) + 1
    for sheet in (WEB / "style.css").read_text().split("@media (prefers-color-scheme: dark)"):
        colours = re.findall(r"--c(\d+): (#\w+);", sheet)
        assert sorted(int(name) for name, _ in colours) == list(range(int(number)))
        assert len({value for _, value in colours}) == int(number)
