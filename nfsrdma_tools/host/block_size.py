# SPDX-License-Identifier: Apache-2.0
"""The largest block of nfsd, max_block_size, which the kernel takes only while nfsd is stopped.

write_maxblksize() in fs/nfsd/nfsctl.c refuses it once nfsd has threads or a socket.  So the change
is a stop and a start of nfs-server, which registers its listeners with rpcbind; listeners made
through portlist alone would not be registered.  It is a shell command, because the server may be
reached by ssh, and because its undo is an entry of the journal.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["NAME", "Running", "setting"]

NAME = "nfsd.max_block_size"
"""Its name as a tunable."""
# what starts with nfs-server: systemd refuses more than five starts of a unit in ten seconds, and
# then nfs-server for its dependency; a reset clears the count, and not all hosts have all of them
_UNITS = "nfs-server nfs-mountd nfs-idmapd nfsdcld rpc-statd rpc-statd-notify"


@dataclass(frozen=True)
class Running:
    """nfsd's number of threads and its listeners; a start of nfs-server may not restore both."""

    threads: int
    listeners: tuple[str, ...]

    @classmethod
    def command(cls, folder: Path) -> str:
        """The shell command whose output ``parse`` reads; ``folder`` is /proc/fs/nfsd."""
        nfsd = shlex.quote(str(folder))
        return (
            f"if systemctl is-active --quiet nfs-server; then cat {nfsd}/threads {nfsd}/portlist; "
            "else echo 0; fi"
        )

    @classmethod
    def parse(cls, printed: str) -> Running:
        """UserError unless nfsd runs, and systemd runs it."""
        threads, *listeners = printed.splitlines() or [""]
        if not threads.isdecimal() or not int(threads):
            hint = "start it with systemctl start nfs-server: the sweep restarts it for this value"
            raise UserError(f"{NAME}: nfs-server.service does not run on the server", hint)
        return cls(int(threads), tuple(dict.fromkeys(map(str.strip, listeners))))


def setting(folder: Path, value: str, running: Running) -> str:
    """The shell command that sets the value, with nfsd as it was in all else.

    It starts nfs-server in any case, and fails if the kernel refuses the value.  To run it again
    does no harm, also if a signal ended it halfway.
    """
    nfsd, text = shlex.quote(str(folder)), shlex.quote(value)
    listen = "".join(
        f"grep -qxF {line} {nfsd}/portlist || printf '%s\\n' {line} > {nfsd}/portlist || s=1; "
        for line in map(shlex.quote, running.listeners)
    )
    # the lock: after a kill -9 the killed command's shell may still be at work
    return (
        f"exec 9< {nfsd} && flock 9 || exit; "
        f'[ "$(cat {nfsd}/max_block_size)" = {text} ] '
        "&& systemctl is-active --quiet nfs-server && exit 0; "
        f"systemctl stop nfs-server; systemctl reset-failed {_UNITS} 2> /dev/null; s=0; "
        f"printf %s {text} > {nfsd}/max_block_size || s=1; "
        "systemctl start nfs-server || exit; "
        f'[ "$(cat {nfsd}/threads)" = {running.threads} ] '
        f"|| printf %s {running.threads} > {nfsd}/threads || s=1; "
        f"{listen}exit $s"
    )
