#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Open ports in the input chains of nftables."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_nftables
short_description: Open ports in nftables
description:
  - Inserts a rule in front of the others in each input chain that may drop packets. The rule's comment begins with C(nfsrdma-fleet).
  - A systemd unit inserts the rules again at boot and when nftables is reloaded.
  - Chains of firewalld are skipped, use M(ansible.posix.firewalld) for them. Chains of iptables are returned in RV(left_alone).
  - Changes nothing if no chain may drop packets. Does not install or start a packet filter.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  ports:
    description: Ports to open, each as NUMBER/tcp or NUMBER/udp.
    type: list
    elements: str
    default: [2049/tcp, 4791/udp, 20049/tcp]
  state:
    description: V(absent) removes the rules and the unit of this module.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Compares the wanted rules with the rules in effect and with those for the next boot.
  diff_mode:
    description: The rules of this module, before and after.
"""

EXAMPLES = r"""
- name: Open the ports of NFS over soft-RoCE
  nfsrdma.tools.nfsrdma_nftables:
    ports: [2049/tcp, 4791/udp]
"""

RETURN = r"""
pending:
  description: Whether the module changed something, or would change it in check mode.
  returned: always
  type: bool
left_alone:
  description: Chains that may drop packets and belong to iptables.
  returned: always
  type: list
  elements: str
"""

import json
import os
import re

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import read, run, write

PORTS = ["2049/tcp", "4791/udp", "20049/tcp"]
MARK = "nfsrdma-fleet"
RULES = "/etc/nfsrdma-firewall.nft"
UNIT = "/etc/systemd/system/nfsrdma-firewall.service"
LOADED = "/sys/module/nf_tables"
_UNIT_TEXT = """\
# Written by nfsrdma.tools.nfsrdma_nftables
[Unit]
Description=Ports of NFS over RDMA in nftables
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service
Before=nfs-server.service

[Service]
Type=oneshot
RemainAfterExit=yes
# ignore a failure: the chain of a rule may have been removed
ExecStart=-nft -f %(rules)s
ExecReload=-nft -f %(rules)s

