# SPDX-License-Identifier: Apache-2.0
"""What the documentation of each module says."""

from __future__ import annotations


class ModuleDocFragment:
    """For C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
author: The nfsrdma-tools maintainers (@nfsrdma)
version_added: 0.1.0
attributes:
  check_mode:
    support: full
    description: Says what would be done, and changes nothing.
  diff_mode:
    support: full
    description: What is in effect, before and after.
"""

    PROGRAM = r"""
options:
  command:
    description: The nfsrdma program on the host.
    type: str
    default: /usr/local/bin/nfsrdma
"""
