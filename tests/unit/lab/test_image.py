# SPDX-License-Identifier: Apache-2.0
"""The folder in which a user without root builds the image of a lab."""

import os
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import image
from nfsrdma_tools.lock import try_folder_lock

USER = 1000
# prints each path below TMPDIR with its mode, then does as the hooks: fills OUT
MMDEBSTRAP = """#!/bin/sh
find "$TMPDIR" -printf '%P %m\\n' > "$SEEN"
test -f "$RECIPE/customize.sh" || exit 1
test -f "$KEYS/host" || exit 1
touch "$OUT/disk.img"
"""
# the subordinate ids of a user, without a user
UNSHARE = """#!/bin/sh
shift 3
case $1 in chown) echo "$@" >> "$SEEN.chown" ;; *) exec "$@" ;; esac
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environment and files that the stand-in for mmdebstrap found."""
    for name, text in (("mmdebstrap", MMDEBSTRAP), ("unshare", UNSHARE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: USER)
    monkeypatch.setattr(image, "_VAR_TMP", tmp_path / "tmp")
    monkeypatch.setattr(image, "_fetch_libraries", lambda site, _: site.mkdir())
    monkeypatch.setattr(image, "sources", lambda _: "deb x\n")
    (tmp_path / "tmp").mkdir()
    return tmp_path / "seen"


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    (tmp_path / "draft").mkdir()
    return tmp_path / "draft"


def made(work: Path, owner: int = USER) -> Path:
    (work / "files").mkdir(parents=True)
    for path in (work, work / "files"):
        os.chown(path, owner, owner)
    return work


def test_no_other_user_can_change_or_read_what_the_hooks_run(seen: Path, draft: Path) -> None:
    image._fill(draft, False, lambda _: None)
    modes = dict(line.rsplit(" ", 1) for line in seen.read_text().splitlines())
    assert int(modes[""], 8) == 0o711
    # below a folder of mode 0700 the modes do not matter
    open_to_all = {path: mode for path, mode in modes.items() if not path.startswith("files/")}
    assert int(open_to_all["files"], 8) == 0o700
    assert not [path for path, mode in open_to_all.items() if int(mode, 8) & 0o022]
    given = seen.with_name("seen.chown").read_text().splitlines()
    assert [line.split()[2] for line in given] == ["1:1", "0:0"]
    assert (draft / "disk.img").exists()
    assert list((seen.parent / "tmp").iterdir()) == []


def test_a_build_leaves_those_of_other_users_and_those_that_run(seen: Path, draft: Path) -> None:
    top = seen.parent / "tmp"
    foreign = made(top / f"{image._WORK}foreign", USER + 1)
    busy = made(top / f"{image._WORK}busy")
    killed = made(top / f"{image._WORK}killed")
    (top / f"{image._WORK}link").symlink_to(foreign)
    with try_folder_lock(busy):
        image._fill(draft, False, lambda _: None)
    assert (foreign / "files").exists()
    assert (busy / "files").exists()
    assert not killed.exists()


def test_a_build_that_fails_leaves_nothing(seen: Path, draft: Path, tmp_path: Path) -> None:
    (tmp_path / "mmdebstrap").write_text("#!/bin/sh\necho no archive >&2\nexit 1\n")
    with pytest.raises(UserError, match="failed to build the image"):
        image._fill(draft, False, lambda _: None)
    assert list((seen.parent / "tmp").iterdir()) == []


def test_a_user_without_subordinate_ids_is_told(seen: Path, draft: Path, tmp_path: Path) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'no range' >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"no range \(add a range to /etc/subuid"):
        image._fill(draft, False, lambda _: None)
