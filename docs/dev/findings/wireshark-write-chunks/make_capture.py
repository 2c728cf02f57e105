#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a capture: a COMPOUND with three READs, each with a Write chunk, and RDMA Writes.

Usage, from the top folder: PYTHONPATH=.:tests .venv/bin/python THIS_FILE CAPTURE
"""

import sys
from pathlib import Path
from unittest import mock

from wire import conversations

from nfsrdma_tools.capture import conversation

LENGTHS = (4096, 4000, 9998)


def main(path: str) -> None:
    """Write the file. `nfsrdma capture` itself writes such data inline, because of this fault."""
    talk = conversations._Talk()
    conversations._compound(talk, 8, LENGTHS)
    with mock.patch.object(conversation._Flow, "_whole", return_value=None):
        Path(path).write_bytes(conversations.written(talk.messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
