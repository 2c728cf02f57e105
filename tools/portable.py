#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build nfsrdma.pyz: the commands health and collect in one file, for Python 3.9 and later.

It has the modules that these commands import, and what those import.  The same source makes the
same bytes.  Usage: tools/portable.py [FOLDER], by default dist.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "nfsrdma_tools"
FRONT = f"{PACKAGE}.cli.portable"
OLDEST = (3, 9)
MAIN = f"""\
# SPDX-License-Identifier: Apache-2.0
import sys

if sys.version_info < {OLDEST}:
    sys.exit("nfsrdma.pyz: expected Python {OLDEST[0]}.{OLDEST[1]} or later, found " +
             sys.version.split()[0] + " (name another one: python3.9 nfsrdma.pyz)")

from {FRONT} import main

main()
"""
"""Also of an older Python, whose error would be a traceback."""
_SHEBANG = b"#!/usr/bin/env python3\n"
_LICENSE = "LICENSES/Apache-2.0.txt"
# the first time that an archive of zip can have
_TIME = (1980, 1, 1, 0, 0, 0)


def modules(first: str = FRONT) -> dict[str, Path]:
    """The modules that ``first`` imports, at once or in a function, and their files, by name."""
    found: dict[str, Path] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        path = file_of(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [above for above in (name.rpartition(".")[0],) if above]
        waiting += imported(path)
    return dict(sorted(found.items()))


def file_of(name: str) -> Path | None:
    """The file of a module of the package; None for another name."""
    if name.partition(".")[0] != PACKAGE:
        return None
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def imported(path: Path) -> Iterator[str]:
    """The names that a file imports, but for annotations."""
    for node in statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # a name of a module, or a module of a folder
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without what is for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from statements(child)


def build(file: Path) -> int:
    """Write the program; returns the number of its modules."""
    found = modules()
    members = {str(path.relative_to(ROOT)): path.read_bytes() for path in found.values()}
    members["__main__.py"] = MAIN.encode()
    members[_LICENSE] = (ROOT / _LICENSE).read_bytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        out.write(_SHEBANG)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in sorted(members.items()):
                info = zipfile.ZipInfo(name, _TIME)
                info.external_attr = 0o100644 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
    file.chmod(0o755)
    return len(found)


def main(folder: Path) -> None:
    """Build the program into ``folder``, and print its size."""
    file = folder / "nfsrdma.pyz"
    count = build(file)
    print(f"{file}: {count} modules, {file.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ("dist",)))
