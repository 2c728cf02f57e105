# SPDX-License-Identifier: Apache-2.0
"""Logs that several processors write at once, made of records whose meaning is known.

Each log is made of records, and what ``explain`` has to find is written beside each of them. It
shares nothing with the readers of logs.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.meanings import Meaning, meaning_of
from nfsrdma_tools.host.kernel_log.records import records

NOISE = (
    "usb 1-2: new high-speed USB device number 9 using xhci_hcd",
    "audit: type=1400 audit(1.2:3): apparmor=0",
    "eth0: renamed from veth1a2b",
    "systemd[1]: Started Session 12 of user root.",
)


def written(pieces: Sequence[Sequence[str]], chance: random.Random, noise: float) -> list[str]:
    """The lines of all pieces, each in its order, at random places between each other."""
    left = [list(piece) for piece in pieces]
    lines: list[str] = []
    while any(left):
        lines.append(chance.choice([piece for piece in left if piece]).pop(0))
        if chance.random() < noise:
            lines.append(chance.choice(NOISE))
    return timed(lines)


def timed(lines: Sequence[str], begin: float = 100.0) -> list[str]:
    return [
        f"[{begin + number / 1e4:12.6f}]{'' if text.startswith('[ ') else ' '}{text}"
        for number, text in enumerate(lines)
    ]


def called(lines: Sequence[str], caller: str) -> list[str]:
    return [f"[{caller:>7}] {line}" for line in lines]


def callers(chance: random.Random, count: int) -> list[str]:
    every = [f"{kind}{number}" for kind in "TC" for number in (0, 3, 17, 155)]
    return chance.sample(every, count)


# ---- dumps of completions

SYNDROMES = {
    0x04: "local protection error", 0x13: "remote access error", 0x15: "retries exceeded",
    0x16: "receiver not ready",
}  # fmt: skip
WORK = {0x08: "RDMA Write", 0x0A: "Send", 0x10: "RDMA Read"}


@dataclass
class Dump:
    lines: list[str]
    name: str
    subject: str
    pair: int

    @property
    def truth(self) -> tuple[str, str, str]:
        return self.name, self.subject, f"queue pair {self.pair:#x}"


def a_dump(chance: random.Random, pair: int) -> Dump:
    device = f"mlx5_{chance.randrange(2)}"
    syndrome, opcode = chance.choice(list(SYNDROMES)), chance.choice(list(WORK))
    filler = chance.randbytes(54) if chance.random() < 0.5 else bytes(54)
    data = filler + struct.pack(">BBIHBB", 0x88, syndrome, opcode << 24 | pair, 17, 0xAA, 0xD2)
    kind = chance.choice(["plain", "two heads", "named rows", "el7", "net", "hns"])
    name = f"{WORK[opcode]} failed: {SYNDROMES[syndrome]}"
    words = [struct.unpack(">4I", data[at : at + 16]) for at in range(0, 64, 16)]
    in_words = [" ".join(f"{word:08x}" for word in row) for row in words]
    rows = [f"{at:08x}: {data[at : at + 16].hex(' ')}" for at in range(0, 64, 16)]
    if kind == "hns":
        device = f"hns_{chance.randrange(2)}"
        head = f"hns3 0000:bd:00.0 {device}: error cqe status {syndrome:#x}:"
        rows = [f"00051583 00000000 00000000 {pair:08x}"]
        rows += ["00000000 00000000 00000000 00000000"] * chance.choice((1, 3))
        return Dump([head, *rows], f"request failed: {SYNDROMES[syndrome]}", device, pair)
    if kind == "el7":
        return Dump(
            [f"{device}:dump_cqe:286:(pid 0): dump error cqe", *in_words], name, device, pair
        )
    if kind == "net":
        device = f"ens{chance.randrange(2)}np0"
        head = f"mlx5_core 0000:3b:00.0 {device}: Error cqe on cqn 0x4{pair:x}, ci 0x1, qn 0x2, opcode 0xd"
        return Dump([head, *rows], name, device, pair)
    first = f"infiniband {device}: "
    heads = [f"{first}dump_cqe:272:(pid 0): dump error cqe"]
    if kind == "two heads":
        heads.insert(0, f"{first}mlx5_handle_error_cqe:333:(pid 0): WC error: 10, Message: x y")
    if kind == "named rows":
        heads = [f"{first}dump_cqe:272:(pid 0): WC error: 10, Message: x y"]
        rows = [f"{first}cqe_dump: {row}" for row in rows]
    return Dump([*heads, *rows], name, device, pair)


def decoded(lines: list[str]) -> list[tuple[str, str, str]]:
    """The name, the device and the queue pair of each dump that was decoded."""
    found = [one for record, _ in records(lines) if (one := meaning_of(record))]
    return [
        (one.name, one.subject, one.meaning.partition(" on ")[2].partition(" ended")[0])
        for one in found
        if " failed: " in one.name and one.lines
    ]


@pytest.mark.parametrize("seed", range(100))
def test_dumps_of_several_callers_are_all_decoded(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    dumps = [a_dump(chance, 0x100 + number) for number in range(chance.randrange(1, 8))]
    who = callers(chance, len(dumps))
    lines = written(
        [called(one.lines, caller) for one, caller in zip(dumps, who, strict=True)], chance, 0.2
    )
    assert Counter(decoded(lines)) == Counter(one.truth for one in dumps)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("with_callers", [False, True])
def test_a_dump_that_is_decoded_was_written(seed: int, with_callers: bool) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    dumps = [a_dump(chance, 0x100 + number) for number in range(chance.randrange(2, 6))]
    cut = set()
    for number, one in enumerate(dumps):
        if chance.random() < 0.4:
            cut.add(number)
            # without a head and without offsets, nothing tells rows of two dumps apart
            del one.lines[chance.randrange(2, len(one.lines))]
    pieces = [one.lines for one in dumps]
    if with_callers:
        who = callers(chance, len(dumps))
        pieces = [called(one, caller) for one, caller in zip(pieces, who, strict=True)]
    lines = written(pieces, chance, 0.1)
    found = decoded(lines)
    assert not Counter(found) - Counter(one.truth for one in dumps)
    assert not any("syndrome 0x00" in one.meaning for one in explain(lines))


def dump_of(pair: int, form: str = "plain", syndrome: int = 0x13) -> list[str]:
    data = bytes(54) + struct.pack(">BBIHBB", 0x88, syndrome, 8 << 24 | pair, 17, 0xAA, 0xD2)
    if form == "el7":
        rows = [data[at : at + 16].hex(" ", 4) for at in range(0, 64, 16)]
        return ["mlx5_0:dump_cqe:286:(pid 0): dump error cqe", *rows]
    rows = [f"{at:08x}: {data[at : at + 16].hex(' ')}" for at in range(0, 64, 16)]
    return ["infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe", *rows]


def meanings(lines: Sequence[str]) -> list[Meaning]:
    return [one for record, _ in records(timed(lines)) if (one := meaning_of(record))]


@pytest.mark.parametrize("form", ["plain", "el7"])
def test_mixed_dumps_without_callers_are_not_decoded(form: str) -> None:
    one, other = dump_of(0x111, form), dump_of(0x222, form, 0x15)
    for at in range(1, 5):
        found = meanings([*one[:at], *other[:at], *one[at:], *other[at:]])
        assert [each.name for each in found] == ["error completion, not decoded"] * 2
        for each in found:
            assert "the log does not tell its bytes from those of another dump" in each.meaning
            assert "syndrome" not in each.meaning


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_dump_without_one_of_its_rows_is_incomplete(missing: int) -> None:
    lines = dump_of(0x111)
    del lines[missing]
    (found,) = meanings(called(lines, "T3"))
    assert found.name in ("error completion, not decoded", "mlx5 work failed")
    assert ("its bytes are not all here" in found.meaning) == (missing > 1)
    assert "syndrome" not in found.meaning


def test_dumps_one_after_another_are_decoded_without_callers() -> None:
    for form in ("plain", "el7"):
        lines = [line for pair in (0x111, 0x222, 0x333) for line in dump_of(pair, form)]
        names = [one.name for one in meanings(lines)]
        assert names == ["RDMA Write failed: remote access error"] * 3
    # the first of them is cut, and long over
    rest = timed(dump_of(0x222), 107.0)
    (*_, last) = [meaning_of(one) for one, _ in records([*timed(dump_of(0x111)[:3]), *rest])]
    assert last
    assert "queue pair 0x222" in last.meaning


def test_bytes_that_are_no_error_completion_have_no_syndrome() -> None:
    lines = dump_of(0x111)
    lines[4] = lines[4][:-2] + "00"
    (found,) = meanings(lines)
    assert found.meaning.endswith("its bytes are no error completion.")


def test_the_number_of_open_dumps_is_bounded() -> None:
    heads = [line for n in range(40) for line in called(dump_of(0x100 + n)[:2], f"T{n}")]
    rows = [line for n in range(39, -1, -1) for line in called(dump_of(n + 0x100)[2:], f"T{n}")]
    found = meanings([*heads, *rows])
    assert sum(one.name.startswith("RDMA Write failed") for one in found) == 8
