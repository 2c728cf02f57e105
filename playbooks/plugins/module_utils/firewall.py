# SPDX-License-Identifier: Apache-2.0
"""The packet filters of a target, and ports that are let in through them.

In nftables an accept ends one base chain and no other, so each chain that may drop gets rules of
ours, which their comment tells from the rest.  At boot and at a reload of nftables.service a unit
puts them there again.  firewalld keeps ports by itself; which of them are ours is on record.
"""

from __future__ import annotations

import json
import os
import re

from ansible_collections.nfsrdma.tools.plugins.module_utils import records
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import read, run, write

MARK = "nfsrdma-fleet"
RECORD = "firewalld"
RULES = "/etc/nfsrdma-firewall.nft"
UNIT = "/etc/systemd/system/nfsrdma-firewall.service"
LOADED = "/sys/module/nf_tables"
_UNIT_TEXT = """\
# Written by nfsrdma.tools.nfsrdma_firewall
[Unit]
Description=Ports of NFS over RDMA in nftables
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service
Before=nfs-server.service

[Service]
Type=oneshot
RemainAfterExit=yes
# a chain may have gone meanwhile
ExecStart=-nft -f %(rules)s
ExecReload=-nft -f %(rules)s

[Install]
WantedBy=multi-user.target
"""


class Nftables:
    """The input chains of nftables that may drop what they do not know."""

    name = "nftables"

    def __init__(self, module):
        self._module = module
        self.left_alone = []
        self._chains, self._rules = [], []
        # asking nft when it is not in use would load it
        if os.path.isdir(LOADED) and module.get_bin_path("nft"):
            self._look()

    def _look(self):
        said = run(self._module, ["nft", "-j", "list", "ruleset"], check_rc=True)[1]
        parts = json.loads(said)["nftables"]
        self._rules = [part["rule"] for part in parts if "rule" in part]
        chains = [part["chain"] for part in parts if "chain" in part]
        filtering = [chain for chain in chains if self._drops(chain)]
        self._chains = [chain for chain in filtering if not _of_iptables(chain)]
        self.left_alone = ["%(family)s %(table)s %(name)s is iptables'" % chain
                           for chain in filtering if _of_iptables(chain)]  # fmt: skip

    def _drops(self, chain):
        if chain.get("hook") != "input" or chain.get("type") != "filter":
            return False
        if chain["table"] == "firewalld" or chain["family"] not in ("inet", "ip", "ip6"):
            return False
        rules = json.dumps([r["expr"] for r in self._rules if _belongs(r, chain)])
        refuses = re.search(r'"(drop|reject|jump|goto|queue)"', rules)
        return chain.get("policy") == "drop" or bool(refuses)

    def _ours(self):
        return [rule for rule in self._rules if rule.get("comment", "").startswith(MARK)]

    def now(self):
        """What is let in by us, a line for each rule, and whether it is so after a boot."""
        lines = {_where(rule["family"], rule["table"], rule["chain"]) + rule["comment"]
                 for rule in self._ours()}  # fmt: skip
        return sorted(lines) + ["at boot: " + line for line in read(RULES).splitlines()]

    def then(self, ports):
        """The same as it is to be."""
        lines = sorted(where + _comment(*some) for where, some in self._wanted(ports))
        return lines + ["at boot: " + line for line in self._text(ports).splitlines()]

    def _wanted(self, ports):
        wheres = [_where(c["family"], c["table"], c["name"]) for c in self._chains]
        return [(where, some) for where in wheres for some in _by_protocol(ports)]

    def _text(self, ports):
        return "".join(
            'insert rule %s%s dport { %s } accept comment "%s"\n'
            % (where, protocol, numbers, _comment(protocol, numbers))
            for where, (protocol, numbers) in self._wanted(ports)
        )

    def put(self, ports):
        """Bring it about."""
        for rule in self._ours():
            where = _where(rule["family"], rule["table"], rule["chain"]).split()
            argv = ["nft", "delete", "rule", *where, "handle", str(rule["handle"])]
            run(self._module, argv, check_rc=True)
        text = self._text(ports)
        if text:
            write(self._module, RULES, text)
            write(self._module, UNIT, _UNIT_TEXT % {"rules": RULES})
            self._systemctl("daemon-reload")
            self._systemctl("enable", os.path.basename(UNIT))
            # only a unit that is active is told of a reload
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


class Firewalld:
    """The ports of firewalld's default zone, now and at boot."""

    name = "firewalld"

    def __init__(self, module):
        self._module = module
        program = module.get_bin_path("firewall-cmd")
        self._runs = bool(program) and run(module, ["firewall-cmd", "--state"])[0] == 0
        self._mine = records.one(RECORD) or []
        self.left_alone = []

    def _open(self, flags):
        said = run(self._module, ["firewall-cmd", *flags, "--list-ports"], check_rc=True)[1]
        return set(said.split())

    def _both(self):
        return self._open([]), self._open(["--permanent"])

    def now(self):
        """The ports of ours that are open."""
        if not self._runs:
            return []
        live, kept = self._both()
        return sorted([port for port in self._mine if port in live]
                      + ["at boot: " + port for port in self._mine if port in kept])  # fmt: skip

    def then(self, ports):
        """Those that are to be: not the ones somebody else has opened."""
        if not self._runs:
            return []
        live, kept = self._both()
        mine = [port for port in ports if port in self._mine or port not in live & kept]
        return sorted(mine + ["at boot: " + port for port in mine])

    def put(self, ports):
        """Bring it about; the record is written first."""
        live, kept = self._both()
        mine = [port for port in ports if port in self._mine or port not in live & kept]
        gone = [port for port in self._mine if port not in ports]
        records.keep(self._module, RECORD, sorted({*self._mine, *mine}))
        for flags in ([], ["--permanent"]):
            words = ["--add-port=" + port for port in mine]
            words += ["--remove-port=" + port for port in gone]
            run(self._module, ["firewall-cmd", *flags, *words], check_rc=True)
        self._mine = mine
        if mine:
            records.keep(self._module, RECORD, mine)
        else:
            records.forget(RECORD)


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
