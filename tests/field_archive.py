# SPDX-License-Identifier: Apache-2.0
"""Text archives of the files of one host: tests/field has one for each.

    python tests/field_archive.py unpack tests/field/NAME.txt FOLDER
    python tests/field_archive.py pack FOLDER tests/field/NAME.txt

A line that begins with ``@@ `` begins a file; its content is the lines up to the next one:

    @@ file etc/fstab
    /dev/vda1 / ext4 defaults 0 1
    srv:/data /data nfs rdma,port=20049 0 0
    @@ line proc/sys/kernel/osrelease = 6.12.48+deb13-amd64
    @@ program usr/local/bin/start
    #!/bin/sh
    @@ link sys/class/net/e0 -> ../../devices/pci0000:00/net/e0
    @@ file run/systemd/container
    lxc
    \\ No newline at end of file
    @@ file proc/config.gz
    \\ base64
    H4sIAAAAAAACA3P293PzdI/3cwuOdwu2zeUCABfc6/wQAAAA

A line is a file of one line, a program an executable file. A path that is odd, such as one with
a newline, `` -> `` or `` = ``, is a JSON string. As in git, an empty folder is left out.
``pack`` writes JSON with each value that fits on one line.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

Unpacked = Callable[[str], Path]
"""Fixture ``field``: the folder of the files of a host, by name."""
FIELD = Path(__file__).with_name("field")
EXPECTED = "expected.json"
CASES = sorted(path.stem for path in FIELD.glob("*.txt"))

_MARK = "@@ "
_ARROW, _EQUALS = " -> ", " = "
_NO_NEWLINE = "\\ No newline at end of file"
_BASE64 = "\\ base64"
_EXECUTABLE = 0o100
_WIDTH = 120


class File(NamedTuple):
    """A regular file."""

    data: bytes
    program: bool = False


class Link(NamedTuple):
    """A symbolic link."""

    target: str


Files = dict[str, File | Link]
"""Files and links by path below the folder."""


def render(files: Files) -> str:
    """The text of an archive, with the expectation first and then by path."""
    paths = sorted(files, key=lambda path: (path != EXPECTED, path))
    return "".join(line for path in paths for line in _entry(path, files[path]))


def parse(text: str) -> Files:
    """The files of an archive.  ValueError with the number of the line that is wrong."""
    lines = text.split("\n")
    if lines.pop():
        raise ValueError(f"line {len(lines) + 1}: the archive ends without a newline")
    starts = [at for at, line in enumerate(lines) if line.startswith(_MARK)]
    if starts[:1] != [0]:
        raise ValueError(f"line 1: expected {_MARK!r}, a kind and a path")
    files: Files = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            path, entry = _parsed(lines[start][len(_MARK) :], lines[start + 1 : end])
            if path in files:
                raise ValueError(f"{path} is in the archive already")
        except ValueError as error:
            raise ValueError(f"line {start + 1}: {error}") from error
        files[path] = entry
    return files


def read(archive: Path) -> Files:
    """The files of an archive.  ValueError with the archive and the line that is wrong."""
    try:
        return parse(archive.read_bytes().decode())
    except ValueError as error:
        raise ValueError(f"{archive}: {error}") from error


def unpack(files: Files, folder: Path) -> None:
    """Write files and links below a folder, which must not have any of them."""
    # links come last: no file is written through one
    for path, entry in sorted(files.items(), key=lambda item: isinstance(item[1], Link)):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            place.symlink_to(entry.target)
            continue
        with place.open("xb") as file:
            file.write(entry.data)
        place.chmod(0o755 if entry.program else 0o644)


def pack(folder: Path) -> Files:
    """The files and links below a folder.  ValueError for what is neither, such as a FIFO."""
    return {str(path.relative_to(folder)): _packed(path) for path in _below(folder)}


def expected_of(case: str) -> dict[str, Any]:
    """The answers that are right for a host: tests/field/README.md."""
    entry = read(FIELD / f"{case}.txt")[EXPECTED]
    assert isinstance(entry, File)
    expected: dict[str, Any] = json.loads(entry.data)
    return expected


def _entry(path: str, entry: File | Link) -> Iterator[str]:
    if isinstance(entry, Link):
        yield f"{_MARK}link {_quoted(path)}{_ARROW}{_quoted(entry.target)}\n"
        return
    text = _as_lines(entry.data)
    if text and text.count("\n") == 1 and not entry.program:
        yield f"{_MARK}line {_quoted(path)}{_EQUALS}{text}"
        return
    yield f"{_MARK}{'program' if entry.program else 'file'} {_quoted(path)}\n"
    if text is not None:
        yield text
        return
    yield f"{_BASE64}\n"
    yield base64.encodebytes(entry.data).decode()


def _as_lines(data: bytes) -> str | None:
    """The content as lines that an editor shows and keeps; None if it cannot be."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if not text:
        return ""
    lines = text.removesuffix("\n").split("\n")
    plain = all(line.replace("\t", "").isprintable() for line in lines)
    if not plain or any(line.startswith(_MARK) for line in lines):
        return None
    if lines[0] == _BASE64 or lines[-1] == _NO_NEWLINE:
        return None
    return text if text.endswith("\n") else f"{text}\n{_NO_NEWLINE}\n"


