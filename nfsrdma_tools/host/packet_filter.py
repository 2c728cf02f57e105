# SPDX-License-Identifier: Apache-2.0
"""Judge how the packet filter of a host treats new connections from its peers.

Rules are read as nft(8) and iptables-save(8) print them: tables, chains with hook and policy, and
rules as matches and a verdict.  Each rule is compared with a packet of which protocol and port are
known, and source, interface and mark are not.  So a rule matches all such packets, most, some, or
none, or it has an expression that this module cannot interpret.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT, ROCE_PORT

__all__ = ["Answer", "Fate", "Flow", "Ruleset", "fate", "parse", "rules_of_input"]

_PORT_NAMES = {"nfs": NFS_PORT, "nfsrdma": RDMA_PORT, "roce": ROCE_PORT}
"""Names of services(5): older nft prints them in place of numbers."""
_PROTOCOLS = {"6": "tcp", "17": "udp"}
_HOOKS = ("input", "prerouting", "ingress")
"""Those that a packet to this host passes."""
_FAMILIES = {"ip": ("ip",), "ip6": ("ip6",), "inet": ("ip", "ip6"), "netdev": ("ip", "ip6")}


class Answer(IntEnum):
    """How many of the packets a rule matches."""

    NO = 0
    UNKNOWN = 1
    SOME = 2
    """Those of certain sources, interfaces or rates."""
    MOST = 3
    """All but those of certain sources or interfaces."""
    YES = 4


class Flow(NamedTuple):
    """New packets from any peer to a port of this host."""

    protocol: str
    port: int
    family: str = "ip"

    def __str__(self) -> str:
        return f"{self.protocol} {self.port}"


class Fate(NamedTuple):
    """The verdict on a flow; ``rule`` is the chain's policy or the rule that decides."""

    kind: Literal["accepted", "partly", "unknown", "dropped"]
    rule: str = ""


class Verdict(NamedTuple):
    """``kind`` is accept, drop, jump, goto, return, or other (queue, nat); ``chain`` a target."""

    kind: str
    chain: str = ""


@dataclass
class Rule:
    """A rule as words: strings, and lists for sets in braces."""

    words: list[object]

    def __str__(self) -> str:
        return " ".join(map(_shown, self.words))


@dataclass
class Chain:
    """A chain; ``hook`` is empty if only rules jump to it."""

    name: str
    hook: str = ""
    policy: str = "accept"
    head: str = ""
    rules: list[Rule] = field(default_factory=list)


@dataclass
class Table:
    """A table of nftables, or one of iptables, which is of family ip."""

    family: str
    name: str
    chains: dict[str, Chain] = field(default_factory=dict)
    sets: dict[str, list[list[object]]] = field(default_factory=dict)
    """Elements of named sets and maps, by name."""
    typed: dict[str, str] = field(default_factory=dict)
    """The types of their keys, by name."""


Ruleset = list[Table]


# ---- read


_TOKEN = re.compile(r'"[^"\n]*"|[{},;\n]|[^\s{},;"]+')


def parse(text: str, family: str = "ip") -> Ruleset:
    """The tables in the output of ``nft list ruleset`` and ``iptables-save``, one after another.

    ``family`` is that of iptables: ``ip6`` for the output of ``ip6tables-save``.
    """
    nft: list[str] = []
    saved: list[str] = []
    for line in text.split("\n"):
        stripped = line.strip()
        is_saved = stripped.startswith((":", "-A ", "-P ", "-N ")) or (
            stripped[:1] == "*" or stripped == "COMMIT"
        )
        if not stripped.startswith("#"):
            (saved if is_saved else nft).append(stripped)
    tokens = _Tokens(_TOKEN.findall("\n".join(nft)))
    return [*tokens.tables(), *_of_iptables(saved, family)]


