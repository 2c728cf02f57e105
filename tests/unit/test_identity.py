# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

from nfsrdma_tools import identity

# prctl(2): PR_SET_NAME is 15
NAMED = """
import ctypes
import sys

ctypes.CDLL(None).prctl(15, b"\\xff) Z 1", 0, 0, 0)
print("named", flush=True)
sys.stdin.read()
"""


def test_a_process_may_have_any_bytes_as_its_name() -> None:
    argv = (sys.executable, "-c", NAMED)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"named\n"
        process = f"{child.pid}-{identity._start(child.pid)}"
        assert identity.is_running(process)
        assert not identity.is_running(f"{child.pid}-1")
        child.communicate()
    assert not identity.is_running(process)
