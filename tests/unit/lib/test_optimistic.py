# SPDX-License-Identifier: Apache-2.0
"""The digest by which libnfsrdma recognizes grants, and how its constants agree with the module."""

import ctypes
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.native import COMPILER
from wire.siphash import siphash

from nfsrdma_tools.command import run

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "lib"
pytestmark = pytest.mark.skipif(
    COMPILER is None or not shutil.which("rpcgen"), reason="no C compiler or no rpcgen"
)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """reference_digest() of lib/reference.c."""
    assert COMPILER
    run("make", "-s", "-C", LIBRARY)
    path = tmp_path_factory.mktemp("reference") / "reference.so"
    tirpc = run("pkg-config", "--cflags", "libtirpc").stdout.split()
    include = (f"-I{LIBRARY}", f"-I{LIBRARY / 'build'}", f"-I{ROOT / 'kmod'}", *tirpc)
    flags = ("-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC")
    run(COMPILER, *flags, *include, LIBRARY / "reference.c", "-o", path)
    function = ctypes.CDLL(str(path)).reference_digest
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)
    function.restype = ctypes.c_uint64
    return function


@given(body=st.binary(max_size=400), token=st.integers(0, 2**64 - 1))
def test_the_digest_is_siphash(digest: Any, body: bytes, token: int) -> None:
    assert digest(body, len(body), token) == siphash(body, (token, 0))


def value(text: str, name: str) -> int:
    """The number of a #define."""
    match = re.search(rf"#define {name}\s+\(?(\d+)U?(?: << (\d+))?\)?", text)
    assert match, name
    return int(match[1]) << int(match[2] or 0)


def test_the_constants_are_those_of_the_module() -> None:
    ours = (LIBRARY / "library.h").read_text()
    listed = (ROOT / "kmod" / "personality.h").read_text()
    module = (ROOT / "kmod" / "personality" / "optimistic.h").read_text()
    references = (ROOT / "kmod" / "client" / "optimistic" / "reference.c").read_text()
    bit = re.search(r"_\((\d), OPTIMISTIC,", listed)
    assert bit
    assert value(ours, "CAPABILITY_OPTIMISTIC") == 1 << int(bit[1]) >> 1
    assert "#define NFR_LANE		BIT(31)" in listed
    assert value(ours, "CAPABILITY_LANE") == 1 << 31
    assert "#define NFR_EXTENT_ORDER	GENMASK(23, 16)" in module
    assert value(ours, "EXTENT_ORDER_SHIFT") == 16
    assert value(ours, "EXTENT_ORDER_MAX") == value(module, "NFR_EXTENT_ORDER_MAX")
    assert value(ours, "UNIT_SHIFT") == value(listed, "NFR_UNIT_SHIFT")
    assert value(ours, "NOTICES") == value(module, "NFR_NOTICES")
    assert value(ours, "REFERENCES") == value(references, "NFR_REFERENCES")


def test_rules_for_refused_reads_are_those_of_the_module() -> None:
    ours = (LIBRARY / "optimistic.c").read_text()
    theirs = (ROOT / "kmod" / "client" / "personality" / "optimistic.c").read_text()
    for name in ("WINDOW", "REFUSALS", "ENDED"):
        assert value(ours, name) == value(theirs, f"NFR_READER_{name}")
    assert value(ours, "CREDITS_TOGETHER") == value(theirs, "NFR_READER_CREDITS")
    # milliseconds, and jiffies
    assert value(ours, "PAUSE") == 10_000
    assert "#define NFR_READER_PAUSE		(10 * HZ)" in theirs