class _Tokens:
    """Reads nft's output; braces that do not close end with the text."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._at = tokens, 0

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else "}"

    @property
    def _over(self) -> bool:
        return self._at >= len(self._tokens)

    def tables(self) -> Iterator[Table]:
        """Each table."""
        while not self._over:
            start, words = self._at, self._statement()
            if self._at == start:
                # a brace without a name
                self._at += 1
            elif words[:1] == ["table"] and self._opens():
                names = [str(word) for word in words[1:]]
                # a table without a family is one of ip
                family = names[0] if len(names) > 1 else "ip"
                yield self._table(Table(family, names[-1] if names else ""))

    def _opens(self) -> bool:
        if not self._over and self._tokens[self._at] == "{":
            self._at += 1
            return True
        return False

    def _closes(self) -> bool:
        if self._over or self._tokens[self._at] == "}":
            self._at += 1
            return True
        return False

    def _statement(self, in_chain: bool = False) -> list[object]:
        """The words up to the end of a line; of a chain, with sets in braces as lists."""
        words: list[object] = []
        while not self._over:
            word = self._tokens[self._at]
            if word == "}" or (word == "{" and not in_chain):
                break
            self._at += 1
            if word in ("\n", ";"):
                if words:
                    break
            elif word == "{":
                words.append(self._set())
            else:
                words.append(word)
        return words

    def _set(self) -> list[list[object]]:
        elements: list[list[object]] = [[]]
        depth = 0
        while (word := self._next()) != "}" or depth:
            depth += {"{": 1, "}": -1}.get(word, 0)
            if word == "," and not depth:
                elements.append([])
            elif word != "\n":
                elements[-1].append(word)
            if self._over:
                break
        return [element for element in elements if element]

    def _table(self, table: Table) -> Table:
        while not self._closes():
            words = [str(word) for word in self._statement()]
            if self._opens() and words:
                if words[0] == "chain":
                    table.chains[words[-1]] = self._chain(Chain(words[-1]))
                else:
                    self._named_set(table, words[-1])
        if table.name == "firewalld":
            for chain in table.chains.values():
                chain.rules = [rule for rule in chain.rules if not _is_cut(rule, table)]
        return table

    def _chain(self, chain: Chain) -> Chain:
        while not self._closes():
            words = self._statement(in_chain=True)
            texts = [word for word in words if isinstance(word, str)]
            if texts[:1] == ["type"] and "hook" in texts[:-1]:
                chain.hook = texts[texts.index("hook") + 1]
                chain.head = " ".join(texts)
            elif texts[:1] == ["policy"] and len(texts) > 1:
                chain.policy = texts[1]
            elif words and texts[:1] not in (["comment"], ["flags"], ["devices"], ["device"]):
                chain.rules.append(Rule(_without_notes(words)))
        return chain

    def _named_set(self, table: Table, name: str) -> None:
        table.sets.setdefault(name, [])
        while not self._closes():
            words = self._statement(in_chain=True)
            if words[:1] == ["type"] or words[:1] == ["typeof"]:
                table.typed[name] = " ".join(map(str, words[1:])).partition(" : ")[0]
            elif words[:2] == ["elements", "="] and isinstance(words[-1], list):
                table.sets[name] = words[-1]


_FIREWALLD_KEEPS = ("mangle_", "nat_")
"""Beginnings of names of firewalld's chains that drop nothing: they set marks and addresses."""


def _is_cut(rule: Rule, table: Table) -> bool:
    """Whether a rule of firewalld jumps to such a chain, which is not in a shortened text."""
    target = str(rule.words[-1]) if rule.words[:1] == ["jump"] else ""
    return target.startswith(_FIREWALLD_KEEPS) and target not in table.chains


_ARGUMENTS_OF_LOG = ("prefix", "level", "flags", "group", "snaplen", "queue-threshold")


def _without_notes(words: Sequence[object]) -> list[object]:
    """A rule without counters, comments and logging, which decide nothing."""
    kept: list[object] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "comment":
            at += 1
        elif word == "counter":
            while at < len(words) and words[at] in ("packets", "bytes", "name"):
                at += 2
        elif word == "log":
            while at < len(words) and words[at] in _ARGUMENTS_OF_LOG:
                at += 2
                while at < len(words) and words[at] == ",":
                    at += 2
        else:
            kept.append(word)
    return kept


