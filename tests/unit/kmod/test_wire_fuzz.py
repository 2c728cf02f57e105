# SPDX-License-Identifier: Apache-2.0
"""Short runs of the fuzzers over the header code and the client; the campaign is the long one."""

from pathlib import Path

import pytest
from wire import client_seeds, fuzz, hostile_replies, native, optimistic_seeds

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError

SEEDS = sorted(fuzz.SEEDS.iterdir())


@pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")
def test_no_input_misleads_the_header_code(tmp_path: Path) -> None:
    driver = fuzz.build("wire", tmp_path, libfuzzer=False)
    run(driver, "1000000", tmp_path / "crash", *SEEDS, timeout=600)


@pytest.mark.skipif(fuzz.CLANG is None, reason="no clang: make campaign NAME=fuzz installs it")
def test_nor_does_what_libfuzzer_makes_up(tmp_path: Path) -> None:
    try:
        fuzzer = fuzz.build("wire", tmp_path, libfuzzer=True)
    except CommandError as error:
        if "clang_rt.fuzzer" not in str(error):
            raise
        pytest.skip("clang without libFuzzer: make campaign NAME=fuzz installs it")
    where = (f"-artifact_prefix={tmp_path}/", "-seed=8166", tmp_path, fuzz.SEEDS)
    run(fuzzer, "-runs=300000", "-max_len=1024", *where, timeout=600)


@pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")
def test_no_reply_misleads_the_user_level_client(tmp_path: Path) -> None:
    driver = fuzz.build("client", tmp_path, libfuzzer=False)
    run(driver, "300000", tmp_path / "crash", *client_seeds.write(tmp_path / "seeds"), timeout=600)


@pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")
def test_no_notice_misleads_its_optimistic_reads(tmp_path: Path) -> None:
    driver = fuzz.build("optimistic", tmp_path, libfuzzer=False)
    seeds = optimistic_seeds.write(tmp_path / "seeds")
    run(driver, "30000", tmp_path / "crash", *seeds, timeout=600)


@pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")
def test_mutated_replies_crash_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make campaign NAME=replies` sends 10,000 of each version."""
    assert hostile_replies.run(500, "8166", tmp_path / "kept") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{version}: 500 mutated replies, 0 crashes, 0 hangs" for version in ("NFSv3", "NFSv4.1")
    ]


def test_crashes_and_hangs_are_counted(tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.write_text("""#!/bin/sh
shift 2
for each; do
    case $each in
        *-1?7) exit 3 ;;
        *-12) kill -ABRT $$ ;;
    esac
done
""")
    driver.chmod(0o755)
    inputs = hostile_replies.make(tmp_path, "NFSv4.1", 130, "8166")
    counts = hostile_replies.count(driver, tmp_path / "crash", inputs)
    assert counts.replies == len({each.read_bytes() for each in inputs}) == 130
    assert [each.name for each in counts.crashes] == ["NFSv4.1-12"]
    assert [each.name for each in counts.hangs] == [f"NFSv4.1-1{n}7" for n in range(3)]


@pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")
def test_an_input_that_does_not_end_is_a_hang(tmp_path: Path) -> None:
    target = tmp_path / "target.c"
    target.write_text("""#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	for (volatile int i = 0; size && data[0] == 'h'; i++)
		;
	return 0;
}
""")
    assert native.COMPILER
    driver = tmp_path / "driver"
    words = (*native.FLAGS, "-fsanitize=address,undefined", "-DSECONDS=1", target)
    run(native.COMPILER, *words, fuzz.HERE / "drive.c", "-o", driver)
    inputs = [tmp_path / "hangs", tmp_path / "ends"]
    for each in inputs:
        each.write_text(each.name)
    counts = hostile_replies.count(driver, tmp_path / "crash", inputs)
    assert (counts.crashes, counts.hangs) == ([], inputs[:1])
