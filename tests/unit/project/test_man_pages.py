# SPDX-License-Identifier: Apache-2.0
"""Man pages are made from the commands; `make deb` has man(1) and lintian read them."""

import shlex
from pathlib import Path
from typing import Annotated

import man_pages
import pytest
import typer

from nfsrdma_tools.cli import main

app = typer.Typer(help="A program.", add_completion=False, rich_markup_mode=None)
group = typer.Typer(help="Things that belong together.")
app.add_typer(group, name="group")


@app.command()
def look(
    place: Annotated[str, typer.Argument(help="Where.")],
    deep: Annotated[bool, typer.Option("--deep/--flat", help=r"Don't stop at C:\x.")] = True,
    count: Annotated[int, typer.Option("-c", "--count", help=".5 is no count.")] = 3,
) -> None:
    """Look at a place. Then
    tell.

    .Dots in front are text, and so is 'this'.
    """


@app.command(hidden=True)
def old() -> None:
    """The name of an earlier version."""


@group.command()
def inner() -> None:
    """Do it inside."""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(man_pages.pages(typer.main.get_command(app), "prog", "1.2"))


def test_each_command_has_a_page_and_hidden_ones_have_none(pages: dict[str, str]) -> None:
    assert sorted(pages) == ["prog", "prog-group", "prog-group-inner", "prog-look"]
    assert "old" not in pages["prog"]


def test_a_page_has_the_sections_of_a_man_page(pages: dict[str, str]) -> None:
    sections = [line[4:] for line in pages["prog-look"].splitlines() if line.startswith(".SH")]
    first = ["NAME", "SYNOPSIS", "DESCRIPTION", "ARGUMENTS", "OPTIONS"]
    assert sections == [*first, "EXIT STATUS", "FILES", "SEE ALSO"]
    assert ".BR nfs (5),\n.BR exports (5),\n.BR rdma (8)\n" in pages["prog-look"]
    assert r".TH PROG\-LOOK 1" in pages["prog-look"]
    assert "prog\\-look \\- Look at a place\n" in pages["prog-look"]
    assert "\\fBprog look\\fR [OPTIONS]" in pages["prog-look"]
    assert ".TP\n\\fB\\-\\-deep\\fR / \\fB\\-\\-flat\\fR\n" in pages["prog-look"]
    assert "\\fB\\-c,\\fR \\fB\\-\\-count\\fR" in pages["prog-look"]
    assert "Where. [required]\n" in pages["prog-look"]
    assert ".SH COMMANDS\n.TP\n\\fBinner\\fR\nDo it inside\n" in pages["prog-group"]
    assert ".BR prog (1),\n.BR prog\\-group\\-inner (1),\n" in pages["prog-group"]
    assert ".SH EXIT STATUS\n.TP\n\\fB0\\fR\n" in pages["prog"]


def test_no_text_is_a_request_to_roff(pages: dict[str, str]) -> None:
    text = pages["prog-look"]
    assert "Look at a place. Then tell.\n.PP\n\\&.Dots in front" in text
    assert "so is \\(aqthis\\(aq." in text
    assert "Don\\(aqt stop at C:\\ex." in text
    assert "\n\\&.5 is no count." in text


def test_the_program_has_a_page_for_each_command(tmp_path: Path) -> None:
    made = {path.name for path in man_pages.write(tmp_path)}
    assert {"nfsrdma.1", "nfsrdma-mount.1", "nfsrdma-lab.1", "nfsrdma-lab-up.1"} <= made
    assert made == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("command", "line"),
    [(name, line) for name, lines in man_pages.EXAMPLES.items() for line in lines],
)
def test_an_example_is_a_command_line_of_its_command(command: str, line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "nfsrdma"
    current = typer.main.get_command(main.app)
    context = current.make_context("nfsrdma", list(words), resilient_parsing=True)
    while hasattr(current, "commands") and words:
        name = words.pop(0)
        current = current.commands[name]
        # a wrong option or value raises
        with_values = not hasattr(current, "commands")
        context = current.make_context(
            name, list(words), parent=context, resilient_parsing=not with_values
        )
    assert context.command_path.startswith(command)


def test_the_statuses_of_a_monitoring_plugin_are_its_own() -> None:
    made = dict(man_pages.pages(typer.main.get_command(main.app), "nfsrdma", "1.2"))
    own = made["nfsrdma-health"].partition(".SH EXIT STATUS")[2].partition(".SH ")[0]
    assert "\\fB2\\fR\nCRITICAL.\n" in own
    assert "failed" not in own
    assert "CRITICAL" not in made["nfsrdma-doctor"]
