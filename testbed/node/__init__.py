# SPDX-License-Identifier: Apache-2.0
"""What functions of tests and benchmarks import in a node, which has a copy of this folder."""
