#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
"""Write a manual page for each call of nfsrdma.h, from its comments: man.py HEADER FOLDER.

A comment has the form of kernel-doc: a name and a summary, @parameters, paragraphs, "Return:".
The page of nfsrdma_connect(3) has struct nfsrdma_options, and so on: see STRUCTS.  libnfsrdma(7)
has the comment at the top of the header and the list of calls.  ERRORS come from man/errors.txt,
an EXAMPLE from man/examples.c.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# the page that describes a struct
STRUCTS = {
    "nfsrdma_options": "nfsrdma_connect",
    "nfsrdma_terms": "nfsrdma_terms",
    "nfsrdma_stats": "nfsrdma_stats",
    "nfsrdma_completion": "nfsrdma_wait",
    "nfsrdma_range": "nfsrdma_prepare_reads",
    "nfsrdma_entry": "nfsrdma_readdir",
    "nfsrdma_blocks_options": "nfsrdma_blocks_open",
    "nfsrdma_block": "nfsrdma_blocks_submit",
}
COMMENT = re.compile(r"/\*\*\n(.*?)\n \*/\n(struct \w+ \{\n.*?\n\};|.*?;)\n", re.DOTALL)
TITLE = re.compile(r"(struct )?(\w+) - (.*)")


# an example: the pages that it is for, and the function
EXAMPLE = re.compile(
    r"^/\* (nfsrdma_\w+(?: nfsrdma_\w+)*) \*/\n(.*?\n\}\n)", re.DOTALL | re.MULTILINE
)
TEXTS = Path(__file__).parent / "man"


class HeaderError(Exception):
    """The header, or a text for its pages, is not in the expected form."""


@dataclass
class Entry:
    """A call or a struct: its name, its summary, its parameters, and what the comment says."""

    name: str
    summary: str
    declaration: str
    parameters: list[tuple[str, str]] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    result: str = ""


def entries(text: str) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The calls and the structs of a header; HeaderError if a comment has another form."""
    calls: dict[str, Entry] = {}
    structs: dict[str, Entry] = {}
    for comment, declaration in COMMENT.findall(text):
        lines = [line.removeprefix(" *").removeprefix(" ") for line in comment.split("\n")]
        title = TITLE.fullmatch(lines[0])
        if not title:
            raise HeaderError(f"found {lines[0]!r}, expected a name, a dash and a summary")
        is_struct, name, summary = title.groups()
        entry = Entry(name, summary, declaration)
        for part in "\n".join(lines[1:]).split("\n\n"):
            _add(entry, part.strip())
        if not is_struct and f"{name}(" not in declaration:
            raise HeaderError(f"{name}: the declaration is that of another call")
        (structs if is_struct else calls)[name] = entry
    return calls, structs


def _add(entry: Entry, part: str) -> None:
    if part.startswith("@"):
        for each in re.split(r"\n(?=@)", part):
            name, text = each[1:].split(":", 1)
            entry.parameters.append((name, " ".join(text.split())))
    elif part.startswith("Return:"):
        entry.result = " ".join(part.removeprefix("Return:").split())
    elif part:
        entry.paragraphs.append(" ".join(part.split()))


