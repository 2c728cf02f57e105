# SPDX-License-Identifier: Apache-2.0
"""Make nfsd's threads release the pages of the previous trial.

A thread of nfsd that is woken for an empty TCP socket releases the pages of the last reply it
sent, and allocates as many for the next one (svc_rqst_release_pages() and svc_alloc_arg(),
net/sunrpc/svc.c and svc_xprt.c of Linux 6.12).  After a READ of 512 KiB these are 129 pages.  A
single reader keeps one thread busy and wakes another without work, so READs of 4 KiB took 80 us
more of the server until the other thread got a request by chance.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["settle"]

# nfsd's default is 8 threads; it wakes the thread that slept last first
_THREADS = 8
_ROUNDS = 4


def settle(directory: Path) -> None:
    """Send small requests in parallel (FSSTAT, which clients do not cache).  Raises OSError."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(_ask, directory) for _ in range(_THREADS)]:
            done.result()


def _ask(directory: Path) -> None:
    for _ in range(_ROUNDS):
        os.statvfs(directory)
