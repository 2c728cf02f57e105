# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from unit.files_made import write, write_all

from nfsrdma_tools.cli import explain as command
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.kernel_faults import FAULTS, OLDEST_SERIES
from nfsrdma_tools.host.kernel_release import kernel_named, kernel_of
from nfsrdma_tools.host.machine import Machine

RECORDS = Path(__file__).parents[1] / "data/kernel_releases.toml"


class Record(NamedTuple):
    said: str
    source: str
    by: str = ""
    upstream: str = ""
    os: str = ""


KERNELS = [Record(**row) for row in tomllib.loads(RECORDS.read_text())["kernel"]]


@pytest.mark.parametrize("record", KERNELS, ids=lambda record: record.said[:40])
def test_the_release_of_kernel_org_is_the_one_written_by_hand(record: Record) -> None:
    kernel = kernel_named(record.said, record.os)
    assert (kernel.text if kernel.certain else "") == record.upstream, kernel
    assert kernel.by == record.by, kernel
    assert kernel.reason


def test_the_records_are_many_and_of_many_distributions() -> None:
    assert len(KERNELS) >= 40
    assert len({record.by for record in KERNELS} - {"", "kernel.org"}) >= 12
    assert all(record.source for record in KERNELS)


# ---- no false certainty: what a name of another form is taken for


@pytest.mark.parametrize(
    "name",
    [
        "6.12.30-acme", "6.12.30-1-acme", "6.12.30+", "6.12.30-dirty",
        "6.12.30-00033-gd4ac164bde7a", "6.12.30-arch1-1-mine", "6.12.30-1-lts-mine", "6.12.30.acme",
        "6.12.30-flatcar-acme",
        "5.15.0-91-acme", "5.15.0-91-generic-acme", "6.1.0-25-amd64-acme", "6.12.63+deb13-amd64x",
        "6.6.5-060605-acme", "6.6.126.1-1.azl3x-1", "6.1.66-91.160.amzn2023", "6.9.7-200.fc40",
        "Ubuntu 5.15.0-91.101-generic 5.4.131", "Ubuntu 5.15.0-91.101-generic 5.15.999999",
        "Linux version 6.1.0-25-amd64 (x@y) (gcc (Debian 12.2.0-14) 12.2.0) #1 SMP Mon",
        "Linux version 6.1.0-25-amd64 (Ubuntu 6.1.0-1.1-generic 6.1.50) #1 SMP Mon",
        "Linux h 6.1.0-25-amd64 #1 SMP Debian 5.10.999-1", "6.12.30-rc1", "6.12-rc1-amd64",
        "Linux h 6.12~rc6-amd64 #1 SMP Debian 6.12~rc6-1~exp1 (2024-11-03) x86_64",
        "Ubuntu 6.5.0-5.5-generic 6.5.0-rc6", "4.4.0-19041-Microsoft",
        "6.1.187-1-default", "6.4.0-150600.8.5-azure", "5.3.18-150300.59.93-preempt",
        "5.14.0-427.el9.x86_64+rt", "4.19.90-2112.8.0.0131.oe1.x86_64", "5.10.134-16.an8.x86_64",
        "\u0665.\u0661\u0665.\u0661", "5.15.\u0661", "999.999.99999-x",
        "5.15.153.1-microsoft-standard-WSL2+", "6.10.9-1-default",
    ],
)  # fmt: skip
def test_a_name_of_another_form_is_not_certain(name: str) -> None:
    try:
        kernel = kernel_named(name)
    except UserError:
        return
    assert not kernel.certain, kernel


def test_the_files_of_a_container_do_not_name_the_kernel(tmp_path: Path) -> None:
    files = {
        "proc/sys/kernel/osrelease": "5.3.18-57-default\n",
        "etc/os-release": 'NAME="openSUSE Tumbleweed"\nID="opensuse-tumbleweed"\n',
    }
    write_all(tmp_path, files)
    assert kernel_of(Machine(tmp_path)).by == "openSUSE Tumbleweed"
    (tmp_path / ".dockerenv").touch()
    assert not kernel_of(Machine(tmp_path)).certain


