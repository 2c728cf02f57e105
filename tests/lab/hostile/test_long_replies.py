# SPDX-License-Identifier: Apache-2.0
"""Replies that are longer than an inline message, to a client that sends no private data."""

from pathlib import Path

from nfsrdma_tools.lab.lab import Lab
from testbed.mounts import mounted
from testbed.peers import long_reply_client
from testbed.remote import on

FOLDER = Path("/export/long")
MAKE = f"""
mkdir -p {FOLDER}/names && cd {FOLDER}
head -c 200000 /dev/urandom > data
ln -sfn $(head -c 4003 /dev/zero | tr '\\0' x) link
seq -f name-%05.0f 500 | (cd names && xargs touch)
"""
SIZES = [size << 10 for size in (64, 16, 8, 4, 1)]
LOGGED = "dmesg | grep -c 'connection ended under a Send of [0-9]* bytes'"
long_replies = on("client")(long_reply_client.long_replies)


def test_a_client_without_private_data_gets_long_replies_inline(both_ours: Lab) -> None:
    lab = both_ours
    lab.run("server", "sh", "-ec", MAKE)
    logged = int(lab.run("server", "sh", "-c", LOGGED, check=False).stdout)
    try:
        # a client that sends private data works beside it
        with mounted(lab, "vers=3"):
            outcomes = long_replies(lab, FOLDER, SIZES)
        now = int(lab.run("server", "sh", "-c", LOGGED, check=False).stdout)
    finally:
        lab.run("server", "rm", "-r", str(FOLDER))
    assert (outcomes.readlink, outcomes.readdir) == ("same", "same")
    # a Send that is too long ends the connection, and the client gets an answer the next time; if
    # the message by which its device refuses the Send is lost, the second end counts
    allowed = [["same", *["ended"] * ends, "chunk", "same"] for ends in (1, 2)]
    assert list(outcomes.reads) == SIZES
    assert all(words in allowed for words in outcomes.reads.values()), outcomes.reads
    assert now - logged == len(SIZES)
