# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nfsrdma_tools import etab, udev, undo
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.identity import MountIdentity
from nfsrdma_tools.undo import Export, Remove, Run, Unexport, Write, journal, recover


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    return tmp_path


def test_undoes_newest_first_and_leaves_no_journal(state: Path) -> None:
    knob = state / "knob"
    knob.write_text("old")
    with journal() as book:
        book.add(Write(str(knob), "old"))
        knob.write_text("new")
        book.add(Write(str(knob), "newer-undone"))
    assert knob.read_text() == "old"
    assert list((state / "state").iterdir()) == []


KEPT = "the file was changed after nfsrdma wrote it, and is kept"


@pytest.mark.parametrize("action", [Write, Remove])
def test_a_later_change_of_an_administrator_is_kept(
    state: Path, action: type[Write | Remove]
) -> None:
    conf = state / "conf"
    words = (str(conf), "before\n", "ours\n") if action is Write else (str(conf), "ours\n")
    with pytest.raises(UserError) as failed, journal() as book:
        book.add(action(*words))
        conf.write_text("ours\n")
        conf.write_text("the administrator's\n")
    assert conf.read_text() == "the administrator's\n"
    assert f"{conf}): {KEPT}" in str(failed.value)
    assert str(failed.value).count("\n") == 0
    assert list((state / "state").iterdir()) == []


def test_a_file_that_still_has_what_we_wrote_is_restored(state: Path) -> None:
    conf, new = state / "conf", state / "new"
    with journal() as book:
        # a sysctl of several numbers is printed with tabs
        book.add(Write(str(conf), "4096 87380\n", "1 2"))
        book.add(Remove(str(new), "ours"))
        conf.write_text("1\t2\n")
        new.write_text("ours")
    assert conf.read_text() == "4096 87380\n"
    assert not new.exists()


FIFO = """
import sys
from pathlib import Path
from nfsrdma_tools.undo import Remove, Write, restoring

fifo = sys.argv[1]
for work in (
    lambda: restoring(Path(fifo)),
    Remove(fifo, "ours").undo,
    Write(fifo, "before").undo,
    Write(fifo, "before", "ours").undo,
):
    try:
        work()
    except OSError as error:
        print(error.strerror)
"""


def test_a_fifo_in_place_of_a_file_blocks_no_undo_and_is_kept(state: Path) -> None:
    fifo = state / "conf"
    os.mkfifo(fifo)
    # the limit ends a child that waits for the other end of the FIFO
    argv = (sys.executable, "-c", FIFO, fifo)
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["not a regular file"] * 4
    assert fifo.is_fifo()


def test_a_file_is_restored_to_the_byte(state: Path) -> None:
    conf, before = state / "conf", b"threads=8\r\n# K\xf6ln\r\n"
    conf.write_bytes(before)
    with journal() as book:
        book.add(undo.restoring(conf))
        conf.write_text("ours\n")
    assert conf.read_bytes() == before


def test_a_change_that_was_not_made_needs_no_undo(state: Path) -> None:
    conf = state / "conf"
    conf.write_text("before\n")
    with journal() as book:
        book.add(Write(str(conf), "before\n", "ours\n"))
        book.add(Remove(str(state / "new"), "ours\n"))
    assert conf.read_text() == "before\n"


def test_kept_changes_stay(state: Path) -> None:
    made = state / "made"
    with journal() as book:
        book.add(Remove(str(made)))
        made.touch()
        book.keep()
    assert made.exists()


def test_undoes_on_an_exception(state: Path) -> None:
    made = state / "made"
    with pytest.raises(ZeroDivisionError), journal() as book:
        book.add(Run(("rm", str(made))))
        made.touch()
        raise ZeroDivisionError
    assert not made.exists()


def test_a_killed_process_is_cleaned_up_by_the_next(state: Path) -> None:
    made = state / "made"
    code = (
        "import os, pathlib, signal\n"
        "from nfsrdma_tools.undo import Remove, journal\n"
        "with journal() as book:\n"
        f"    book.add(Remove({str(made)!r}))\n"
        f"    pathlib.Path({str(made)!r}).touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert made.exists()
    assert recover() == []
    assert not made.exists()


def test_a_living_process_is_left_alone(state: Path) -> None:
    made = state / "made"
    with journal() as book:
        book.add(Remove(str(made)))
        made.touch()
        recover()
        assert made.exists()


def test_what_a_killed_process_leaves_for_good_is_said(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = state / "state" / "1-gone-x.undo"
    left.parent.mkdir()
    left.write_text('[{"kind": "run", "argv": ["ls", "/no such"]}]')
    with journal():
        pass
    assert "ls '/no such' exited with status 2" in capsys.readouterr().err
    assert not left.exists()


def test_a_user_without_write_permission_gets_an_error(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFSRDMA_STATE", "/proc/nothing")
    with pytest.raises(UserError, match="cannot write to /proc/nothing"), journal():
        pass


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Run(("ls", "/no such")), ": ls '/no such' exited with status 2: "),
        (Run(("no-such-program", "5")), " (no-such-program 5): no-such-program is not installed"),
        (Write("/no such/file", "3\n"), " (write 3 to /no such/file): No such file or directory"),
        (Write("/no such/file", "a\nb\n"), " (write its old content to /no such/file)"),
        (Remove("/proc/1"), " (remove /proc/1)"),
    ],
)
def test_a_failure_names_the_change_as_a_user_would_make_it(
    action: Run | Write | Remove, message: str
) -> None:
    with pytest.raises(UserError) as failed, journal() as book:
        book.add(action)
    assert f"cannot undo a change{message}" in str(failed.value)
    assert str(failed.value).count(str(action)) == 1
    assert type(action).__name__ not in str(failed.value)


