# SPDX-License-Identifier: Apache-2.0
"""The fast reading of a log finds what a plain one finds, within a bounded memory."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nfsrdma_tools.host.kernel_log import meanings, reports
from nfsrdma_tools.host.kernel_log import records as kernel_records
from nfsrdma_tools.host.kernel_log.completion_dumps import DumpReader
from nfsrdma_tools.host.kernel_log.digits import knows_digits, loosened
from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.lines import (
    LINE_BYTES,
    Form,
    LogLine,
    Numbered,
    form_of,
    lines_of,
    parsed,
)
from nfsrdma_tools.host.kernel_log.meanings import (
    Meaning,
    key_of,
    key_of_line,
    key_of_report,
    meaning_of,
    recognized,
)
from nfsrdma_tools.host.kernel_log.messages import MESSAGES
from nfsrdma_tools.host.kernel_log.records import Record
from nfsrdma_tools.host.kernel_log.reports import KernelReport, ReportReader
from testbed.kernel_logs import KINDS, block

ROOT = Path(__file__).parents[4]
LOGS = [
    file.read_text(errors="replace").splitlines()
    for file in sorted((ROOT / "tests" / "unit" / "kernel_records").glob("*.log"))
]
POOL = [line for log in LOGS for line in log]


def made(kind: str, count: int) -> list[str]:
    """The first lines of a log of the benchmark."""
    return b"".join(block(kind, count * 80)).decode(errors="replace").splitlines()[:count]


LETTERS = "abcdefghijklmnopqrstuvwxyz"
MADE = {kind: made(kind, 300) for kind in KINDS}


def plainly(lines: list[str]) -> Iterator[Numbered[Record]]:
    """The records of a log: each line is parsed and tried."""
    by_line, dumps = ReportReader(), DumpReader()
    for number, line in enumerate(lines):
        for record in by_line.feed(number, parsed(line[:LINE_BYTES])):
            yield from dumps.feed(record)
    for record in by_line.end():
        yield from dumps.feed(record)
    yield from dumps.end()


Row = tuple[str, str, str, int, str, str, str, tuple[str, ...], set[int]]


def rows_of(lines: list[str]) -> list[Row]:
    """What a plain reading explains, by name, subject and, of a failure, kind and place."""
    by_key: dict[tuple[str, str, str, str], list[tuple[str, Meaning]]] = {}
    last_of: dict[tuple[str, str, str, str], int] = {}
    for number, (record, _) in enumerate(plainly(lines)):
        if meaning := meaning_of(record):
            kind: str = record.kind if isinstance(record, KernelReport) else ""
            # the kernel repeats a report of a state, wherever the thread is
            is_failure = kind not in ("", "lockup", "stall", "hung task")
            at = (kind, meaning.code) if is_failure else ("", "")
            key = (meaning.name, meaning.subject, *at)
            if key not in by_key and len(by_key) >= 500:
                # further ones are counted together
                key = (meaning.name, "(others)", "", "")
            by_key.setdefault(key, []).append((record.time, meaning))
            last_of[key] = number
    for key, of_one in list(by_key.items()):
        # a reset tells that it succeeded
        end = (of_one[-1][1].ended_by, key[1], "", "")
        if of_one[-1][1].recovers and last_of.get(end, -1) > last_of[key]:
            by_key.pop(end, None)
    rows: list[Row] = []
    for (name, subject, *_), all_of_them in by_key.items():
        times = [time for time, _ in all_of_them if time]
        # a line that continues a record is counted with it; a quiet one only ends another message
        each = [pair for at, pair in enumerate(all_of_them) if not (at and pair[1].continues)]
        last = each[-1][1]
        if last.quiet:
            continue
        numbers = {meaning.number.number for _, meaning in each if meaning.number}
        first, newest = (times[0], times[-1]) if times else ("", "")
        counted = (len(each), first, newest)
        rows.append((name, subject, last.code, *counted, last.example, last.lines, numbers))
    return sorted(rows, key=lambda row: row[:-1])


def explained(lines: list[str]) -> list[Row]:
    rows: list[Row] = [
        (row.name, row.subject, row.code, row.count, row.first, row.last, row.example, row.lines,
         {each.number for each in row.numbers})
        for row in explain(lines)
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row[:-1])


def same(fast: list[Row], plain: list[Row]) -> None:
    """Eight numbers of a message are kept: which, and in which order they came, is not compared."""
    assert [row[:-1] for row in fast] == [row[:-1] for row in plain]
    for fast_row, plain_row in zip(fast, plain, strict=True):
        assert fast_row[-1] <= plain_row[-1]
        assert len(fast_row[-1]) == min(len(plain_row[-1]), 8)


@pytest.mark.parametrize("number", range(len(LOGS)))
def test_a_recorded_log_is_read_as_plainly(number: int) -> None:
    quiet = MADE["quiet"][:200] * 7
    same(explained([*quiet, *LOGS[number]]), rows_of([*quiet, *LOGS[number]]))


def other_digits(chance: random.Random, line: str) -> str:
    """A line with other digits in the places of its own."""
    return re.sub("[0-9]", lambda _: chance.choice("0123456789"), line)


def other_letters(chance: random.Random, line: str) -> str:
    """A line with some other letters, as the names of other servers and volumes have."""
    return re.sub(
        "[a-z]", lambda old: chance.choice(LETTERS) if chance.random() < 0.02 else old[0], line
    )


def changed(chance: random.Random, kind: float, piece: list[str]) -> list[str]:
    """A part of a log with other lines between its own, or with damaged or other lines."""
    if kind < 0.5:
        return [line for own in piece for line in (own, chance.choice(POOL))]
    if kind < 0.6:
        return [line[chance.randrange(len(line) + 1) :] for line in piece]
    if kind < 0.7:
        caller = f"[  T{chance.randrange(3)}] "
        return [line.replace("] ", f"]{caller}", 1) for line in piece]
    if kind < 0.75:
        return [other_digits(chance, line) for line in piece for _ in range(2)]
    others = [other_letters(chance, line) for line in piece for _ in range(3)]
    chance.shuffle(others)
    return others


def mixture(seed: int) -> list[str]:
    """Logs of many kinds: whole, cut, interleaved, repeated, damaged, of several batches."""
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    lines: list[str] = []
    while len(lines) < 2500:
        piece = chance.choice([*LOGS, *MADE.values()])[:: chance.choice((1, 1, 1, 2))]
        kind = chance.random()
        if kind < 0.3:
            piece = piece[: chance.randrange(1, len(piece) + 1)] if piece else []
        elif kind < 0.8:
            piece = changed(chance, kind, piece)
        elif kind < 0.85:
            piece = MADE["quiet"] * chance.randrange(1, 5)
        lines += piece[:400] * chance.choice((1, 1, 3))
    return lines


@pytest.mark.parametrize("seed", range(24))
def test_a_mixture_of_logs_is_read_as_plainly(seed: int) -> None:
    lines = mixture(seed)
    same(explained(lines), rows_of(lines))


def test_a_plain_time_is_taken_for_the_same_time_by_both_ways() -> None:
    chance = random.Random(8166)  # noqa: S311 -- repeatable
    lines = [*POOL, *(line for log in MADE.values() for line in log)]
    for _ in range(3000):
        line = chance.choice(lines)
        at = chance.randrange(len(line) + 1)
        lines.append(
            line[:at] + chance.choice(["]: ", "kernel: ", "[T1] ", "\0", " ", "[1.2]"]) + line[at:]
        )
    for line in lines:
        # a colour is no part of a line, and takes the way of all forms
        assert parsed(line) == parsed(f"\x1b[0m{line}"), line


def test_lines_that_differ_in_digits_have_one_form() -> None:
    chance = random.Random(8166)  # noqa: S311 -- repeatable
    lines = {*POOL, *mixture(5), *(line for log in MADE.values() for line in log)}
    entry = json.dumps({"MESSAGE": "nfs: server 1 OK"})
    assert form_of(entry, parsed(entry)) is None
    for line in sorted(lines):
        form = form_of(line, parsed(line))
        for _ in range(3):
            changed = other_digits(chance, line)
            if form:
                assert form.line(changed) == parsed(changed), line


def test_messages_that_differ_in_digits_have_one_form() -> None:
    chance = random.Random(8166)  # noqa: S311 -- repeatable
    lines = POOL + MADE["distinct messages"]
    for read in map(parsed, lines):
        key_of_line(read.tag, read.text)
        for _ in range(3):
            text = other_digits(chance, read.text)
            meaning = meaning_of(LogLine("", read.tag, text))
            key = key_of_line(read.tag, text)
            expected = key_of(meaning) if meaning else None
            assert (key and key[:2]) == (expected and expected[:2]), text


def test_a_message_of_some_digits_leaves_the_others_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patterns = {"five": "a text of this test: 5", "any": r"a text of this test: \d"}
    both = tuple(
        MESSAGES[0]._replace(name=name, pattern=pattern) for name, pattern in patterns.items()
    )
    monkeypatch.setattr(meanings, "_candidates", lambda *_: both)
    keys = [key_of_line("", f"a text of this test: {number}") for number in (7, 5, 5, 7)]
    assert [key.name for key in keys if key] == ["any", "five", "five", "any"]


def test_a_loosened_pattern_fits_all_digits() -> None:
    chance = random.Random(8166)  # noqa: S311 -- repeatable
    assert not re.fullmatch(loosened("NFSv4 [45]x"), "NFSv4 6y")
    assert re.fullmatch(loosened("NFSv4 [45]{1,2}x"), "NFSv7 06x")
    assert re.fullmatch(loosened("(?!4)."), "4")
    known = [message.pattern for message in MESSAGES if knows_digits(message.pattern)]
    assert len(known) > 50
    for text in {parsed(line).text for line in [*POOL, *MADE["distinct messages"]]}:
        for pattern in known:
            if re.fullmatch(pattern, text):
                assert re.fullmatch(loosened(pattern), other_digits(chance, text)), pattern


def forms_of(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines whose forms the fast reading finds."""
    seen = []

    def counted(line: str, read: LogLine) -> Form | None:
        seen.append(line)
        return form_of(line, read)

    with monkeypatch.context() as patched:
        patched.setattr(kernel_records, "form_of", counted)
        explain(lines)
    return seen


