#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Items of ours in lists of somebody's YAML file, whose comments stay."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_list
short_description: Items in lists of a YAML file that is somebody else's
description:
  - Puts lines into lists at the top level of a YAML file, between two comments, indented as the items that are there.
    The rest of the file stays as it is, comments too. A list that is not there yet is added at the end.
  - A list that is written in one line, as C(rule_files [a, b]) with a colon, is refused.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  path:
    description: The file.
    type: path
    required: true
  lists:
    description: By the list's name its lines, the first of them beginning with a hyphen. With O(state=absent) the lines do not count.
    type: dict
    required: true
  validate:
    description: A program and its words that judge the file before it is taken, where the program is there. The path comes last.
    type: list
    elements: str
    default: []
  state:
    description: Whether they are there.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says what the file would be.
  diff_mode:
    description: The file, before and after.
"""

EXAMPLES = r"""
- name: Give Prometheus our rules
  nfsrdma.tools.nfsrdma_list:
    path: /etc/prometheus/prometheus.yml
    lists:
      rule_files: ["- /etc/prometheus/nfsrdma/rules.yml"]
    validate: [promtool, check, config]
"""

RETURN = r"""
"""

import re
import tempfile

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import read, run, write

_BEGIN = "# BEGIN nfsrdma.tools: %s"
_END = "# END nfsrdma.tools: %s"


def main():
    """Bring the list into its state."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True)
    p = module.params
    before = after = read(p["path"])
    for key, items in p["lists"].items():
        after = without(after, key)
        if p["state"] == "present":
            after = _with_ours(module, after, key, items)
    changed = before != after
    if changed:
        _judge(module, after)
    if changed and not module.check_mode:
        write(module, p["path"], after)
    module.exit_json(changed=changed, diff={"before": before, "after": after,
                     "before_header": p["path"], "after_header": p["path"]})  # fmt: skip


def _spec():
    return {
        "path": {"type": "path", "required": True},
        "lists": {"type": "dict", "required": True},
        "validate": {"type": "list", "elements": "str", "default": []},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }


def _with_ours(module, text, key, items):
    if inline(text, key):
        where = {"path": module.params["path"], "key": key}
        module.fail_json(
            msg="%(path)s: %(key)s is written in one line: make a line of each item" % where
        )
    return having(text, key, items)


def _judge(module, text):
    words = module.params["validate"]
    if module.check_mode or not words or not module.get_bin_path(words[0]):
        return
    # beside the file it is to be: what it names may be relative to that
    with tempfile.NamedTemporaryFile("w", dir=module.params["path"].rpartition("/")[0]) as draft:
        draft.write(text)
        draft.flush()
        status, out, err = run(module, [*words, draft.name])
    if status:
        module.fail_json(msg="it would not be taken: " + (err or out).strip(), rc=status)


def without(text, key):
    """The file without our lines, and without a list that is there for them alone."""
    lines = "%s\n(?:.*\n)*?%s\n" % tuple(" *" + re.escape(m % key) for m in (_BEGIN, _END))
    return re.sub("(?m)^" + lines, "", text)


def inline(text, key):
    """Whether the list's items are in the line of its name."""
    return bool(re.search(r"(?m)^%s:[ \t]*[^#\s]" % re.escape(key), text))


def having(text, key, items):
    """The file with our lines first in the list; ``text`` has none of them."""
    begin, end = _BEGIN % key, _END % key
    head = re.search(r"(?m)^%s:.*\n" % re.escape(key), text)
    if not head:
        own = [begin, key + ":", *("  " + item for item in items), end, ""]
        return text + ("\n" if text and not text.endswith("\n") else "") + "\n".join(own)
    first = re.match(r"(?:[ \t]*(?:#.*)?\n)*( *)-", text[head.end() :])
    indent = first.group(1) if first else "  "
    own = "".join(indent + line + "\n" for line in (begin, *items, end))
    return text[: head.end()] + own + text[head.end() :]


if __name__ == "__main__":
    main()