_TARGETS = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "reject", "RETURN": "return"}
_GOES_ON = frozenset(("LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "AUDIT", "TRACE", "CT", "SET",
                      "CHECKSUM", "TOS", "DSCP", "TTL", "CLASSIFY", "TCPMSS",
                      "NOTRACK"))  # fmt: skip
_PASSES = {"INPUT": "input", "PREROUTING": "prerouting"}


def _of_iptables(lines: Sequence[str], family: str) -> Iterator[Table]:
    tables: dict[str, Table] = {}
    table = tables.setdefault("filter", Table(family, "filter (iptables)"))
    for line in lines:
        if line.startswith("*"):
            table = tables.setdefault(line[1:], Table(family, f"{line[1:]} (iptables)"))
        elif line.startswith((":", "-P ")):
            name, _, policy = line.removeprefix("-P ").removeprefix(":").partition(" ")
            _saved_chain(table, name).policy = policy.partition(" ")[0].lower()
        elif line.startswith(("-A ", "-N ")):
            try:
                words = shlex.split(line)
            except ValueError:
                words = [*line.split(), "--unreadable"]
            chain = _saved_chain(table, words[1] if len(words) > 1 else "")
            if words[0] == "-A":
                chain.rules.append(Rule(_translated(words[2:], family)))
    return iter(tables.values())


def _saved_chain(table: Table, name: str) -> Chain:
    return table.chains.setdefault(name, Chain(name, hook=_PASSES.get(name, "")))


_SAME = {
    "-p": ("meta", "l4proto"), "--protocol": ("meta", "l4proto"),
    "-s": ("ip", "saddr"), "-d": ("ip", "daddr"), "-i": ("iifname",), "-o": ("oifname",),
    "--dport": ("th", "dport"), "--dports": ("th", "dport"), "--sport": ("th", "sport"),
    "--sports": ("th", "sport"), "--ctstate": ("ct", "state"), "--state": ("ct", "state"),
    "--dst-type": ("fib", "daddr", "type"), "--pkt-type": ("meta", "pkttype"),
    "--mac-source": ("ether", "saddr"), "--src-range": ("ip", "saddr"),
    "--dst-range": ("ip", "daddr"),
}  # fmt: skip
"""Matches of iptables by nft's words."""
_SKIPPED = {"-m": 1, "--match": 1, "--comment": 1, "--log-prefix": 1, "--log-level": 1,
            "--limit-burst": 1, "--reject-with": 1, "--set-xmark": 1, "--nflog-prefix": 1,
            "--nflog-group": 1, "--set-mark": 1, "--log-tcp-options": 0, "--log-ip-options": 0,
            "--log-uid": 0}  # fmt: skip
"""Options of iptables that do not affect the verdict, with the number of their arguments."""


def _translated(words: Sequence[str], family: str) -> list[object]:
    """A rule of iptables as one of nft."""
    made: list[object] = []
    waiting, negated = list(reversed(words)), False
    while waiting:
        word = waiting.pop()
        argument = waiting[-1] if waiting else ""
        operator = ["!="] if negated else []
        if word == "!":
            negated = True
            continue
        negated = False
        if word in _SAME:
            elements = [[_element(part, word)] for part in argument.split(",")]
            selector = (family if part == "ip" else part for part in _SAME[word])
            made += [*selector, *operator, elements]
            del waiting[-1:]
        elif word in _SKIPPED:
            del waiting[len(waiting) - min(_SKIPPED[word], len(waiting)) :]
        elif word == "--syn":
            # a packet of a new connection is a SYN
            made += ["ct", "state", *(["!="] if operator else []), "new"]
        elif word == "--limit":
            made += ["limit", "rate", argument]
            del waiting[-1:]
        elif word in ("-j", "-g"):
            del waiting[-1:]
            made += _target(argument, "goto" if word == "-g" else "jump")
        else:
            made.append(word)
    return made


