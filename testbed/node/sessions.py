# SPDX-License-Identifier: Apache-2.0
"""Loads of many sessions, without a mount."""

from __future__ import annotations

import subprocess

from nfsrdma_tools.client.load import Outcome, Plan, Progress, load

__all__ = ["restart_under"]


def restart_under(target: str, plan: Plan) -> Outcome:
    """Restart the server under a load, and end that when all sessions are connected again."""
    reports = 0

    def watch(progress: Progress) -> None:
        nonlocal reports
        if progress.seconds <= 0:
            return
        reports += 1
        if reports == 1:
            subprocess.run(("systemctl", "restart", "nfs-server"), check=True)
        elif reports > 3 and progress.up == plan.sessions:
            raise KeyboardInterrupt

    return load(target, plan, watch)
