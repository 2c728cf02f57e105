# SPDX-License-Identifier: Apache-2.0
"""Kernels of labs: where they are kept, built, booted from and removed."""

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import debian_kernel, debian_packages, image, kernels, lab, paths
from nfsrdma_tools.lab.architecture import of_kernel
from nfsrdma_tools.lab.config import BUILT, CHECKING, FOREIGN, MODULE_KERNELS, LabConfig
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.machine import Hardware, qemu_argv
from nfsrdma_tools.lock import file_lock
from nfsrdma_tools.module_source import CARD, Source

GIB = 1 << 30


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """An image of the present recipe, beside a kernel of Debian's that was unpacked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "nfsrdma" / "images" / image.recipe_hash(extras=False)
    folder.mkdir(parents=True)
    monkeypatch.setattr(debian_kernel, "make", unpacked)
    kernels.build("6.12")
    return Image(folder)


def unpacked(series: str, out: Path) -> None:
    (out / "version").write_text(f"{series}.1+deb13-amd64\n")
    (out / "busybox").touch()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A build that takes no time, as root on a machine with room; what was run."""
    seen: list[tuple[str, ...]] = []

    def run(*argv: object, **_: object) -> Result:
        seen.append(tuple(map(str, argv)))
        (folders(argv)[1] / "version").write_text("6.12.1-debug\n")
        return Result(seen[-1], "", "", 0)

    monkeypatch.setattr(kernels, "run", run)
    monkeypatch.setattr(kernels, "compiler", lambda _: "cross")
    monkeypatch.setattr(debian_kernel, "make_initrd", lambda *_: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(100 * GIB))
    return seen


def folders(argv: tuple[object, ...]) -> tuple[Path, Path]:
    """WORK and OUT of build.sh, whose other arguments follow."""
    at = [Path(str(word)).name for word in argv].index("build.sh")
    return Path(str(argv[at + 2])), Path(str(argv[at + 3]))


class Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def argv(kernel: str) -> str:
    hardware = Hardware(kernel, "wall", "tcg", 2, 3072)
    return " ".join(qemu_argv(hardware, kernels.find(kernel), Path("/l"), Path("/d/n"), "n"))


@pytest.mark.parametrize("name", ("6.12", "debug"))
def test_a_kernel_brings_its_initrd_and_its_modules_on_a_second_disk(
    name: str, base: Image, builds: list[tuple[str, ...]]
) -> None:
    kernel = kernels.build(name)
    assert kernels.build(name) == kernel == kernels.find(name)
    command_line = argv(name)
    assert f"-kernel {kernel.folder}/vmlinuz -initrd {kernel.folder}/initrd" in command_line
    first, second = command_line.split("-drive ")[1:]
    assert first.startswith("file=/d/n,")
    assert second.startswith(f"file={kernel.folder}/modules.img,if=virtio,format=raw,readonly=on")


@pytest.mark.parametrize("name", BUILT)
def test_one_that_debian_lacks_is_built_once_in_the_images_root(
    name: str, base: Image, builds: list[tuple[str, ...]]
) -> None:
    kernels.build(name)
    kernels.build(name)
    assert [words[:2] for words in builds] == [("unshare", "-m")]
    assert str(base.disk) in builds[0]


