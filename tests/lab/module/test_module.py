# SPDX-License-Identifier: Apache-2.0
"""Our module built, loaded, swapped, installed and taken back, on a client beside a real server."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from nfsrdma_tools.command import Result
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.module import build, swap
from nfsrdma_tools.host.transports import owner
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.undo import journal
from testbed.node import channel
from testbed.remote import RemoteError, on

# builds in an emulated node: minutes that the other worker uses
pytestmark = pytest.mark.xdist_group("builds")

SOURCE = "/opt/nfsrdma/src/nfsrdma_tools/data/kmod"
# a module without function that builds in seconds under emulation and uses the symbols of a
# transport module
TINY = f"""
cd {SOURCE}/.. && mv kmod kmod.real && mkdir kmod && cp kmod.real/dkms.conf kmod && cd kmod
printf 'obj-m := nfsrdma.o\\nnfsrdma-y := module.o\\n' > Kbuild
cat > module.c <<'END'
#include <linux/module.h>
extern const char *rdma_event_msg(int event);
extern void rpc_exit(void *task, int status);
static void * const uses[] __used = {{ rdma_event_msg, rpc_exit }};
static bool refuse;
module_param(refuse, bool, 0444);
static int __init tiny(void)
{{
	if (refuse)
		pr_err("nfsrdma: it refuses\\n");
	return refuse ? -EINVAL : 0;
}}
static void __exit tiny_end(void)
{{
}}
module_init(tiny);
module_exit(tiny_end);
MODULE_DESCRIPTION("a stand-in");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
END
"""
REAL = f"rm -r {SOURCE} && mv {SOURCE}.real {SOURCE}"
# everything but contents, and the contents that an installation could change
FILES = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /root -o -path /opt \
	-o -path /var/log -o -path /var/cache/nfsrdma -o -name __pycache__ \) -prune \
	-o -type d -printf '%p %m %U:%G\n' -o -printf '%p %y %m %U:%G %s %l\n' | sort
find /etc /lib/modules/$(uname -r)/modules.* /var/lib -maxdepth 3 -type f -exec md5sum {} + | sort
"""
MOUNT = "mount -t nfs -o proto=rdma,port=20049 server:/export /mnt; umount /mnt"
REFUSED = "/etc/modprobe.d/test-refused.conf"


@pytest.fixture
def tiny(pair: Lab) -> Iterator[Lab]:
    """The pair; its client's source is another one."""
    pair.refresh(client=pair.client_library)
    sh(pair, TINY)
    yield pair
    sh(pair, REAL)


def sh(lab: Lab, script: str) -> str:
    return lab.run("client", "sh", "-c", f"set -e\n{script}", timeout=900).stdout


def module(lab: Lab, *words: str, at: str = "client") -> Result:
    return lab.run(at, "nfsrdma", "module", *words, timeout=900, check=False)


def refused(lab: Lab, *words: str, at: str = "client", exits: int = 1) -> str:
    """The one line that says why a command was refused; a wrong value exits with 2."""
    result = module(lab, *words, at=at)
    *progress, line = result.stderr.splitlines()
    assert result.returncode == exits
    assert all(step.startswith("building nfsrdma for") for step in progress)
    assert line.startswith("nfsrdma: ")
    return line


def status(lab: Lab) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(module(lab, "status", "--json").stdout)
    return values


@pytest.mark.nightly
def test_building(tiny: Lab) -> None:
    before = sh(tiny, f"ls -l {SOURCE}")
    first = json.loads(module(tiny, "build", "--json").stdout)
    assert first["fresh"]
    again = module(tiny, "build", "--kernel", first["kernel"])
    assert again.stdout == f"{first['path']}: already built for {first['kernel']}\n"
    assert status(tiny)["built"] == first["path"]

    assert sh(tiny, f"ls -l {SOURCE}") == before

    sh(tiny, f"sed 's/vermagic=6[.]12/vermagic=6.11/' {first['path']} > /root/other.ko")
    refusal = refused(tiny, "load", "/root/other.ko")
    sh(tiny, "rm /root/other.ko")
    assert "/root/other.ko was built for kernel 6.11." in refusal
    assert f"{first['kernel']} is running" in refusal

    refusal = refused(tiny, "build", "--kernel", "9.9.9-none")
    assert "no headers of kernel 9.9.9-none" in refusal
    # no release of Debian: no package has that name
    assert "install the headers of kernel 9.9.9-none" in refusal

    sh(tiny, f"sed -i s/return/returning/ {SOURCE}/module.c")
    refusal = refused(tiny, "build")
    assert "the module build failed: module.c:11:" in refusal
    log = refusal.partition("(see ")[2].rstrip(")")
    assert "error:" in sh(tiny, f"cat {log}")