def _element(part: str, option: str) -> str:
    if "port" in option:
        return part.replace(":", "-")
    if option in ("-i", "-o"):
        return '"' + re.sub(r"\+$", "*", part) + '"'
    return part.lower() if option in ("--ctstate", "--state", "--dst-type", "--pkt-type") else part


def _target(name: str, how: str) -> list[object]:
    if name in _GOES_ON:
        return []
    return [_TARGETS[name]] if name in _TARGETS else [how, name]


# ---- compare with a packet


def _both(first: Answer, second: Answer) -> Answer:
    """How many packets two matches have in common."""
    return min(first, second)


def _not(answer: Answer) -> Answer:
    return {
        Answer.NO: Answer.YES, Answer.YES: Answer.NO, Answer.SOME: Answer.MOST,
        Answer.MOST: Answer.SOME,
    }.get(answer, answer)  # fmt: skip


_Compare = Callable[[str, Flow], Answer]


def _yes(value: bool) -> Answer:
    return Answer.YES if value else Answer.NO


def _port(value: str, flow: Flow) -> Answer:
    low, _, high = value.partition("-")
    numbers = [_PORT_NAMES.get(part, -1) if not part.isdecimal() else int(part)
               for part in (low, high or low)]  # fmt: skip
    return _yes(numbers[0] <= flow.port <= numbers[1])


def _of_protocol(*protocols: str) -> _Compare:
    return lambda value, flow: _port(value, flow) if flow.protocol in protocols else Answer.NO


def _protocol(value: str, flow: Flow) -> Answer:
    return _yes(value == "all" or _PROTOCOLS.get(value, value) == flow.protocol)


def _nfproto(value: str, flow: Flow) -> Answer:
    return _yes({"ipv4": "ip", "ipv6": "ip6"}.get(value, value) == flow.family)


def _address(value: str, flow: Flow) -> Answer:
    del flow
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        return Answer.SOME
    if network.is_loopback:
        return Answer.NO
    return Answer.SOME if network.prefixlen else Answer.YES


def _device(value: str, flow: Flow) -> Answer:
    del flow
    name = value.strip('"')
    if name in ("*", ""):
        return Answer.YES
    # packets of peers do not come in there
    return Answer.NO if name in ("lo", "1") else Answer.SOME


def _one_of(*values: str) -> _Compare:
    return lambda value, flow: _yes(value in values)


def _never(value: str, flow: Flow) -> Answer:
    del value, flow
    return Answer.NO


def _some(value: str, flow: Flow) -> Answer:
    del value, flow
    return Answer.SOME


_SELECTORS: dict[tuple[str, ...], tuple[str, _Compare]] = {
    ("tcp", "dport"): ("tcp", _port), ("udp", "dport"): ("udp", _port),
    ("th", "dport"): ("", _of_protocol("tcp", "udp")),
    ("tcp", "sport"): ("tcp", _some), ("udp", "sport"): ("udp", _some),
    ("th", "sport"): ("", _some),
    ("meta", "l4proto"): ("", _protocol), ("ip", "protocol"): ("ip", _protocol),
    ("ip6", "nexthdr"): ("ip6", _protocol), ("meta", "nfproto"): ("", _nfproto),
    ("ip", "saddr"): ("ip", _address), ("ip", "daddr"): ("ip", _address),
    ("ip6", "saddr"): ("ip6", _address), ("ip6", "daddr"): ("ip6", _address),
    ("ether", "saddr"): ("", _some), ("ether", "daddr"): ("", _some),
    ("iifname",): ("", _device), ("iif",): ("", _device),
    ("meta", "iifname"): ("", _device), ("meta", "iif"): ("", _device),
    ("oifname",): ("", _never), ("oif",): ("", _never),
    ("ct", "state"): ("", _one_of("new")), ("ct", "status"): ("", _never),
    ("ct", "direction"): ("", _one_of("original")),
    ("meta", "pkttype"): ("", _one_of("unicast", "host")), ("pkttype",): ("", _one_of("unicast",
    "host")),
    ("fib", "daddr", "type"): ("", _one_of("local", "unicast")),
    ("icmp", "type"): ("icmp", _never), ("icmpv6", "type"): ("icmpv6", _never),
    ("sctp", "dport"): ("sctp", _never), ("dccp", "dport"): ("dccp", _never),
    ("igmp", "type"): ("igmp", _never),
}  # fmt: skip
"""What a match compares: the protocol or family that it needs, and how it compares a value."""
_OPERATORS = ("==", "!=", "<", ">", "<=", ">=", "eq", "ne")
_ENDS = frozenset(("accept", "drop", "reject", "return", "continue", "queue", "dnat", "snat",
                   "redirect", "masquerade", "tproxy", "synproxy", "fwd"))  # fmt: skip