def test_one_that_debian_lacks_starts_as_debians_of_its_architecture(
    base: Image, builds: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its initrd has the busybox of that kernel, and its name the release."""
    busybox: list[Path] = []
    monkeypatch.setattr(debian_kernel, "make_initrd", lambda _, file, __: busybox.append(file))
    before = {name: kernels.build(name).folder for name in BUILT}
    stock = {name: kernels.find(FOREIGN[0] if "arm64" in name else "6.12") for name in BUILT}
    assert busybox == [stock[name].folder / "busybox" for name in BUILT]
    (stock[BUILT[-1]].folder / "version").write_text("6.12.2+deb13-arm64\n")
    after = {name: kernels.build(name).folder for name in BUILT}
    assert [name for name in BUILT if before[name] != after[name]] == [BUILT[-1]]


@pytest.mark.parametrize("change", ("arm64.config", "lab.config", "make.sh", "defaults"))
def test_a_kernel_is_built_again_if_its_configuration_changes(
    change: str, base: Image, builds: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    recipe = tmp_path / "recipe"
    shutil.copytree(kernels._RECIPE, recipe)
    monkeypatch.setattr(kernels, "_RECIPE", recipe)
    before = kernels.build("6.12-arm64-64k")
    if change == "defaults":
        other = replace(of_kernel("6.12-arm64-64k"), defaults="defconfig")
        monkeypatch.setattr(kernels, "of_kernel", lambda _: other)
    else:
        (recipe / change).write_text("CONFIG_NFSD=y\n")
    assert kernels.build("6.12-arm64-64k").folder != before.folder


@pytest.mark.parametrize("name", ("debug", "7.2", "6.12-arm64-64k"))
def test_one_that_is_not_built_is_said_to_be_so(name: str, base: Image) -> None:
    with pytest.raises(UserError, match=f"the kernel {name} is not built") as caught:
        argv(name)
    assert f"nfsrdma lab build --kernel {name}" in str(caught.value.hint)


def test_each_flavour_and_version_has_a_place_of_its_own(
    base: Image, builds: list[tuple[str, ...]]
) -> None:
    places = {kernels.build(name).folder for name in CHECKING}
    (kernels.find("6.12").folder / "version").write_text("6.12.2+deb13-amd64\n")
    places |= {kernels.build(name).folder for name in CHECKING}
    assert len(places) == len(builds) == 4


def test_a_build_that_fails_leaves_nothing_but_its_log(
    base: Image, builds: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object, **_: object) -> Result:
        return Result(tuple(map(str, words)), "", "warning\nnot in effect: CONFIG_KASAN=y\n", 1)

    monkeypatch.setattr(kernels, "run", fail)
    with pytest.raises(UserError, match="not in effect: CONFIG_KASAN=y") as caught:
        kernels.build("debug")
    log = Path(str(caught.value.hint).split()[-1])
    assert "CONFIG_KASAN" in log.read_text()
    kept = {path for path in (log.parent / "kernels").iterdir() if path.is_dir()}
    assert kept == {kernels.find("6.12").folder}


def test_a_build_needs_root_room_and_a_name(
    base: Image, builds: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"unknown kernel '6\.13'"):
        kernels.build("6.13")
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(GIB))
    with pytest.raises(UserError, match="1 GiB are free"):
        kernels.build("debug")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root may mount"):
        kernels.build("debug")
    assert builds == []


def test_what_other_recipes_made_is_removed(base: Image, builds: list[tuple[str, ...]]) -> None:
    kept = {kernels.build(name).folder.name for name in ("6.12", "debug")}
    top, ours = base.folder.parent.parent, base.folder.name
    (top / "warm").mkdir()
    warm = {f"{ours}-{kernel}-0a.qcow2" for kernel in kept}
    stale = [f"{ours}-{min(kept)}-0a{end}" for end in (".new", ".lock")]
    for name in (*warm, *stale, f"{ours}-debug-1-0a.qcow2", f"other-{min(kept)}-0a.qcow2"):
        (top / "warm" / name).touch()
    (top / "kernels" / "debug-1").mkdir()
    (top / "images" / "other").mkdir()
    lab.clean()
    assert {path.name for path in (top / "warm").iterdir()} == warm
    assert {path.name for path in (top / "kernels").iterdir() if path.is_dir()} == kept
    assert {path.name for path in (top / "images").iterdir()} == {ours}


def test_what_is_being_built_is_left_alone(
    base: Image, builds: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lab clean` while a kernel, an image and a snapshot are made, of this and another recipe."""
    cache_of_labs = base.folder.parent.parent
    busy = [cache_of_labs / name for name in ("images/0f", "kernels/debug-0f", "warm/0f-debug-0f")]
    seen: list[list[Path]] = []
    with contextlib.ExitStack() as stack:
        for path in busy:
            path.parent.mkdir(exist_ok=True)
            stack.enter_context(file_lock(paths.lock_of(path)))
            stack.enter_context(paths.draft_of(path))
            path.with_name(f"{path.name}.new").touch()

        def run(*argv: object, **_: object) -> Result:
            before = sorted(cache_of_labs.rglob("*"))
            lab.clean()
            assert sorted(cache_of_labs.rglob("*")) == before
            work, out = folders(argv)
            assert work.is_dir()
            (out / "version").write_text("6.12.1-debug\n")
            seen.append(before)
            return Result(tuple(map(str, argv)), "", "", 0)

        monkeypatch.setattr(kernels, "run", run)
        kernels.build("debug")
    assert seen
    lab.clean()
    left = {path.name for each in busy for path in each.parent.iterdir()}
    present = {kernels.find(name).folder.name for name in ("debug", "6.12")}
    assert left == {base.folder.name, *present}


@pytest.mark.parametrize("nic", ("card", "siw"))
def test_devices_whose_module_does_not_build_for_a_kernel_are_refused(nic: str) -> None:
    for kernel in (*MODULE_KERNELS, *CHECKING):
        assert LabConfig("a", kernel=kernel, nic=nic).nic == nic
    with pytest.raises(UserError, match=rf"no module of {nic} devices.*for kernel 5\.10"):
        LabConfig("a", kernel="5.10", nic=nic)


def test_a_kernel_that_checks_itself_may_take_longer() -> None:
    assert LabConfig("a", kernel="debug").patience > LabConfig("a").patience == 1
    with pytest.raises(UserError, match="nic is 'mlx5'"):
        LabConfig("a", nic="mlx5")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A compiler that takes no time; the arguments of each run."""
    seen: list[tuple[str, ...]] = []

    def run(*argv: object, **_: object) -> Result:
        seen.append(tuple(map(str, argv)))
        file = next(word for word in seen[-1] if word.endswith(".draft"))
        Path(file).write_text(f"build {len(seen)}")
        return Result(seen[-1], "", "", 0)

    monkeypatch.setattr(kernels, "run", run)
    return seen


def source(folder: Path, text: str, module: str = "nfsrdma") -> Source:
    folder.mkdir(exist_ok=True)
    (folder / "module.c").write_text(text)
    return Source(folder, module)


def test_a_module_is_compiled_once_for_each_state_of_its_source(
    base: Image, compiled: list[tuple[str, ...]], tmp_path: Path
) -> None:
    kernel, steps = kernels.find("6.12"), list[str]()
    files = [
        kernels.module(source(tmp_path / "kmod", text), kernel, base, steps.append)
        for text in ("one", "one", "two", "one")
    ]
    assert [file.read_text() for file in files] == ["build 1", "build 1", "build 2", "build 1"]
    assert steps == ["compiling nfsrdma for kernel 6.12, once (about 20 s)"] * 2


def test_eight_states_are_kept_of_each_module(
    base: Image, compiled: list[tuple[str, ...]], tmp_path: Path
) -> None:
    kernel = kernels.find("6.12")
    card = kernels.module(source(tmp_path / "card", "", CARD), kernel, base, print)
    for number in range(9):
        file = kernels.module(source(tmp_path / "kmod", f"{number}"), kernel, base, print)
        os.utime(file, (number, number))
    kept = {path.read_text() for path in kernel.folder.glob("nfsrdma-*.ko")}
    assert kept == {f"build {number}" for number in range(3, 11)}
    assert card.exists()


def test_a_user_compiles_as_root_of_a_namespace(
    base: Image, compiled: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernels.find("6.12")
    for uid, words in ((0, ("unshare", "-m", "sh")), (1000, ("unshare", "-m", "--map-root-user"))):
        monkeypatch.setattr("os.geteuid", lambda uid=uid: uid)
        kernels.compile_module(tmp_path, kernel, base, tmp_path / "out.draft", "W=1")
        assert compiled[-1][:3] == words
        assert compiled[-1][-3:] == (str(tmp_path), str(tmp_path / "out.draft"), "W=1")


def test_a_module_for_another_architecture_has_a_cross_compiler(
    base: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, str]]] = []

    def run(*argv: object, env: dict[str, str], **_: object) -> Result:
        calls.append((tuple(map(str, argv)), env))
        return Result((), "", "", 0)

    monkeypatch.setattr(kernels, "run", run)
    monkeypatch.setattr(kernels, "compiler", lambda architecture: tmp_path / architecture.debian)
    for name in ("6.12", "6.12-arm64-16k"):
        kernel = kernels.build(name)
        kernels.compile_module(tmp_path, kernel, base, tmp_path / "out.draft", "W=1")
    (plain, _), (cross, env) = calls
    assert plain[-1] == "W=1"
    assert cross[-3:] == ("W=1", "ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-")
    assert env == {
        "PREFIX": "aarch64-linux-gnu-",
        "COMPILER": f"{tmp_path}/arm64",
        "KBUILD": f"{kernel.folder}/kbuild",
    }


def test_debian_kernel_of_another_architecture_is_of_its_flavour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []
    there = {
        "amd64": ("linux-image-6.12.9+deb13-cloud-amd64", "linux-image-6.12.9+deb13-amd64"),
        "arm64": (
            *("linux-image-6.12.9+deb13-arm64", "linux-image-6.12.10+deb13.1-arm64"),
            *("linux-image-6.12.9+deb13-arm64-16k", "linux-image-6.12.11+deb13-rt-arm64"),
        ),
    }

    def run(*argv: object, **_: object) -> Result:
        asked.append(tuple(map(str, argv)))
        names = there["arm64" if "APT::Architecture=arm64" in asked[-1] else "amd64"]
        return Result((), "\n".join(names), "", 0)

    monkeypatch.setattr(debian_packages, "run", run)
    monkeypatch.setattr(debian_packages, "sources", lambda *_: "")
    newest = {}
    for name in ("6.12", "6.12-arm64", "6.12-arm64-16k"):
        series, _, flavour = name.partition("-")
        with debian_packages.opened([], tmp_path, architecture=of_kernel(name).debian) as debian:
            newest[name] = debian_kernel.newest(debian, series, flavour or "amd64")
    assert newest == {
        "6.12": "linux-image-6.12.9+deb13-amd64",
        "6.12-arm64": "linux-image-6.12.10+deb13.1-arm64",
        "6.12-arm64-16k": "linux-image-6.12.9+deb13-arm64-16k",
    }
