# SPDX-License-Identifier: Apache-2.0
"""Slots of the Calls that a server has at one time (bpf/server.c), compiled for user space."""

import subprocess
from pathlib import Path

import pytest
from wire.native import COMPILER

BPF = Path(__file__).parents[3] / "bpf"
CALLS = 4000
# arrays as bcc's maps, for one CPU; no row is made
MAPS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef uint32_t u32;
typedef uint64_t u64;
#define __always_inline inline __attribute__((always_inline))
#define PAGE_BITS 12
#define bpf_log2l(value) 0
#define bpf_ktime_get_ns() 1
#define bpf_get_current_pid_tgid() 1
#define BPF_ARRAY(map, type, size) static type map##_values[size]; \\
	static type *map##_lookup(int *slot) { return &map##_values[*slot]; } \\
	static struct { type *(*lookup)(int *); } map = { map##_lookup }
#define BPF_PERCPU_ARRAY BPF_ARRAY
#define BPF_F_TABLE(kind, key, type, map, size, flags) static type *map##_none(key *number) \\
	{ return NULL; } \\
	static type *map##_nor(key *number, type *value) { return NULL; } \\
	static struct { type *(*lookup)(key *); type *(*lookup_or_try_init)(key *, type *); } \\
	map = { map##_none, map##_nor }
"""
# QUEUE FIRST SWAPPED COUNT: Calls without a Reply; prints how many have a slot, and the lost ones
MAIN = """
static struct server_key key_of(char **argv, u32 more)
{
	u32 number = strtoul(argv[2], NULL, 0) + more;

	return (struct server_key){ atoi(argv[1]), atoi(argv[3]) ? __builtin_bswap32(number) : number };
}

int main(int argc, char **argv)
{
	u32 count = atoi(argv[4]), kept = 0;

	for (u32 i = 0; i < count; i++) {
		struct server_key key = key_of(argv, i);

		server_begin(&key);
	}
	for (u32 i = 0; i < count; i++) {
		struct server_key key = key_of(argv, i);

		kept += !!server_call(&key);
	}
	printf("%u %u\\n", kept, (u32)losses_values[LOST_RPCS]);
}
"""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The functions of server.c: what precedes its first probe."""
    functions, probe, _ = (BPF / "server.c").read_text().partition("\nPROBE(")
    assert probe
    folder = tmp_path_factory.mktemp("slots")
    folder.joinpath("slots.c").write_text(
        "\n".join((MAPS, (BPF / "account.h").read_text(), functions, MAIN))
    )
    assert COMPILER
    argv = (COMPILER, "-w", "-o", folder / "slots", folder / "slots.c")
    subprocess.run(argv, check=True)
    return folder / "slots"


@pytest.mark.parametrize(
    ("queue", "first", "swapped"),
    (
        pytest.param(0, 0x0A2A7722, True, id="XIDs of a little-endian client"),
        pytest.param(0, 0x0A2AFFFA, True, id="XIDs of one, whose third byte changes"),
        pytest.param(0, 0x22772A0A, False, id="XIDs of a big-endian client"),
        pytest.param(7, 0x2A0A, False, id="receives of a completion queue"),
    ),
)
def test_calls_at_one_time_have_a_slot_each(
    program: Path, queue: int, first: int, swapped: bool
) -> None:
    """sunrpc's client sends a counter in its own byte order as XID (xprt_alloc_xid())."""
    argv = (program, str(queue), str(first), str(int(swapped)), str(CALLS))
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(CALLS), "0"]
