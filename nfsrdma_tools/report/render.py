# SPDX-License-Identifier: Apache-2.0
"""Renders figures to files and inline SVG: equal figures give equal bytes."""

from __future__ import annotations

import io
import re
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nfsrdma_tools.report.canvas import Drawing

__all__ = ["inline_svg", "save"]

# leave out time and library version, which are not results
_PNG = {"Software": None}
_SVG = {"Date": None, "Creator": None, "Format": None, "Type": None}


def save(drawing: Drawing, out: Path) -> list[Path]:
    """Write ``out``/NAME.png (for slides, 200 dpi) and .svg; returns both paths."""
    FigureCanvasAgg(drawing.figure)
    png, svg = out / f"{drawing.name}.png", out / f"{drawing.name}.svg"
    drawing.figure.savefig(png, dpi=200, bbox_inches="tight", pad_inches=0.12, metadata=_PNG)
    svg.write_text(_svg(drawing.figure), encoding="utf-8")
    return [png, svg]


def inline_svg(drawing: Drawing) -> str:
    """The figure as an element of a page: with the page's colours and with unique ids.

    Leaves out the small print, which the page has once for all figures.
    """
    for text in drawing.figure.texts:
        text.set_visible(text.get_gid() != "conditions")
    svg = _svg(drawing.figure)
    svg = svg[svg.index("<svg") :]
    for light in drawing.themed:
        svg = svg.replace(light, f"var({variable(light)})")
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def variable(colour: str) -> str:
    """The name of the page's variable for a colour of a light figure."""
    return f"--c-{colour.removeprefix('#')}"


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", pad_inches=0.12, metadata=_SVG)
    # without DejaVu Sans, browsers use the page's font instead of a serif font
    return re.sub(r"'DejaVu Sans'(?!,)", "'DejaVu Sans', system-ui, sans-serif", text.getvalue())
