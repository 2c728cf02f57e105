# SPDX-License-Identifier: Apache-2.0
"""A program that the compiler refuses, in each way it has: one line, and never a hang."""

import pytest

from nfsrdma_tools.lab.lab import Lab

LOAD = """
import sys
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.probes.session import load
try:
    load(sys.stdin.read(), ())
except UserError as error:
    sys.exit(str(error))
"""
WRONG = "int f(void *context) { return missing; }"
# the compiler has nothing of the kind, and gives up without a way back
FATAL = """
BPF_ARRAY(a, u64, 1);
int f(void *context) {
    int first = 0;
    u16 *x = (u16 *)a.lookup(&first);
    return x ? __sync_val_compare_and_swap(x, 1, 2) : 0;
}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WRONG, "error: use of undeclared identifier 'missing'"),
        # more than a pipe holds
        (f"#warning {'x' * 60}\n" * 2000 + WRONG, "error: use of undeclared identifier 'missing'"),
        (FATAL, "nfsrdma: ended while the probes were compiled: error: "),
    ],
    ids=("wrong", "wrong-at-length", "fatal"),
)
def test_a_program_that_does_not_compile_is_one_line(solo: Lab, text: str, message: str) -> None:
    argv = ("solo", "python3", "-c", LOAD)
    ended = solo.run(*argv, stdin=text.encode(), check=False, timeout=600)
    assert ended.returncode != 0
    assert ended.stderr.count("\n") == 1
    assert message in ended.stderr
