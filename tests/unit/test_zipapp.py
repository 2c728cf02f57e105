# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma.pyz`: health and collect in one file, on Python 3.9 without any package."""

from __future__ import annotations

import ast
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
from unit.health_made import Host
from unit.pythons import interpreter

from nfsrdma_tools.cli import portable
from nfsrdma_tools.cli.main import app
from nfsrdma_tools.cli.options import _between
from nfsrdma_tools.host import recorded
from nfsrdma_tools.host.checks import AFTER_REBOOT, Finding, examine

ROOT = Path(__file__).parents[2]
MODULES = tool.modules()
VERSIONS = ("3.9", "3.13")
LATER = {
    "itertools": ("pairwise", "batched"),
    "typing": ("Self", "TypeAlias", "ParamSpec", "assert_never", "override", "NotRequired"),
    "enum": ("StrEnum",),
    "datetime": ("UTC",),
    "types": ("NoneType",),
    "dataclasses": ("KW_ONLY",),
}
"""Names that modules of the standard library have since Python 3.10 or later."""
KEYWORDS = {"zip": ("strict",), "dataclass": ("slots", "kw_only")}
"""Of functions, since Python 3.10."""


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
    (documented,) = re.findall(r"nfsrdma.pyz, (\d+) KiB", text)
    assert program.stat().st_size >> 10 == pytest.approx(int(documented), rel=0.15)


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
    assert {"nfsrdma_tools.host.anonymize", "pyroute2.netlink.nlsocket"} <= set(loaded)
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
    missing = [
        name
        for name, path in MODULES.items()
        if name.startswith(tool.PACKAGE)
        and not any(fnmatch(str(path.relative_to(ROOT)), pattern) for pattern in patterns)
    ]
    assert missing == []


def test_no_module_has_what_the_oldest_python_lacks() -> None:
    found = []
    for name, path in MODULES.items():
        tree = ast.parse(path.read_bytes(), feature_version=tool.OLDEST)
        found += [f"{name}: {said}" for said in later(tree)]
    assert found == []


