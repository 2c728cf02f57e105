# SPDX-License-Identifier: Apache-2.0
"""The module's source, its builds and its tunables; compiling for real is in tests/lab."""

from pathlib import Path

import pytest

from nfsrdma_tools import __version__, module_source
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.kernel_modules import parse_modinfo
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module.build import build, checked_release, first_error
from nfsrdma_tools.host.module.parameters import Parameter, changed, checked, known
from nfsrdma_tools.lab.config import MODULE_KERNELS
from nfsrdma_tools.lock import try_folder_lock
from nfsrdma_tools.module_source import Source
from nfsrdma_tools.undo import Journal

MAKE = """#!/bin/sh
echo "$@" >> {log}
for word in "$@"; do case $word in M=*) draft=${{word#M=}} ;; esac; done
grep -q broken "$draft/a.c" && {{ echo "$draft/a.c:8:9: error: expected ;" >&2; exit 2; }}
cp "$draft/a.c" "$draft/nfsrdma.ko"
"""
INFO = (
    "filename:       /x/nfsrdma.ko\0version=0.1.0\0name=nfsrdma\0depends=sunrpc,ib_core,rdma_cm\0"
    "vermagic=6.12.1 SMP preempt mod_unload modversions \0srcversion=ABC\0"
    "parm:           credits:Maximum number of Calls, 2 to 1024 (default 128) (uint)\0"
    "parm:           registration:frwr: allow it; frwr-local: do not (default frwr) (charp)\0"
    "parm:           mr_depth:Pages (0: maximum of the device), 16 to 512 (default 0) (uint)\0"
    "parm:           client:Register the client transport rdma (default Y) (bool)\0"
    "parm:           server_name:Name of the server transport in /proc/fs/nfsd/portlist;"
    " empty: no server (default rdma) (charp)\0"
    "parm:           personality:Of new client transports (default read-write) (charp)\0"
    "parm:           personality_for:ADDRESS,NAME: of transports to that server (charp)\0"
    "parm:           server_personalities:Personalities that the server accepts (charp)\0"
    "parm:           plain:int\0"
)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "kmod"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/b.h").write_text("b")
    for name in ("a.c", "Kbuild", "features.sh"):
        (folder / name).write_text(name)
    (folder / "dkms.conf").write_text('PACKAGE_NAME="x"\nPACKAGE_VERSION="1.2.3"\n')
    return Source(folder)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Path) -> Path:
    """A stand-in for make, which notes how it is called; headers of any kernel."""
    log = tmp_path / "calls"
    make = stand_in.with_name("make")
    make.write_text(MAKE.format(log=log))
    make.chmod(0o755)
    log.touch()
    monkeypatch.setenv("NFSRDMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module_build, "_headers", lambda release: Path("/headers") / release)
    return log


def test_find_card_has_no_part_of_the_transport_modules_source(source: Source) -> None:
    card = module_source.find_card()
    assert (card.module, Path("module.c") in card.files) == ("nfsrdma_card", True), card
    assert not [path for path in module_source.find().files if path.parts[0] == "card"]
    before = source.hash
    (source.folder / "card").mkdir()
    (source.folder / "card/a.c").write_text("a")
    assert source.hash == before


def test_module_source_is_found_in_a_checkout_and_has_this_programs_version() -> None:
    checkout = module_source.find()
    assert {Path("Kbuild"), Path("module.c"), Path("dkms.conf")} <= set(checkout.files)
    assert checkout.version == __version__


def test_a_hash_follows_the_source_and_not_what_a_build_left_there(source: Source) -> None:
    before = source.hash
    for product in ("nfsrdma.ko", "a.o", "nfsrdma.mod.c", "features.h", ".a.o.cmd", "README.md"):
        (source.folder / product).write_text("x")
    assert source.hash == before
    (source.folder / "a.c").rename(source.folder / "c.c")
    renamed = source.hash
    (source.folder / "inner/b.h").write_text("changed")
    assert len({before, renamed, source.hash}) == 3


def test_a_copy_has_the_sources_alone(source: Source, tmp_path: Path) -> None:
    (source.folder / "a.o").touch()
    (source.folder / "features.sh").chmod(0o755)
    (tmp_path / "copy").mkdir()
    source.copy(tmp_path / "copy")
    assert Source(tmp_path / "copy").hash == source.hash
    assert not (tmp_path / "copy/a.o").exists()
    assert (tmp_path / "copy/features.sh").stat().st_mode & 0o111


def test_a_build_is_made_once_and_outside_of_the_source(source: Source, made: Path) -> None:
    first = build("6.12.1-x", source=source)
    assert first.fresh
    assert first.path.parts[-4:] == ("modules", "6.12.1-x", source.hash, "nfsrdma.ko")
    again = build("6.12.1-x", source=source)
    assert (again.path, again.fresh) == (first.path, False)
    assert build("6.12.1-x", force=True, source=source).fresh
    assert build("7.2.0-y", source=source).path != first.path
    assert len(made.read_text().splitlines()) == 3
    assert {p.name for p in source.folder.iterdir()} == {
        "a.c", "Kbuild", "features.sh", "dkms.conf", "inner",
    }  # fmt: skip
    assert [p.name for p in first.path.parent.parent.iterdir()] == [source.hash]


@pytest.mark.usefixtures("made")
def test_a_kernel_that_is_too_old_is_named_with_what_to_use_instead(source: Source) -> None:
    """Headers of a distribution's older kernel may do: a build that succeeds is a build."""
    oldest = min(MODULE_KERNELS, key=lambda name: [int(part) for part in name.split(".")])
    assert build("5.14.0-570.el9.x86_64", source=source).fresh
    (source.folder / "a.c").write_text("broken")
    with pytest.raises(UserError) as error:
        build("5.10.0-46-amd64", source=source)
    assert str(error.value).startswith(
        f"nfsrdma does not build for 5.10.0-46-amd64, it needs Linux {oldest} or later: a.c:8:9: "
    )
    assert error.value.hint.startswith("use the kernel's module rpcrdma, transport rdma; see ")
    with pytest.raises(UserError, match="the module build failed"):
        build(f"{oldest}.0-56-amd64", source=source)


@pytest.mark.usefixtures("made")
def test_only_the_newest_builds_of_a_kernel_are_kept(source: Source) -> None:
    for number in range(7):
        (source.folder / "a.c").write_text(f"{number}")
        last = build("6.12.1-x", source=source).path
    kept = module_build.all_cached("6.12.1-x")
    assert (len(kept), kept[0]) == (4, last)
    assert [path.read_text() for path in kept] == ["6", "5", "4", "3"]


def test_a_failed_build_is_one_line_and_leaves_its_log(source: Source, made: Path) -> None:
    (source.folder / "a.c").write_text("broken")
    with pytest.raises(
        UserError, match=r"module build failed: a.c:8:9: error: expected ;"
    ) as error:
        build("6.12.1-x", source=source)
    log = Path(error.value.hint.removeprefix("see "))
    assert "error: expected ;" in log.read_text()
    assert [p.name for p in log.parent.iterdir()] == ["failed.log"]
    (source.folder / "a.c").write_text("whole")
    build("6.12.1-x", source=source)
    assert not log.exists()


@pytest.mark.usefixtures("made")
def test_what_a_killed_build_left_is_removed_by_the_next(source: Source, tmp_path: Path) -> None:
    left = tmp_path / "cache/modules/6.12.1-x/.draft-old"
    left.mkdir(parents=True)
    build("6.12.1-x", source=source)
    assert not left.exists()


@pytest.mark.usefixtures("made")
def test_a_lock_on_the_cache_blocks_nothing(source: Source) -> None:
    first = build("6.12.1-x", source=source)
    with try_folder_lock(first.path.parents[1]):
        assert build("6.12.1-x", force=True, source=source).fresh
    assert not (first.path.parents[1] / "lock").exists()


def test_a_kernel_without_headers_names_the_package() -> None:
    with pytest.raises(UserError, match=r"no headers of kernel 9.9.9-none.*9.9.9-none"):
        build("9.9.9-none")


@pytest.mark.parametrize("name", ["-C", "../x", "a/b", "a b", ".", "a;b", "6.1\n"])
def test_a_hostile_release_reaches_no_path(name: str) -> None:
    with pytest.raises(UserError, match="is not a kernel release"):
        checked_release(name)


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("a.c: In function:\na.c:1:2: error: no x\nb.c:3:4: error: no y\n", "a.c:1:2: error: no x"),
        ('x\na.h:1:9: fatal error: b.h: No such file or directory\nmake: *** [a.o] Error 1\n',
         "a.h:1:9: fatal error: b.h: No such file or directory"),
        ('ERROR: modpost: "f" [nfsrdma.ko] undefined!\nmake: *** [x] Error 1\n',
         'ERROR: modpost: "f" [nfsrdma.ko] undefined!'),
        ("/bin/sh: 1: gcc-14: not found\nmake: *** [a.o] Error 127\n",
         "/bin/sh: 1: gcc-14: not found"),
        ("make: *** No rule to make target 'modules'.  Stop.\n",
         "make: *** No rule to make target 'modules'.  Stop."),
        ("something\nlast word\n", "last word"),
        ("", "it printed no error"),
    ],
)  # fmt: skip
def test_the_first_error_is_the_compilers(log: str, error: str) -> None:
    assert first_error(log) == error


