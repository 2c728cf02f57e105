#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build nfsrdma.pyz: the commands health and collect in one file, for Python 3.9 and later.

It has the modules that these commands import, and what those import, also of pyroute2, which is
that of the Python that builds it.  The same source and pyroute2 make the same bytes.
Usage: tools/portable.py [FOLDER], by default dist.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "nfsrdma_tools"
LIBRARY = "pyroute2"
FRONT = f"{PACKAGE}.cli.portable"
OLDEST = (3, 9)
MAIN = f"""\
# SPDX-License-Identifier: Apache-2.0
import os
import sys

if sys.version_info < {OLDEST}:
    error = ("expected Python {OLDEST[0]}.{OLDEST[1]} or later, found " + sys.version.split()[0] +
             " (name another one: python3.9 nfsrdma.pyz)")
    health = [word for word in sys.argv[1:] if word[:1] != "-"][:1] == ["health"]
    line = ("NFS UNKNOWN: " if health else "nfsrdma.pyz: ") + error
    if health and ("--json" in sys.argv or "-j" in sys.argv):
        import json
        line = json.dumps({{"schema_version": 1, "status": "unknown", "exit_status": 3,
                           "findings": [], "not_seen": [], "error": error}})
    try:
        os.write(1 if health else 2, (line + "\\n").encode())
    except OSError:
        pass
    # of health, as monitoring plugins have it: UNKNOWN
    sys.exit(3 if health else 1)

try:
    from {FRONT} import main
    main()
except KeyboardInterrupt:
    # also while modules are imported
    sys.exit(130)
"""
"""Also of an older Python, whose error would be a traceback."""
_SHEBANG = b"#!/usr/bin/env python3\n"
_LICENSE = "LICENSES/Apache-2.0.txt"
_LIBRARY_INIT = b"""\
# in place of the library's own, which imports all its modules; this one keeps its log messages
# from standard error
from pyroute2.config import log
"""
# the first time that an archive of zip can have
_TIME = (1980, 1, 1, 0, 0, 0)


def modules(first: str = FRONT) -> dict[str, Path]:
    """The modules that ``first`` imports, at once or in a function, and their files, by name."""
    paths: dict[str, Path] = {}
    waiting = [first, *imported(_LIBRARY_INIT)]
    while waiting:
        name = waiting.pop()
        path = file_of(name)
        if name in paths or path is None:
            continue
        paths[name] = path
        waiting += [above for above in (name.rpartition(".")[0],) if above]
        waiting += imported(path.read_bytes())
    return dict(sorted(paths.items()))


def folder_of(name: str) -> Path | None:
    """The folder that a module is below; None for one that is not in the program."""
    package = name.partition(".")[0]
    if package == PACKAGE:
        return ROOT
    # the library's own __init__ imports all its modules
    return library_folder() if package == LIBRARY != name else None


def library() -> metadata.Distribution:
    """The library in this Python; without it, exits with a line."""
    try:
        return metadata.distribution(LIBRARY)
    except metadata.PackageNotFoundError:
        sys.exit(f"portable: {LIBRARY} is not installed in {sys.executable} (run: make zipapp)")


def library_folder() -> Path:
    """The folder in which the library is installed."""
    return Path(str(library().locate_file("")))


def library_texts() -> dict[str, bytes]:
    """Version and licences of the library, by their names in the program."""
    texts = {
        str(file): Path(str(file.locate())).read_bytes()
        for file in library().files or ()
        if file.parts[0].endswith(".dist-info")
        and (file.name == "METADATA" or file.name.startswith("LICENSE"))
    }
    if len(texts) < 2:
        sys.exit(f"portable: expected version and licence of {LIBRARY}, found {list(texts)}")
    return texts


def file_of(name: str) -> Path | None:
    """The file of a module that the program has; None for another name."""
    folder = folder_of(name)
    if folder is None:
        return None
    path = folder.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def imported(source: bytes) -> Iterator[str]:
    """The names that a module imports, but for annotations."""
    for node in statements(ast.parse(source)):
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
    paths = modules()
    members = {
        str(path.relative_to(folder_of(name) or ROOT)): path.read_bytes()
        for name, path in paths.items()
    }
    members |= library_texts()
    members[f"{LIBRARY}/__init__.py"] = _LIBRARY_INIT
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
    return len(paths)


def main(folder: Path) -> None:
    """Build the program into ``folder``, and print its size."""
    file = folder / "nfsrdma.pyz"
    count = build(file)
    version = f"{LIBRARY} {library().version}"
    print(f"{file}: {count} modules with {version}, {file.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ("dist",)))
