# SPDX-License-Identifier: Apache-2.0
"""Lines of ours in lists of somebody's YAML file."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

import yaml
from ansible_modules import run_module

ITEMS = ["- job_name: nfsrdma", "  scrape_interval: 15s"]
OURS = {"job_name": "nfsrdma", "scrape_interval": "15s"}
TEXTS = {
    "none": "global: {}\n",
    "no end": "global: {}",
    "empty": "scrape_configs:\n  # theirs\nrule_files:\n",
    "indented": "scrape_configs:\n\n    # theirs\n    - job_name: a\n    - job_name: b\n",
    "not indented": "scrape_configs: # theirs\n- job_name: a\nglobal: {}\n",
    "last": "global: {}\nscrape_configs:\n",
    "nothing": "",
}


def put(file: Path, **more: Any) -> dict[str, Any]:
    lists = {"scrape_configs": ITEMS}
    return run_module(file.parent, "nfsrdma_list", path=str(file), lists=lists, **more)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_they_come_first_and_go_without_a_trace(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(text)
    theirs = (yaml.safe_load(text) or {}).get("scrape_configs") or []
    checked = put(file, check=True)
    assert checked["changed"]
    assert file.read_text() == text
    put(file)
    assert file.read_text() == checked["diff"]["after"]
    assert yaml.safe_load(file.read_text())["scrape_configs"] == [OURS, *theirs]
    assert not put(file)["changed"]
    put(file, state="absent")
    assert file.read_text() == (text if text != TEXTS["no end"] else text + "\n")
    assert not put(file, state="absent")["changed"]


def test_a_list_in_one_line_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs: []\n")
    assert "written in one line" in put(file)["msg"]
    assert file.read_text() == "scrape_configs: []\n"


def test_what_would_not_be_taken_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(TEXTS["indented"])
    assert "it would not be taken" in put(file, validate=["false"])["msg"]
    assert file.read_text() == TEXTS["indented"]
    assert put(file, validate=["test", "-s"])["changed"]


def test_several_lists_are_one_change(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(TEXTS["indented"])
    lists = {"scrape_configs": ITEMS, "rule_files": ["- ours.yml"]}
    assert run_module(tmp_path, "nfsrdma_list", path=str(file), lists=lists)["changed"]
    found = yaml.safe_load(file.read_text())
    assert (found["scrape_configs"][0], found["rule_files"]) == (OURS, ["ours.yml"])
    run_module(tmp_path, "nfsrdma_list", path=str(file), lists=lists, state="absent")
    assert file.read_text() == TEXTS["indented"]
