# SPDX-License-Identifier: Apache-2.0
"""``make release``: what it refuses, the steps that it continues with, and equal archives."""

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import release.__main__ as command
from release import recorded
from release.archives import compress, difference, normalize
from release.checks import PLACES, missing, set_version, version
from release.steps import STEPS, Build, NotBuiltError

from nfsrdma_tools import __version__
from nfsrdma_tools.errors import CommandError, UserError

ROOT = Path(__file__).parents[3]
EPOCH = 1_700_000_000


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.invalid")
    subprocess.run(("git", "-C", str(folder), *identity, *words), check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that the checks read, in a repository, ready for a release."""
    files = [path for place in PLACES for path in ROOT.glob(place.files)]
    for file in (*files, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"):
        made = tmp_path / "tree" / file.relative_to(ROOT)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(file.read_text())
    folder = tmp_path / "tree"
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{__version__}] - 2026-12-24\n")
    security = (folder / "SECURITY.md").read_text()
    (folder / "SECURITY.md").write_text(security.replace("PLACEHOLDER", "security@example.org"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "ready")
    return folder


def change(tree: Path, name: str, old: str, new: str) -> None:
    text = (tree / name).read_text()
    assert old in text
    (tree / name).write_text(text.replace(old, new, 1))
    git(tree, "commit", "--quiet", "-a", "-m", "change")


def test_a_tree_that_is_ready_is_released(tree: Path) -> None:
    assert list(missing(tree)) == []


def test_this_tree_has_one_version() -> None:
    assert [line for line in missing(ROOT) if "version" in line] == []


def test_an_uncommitted_file_is_named(tree: Path) -> None:
    (tree / "new").touch()
    (tree / "newer").touch()
    assert list(missing(tree)) == ["git: uncommitted: new and 1 more"]


def test_a_folder_that_is_no_clone_is_named(tree: Path) -> None:
    (tree / ".git").rename(tree.parent / "elsewhere")
    assert list(missing(tree)) == ["git: expected a clone, found no repository"]


@pytest.mark.parametrize("heading", ["[Unreleased]", "[9.9.9] - 2026-12-24", f"[{__version__}]"])
def test_an_open_changelog_is_named(tree: Path, heading: str) -> None:
    change(tree, "CHANGELOG.md", f"[{__version__}] - 2026-12-24", heading)
    expected = f"CHANGELOG.md: expected first section [{__version__}] - DATE, found {heading}"
    assert list(missing(tree)) == [expected]


def test_unreleased_changes_below_the_version_are_named(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "2026-12-24\n", "2026-12-24\n\n## [Unreleased]\n")
    assert list(missing(tree)) == ["CHANGELOG.md: a section [Unreleased] follows"]


def test_a_placeholder_is_named(tree: Path) -> None:
    change(tree, "SECURITY.md", "security@example.org", "PLACEHOLDER")
    (line,) = missing(tree)
    assert line.startswith("SECURITY.md: ")


@pytest.mark.parametrize("place", PLACES[1:], ids=lambda place: place.files)
def test_another_version_in_one_place_is_named(tree: Path, place: object) -> None:
    files, pattern = PLACES[PLACES.index(place)]
    file = next(
        path for path in sorted(tree.glob(files)) if re.search(pattern, path.read_text(), re.M)
    )
    match = re.search(pattern, file.read_text(), re.MULTILINE)
    assert match
    start, end = match.span(len(match.groups()))
    text = file.read_text()
    file.write_text(f"{text[:start]}{match[len(match.groups())]}9{text[end:]}")
    git(tree, "commit", "--quiet", "-a", "-m", "change")
    name = file.relative_to(tree)
    assert list(missing(tree)) == [f"{name}: expected version {__version__}, found {__version__}9"]


def test_all_that_is_missing_is_listed_at_once(tree: Path) -> None:
    change(tree, "kmod/module.c", f'"{__version__}"', '"9.9.9"')
    change(tree, "SECURITY.md", "security@example.org", "PLACEHOLDER")
    change(tree, "CHANGELOG.md", "2026-12-24", "soon")
    (tree / "new").touch()
    assert len(list(missing(tree))) == 4


def test_a_version_is_written_into_all_places(tree: Path) -> None:
    set_version(tree, "12.34.5")
    assert version(tree) == "12.34.5"
    assert [line for line in missing(tree) if "version" in line] == []
    header = (tree / "lib/nfsrdma.h").read_text()
    assert re.findall(r"^#define NFSRDMA_VERSION_\w+\t(\d+)$", header, re.M) == ["12", "34", "5"]


def build_in(folder: Path) -> Build:
    return Build(ROOT, folder, __version__, "0" * 40, EPOCH, None)


def test_a_step_that_was_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def wheel(build: Build, out: Path) -> None:
        runs.append(list(out.iterdir()))
        (out / "half").touch()
        if len(runs) == 1:
            raise KeyboardInterrupt
        (out / "whole").touch()

    monkeypatch.setitem(STEPS, "wheel", wheel)
    with pytest.raises(KeyboardInterrupt):
        command.done(build_in(tmp_path), "wheel")
    assert [command.done(build_in(tmp_path), "wheel") for _ in range(2)] == ["", ""]
    assert runs == [[], []]
    assert (tmp_path / "wheel/whole").exists()


def test_a_step_that_fails_prints_the_whole_output_of_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools").mkdir()
    script = "import sys; print('printed'); sys.exit('reason\\nthe reason is above')"
    (tmp_path / "tools/deb.py").write_text(script)
    monkeypatch.setattr("release.steps.is_installed", lambda program: True)
    with pytest.raises(CommandError, match="the reason is above"):
        STEPS["packages"](build_in(tmp_path)._replace(root=tmp_path), tmp_path)
    printed = " ".join(capfd.readouterr().err.split())
    assert printed == "printed reason the reason is above"


def test_what_is_not_built_is_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wheel(build: Build, out: Path) -> None:
        (out / "a.whl").write_text("a")
        (out / recorded.FILE).write_text("python a 1\n")

    def rpm(build: Build, out: Path) -> None:
        raise NotBuiltError("RPM: no rpmbuild")

    monkeypatch.setattr(command, "ROOT", tmp_path)
    for name in list(STEPS):
        monkeypatch.delitem(STEPS, name)
    monkeypatch.setitem(STEPS, "wheel", wheel)
    monkeypatch.setitem(STEPS, "rpm", rpm)
    build = build_in(tmp_path / "work")
    build.work.mkdir()
    folder = command.gather(build, [line for step in STEPS if (line := command.done(build, step))])
    assert (folder / command.NOT_BUILT).read_text() == "not built: RPM: no rpmbuild\n"
    sums = (folder / command.SUMS).read_text().splitlines()
    assert f"{hashlib.sha256(b'a').hexdigest()}  a.whl" in sums
    names = {line.split("  ")[1] for line in sums}
    assert names == {"a.whl", recorded.FILE, command.NOT_BUILT}


def archive(path: Path, names: list[str], time: int, mode: int, owner: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uname = 4, time, mode, owner
            tar.addfile(member, io.BytesIO(b"text"))
    return path


def test_archives_of_equal_files_are_equal(tmp_path: Path) -> None:
    one = archive(tmp_path / "a.tar.gz", ["a", "b"], 1, 0o600, "one")
    other = archive(tmp_path / "longer.tar.gz", ["b", "a"], 2, 0o664, "other")
    assert difference("", *(gzip.decompress(each.read_bytes()) for each in (one, other)))
    for each in (one, other):
        normalize(each, EPOCH)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as tar:
        found = [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in tar]
    assert found == [("a", 0o644, EPOCH, 0, ""), ("b", 0o644, EPOCH, 0, "")]


def zipped(text: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr(zipfile.ZipInfo("inner.txt"), text)
    return data.getvalue()


def ar(data: bytes) -> bytes:
    header = f"{'data.bin':16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode()
    return b"!<arch>\n" + header + data + b"\n" * (len(data) % 2)


def test_the_first_difference_inside_of_archives_is_named() -> None:
    def packed(text: str) -> bytes:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as file:
            member = tarfile.TarInfo("a.zip")
            member.size = len(zipped(text))
            file.addfile(member, io.BytesIO(zipped(text)))
        return ar(compress(tar.getvalue()))

    assert difference("x.deb", packed("same text"), packed("same text")) == ""
    found = difference("x.deb", packed("same text"), packed("same test"))
    assert re.fullmatch(
        r"x\.deb: data\.bin.*: a\.zip .*: inner\.txt .*: at byte 7: .*text.*test.*", found
    )


@pytest.mark.parametrize(("one", "other"), [(b"a", b"ab"), (b"", b"a"), (b"a", b"b")])
def test_files_of_other_kinds_differ_by_bytes(one: bytes, other: bytes) -> None:
    assert difference("x", one, other).startswith("x: at byte ")
    assert difference("x", other, other) == ""


@pytest.mark.parametrize("line", ["debian a 2", "debian b 1", ""])
def test_a_package_that_was_not_recorded_is_refused(tmp_path: Path, line: str) -> None:
    record = tmp_path / "record"
    record.write_text("python a 9\ndebian a 1\n")
    recorded.require(record, "debian", ["debian a 1", "host a 3"])
    with pytest.raises(UserError, match=r"debian [ab]: recorded"):
        recorded.require(record, "debian", [line] if line else [])