[Install]
WantedBy=multi-user.target
"""


def main():
    """Bring the rules into their state."""
    states = {"type": "str", "choices": ["present", "absent"], "default": "present"}
    ports = {"type": "list", "elements": "str", "default": PORTS}
    module = AnsibleModule(argument_spec={"ports": ports, "state": states},
                           supports_check_mode=True)  # fmt: skip
    invalid = [port for port in module.params["ports"] if not valid(port)]
    if invalid:
        module.fail_json(msg="ports: %r is not a port: give NUMBER/tcp or NUMBER/udp" % invalid[0])
    wanted = module.params["ports"] if module.params["state"] == "present" else []
    chains = Chains(module)
    before, after = chains.now(), chains.then(wanted)
    changed = before != after
    if changed and not module.check_mode:
        chains.put(wanted)
        chains = Chains(module)
        if chains.now() != after:
            module.fail_json(msg="nftables: requested %r, got %r" % (after, chains.now()))
    module.exit_json(changed=changed, pending=changed, left_alone=chains.left_alone,
                     diff={"before": _text(before), "after": _text(after)})  # fmt: skip


def valid(port):
    """Whether it is a number from 1 to 65535 and a protocol."""
    parts = re.match(r"([1-9][0-9]{0,4})/(tcp|udp)\Z", port)
    return parts is not None and int(parts.group(1)) < 65536


def _text(lines):
    return "".join(line + "\n" for line in lines)


class Chains:
    """The input chains of nftables that may drop packets.

    An accept ends the evaluation of one base chain and of no other, so each chain needs the rules.
    """

    def __init__(self, module):
        self._module = module
        self.left_alone = []
        self._chains, self._rules = [], []
        # running nft loads nf_tables, so don't where nothing uses it
        if os.path.isdir(LOADED) and module.get_bin_path("nft"):
            self._look()

    def _look(self):
        out = run(self._module, ["nft", "-j", "list", "ruleset"], check_rc=True)[1]
        parts = json.loads(out)["nftables"]
        self._rules = [part["rule"] for part in parts if "rule" in part]
        chains = [part["chain"] for part in parts if "chain" in part]
        filtering = [chain for chain in chains if self._drops(chain)]
        self._chains = [chain for chain in filtering if not _of_iptables(chain)]
        self.left_alone = ["%(family)s %(table)s %(name)s belongs to iptables" % chain
                           for chain in filtering if _of_iptables(chain)]  # fmt: skip

    def _drops(self, chain):
        if chain.get("hook") != "input" or chain.get("type") != "filter":
            return False
        if chain["table"] == "firewalld" or chain["family"] not in ("inet", "ip", "ip6"):
            return False
        rules = json.dumps([r["expr"] for r in self._rules if _belongs(r, chain)])
        refuses = re.search(r'"(drop|reject|jump|goto|queue)"', rules)
        return chain.get("policy") == "drop" or bool(refuses)

    def _own(self):
        return [rule for rule in self._rules if rule.get("comment", "").startswith(MARK)]

    def now(self):
        """The rules of this module in effect and those for the next boot, a line each."""
        lines = {_where(rule["family"], rule["table"], rule["chain"]) + rule["comment"]
                 for rule in self._own()}  # fmt: skip
        return sorted(lines) + ["at boot: " + line for line in read(RULES).splitlines()]

    def then(self, ports):
        """The same lines with ``ports`` open."""
        lines = sorted(where + _comment(*some) for where, some in self._wanted(ports))
        return lines + ["at boot: " + line for line in self._commands(ports).splitlines()]

    def _wanted(self, ports):
        wheres = [_where(c["family"], c["table"], c["name"]) for c in self._chains]
        return [(where, some) for where in wheres for some in _by_protocol(ports)]

    def _commands(self, ports):
        return "".join(
            'insert rule %s%s dport { %s } accept comment "%s"\n'
            % (where, protocol, numbers, _comment(protocol, numbers))
            for where, (protocol, numbers) in self._wanted(ports)
        )

    def put(self, ports):
        """Have ``ports`` open and no others."""
        for rule in self._own():
            where = _where(rule["family"], rule["table"], rule["chain"]).split()
            argv = ["nft", "delete", "rule", *where, "handle", str(rule["handle"])]
            run(self._module, argv, check_rc=True)
        commands = self._commands(ports)
        if commands:
            write(self._module, RULES, commands)
            write(self._module, UNIT, _UNIT_TEXT % {"rules": RULES})
            self._systemctl("daemon-reload")
            self._systemctl("enable", os.path.basename(UNIT))
            # systemd propagates a reload to active units only
            self._systemctl("restart", os.path.basename(UNIT))
            return
        if os.path.exists(UNIT):
            self._systemctl("disable", "--now", os.path.basename(UNIT))
            os.unlink(UNIT)
            self._systemctl("daemon-reload")
        if os.path.exists(RULES):
            os.unlink(RULES)

    def _systemctl(self, *words):
        run(self._module, ["systemctl", *words], check_rc=True)


def _belongs(rule, chain):
    return all(rule[here] == chain[there] for here, there in
               (("family", "family"), ("table", "table"), ("chain", "name")))  # fmt: skip


def _of_iptables(chain):
    return chain["family"] != "inet" and (chain["table"], chain["name"]) == ("filter", "INPUT")


def _where(*names):
    return " ".join(names) + " "


def _by_protocol(ports):
    split = [port.split("/") for port in ports]
    return [
        (protocol, ", ".join(sorted({n for n, other in split if other == protocol}, key=int)))
        for protocol in sorted({protocol for _, protocol in split})
    ]


def _comment(protocol, numbers):
    return "%s %s %s" % (MARK, protocol, numbers)


if __name__ == "__main__":
    main()
