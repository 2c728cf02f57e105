# SPDX-License-Identifier: Apache-2.0
"""Documentation that all modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """For C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
author: The nfsrdma-tools maintainers (@nfsrdma)
version_added: 0.1.0
attributes:
  check_mode:
    support: full
    description: Reports what would change, and changes nothing.
  diff_mode:
    support: full
    description: The state in effect, before and after.
"""

    PROGRAM = r"""
options:
  command:
    description: The nfsrdma program on the host.
    type: str
    default: /usr/local/bin/nfsrdma
"""

    SIZES = r"""
options:
  rsize:
    description: Bytes of one READ.
    type: int
  wsize:
    description: Bytes of one WRITE.
    type: int
"""