def test_tunables_have_the_bounds_that_their_descriptions_name() -> None:
    parameters = known(parse_modinfo(INFO))
    assert parameters["credits"] == Parameter(
        "credits", "Maximum number of Calls", "128", 2, 1024, "uint"
    )
    assert parameters["credits"].bounds == "2 to 1024"
    assert parameters["mr_depth"].bounds == "0, or 16 to 512"
    assert (parameters["registration"].default, parameters["registration"].bounds) == ("frwr", "")
    assert parameters["plain"] == Parameter("plain", "int")


def test_switches_and_names_have_no_bounds() -> None:
    parameters = known(parse_modinfo(INFO))
    client = Parameter("client", "Register the client transport rdma", "Y", kind="bool")
    assert (parameters["client"], client.bounds) == (client, "Y or N")
    server = parameters["server_name"]
    assert (server.default, server.bounds, server.kind) == ("rdma", "", "charp")
    assert server.text.endswith("portlist; empty: no server")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("credit=64", "no parameter 'credit'"),
        ("credits", "is not a setting"),
        ("credits=", "is not a setting"),
        ("credits=64 taint=1", "is not a setting"),
        ("credits=1", r"credits=1 is invalid \(use 2 to 1024"),
        ("credits=1025", "credits=1025 is invalid"),
        ("credits=many", "credits=many is invalid"),
        ("credits=-3", "credits=-3 is invalid"),
        ("mr_depth=15", r"mr_depth=15 is invalid \(use 0, or 16 to 512"),
        ("client=maybe", r"client=maybe is invalid \(use Y or N; the default is Y"),
        ("client=", "is not a setting"),
        ("server_name=a b", "is not a setting"),
        (
            "personality=fast",
            r"fast is invalid \(use read-write or read-read or padded or pre-posted or cached or "
            "optimistic; the",
        ),
        ("personality=", "personality= is invalid"),
        ("personality=cached,cached", "is invalid"),
        (
            "server_personalities=fast,cached",
            "use read-write,read-read,padded,pre-posted,cached,optimistic; "
            r"the default is \(empty\)",
        ),
        ("personality_for=192.0.2.1,cached", r"is a table.* \(use nfsrdma mount --personality"),
    ],
)
def test_a_setting_the_module_does_not_take_is_refused(setting: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        checked([setting], parse_modinfo(INFO))


@pytest.mark.parametrize(
    ("value", "shown"),
    [("cached", "cached"), ("cached,read-write,,cached", "read-write,cached"), ("", "")],
)
def test_a_list_of_personalities_is_in_the_modules_order(value: str, shown: str) -> None:
    """The kernel prints it so, and values are read back."""
    asked = checked([f"server_personalities={value}", "personality=cached"], parse_modinfo(INFO))
    assert asked == {"server_personalities": shown, "personality": "cached"}


def test_settings_and_what_differs_from_the_default() -> None:
    file = parse_modinfo(INFO)
    asked = checked(["credits=64", "registration=frwr-local"], file)
    assert asked == {"credits": "64", "registration": "frwr-local"}
    assert checked(["mr_depth=0"], file) == {"mr_depth": "0"}
    # as the kernel shows it: values are read back
    assert checked(["client=off", "server_name="], file) == {"client": "N", "server_name": ""}
    assert changed({**asked, "registration": "frwr", "unknown": "1"}, file) == {"credits": "64"}


def test_the_profile_of_new_cards_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameter, journal = tmp_path / "profile", Journal(tmp_path / "journal")
    monkeypatch.setattr(module_build, "_PROFILE", parameter)
    with pytest.raises(UserError, match="no profiles"), module_build.card_profile("bnxt", journal):
        pytest.fail("the loaded module has no parameter")
    parameter.write_text("model\n")
    with module_build.card_profile("", journal):
        assert (parameter.read_text(), journal.actions) == ("model\n", [])

    def refuse() -> None:
        assert parameter.read_text() == "bnxt"
        # a killed command leaves it to the next one
        assert [str(each) for each in journal.actions] == [f"write model to {parameter}"]
        raise UserError("cannot add card link card0 on v0")

    with pytest.raises(UserError, match="cannot add"), module_build.card_profile("bnxt", journal):
        refuse()
    assert (parameter.read_text(), journal.actions) == ("model\n", [])
