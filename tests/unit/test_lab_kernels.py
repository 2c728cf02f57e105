# SPDX-License-Identifier: Apache-2.0
"""Kernels that check themselves: where they are kept, built, booted from and removed."""

from pathlib import Path

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import cache, image, kernels
from nfsrdma_tools.lab.config import CHECKING, LabConfig
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.machine import Hardware, qemu_argv

GIB = 1 << 30


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """An image whose 6.12 has a version and which is the present recipe's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "nfsrdma" / "images" / image.recipe_hash()
    (folder / "6.12").mkdir(parents=True)
    (folder / "6.12" / "version").write_text("6.12.1+deb13-amd64\n")
    return Image(folder)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A build that takes no time, as root on a machine with room; what was run."""
    seen: list[tuple[str, ...]] = []

    def run(*argv: object, **_: object) -> Result:
        seen.append(tuple(map(str, argv)))
        out = Path(seen[-1][-1])
        out.mkdir()
        (out / "version").write_text("6.12.1-debug\n")
        return Result(seen[-1], "", "", 0)

    monkeypatch.setattr(kernels, "run", run)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(100 * GIB))
    return seen


class Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def argv(base: Image, kernel: str) -> str:
    hardware = Hardware(kernel, "wall", "tcg", 2, 3072)
    return " ".join(qemu_argv(hardware, base, Path("/l"), Path("/d/n"), "n"))


def test_a_kernel_of_the_image_has_an_initrd(base: Image) -> None:
    assert f"-kernel {base.folder}/6.12/vmlinuz -initrd {base.folder}/6.12/initrd" in argv(
        base, "6.12"
    )
    assert argv(base, "6.12").count("-drive") == 1


def test_one_that_is_not_built_is_said_to_be_so(base: Image) -> None:
    with pytest.raises(UserError, match="the kernel debug is not built") as caught:
        argv(base, "debug")
    assert "nfsrdma lab build --kernel debug" in str(caught.value.hint)


def test_one_that_is_built_brings_its_modules_on_a_second_disk(
    base: Image, builds: list[tuple[str, ...]]
) -> None:
    kernel = kernels.build("debug")
    assert builds[0][:2] == ("unshare", "-m")
    assert str(base.disk) in builds[0]
    assert kernels.build("debug") == kernel == kernels.find("debug", base)
    assert len(builds) == 1
    said = argv(base, "debug")
    assert "-initrd" not in said
    assert f"-kernel {kernel.folder}/vmlinuz" in said
    assert "mount-extra=/dev/vdb:/usr/lib/modules/6.12.1-debug:ext4:ro" in said
    first, second = said.split("-drive ")[1:]
    assert first.startswith("file=/d/n,")
    assert second.startswith(f"file={kernel.folder}/modules.img,if=virtio,format=raw,readonly=on")


def test_each_flavour_and_version_has_a_place_of_its_own(
    base: Image, builds: list[tuple[str, ...]]
) -> None:
    places = {kernels.build(name).folder for name in CHECKING}
    (base.boot("6.12") / "version").write_text("6.12.2+deb13-amd64\n")
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
    assert [path.name for path in (log.parent / "kernels").iterdir()] == ["lock"]


def test_a_build_needs_root_room_and_a_name(
    base: Image, builds: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"'6\.12' can be built"):
        kernels.build("6.12")
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(GIB))
    with pytest.raises(UserError, match="1 GiB are free"):
        kernels.build("debug")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UserError, match="root alone"):
        kernels.build("debug")
    assert builds == []


def test_what_other_recipes_made_is_removed(base: Image, builds: list[tuple[str, ...]]) -> None:
    kept = kernels.build("debug").folder
    top, ours = kept.parent.parent, image.recipe_hash()
    (top / "warm").mkdir()
    for name in (f"{ours}-0a.qcow2", f"{ours}-{kept.name}-0a.qcow2", f"{ours}-debug-1-0a.qcow2"):
        (top / "warm" / name).touch()
    (top / "warm" / "other-0a.qcow2").touch()
    (kept.parent / "debug-1").mkdir()
    (top / "images" / "other").mkdir()
    cache.clean()
    assert {path.name for path in (top / "warm").iterdir()} == {
        *(f"{ours}-0a.qcow2", f"{ours}-{kept.name}-0a.qcow2")
    }
    assert {path.name for path in kept.parent.iterdir()} == {"lock", kept.name}
    assert {path.name for path in (top / "images").iterdir()} == {"lock", ours}


def test_a_kernel_that_checks_itself_may_take_longer() -> None:
    assert LabConfig("a", kernel="debug").patience > LabConfig("a").patience == 1
    with pytest.raises(UserError, match="'mlx5' is not one"):
        LabConfig("a", nic="mlx5")
