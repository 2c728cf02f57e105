# SPDX-License-Identifier: Apache-2.0
"""``python -m nfsrdma_tools`` is ``nfsrdma``."""

from nfsrdma_tools.cli.main import main

main()
