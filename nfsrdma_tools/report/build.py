# SPDX-License-Identifier: Apache-2.0
"""Builds a report from a store: figures, page and the recommendation as data.

The result does not depend on when or where it is built: equal stores give equal bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import write_fresh
from nfsrdma_tools.report import study as studies
from nfsrdma_tools.report.study import Study
from nfsrdma_tools.sweep.store import Store

__all__ = ["Report", "build"]


@dataclass(frozen=True)
class Report:
    """The files of a report: the page first, then PNG and SVG of each figure."""

    study: Study
    files: tuple[Path, ...]


def build(store: Path, out: Path, uid: str = "") -> Report:
    """Write the report of a plan (the newest by default) into ``out``.

    Raises UserError if the store is unreadable or empty, or ``out`` cannot be written.
    """
    with Store(store, read_only=True) as opened:
        study = studies.load(opened, uid)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _quiet_matplotlib():
            return Report(study, tuple(_write(study, out)))
    except OSError as error:
        message = f"cannot write the report to {out}: {error}"
        raise UserError(message, "choose another folder with --output") from error


def _write(study: Study, out: Path) -> list[Path]:
    # imported here because matplotlib takes a second to import
    from nfsrdma_tools.report import (
        canvas,
        comparison,
        cpu_figures,
        fleet,
        page,
        throughput,
    )

    others = [comparison.draw(study)]
    others += [throughput.draw_lines(study, name) for name in study.transports]
    others += [throughput.draw_heat_map(study, name) for name in study.transports]
    others += [
        cpu_figures.against_throughput(study),
        cpu_figures.of_the_reader(study),
        cpu_figures.per_operation(study),
    ]
    others += [fleet.draw(study)]
    drawings = [drawing for drawing in others if drawing]
    files = [path for drawing in drawings for path in canvas.save(drawing, out)]
    index = out / "index.html"
    write_fresh(index, page.page(study, drawings).encode())
    return [index, *files]


@contextmanager
def _quiet_matplotlib() -> Iterator[None]:
    import matplotlib

    from nfsrdma_tools.report.canvas import RC

    with matplotlib.rc_context(), warnings.catch_warnings():
        # the user's matplotlibrc would change the figures
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
