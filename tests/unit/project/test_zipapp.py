# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma.pyz`: health and collect in one file, on Python 3.9 without any package."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import portable as tool
import pytest
import typer
from field_archive import CASES, Unpacked
from unit.live.health.health_made import Host
from unit.pythons import interpreter

from nfsrdma_tools.cli import portable
from nfsrdma_tools.cli.main import app
from nfsrdma_tools.cli.options import _between
from nfsrdma_tools.doctor import recorded
from nfsrdma_tools.doctor.checks import AFTER_REBOOT, examine
from nfsrdma_tools.doctor.finding import Finding

ROOT = Path(__file__).parents[3]
MODULES = tool.modules()
VERSIONS = ("3.9", "3.13")
LATER = {
    "itertools": ("pairwise", "batched"), "enum": ("StrEnum",), "datetime": ("UTC",),
    "typing": ("Self", "TypeAlias", "ParamSpec", "assert_never", "override", "NotRequired"),
    "types": ("NoneType",), "dataclasses": ("KW_ONLY",), "contextlib": ("aclosing", "chdir"),
    "asyncio": ("TaskGroup", "Runner", "timeout"), "hashlib": ("file_digest",),
    "sys": ("exception", "orig_argv", "stdlib_module_names"), "operator": ("call",),
    "math": ("cbrt", "exp2"),
}  # fmt: skip
"""Names that modules of the standard library have since Python 3.10 or later."""
KEYWORDS = {
    "zip": ("strict",),
    "dataclass": ("slots", "kw_only", "weakref_slot"),
    **dict.fromkeys(("bisect", "bisect_left", "bisect_right", "insort"), ("key",)),
    **dict.fromkeys(("glob", "iglob"), ("root_dir", "dir_fd", "include_hidden")),
    **dict.fromkeys(("exists", "is_dir", "is_file", "stat", "chmod"), ("follow_symlinks",)),
    **dict.fromkeys(("read_text", "write_text"), ("newline",)),
}
"""Of functions and methods, since Python 3.10 or later."""
METHODS = ("bit_count", "add_note", "hardlink_to", "walk_up", "with_segments")
"""Since Python 3.10 or later."""
BUILTINS = ("ExceptionGroup", "BaseExceptionGroup", "EncodingWarning", "aiter", "anext")
"""Since Python 3.10 or later."""
POSITIONAL = {"from_bytes": 2, "to_bytes": 2}
"""Arguments that have a default since Python 3.11 only."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("zipapp") / "nfsrdma.pyz"
    tool.build(file)
    return file


def _said(argv: Sequence[str | Path], **words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, **words)  # type: ignore[call-overload,no-any-return]


def portable_run(
    program: Path, version: str, *words: str | Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    # -I: neither a user's packages nor this checkout
    return _said([interpreter(version), "-I", program, *words], cwd=folder)


def installed_run(
    *words: str | Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "nfsrdma_tools", *words]
    return _said(argv, cwd=folder, env=environment)


# ---- what it consists of


def test_two_builds_have_the_same_bytes(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere/nfsrdma.pyz"
    tool.build(copy)
    assert copy.read_bytes() == program.read_bytes()


def test_the_size_is_the_documented_one(program: Path) -> None:
    text = (ROOT / "docs/how-to/install.md").read_text()
    (limit,) = re.findall(r"nfsrdma.pyz, less than (\d+) KiB", text)
    assert int(limit) * 0.75 < program.stat().st_size / 1024 < int(limit)


def test_the_commands_of_the_page_work_one_after_the_other(program: Path, tmp_path: Path) -> None:
    """With two folders in place of the two hosts."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "dist").mkdir(parents=True)
    (there / "run").mkdir(parents=True)
    text = (ROOT / "docs/how-to/install.md").read_text()
    (block,) = (b for b in re.findall(r"```console\n(.*?)```", text, re.S) if "zipapp" in b)
    commands = [
        re.sub(r"(?<= )(?:root@host:)?/run/", f"{there}/run/", line[2:].partition("  #")[0])
        for line in block.splitlines()
    ]
    environment = {**os.environ, "NFSRDMA_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    for command in commands:
        first, *words = command.split()
        stand_ins = {
            "make": ["cp", str(program), "dist"],
            "scp": ["cp", *words],
            "python3": [interpreter("3.9"), *words],
            "nfsrdma": [sys.executable, "-m", "nfsrdma_tools", *words],
        }
        done = _said(stand_ins[first], cwd=here, env=environment)
        assert done.stderr == ""
        # health and doctor have found something, or nothing
        assert done.returncode in ((0, 1, 2) if words[-1] == "health" else (0, 1))
    assert first == "nfsrdma"
    assert "kernel" in done.stdout


def test_it_has_no_checks_and_imports_the_standard_library_only() -> None:
    assert [name for name in MODULES if ".checks" in name or ".probes" in name] == []
    names = {name for path in MODULES.values() for name in tool.imported(path.read_bytes())}
    inside = {tool.PACKAGE, tool.LIBRARY, *sys.stdlib_module_names}
    others = {name.partition(".")[0] for name in names} - inside
    # of a table with wide characters, which neither command prints
    assert others == {"rich"}
    assert {"bundle", "anonymize"} <= {name.rpartition(".")[2] for name in MODULES}


def test_the_list_of_modules_has_all_that_the_commands_import(program: Path) -> None:
    code = (
        "import sys; sys.argv = ['nfsrdma.pyz', 'collect', '--anonymize', '-o', '-'];"
        f"sys.path.insert(0, {str(program)!r})\n"
        "from nfsrdma_tools.cli.portable import main\n"
        "try: main()\n"
        "finally:\n"
        "  from nfsrdma_tools.host import nfsd_netlink\n"
        "  from nfsrdma_tools.host.rdma import nldev\n"
        "  import pyroute2\n"
        "  names = (n for n in sys.modules if n.startswith(('nfsrdma', 'pyroute2.')))\n"
        "  print(pyroute2.__file__, *names, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    library, *loaded = done.stderr.decode().split("\n")[-2].split()
    assert library == f"{program}/pyroute2/__init__.py"
    assert {"nfsrdma_tools.doctor.anonymize", "pyroute2.netlink.nlsocket"} <= set(loaded)
    assert set(loaded) <= set(MODULES)


def test_it_has_version_and_licences_of_the_library(program: Path) -> None:
    code = "import sys; from importlib.metadata import version; sys.path.insert(0, sys.argv[1])"
    code += "; print(version('pyroute2'))"
    done = _said([interpreter("3.9"), "-I", "-c", code, program])
    assert done.stdout == f"{metadata.version('pyroute2')}\n"
    with zipfile.ZipFile(program) as archive:
        texts = [archive.read(name) for name in archive.namelist() if "dist-info/lic" in name]
    assert any(b"Apache License" in text for text in texts)


def test_a_python_without_the_library_builds_nothing(tmp_path: Path) -> None:
    done = _said([interpreter("3.13"), "-I", ROOT / "tools/portable.py", tmp_path])
    assert done.returncode == 1
    assert re.fullmatch(r"portable: pyroute2 is not installed in .* \(run: .*\)\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_each_module_is_linted_for_its_oldest_python() -> None:
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    patterns = ruff["per-file-target-version"]
    assert set(patterns.values()) == {"py39"}
    own = (str(p.relative_to(ROOT)) for n, p in MODULES.items() if n.startswith(tool.PACKAGE))
    assert [path for path in own if not any(fnmatch(path, p) for p in patterns)] == []


def test_no_module_has_what_the_oldest_python_lacks() -> None:
    faults = []
    for name, path in MODULES.items():
        tree = ast.parse(path.read_bytes(), feature_version=tool.OLDEST)
        faults += [f"{name}: {feature}" for feature in later(tree)]
    assert faults == []


def later(tree: ast.AST) -> Iterator[str]:
    """What a tree has of later Pythons; a run on the oldest one need not reach it."""
    for node in tool.statements(tree):
        if isinstance(node, ast.ImportFrom):
            names = LATER.get(node.module or "", ())
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            yield node.id
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            yield from (name for name in (*LATER.get(of, ()), *METHODS) if name == node.attr)
        elif isinstance(node, ast.Call):
            yield from later_in_call(node)


def later_in_call(call: ast.Call) -> Iterator[str]:
    """What a call has of later Pythons."""
    function = call.func
    name = getattr(function, "id", "") or getattr(function, "attr", "")
    # os.stat() and its like have had theirs for long
    of_os = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "os"
    keywords = () if of_os else KEYWORDS.get(name, ())
    yield from (keyword.arg for keyword in call.keywords if keyword.arg in keywords)
    given = len(call.args) + sum(
        keyword.arg in ("length", "byteorder") for keyword in call.keywords
    )
    if given < POSITIONAL.get(name, 0):
        yield name
    # a union of types is no class
    if name in ("isinstance", "issubclass") and isinstance(call.args[1], ast.BinOp):
        yield ast.unparse(call.args[1])


def test_what_is_later_is_found() -> None:
    code = (
        "from typing import Self\n"
        "for a in itertools.pairwise(b): zip(a, b, strict=True)\n"
        "@dataclass(slots=True)\n"
        "class A: pass\n"
        "int.from_bytes(a); int.from_bytes(a, 'big'); int.from_bytes(a, byteorder='big')\n"
        "a.to_bytes(2); a.to_bytes(2, 'big'); a.to_bytes(length=2, byteorder='big')\n"
        "bisect.bisect(a, b, key=c); a.bit_count(); raise ExceptionGroup('', a)\n"
        "isinstance(a, int | str); isinstance(a, (int, str)); os.stat(a, follow_symlinks=False)\n"
        "Path(a).stat(follow_symlinks=False)\n"
    )
    assert sorted(later(ast.parse(code))) == [
        "ExceptionGroup", "Self", "bit_count", "follow_symlinks", "from_bytes", "int | str",
        "key", "pairwise", "slots", "strict", "to_bytes",
    ]  # fmt: skip
    with pytest.raises(SyntaxError):
        ast.parse("match a:\n case 1: pass\n", feature_version=tool.OLDEST)


@pytest.mark.parametrize("version", VERSIONS)
def test_python_imports_each_module(version: str, program: Path) -> None:
    code = (
        f"import importlib, sys; sys.path.insert(0, {str(program)!r})\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(len(sys.argv) - 1)"
    )
    done = _said([interpreter(version), "-I", "-c", code, *MODULES])
    assert (done.stdout, done.stderr) == (f"{len(MODULES)}\n", "")


@pytest.mark.parametrize(
    ("words", "status"),
    [((), 1), (("collect", "health"), 1), (("health", "/mnt"), 3), (("-v", "health"), 3)],
    ids=str,
)
def test_an_older_python_gets_one_line(words: tuple[str, ...], status: int) -> None:
    code = f"import sys; sys.version_info = (3, 6, 15); exec({tool.MAIN!r})"
    done = _said([sys.executable, "-c", code, *words])
    assert done.returncode == status
    argv = ("-", sys.executable, "-c", code, *words)
    full = _said(["sh", "-c", 'exec "$@" 2>/dev/full >/dev/full', *argv])
    assert full.returncode == status
    of_health, silent = (done.stdout, done.stderr) if status == 3 else (done.stderr, done.stdout)
    name = "NFS UNKNOWN" if status == 3 else "nfsrdma.pyz"
    assert re.fullmatch(rf"{name}: expected Python 3.9 or later, found .*\n", of_health)
    assert silent == ""
    # Python 3.6 must understand it
    ast.parse(tool.MAIN, feature_version=(3, 6))


HELP = """
import sys; sys.path.insert(0, {program!r}); sys.argv = ["nfsrdma.pyz", "--help"]
from nfsrdma_tools.cli.portable import main
try: main()
finally: print(*(n for n in sys.modules if n.startswith(("nfsrdma", "pyr"))), file=sys.stderr)
"""


def test_help_imports_few_modules(program: Path) -> None:
    done = _said([sys.executable, "-I", "-c", HELP.format(program=str(program))])
    assert "collect" in done.stdout
    assert {name.partition(".")[2] for name in done.stderr.split()} == {
        "", "cli", "cli.output", "cli.portable", "cli.process", "cli.shared_commands",
        "cli.shared_options", "errors",
    }  # fmt: skip


# ---- the same options


@pytest.mark.parametrize("name", sorted(portable.COMMANDS))
def test_portable_options_are_those_of_nfsrdma(name: str) -> None:
    group = typer.main.get_command(app)
    theirs = group.commands[name]  # type: ignore[attr-defined]
    ours = portable.COMMANDS[name].declared
    assert {parameter.name for parameter in theirs.params} == set(ours)
    for parameter in theirs.params:
        declared = ours[parameter.name]
        assert tuple(parameter.opts) == (declared.names or (parameter.name,))
        is_flag = getattr(parameter, "is_flag", False)
        assert (parameter.default or None) == ((declared.default or None) if not is_flag else None)
        assert parameter.metavar == (declared.metavar or None)
        assert (parameter.help or "").startswith(declared.text)
    assert theirs.help.split() == portable.COMMANDS[name].text.split()


def test_help_names_each_option(program: Path) -> None:
    for name, command in portable.COMMANDS.items():
        shown = " ".join(portable_run(program, "3.9", name, "--help").stdout.split())
        for declared in command.declared.values():
            assert all(option in shown for option in declared.names)
    assert _between(1, 600)(5.0) == 5.0
    shown = portable_run(program, "3.9", "health", "--help").stdout
    assert "Range: 1 to 600." in " ".join(shown.split())


WRONG = (
    ("health", "--nonsense"), ("health", "--state", ""), ("health", "--timeout", "0"),
    ("health", "--timeout", "nan"), ("health", "--timeout", "soon"),
    ("health", "--max-rpc-age", "x"), ("health", "--warn-rpc-age", "1m"), ("health", "relative"),
    ("health", "--max-rpc"), ("collect", "--nonsense"), ("collect", "--output", ""),
    ("collect", "-o", "-", "--json"), ("collect", "-o", "/proc/nfsrdma/none.tar.gz"),
    ("collect", "one", "two"), ("nonsense",), (),
)  # fmt: skip
OF_PARSERS = {"--nonsense", "--max-rpc", "soon"}
"""Words for whose errors typer and argparse have messages of their own."""


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_command_line_has_the_same_status(program: Path, words: tuple[str, ...]) -> None:
    ours, theirs = portable_run(program, "3.9", *words), installed_run(*words)
    assert "Traceback" not in ours.stderr and ours.returncode == theirs.returncode > 0
    if words[:1] == ("health",):
        for done in (ours, theirs):
            assert re.fullmatch("NFS UNKNOWN: [^\n]+\n", done.stdout) and done.stderr == ""
    if set(words) & OF_PARSERS:
        return
    one_line = [
        text.replace("see nfsrdma ", "see nfsrdma.pyz ")
        for text in (theirs.stdout, theirs.stderr)
        if text.count("\n") == 1
    ]
    assert [text for text in (ours.stdout, ours.stderr) if text in one_line] == one_line


@pytest.mark.parametrize("words", [words for words in WRONG if words[:1] == ("health",)])
def test_a_wrong_command_line_of_health_has_a_document(
    program: Path, words: tuple[str, ...]
) -> None:
    for done in (portable_run(program, "3.9", *words, "-j"), installed_run(*words, "--json")):
        facts = json.loads(done.stdout)
        assert (done.returncode, done.stderr, facts["exit_status"]) == (3, "", 3)
        assert facts["error"] and facts.keys() == without_python(("health", "--json")).keys()


def without_python(words: tuple[str, ...]) -> dict[str, object]:
    """The document that an older Python prints."""
    code = f"import sys; sys.version_info = (3, 6, 15); exec({tool.MAIN!r})"
    done = _said([sys.executable, "-c", code, *words])
    return dict(json.loads(done.stdout))


def test_the_version_is_that_of_nfsrdma(program: Path) -> None:
    assert portable_run(program, "3.9", "--version").stdout == installed_run("--version").stdout


# ---- the same answers

ADDRESS = re.compile(rb"[0-9a-f]{2}(?::[0-9a-f]{2}){5,}|[0-9]+(?:\.[0-9]+){3}")
AGE = re.compile(r'"age_seconds": [0-9.]+,|at least \d+ s')


@pytest.mark.parametrize("version", VERSIONS)
def test_health_has_the_same_answer(version: str, program: Path, tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.mount("/mnt/a", 3, more=",soft")
    host.mount("/mnt/line\\012break", 4, "rdma")
    host.tasks(3, (9, 0x11))
    for state in ("first", "second", "first"):
        words = ("health", *host.words, "--max-rpc-age", "1h", "--json")
        ours = portable_run(program, version, *words, "--state", tmp_path / state / "ours")
        theirs = installed_run(*words, "--state", tmp_path / state / "theirs")
        answers = [ours, theirs]
        plain = [json.loads(AGE.sub("", answer.stdout)) for answer in answers]
        assert plain[0] == plain[1]
        assert answers[0].returncode == answers[1].returncode
        assert len(plain[0]["findings"]) == 2


def unpacked(file: Path) -> dict[str, bytes]:
    """The members of a bundle, the time left out."""
    members = {}
    with tarfile.open(file) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isreg() else None
            members[member.name] = data.read() if data else member.linkname.encode()
            if member.name.endswith(".gz"):
                members[member.name] = gzip.decompress(members[member.name])
    manifest = json.loads(members["manifest.json"])
    del manifest["time"]
    members["manifest.json"] = json.dumps(manifest).encode()
    return members


def stable(members: dict[str, bytes]) -> dict[str, bytes]:
    """The members that do not change from one run to the next, and the names of all."""
    moving = re.compile(
        r"proc/(?:net/|modules|self/(?:mountstats|limits|status))|sys/class/net/.*/counters|"
        r".*/(?:counters|hw_counters|statistics)/|commands\.json"
    )
    return {name: b"" if moving.match(name) else data for name, data in members.items()}


def findings(file: Path) -> list[Finding]:
    with recorded.opened(file) as machine:
        return [*examine(machine), *examine(machine, AFTER_REBOOT)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [(), ("--anonymize",), ("127.0.0.1",)], ids=str)
def test_a_bundle_has_the_same_files_and_findings(
    version: str, options: tuple[str, ...], program: Path, tmp_path: Path
) -> None:
    ours, theirs, before = (tmp_path / f"{name}.tar.gz" for name in ("ours", "theirs", "before"))
    installed_run("collect", *options, "-o", before)
    done = portable_run(program, version, "collect", *options, "-o", ours)
    assert (done.returncode, done.stderr) == (0, "")
    installed_run("collect", *options, "-o", theirs)
    bundles = [stable(unpacked(file)) for file in (ours, theirs, before)]
    if options == ("--anonymize",):
        # each run has placeholders of its own for addresses
        bundles = [
            {name: ADDRESS.sub(b"", data) for name, data in bundle.items()} for bundle in bundles
        ]
    # what other programs changed on this host meanwhile
    _, now, then = bundles
    changed = {name for bundle in bundles for name in bundle if now.get(name) != then.get(name)}
    kept = [{name: bundle[name] for name in bundle.keys() - changed} for bundle in bundles]
    assert kept[0] == kept[1]
    assert kept[0].keys() >= {"manifest.json", "proc/self/mountinfo"} - changed
    programs = [
        [row["argv"] for row in json.loads(unpacked(file)["commands.json"])]
        for file in (ours, theirs)
    ]
    assert programs[0] == programs[1] != []
    assert findings(ours) == findings(theirs)
    assert ours.stat().st_mode & 0o777 == 0o600


COLLECTED = """
import json, sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from nfsrdma_tools.doctor import bundle
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.rdma.ports import NoRdmaError
for case, root in json.load(sys.stdin).items():
    made = bundle.collect(machine=Machine(Path(root)))
    made.notes.links = NoRdmaError("Protocol not supported")
    Path(sys.argv[2], case).write_bytes(made.archive())
    Path(sys.argv[2], f"{case}-anonymous").write_bytes(anonymized(made, b"k" * 32).archive())
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_hosts_give_the_same_bundles(
    version: str, program: Path, tmp_path: Path, field: Unpacked
) -> None:
    """Those of the field, whose files are below a folder: collect reads any root."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with contextlib.ExitStack() as stack:
        opened = {case: stack.enter_context(recorded.opened(field(case))) for case in CASES}
        roots = json.dumps({case: str(machine.root) for case, machine in opened.items()})
        whose = ((interpreter(version), program, ours), (sys.executable, ROOT, theirs))
        for python, path, folder in whose:
            folder.mkdir()
            done = _said([python, "-I", "-c", COLLECTED, path, folder], input=roots)
            assert done.stderr == ""
    names = sorted(file.name for file in theirs.iterdir())
    assert len(names) == 2 * len(opened) > 100
    for name in names:
        assert unpacked(ours / name) == unpacked(theirs / name)
    assert len(unpacked(theirs / "rhel9-bond-vlan-roce")) > 5


# ---- parsers

PARSED = """
import dataclasses, json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from nfsrdma_tools.host.kernel_log.explain import explain, recognized_lines
for name in json.load(sys.stdin):
    lines = Path(name).read_text(errors="replace").split("\\n")
    print(name, recognized_lines(lines), [dataclasses.asdict(one) for one in explain(lines)])
"""
LOGS = sorted((ROOT / "tests/unit/kernel_records").glob("*.log"))


@pytest.mark.parametrize("version", ("3.9", "3.10", "3.13"))
def test_logs_have_the_same_lines_and_meanings(version: str, program: Path) -> None:
    names = json.dumps([str(file) for file in LOGS])
    runs = [
        _said([python, "-I", "-c", PARSED, path], input=names)
        for python, path in ((interpreter(version), program), (sys.executable, ROOT))
    ]
    assert runs[0].stderr == runs[1].stderr == ""
    assert runs[0].stdout.splitlines() == runs[1].stdout.splitlines()
    assert len(runs[1].stdout.splitlines()) == len(LOGS)
    # among them those of each kind of record
    assert all(words in runs[1].stdout for words in ("dump error cqe", "Call Trace:", "not resp"))


# ---- netlink

NETLINK = """
import json, os, random, struct, sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from nfsrdma_tools.host import nfsd_netlink
from nfsrdma_tools.host.rdma import nldev
from unit.host import nfsd_netlink_made as made

def messages(command):
    for text in json.loads(Path(sys.argv[3]).read_text())[command]:
        message = nldev.Message(bytes.fromhex(text))
        message.decode()
        yield message

devices = [nldev.to_device(one, "rxe") for one in messages("GET")]
said = [
    devices, [nldev.to_driver(one) for one in messages("GET_CHARDEV")],
    [nldev.to_link(one, devices[0]) for one in messages("PORT_GET")],
    [nldev.to_resources(one) for one in messages("RES_GET")],
    [nldev.to_counters(one) for one in messages("STAT_GET")],
]

class Hostile(made.Kernel):
    def recvfrom(self, size):
        data, sender = super().recvfrom(size)
        if self.asked:
            data = bytearray(data)
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            data = data[: chance.randrange(len(data) + 1)] if chance.random() < 0.3 else data
        return bytes(data), sender

def status(kernel):
    nfsd_netlink.socket.socket = kernel
    return nfsd_netlink.read()

nfsd_netlink.time.monotonic_ns = lambda: 5 * 10**12
rows = [made.rpc(n, started_us=5 * 10**9 - n, operations=(53, 25)) for n in range(300)]
socket = nfsd_netlink.socket.socket
said += [
    status(made.Kernel(rpcs=rows)), status(made.Kernel(rpcs=rows, rest=[])),
    status(made.Kernel({})), status(made.Kernel(family=0)),
]
chance = random.Random(8166)
said += [status(Hostile(rpcs=rows[:8])) for _ in range(200)]
nfsd_netlink.socket.socket = socket
for one in said:
    print(one)

# a kernel without ib_core still lists its network devices
nldev.NETLINK_RDMA, nldev.require_netlink = 0, lambda: None
nldev.message_type = lambda _: 18  # RTM_GETLINK

class Link(nldev.nlmsg):
    of = classmethod(lambda link: link())
    fields = [("family", "H"), ("type", "H"), ("index", "i"), ("flags", "I"), ("change", "I")]
    nla_map = ((3, "NAME", "asciiz"),)

nldev.Message = Link
with nldev._socket() as sock:
    sock.register_policy({16: Link})  # RTM_NEWLINK
    print([one.get_attr("NAME") for one in nldev._ask(sock, nldev.Command.GET, dump=True)])
try:
    nldev.message_type = lambda _: 20  # RTM_NEWADDR without an address
    nldev._change(nldev.Command.GET)
except nldev.NetlinkError as error:
    print(error.code)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_netlink_has_the_same_answers(version: str, program: Path) -> None:
    """Recorded bytes of RDMA netlink, replies of nfsd, and lists of this host's kernel."""
    words = (ROOT / "tests", ROOT / "tests/unit/data/nldev-6.12.json")
    ours = _said([interpreter(version), "-I", "-c", NETLINK, program, *words])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    theirs = _said([sys.executable, "-c", NETLINK, ROOT, *words], env=environment)
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)
    assert theirs.stderr == ""
    assert re.search(r"^\['lo'.*\]\n\d+\n\Z", theirs.stdout, re.MULTILINE)
    assert "the kernel's list ends early" in theirs.stdout
    assert "rxe" in theirs.stdout


# ---- streams and signals


@pytest.fixture(params=["zipapp", "installed"])
def argv(request: pytest.FixtureRequest, program: Path) -> list[str | Path]:
    """What starts the zipapp or nfsrdma."""
    if request.param == "zipapp":
        return [interpreter("3.9"), "-I", program]
    return ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "nfsrdma_tools"]


def with_streams(streams: str, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program with redirections of a shell."""
    return _said(["sh", "-c", f'exec "$@" {streams}', "-", *argv])


def hung(folder: Path) -> list[str | Path]:
    """The words of a check that is CRITICAL."""
    host = Host(folder)
    host.mount("/mnt/a", 3)
    return ["health", *host.words, "/mnt/a", "/mnt/b"]


@pytest.mark.parametrize(
    ("streams", "status", "lines"),
    [
        ("2>&-", 2, 1), ("<&-", 2, 1), ("2>&- <&-", 2, 1), ("2>/dev/full", 2, 1),
        (">/dev/full", 3, 0), (">&-", 3, 0), (">&- 2>&- <&-", 3, 0), (">/dev/full 2>&1", 3, 0),
    ],
)  # fmt: skip
def test_health_answers_or_is_unknown(
    argv: list[str | Path], streams: str, status: int, lines: int, tmp_path: Path
) -> None:
    done = with_streams(streams, *argv, *hung(tmp_path / "host"))
    assert (done.returncode, done.stdout.count("NFS CRITICAL: /mnt/b: ")) == (status, lines)
    if "2>" not in streams and status == 3:
        assert re.fullmatch("nfsrdma: cannot write the output: .*\n", done.stderr)
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("words", [("--bad",), ("--state", ""), ("relative",)], ids=str)
def test_wrong_usage_that_cannot_be_printed_is_unknown(
    argv: list[str | Path], words: tuple[str, ...]
) -> None:
    for streams in ("2>/dev/full", "2>&-", ">/dev/full", ">&-", ">&- 2>&-"):
        assert with_streams(streams, *argv, "health", *words).returncode == 3


@pytest.mark.parametrize("words", [("--bad",), ("--json",), ()], ids=str)
def test_health_without_a_reader_is_no_warning(
    argv: list[str | Path], words: tuple[str, ...], tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*argv, *hung(tmp_path / "host"), *words]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    # as a shell has it for SIGPIPE, or UNKNOWN
    assert done.returncode in (141, 3)
    assert done.stderr == b""


@pytest.mark.parametrize("output", [">&-", ">/dev/full"])
def test_a_bundle_that_cannot_be_written_is_one_line(argv: list[str | Path], output: str) -> None:
    done = with_streams(output, *argv, "collect", "-o", "-")
    assert done.returncode == 1
    assert re.fullmatch("nfsrdma: cannot write the output: .*\n", done.stderr)


def changed(program: Path, folder: Path, module: str, old: str, new: str) -> Path:
    """A copy of the program with another text in a module."""
    copy = folder / "nfsrdma.pyz"
    with zipfile.ZipFile(program) as before, zipfile.ZipFile(copy, "w") as after:
        for name in before.namelist():
            text = before.read(name).decode()
            if name == f"nfsrdma_tools/{module}.py":
                assert text.count(old) == 1
                text = text.replace(old, new)
            after.writestr(name, text)
    return copy


def test_an_error_of_health_itself_is_unknown(program: Path, tmp_path: Path) -> None:
    old = "    report = judge("
    copy = changed(program, tmp_path, "live/health/check", old, f"    1 / 0\n{old}")
    done = portable_run(copy, "3.9", *hung(tmp_path / "host"))
    line = "NFS UNKNOWN: an error of nfsrdma: ZeroDivisionError: division by zero .report it, .*\n"
    assert re.fullmatch(line, done.stdout) and done.returncode == 3
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("command", "module"),
    [("health", "cli/portable"), ("health", "live/health/check"), ("collect", "doctor/bundle"),
     ("collect", "cli/output")],
)  # fmt: skip
def test_ctrl_c_is_no_traceback(command: str, module: str, program: Path, tmp_path: Path) -> None:
    """While a module is imported, at the start or by the command that works."""
    # a shell has its background jobs ignore the signal
    code = """import annotations
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
"""
    copy = changed(program, tmp_path, module, "import annotations\n", code)
    done = portable_run(copy, "3.9", command, "--output=-" if command == "collect" else "/mnt")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# ---- hostile hosts


def inside(script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script in mount and user namespaces of its own."""
    done = _said(["unshare", "-rm", "true"])
    if done.returncode:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    return _said(["unshare", "-rm", "sh", "-ec", script, *words])


@pytest.mark.parametrize("missing", ["/proc", "/sys"])
def test_a_container_without_proc_or_sys_is_no_traceback(
    missing: str, program: Path, tmp_path: Path
) -> None:
    script = f'mount -t tmpfs none {missing}; "$0" -I "$@"'
    python = interpreter("3.9")
    state = ("--state", str(tmp_path / "state"))
    done = inside(script, python, program, "health", *state)
    assert done.stdout.startswith("NFS UNKNOWN: " if missing == "/proc" else "NFS ")
    assert done.stderr == ""
    done = inside(script, python, program, "collect", "-o", tmp_path / "bundle")
    assert (done.returncode, done.stderr) == (0, "")
    assert findings(tmp_path / "bundle")


def test_a_read_only_folder_and_an_existing_file_are_one_line(
    program: Path, tmp_path: Path
) -> None:
    script = 'mount -t tmpfs -o ro none "$0"; shift; cd "$0"; exec "$@"'
    python = interpreter("3.9")
    done = inside(script, tmp_path, "-", python, "-I", program, "collect", "-o", "bundle")
    refused = (1, "nfsrdma: cannot write bundle: Read-only file system\n")
    assert (done.returncode, done.stderr) == refused
    file = tmp_path / "bundle"
    file.write_text("mine")
    done = portable_run(program, "3.9", "collect", "-o", file)
    assert done.returncode == 1
    assert re.fullmatch(r"nfsrdma: .* exists \(remove it, .*\)\n", done.stderr)
    assert file.read_text() == "mine"


def test_a_long_mount_table_ends_in_an_answer(program: Path, tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.mount("/mnt/a", 3)
    table = host.root / "proc/1/mountinfo"
    rows = (
        f"{n + 100} 22 0:{n + 99} / /m/{n}\\012b rw - nfs4 s:/e rw,vers=4.2\n" for n in range(10**6)
    )
    with table.open("a") as file:
        file.writelines(rows)
    done = portable_run(program, "3.9", "health", *host.words, "--timeout", "2", "--state",
                        tmp_path / "state")  # fmt: skip
    assert (done.stderr, done.stdout[:4]) == ("", "NFS ")
    assert done.returncode in (0, 1, 2, 3) and len(done.stdout.splitlines()) < 200


def test_a_root_without_devices_has_an_answer(program: Path, tmp_path: Path) -> None:
    script = 'mount -t tmpfs none /dev; exec "$@"'
    words = (interpreter("3.9"), "-I", program, "health", "--state", tmp_path / "state")
    done = inside(script, "-", *words)
    assert (done.stdout[:4], done.stderr) == ("NFS ", "")
