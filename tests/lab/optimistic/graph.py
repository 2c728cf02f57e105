# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel, and what they call, traced in a node."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/sys/kernel/tracing")


def _set(**files: str) -> None:
    for name, text in files.items():
        (FOLDER / name).write_text(text)


@contextmanager
def graph(functions: tuple[str, ...], *called: str) -> Iterator[list[str]]:
    """Trace functions and, of what they call, some: lines of ftrace's function_graph.

    Times are without those at which the task had no processor. The lines are there at the end.
    """
    lines, size = list[str](), (FOLDER / "buffer_size_kb").read_text().split()[0]
    try:
        _set(
            buffer_size_kb="16384",
            set_ftrace_filter="\n".join((*functions, *called)),
            set_graph_function="\n".join(functions),
            **{"options/sleep-time": "0"},
            current_tracer="function_graph",
        )
        yield lines
        # what happens while the lines are read does not count
        _set(tracing_on="0")
        lines += (FOLDER / "trace").read_text().splitlines()
    finally:
        _set(current_tracer="nop", tracing_on="1", **{"options/sleep-time": "1"},
             set_graph_function="", set_ftrace_filter="", buffer_size_kb=size)  # fmt: skip