# reverse path filters: a peer has a route back
_REVERSE = re.compile(r"fib saddr (?:\. \w+ )*oif(?:name)? (?P<operator>!= )?(?P<value>\S+)")


_OF_RATE = re.compile(r"rate|over|burst|packets|k?bytes|name|\d+(/\w+)?")


class _Reader:
    """Compares one rule with a flow."""

    def __init__(self, rule: Rule, table: Table, flow: Flow) -> None:
        self._words, self._table, self._flow = rule.words, table, flow
        self._at = 0
        self.answer = Answer.YES
        self.verdicts: list[tuple[Answer, Verdict]] = []

    def read(self) -> list[tuple[Answer, Verdict]]:
        """The verdicts of the rule, and how many packets get each."""
        text = str(Rule(self._words))
        if match := _REVERSE.match(text.partition("fib")[1] + text.partition("fib")[2]):
            is_missing = match["value"] in ("missing", "0") and not match["operator"]
            if is_missing:
                return []
            self._words = [*text.partition("fib saddr")[0].split(), "unreadable"]
        elif "." in self._words:
            # values of several selectors at once
            self.answer = Answer.UNKNOWN
            self._words = [w for w in self._words if str(w) in _ENDS] or [str(self._words[-1])]
        while self._at < len(self._words):
            self._statement()
        return [entry for entry in self.verdicts if entry[0]]

    def _take(self) -> object:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else ""

    def _peek(self) -> object:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _limit(self, answer: Answer) -> None:
        self.answer = _both(self.answer, answer)

    def _statement(self) -> None:
        for length in (3, 2, 1):
            key = tuple(map(str, self._words[self._at : self._at + length]))
            if key in _SELECTORS:
                self._at += length
                self._match(*_SELECTORS[key])
                return
        word = str(self._take())
        if word in ("jump", "goto"):
            self.verdicts.append((self.answer, Verdict(word, str(self._take()))))
        elif word in _ENDS:
            self._end(word)
        elif word == "limit":
            self._rate()
        elif word in ("meta", "ct", "mark") and "set" in self._words[self._at : self._at + 2]:
            # a mark for later rules
            self._at += list(self._words[self._at :]).index("set") + 2
        elif word in ("notrack", "nftrace"):
            pass
        else:
            self._limit(Answer.UNKNOWN)

    def _end(self, word: str) -> None:
        known = {"reject": "drop"}.get(word, word)
        if known != "continue":
            kind = known if known in ("accept", "drop", "return") else "other"
            self.verdicts.append((self.answer, Verdict(kind)))
        # its arguments: with tcp reset, to :2049
        self._at = len(self._words)

    def _rate(self) -> None:
        self._limit(Answer.SOME)
        while _OF_RATE.fullmatch(str(self._peek())):
            self._take()

    def _match(self, needs: str, compare: _Compare) -> None:
        fits = needs in ("", self._flow.protocol, self._flow.family)
        if self._peek() == "vmap":
            self._take()
            self._map(self._elements(self._take()), compare, fits)
            return
        operator = str(self._take()) if self._peek() in _OPERATORS else "=="
        value = self._take()
        if not fits:
            self._values(value)
            self._limit(Answer.NO)
            return
        answer = self._any(value, compare)
        if operator in ("!=", "ne"):
            answer = _not(answer)
        elif operator in ("<", ">", "<=", ">="):
            answer = self._ordered(operator, str(value), compare)
        self._limit(answer)

    def _ordered(self, operator: str, value: str, compare: _Compare) -> Answer:
        if compare is not _port or not value.isdecimal():
            return Answer.UNKNOWN
        port, bound = self._flow.port, int(value)
        is_equal = port == bound and "=" in operator
        return _yes(is_equal or (port < bound if operator[0] == "<" else port > bound))

    def _values(self, value: object) -> list[str] | None:
        """The values on the right; None of a set whose elements are not known or may change."""
        if isinstance(value, list):
            return [str(element[0]) for element in value]
        text = str(value)
        if text.startswith("@"):
            if "inet_service" not in self._table.typed.get(text[1:], ""):
                return None
            return [str(element[0]) for element in self._table.sets.get(text[1:], ())]
        values = [text]
        while self._peek() == ",":
            self._take()
            values.append(str(self._take()))
        return values

    def _any(self, value: object, compare: _Compare) -> Answer:
        values = self._values(value)
        if values is None:
            return Answer.SOME if compare in (_address, _device, _some) else Answer.UNKNOWN
        return max((compare(element, self._flow) for element in values), default=Answer.NO)

    def _elements(self, value: object) -> list[list[object]] | None:
        if isinstance(value, list):
            return value
        name = str(value).removeprefix("@")
        # only maps of ports are sure to have the same elements in a bundle
        typed = self._table.typed.get(name, "")
        return self._table.sets.get(name) if "inet_service" in typed else None

    def _map(self, elements: list[list[object]] | None, compare: _Compare, fits: bool) -> None:
        if not fits:
            return
        if elements is None:
            self.verdicts.append((_both(self.answer, Answer.UNKNOWN), Verdict("other")))
            return
        for element in elements:
            words = [str(word) for word in element]
            if ":" not in words:
                self._limit(Answer.UNKNOWN)
                continue
            colon = words.index(":")
            key, result = " ".join(words[:colon]), words[colon + 1 :]
            answer = Answer.YES if key == "*" else compare(key, self._flow)
            matched = _both(self.answer, answer)
            if matched and result:
                kind = "drop" if result[0] == "reject" else result[0]
                chain = result[1] if kind in ("jump", "goto") and len(result) > 1 else ""
                if kind != "continue":
                    self.verdicts.append((matched, Verdict(kind, chain)))
                if matched == Answer.YES:
                    return