def test_a_module_that_does_not_load_leaves_the_old_one_working(tiny: Lab) -> None:
    refusal = refused(tiny, "load", "--set", "refuse=1")
    assert "insmod" in refusal
    assert "Invalid parameters (the kernel: nfsrdma: it refuses)" in refusal
    assert status(tiny)["owner"] == "rpcrdma"
    assert "no parameter 'credits'" in refused(tiny, "load", "--set", "credits=1", exits=2)


def test_ours_carries_a_mount_and_gives_its_place_back(pair: Lab) -> None:
    assert "credits=5000 is invalid" in refused(pair, "load", "--set", "credits=5000", exits=2)
    assert module(pair, "load", "--set", "credits=64").stdout.startswith("nfsrdma ")
    values = status(pair)
    assert (values["owner"], values["loaded_is_this_source"]) == ("nfsrdma", True)
    credits = next(row for row in values["tunables"] if row["name"] == "credits")
    assert (credits["value"], credits["about"]["low"], credits["about"]["high"]) == ("64", 2, 1024)
    assert "credits 64 (2 to 1024), default 128" in module(pair, "status").stdout

    output = sh(
        pair,
        """
        nfsrdma mount server:/export /mnt --transport rdma 2>&1 >&2 && exit 1
        nfsrdma mount server:/export /mnt --transport nfsrdma
        head -c 3000000 /dev/urandom > /mnt/module; sync /mnt/module; cp /mnt/module /tmp
        echo 3 > /proc/sys/vm/drop_caches; cmp /mnt/module /tmp/module
        rm /mnt/module /tmp/module
        nfsrdma doctor | grep -E ' (netid rdma|nfsrdma) '
        """,
    )
    assert "the transport module for rdma: requested rpcrdma, got nfsrdma" in output
    assert "/mnt       server:/export  nfsrdma" in output
    assert "owned by nfsrdma" in output
    assert "changed parameters: credits=64" in output
    user = "mount /mnt of server:/export"
    assert status(pair)["users"] == [user]
    assert f"nfsrdma is in use by {user}" in refused(pair, "unload")

    sh(pair, "umount /mnt")
    assert "mounts with proto=rdma use rpcrdma" in module(pair, "unload").stdout
    sh(pair, "nfsrdma mount server:/export /mnt --transport rdma")
    assert f"rpcrdma is in use by {user}" in refused(pair, "load")
    argv = ("nfsrdma", "mount", "server:/export", "/srv", "--transport", "nfsrdma")
    stderr = pair.run("client", *argv, check=False).stderr
    assert "requested nfsrdma, got rpcrdma (nfsrdma module load)" in stderr
    sh(pair, "umount /mnt")


@on("client")
def load_and_die() -> None:
    """Load our module, and be killed before it is taken back."""
    with journal() as changes:
        swap.prepare(changes, kernel_modules.in_file(build.build().path))
        swap.ready("nfsrdma")
        channel.send(owner())
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_killed_half_way_is_put_back_by_the_next_start(pair: Lab) -> None:
    with pytest.raises(RemoteError, match="without a result"), load_and_die.started(pair) as load:
        assert load.receive(600) == "nfsrdma"
    assert status(pair)["owner"] == "nfsrdma"
    assert module(pair, "unload").stdout.startswith("nfsrdma was not loaded\n")
    assert status(pair)["owner"] == "rpcrdma"


