# SPDX-License-Identifier: Apache-2.0
"""Run a load, and print what `nfsrdma top` says about it meanwhile, as JSON.

Arguments: which sentence ("mount" or "server"), what it begins with, in how many snapshots, the
number of snapshots to read at most, and the load for sh(1).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

TOP = ("nfsrdma", "top", "--batch", "--json", "--no-probes")


def ended(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


whose, begins, wanted, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
load = subprocess.Popen(("sh", "-ec", sys.argv[5]), start_new_session=True, stdout=sys.stderr)
top = subprocess.Popen(TOP, stdout=subprocess.PIPE, start_new_session=True)
said: list[str] = []
last: dict[str, Any] = {}
try:
    for line in top.stdout or ():
        last = json.loads(line)
        parts = last.get("mounts", ()) if whose == "mount" else (last.get("server", {}),)
        said += [part.get("limit", "") for part in parts]
        if load.poll() is not None or len(said) >= most:
            break
        if sum(sentence.startswith(begins) for sentence in said) >= wanted:
            break
    running = load.poll() is None
finally:
    ended(top)
    ended(load)
print(json.dumps({"said": said, "running": running, "last": last}))
