# SPDX-License-Identifier: Apache-2.0
"""CPU time by layer: samples stacks, names their functions and adds them up."""
