# SPDX-License-Identifier: Apache-2.0
"""Build what is released from the commit that is checked out, into dist/release-VERSION.

Nothing is signed, tagged or published: docs/dev/release.md has these steps, which are a person's.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from release import recorded
from release.checks import missing, set_version, version
from release.steps import STEPS, Build, NotBuiltError

ROOT = Path(__file__).parents[2]
SUMS = "SHA256SUMS"
NOT_BUILT = "NOT-BUILT.txt"


def main() -> None:
    """Do what the command line requests."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("--check", action="store_true", help="List what is missing, and stop")
    parser.add_argument("--draft", action="store_true", help="Build although something is missing")
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="FILE",
        help=f"Build with the packages that {recorded.FILE} of a release records",
    )
    parser.add_argument("--set-version", metavar="VERSION",
                        help="Write VERSION into each file that has one, and stop")  # fmt: skip
    args = parser.parse_args()
    if args.set_version:
        set_version(ROOT, args.set_version)
        return
    lines = list(missing(ROOT))
    for line in lines:
        print(f"missing: {line}", file=sys.stderr)
    if args.check or (lines and not args.draft):
        sys.exit(1 if lines else 0)
    build = started(args.packages)
    not_built = [line for step in STEPS if (line := done(build, step))]
    folder = gather(build, not_built)
    print(f"{folder}: built from {build.commit[:12]}" + (", a DRAFT: not for users" * bool(lines)))
    if not lines:
        print(f"Next, a person signs {folder / SUMS}: docs/dev/release.md")


def started(record: Path | None) -> Build:
    """The release of this commit, in a folder that an earlier run may have begun."""
    commit, epoch = run("git", "-C", ROOT, "log", "-1", "--format=%H %ct").stdout.split()
    work = ROOT / "out/release" / commit[:12]
    work.mkdir(parents=True, exist_ok=True)
    return Build(
        ROOT, work, version(ROOT), commit, int(epoch), record.absolute() if record else None
    )


def done(build: Build, step: str) -> str:
    """Do a step that is not yet done; returns why its files are not built, or ""."""
    folder = build.work / step
    if folder.is_dir():
        return ""
    print(f"release: {step}", file=sys.stderr)
    # it has the name of the step only when it is complete
    draft = folder.with_name(f"{step}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        STEPS[step](build, draft)
    except NotBuiltError as error:
        return f"not built: {error}"
    draft.rename(folder)
    return ""


def gather(build: Build, not_built: list[str]) -> Path:
    """Copy the files of all steps into one folder, with their checksums; returns the folder."""
    folder = ROOT / f"dist/release-{build.version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    records = []
    for step in STEPS:
        for file in sorted((build.work / step).glob("*")):
            if file.name == recorded.FILE:
                records.append(file.read_text())
            elif file.is_file():
                if (folder / file.name).exists():
                    raise UserError(f"{step}: {file.name} is a file of another step, too")
                shutil.copyfile(file, folder / file.name)
    (folder / recorded.FILE).write_text("".join(records))
    (folder / NOT_BUILT).write_text("".join(f"{line}\n" for line in not_built))
    sums = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files(folder)]
    (folder / SUMS).write_text("".join(sums))
    print("".join(sums) + "".join(f"{line}\n" for line in not_built), end="")
    return folder


def files(folder: Path) -> list[Path]:
    """The files of a release without the one of their checksums."""
    return [file for file in sorted(folder.iterdir()) if file.name != SUMS]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"release: {error}")