def later(tree: ast.AST) -> Iterator[str]:
    """What a tree has of later Pythons; a run on the oldest one need not reach it."""
    for node in tool.statements(tree):
        if isinstance(node, ast.ImportFrom):
            names = LATER.get(node.module or "", ())
            yield from (one.name for one in node.names if one.name in names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from (name for name in LATER.get(node.value.id, ()) if name == node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            keywords = KEYWORDS.get(node.func.id, ())
            yield from (one.arg for one in node.keywords if one.arg in keywords)


def test_what_is_later_is_found() -> None:
    code = (
        "from typing import Self\n"
        "for a in itertools.pairwise(b): zip(a, b, strict=True)\n"
        "@dataclass(slots=True)\n"
        "class A: pass\n"
    )
    assert sorted(later(ast.parse(code))) == ["Self", "pairwise", "slots", "strict"]
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


def test_an_older_python_gets_one_line() -> None:
    code = f"import sys; sys.version_info = (3, 6, 15); exec({tool.MAIN!r})"
    done = _said([sys.executable, "-c", code])
    assert done.returncode == 1
    assert re.fullmatch(r"nfsrdma.pyz: expected Python 3.9 or later, found .*\n", done.stderr)
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
def test_the_options_are_those_of_nfsrdma(name: str) -> None:
    group = typer.main.get_command(app)
    theirs = group.commands[name]  # type: ignore[attr-defined]
    ours = portable.COMMANDS[name].declared
    assert {one.name for one in theirs.params} == set(ours)
    for one in theirs.params:
        declared = ours[one.name]
        assert tuple(one.opts) == (declared.names or (one.name,))
        is_flag = getattr(one, "is_flag", False)
        assert (one.default or None) == ((declared.default or None) if not is_flag else None)
        assert one.metavar == (declared.metavar or None)
        assert (one.help or "").startswith(declared.text)
    assert theirs.help.split() == portable.COMMANDS[name].text.split()


def test_help_names_each_option(program: Path) -> None:
    for name, command in portable.COMMANDS.items():
        shown = " ".join(portable_run(program, "3.9", name, "--help").stdout.split())
        for declared in command.declared.values():
            assert all(option in shown for option in declared.names)
    assert _between(1, 600)(5.0) == 5.0
    assert "Range: 1 to 600." in " ".join(
        portable_run(program, "3.9", "health", "--help").stdout.split()
    )


WRONG = (
    ("health", "--nonsense"),
    ("health", "--state", ""),
    ("health", "--timeout", "0"),
    ("health", "--timeout", "nan"),
    ("health", "--timeout", "soon"),
    ("health", "--max-rpc-age", "x"),
    ("health", "--warn-rpc-age", "1m"),
    ("health", "relative"),
    ("health", "--max-rpc"),
    ("collect", "--nonsense"),
    ("collect", "--output", ""),
    ("collect", "-o", "-", "--json"),
    ("collect", "-o", "/proc/nfsrdma/none.tar.gz"),
    ("collect", "one", "two"),
    ("nonsense",),
    (),
)


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_command_line_has_the_same_status(program: Path, words: tuple[str, ...]) -> None:
    ours, theirs = portable_run(program, "3.9", *words), installed_run(*words)
    assert "Traceback" not in ours.stderr
    assert ours.returncode == theirs.returncode > 0
    one_line = [text for text in (theirs.stdout, theirs.stderr) if text.count("\n") == 1]
    assert [text for text in (ours.stdout, ours.stderr) if text in one_line] == one_line


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
        answers = [
            run(*words, "--state", tmp_path / state / who)
            for who, run in (
                ("ours", lambda *said: portable_run(program, version, *said)),
                ("theirs", installed_run),
            )
        ]
        plain = [json.loads(AGE.sub("", one.stdout)) for one in answers]
        assert plain[0] == plain[1]
        assert answers[0].returncode == answers[1].returncode
        assert len(plain[0]["findings"]) == 2


def unpacked(file: Path) -> dict[str, bytes]:
    """The members of a bundle, the time left out."""
    found = {}
    with tarfile.open(file) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isreg() else None
            found[member.name] = data.read() if data else member.linkname.encode()
            if member.name.endswith(".gz"):
                found[member.name] = gzip.decompress(found[member.name])
    manifest = json.loads(found["manifest.json"])
    del manifest["time"]
    found["manifest.json"] = json.dumps(manifest).encode()
    return found


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
    ours, theirs = tmp_path / "ours.tar.gz", tmp_path / "theirs.tar.gz"
    done = portable_run(program, version, "collect", *options, "-o", ours)
    assert (done.returncode, done.stderr) == (0, "")
    installed_run("collect", *options, "-o", theirs)
    found = [stable(unpacked(file)) for file in (ours, theirs)]
    if options == ("--anonymize",):
        # each run has placeholders of its own for addresses
        found = [{name: ADDRESS.sub(b"", data) for name, data in one.items()} for one in found]
    assert found[0] == found[1]
    programs = [
        [row["argv"] for row in json.loads(unpacked(file)["commands.json"])]
        for file in (ours, theirs)
    ]
    assert programs[0] == programs[1] != []
    assert findings(ours) == findings(theirs)
    assert ours.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_host_gives_the_same_bundle(version: str, program: Path, tmp_path: Path) -> None:
    """Of a host of the field, whose files are below a folder: collect reads any root."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from nfsrdma_tools.host import bundle\n"
        "from nfsrdma_tools.host.anonymize import anonymized\n"
        "from nfsrdma_tools.host.rdma.ports import NoRdmaError\n"
        "made = bundle.collect(root=Path(sys.argv[2]))\n"
        "made.notes.links = NoRdmaError('Protocol not supported')\n"
        "Path(sys.argv[3]).write_bytes(made.archive())\n"
        "Path(sys.argv[4]).write_bytes(anonymized(made, b'k' * 32).archive())\n"
    )
    for case in ("rhel9-bond-vlan-roce", "debian11-default-nfs-kernel-server", "nixos-client"):
        with recorded.opened(ROOT / "tests/field" / case) as machine:
            files = {
                who: [tmp_path / f"{case}-{who}-{kind}" for kind in ("plain", "anonymous")]
                for who in ("ours", "theirs")
            }
            for python, path, (plain, anonymous) in (
                (interpreter(version), program, files["ours"]),
                (sys.executable, ROOT, files["theirs"]),
            ):
                said = _said([python, "-I", "-c", code, path, machine.root, plain, anonymous])
                assert said.stderr == ""
        for ours, theirs in zip(files["ours"], files["theirs"], strict=True):
            assert unpacked(ours) == unpacked(theirs)
            assert len(unpacked(ours)) > 5
            assert findings(ours) == findings(theirs)


# ---- netlink

NETLINK = """
import json, os, random, struct, sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from nfsrdma_tools.host import nfsd_netlink
from nfsrdma_tools.host.rdma import nldev
from unit import nfsd_netlink_made as made

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
    assert done.returncode == 1
    assert done.stderr == "nfsrdma: cannot write bundle: Read-only file system\n"
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
    assert done.stderr == ""
    assert done.returncode in (0, 1, 2, 3)
    assert done.stdout.startswith("NFS ")
    assert len(done.stdout.splitlines()) < 200


def test_a_root_without_devices_has_an_answer(program: Path, tmp_path: Path) -> None:
    script = 'mount -t tmpfs none /dev; exec "$@"'
    words = (interpreter("3.9"), "-I", program, "health", "--state", tmp_path / "state")
    done = inside(script, "-", *words)
    assert done.stdout.startswith("NFS ")
    assert done.stderr == ""