@pytest.mark.parametrize(
    ("release", "by"),
    [
        ("6.8.0-1021-azure", "Ubuntu"),
        ("5.15.0-1075-azure", "Ubuntu"),
        ("6.8.0-1021-azure-fde", "Ubuntu"),
        (
            "Linux version 6.8.0-1021-azure (buildd@lcy02-amd64-010) (x86_64-linux-gnu-gcc-13"
            " (Ubuntu 13.2.0-23ubuntu4) 13.2.0, GNU ld (GNU Binutils for Ubuntu) 2.42)"
            " #25-Ubuntu SMP Wed Jan 15 20:45:09 UTC 2025",
            "Ubuntu",
        ),
        ("5.14.21-150500.33.66-azure", "SUSE"),
        ("5.3.18-18.47-azure", "SUSE"),
    ],
)
def test_a_flavour_of_two_distributions_is_told_by_its_numbers(release: str, by: str) -> None:
    kernel = kernel_named(release)
    assert kernel.by == by
    assert not kernel.certain


@pytest.mark.parametrize(
    "name",
    ["99.99.99", "1.8.0-talos", "2.4.37", "6.20.1", "8.0.1", "3.20.0-arch1-1", "99.9.9-rc1"],
)
def test_a_number_that_linux_never_had_proves_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = kernel_named(name)
    assert (kernel.kind, "no series" in kernel.reason) == ("unknown", True), kernel
    command.explain(kernel=True, sources=[name])
    assert "the table of faults" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        command.explain(commit="CVE-2024-38544", sources=[name])
    assert capsys.readouterr().out.startswith("unknown  ")


@pytest.mark.parametrize("name", ["2.6.39", "3.19.8", "4.20.17", "5.19.17", "6.19.9", "7.3.1"])
def test_the_last_series_of_a_major_number_is_a_release(name: str) -> None:
    assert kernel_named(name).certain


def test_the_series_of_each_fault_are_those_of_linux() -> None:
    for fault in FAULTS:
        assert kernel_named(fault.fixed).certain


# ---- hostile texts


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "x" * 100_000, "\x1b[31m\x1b]0;x\a", "\udcff\udcfe", "Linux version ", "Linux h",
        "Ubuntu 5.15.0-91", "1." * 50_000, "99999999999.1.1", "-rc1", "Linux version \0 x",
        "6.1.0-" + "0" * 90_000,
    ],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_a_text_without_a_release_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(UserError) as error:
        kernel_named(text)
    shown = str(error.value)
    assert len(shown) < 300
    assert shown.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "6.1.0" + "-0.rc" * 20_000, "Linux version 6.1.0-x" + " #1" * 30_000,
        "Ubuntu 6.1.0-1" + ".1" * 50_000 + " 6.1.0", "6.1.0-" + "1." * 50_000 + "el9",
        "Ubuntu 6.1.0-1.1-generic" + " 6.1.1" * 50_000 + "x", "6.1.0-\udcff\x1b[31m",
        "Linux version 6.1.0-x #1 SMP " + "Debian " * 20_000 + "6.1.1-1", "6.1.0\0\n7",
    ],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_a_long_or_strange_text_proves_nothing(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sys/kernel/osrelease", "version", "version_signature"):
        write(tmp_path / "proc", name, text)
    assert not kernel_of(Machine(tmp_path)).certain
    for source in (text, str(tmp_path)):
        try:
            command.explain(kernel=True, sources=[source])
        except UserError as error:
            assert str(error).isprintable()
        output = capsys.readouterr().out.replace("\n", "")
        assert output.isprintable() or not output
        assert len(output) < 1000
        assert ", certain" not in output


# ---- the command


def test_the_command_says_what_is_certain(capsys: pytest.CaptureFixture[str]) -> None:
    command.explain(
        kernel=True, sources=["Ubuntu 5.15.0-91.101-generic 5.15.131", "5.4.17-1.el8uek"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5.15.0-91-generic: Linux 5.15.131 by Ubuntu, certain"
    assert lines[2] == "    read from: the text"
    assert lines[4] == "5.4.17-1.el8uek: no certainty, its name says Linux 5.4.17, by Oracle"
    assert lines[7].endswith(f"the table of faults begins with Linux {OLDEST_SERIES}")


def test_the_json_names_the_text_as_the_lines_do(capsys: pytest.CaptureFixture[str]) -> None:
    command.explain(kernel=True, sources=["6.12.3"], as_json=True)
    assert json.loads(capsys.readouterr().out)["kernels"][0]["source"] == "the text"


def test_a_bundle_without_a_release_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        command.explain(kernel=True, sources=[str(tmp_path)])
    with pytest.raises(UserError, match="an empty text"):
        command.explain(kernel=True, sources=[""])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": True, "commit": "4836da219781"}, {"kernel": True, "faults": True},
        {"commit": "x", "files": ["log"]}, {"sources": ["6.1.5"]},
        {"files": ["log"], "kernel": True},
    ],
)  # fmt: skip
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        command.explain(**options)
