# SPDX-License-Identifier: Apache-2.0
"""The memory that clients of our server share: kmod/server/share.c with random clients."""

import re
from pathlib import Path

import pytest
from wire.native import COMPILER

from nfsrdma_tools.command import run

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "shares"
KMOD = ROOT / "kmod"
STRUCTURES = (
    *(r"#define NFR_SVC_SHARE\t[^\n]*\n", r"enum nfr_svc_purpose \{.*?\n\};\n"),
    *(r"struct nfr_svc_share \{.*?\n\};\n", r"struct nfr_svc_host \{.*?\n\};\n"),
)
FLAGS = ("-std=gnu11", "-g", "-O1", "-Wall", "-Werror", "-fsanitize=address,undefined")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no C compiler; missed: random clients of share.c")
    folder = tmp_path_factory.mktemp("shares")
    text = (KMOD / "server" / "server.h").read_text()
    found = [re.search(pattern, text, re.S) for pattern in STRUCTURES]
    (folder / "structures.h").write_text("".join(each[0] for each in found if each))
    assert None not in found
    program = folder / "shares"
    where = (f"-I{folder}", f"-I{HERE / 'include'}", f"-I{KMOD}")
    run(COMPILER, *FLAGS, *where, "-o", str(program), str(HERE / "shares.c"))
    return program


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize(("count", "floors"), [(1, 64), (3, 64), (12, 64), (12, 4), (12, 1)])
def test_random_clients_get_their_floors_and_nobody_waits_for_ever(
    clients: Path, seed: int, count: int, floors: int
) -> None:
    argv = (str(clients), str(seed), "20000", str(count), str(floors))
    fast, slow = map(int, run(*argv).stdout.split())
    # each way of charging was taken
    assert min(fast, slow) > 20
