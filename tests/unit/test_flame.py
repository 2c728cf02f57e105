# SPDX-License-Identifier: Apache-2.0
import re
import xml.etree.ElementTree as ET

from nfsrdma_tools.probes.cpu.flame_graph import COLOURS, draw
from nfsrdma_tools.probes.cpu.layer_names import IDLE, LAYERS

READ = (("dd", "application"), ("ksys_read", "VFS and page cache"), ("nfs_read [nfs]", "nfs"))
COPY = (*READ[:2], ("memcpy", "copies"))
PATHS = [(READ, 3e6), (COPY, 1e6)]
SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> dict[str, tuple[float, float, float]]:
    """x, y and width of each bar by its title."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):  # noqa: S314 - our own
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None and title.text and rect is not None
        found[title.text] = tuple(float(rect.get(key, "")) for key in ("x", "y", "width"))
    return found  # type: ignore[return-value]


def test_a_bar_is_as_wide_as_its_share_and_stands_on_its_caller() -> None:
    found = bars(draw(PATHS, "title", "remark"))
    everything = found["all: 4.0 ms, 100.00%"]
    read = found["nfs_read [nfs], nfs: 3.0 ms, 75.00%"]
    copy = found["memcpy, copies: 1.0 ms, 25.00%"]
    caller = found["ksys_read, VFS and page cache: 4.0 ms, 100.00%"]
    assert abs(read[2] - 0.75 * everything[2]) < 0.02
    assert abs(read[2] - 3 * copy[2]) < 0.05
    assert read[1] == copy[1] < caller[1] < everything[1]
    assert abs(copy[0] + copy[2] - read[0]) < 0.02


def test_equal_stacks_make_equal_files_whatever_their_order() -> None:
    assert draw(PATHS, "t", "r") == draw(PATHS[::-1], "t", "r")


def test_the_legend_has_the_shares_of_what_ran_not_of_callers() -> None:
    svg = draw(PATHS, "t", "r")
    assert re.findall(r">(\w+) (\d+\.\d%)<", svg) == [("nfs", "75.0%"), ("copies", "25.0%")]


def test_names_are_text() -> None:
    svg = draw([((("<script>&\x1b[31m", "application"),), 1e6)], "<t>", "&")
    assert "<script>" not in svg
    assert "\x1b" not in svg
    assert "<script>&?[31m, application: 1.0 ms, 100.00%" in bars(svg)


def test_nothing_sampled_is_an_empty_graph() -> None:
    assert bars(draw([], "t", "r")) == {}


def test_every_layer_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(LAYERS) - {IDLE}
    assert len(set(COLOURS.values())) == len(COLOURS)
