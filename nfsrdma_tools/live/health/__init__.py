# SPDX-License-Identifier: Apache-2.0
"""A check of NFS mounts that never accesses a mount: the core of ``nfsrdma health``.

These modules, and the modules of this package that they import, also run on Python 3.9 without any
other package (tests/unit/live/health/test_health.py).
"""
