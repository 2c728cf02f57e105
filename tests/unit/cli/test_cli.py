# SPDX-License-Identifier: Apache-2.0
"""The program as a user meets it: help at once, errors in one line."""

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from unit.forked import nfsrdma

from nfsrdma_tools import __version__
from nfsrdma_tools.cli import doctor, main, trace
from nfsrdma_tools.cli.output import SCHEMA_VERSION, aligned, print_inventory, print_table
from nfsrdma_tools.doctor import checks
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.probes.columns import number, words
from nfsrdma_tools.probes.program import NAMES
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep.plan import PRESETS, preset

HEAVY = (
    "jinja2",
    "matplotlib",
    "numpy",
    "rich",
    "pyroute2",
    "psutil",
    "bcc",
    "textual",
    "qemu",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "pydantic",
    "asyncio",
)
COMMANDS = (
    ("doctor",), ("mount",), ("mounts",), ("umount",), ("server",), ("link",), ("sweep",),
    ("results",), ("report",), ("tune",), ("lab",), ("lab", "up"), ("tune", "apply"),
    ("link", "add"), ("trace",), ("top",), ("dashboard",), ("exporter",),
)  # fmt: skip


# a new interpreter, which forks for each command: most of a start is importing typer, which the
# first help has done
HELP = """
import json, os, sys
from nfsrdma_tools.cli.main import main
def help(words):
    sys.argv = ["nfsrdma", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("\\0", *sys.modules, end="\\0", flush=True)
first, *others = json.loads(sys.argv[1])
help(first)
for words in others:
    if not os.fork():
        help(words)
        sys.exit()
    os.wait()
"""


@pytest.fixture(scope="module")
def helps() -> dict[tuple[str, ...], tuple[str, str]]:
    """Output of each command's --help, and the modules that are loaded then."""
    commands = [*COMMANDS, ()]
    argv = (sys.executable, "-c", HELP, json.dumps(commands))
    parts = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\0")
    return dict(zip(commands, zip(parts[0:-1:2], parts[1::2], strict=True), strict=True))


@pytest.mark.parametrize("command", [(), *COMMANDS])
def test_help_loads_nothing_heavy(
    command: tuple[str, ...], helps: dict[tuple[str, ...], tuple[str, str]]
) -> None:
    text, modules = helps[command]
    assert text.startswith("Usage")
    assert "nfsrdma_tools.cli.main" in modules.split()
    assert {name.partition(".")[0] for name in modules.split()}.isdisjoint(HEAVY)


