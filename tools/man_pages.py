# SPDX-License-Identifier: Apache-2.0
"""Man pages of all commands, written from their help: ``python tools/man_pages.py FOLDER``.

click-man cannot write them: typer brings a click of its own, whose classes are not click's.  What
is used here both have, because Debian 13's typer still uses click.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["pages", "write"]

_ESCAPES = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)
_STATUSES = (
    ("0", "The command succeeded."),
    ("1", "The command failed. One line on standard error says why."),
    ("2", "The command line is wrong."),
    ("130", "The command was interrupted (ctrl-C)."),
)


_STATUSES_OF = {
    "nfsrdma health": (
        ("0", "OK."),
        ("1", "WARNING."),
        ("2", "CRITICAL."),
        ("3", "UNKNOWN, or the command line is wrong."),
        _STATUSES[-1],
    ),
}
"""The statuses of commands that have others."""


_FILES = (
    ("/etc/fstab", "Mounts, which tune apply edits."),
    ("/etc/exports.d, /etc/nfs.conf.d", "Exports and listeners of server enable."),
    ("/var/lib/nfsrdma", "What server enable, tune apply and module install changed."),
    ("/run/nfsrdma", "The journal of changes that are not finished."),
)
_SYSTEM_PAGES = (("nfs", 5), ("exports", 5), ("rdma", 8))

EXAMPLES = {
    "nfsrdma": ("nfsrdma doctor", "nfsrdma mount server:/srv/data /mnt/data", "nfsrdma top"),
    "nfsrdma cat": ("nfsrdma cat server:/srv/data/file",),
    "nfsrdma cp": ("nfsrdma cp server:/srv/data/file .",),
    "nfsrdma doctor": ("nfsrdma doctor", "nfsrdma doctor server"),
    "nfsrdma health": ("nfsrdma health", "nfsrdma health --max-rpc-age 60s --json /mnt/data"),
    "nfsrdma link add": ("nfsrdma link add rxe0 type rxe netdev eth0",),
    "nfsrdma link delete": ("nfsrdma link delete rxe0 --dry-run",),
    "nfsrdma load": (
        "nfsrdma load server:/srv/data --sessions 1000",
        "nfsrdma load server:/srv/data --rate 5000 --mix read=70,write=30 --verify",
    ),
    "nfsrdma ls": ("nfsrdma ls --long server:/srv/data",),
    "nfsrdma mount": (
        "nfsrdma mount server:/srv/data /mnt/data",
        "nfsrdma mount -o vers=4.1,nconnect=4 server:/srv/data /mnt/data",
    ),
    "nfsrdma mounts": ("nfsrdma mounts /mnt/data --require transport=rdma",),
    "nfsrdma ping": ("nfsrdma ping server",),
    "nfsrdma report": ("nfsrdma report sweep.db --output report",),
    "nfsrdma server enable": ("nfsrdma server enable /srv/data --client 10.9.1.0/24",),
    "nfsrdma size": ("nfsrdma size --clients 1000 --nconnect 4 --threads 64",),
    "nfsrdma stat": ("nfsrdma stat server:/srv/data/file",),
    "nfsrdma sweep": (
        "nfsrdma sweep server:/srv/data",
        "nfsrdma sweep --lab --transport tcp,rdma --vers 3",
    ),
    "nfsrdma tune apply": ("nfsrdma tune apply sweep.db --dry-run",),
    "nfsrdma umount": ("nfsrdma umount /mnt/data",),
}
"""Command lines for the section EXAMPLES, by command."""


def write(folder: Path) -> list[Path]:
    """Write the pages of the program and of each of its commands; returns the files."""
    import typer

    from nfsrdma_tools import __version__
    from nfsrdma_tools.cli.main import app

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, text in pages(typer.main.get_command(app), "nfsrdma", __version__):
        made.append(folder / f"{name}.1")
        made[-1].write_text(text, encoding="utf-8")
    return made


def pages(command: Any, name: str, version: str, above: Any = None) -> Iterator[tuple[str, str]]:
    """Name and text of a command's page, then those of its subcommands; hidden ones have none.

    ``command`` is a click command, ``above`` the context of the command that it belongs to.
    """
    context = command.context_class(command, info_name=name, parent=above)
    below = {n: c for n, c in getattr(command, "commands", {}).items() if not c.hidden}
    page = _page_name(context.command_path)
    head = f'.TH {_roff(page.upper())} 1 "" "nfsrdma\\-tools {version}" "NFS over RDMA"\n'
    # neither hyphenated nor stretched to the right margin
    head += ".nh\n.ad l\n"
    yield page, head + "".join(_sections(command, context, below))
    for word, each in below.items():
        yield from pages(each, word, version, context)


def _sections(command: Any, context: Any, below: dict[str, Any]) -> Iterator[str]:
    words = context.command_path
    usage = " ".join(command.collect_usage_pieces(context))
    records = [(p.param_type_name, p.get_help_record(context)) for p in command.get_params(context)]
    yield f".SH NAME\n{_roff(_page_name(words))} \\- {_roff(_brief(command))}\n"
    yield f".SH SYNOPSIS\n\\fB{_roff(words)}\\fR {_roff(usage)}\n"
    yield ".SH DESCRIPTION\n" + ".PP\n".join(_paragraphs(command.help or ""))
    for kind in ("argument", "option"):
        rows = [(_parameter(row[0]), row[1]) for of, row in records if row and of == kind]
        yield _items(f"{kind.upper()}S", rows)
    yield _items("COMMANDS", [(_bold(word), _brief(each)) for word, each in below.items()])
    statuses = _STATUSES_OF.get(words, _STATUSES)
    yield _items("EXIT STATUS", [(_bold(status), text) for status, text in statuses])
    yield _examples(EXAMPLES.get(words, ()))
    yield _items("FILES", [(_bold(name), text) for name, text in _FILES])
    around = [context.parent.command_path] if context.parent else []
    yield _see_also([*around, *(f"{words} {word}" for word in below)])


def _page_name(words: str) -> str:
    return words.replace(" ", "-")


def _brief(command: Any) -> str:
    return str(command.get_short_help_str(limit=1000)).rstrip(".")


def _paragraphs(text: str) -> list[str]:
    return [f"{_roff(each)}\n" for each in text.split("\n\n")]


def _items(title: str, items: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f".TP\n{term}\n{_roff(text)}\n" for term, text in items)
    return f".SH {title}\n{rows}" if items else ""


def _parameter(text: str) -> str:
    """An option or an argument: what is typed as it stands is bold."""
    return " ".join(_bold(w) if w.startswith("-") else _roff(w) for w in text.split())


def _bold(text: str) -> str:
    return f"\\fB{_roff(text)}\\fR"


def _examples(lines: Sequence[str]) -> str:
    text = ".PP\n".join(f"{_bold(line)}\n" for line in lines)
    return f".SH EXAMPLES\n{text}" if lines else ""


def _see_also(commands: Sequence[str]) -> str:
    pages = [(_page_name(each), 1) for each in commands]
    names = ",\n".join(f".BR {_roff(page)} ({part})" for page, part in [*pages, *_SYSTEM_PAGES])
    return f".SH SEE ALSO\n{names}\n"


def _roff(text: str) -> str:
    """Text in one line that means nothing to roff, which takes a dot in front for a request."""
    escaped = " ".join(text.split()).translate(_ESCAPES)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    print("\n".join(map(str, write(Path(sys.argv[1])))))