# ---- follow a packet


class _Walk:
    """Follows a flow through the chains of one table."""

    def __init__(self, table: Table, flow: Flow) -> None:
        self._table, self._flow = table, flow
        self._done: dict[tuple[str, Answer], tuple[str, str]] = {}
        self.partly: dict[str, list[tuple[Answer, str]]] = {"accept": [], "drop": []}
        self.doubts: list[tuple[str, str]] = []

    def follow(self, name: str, weight: Answer) -> tuple[str, str]:
        """What becomes of packets that no rule of ``name`` treats apart, and the deciding rule.

        The fate is accept, drop or "" for those that get through the chain.
        """
        key = name, weight
        if key not in self._done:
            # of a loop, which the kernel refuses, the chain decides nothing
            self._done[key] = "", ""
            self._done[key] = self._through(name, weight)
        return self._done[key]

    def _through(self, name: str, weight: Answer) -> tuple[str, str]:
        chain = self._table.chains.get(name)
        if chain is None:
            self.doubts.append(("other", f"chain {name}"))
            return "", ""
        for rule in chain.rules:
            for answer, verdict in _Reader(rule, self._table, self._flow).read():
                here = _both(weight, answer)
                is_sure = answer == Answer.YES
                if verdict.kind in ("jump", "goto"):
                    fate, text = self.follow(verdict.chain, here)
                    if is_sure and (fate or verdict.kind == "goto"):
                        return fate, text
                elif is_sure and verdict.kind in ("accept", "drop"):
                    self._note(here, verdict.kind, str(rule))
                    return verdict.kind, str(rule)
                elif is_sure and verdict.kind == "return":
                    return "", ""
                else:
                    self._note(here, verdict.kind, str(rule))
        return "", ""

    def _note(self, here: Answer, kind: str, rule: str) -> None:
        if here == Answer.UNKNOWN or kind not in self.partly:
            self.doubts.append((kind, rule))
        elif here != Answer.YES:
            self.partly[kind].append((here, rule))