def test_a_form_that_comes_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    names = made("distinct names", 3000)
    meanings._with_parts.cache_clear()
    assert not forms_of(names, monkeypatch)
    # all other lines of these names have the same messages to try
    assert meanings._with_parts.cache_info().misses < 20
    twice = forms_of([*names, *names, *names], monkeypatch)
    assert len(twice) == len(set(twice)) > 2000


@pytest.mark.parametrize("seed", range(6, 10))
def test_reports_with_the_same_facts_have_one_name(seed: int) -> None:
    for record, _ in plainly([*POOL, *mixture(seed)]):
        if isinstance(record, KernelReport):
            meaning = meaning_of(record)
            assert meaning
            assert key_of_report(record)[:2] == key_of(meaning)[:2]


def test_a_message_without_a_subject_is_no_other() -> None:
    # the second form of "locks lost" names no server
    lines = ["NFS: nfs4_reclaim_open_state: Lock reclaim failed!"]
    lines += [f"NFS: store{number}: lost 1 locks" for number in (1, 2, 2)]
    counts = {row[1]: row[3] for row in explained(lines)}
    assert counts == {"": 1, "store1": 1, "store2": 2}


def test_each_head_is_found_without_all_patterns() -> None:
    for text in {parsed(line).text for line in [*POOL, *mixture(1), *mixture(2)]}:
        plain = next((kind for kind, pattern in reports._HEAD if pattern.fullmatch(text)), None)
        assert reports._kind(text) == plain, text
        groups = [
            match.groupdict()
            for head in (*(head for _, head in reports._HEAD), reports._WARNING_BY)
            if (match := head.search(text))
        ]
        facts = reports._head_facts(text)
        assert list(facts.processes) == [g["comm"] for g in groups if g.get("comm")], text
        assert list(facts.pids) == [int(g["pid"]) for g in groups if g.get("pid")], text


