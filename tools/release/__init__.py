# SPDX-License-Identifier: Apache-2.0
"""``make release``: check the tree, build what is released, and name what was not built."""
