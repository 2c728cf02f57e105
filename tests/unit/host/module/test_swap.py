# SPDX-License-Identifier: Apache-2.0
"""Modules swapped on a kernel of our own, where every step can fail; lab tests take a real one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsrdma_tools import identity, module_source, undo
from nfsrdma_tools.cli import module as module_cli
from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import CommandError, MismatchError, UserError
from nfsrdma_tools.host import kernel_modules, transports
from nfsrdma_tools.host.kernel_modules import Module, ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module import swap as module_swap
from nfsrdma_tools.host.module import users as module_users
from nfsrdma_tools.host.module.build import Build
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.state import module_state
from nfsrdma_tools.undo import journal, recover

RELEASE = "6.12.1-x"
NEEDS = ("sunrpc", "rdma_cm")
REAL = ModuleFile("rpcrdma", "/lib/rpcrdma.ko")
FILE = ModuleFile(
    # any file that is there: its words come from here
    "nfsrdma", __file__, vermagic=f"{RELEASE} SMP ", srcversion="NEW", depends=NEEDS
)  # fmt: skip
OURS = Path(__file__).stem


class Kernel:
    """Modules that are loaded, as folders like /sys/module, and what loading one more does."""

    def __init__(self, sys: Path, *carriers: str) -> None:
        self.sys = sys
        for name in carriers:
            (sys / name).mkdir(parents=True)
        self.broken: set[str] = set()
        self.parameters: dict[str, str] = {}
        self.references = 0
        self.forgotten = 0
        self.calls: list[str] = []
        self.leads: dict[str, str] = {}

    def loaded(self, *_: object) -> dict[str, Module]:
        carriers = tuple(path.name for path in self.sys.glob("*"))
        modules = {name: Module(name, 1, self.references, (), "") for name in carriers}
        return {**modules, **{name: Module(name, 1, 1, carriers, "") for name in NEEDS}}

    def run(self, *argv: str, **_: object) -> Result:
        program, *words = [word for word in argv if word != "--"]
        if program == "dmesg" or words[0] in ("--show-depends", *NEEDS):
            return Result(argv, "", "", 0)
        if words[0] == "--resolve-alias":
            return Result(argv, self.leads.get(words[1], words[1]), "", 0)
        self.calls.append(" ".join(argv))
        name = {OURS: "nfsrdma"}.get(Path(words[0]).stem, words[0])
        if program == "modprobe":
            name = self.leads.get(name, name)
        if program == "rmmod":
            self.ask((self.sys / name).exists(), argv, "not loaded")
            (self.sys / name).rmdir()
        elif program == "insmod" or not (self.sys / name).exists():
            asked = dict(word.split("=") for word in words[1:])
            there = {path.name for path in self.sys.glob("*")}
            apart = module_swap.beside(self.parameters if name == "rpcrdma" else asked)
            self.ask(name not in there and (apart or not there), argv, f"File exists: {there}")
            self.ask(name not in self.broken, argv, "Invalid argument")
            (self.sys / name).mkdir(parents=True)
            self.parameters = asked if name == "nfsrdma" else self.parameters
        return Result(argv, "", "", 0)

    def ask(self, fine: bool, argv: tuple[str, ...], why: str) -> None:
        if not fine:
            raise CommandError(argv, 1, why)

    @property
    def carrier(self) -> str:
        return next((path.name for path in self.sys.glob("*")), "")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return boot(Kernel(tmp_path / "sys", "rpcrdma"), tmp_path, monkeypatch)


def boot(kernel: Kernel, tmp_path: Path, patch: pytest.MonkeyPatch) -> Kernel:
    patch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    patch.setattr(module_swap, "_SYS", kernel.sys)
    for where in (module_swap, undo, kernel_modules, transports):
        patch.setattr(where, "run", kernel.run)
    for name, answer in {
        "loaded": kernel.loaded,
        "in_file": lambda path: FILE,
        "on_disk": lambda name: FILE if name == "nfsrdma" else REAL,
        "srcversion": lambda name: "NEW",
        "parameters": lambda name, *_: kernel.parameters,
    }.items():
        patch.setattr(kernel_modules, name, answer)
    patch.setattr("os.uname", lambda: type("U", (), {"release": RELEASE}))
    patch.setattr("os.geteuid", lambda: 0)
    patch.setattr(module_users, "mounts", lambda _: [])
    patch.setattr(nfsctl, "listeners", lambda _=None: [])
    patch.setattr(nldev, "owned", lambda name: kernel.forgotten if name == "rpcrdma" else 0)
    patch.setattr(module_swap, "_PATIENCE_S", 0)
    patch.setattr(module_build, "build", lambda: Build(RELEASE, Path(FILE.path), fresh=False))
    return kernel


def load(**parameters: str) -> bool:
    with journal() as book:
        new = module_swap.load(FILE, parameters, book)
        book.keep()
    return new


def unload() -> str | None:
    with journal() as book:
        before = module_swap.unload(book)
        book.keep()
    return before


def test_ours_takes_the_place_of_the_kernels_and_gives_it_back(kernel: Kernel) -> None:
    assert load(credits="64")
    assert (kernel.carrier, kernel.parameters) == ("nfsrdma", {"credits": "64"})
    assert not load()
    assert unload() == "rpcrdma"
    assert kernel.carrier == "rpcrdma"
    assert unload() is None
    assert module_state.load() is None


def test_dry_run_prints_the_commands_that_load_runs(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # neither the journal nor a build nor root
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(undo, "journal", pytest.fail)
    monkeypatch.setattr(module_build, "build", pytest.fail)
    file = FILE._replace(parameters=("credits:Credits, 2 to 1024 (default 64) (uint)",))
    monkeypatch.setattr(kernel_modules, "in_file", lambda _: file)
    module_cli.load(Path(FILE.path), ["credits=32"], dry_run=True)
    steps = capsys.readouterr().out.splitlines()
    assert (kernel.calls, kernel.carrier) == ([], "rpcrdma")
    assert not (kernel.sys.parent / "state").exists()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    load(credits="32")
    assert steps == [f"would run {command}" for command in kernel.calls]
    assert module_swap.loading(Path(FILE.path), ["credits=32"]) == []
    assert module_swap.loading(Path(FILE.path), ["credits=16"]) == ["set nfsrdma.credits to 16"]


def test_dry_run_names_the_build_that_load_would_make(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFSRDMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_modules, "in_file", pytest.fail)
    steps = module_swap.loading(None, ["client=N", "server_name=nfr"])
    path = module_build.path_of(RELEASE, module_source.find())
    insmod = f"run insmod {path} client=N server_name=nfr"
    assert steps == [f"build {path} for {RELEASE}", insmod]
    assert kernel.calls == []
    assert not (tmp_path / "cache").exists()


def test_dry_run_has_the_errors_of_load(kernel: Kernel) -> None:
    kernel.references = 1
    with pytest.raises(UserError, match="module rpcrdma is in use"):
        module_swap.loading(Path(FILE.path), [])
    kernel.references = 0
    with pytest.raises(UserError, match="has no parameter 'speed'"):
        module_swap.loading(Path(FILE.path), ["speed=1"])


def test_where_nothing_was_before_nothing_is_after(kernel: Kernel) -> None:
    (kernel.sys / "rpcrdma").rmdir()
    assert load()
    assert unload() == ""
    assert kernel.carrier == ""


def test_where_ours_is_installed_the_kernels_is_found_by_its_other_name(kernel: Kernel) -> None:
    kernel.leads = {"rpcrdma": "nfsrdma", "kernels-rpcrdma": "rpcrdma"}
    load()
    assert unload() == "rpcrdma"
    assert kernel.carrier == "rpcrdma"


def test_ours_that_does_not_load_leaves_the_old_one_working(kernel: Kernel) -> None:
    kernel.broken.add("nfsrdma")
    with pytest.raises(CommandError, match="Invalid argument"):
        load()
    assert kernel.carrier == "rpcrdma"
    assert module_state.load() is None


def test_a_parameter_that_did_not_take_effect_is_an_error(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_modules, "parameters", lambda name, *_: {"credits": "128"})
    with pytest.raises(MismatchError, match=r"nfsrdma.credits: requested 64, got 128"):
        load(credits="64")
    assert kernel.carrier == "rpcrdma"


BESIDE = {"client": "N", "server_name": "nfr"}


def test_a_server_of_another_name_goes_beside_the_kernels(kernel: Kernel) -> None:
    # somebody has mounted over the kernel's: that is no matter
    kernel.references = 1
    module_swap.check_room({"client": "no", "server_name": "nfr"})
    assert load(**BESIDE)
    assert kernel.calls == [f"insmod {__file__} client=N server_name=nfr"]
    assert transports.owner() == "rpcrdma"
    assert (transports.serves_as("nfsrdma"), transports.serves_as("rpcrdma")) == ("nfr", "rdma")
    assert not load(**BESIDE)
    kernel.references = 0
    with pytest.raises(
        UserError, match=r"nfsrdma is loaded without its client \(run: nfsrdma module un"
    ):
        module_swap.ready("nfsrdma")
    module_swap.ready("rdma")
    assert unload() == ""
    assert kernel.carrier == "rpcrdma"


def test_another_build_stays_beside(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    load(**BESIDE)
    kernel.references = 1
    module_swap.check_room({"credits": "64"})
    kernel.references = 0
    newer = FILE._replace(srcversion="NEWER")
    monkeypatch.setattr(kernel_modules, "in_file", lambda path: newer)
    # until it is taken out it is the old one
    monkeypatch.setattr(
        kernel_modules, "srcversion", lambda name: "NEWER" if len(kernel.calls) > 2 else "NEW"
    )
    monkeypatch.setattr(module_swap, "_as_loaded", lambda state: state)
    with journal() as book:
        assert module_swap.load(newer, {"credits": "64"}, book)
        book.keep()
    assert kernel.calls[1:] == [
        "rmmod -- nfsrdma",
        f"insmod {__file__} client=N server_name=nfr credits=64",
    ]


def test_what_is_beside_comes_back_beside(kernel: Kernel) -> None:
    load(**BESIDE)
    with journal() as book:
        module_swap.prepare(book, FILE)
        kernel.run("rmmod", "nfsrdma")
        kernel.run("rmmod", "rpcrdma")
    assert {path.name for path in kernel.sys.glob("*")} == {"nfsrdma", "rpcrdma"}
    assert kernel.parameters == BESIDE


def test_a_table_comes_back_with_each_of_its_entries(kernel: Kernel) -> None:
    load()
    kernel.parameters = {"personality_for": "192.0.2.1,cached 192.0.2.2,cached", "credits": "64"}
    with journal() as book:
        module_swap.prepare(book, FILE)
        kernel.run("rmmod", "nfsrdma")
    entries = "personality_for=192.0.2.1,cached personality_for=192.0.2.2,cached"
    assert kernel.calls[-1] == f"insmod {__file__} {entries} credits=64"


@pytest.mark.parametrize("settings", [{"client": "N"}, {"server_name": "nfr"}, {}])
def test_a_client_or_a_server_of_its_name_is_in_the_kernels_place(
    kernel: Kernel, settings: dict[str, str]
) -> None:
    assert load(**settings)
    assert kernel.carrier == "nfsrdma"
    assert unload() == "rpcrdma"


def test_what_is_fixed_while_it_is_loaded_is_not_set(kernel: Kernel) -> None:
    load(**BESIDE)
    with pytest.raises(UserError, match="loaded with server_name=nfr, and keeps that until unload"):
        load(server_name="rdma")


def test_nfsd_is_a_user_and_is_told_how_to_get_ours(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = [Listener("nfr", 20050), Listener("rdma", 20049), Listener("tcp", 2049)]
    monkeypatch.setattr(nfsctl, "listeners", lambda _: heard)
    with pytest.raises(UserError) as error:
        module_swap.check_room({})
    assert str(error.value) == (
        "module rpcrdma is in use by nfsd listening on rdma 20049 (systemctl stop nfs-server,"
        " try again, then systemctl start nfs-server)"
    )
    load(**BESIDE)
    with pytest.raises(UserError, match="nfsrdma is in use by nfsd listening on nfr 20050 "):
        unload()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            ModuleFile("nfsrdma", "/x.ko", vermagic="5.0.0 SMP "),
            "built for kernel 5.0.0, but 6.12.1-x",
        ),
        (
            ModuleFile("ext4", "/x.ko", vermagic=f"{RELEASE} SMP "),
            "is module 'ext4', expected nfsrdma",
        ),
    ],
)
def test_a_file_that_cannot_be_it_is_refused_first(
    kernel: Kernel, file: ModuleFile, words: str
) -> None:
    with pytest.raises(UserError, match=words), journal() as book:
        module_swap.load(file, {}, book)
    assert (kernel.carrier, kernel.calls) == ("rpcrdma", [])


def test_a_module_in_use_is_left_alone_and_its_users_are_named(kernel: Kernel) -> None:
    kernel.references = 2
    with pytest.raises(UserError, match=r"rpcrdma is in use by 2 references: "):
        load()
    assert kernel.carrier == "rpcrdma"
    kernel.references = 0
    load()
    kernel.references = 1
    with pytest.raises(UserError, match=r"nfsrdma is in use by 1 reference: "):
        unload()
    assert kernel.carrier == "nfsrdma"


def test_a_module_whose_server_forgot_connections_stays(kernel: Kernel) -> None:
    kernel.forgotten = 6
    with pytest.raises(UserError, match="rpcrdma has 6 connections that its server has forgotten"):
        load()
    assert kernel.carrier == "rpcrdma"
    kernel.forgotten = 0
    load()
    assert kernel.carrier == "nfsrdma"


def test_what_is_killed_half_way_is_put_back_by_the_next_start(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.suppress(SystemExit), journal() as book:
        module_swap.prepare(book, FILE)
        module_swap.ready("nfsrdma")
        assert kernel.carrier == "nfsrdma"
        # as if this process were gone: its journal stays
        monkeypatch.setattr(book, "undo", list)
    monkeypatch.setattr(identity, "_start", lambda _: "another")
    assert recover() == []
    assert kernel.carrier == "rpcrdma"


STEPS = st.lists(st.sampled_from(["tcp", "rdma", "nfsrdma", "break", "mend"]), max_size=12)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=st.sampled_from(["", "rpcrdma", "nfsrdma"]), steps=STEPS)
def test_any_number_of_swaps_ends_where_it_began(
    first: str, steps: list[str], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as sys:
        kernel = boot(Kernel(Path(sys), *filter(None, [first])), tmp_path, patch)
        with journal() as book:
            module_swap.prepare(book, FILE)
            for step in steps:
                take(kernel, step)
            kernel.broken.clear()
        assert kernel.carrier == first


def take(kernel: Kernel, step: str) -> None:
    if step == "break":
        kernel.broken.add("nfsrdma")
    elif step == "mend":
        kernel.broken.clear()
    else:
        with contextlib.suppress(CommandError):
            module_swap.ready(step)
            wanted = {"rdma": "rpcrdma", "nfsrdma": "nfsrdma"}.get(step, kernel.carrier)
            assert kernel.carrier == wanted


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    journals = list((tmp_path / "state").glob("*.undo"))
    assert not journals
