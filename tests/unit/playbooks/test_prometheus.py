# SPDX-License-Identifier: Apache-2.0
"""The blocks that role observability adds to Prometheus' configuration, by blockinfile."""

import base64
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

import yaml
from unit.playbooks.ansible_modules import PLAYBOOKS, program, run_module, templated

ROLE = PLAYBOOKS / "roles/observability"
BLOCKINFILE = "ansible.builtin.blockinfile"
JOB = {
    "job_name": "nfsrdma",
    "scrape_interval": "15s",
    "file_sd_configs": [{"files": ["/etc/prometheus/nfsrdma/targets.json"]}],
    "authorization": {"credentials_file": "/etc/prometheus/nfsrdma/token"},
}
RULES = "/etc/prometheus/nfsrdma/rules.yml"
TEXTS = {
    "neither list": "global: {}\n",
    "no newline at the end": "global: {}",
    "empty lists": "scrape_configs:\n  # first\nrule_files:\n",
    "indented items": "scrape_configs:\n\n    # first\n    - job_name: a\n    - job_name: b\n",
    "items in column 0": "scrape_configs: # all\n- job_name: a\nglobal: {}\n",
    "list at the end": "global: {}\nscrape_configs:\n",
    "empty file": "",
}


def tasks(file: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load((ROLE / "tasks" / file).read_text())
    return listed


def variables(file: Path, promtool: bool = False) -> dict[str, Any]:
    """The variables that the role has when it comes to blockinfile."""
    known: dict[str, Any] = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    return {
        **known,
        "omit": "__omit",
        "observability_token": "only-for-the-test",
        "observability_prometheus": "/etc/prometheus",
        "observability_prometheus_config": str(file),
        "observability_was": {"config": str(file)},
        "observability_promtool": {"rc": 0 if promtool else 2},
        "observability_slurped": {"content": base64.b64encode(file.read_bytes()).decode()},
    }


def holds(condition: str, known: dict[str, Any]) -> bool:
    return bool(templated("{{ " + condition + " }}", known))


def add(file: Path, promtool: bool = False, check: bool = False) -> list[dict[str, Any]]:
    """Run the role's task for both lists; the results."""
    task = tasks("prometheus_config.yml")[-1]
    known = {**variables(file, promtool), **task["vars"]}
    lists = templated(known["observability_lists"], known)
    results = []
    for key, value in lists.items():
        args = templated(task[BLOCKINFILE], {**known, "item": {"key": key, "value": value}})
        given = {name: each for name, each in args.items() if each != "__omit"}
        results.append(run_module(file.parent, "ansible.modules.blockinfile", check, **given))
    return results


def remove(file: Path) -> list[dict[str, Any]]:
    """Run the task that reverts it; the results of the items that its condition lets through."""
    (task,) = [task for task in tasks("revert.yml") if BLOCKINFILE in task]
    known = variables(file)
    results = []
    for item in templated(task["loop"], known):
        mine = {**known, "item": item}
        if holds(task["when"], mine):
            args = templated(task[BLOCKINFILE], mine)
            results.append(run_module(file.parent, "ansible.modules.blockinfile", **args))
    return results


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path / "prometheus.yml"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_both_blocks_come_first_in_their_lists_and_are_removed(file: Path, text: str) -> None:
    file.write_text(text)
    before = yaml.safe_load(text) or {}
    assert all(result["changed"] for result in add(file, check=True))
    assert file.read_text() == text
    assert all(result["changed"] for result in add(file))
    after = yaml.safe_load(file.read_text())
    assert after["scrape_configs"] == [JOB, *(before.get("scrape_configs") or [])]
    assert after["rule_files"] == [RULES]
    assert not any(result["changed"] for result in add(file))
    assert [result["changed"] for result in remove(file)] == [True, True]
    # blockinfile has to end the last line before it can append
    assert file.read_text() == (text + "\n" if text and not text.endswith("\n") else text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_reverting_leaves_a_file_alone_that_has_no_block(file: Path, text: str) -> None:
    file.write_text(text)
    assert remove(file) == []
    assert file.read_text() == text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_reverting_removes_what_an_interrupted_play_added(file: Path, text: str) -> None:
    file.write_text(text)
    add(file)
    whole = file.read_text()
    begin = whole.index("# BEGIN nfsrdma.tools: rule_files")
    end = "# END nfsrdma.tools: rule_files\n"
    file.write_text(whole[:begin] + whole[whole.index(end) + len(end) :])
    assert [result["changed"] for result in remove(file)] == [True]
    assert file.read_text() == (text + "\n" if text and not text.endswith("\n") else text)


@pytest.mark.parametrize(
    ("text", "taken"), [("scrape_configs: []\n", False), (TEXTS["items in column 0"], True)]
)
def test_a_list_in_flow_style_is_refused(file: Path, text: str, taken: bool) -> None:
    file.write_text(text)
    (check,) = [task for task in tasks("prometheus_config.yml") if "ansible.builtin.assert" in task]
    known = {**variables(file), "item": "scrape_configs"}
    assert holds(check["ansible.builtin.assert"]["that"], known) is taken
    message = templated(check["ansible.builtin.assert"]["fail_msg"], known)
    assert message.startswith(f"{file}: scrape_configs is written in one line.")


def test_nothing_is_written_that_promtool_refuses(file: Path) -> None:
    file.write_text(TEXTS["indented items"])
    program(file.parent, "promtool", "#!/bin/sh\necho $* >> ${0%/*}/ran\nexit 1\n")
    for result in add(file, promtool=True):
        assert "failed to validate" in result["msg"]
    assert file.read_text() == TEXTS["indented items"]
    assert "check config --syntax-only /" in (file.parent / "bin/ran").read_text()
    program(file.parent, "promtool", "#!/bin/sh\nexec test -s $4\n")
    assert all(result["changed"] for result in add(file, promtool=True))
