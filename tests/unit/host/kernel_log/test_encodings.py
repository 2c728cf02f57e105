# SPDX-License-Identifier: Apache-2.0
"""Logs in UTF-16, as redirects of PowerShell write them, and what is no text."""

from __future__ import annotations

import codecs
import io
import random
import tracemalloc

import pytest

from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.lines import LINE_BYTES, lines_of

LOG = (
    "[    9.000001] nfs: server größe7 not responding, still trying\r\n"
    "[   10.000001] rpcrdma: connection to 192.0.2.7:20049 closed (-103)\r\n"
)
NAMES = ["connection closed", "server not responding"]
FORMS = {
    "LE": codecs.BOM_UTF16_LE + LOG.encode("utf-16-le"),
    "BE": codecs.BOM_UTF16_BE + LOG.encode("utf-16-be"),
    "LE without BOM": LOG.encode("utf-16-le"),
    "BE without BOM": LOG.encode("utf-16-be"),
    "UTF-8 with BOM": codecs.BOM_UTF8 + LOG.encode(),
}


def read(data: bytes) -> list[str]:
    return list(lines_of(io.BytesIO(data)))


class Slow(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes, seed: int) -> None:
        self._data, self._random = data, random.Random(seed)  # noqa: S311

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        part = self._data[: self._random.randint(1, min(7, len(view)))]
        self._data = self._data[len(part) :]
        view[: len(part)] = part
        return len(part)


@pytest.mark.parametrize("form", FORMS)
def test_a_log_in_utf_16_is_text(form: str) -> None:
    rows = explain(read(FORMS[form]))
    assert [row.name for row in rows] == NAMES
    assert (rows[1].subject, rows[1].first) == ("größe7", "9.000001 s")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("form", FORMS)
def test_a_log_in_utf_16_is_read_from_a_pipe(form: str, seed: int) -> None:
    whole = [line for line in read(FORMS[form]) if line.strip("\ufeff")]
    got = list(lines_of(Slow(FORMS[form], seed)))  # type: ignore[arg-type]
    assert [line for line in got if line.strip("\ufeff")] == whole


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_truncated_log_is_read_as_far_as_it_goes(cut: int) -> None:
    data = FORMS["LE"][:-cut]
    text = LOG.encode("utf-16-le")[:-cut]
    assert read(data)[:1] == read(FORMS["LE"])[:1]
    assert [row.name for row in explain(read(data))][-1] == "server not responding"
    assert len(read(data)[-1]) <= len(text) // 2


def test_a_log_in_utf_8_may_have_nuls() -> None:
    data = b"[    1.000000] usb 1-1: new device\n" + b"\0" * 700 + LOG.encode()
    assert [row.name for row in explain(read(data))] == NAMES


@pytest.mark.parametrize("seed", range(30))
def test_no_bytes_are_too_strange(seed: int) -> None:
    some = random.Random(seed)  # noqa: S311
    begin = some.choice([codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"", b"\xff", b"\0"])
    strange = (0, 0, 10, 27, 0xD8, 0xDC, 65, 255)
    data = begin + bytes(some.choice(strange) for _ in range(5000))
    for line in read(data):
        assert len(line) <= LINE_BYTES
        line.encode()
    explain(read(data))


@pytest.mark.parametrize(
    "data",
    [b"\0", codecs.BOM_UTF16_LE + b"A\0", codecs.BOM_UTF16_BE + b"\0A", b"\xff\xfe\xff\xff"],
    ids=["nul", "LE", "BE", "no character"],
)
def test_a_long_line_takes_no_memory(data: bytes) -> None:
    class Endless(io.RawIOBase):
        left = 64

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return (data * (size // len(data) + 1))[:size] if self.left else b""

    tracemalloc.start()
    for line in lines_of(Endless()):  # type: ignore[arg-type]
        assert len(line) <= LINE_BYTES
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
