# SPDX-License-Identifier: Apache-2.0
"""Words before a program that mounts: mounts and processes end with it, even if it is killed."""

import os

__all__ = ["CONTAINED", "NAMESPACES"]

# Its own /dev/shm: libfaketime of make release-check names memory there by numbers of processes,
# which begin again in each namespace; the next build found that of processes that had ended.
SHM = 'mount -t tmpfs shm /dev/shm && exec env -u FAKETIME_SHARED "$@"'
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
# users other than root need user namespaces, which mmdebstrap makes
CONTAINED = (*NAMESPACES, "sh", "-c", SHM, "sh") if os.geteuid() == 0 else ()
