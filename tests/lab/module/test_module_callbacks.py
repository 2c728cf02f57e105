# SPDX-License-Identifier: Apache-2.0
"""Callbacks that arrive when the client's session has ended.

With ``--kernel debug``, KASAN reports a callback that reaches a callback service that is gone.
On other kernels such a callback pins its transport, and the module.
"""

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.hostile import serving
from testbed.labs import OURS, carry
from testbed.mounts import nothing_lost
from testbed.peers import callback_server
from testbed.peers.peer import SERVER
from testbed.remote import on

PORT = 20050
serve_callbacks = on("server", timeout=3600)(callback_server.serve)
# $1 times: mount, until the service has got callbacks, and unmount
LOOP = """
mkdir -p /mnt/called
options=vers=4.1,proto=rdma,port=$2,soft,timeo=100,retrans=1,nosharecache
for round in $(seq $1); do
	mount -t nfs -o $options $3:/export /mnt/called
	cat /proc/self/mountstats >/dev/null
	for n in $(seq 600); do
		count=$(cat /sys/kernel/debug/nfsrdma/*/counters | sed -n 's/^callbacks //p')
		test ${count:-0} -lt 8 || break
		stat -f /mnt/called >/dev/null
	done
	test ${count:-0} -ge 8
	umount /mnt/called
done
rmdir /mnt/called
"""
# no transport is pinned
GONE = "for n in $(seq 600); do ls /sys/kernel/debug/nfsrdma | grep -q . || exit 0; sleep 0.1; done"


@pytest.mark.nightly
def test_no_callback_outlives_its_session(module_pair: Lab, long: bool) -> None:
    lab = module_pair
    rounds = "100" if long else "5"
    with nothing_lost(lab, "client"), serving(serve_callbacks, lab, PORT):
        lab.run("client", "sh", "-ec", LOOP, "sh", rounds, str(PORT), SERVER, timeout=3600)
        lab.run("client", "sh", "-c", f"{GONE}; exit 1", timeout=600)
    # it can be unloaded
    lab.run("client", "rmmod", "nfsrdma")
    carry(lab, "client", OURS)
