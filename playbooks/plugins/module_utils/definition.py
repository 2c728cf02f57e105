# SPDX-License-Identifier: Apache-2.0
"""The definition of a mount for the next boot: a line of /etc/fstab or a systemd mount unit.

Both split at blanks and have their own escapes: fstab(5) a backslash and three octal digits,
systemd.unit(5) a doubled per cent sign.  Values that neither can express are refused.
"""

from __future__ import annotations

import os
import re

TRANSPORTS = ["rdma", "nfsrdma", "tcp", "rdma6", "nfsrdma6", "tcp6"]
_PLAIN = re.compile(rb"\\([0-3][0-7]{2})")


def refusal(source, path, options):
    """Why these values cannot be written to a definition, or ""."""
    for name, text in (("src", source), ("path", path), *(("opts", o) for o in options)):
        if not text or not text.isprintable() or "\\" in text or '"' in text:
            return "%s: %r cannot be written to fstab or a unit" % (name, text)
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
        return "path: %r is not a normalized absolute path" % path
    several = [o for o in options if re.search(r"[\s,]", o)]
    return "opts: %r is not a single option" % several[0] if several else ""


def options(p):
    """The mount options of the definition, the same that `nfsrdma mount` uses."""
    proto = "tcp" if p["transport"].startswith("tcp") else "rdma"
    port = p["port"] or (20049 if proto == "rdma" else None)
    # brackets: an IPv6 address, for which nfs(5) has its own netids
    ipv6 = p["transport"].endswith("6") or (p["src"] or "").startswith("[")
    proto += "6" if ipv6 else ""
    sizes = [("port", port)] + [(n, p[n]) for n in ("rsize", "wsize", "nconnect")]
    words = ["vers=" + p["vers"], "proto=" + proto]
    words += ["%s=%d" % (name, value) for name, value in sizes if value]
    return [*words, *p["opts"], "_netdev"]


def escaped(field):
    """A field of fstab, with escapes."""
    return "".join("\\%03o" % ord(c) if c in " \t\n\\#" else c for c in field)


def fstab_line(source, path, options):
    """The line of fstab for a mount."""
    return "%s %s nfs %s 0 0" % (escaped(source), escaped(path), ",".join(options))


def fstab_entry(text, path):
    """The first line of fstab that mounts on ``path`` or None, and the number of such lines."""
    lines = [line for line in text.split("\n") if _place(line) == path]
    return (lines[0] if lines else None), len(lines)


def _place(line):
    fields = [field for field in re.split(r"[ \t]+", line) if field]
    if len(fields) < 3 or fields[0].startswith("#"):
        return None
    return unescaped(fields[1])


def unescaped(field):
    """A field of fstab without escapes; each escape is a byte, a character may take several."""
    raw = field.encode("utf-8", "surrogateescape")
    return _PLAIN.sub(_byte, raw).decode("utf-8", "surrogateescape")


def _byte(match):
    return bytes([int(match.group(1), 8)])


def fstab_with(text, before, after):
    """fstab with one line replaced, removed (``after`` None), or appended (``before`` None)."""
    lines = text.split("\n")
    if before is None:
        lines[-1:] = [after, ""] if lines[-1] == "" else [lines[-1], after, ""]
    elif after is None:
        lines.remove(before)
    else:
        lines[lines.index(before)] = after
    return "\n".join(lines)


def unit_text(source, path, options):
    """The mount unit."""
    return (
        "# Written by nfsrdma.tools.nfsrdma_mount\n"
        "[Unit]\nDescription=NFS mount on %(where)s\n\n"
        "[Mount]\nWhat=%(what)s\nWhere=%(where)s\nType=nfs\nOptions=%(options)s\n\n"
        "[Install]\nWantedBy=remote-fs.target\n"
        % {
            "what": _specifiers(source),
            "where": _specifiers(path),
            "options": _specifiers(",".join(options)),
        }
    )


def _specifiers(text):
    return text.replace("%", "%%")
