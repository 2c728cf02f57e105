#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ports let in through the packet filter that is there."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_firewall
short_description: Lets ports in where a packet filter runs
description:
  - Where firewalld runs, opens the ports in its default zone, now and at boot.
  - In nftables, each input chain that may drop packets gets a rule before its others, with a comment that says whose it is, and a
    unit puts it there again at boot and when nftables is reloaded. Chains of iptables are left alone and named.
  - Where nothing is filtered, nothing is done. No packet filter is installed or started.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  ports:
    description: What is let in, each like C(2049/tcp).
    type: list
    elements: str
    default: [2049/tcp, 4791/udp, 20049/tcp]
  state:
    description: V(absent) takes back exactly what this module did.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Compares with the rules in effect and with those for the next boot.
  diff_mode:
    description: The rules that are ours, before and after.
"""

EXAMPLES = r"""
- name: Let NFS over soft RoCE in
  nfsrdma.tools.nfsrdma_firewall:
    ports: [2049/tcp, 4791/udp]
"""

RETURN = r"""
pending:
  description: Whether something was, or in check mode would be, done.
  returned: always
  type: bool
left_alone:
  description: Chains that may drop packets and are not for this module to change.
  returned: always
  type: list
  elements: str
"""

import re

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import firewall

PORTS = ["2049/tcp", "4791/udp", "20049/tcp"]


def main():
    """Bring the filters into their state."""
    states = {"type": "str", "choices": ["present", "absent"], "default": "present"}
    ports = {"type": "list", "elements": "str", "default": PORTS}
    module = AnsibleModule(argument_spec={"ports": ports, "state": states},
                           supports_check_mode=True)  # fmt: skip
    odd = [port for port in module.params["ports"] if not valid(port)]
    if odd:
        module.fail_json(msg="%r is not a port: give NUMBER/tcp or NUMBER/udp" % odd[0])
    asked = module.params["ports"] if module.params["state"] == "present" else []
    found = look(module)
    before, after = shown(each.now() for each in found), shown(each.then(asked) for each in found)
    changed = before != after
    if changed and not module.check_mode:
        found = carry_out(module, found, asked, after)
    left = [chain for each in found for chain in each.left_alone]
    module.exit_json(changed=changed, pending=changed, left_alone=left,
                     diff={"before": before, "after": after})  # fmt: skip


def look(module):
    """The filters there are."""
    return [firewall.Firewalld(module), firewall.Nftables(module)]


def valid(port):
    """Whether it is a number of 1 to 65535 and a protocol."""
    parts = re.match(r"([1-9][0-9]{0,4})/(tcp|udp)\Z", port)
    return bool(parts) and int(parts.group(1)) < 65536


def shown(each):
    """Lines for a diff."""
    return "".join(line + "\n" for lines in each for line in lines)


def carry_out(module, found, asked, wanted):
    """Change what differs, and compare with what is then in effect."""
    for each in found:
        if each.now() != each.then(asked):
            each.put(asked)
    found = look(module)
    now = shown(each.now() for each in found)
    if now != wanted:
        module.fail_json(msg="asked for %r, found %r" % (wanted, now))
    return found


if __name__ == "__main__":
    main()