def test_the_command_for_a_user_is_the_one_that_runs(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With brackets around IPv6, and without the options of exports(5) files."""
    ran: list[str] = []
    monkeypatch.setattr(etab, "run", lambda *argv: ran.append(shlex.join(map(str, argv))))
    files = state / "exports", state / "exports.d"
    for name, path in zip(("EXPORTS", "EXPORTS_D"), files, strict=True):
        monkeypatch.setattr(etab, name, path)
    monkeypatch.setattr(etab, "ETAB", state / "etab")
    for client in ("2001:db8::/32", "fe80::1", "10.0.0.0/255.0.0.0", "*.lab"):
        export = Export("/srv/a b", client, ("rw", "sync"))
        files[0].write_text("")
        (state / "etab").write_text("")
        export.undo()
        assert ran[-1] == str(export)
        (state / "etab").write_text(f"/srv/a\\040b\t{client}(rw,sync)\n")
        for others in ("", f'"/srv/a b" {client}(ro)\n'):
            files[0].write_text(others)
            unexport = Unexport("/srv/a b", client, ("rw", "sync"), str(state / "ours"))
            unexport.undo()
            assert ran[-1] == str(unexport)
    assert "exportfs -i -o rw,sync '[2001:db8::/32]:/srv/a b'" in ran
    assert "exportfs -u '[fe80::1]:/srv/a b'" in ran


def test_a_failure_names_an_export_that_exportfs_does_not_take(state: Path) -> None:
    action = Export("/srv", "[a-c].lab", ("rw",))
    refused = r"exportfs -i -o rw '\[a-c\].lab:/srv'\): exportfs cannot"
    with pytest.raises(UserError, match=refused), journal() as book:
        book.add(action)


GOOD = '[{"kind": "remove", "path": "%s"}]'


@pytest.mark.parametrize(
    "text",
    ["", "[", "\xff", "{}", "7", "[3]", "[{}]", '[{"kind": "run"}]',
     '[{"kind": "run", "argv": "x"}]', '[{"kind": "erase", "path": "/"}]',
     '[{"kind": "write", "path": 3, "text": ""}]', '[{"kind": "run", "argv": [1]}]',
     '[{"kind": "remove", "path": "/x", "more": ""}]', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_journal_is_set_aside_once(
    state: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made, folder = state / "made", state / "state"
    made.touch()
    folder.mkdir()
    (folder / "1-gone-a.undo").write_bytes(text.encode("latin-1"))
    (folder / "1-gone-b.undo").write_text(GOOD % made)
    with journal():
        pass
    (aside,) = folder.iterdir()
    assert aside.suffix == ".damaged"
    assert aside.read_bytes() == text.encode("latin-1")
    assert not made.exists(), "the other journal was not run"
    stderr = capsys.readouterr().err
    assert str(aside) in stderr
    assert stderr.count("\n") == 1
    assert "it is not JSON" in stderr or "an entry does not describe a change to undo" in stderr
    assert not any(word in stderr for word in ("Error(", "Error:", "__init__"))
    assert recover() == []


@pytest.mark.parametrize("name", ["x.undo", "1-2.undo", "one-gone-x.undo"])
def test_a_file_that_nobody_of_us_named_is_set_aside(state: Path, name: str) -> None:
    folder = state / "state"
    folder.mkdir()
    (folder / name).write_text("[]")
    (message,) = recover()
    assert ".damaged" in message
    assert recover() == []


def test_a_mount_that_is_restored_keeps_its_read_ahead_after_udev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of nfs-utils sets the read-ahead of a new mount some time after the mount."""
    line = "61 22 0:61 / /mnt/a rw - nfs4 server:/e rw,vers=4.2"
    bdi = tmp_path / "0:61/read_ahead_kb"
    bdi.parent.mkdir()
    identities, waiting = list[MountIdentity](), list[Path]()

    def mount(*_: str, **_more: object) -> None:
        identities.append(MountIdentity(line, 8))
        bdi.write_text("128")
        waiting.append(bdi)

    def rules() -> None:
        while waiting:
            waiting.pop().write_text("15360")

    monkeypatch.setattr(undo, "mounts_on", lambda _: identities)
    monkeypatch.setattr(undo, "run", mount)
    monkeypatch.setattr(undo, "_BDI", tmp_path)
    monkeypatch.setattr(udev, "settle", rules)
    undo.Mount("/mnt/a", "server:/e", "nfs4", "rw,vers=4.2", "512", line, 7).undo()
    rules()
    assert bdi.read_text() == "512"


@pytest.mark.parametrize("end", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("block", ["section", "journal"])
def test_a_failed_undo_takes_no_place_of_ctrl_c(
    end: type[BaseException], block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    theirs = tmp_path / "theirs"
    theirs.write_text("changed")
    with pytest.raises(end), contextlib.ExitStack() as stack:
        changes = stack.enter_context(journal())
        if block == "section":
            stack.enter_context(changes.section())
        changes.add(Remove(str(theirs), "ours"))
        raise end
    assert f"cannot undo a change (remove {theirs})" in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot undo a change"), journal() as changes:
        changes.add(Remove(str(theirs), "ours"))
    assert theirs.read_text() == "changed"
