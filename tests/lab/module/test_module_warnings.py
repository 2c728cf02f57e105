# SPDX-License-Identifier: Apache-2.0
"""Both modules build for each kernel of the lab without a warning of make W=1, or of sparse."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nfsrdma_tools import module_source
from nfsrdma_tools.lab import image, kernels
from nfsrdma_tools.lab.config import MODULE_KERNELS

# no vmlinux lies beside the headers, so a module gets no types of its own
EXPECTED = ("Skipping BTF generation",)
# sparse has warnings of the kernel's headers, too; the source is in /opt/kmod
HEADERS = re.compile(r"(?!/opt/kmod/)\S+:\d+:\d+: ")
Find = Callable[[], module_source.Source]
MODULES = pytest.mark.parametrize(
    "find", (module_source.find, module_source.find_card), ids=("nfsrdma", "nfsrdma_card")
)


@pytest.mark.parametrize(
    "kernel",
    (MODULE_KERNELS[0], *(pytest.param(k, marks=pytest.mark.nightly) for k in MODULE_KERNELS[1:])),
)
@MODULES
def test_no_warning(kernel: str, find: Find, tmp_path: Path) -> None:
    checks = kernel == MODULE_KERNELS[0] and shutil.which("sparse")
    output = built_with(kernel, find().folder, tmp_path, "W=1", *(("C=2",) if checks else ()))
    assert [line for line in output if not (line.startswith(EXPECTED) or HEADERS.match(line))] == []
    if kernel == MODULE_KERNELS[0] and not checks:
        pytest.skip("no sparse; missed: address spaces, locks and constants of kmod")


CLIENT = """
#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"

static void nfr_client_dummy_init(struct nfr_req *req)
{
	*(u32 *)req->own = 0;
}

static void nfr_client_dummy_show(const struct nfr_link *link, struct seq_file *seq)
{
	seq_printf(seq, "dummy_replies %llu\\n", link->replies);
}

const struct nfr_client_personality nfr_client_dummy = {
	.number		= NFR_DUMMY,
	.request_size	= sizeof(u32),
	.ops		= &nfr_client_conn_ops,
	.init		= nfr_client_dummy_init,
	.show		= nfr_client_dummy_show,
	.marshal	= nfr_client_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};
"""
SERVER = """
#include "server/version1.h"

static int nfr_svc_dummy_start(const struct svc_xprt_ops *ops)
{
	return 0;
}

static void nfr_svc_dummy_totals(struct seq_file *seq)
{
	seq_puts(seq, "dummies 1\\n");
}

static void nfr_svc_dummy_init(struct nfr_svc_req *req)
{
	*(u32 *)req->own = 0;
}

const struct nfr_svc_personality nfr_svc_dummy = {
	.number		= NFR_DUMMY,
	.request_size	= sizeof(u32),
	.start		= nfr_svc_dummy_start,
	.totals		= nfr_svc_dummy_totals,
	.init		= nfr_svc_dummy_init,
	NFR_SVC_VERSION1,
};
"""


def test_a_new_personality_adds_files_and_a_line_of_the_list(tmp_path: Path) -> None:
    """The personality "dummy": two files with a table each, the list, and the build's."""
    kernel, folder = MODULE_KERNELS[0], tmp_path / "kmod"
    folder.mkdir()
    module_source.find().copy(folder)
    for end, text in (("client", CLIENT), ("server", SERVER)):
        (folder / end / "personality" / "dummy.c").write_text(text)
    for name, last, more in (
        ("personality.h", '"optimistic")', ' \\\n\t_(6, DUMMY, dummy, "dummy")'),
        ("Kbuild", "cached.o optimistic.o", " dummy.o"),
    ):
        text = (folder / name).read_text()
        assert text.count(last) == 1
        (folder / name).write_text(text.replace(last, last + more))
    output = built_with(kernel, folder, tmp_path)
    assert [line for line in output if not line.startswith(EXPECTED)] == []
    assert b" optimistic dummy (default read-write)" in (tmp_path / "built.ko").read_bytes()


def built_with(kernel: str, source: Path, folder: Path, *words: str) -> list[str]:
    """The output of a build of a module; ``words`` go to make."""
    base, booted = image.build(extras=True), kernels.build(kernel)
    result = kernels.compile_module(source, booted, base, folder / "built.ko", *words)
    return (result.stdout + result.stderr).splitlines()
