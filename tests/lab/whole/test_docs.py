# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and docs/, run as printed, in a fresh lab for each page.

The lab is one machine, or a server and a client if the page says what runs on which.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, Step, blocks

TIMEOUT = 900
# pages whose commands take minutes under emulation
LONG = re.compile(
    r"(doctor|forty-clients|hang|lab|live|modelled-card|module|optimistic-reads"
    r"|rdma-in-use|report|rollout|server|slow|sweep|threadless-reads|trace|tune|tutorial"
    r"|wire-counters)\.md|trace-"
)
# a login: the prompt of the next line says where it runs
LOGIN = re.compile(r"(nfsrdma lab ssh demo|exit)\s*(#.*)?$")


def runs(page: Path) -> list[Block]:
    """The blocks of a page that run."""
    return [block for block in blocks(page) if not block.reason]


def parameters() -> Iterator[object]:
    for page in PAGES:
        if runs(page):
            name = str(page.relative_to(ROOT))
            marks = [pytest.mark.xdist_group(f"docs-{name}")]
            marks += [pytest.mark.nightly] * bool(LONG.match(page.name))
            yield pytest.param(page, id=name, marks=marks)


def missed() -> Iterator[str]:
    for page in PAGES:
        for block in blocks(page):
            if block.reason:
                yield f"{page.relative_to(ROOT)}:{block.line} does not run: {block.reason}"


class Reader:
    """Runs a page's commands: on this host in a folder of its own, or in a node of the lab."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lab = folder, f"docs-{os.getpid()}"

    def run(self, node: str, step: Step) -> subprocess.CompletedProcess[str]:
        """Run a command as printed, with the lab's real name."""
        if LOGIN.match(step.command):
            return subprocess.CompletedProcess([], 0, "")
        if step.on_host:
            return self._host("bash", "-c", re.sub(r"\bdemo\b", self.lab, step.command))
        return self.node(node, step.command)

    def node(self, node: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the lab."""
        return self._host("nfsrdma", "lab", "ssh", self.lab, node, "--", "bash", "-c", command)

    def prepare(self, node: str, command: str) -> None:
        """Run a command of a comment; it must succeed."""
        done = self.node(node, command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"

    def up(self, *options: str) -> None:
        """Start the lab."""
        done = self._host("nfsrdma", "lab", "up", self.lab, *options)
        assert done.returncode == 0, done.stdout

    def down(self) -> None:
        """Remove the lab, if it is there."""
        self._host("nfsrdma", "lab", "down", self.lab)

    def _host(self, *argv: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            argv,
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )


@pytest.mark.parametrize("page", list(parameters()))
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    failed = []
    try:
        if not any("lab up demo" in step.command for block in runs(page) for step in block.steps):
            # the pair has the image of all tests with pairs, so that it has its snapshots, too
            two = any(block.nodes for block in runs(page))
            reader.up(*(("--shape", "pair", "--extras") if two else ()))
        for block in runs(page):
            nodes = block.nodes or ("client",)
            for place, command in block.before:
                for node in (place,) if place else nodes:
                    reader.prepare(node, command)
            failed += [
                why
                for step in block.steps
                for node in nodes
                if (why := problem(reader, node, block, step))
            ]
            for command in block.after:
                for node in nodes:
                    reader.prepare(node, command)
    finally:
        reader.down()
    assert not failed, "\n\n".join(f"{page.relative_to(ROOT)}:{why}" for why in failed)


def problem(reader: Reader, node: str, block: Block, step: Step) -> str:
    """Report a command whose exit status or output differs from the page; empty if none does."""
    done = reader.run(node, step)
    report = f"{step.line}: {step.command}\nexit status {done.returncode}\n{done.stdout}"
    if bool(done.returncode) != step.fails:
        return report
    return "" if not block.stable or step.matches(done.stdout) else f"other output: {report}"


@pytest.mark.parametrize("why", list(missed()), ids=lambda why: why.partition(" ")[0])
def test_commands_that_do_not_run(why: str) -> None:
    pytest.skip(why)
