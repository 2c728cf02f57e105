# SPDX-License-Identifier: Apache-2.0
"""Short runs of the fuzzers over the header code and the client; `make fuzz` is the long one."""

from pathlib import Path

import pytest
from wire import client_seeds, fuzz, native, optimistic_seeds

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError

SEEDS = sorted(fuzz.SEEDS.iterdir())


@pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")
def test_no_input_misleads_the_header_code(tmp_path: Path) -> None:
    driver = fuzz.build("wire", tmp_path, libfuzzer=False)
    run(driver, "1000000", tmp_path / "crash", *SEEDS, timeout=600)


@pytest.mark.skipif(fuzz.CLANG is None, reason="no clang: make fuzz installs it")
def test_nor_does_what_libfuzzer_makes_up(tmp_path: Path) -> None:
    try:
        fuzzer = fuzz.build("wire", tmp_path, libfuzzer=True)
    except CommandError as error:
        if "clang_rt.fuzzer" not in str(error):
            raise
        pytest.skip("clang without libFuzzer: make fuzz installs it")
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
