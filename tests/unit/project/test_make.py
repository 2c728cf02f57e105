# SPDX-License-Identifier: Apache-2.0
"""The targets, benchmarks and campaigns that pages and comments name exist, with their options."""

import re
import shlex
from pathlib import Path

import campaign
import pytest
import typer.main
from pages import PAGES, ROOT
from typer.testing import CliRunner

import bench.__main__ as bench

TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
CAMPAIGNS = typer.main.get_command(campaign.app).commands  # type: ignore[attr-defined]
TEXTS = [
    *PAGES,
    *(ROOT / name for name in ("CHANGELOG.md", "Makefile", "SECURITY.md")),
    *(path for folder in ("bench", "tests", "tools") for path in (ROOT / folder).rglob("*.py")
      if path != Path(__file__)),
]  # fmt: skip
CALL = re.compile(r'(?<![\w-])make (bench|campaign) NAME=([\w-]+)(?: ARGS="([^"]*)")?')
# a target in code; "make" is also an English word, and make of other projects
TARGET = re.compile(r"(?<=`)make ([a-z][\w-]*)(?=[` ])|^\$ make ([a-z][\w-]*)")


def options(kind: str, name: str) -> set[str]:
    """The options of a benchmark or a campaign; KeyError if there is none of the name."""
    if kind == "campaign":
        return {each for param in CAMPAIGNS[name].params for each in param.opts}
    return set(re.findall(r"--\w+", bench.summary(bench.benchmarks()[name])[0]))


def unknown(text: str) -> list[str]:
    """What a text names and the repository lacks."""
    text = re.sub(r"\s+", " ", text)
    missing = [match[0] for match in TARGET.finditer(text) if not {*match.groups()} & TARGETS]
    for call in CALL.finditer(text):
        kind, name, words = call.groups()
        try:
            known = options(kind, name)
        except KeyError:
            missing.append(call[0])
            continue
        given = [word for word in shlex.split(words or "") if word.startswith("--")]
        missing += [f"{call[0]}: {word}" for word in given if word not in {*known, "--help"}]
    return missing


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_file_names_exists(path: Path) -> None:
    assert unknown(path.read_text()) == []


def test_names_are_found() -> None:
    text = '`make no-such`, `make\ntest`, make bench NAME=no, make bench NAME=costs ARGS="--no 1"'
    assert unknown(text) == [
        "make no-such",
        "make bench NAME=no",
        'make bench NAME=costs ARGS="--no 1": --no',
    ]
    assert unknown('make campaign NAME=hostile ARGS="--first 4 --ony x"') == [
        'make campaign NAME=hostile ARGS="--first 4 --ony x": --ony'
    ]
    assert len(bench.benchmarks()) > 25


def test_import_linter_sees_each_benchmark() -> None:
    """It takes a folder without __init__.py for part of a package only if the package has none."""
    assert list((ROOT / "bench").rglob("__init__.py")) == []


def test_each_benchmark_says_what_it_does() -> None:
    assert [name for name, path in bench.benchmarks().items() if not bench.summary(path)[1]] == []


@pytest.mark.parametrize("name", sorted(CAMPAIGNS))
def test_a_campaign_names_tests_and_variables_that_exist(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, object]]] = []

    def call(*argv: str, **environment: object) -> int:
        calls.append((argv, environment))
        return 0

    monkeypatch.setattr(campaign, "call", call)
    result = CliRunner().invoke(campaign.app, [name])
    assert result.exit_code == 0, result.output
    (argv, environment) = calls[-1]
    assert all(Path(word).exists() for word in argv if word.startswith(str(ROOT / "tests")))
    if argv[1:3] == ("-m", "pytest"):
        assert any(word.startswith(str(ROOT / "tests")) for word in argv)
    else:
        assert (ROOT / "tests" / f"{argv[2].replace('.', '/')}.py").exists()
    sources = (path for name in ("tests", "testbed") for path in (ROOT / name).rglob("*.py"))
    source = "".join(path.read_text() for path in sources)
    assert [key for key in environment if f'environ.get("{key}"' not in source
            and f'environ["{key}"' not in source] == []  # fmt: skip