def test_each_message_is_found_without_all_patterns() -> None:
    compiled = [(message, re.compile(message.pattern)) for message in MESSAGES]
    for text in {parsed(line).text for line in [*POOL, *mixture(3), *mixture(4)]} - {""}:
        plain = next((message for message, pattern in compiled if pattern.fullmatch(text)), None)
        match = recognized(LogLine("", "", text))
        assert (match[0] if match else None) == plain, text


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_decoded_as_one_by_one(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    pieces = [b"\n", b"\r", b"\xe2\x80", b"\xf0\x9f\x98\x80", b"\xff", b"\0", b"a" * 3000, b"nfs "]
    data = b"".join(chance.choices(pieces, k=600)) + b"\xc3"
    (tmp_path / "log").write_bytes(data)
    plain = data.replace(b"\r", b"\n").split(b"\n")
    with (tmp_path / "log").open("rb") as file:
        assert list(lines_of(file)) == [
            line[:2048].decode(errors="replace").replace("\ufffd", "?") for line in plain
        ]


@pytest.mark.parametrize(
    ("kind", "size", "most"),
    [
        *((kind, 4, 40) for kind in ("distinct frames", "distinct processes", "lockdep")),
        *((kind, 4, 40) for kind in ("one line", "random bytes", "distinct names")),
        # a line of 2 kB whose form is kept takes the room of many others
        ("distinct long names", 20, 33),
    ],
)
def test_a_long_log_takes_bounded_memory(kind: str, size: int, most: int) -> None:
    argv = (sys.executable, "-m", "bench.explain.load")
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin
        for piece in block(kind, size * 1_000_000):
            reader.stdin.write(piece)
        output, _ = reader.communicate()
    assert json.loads(output)["bytes"] < most << 20


def test_reports_of_long_lines_take_bounded_memory() -> None:
    # each character takes four bytes, and each report has another process
    wide = "\U0001f600" + "x" * 2000
    lines = (
        text
        for number in range(600)
        for text in (
            f"INFO: task p{number}:{number + 1} blocked for more than 120 seconds.",
            *([f"Code: {wide}"] * 450),
        )
    )
    kept = [sum(map(len, row.lines)) for row in explain(lines)]
    assert len(kept) == 501
    assert sum(kept) * 4 < 128 << 20


ESCAPES = [
    *map(chr, (*range(1, 10), 11, 12, *range(14, 32), 127, *range(0x80, 0xA0))),
    *("\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\x90q\x9c", "\u202e", "\u2066", "\u200b"),
    *("\u200d", "\ufeff", "\u2028", "\u2029", "\U000e0041"),
]


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_escape_reaches_a_terminal(tmp_path: Path, form: str) -> None:
    log = tmp_path / "log"
    lines = []
    for number, escape in enumerate(ESCAPES):
        at = f"[  {number}.5{escape}] [  {number}.5] "
        lines += [
            f"[  {number}.5] NFS: store{escape}{number}: lost 1 locks",
            f"{at}nfs: server s{escape} OK",
            f"[M{escape} 3 07:05:09 2026] nfs: server t OK",
            f"[  {number}.5] INFO: task a{escape}b:{number} blocked for more than 120 seconds.",
            f"[  {number}.5] WARNING: CPU: 0 PID: 7 at kernel/x{escape}.c:1 f{escape}+0x1/0x2",
            *[f"[  {number}.5] usb {n}" for n in range(13)],
        ]
    log.write_text("\n".join(lines), newline="\n")
    options = ["--json"] if form == "json" else []
    argv = (sys.executable, "-m", "nfsrdma_tools", "explain", str(log), *options)
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
    output = subprocess.run(argv, check=True, capture_output=True, env=environment).stdout.decode()
    assert "locks lost" in output
    assert all(line.isprintable() for line in output.split("\n")), output