def test_help_names_exit_statuses_and_completion(
    helps: dict[tuple[str, ...], tuple[str, str]],
) -> None:
    text = helps[()][0]
    for status in ("0 success", "1 failure", "2 wrong usage", "130 interrupted"):
        assert status in text
    assert "--install-completion" in text
    headings = [line[:-1] for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings[1:] == list(main.SECTIONS)
    listed = {line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    assert set(main.COMMANDS) <= listed


@pytest.mark.parametrize("group", [(), ("lab",), ("link",), ("server",), ("results",), ("tune",)])
def test_help_of_a_group_has_whole_sentences(
    group: tuple[str, ...], helps: dict[tuple[str, ...], tuple[str, str]]
) -> None:
    lines = helps[group][0].splitlines()[1:]
    assert [line for line in lines if line.endswith("...")] == []


@pytest.mark.parametrize("words", [(), ("trace",), ("lab", "up")])
def test_h_prints_the_help(words: tuple[str, ...], tmp_path: Path) -> None:
    assert nfsrdma(*words, "-h", cwd=tmp_path).stdout.startswith("Usage: nfsrdma")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("report", "/no/such/store"), 1, "/no/such/store"),
        (("lab", "up", "../x"), 2, "is not a lab name"),
        (("lab", "up", "x", "--shape", "trio"), 2, "shape is 'trio' (it can be solo, pair)"),
        (("lab", "ssh", "no-such-lab"), 1, "is down"),
        (("mount", "nocolon", "/mnt"), 2, "nocolon"),
        (("mount", "s:/x", "/mnt", "-o", "vers=3", "--vers", "4.2"), 2, "vers is both 4.2 and 3"),
        (("mount", "s:/x", "/mnt", "-o", "bg"), 2, "'bg' is not supported"),
        (
            ("mount", "s:/x", "/mnt", "--optimistic", "--personality", "cached"),
            2,
            "personality is both optimistic (--optimistic) and cached (--personality)",
        ),
        (
            ("mount", "s:/x", "/mnt", "--optimistic", "-o", "vers=4.2"),
            2,
            "personality optimistic needs vers 3, found 4.2 (use --vers 3: NFSv4 servers check",
        ),
        (
            ("mount", "s:/x", "/mnt", "--optimistic", "--transport", "tcp"),
            2,
            "personality optimistic needs transport nfsrdma, found tcp",
        ),
        (("mount", "s:/x", "/mnt", "-o", "port=x"), 2, "port is 'x', not a number"),
        (("report", "/no/such\n\x1b[31mstore"), 1, "/no/such??[31mstore"),
        (("trace", "nothing"), 2, f"{', '.join(NAMES)}, nfsiostat)"),
        (("trace", "nothing"), 2, "unknown probe set 'nothing'"),
        (("trace", "cpu", "--folded", "/no/such/file"), 1, "/no/such is not a directory"),
        (("trace", "cpu", "--pid", "1"), 2, "trace cpu has no filter --pid"),
        (("trace", "nfsiostat", "--client", "10.0.0.1"), 2, "no filter --client"),
        (("server", "enable", "/", "--client", "a b"), 2, "client 'a b': expected a host"),
        (("server", "enable", "/", "--client", "[a]"), 2, "exportfs cannot export / to [a]"),
        (("server", "enable", "/", "--client", "a", "--vers", "4"), 2, "NFS version '4'"),
        (("server", "enable", "b", "--client", "a"), 2, "'b': expected an absolute path"),
        (("server", "enable", "/b\\", "--client", "a"), 2, "has a backslash"),
        (("server", "enable", "/no/such", "--client", "a"), 1, "'/no/such' is not a directory"),
        (("link", "add", "a/b", "--netdev", "lo", "--dry-run"), 2, "link name 'a/b': expected"),
        (("link", "add", "a", "--netdev", "l/o", "--dry-run"), 2, "'l/o': invalid name"),
        (("link", "add", "a", "netdev", "lo", "type", "x", "--dry-run"), 2, "link type 'x'"),
        (("module", "build", "--kernel", "../x"), 2, "'../x' is not a kernel release"),
        (("exporter", "--web.listen-address", "x"), 2, "the port is missing"),
        (("server", "enable", "", "--client", "a"), 2, "EXPORT is empty"),
        (("server", "disable", ""), 2, "EXPORT is empty"),
        (("report", ""), 2, "STORE is empty"),
        (("results", "merge", "a", "b", ""), 2, "STORE is empty"),
        (("sweep", "--resume", ""), 2, "--resume is empty"),
        (("tune", "apply", "--mount", "", "--rsize", "64k"), 2, "--mount is empty"),
        (("mount", "s:/x", ""), 2, "DIR is empty"),
        (("umount", ""), 2, "DIR is empty"),
        (("capture", "-w", ""), 2, "--write is empty"),
        (("collect", "-o", ""), 2, "--output is empty"),
        (("collect", ""), 2, "SERVER is empty (give a host name or an address)"),
        (("doctor", ""), 2, "SERVER is empty (give a host name or an address)"),
        (("collect", "a\nb"), 2, "SERVER is 'a\\nb', expected a host name or an address"),
        (
            ("tune", "apply", "--mount", "/proc", "--read-ahead", "4", "--dry-run"),
            1,
            "no NFS mount at /proc, so its rsize is unknown (give --rsize or mount it)",
        ),
        (("exporter", "--web.listen-address", "a:b:1"), 2, "only IPv6 addresses have brackets"),
        (("link", "add", "rxe0", "type", "rxe"), 2, "the network device is missing"),
        (("link", "add", "rxe0", "mtu", "9000"), 2, "cannot parse 'mtu 9000'"),
        (("tune", "apply"), 2, "needs either a STORE, or --mount"),
        (("tune", "apply", "s.db", "--rsize", "1M"), 2, "needs either a STORE, or --mount"),
        (("tune", "apply", "s.db", "--mount", "/mnt", "--dry-run"), 1, "s.db"),
    ],
)
def test_an_error_is_one_line_and_a_status_without_a_traceback(
    words: tuple[str, ...], status: int, message: str, tmp_path: Path
) -> None:
    done = nfsrdma(*words, cwd=tmp_path)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("nfsrdma: ") and message in done.stderr