def _parsed(mark: str, lines: list[str]) -> tuple[str, File | Link]:
    kind, _, rest = mark.partition(" ")
    if kind == "link":
        path, arrow, target = rest.partition(_ARROW)
        if lines or not arrow:
            raise ValueError(f"expected 'link PATH{_ARROW}TARGET' and no content")
        return _safe(_unquoted(path)), Link(_unquoted(target))
    if kind == "line":
        path, equals, text = rest.partition(_EQUALS)
        if lines or not equals:
            raise ValueError(f"expected 'line PATH{_EQUALS}TEXT' and no content")
        return _safe(_unquoted(path)), File(f"{text}\n".encode())
    if kind not in ("file", "program"):
        raise ValueError(f"expected file, line, program or link, found {kind!r}")
    return _safe(_unquoted(rest)), File(_content(lines), kind == "program")


def _content(lines: list[str]) -> bytes:
    if lines[:1] == [_BASE64]:
        return base64.b64decode("".join(lines[1:]), validate=True)
    if lines[-1:] == [_NO_NEWLINE]:
        return "\n".join(lines[:-1]).encode()
    return "".join(f"{line}\n" for line in lines).encode()


def _quoted(path: str) -> str:
    plain = path.isprintable() and path.strip() == path and path[:1] not in ("", '"')
    if plain and _ARROW not in path and _EQUALS not in path:
        return path
    return json.dumps(path).replace(_ARROW, " \\u002d> ").replace(_EQUALS, " \\u003d ")


def _unquoted(word: str) -> str:
    path = json.loads(word) if word.startswith('"') else word
    if not isinstance(path, str) or not path:
        raise ValueError("expected a path")
    return path


def _safe(path: str) -> str:
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or ".." in parts or "\0" in path:
        raise ValueError(f"expected a path below the folder, found {path!r}")
    return path


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        else:
            yield path


def _packed(path: Path) -> File | Link:
    if path.is_symlink():
        # Path would write another target, without a slash at its end
        return Link(os.readlink(path))  # noqa: PTH115
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a link")
    data = path.read_bytes()
    if path.suffix == ".json":
        data = json_rows(data)
    return File(data, bool(path.stat().st_mode & _EXECUTABLE))


def json_rows(data: bytes) -> bytes:
    """JSON with each value that fits on one line; what is no JSON stays as it is."""
    try:
        return f"{_rows(json.loads(data), 0)}\n".encode()
    except ValueError:
        return data


def _rows(value: object, depth: int) -> str:
    row = json.dumps(value)
    if depth + len(row) <= _WIDTH or not value or not isinstance(value, dict | list):
        return row
    if isinstance(value, dict):
        first, last = "{}"
        rows = [f"{json.dumps(key)}: {_rows(each, depth + 1)}" for key, each in value.items()]
    else:
        first, last = "[]"
        rows = [_rows(each, depth + 1) for each in value]
    below = ",".join(f"\n{' ' * (depth + 1)}{row}" for row in rows)
    return f"{first}{below}\n{' ' * depth}{last}"


def main(command: str, source: str, target: str) -> None:
    """Run one of the commands that the module's text shows."""
    if command == "unpack":
        unpack(read(Path(source)), Path(target))
    elif command == "pack":
        Path(target).write_bytes(render(pack(Path(source))).encode())
    else:
        raise ValueError(f"expected pack or unpack, found {command!r}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError) as fault:
        sys.exit(f"field_archive: {fault}")
