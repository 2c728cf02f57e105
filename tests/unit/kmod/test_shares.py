# SPDX-License-Identifier: Apache-2.0
"""Random clients of two files of our server: share.c, and short.c with its table of addresses."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from wire.native import COMPILER

from nfsrdma_tools.command import run

ROOT = Path(__file__).parents[3]
HERE = ROOT / "tests" / "shares"
KMOD = ROOT / "kmod"
STRUCTURES = (
    *(r"#define NFR_SVC_SHARE\t[^\n]*\n", r"enum nfr_svc_purpose \{.*?\n\};\n"),
    *(r"struct nfr_svc_share \{.*?\n\};\n", r"struct nfr_svc_host \{.*?\n\};\n"),
)
FUNCTIONS = (r"static inline bool nfr_svc_comes_from\(.*?\n\}\n",)
FLAGS = ("-std=gnu11", "-g", "-O1", "-Wall", "-Werror", "-fsanitize=address,undefined")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    if COMPILER is None:
        pytest.skip("no C compiler; missed: random clients of share.c and short.c")
    compiler, folder = COMPILER, tmp_path_factory.mktemp("shares")
    text = (KMOD / "server" / "server.h").read_text()
    for name, patterns in (("structures", STRUCTURES), ("functions", FUNCTIONS)):
        matches = [re.search(pattern, text, re.S) for pattern in patterns]
        assert None not in matches
        (folder / f"{name}.h").write_text("".join(each[0] for each in matches if each))
    where = (f"-I{folder}", f"-I{HERE / 'include'}", f"-I{KMOD}")

    @cache
    def build(name: str) -> Path:
        run(compiler, *FLAGS, *where, "-o", str(folder / name), str(HERE / f"{name}.c"))
        return folder / name

    return build


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize(("count", "floors"), [(1, 64), (3, 64), (12, 64), (12, 4), (12, 1)])
def test_random_clients_get_their_floors_and_nobody_waits_for_ever(
    built: Callable[[str], Path], seed: int, count: int, floors: int
) -> None:
    argv = (str(built("shares")), str(seed), "20000", str(count), str(floors))
    fast, slow = map(int, run(*argv).stdout.split())
    # each way of charging was taken
    assert min(fast, slow) > 20


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_a_client_with_short_receives_is_remembered_and_no_other(
    built: Callable[[str], Path], seed: int, count: int
) -> None:
    argv = (str(built("short")), str(seed), "20000", str(count))
    limited, believed, expired, forgotten = map(int, run(*argv).stdout.split())
    assert min(limited, believed, expired) > 20
    # the table has 64 addresses
    assert forgotten > 20 if count > 65 else count == 65 or not forgotten