def _fate_at(table: Table, chain: Chain, flow: Flow) -> Fate:
    walk = _Walk(table, flow)
    end, rule = walk.follow(chain.name, Answer.YES)
    if not end:
        end, rule = chain.policy, f"policy {chain.policy} of chain {chain.name}"
    others = [text for kind, text in walk.doubts if kind != end]
    if end == "accept":
        if others:
            return Fate("unknown", others[0])
        dropped = walk.partly["drop"]
        most = [text for answer, text in dropped if answer == Answer.MOST]
        return (
            Fate("partly", most[0]) if most else Fate("accepted", dropped[0][1] if dropped else "")
        )
    # what rules accept before the end matters if another source may be the peer's
    accepted = walk.partly["accept"]
    if others:
        return Fate("unknown", others[0])
    return Fate("partly", accepted[0][1]) if accepted else Fate("dropped", rule)


_WORST = ("accepted", "partly", "unknown", "dropped")


def fate(rules: Ruleset, flow: Flow) -> Fate:
    """The fate of a flow: the worst that a chain has for it, as a packet passes all of them."""
    fates = [
        _fate_at(table, chain, flow)
        for table in rules
        if flow.family in _FAMILIES.get(table.family, ())
        for chain in table.chains.values()
        if chain.hook in _HOOKS
    ]
    return max(
        fates, key=lambda chain_fate: _WORST.index(chain_fate.kind), default=Fate("accepted")
    )


# ---- keep what decides


def rules_of_input(text: str, family: str = "ip") -> str:
    """The rules that packets to this host may meet, as nft prints them; ``family`` is of iptables.

    Comments, counters and the elements of sets of addresses are left out.  ``fate`` of the result
    is that of ``text``.
    """
    lines = []
    for table in parse(text, family):
        chains = _met(table)
        if not chains or table.family not in _FAMILIES:
            continue
        # a name of iptables' table has a blank
        lines.append(f"table {table.family} {table.name.replace(' ', '')} {{")
        used = {word for chain in chains for rule in chain.rules for word in map(str, rule.words)}
        for name, typed in table.typed.items():
            if f"@{name}" in used:
                lines.append(f"\tset {name} {{\n\t\ttype {typed}")
                if "inet_service" in typed:
                    elements = ", ".join(
                        " ".join(map(str, element)) for element in table.sets[name]
                    )
                    lines.append(f"\t\telements = {{ {elements} }}")
                lines.append("\t}")
        for chain in chains:
            lines.append(f"\tchain {chain.name} {{")
            if chain.hook:
                head = chain.head or f"type filter hook {chain.hook} priority filter"
                lines.append(f"\t\t{head}; policy {chain.policy};")
            lines += [f"\t\t{rule}" for rule in chain.rules]
            lines.append("\t}")
        lines.append("}")
    return "\n".join(lines) + "\n" if lines else ""


def _met(table: Table) -> list[Chain]:
    waiting = [chain.name for chain in table.chains.values() if chain.hook in _HOOKS]
    met: dict[str, Chain] = {}
    while waiting:
        name = waiting.pop()
        if name in met or name not in table.chains:
            continue
        met[name] = table.chains[name]
        for rule in met[name].rules:
            words = re.findall(r"[^\s{},;]+", str(rule))
            waiting += [b for a, b in zip(words, words[1:]) if a in ("jump", "goto")]
            # a named map may jump to any chain
            if "vmap" in words and "@" in str(rule):
                waiting += table.chains
    return [chain for chain in table.chains.values() if chain.name in met]


def _shown(word: object) -> str:
    if isinstance(word, list):
        parts = [" ".join(map(str, element)) for element in word]
        return parts[0] if parts and len(word) == len(word[0]) == 1 else f"{{ {', '.join(parts)} }}"
    return str(word)
