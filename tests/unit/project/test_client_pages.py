# SPDX-License-Identifier: Apache-2.0
"""The programs of the pages about C and Python run over the device; the page of options has all."""

import errno
import gc
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import COMMIT, COMPILER, Device
from unit.device_fixtures import DATA, device, device_library

from nfsrdma_tools.client import connect
from nfsrdma_tools.client.blocks import blocks
from nfsrdma_tools.client.fsspec import NfsRdmaFileSystem

__all__ = ["device", "device_library"]

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "how-to"
OPTIONS = ROOT / "docs" / "reference" / "client-options.md"
# <!-- NAME: ARGUMENTS --> in front of a program
PROGRAM = re.compile(r"^<!-- (\S+): ([^\n]*) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = 1 << 20


def programs(page: str) -> dict[str, tuple[list[str], str]]:
    """Arguments and text of each program of a page, by its name."""
    text = (PAGES / page).read_text()
    listed = {name: (words.split(), program) for name, words, _, program in PROGRAM.findall(text)}
    assert len(listed) == len(re.findall(r"^```\w", text, re.MULTILINE))
    return listed


BLOCKS = programs("blocks.md")
PYTHON = programs("client-python.md") | {n: BLOCKS[n] for n in BLOCKS if n.endswith(".py")}
C = programs("client-c.md") | {name: BLOCKS[name] for name in BLOCKS if name.endswith(".c")}


def said(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a program of the Python page prints."""
    words, text = PYTHON[name]
    monkeypatch.setattr(sys, "argv", [name, *words])
    variables = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), variables)  # noqa: S102 - our page
    # as at the end of a process
    variables.clear()
    gc.collect()
    return capsys.readouterr().out


@pytest.fixture
def filled(device: Device) -> Device:
    device.put("/export/copy", DATA[:2000])
    return device


@pytest.mark.parametrize("name", [name for name in PYTHON if name not in ("loader.py", "rows.py")])
def test_a_program_in_python_does_what_the_page_says(
    name: str, filled: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = said(name, capsys, monkeypatch)
    wanted = {
        "ranges.py": f"1 ranges, {min(4096, len(DATA))} bytes\n",
        "together.py": f"data: {sum(DATA)}\ncopy: {sum(DATA[:2000])}\n",
        "save.py": f"{SAVED}\n",
        "cache.py": ("[True, True, True, True] [262144, 262144, 262144, None] [262144] [True]\n"),
        "tasks.py": "kv/a: 1000 kv/b: 0 kv/c: a miss\n",
    }
    if name == "threads.py":
        assert re.fullmatch(r"data: [0-9a-f]{8}\ncopy: [0-9a-f]{8}\n", printed)
    else:
        assert printed == wanted[name]
    assert name != "save.py" or len(filled.get("/export/saved", disk=True) or b"") == SAVED


def test_the_program_in_python_writes_again_what_a_restart_took(
    filled: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.error(COMMIT, errno.EIO, times=2)
    said("save.py", capsys, monkeypatch)
    assert len(filled.get("/export/saved", disk=True) or b"") == SAVED
    assert filled.get("/export/saved.new") is None


def test_the_program_with_numpy(
    filled: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    filled.put("/export/data", os.urandom(100 * 4096))
    assert said("rows.py", capsys, monkeypatch) == "(64, 1024) float32\n"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether torch is installed; if not, a DataLoader that does what the program needs of it."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

        yield True
    except ImportError:
        data = types.ModuleType("torch.utils.data")
        vars(data).update(Dataset=object, DataLoader=batches)
        for name in ("torch", "torch.utils"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "torch.utils.data", data)
        yield False


def batches(samples: Any, batch_size: int, collate_fn: Any, **_: Any) -> Iterator[Any]:
    """One process reads all samples."""
    order = [*range(len(samples))]
    for first in range(0, len(order), batch_size):
        yield collate_fn(samples.__getitems__(order[first : first + batch_size]))


def test_the_loader(
    torch: bool, filled: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    assert said("loader.py", capsys, monkeypatch) == f"{len(DATA) // 4096} samples\n"
    if not torch:
        pytest.skip(
            "no torch; missed: its DataLoader with workers; one of our own read the samples"
        )


BEFORE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
void device_reset(void);
int device_put(const char *path, int kind, int mode, const void *data, uint64_t size);
__attribute__((constructor)) static void fill(void)
{
    static char data[200000];
    device_reset();
    memset(data, 7, sizeof(data));
    if (device_put("/export/data", 1, 0644, data, sizeof(data)) ||
        device_put("/export/copy", 1, 0644, data, 2000))
        abort();
}
"""


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize("name", C)
def test_a_program_in_c_does_what_the_page_says(
    name: str, device_library: Path, tmp_path: Path
) -> None:
    words, text = C[name]
    (tmp_path / name).write_text(text)
    (tmp_path / "before.c").write_text(BEFORE)
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'lib'}")
    program = tmp_path / "program"
    argv = (COMPILER or "", *flags, "-o", program, tmp_path / name, tmp_path / "before.c")
    subprocess.run((*argv, device_library, f"-Wl,-rpath,{device_library.parent}"), check=True)
    done = subprocess.run((program, *words), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {
        "read.c": ["200000 bytes"],
        "ranges.c": sorted(
            f"read {i}: {max(0, min(4096, 200000 - 65536 * i))} bytes" for i in range(16)
        ),
        "loop.c": ["copy: 2000", "data: 4096"],
        "save.c": [f"{SAVED} bytes"],
        "cache.c": [f"{operation} kv/{name}: good" for operation in (1, 2) for name in range(4)],
    }
    assert sorted(done.stdout.splitlines()) == lines[name]


def column(title: str, number: int) -> set[str]:
    """The names in a column of a table of the page of options."""
    part = OPTIONS.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.split("|") for line in part.splitlines() if line.startswith("| ")][1:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[number])}


def test_the_page_has_each_option() -> None:
    header = (ROOT / "lib" / "nfsrdma.h").read_text()
    struct = header.split("struct nfsrdma_options {")[1].split("};")[0]
    members = set(re.findall(r"(\w+)(?:\)\(.*\))?;", struct))
    assert column("Of a session", 1) == members - {"size"}
    words = set(inspect.signature(connect).parameters) - {"target"}
    assert column("Of a session", 2) == words
    struct = header.split("struct nfsrdma_blocks_options {")[1].split("};")[0]
    assert column("Of a store of blocks", 1) == set(re.findall(r"(\w+);", struct)) - {"size"}
    words = set(inspect.signature(blocks).parameters) - {"target", "options"}
    assert column("Of a store of blocks", 2) == words
    own = set(inspect.signature(NfsRdmaFileSystem.__init__).parameters)
    own -= {"self", "options", "port"}
    caches = {"use_listings_cache", "listings_expiry_time", "max_paths"}
    assert column("Of fsspec only", 1) == own | caches
