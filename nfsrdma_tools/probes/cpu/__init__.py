# SPDX-License-Identifier: Apache-2.0
"""CPU time by layer: stacks sampled, named and added up."""
