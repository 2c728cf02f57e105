# SPDX-License-Identifier: Apache-2.0
"""Run modules as Ansible does, each in a process of its own, with JSON in and out.

The process is a fork, not a new interpreter: importing Ansible takes half a second.
"""

import atexit
import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
_MODULES = "ansible_collections.nfsrdma.tools.plugins"


def collections(folder: Path) -> Path:
    """A collections path where nfsrdma.tools is the playbooks of this working tree."""
    place = folder / "ansible_collections/nfsrdma"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "tools").exists():
        (place / "tools").symlink_to(PLAYBOOKS)
    return folder


def templated(value: Any, variables: dict[str, Any]) -> Any:
    """Expand the templates in a value from a file of the collection, as Ansible does in a task."""
    from ansible import template

    # ansible-core 2.19 expands only strings that are marked; earlier versions expand all
    mark = getattr(template, "trust_as_template", str)

    def marked(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: marked(each) for key, each in part.items()}
        if isinstance(part, list):
            return [marked(each) for each in part]
        return mark(part) if isinstance(part, str) else part

    return template.Templar(loader=None, variables=marked(variables)).template(marked(value))


def imported(name: str) -> Any:
    """Import a Python module of the collection, such as ``modules.nfsrdma_sweep``."""
    if not any(path.endswith("/nfsrdma-collections") for path in sys.path):
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        sys.path.append(str(collections(folder / "nfsrdma-collections")))
    return importlib.import_module(f"{_MODULES}.{name}")


def program(root: Path, name: str, text: str) -> None:
    """Write a stand-in for a program of the target: a Python script without its first line.

    -IS skips site, which takes longer than the script; a module runs a dozen of them.
    """
    shell = text.startswith("#!")
    file = root / "bin" / name
    file.write_text(text if shell else f"#!{Path(sys.executable).resolve()} -IS\n{text}")
    file.chmod(0o755)


def run_module(root: Path, name: str, check: bool = False, **args: Any) -> dict[str, Any]:
    """Run a module and return its result; ``root`` has its fstab, its units and its programs.

    A name without a dot is a module of the collection, others are imported as they are.
    """
    module = importlib.import_module(name) if "." in name else imported(f"modules.{name}")
    of_ansible = {"_ansible_check_mode": check, "_ansible_diff": True, "_ansible_tmpdir": str(root)}
    args = {**of_ansible, **args}
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        _be_a_target(module, root, json.dumps({"ANSIBLE_MODULE_ARGS": args}), theirs)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        output = answer.read()
    os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _be_a_target(module: Any, root: Path, asked: str, out: int) -> NoReturn:
    try:
        from ansible.module_utils import basic

        basic._ANSIBLE_ARGS, basic._ANSIBLE_PROFILE = asked.encode(), "legacy"
        # templated() makes this process a controller, which prints warnings itself
        with contextlib.suppress(ImportError):
            internal: Any = importlib.import_module("ansible.module_utils._internal")
            internal.is_controller = False
        place = imported("module_utils.place")
        place.FSTAB, place.UNITS = f"{root}/etc/fstab", f"{root}/units"
        imported("module_utils.records").FOLDER = f"{root}/records"
        nftables = imported("modules.nfsrdma_nftables")
        nftables.RULES, nftables.LOADED = f"{root}/etc/firewall.nft", f"{root}/nf_tables"
        nftables.UNIT = f"{root}/units/nfsrdma-firewall.service"
        os.environ["PATH"] = f"{root}/bin:{os.environ['PATH']}"
        imported("modules.nfsrdma_sweep").FOLDER = f"{root}/sweeps"
        imported("modules.nfsrdma_facts").PROC = f"{root}/proc"
        sys.stdout = os.fdopen(out, "w")
        module.main()
    except SystemExit:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)
