# SPDX-License-Identifier: Apache-2.0
"""Who works with whom: ``make matrix`` has each cell do the same, and writes the table in docs/."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from carriers import THEIRS, WHOSE, carry, serve
from kerberos import kerberos

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["SECURITY", "VERSIONS", "cell", "cells"]

VERSIONS = ("3", "4.0", "4.1", "4.2")
SECURITY = ("sys", "krb5", "krb5i", "krb5p")
NODE = Path(__file__).with_name("matrix_node.py").read_bytes()
PAGE = Path(__file__).parents[2] / "docs" / "interoperation.md"
START, END = "<!-- table: make matrix -->", "<!-- end of the table -->"
# found with the kernel's module on both sides, over TCP too
KNOWN = {("6.1", "krb5p"): "EIO over TCP too"}


def cell(lab: Nodes, vers: str, sec: str) -> dict[str, str]:
    """What the client found, by kind of work."""
    said = lab.run("client", "python3", "-", vers, sec, stdin=NODE, timeout=900).stdout
    found: dict[str, str] = json.loads(said)
    return found


def verdict(found: dict[str, str]) -> str:
    wrong = [f"{name}: {text}" for name, text in found.items() if text != "ok"]
    return "; ".join(wrong) or "ok"


def cells(lab: Nodes, kernel: str) -> Iterator[tuple[tuple[str, str, str, str], str]]:
    """Each cell as it is done: client, server, version and security, and its verdict."""
    for server, client in product(WHOSE, WHOSE):
        serve(lab, "server", server)
        carry(lab, "client", client)
        # nfsd forgets its exports when it is restarted
        with kerberos(lab):
            for vers, sec in product(VERSIONS, SECURITY):
                said = verdict(cell(lab, vers, sec))
                known = KNOWN.get((kernel, sec), "")
                if known and said != "ok":
                    said = f"{said} ({known})"
                yield (client, server, vers, sec), said
        carry(lab, "client", THEIRS)


def rows(kernel: str, found: dict[tuple[str, str, str, str], str]) -> Iterator[str]:
    for client, server, sec in product(WHOSE, WHOSE, SECURITY):
        words = [found[client, server, vers, sec] for vers in VERSIONS]
        yield "| " + " | ".join((kernel, client, server, sec, *words)) + " |"


def table(lines: list[str]) -> str:
    head = ("kernel", "client", "server", "sec", *(f"v{vers}" for vers in VERSIONS))
    return "\n".join((START, "| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines, END))


def main() -> None:
    lines: list[str] = []
    for kernel in sys.argv[1:] or KERNELS:
        with Lab(LabConfig("matrix", shape="pair", kernel=kernel)) as lab:
            found = {}
            for what, said in cells(lab, kernel):
                found[what] = said
                print(kernel, *what, said, flush=True)
            lab.check()
        lines += rows(kernel, found)
    text = PAGE.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    PAGE.write_text(before + table(lines) + after)


if __name__ == "__main__":
    main()
