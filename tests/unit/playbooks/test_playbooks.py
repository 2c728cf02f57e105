# SPDX-License-Identifier: Apache-2.0
"""Rules for the files of the collection, and its templates with hostile values."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed")

import jinja2
import yaml
from unit.playbooks.ansible_modules import PLAYBOOKS

ROLES = sorted(path.name for path in (PLAYBOOKS / "roles").iterdir())
FILES = sorted(
    path
    for path in PLAYBOOKS.rglob("*")
    if path.suffix in (".yml", ".py") and not {".ansible", "__pycache__"} & set(path.parts)
    and "monitoring" not in path.parts
)  # fmt: skip
KEYWORDS = {
    "name", "when", "loop", "loop_control", "vars", "register", "become", "delegate_to", "tags",
    "changed_when", "failed_when", "check_mode", "no_log", "block", "rescue", "always", "run_once",
    "throttle", "environment", "notify", "diff",
}  # fmt: skip
HOSTILE = [
    "a\nb",
    "a b",
    "$(reboot)",
    "`x`",
    "a;b",
    "../x",
    "a/../b",
    "-rf",
    'a"b',
    "a%sb",
    "",
    "a\n",
]


def tasks(part: Any) -> Iterator[dict[str, Any]]:
    """All tasks of a parsed file, including those in blocks."""
    for item in part if isinstance(part, list) else []:
        inner = [key for key in ("tasks", "block", "rescue", "always") if key in item]
        for key in inner:
            yield from tasks(item[key])
        if not inner and "hosts" not in item:
            yield item


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


TASKS = [
    pytest.param(task, id=f"{path.relative_to(PLAYBOOKS)}: {task.get('name')}")
    for path in FILES
    if path.suffix == ".yml" and {"tasks", "playbooks"} & set(path.relative_to(PLAYBOOKS).parts)
    for task in tasks(parsed(path))
]


def test_there_are_tasks() -> None:
    assert len(TASKS) > 100
    assert len(ROLES) == 7


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PLAYBOOKS)))
def test_each_file_has_a_licence(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3])


@pytest.mark.parametrize("task", TASKS)
def test_tasks_use_full_module_names_and_no_shell(task: dict[str, Any]) -> None:
    (module,) = set(task) - KEYWORDS
    assert re.fullmatch(r"(ansible\.(builtin|posix)|nfsrdma\.tools)\.\w+", module)
    assert module not in {"ansible.builtin.shell", "ansible.builtin.raw", "ansible.builtin.script"}
    if module == "ansible.builtin.command":
        assert "argv" in task[module], "give the arguments of a command as a list"
        assert "changed_when" in task or "creates" in task[module]


@pytest.mark.parametrize("task", TASKS)
def test_tasks_with_the_token_have_no_log(task: dict[str, Any]) -> None:
    (module,) = set(task) - KEYWORDS
    writes = "content" in task[module] if isinstance(task[module], dict) else False
    checks = module == "ansible.builtin.assert"
    if "observability_token" in str(task[module]) and (writes or checks):
        assert task.get("no_log") is True


@pytest.mark.parametrize("role", ROLES)
def test_variables_are_documented_and_begin_with_the_role(role: str) -> None:
    folder = PLAYBOOKS / "roles" / role
    known = parsed(folder / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = parsed(folder / "defaults/main.yml")
    assert set(known) == set(defaults)
    assert all(name.startswith(f"{role}_") for name in known)
    for name, option in known.items():
        assert option["description"]
        # the specification cannot express a default that depends on another variable
        if "default" in option:
            assert option["default"] == defaults[name]


def patterns(role: str, file: str) -> list[str]:
    text = (PLAYBOOKS / "roles" / role / "tasks" / file).read_text()
    return re.findall(r"is match\('(\S+)'\)", text)


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_names_and_paths_are_refused(value: str) -> None:
    (name,) = patterns("rdma_link", "present.yml")
    (path,) = patterns("toolkit", "present.yml")
    assert not re.match(name, value)
    if value not in {"../x", "a/../b", "-rf"}:
        assert not re.match(path, f"/opt/{value}")
    _, command, token, folder = patterns("observability", "present.yml")
    assert not re.match(command, f"/opt/x {value}")
    assert not re.match(folder, f"/etc/{value} x")
    if "\n" in value or " " in value:
        assert not re.match(token, value)


def test_names_of_devices_are_accepted() -> None:
    (name,) = patterns("rdma_link", "present.yml")
    assert all(
        re.match(name, value) for value in ("rxe0", "eth1", "enp3s0f0np0", "br-lan", "eth0.5")
    )


def rendered(role: str, template: str, **values: object) -> str:
    folder = PLAYBOOKS / "roles" / role / "templates"
    loader = jinja2.FileSystemLoader(folder)
    engine = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True)  # noqa: S701
    engine.filters["to_json"] = __import__("json").dumps
    return engine.get_template(template).render(**values)


def test_the_unit_of_a_link() -> None:
    link = {"name": "rxe0", "netdev": "br-lan", "mtu": 4200}
    text = rendered("rdma_link", "link.service.j2", rdma_link_one=link)
    assert "sys-subsystem-net-devices-br\\x2dlan.device" in text
    assert "ExecStartPre=ip link set dev br-lan mtu 4200\n" in text
    assert "ConditionPathExists=!/sys/class/infiniband/rxe0\n" in text
    assert "ExecStart=rdma link add rxe0 type rxe netdev br-lan\n" in text
    assert "mtu" not in rendered(
        "rdma_link", "link.service.j2", rdma_link_one={"name": "a", "netdev": "b", "type": "siw"}
    )


@pytest.mark.parametrize(
    ("address", "listen"), [("10.9.1.1", "10.9.1.1:29949"), ("::1", "[::1]:29949")]
)
def test_the_unit_of_the_exporter_does_not_contain_the_token(address: str, listen: str) -> None:
    values = {"command": "/usr/bin/nfsrdma", "address": address, "port": "29949", "interval": 5}
    variables = {f"observability_{name}": value for name, value in values.items()}
    text = rendered(
        "observability",
        "exporter.service.j2",
        **variables,
        observability_token="s3cret" * 4,
        observability_probes=False,
    )
    assert "s3cret" not in text
    assert (
        f"ExecStart=/usr/bin/nfsrdma exporter --web.listen-address {listen} --interval 5.0"
        " --no-probes --token /etc/nfsrdma/exporter.token\n"
    ) in text


@pytest.mark.parametrize("value", HOSTILE)
def test_the_program_is_valid_python_for_any_path(value: str) -> None:
    text = rendered("toolkit", "nfsrdma.j2", toolkit_release=value)
    (call,) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and n.args]
    assert ast.literal_eval(call.args[1]) == value
