# SPDX-License-Identifier: Apache-2.0
"""Modules that functions of tests and benchmarks import in a node; each node has a copy."""