@pytest.mark.parametrize(("before", "ended"), [(signal.SIG_IGN, False), (signal.SIG_DFL, True)])
def test_a_hangup_that_nohup_ignored_stays_ignored(
    before: signal.Handlers, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nohup(1) has its command ignore SIGHUP; without it a closed terminal ends the command."""
    kept = {n: signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM)}
    monkeypatch.setattr(main, "app", lambda **_: os.kill(os.getpid(), signal.SIGHUP))
    try:
        signal.signal(signal.SIGHUP, before)
        with pytest.raises(SystemExit) if ended else contextlib.nullcontext() as left:
            main.main()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert (left.value.code if left else 0) == (128 + signal.SIGHUP if ended else 0)


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = nfsrdma("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"nfsrdma {__version__}\n")


@pytest.mark.parametrize(
    "words",
    [
        ("store", "export", "none.db"),
        ("report", "none.db", "--out", "x"),
        ("mount", "nocolon", "/mnt", "--option", "ro"),
        ("link", "remove", "none"),
        ("results", "merge", "o.db", "none.db", "--load", "x"),
        ("server", "load", "--interval", "1"),
        ("sweep", "nocolon", "--no-accounts"),
        ("sweep", "s:/x", "--in-step", "1/9999"),
        ("exporter", "--address", "::1"),
    ],
)
def test_a_command_has_one_name(words: tuple[str, ...], tmp_path: Path) -> None:
    done = nfsrdma(*words, cwd=tmp_path)
    assert (done.returncode, "No such" in done.stderr) == (2, True), done


def test_a_sweep_that_resumes_takes_no_new_plan(tmp_path: Path) -> None:
    done = nfsrdma("sweep", "--resume", "s.db", "--rsize", "8k", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot change the stored plan (rsizes)" in done.stderr
    done = nfsrdma("sweep", "s:/x", "--start-at", "5", cwd=tmp_path)
    assert "--start-at and --interval need each other" in done.stderr


def commands(
    command: Any = typer.main.get_command(main.app), words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of nfsrdma: the words that select it, and click's command."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


VALUES = [
    pytest.param(words, each, id=f"{' '.join(words)} {(*each.opts, each.name)[0]}")
    for words, command in commands()
    for each in command.params
    if not getattr(each, "hidden", False)
    and not each.required
    and not (getattr(each, "is_flag", False) and not each.secondary_opts)
]


@pytest.mark.parametrize(("words", "param"), VALUES)
def test_the_help_of_a_value_states_its_default(words: tuple[str, ...], param: Any) -> None:
    """In the text, or behind it, where typer prints a plain default."""
    text = param.help or ""
    plain = param.default not in (None, "") and param.show_default is not False
    assert "default:" in text or "required" in text or plain, words
    assert not ("(default:" in text and param.show_default), "two defaults"


def test_the_help_of_a_sweep_has_the_presets_file_sizes(
    helps: dict[tuple[str, ...], tuple[str, str]],
) -> None:
    text = " ".join(helps["sweep",][0].split())
    for plan in (preset(name, "s:/e") for name in PRESETS):
        # 0: as large as the trials need
        assert not plan.file_size or f"{plan.preset} {format_size(plan.file_size)}" in text


# all commands with --json that only read the host; the others need a mount, a store or root
READERS = [
    words
    for words, command in commands()
    if any("--json" in each.opts for each in command.params)
    and not any(each.required for each in command.params)
    and words[-1] in ("doctor", "mounts", "show", "status")
]


def test_there_are_commands_with_json() -> None:
    assert {words[0] for words in READERS} >= {"doctor", "lab", "link", "module", "mounts"}


@pytest.mark.parametrize("option", ["--json", "-j"])
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_json_has_a_schema_version(
    words: tuple[str, ...], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # this kernel may have no RDMA
    monkeypatch.setattr(nldev, "links", list)
    monkeypatch.setattr(nldev, "resources", dict)
    done = nfsrdma(*words, option, cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert facts.pop("schema_version") == SCHEMA_VERSION
    assert facts


def test_commands_print_json_with_a_schema_version_only() -> None:
    """cli/output.py adds the version; no other module of cli writes JSON."""
    folder = Path(main.__file__).parent
    writers = {
        path.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(each.name == "json" for each in node.names)
    }
    assert writers == {"output.py"}


def test_print_inventory_has_the_schema_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_inventory({"all": {"hosts": {"a": {}}, "vars": {"x": 1}}, "group": {}})
    inventory = json.loads(capsys.readouterr().out)
    assert inventory["all"]["vars"] == {"x": 1, "nfsrdma_schema_version": SCHEMA_VERSION}
    # Ansible takes each key at the top for a group
    assert list(inventory) == ["all", "group"]


@pytest.mark.parametrize(
    ("status", "strict", "code"),
    [
        ("ok", True, 0), ("warning", False, 0), ("warning", True, 1), ("unknown", False, 0),
        ("unknown", True, 1), ("error", False, 1), ("error", True, 1),
    ],
)  # fmt: skip
def test_doctor_is_strict_on_request(
    status: str, strict: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding("one", "ok", "fine"), Finding("two", status, "found")]  # type: ignore[arg-type]
    monkeypatch.setattr(checks, "examine", lambda _machine: findings)
    with pytest.raises(typer.Exit) if code else contextlib.nullcontext() as ended:
        doctor.doctor("", strict)
    assert (ended.value.exit_code if ended else 0) == code


def test_brackets_around_an_address_are_none_of_its_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers: list[str] = []

    def examine(machine: Machine) -> list[Finding]:
        servers.append(machine.server)
        return []

    monkeypatch.setattr(checks, "examine", examine)
    monkeypatch.setattr(doctor, "_show", lambda _findings: None)
    for server in ("[2001:db8::1]", "2001:db8::1", "nas", ""):
        doctor.doctor(server)
    assert servers == ["2001:db8::1", "2001:db8::1", "nas", ""]


def test_verbose_prints_programs_and_their_status() -> None:
    argv = (sys.executable, "-c", VERBOSE)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["nfsrdma: run: false", "nfsrdma: false: exit status 1"]


VERBOSE = """
from nfsrdma_tools.cli.process import log_programs
from nfsrdma_tools.command import run
run("true")
log_programs(True)
run("false", check=False)
"""


def test_ctrl_c_exits_with_130() -> None:
    # a shell starts its background jobs with SIGINT ignored, and children inherit that
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    argv = (sys.executable, "-c", f"{code}; from nfsrdma_tools.cli.main import main; main()")
    words = (*argv, "server", "cpu")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout
        assert command.stdout.readline().startswith(b"{")
        command.send_signal(signal.SIGINT)
        assert command.wait() == 130
        assert command.stderr
        assert b"Traceback" not in command.stderr.read()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nfsrdma tra", ["trace"]),
        ("nfsrdma sto", []),
        ("nfsrdma trace re", sorted(name for name in NAMES if name.startswith("re"))),
        ("nfsrdma mount s:/x /mnt --vers 4.", ["4.0", "4.1", "4.2"]),
        ("nfsrdma mount s:/x /mnt --transport n", ["nfsrdma"]),
    ],
)
def test_completion_of_bash(line: str, words: list[str], tmp_path: Path) -> None:
    asked = {"_NFSRDMA_COMPLETE": "complete_bash", "COMP_WORDS": line}
    env = {**os.environ, **asked, "COMP_CWORD": str(len(line.split()) - 1)}
    done = nfsrdma(cwd=tmp_path, env=env)
    assert sorted(done.stdout.split()) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_calls_nfsrdma(shell: str, tmp_path: Path) -> None:
    env = {**os.environ, "_NFSRDMA_COMPLETE": f"source_{shell}"}
    done = nfsrdma(cwd=tmp_path, env=env)
    assert done.returncode == 0
    assert f"_NFSRDMA_COMPLETE=complete_{shell}" in done.stdout


def test_an_error_of_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = nfsrdma("tune", "show", cwd=tmp_path, env={"NFSRDMA_LIB": f"{tmp_path}/file"})
    assert done.returncode == 1
    assert done.stderr == f"nfsrdma: {tmp_path}/file/tune.json: Not a directory\n"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_first_line_of_a_commands_help_is_in_the_help_of_all(name: str) -> None:
    """COMMANDS repeats it, so that `nfsrdma --help` need not import the command."""
    program: Any = typer.main.get_command(main.app)
    assert program.commands[name].get_short_help_str(limit=1000) == main.COMMANDS[name][2]
    assert program.commands[name].name == name


def test_the_help_of_all_imports_no_command(
    helps: dict[tuple[str, ...], tuple[str, str]],
) -> None:
    code = "import sys; sys.argv = ['nfsrdma', '--help']; from nfsrdma_tools.cli.main import main"
    code += "\ntry: main()\nfinally: print(chr(0), *sys.modules)"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    text, modules = done.stdout.split("\0")
    assert text == helps[()][0]
    ours = {name for name in modules.split() if name.startswith("nfsrdma_tools.")}
    assert ours == {
        f"nfsrdma_tools.{name}"
        for name in (
            "cli", "cli.main", "cli.options", "cli.output", "cli.process", "cli.shared_commands",
            "cli.shared_options", "errors",
        )
    }  # fmt: skip


def test_a_table_is_plain_complete_and_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    long = "/mnt/[bold]" + " :smile:" * 40
    print_table([("MOUNT", "TYPE"), (long, "tcp"), ("/mnt/\x1b[1m", ""), ("/日本", "rdma")])
    width = len(long)
    assert capsys.readouterr().out.splitlines() == [
        "MOUNT".ljust(width) + "  TYPE",
        f"{long}  tcp",
        "/mnt/?[1m",
        # a wide character takes two columns of a terminal
        "/日本".ljust(width - 2) + "  rdma",
    ]


def test_a_wide_character_takes_two_columns_in_each_table() -> None:
    assert aligned([("日", "1"), ("abc", "10")], right={1}) == ["日    1", "abc  10"]
    assert aligned([]) == []
    columns = (words("name"), number("count"))
    rows = [{"name": "日本語", "count": 5}]
    assert trace.table(columns, rows) == ["name    count", "日本語      5"]


def ended(*words: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "nfsrdma_tools", *words)
    return subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False, **streams)


def test_a_closed_standard_input_is_an_error_of_one_line() -> None:
    run = ended("explain", "-", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    message = "nfsrdma: standard input is closed (give a file, or a pipe)\n"
    assert (run.returncode, run.stderr) == (1, message)


@pytest.mark.parametrize("names", [[""], ["", "log"]])
def test_a_log_without_a_name_is_wrong_usage(names: list[str]) -> None:
    run = ended("explain", *names, stdout=subprocess.PIPE)
    assert (run.returncode, "the name of a log is empty" in run.stderr) == (2, True), run
    assert not run.stdout


LOG = "[    1.000000] nfs: server störe7 not responding, timed out\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("mount", "--help"),
        ("mounts",),
        ("explain", "LOG"),
        ("explain", "LOG", "--json"),
        ("explain", "--faults"),
        ("explain", "--kernel"),
        ("explain", "--has", "4836da219781", "--from", "6.12.1"),
        ("ping", "--help"),
    ],
)
def test_a_full_disk_is_an_error_of_the_output(tmp_path: Path, words: tuple[str, ...]) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    with Path("/dev/full").open("w") as full:
        run = ended(*(str(log) if word == "LOG" else word for word in words), stdout=full)
    assert (run.returncode, run.stderr) == (
        1,
        "nfsrdma: cannot write the output: No space left on device\n",
    )


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = ended("explain", str(log), stdout=subprocess.PIPE, env=env)
    assert (run.returncode, run.stderr) == (0, "")
    assert "request timed out st\\xf6re7" in run.stdout
