# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of a bundle: what programs, netlink and the resolver said on a host.

doctor/recorded.py reads them.
"""

from __future__ import annotations

from typing import Any

from nfsrdma_tools import __version__
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Recording

__all__ = ["COMMANDS", "CUT", "FORMAT", "MANIFEST", "NETLINK", "to_facts"]

FORMAT = 1
CUT = "cut at the end of a record: it is too long"
"""The reason in ``left_out`` of a file that has its beginning only."""
MANIFEST, COMMANDS, NETLINK = "manifest.json", "commands.json", "netlink.json"


def to_facts(recording: Recording) -> dict[str, Any]:
    """The three JSON documents of a recording, by file name; the inverse of ``recorded.opened``."""
    from dataclasses import asdict

    links = recording.links
    netlink: dict[str, Any] = {}
    if isinstance(links, UserError):
        netlink = {"rdma_error": [links.message, links.hint]}
    elif links is not None:
        netlink = {"rdma_links": [asdict(link) for link in links]}
    if recording.nfsd is not None:
        netlink["nfsd"] = asdict(recording.nfsd)
    commands = [
        {"argv": argv, "missing": True}
        if result is None
        else {
            "argv": argv,
            "status": result.returncode,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }
        for argv, result in recording.programs.items()
    ]
    manifest = {
        "format": FORMAT,
        **({"toolkit": __version__} if recording.collected else {}),
        "root": recording.root_user,
        "addresses": recording.addresses,
        "facts": recording.facts,
    }
    return {MANIFEST: manifest, COMMANDS: commands, NETLINK: netlink}
