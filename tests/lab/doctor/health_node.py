# SPDX-License-Identifier: Apache-2.0
"""Runs commands, and lists the functions of the NFS client that they call.

``python3 health_node.py PORT`` reads a command from each connection to PORT, its words between
spaces, and writes what it prints, ``status N``, and ``called NAME`` for each function.  It runs
``nfsrdma`` in a child, because starting Python and loading the modules takes most of the time of a
check in an emulated machine.  Never imported by the tests.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import nfsrdma_tools.cli.health
import nfsrdma_tools.live.health.check  # noqa: F401 - so that no child loads it
from nfsrdma_tools.cli.main import main

TRACING = Path("/sys/kernel/tracing/instances/health")
CALLED = re.compile(r"^[^#\n]*: ([A-Za-z0-9_.]+) <-", re.MULTILINE)


def run(connection: socket.socket, listener: socket.socket) -> None:
    """Run one command; in its process, this does not return."""
    command = connection.makefile().readline().split()
    # which empties it
    (TRACING / "trace").write_text("")
    child = os.fork()
    if not child:
        os.dup2(connection.fileno(), 1)
        # a child of the command may wait in the kernel, and its reader must not
        connection.close()
        listener.close()
        with (TRACING / "set_ftrace_pid").open("a") as traced:
            traced.write(str(os.getpid()))
        if command[0] != "nfsrdma":
            os.execvp(command[0], command)  # noqa: S606
        sys.argv = command
        main()
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    names = sorted(set(CALLED.findall((TRACING / "trace").read_text())))
    said = [f"\nstatus {status}", *(f"called {name}" for name in names)]
    connection.sendall("\n".join(said).encode())


with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        with server.accept()[0] as one:
            run(one, server)
