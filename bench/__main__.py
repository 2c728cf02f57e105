# SPDX-License-Identifier: Apache-2.0
"""Lists the benchmarks, or runs one: ``python -m bench [NAME [--help | ARGUMENTS]]``.

A benchmark is a folder, whose page.py, or measure.py if there is none, has a ``main``: its
parameters are the options of the command, and its first line the text of the list.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import typer

HERE = Path(__file__).parent


def benchmarks() -> dict[str, Path]:
    """The file with the ``main`` of each benchmark, by name."""
    programs = {}
    for folder in sorted(path for path in HERE.iterdir() if path.is_dir()):
        files = [path for path in (folder / "page.py", folder / "measure.py") if path.exists()]
        if files:
            programs[folder.name.replace("_", "-")] = files[0]
    return programs


def summary(path: Path) -> tuple[str, str]:
    """The arguments of a benchmark, and what it does; its libraries are not imported."""
    nodes = ast.parse(path.read_text()).body
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    if "main" not in functions:
        raise SystemExit(f"{path}: no function main: the main of a benchmark is in page.py, if any")
    main = functions["main"]
    required = len(main.args.args) - len(main.args.defaults)
    words = [arg.arg.upper() if number < required else f"[--{arg.arg}]"
             for number, arg in enumerate([*main.args.args, *main.args.kwonlyargs])]  # fmt: skip
    return " ".join(words), (ast.get_docstring(main) or "").splitlines()[0]


def main(argv: list[str]) -> None:
    """List the benchmarks, or run the one that is named first."""
    known = benchmarks()
    if not argv or argv[0].startswith("-"):
        for name, path in known.items():
            print(f"{name:20} {'  '.join(reversed(summary(path)))}")
        return
    name, *arguments = argv
    if name not in known:
        raise SystemExit(f"no such benchmark: {name}; there are: {', '.join(known)}")
    module = importlib.import_module(
        ".".join(("bench", *known[name].relative_to(HERE).with_suffix("").parts))
    )
    app = typer.Typer(add_completion=False)
    app.command()(module.main)
    app(arguments, prog_name=f"python -m bench {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