@pytest.mark.nightly
def test_a_sweep_takes_each_cell_with_its_own_module(pair: Lab) -> None:
    sweep = (
        "nfsrdma sweep server:/export --transport rdma,nfsrdma --rsize 32k --read-ahead 0 --runs 2"
        " --exhaustive --file-size 256k --output /tmp/s.db > /dev/null"
    )
    stored = json.loads(sh(pair, f"{sweep}; nfsrdma results export /tmp/s.db --format json"))
    sh(pair, "rm /tmp/s.db*")
    trials = [(trial["cell"]["transport"], trial["status"]) for trial in stored["trials"]]
    assert sorted(trials) == [("nfsrdma", "ok")] * 2 + [("rdma", "ok")] * 2
    (facts,) = stored["environments"].values()
    assert facts["module nfsrdma"].startswith("0.1.0 ")
    assert facts["module rpcrdma"]
    # probes hold a module: they come off before trial swap, and on again
    assert all(row["rpcs"] for trial in stored["trials"] for row in trial["probe_rows"]["chunks"])
    assert all(trial["probe_rows"]["registrations"] for trial in stored["trials"])
    assert "credits=128" in facts["nfsrdma tunables"]
    assert status(pair)["owner"] == "rpcrdma"


def test_load_refuses_a_used_server_and_prints_the_remedy(pair: Lab) -> None:
    refusal = refused(pair, "load", at="server")
    assert "rpcrdma is in use by nfsd listening on rdma 20049" in refusal
    assert "systemctl stop nfs-server, try again, then systemctl start nfs-server" in refusal


@pytest.mark.nightly
def test_installed_ours_is_what_the_kernel_loads_and_uninstall_leaves_no_trace(tiny: Lab) -> None:
    # the kernel's indices come from another depmod
    before = sh(tiny, f"depmod\n{FILES}")
    assert "permanent: DKMS builds" in module(tiny, "install").stdout
    assert "already installed" in module(tiny, "install").stdout
    (dkms,) = status(tiny)["registered"]
    assert dkms["state"] == "installed"
    names = "rpcrdma rpcrdma6 xprtrdma svcrdma"
    leads = sh(tiny, f"for i in {names}; do modprobe -n -v -i $i; done")
    assert [line.split("/")[-1].split(".")[0] for line in leads.splitlines()] == ["nfsrdma"] * 4
    real = sh(tiny, "modprobe --show-depends kernels-rpcrdma").splitlines()[-1]
    assert "/kernel/net/sunrpc/xprtrdma/rpcrdma.ko" in real

    sh(tiny, "rmmod rpcrdma; ! mount -t nfs -o proto=rdma,port=20049 server:/export /mnt")
    assert status(tiny)["owner"] == "nfsrdma"
    sh(tiny, "rmmod nfsrdma; modprobe kernels-rpcrdma; nfsrdma module load")
    assert status(tiny)["owner"] == "nfsrdma"
    assert "mounts with proto=rdma use rpcrdma" in module(tiny, "unload").stdout

    # a build that does not load
    sh(tiny, f"echo options nfsrdma refuse=1 > {REFUSED}")
    sh(tiny, f"rmmod rpcrdma; {MOUNT}; rm {REFUSED}")
    assert status(tiny)["owner"] == "rpcrdma"
    # as on a kernel for which DKMS has built no module
    built = sh(tiny, "modinfo -n nfsrdma").strip()
    sh(tiny, f"rmmod rpcrdma; mv {built} /root/; depmod; {MOUNT}")
    assert status(tiny)["owner"] == "rpcrdma"
    sh(tiny, f"for i in {names}; do rmmod rpcrdma; modprobe $i; test -e /sys/module/rpcrdma; done")
    findings = json.loads(sh(tiny, "nfsrdma doctor --json || true"))["findings"]
    (finding,) = (row for row in findings if row["name"] == "nfsrdma")
    assert finding["status"] == "warning"
    assert "mounts and nfsd use rpcrdma" in finding["found"]
    sh(tiny, f"mv /root/{built.split('/')[-1]} {built}; depmod")

    assert "uninstalled nfsrdma" in module(tiny, "uninstall").stdout
    assert sh(tiny, FILES).splitlines() == before.splitlines()
    assert "nfsrdma was not installed" in module(tiny, "uninstall").stdout