def roff(text: str) -> str:
    """A paragraph: calls and parameters in bold and italics."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\b(nfsrdma_\w+)\(\)", r"\\fB\1\\fP(3)", text)
    text = re.sub(r"@(\w+)", r"\\fI\1\\fP", text)
    return text.lstrip(".'")


def listed(parameters: list[tuple[str, str]]) -> list[str]:
    """Parameters or members, one after the other."""
    return [line for name, text in parameters for line in (".TP", f".I {name}", roff(text))]


def described(struct: Entry) -> list[str]:
    """The members of a struct, whose declaration says their types."""
    body = struct.declaration.replace("\\", "\\e")
    return [".PP", ".nf", ".RS", body, ".RE", ".fi", *listed(struct.parameters)]


def errors(text: str) -> dict[str, dict[str, str]]:
    """The errors of each call, in order of their names, from errors.txt."""
    groups: dict[str, dict[str, str]] = {}
    calls: dict[str, dict[str, str]] = {}
    at: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        words = line.split()
        if words[0] in ("group", "call"):
            of = groups if words[0] == "group" else calls
            at = of[words[1].rstrip(":")] = {}
            for group in words[2:]:
                at.update(groups[group])
        else:
            name, tab, reason = line.partition("\t")
            if not tab:
                raise HeaderError(f"errors.txt: found {line!r}, expected a name, a tab and a text")
            at[name] = reason
    return {call: dict(sorted(failures.items())) for call, failures in calls.items()}


def examples(text: str) -> dict[str, str]:
    """The example of each call, from examples.c."""
    return {name: match[2] for match in EXAMPLE.finditer(text) for name in match[1].split()}


def code(text: str) -> list[str]:
    """Lines of C, as they are."""
    text = text.replace("\\", "\\e").replace("-", "\\-").expandtabs(4)
    lines = [f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines()]
    return [".nf", ".RS", *lines, ".RE", ".fi"]


def page(entry: Entry, structs: list[Entry], failures: dict[str, str], example: str) -> str:
    """The manual page of a call."""
    lines = [
        '.\\" Generated from nfsrdma.h by man.py',
        f'.TH {entry.name} 3 "" libnfsrdma',
        ".SH NAME",
        f"{entry.name} \\- {entry.summary}",
        ".SH SYNOPSIS",
        *(".nf", ".B #include <nfsrdma.h>", ".PP"),
        *(f".B {line.strip()}" for line in entry.declaration.split("\n")),
        ".fi",
    ]
    if entry.parameters or entry.paragraphs:
        lines += [".SH DESCRIPTION", *listed(entry.parameters)]
        for each in entry.paragraphs:
            lines += [".PP", roff(each)]
    for struct in structs:
        lines += [f".SS struct {struct.name}", f"{roff(struct.summary)}.", *described(struct)]
    if entry.result:
        lines += [".SH RETURN VALUE", roff(entry.result)]
    lines.append(".SH ERRORS")
    if not failures:
        lines.append("The call does not fail.")
    for name, reason in failures.items():
        lines += [".TP", f".B {name}", roff(reason)]
    lines += [".SH EXAMPLE", *code(example)]
    lines += [".SH SEE ALSO", ".BR libnfsrdma (7)"]
    return "\n".join(lines) + "\n"


def overview(text: str, calls: dict[str, Entry]) -> str:
    """libnfsrdma(7)."""
    comment = re.findall(r"/\*\n(.*?)\n \*/", text, re.DOTALL)[0]
    about = "\n".join(line.removeprefix(" *").strip() for line in comment.split("\n"))
    first, *rest = about.split("\n\n")
    lines = [
        '.\\" Generated from nfsrdma.h by man.py',
        '.TH libnfsrdma 7 "" libnfsrdma',
        ".SH NAME",
        f"libnfsrdma \\- {first.split(': ', 1)[1].rstrip('.')}".replace("\n", " "),
        *(".SH SYNOPSIS", ".B #include <nfsrdma.h>", ".PP", "Link with \\fI\\-lnfsrdma\\fP."),
        ".SH DESCRIPTION",
    ]
    for each in rest:
        lines += [".PP", roff(" ".join(each.split()))]
    lines.append(".SH CALLS")
    for call in calls.values():
        lines += [".TP", f".BR {call.name} (3)", f"{call.summary[0].upper()}{call.summary[1:]}."]
    return "\n".join(lines) + "\n"


def write(header: Path, folder: Path) -> None:
    """Write all pages; HeaderError if a call of the header has no comment, errors or example."""
    text = header.read_text()
    calls, structs = entries(text)
    if missing := set(re.findall(r"\b(nfsrdma_\w+)\(", text)) - set(calls):
        raise HeaderError(f"no comment: {', '.join(sorted(missing))}")
    failures = errors((TEXTS / "errors.txt").read_text())
    shown = examples((TEXTS / "examples.c").read_text())
    for kind, names in (("errors", set(failures)), ("an example", set(shown))):
        if different := names ^ set(calls):
            raise HeaderError(f"{kind} without a call, or none: {', '.join(sorted(different))}")
    folder.mkdir(parents=True, exist_ok=True)
    for call in calls.values():
        of_page = [structs[name] for name, where in STRUCTS.items() if where == call.name]
        made = page(call, of_page, failures[call.name], shown[call.name])
        (folder / f"{call.name}.3").write_text(made)
    (folder / "libnfsrdma.7").write_text(overview(text, calls))


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]), Path(sys.argv[2]))
    except HeaderError as error:
        sys.exit(f"man.py: {error}")
